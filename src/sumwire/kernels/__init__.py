"""The hot loops, in families: lattice/, sparse/, sketch/ and scalar/.

| file of a family | holds |
|---|---|
| reference.py | the definition of every kernel, in NumPy: signatures, docstrings, and the judge of the native one |
| native.py | the implementation in libsumwire (native/ in the repository), with the reference's signatures |
| ../triton/<family>.py | the implementation for torch tensors on a GPU, of lattice and sparse |
| __init__.py | what callers use: `dispatch(reference.kernel)`, spread over threads where that pays |

`backend` decides between them for all families, `native` loads the library, `threads` says how many threads to use,
`hashing` has what all families share.
"""

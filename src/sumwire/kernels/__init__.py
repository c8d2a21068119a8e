"""The hot loops, in families: lattice/, sparse/, sketch/, scalar/ and checksum/.

| file of a family | holds |
|---|---|
| reference.py | the definition of every kernel, in NumPy: signatures, docstrings, and the judge of the native one |
| native.py | the implementation in libsumwire (native/ in the repository), with the reference's signatures |
| __init__.py | what callers use: `dispatch(reference.kernel)`, spread over threads where that pays |

`backend` decides between the two for all families, `library` loads the native one, `threads` says how many threads to
use.
"""

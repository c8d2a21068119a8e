"""The kernels on a GPU, in Triton, which serves NVIDIA and AMD from one source. Nothing here has run on hardware yet.

| file | holds |
|---|---|
| launch.py | tensors of small arrays, the grid, options of every launch |
| scheme.py | a Scheme's numbers and tables on the device |
| random.py, rotation.py, floats.py, planes.py, correction.py | what several kernels call |
| measure.py, encode.py, decode.py, lanes.py, narrow.py | the Lattice codec's kernels |
| parts.py, large_encode.py, large_decode.py, large_narrow.py | the same for blocks that no program holds, in parts |
| lattice.py, sums.py, sparse.py | the reference's signatures: what `backend.dispatch` finds |

A kernel gets torch tensors where the reference gets NumPy arrays of a tensor's size; what has one number per block
(scales, classes, widths, counts) comes from the host, because terms live there. Bytes are the reference's: Triton's
interpreter shows that on a CPU, and docs/gpu.md says which roundings a compiler must get right for it on a GPU.

Importing this package imports nothing; its modules import torch and triton.
"""

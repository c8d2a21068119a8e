"""The compiled implementation of reference.py."""

from __future__ import annotations

from ctypes import c_uint32, c_uint64

from sumwire.kernels.checksum import reference
from sumwire.kernels.library import Array, function, native

crc32c = native(
    reference.crc32c,
    function("sw_crc32c", c_uint32, Array, c_uint64, c_uint32),
    lambda data, start=0: (data, data.size, start),
)

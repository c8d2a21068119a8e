"""CRC-32C."""

from __future__ import annotations

from sumwire.kernels.backend import dispatch
from sumwire.kernels.checksum import reference

__all__ = ["crc32c"]

crc32c = dispatch(reference.crc32c)

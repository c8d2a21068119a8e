"""The idx format of MNIST and its successors.

Two zero bytes, the type, the number of dimensions; each dimension as a big-endian uint32; then the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, first: int | None = None) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped if its name ends in .gz; all items, or only the first ones."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            *magic, dimensions = _take(stream, 4)
            if magic != [0, 0, _UNSIGNED_BYTE] or not dimensions:
                raise OSError("it is not an idx file of bytes")
            shape = np.frombuffer(_take(stream, 4 * dimensions), ">u4").tolist()
            shape[0] = min(shape[0], shape[0] if first is None else first)
            return np.frombuffer(_take(stream, math.prod(shape)), np.uint8).reshape(shape)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"cannot read {str(path)!r} ({error}): give a folder with the files of MNIST or Fashion-MNIST "
            "(Debian: the package dataset-fashion-mnist)"
        ) from error


def _take(stream: gzip.GzipFile | BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError(f"it ends {count - len(data)} bytes too early")
    return data

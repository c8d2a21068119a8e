"""Images as rows: the digits of scikit-learn, Fashion-MNIST, and the idx format of MNIST and its successors.

An idx file has two zero bytes, the type, the number of dimensions; each dimension as a big-endian uint32; then the
values.
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

Rows = NDArray[np.float32]
WIDTH = 1024
"""Images are padded with zeros to this many pixels, as the paper did with MNIST."""
FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package installs the files."""
_IMAGES = "train-images-idx3-ubyte.gz"
_PIXELS = (28, 28)


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


def load(name: str, *, path: Path = FASHION, rows: int | None = None) -> Rows:
    """The images of a data set as padded rows of values in 0..1; only the first `rows` images if given."""
    images, white = (_digits(), 16) if name == "digits" else (_fashion(path, rows), 255)
    padded = np.zeros((len(images[:rows]), WIDTH), np.float32)
    padded[:, : images.shape[1]] = images[:rows]
    padded /= white
    return padded


def _digits() -> NDArray[np.generic]:
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().data)


def _fashion(folder: Path, rows: int | None) -> NDArray[np.generic]:
    path = folder / _IMAGES
    if not path.is_file():
        raise ConfigError(
            f"there is no {_IMAGES} in {str(folder)!r}: install the Debian package dataset-fashion-mnist, "
            "or give the folder of its files with --path"
        )
    images = read_idx(path, rows)
    if images.shape[1:] != _PIXELS or not images.size:
        raise ConfigError(f"{str(path)!r} has the shape {images.shape}: these are not the images of Fashion-MNIST")
    return images.reshape(len(images), -1)

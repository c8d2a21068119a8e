"""What is averaged and clustered: vectors by chance, digits and Fashion-MNIST."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError

Rows = NDArray[np.float32]

WIDTH = 1024
"""Images are padded with zeros to so many pixels, as the paper did with MNIST."""

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package puts the files."""

_IMAGES = "train-images-idx3-ubyte.gz"
_PIXELS = (28, 28)
_BYTES = 0x08
"""The idx format's code for unsigned bytes."""


def vectors(kind: str, clients: int, dimension: int, random: np.random.Generator) -> Rows:
    """A vector for each client: of N(0, 1), and if unbalanced with a last coordinate of N(100, 1).

    >>> (vectors("unbalanced", 2, 3, np.random.default_rng(0)) > 90).tolist()
    [[False, False, True], [False, False, True]]
    """
    drawn = random.standard_normal((clients, dimension), dtype=np.float32)
    if kind == "unbalanced":
        drawn[:, -1] += 100
    return drawn


def load(name: str, *, path: Path = FASHION, rows: int | None = None) -> Rows:
    """The images of a data set as rows, from 0 to 1, padded; only the first `rows`, if that is given."""
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


def read_idx(path: Path, first: int | None = None) -> NDArray[np.uint8]:
    """The array in a gzipped idx file of bytes, or only so many items of it.

    Two zeros, the type, the number of dimensions; each dimension in 4 bytes, the highest first; then the values.
    """
    try:
        with gzip.open(path) as stream:
            *magic, dimensions = _take(stream, 4)
            if magic != [0, 0, _BYTES] or not dimensions:
                raise ConfigError(f"{str(path)!r} is not an idx file of bytes")
            shape = np.frombuffer(_take(stream, 4 * dimensions), ">u4").tolist()
            shape[0] = min(shape[0], shape[0] if first is None else first)
            return np.frombuffer(_take(stream, math.prod(shape)), np.uint8).reshape(shape)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error


def _take(stream: gzip.GzipFile, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError(f"it ends {count - len(data)} bytes too early")
    return data

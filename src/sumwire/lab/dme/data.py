"""Data to average, cluster and project: random vectors, digits and Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError
from sumwire.lab.idx import read_idx

Rows = NDArray[np.float32]

WIDTH = 1024
"""Images are padded with zeros to this many pixels, as the paper did with MNIST."""

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package installs the files."""

_IMAGES = "train-images-idx3-ubyte.gz"
_PIXELS = (28, 28)


def vectors(kind: str, clients: int, dimension: int, random: np.random.Generator) -> Rows:
    """One vector per client, with coordinates from N(0, 1); the last coordinate of unbalanced ones is from N(100, 1).

    >>> (vectors("unbalanced", 2, 3, np.random.default_rng(0)) > 90).tolist()
    [[False, False, True], [False, False, True]]
    """
    drawn = random.standard_normal((clients, dimension), dtype=np.float32)
    if kind == "unbalanced":
        drawn[:, -1] += 100
    return drawn


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

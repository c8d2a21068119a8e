"""The Sketch codec, measured: whether peels complete at a load, and its steps one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import SketchTerms
from sumwire.kernels import sketch

Support = tuple[int, NDArray[np.uint32]]


def scattered(nonzeros: int, rng: np.random.Generator) -> Support:
    size = 20 * nonzeros
    return size, np.sort(rng.choice(size, nonzeros, replace=False)).astype(np.uint32)


def rows(nonzeros: int, rng: np.random.Generator, width: int = 128) -> Support:
    """One row of an embedding in twenty is live, all of it."""
    live = nonzeros // width
    which = np.sort(rng.choice(20 * live, live, replace=False))
    return 20 * live * width, (which[:, None] * width + np.arange(width)).reshape(-1).astype(np.uint32)


def columns(nonzeros: int, rng: np.random.Generator, width: int = 1024) -> Support:
    """The same one column in twenty is live in every row."""
    live, height = width // 20, -(-nonzeros // (width // 20))
    which = np.sort(rng.choice(width, live, replace=False))
    return width * height, (np.arange(height)[:, None] * width + which).reshape(-1).astype(np.uint32)


SUPPORTS: dict[str, Callable[[int, np.random.Generator], Support]] = {
    "random": scattered,
    "rows of 128": rows,
    "rows of 1024": partial(rows, width=1024),
    "live columns": columns,
}


def tensor(support: Support, rng: np.random.Generator) -> NDArray[np.float32]:
    """Normal values there, zeros elsewhere."""
    size, at = support
    x = np.zeros(size, np.float32)
    x[at] = rng.standard_normal(len(at), np.float32)
    return x


def completes(support: Support, rows_per_nonzero: float, trial: int) -> bool:
    """Whether a peel leaves nothing. Which values are in the cells does not matter."""
    size, at = support
    codec = Sketch(1, rows_per_nonzero=rows_per_nonzero, seed=trial)
    terms = SketchTerms(codec, (size,), 127, len(at))
    geometry = terms.geometry(trial)
    index = np.zeros(terms.index_words, np.uint64)
    sketch.mark(geometry, at, index)
    candidates = sketch.candidates(geometry, index)
    cells, values = np.zeros(terms.cells, np.int64), np.empty(len(candidates), np.int64)
    left = sketch.peel(geometry, candidates, cells, values, np.empty_like(cells))
    return not left.any()


@dataclass(frozen=True)
class Steps:
    """What one thread does to encode and decode a tensor, and the copy that it is compared with."""

    steps: Mapping[str, Callable[[], object]]
    copy: Callable[[], object]
    """memcpy of the dense tensor."""
    nonzeros: int
    payload_bytes: int


def steps_of(x: NDArray[np.float32], *, rows_per_nonzero: float | None = None) -> Steps:
    """Steps on this tensor, as the only worker has it."""
    codec = Sketch(1) if rows_per_nonzero is None else Sketch(1, rows_per_nonzero=rows_per_nonzero)
    terms = codec.propose(x)
    geometry, (at, words) = terms.geometry(0), sketch.nonzeros(x)
    values, _ = sketch.quantize(words, terms.exponent, terms.lsb)
    payload = codec.encode(x, terms, rank=0)
    cells, rest, index = np.zeros_like(payload.cells), np.empty_like(payload.cells), np.zeros_like(payload.index)
    found, means, copy = np.empty(len(at), np.int64), np.zeros(x.size, np.float32), np.ones(x.size, np.float32)
    steps: dict[str, Callable[[], object]] = {
        "find non-zeros": lambda: sketch.nonzeros(x),
        "to lattice integers": lambda: sketch.quantize(words, terms.exponent, terms.lsb),
        "insert": lambda: sketch.insert(geometry, at, values, cells),
        "mark in the index": lambda: sketch.mark(geometry, at, index),
        "checksum": lambda: sketch.checksum(geometry.key, at, values),
        "candidates from the index": lambda: sketch.candidates(geometry, payload.index),
        "peel": lambda: sketch.peel(geometry, at, payload.cells, found, rest),
        "to float32 means": lambda: sketch.finish(at, found, terms.lsb, 1, means),
        "encode, all of it": lambda: codec.encode(x, terms, rank=0),
        "decode, all of it": lambda: codec.decode(payload),
    }
    return Steps(steps, lambda: np.copyto(copy, x), len(at), payload.nbytes)

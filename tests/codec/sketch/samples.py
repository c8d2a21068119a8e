"""Sparse tensors as hypothesis picks them, their exact sum, and sketches of them."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import SketchPayload, SketchSum, SketchTerms

Workers = list[NDArray[np.float32]]


WILD = st.floats(width=32)


SPREAD = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 3e38, -3e38, 1e-20, 1 + 2**-23, np.inf, -np.inf, np.nan])


TAME = st.integers(-1000, 1000).map(float)


@st.composite
def sparse(draw: st.DrawFn, max_workers: int = 5) -> Workers:
    """Tensors of one size, mostly zero, with values that hypothesis picks."""
    size = draw(st.one_of(st.integers(0, 70), st.sampled_from([127, 500, 1000, 4097])))
    values = draw(st.sampled_from([WILD, SPREAD, TAME]))
    where = st.integers(0, max(size - 1, 0))
    xs = []
    for _ in range(draw(st.integers(1, max_workers))):
        x = np.zeros(size, np.float32)
        if size:
            for at, value in draw(st.lists(st.tuples(where, values), max_size=12)):
                x[at] = value
        xs.append(x)
    return xs


def exact_sum(xs: Workers) -> NDArray[np.float32]:
    """By fractions: a second opinion on sums, NaN and infinities."""
    out = np.zeros(xs[0].size, np.float32)
    rows = np.stack([x.reshape(-1) for x in xs])
    for at in np.flatnonzero((rows != 0).any(axis=0)):
        column = rows[:, at]
        if not np.isfinite(column).all():
            with np.errstate(invalid="ignore"):
                out[at] = column[~np.isfinite(column)].sum()
            continue
        out[at] = nearest_float32(sum((Fraction(float(v)) for v in column), Fraction(0)))
    return out.reshape(xs[0].shape)


def nearest_float32(value: Fraction) -> np.float32:
    """Round half to even by comparing neighbours."""
    if abs(value) >= Fraction(2) ** 128 - Fraction(2) ** 103:
        return np.float32(np.inf if value > 0 else -np.inf)
    guess = np.float32(min(max(float(value), -3.4028234e38), 3.4028234e38))
    with np.errstate(over="ignore"):
        around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    finite = [v for v in around if np.isfinite(v)]
    return min(finite, key=lambda v: (abs(Fraction(float(v)) - value), int(v.view(np.uint32)) & 1))


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool((nan | (a.view(np.uint32) == b.view(np.uint32))).all())


def join(codec: Sketch, xs: Workers) -> SketchTerms:
    return reduce(or_, (codec.propose(x) for x in xs))


def payloads_of(codec: Sketch, xs: Workers, round_id: int = 0) -> list[SketchPayload]:
    terms = join(codec, xs)
    return [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]


def whole(codec: Sketch, xs: Workers, round_id: int = 0) -> SketchSum:
    total = codec.add(payloads_of(codec, xs, round_id))
    assert isinstance(total, SketchSum)
    return total


def finished(codec: Sketch, total: SketchSum, xs: Workers) -> NDArray[np.float32]:
    """The sum, with the second exchange if it takes one."""
    peeled = codec.peel(total)
    return codec.complete(peeled, np.stack([codec.pick(x, peeled.leftovers) for x in xs]), divisor=1)


def random_sparse(size: int, count: int, seed: int, workers: int = 1) -> Workers:
    rng = np.random.default_rng(seed)
    xs = []
    for _ in range(workers):
        x = np.zeros(size, np.float32)
        x[rng.choice(size, count, replace=False)] = rng.standard_normal(count)
        xs.append(x)
    return xs


def bits_of(total: SketchSum) -> tuple[Any, ...]:
    return total.ranks, total.checksum, total.exponent, *(part.tobytes() for part in total.body())

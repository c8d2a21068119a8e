"""Stacked rows have the bits of each row on its own."""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np
import pytest

from sumwire import ConfigError, InputError, Lattice, Residual, Sparse
from sumwire.codec.base import Codec
from sumwire.codec.stacked import Stacked

WORKERS, ROWS, SIZE = 3, 4, 700


def stacks(step: int = 0) -> list[np.ndarray]:
    return [np.random.default_rng((r, step)).standard_normal((ROWS, SIZE)).astype(np.float32) for r in range(WORKERS)]


@pytest.mark.parametrize("inner", [Lattice(WORKERS, 4), Lattice(WORKERS, 3, widths="fixed"), Sparse(WORKERS)])
def test_every_row_is_a_tensor_of_its_own(inner: Codec) -> None:
    codec, xs = Stacked(inner, rows=ROWS), stacks()
    terms = reduce(or_, map(codec.propose, xs))
    payloads = [codec.encode(x, terms, rank=rank, round_id=7) for rank, x in enumerate(xs)]
    total = codec.add(payloads)
    mean = codec.decode(total)
    for row in range(ROWS):
        own = reduce(or_, [inner.propose(x[row]) for x in xs])
        each = inner.add([inner.encode(x[row], own, rank=rank, round_id=7 + row) for rank, x in enumerate(xs)])
        np.testing.assert_array_equal(mean[row], inner.decode(each))
        np.testing.assert_array_equal(codec.decode(total.part(row, row + 1))[0], mean[row])


def test_a_residual_for_every_row() -> None:
    inner = Lattice(WORKERS, 2, feedback=True)
    codec = Stacked(inner, rows=ROWS)
    stacked = [codec.residual() for _ in range(WORKERS)]
    apart = [[Residual(inner) for _ in range(ROWS)] for _ in range(WORKERS)]
    for step in range(3):
        xs, key = stacks(step), 10 * step
        terms = reduce(or_, [codec.propose(kept.correct(x)) for kept, x in zip(stacked, xs, strict=True)])  # type: ignore[union-attr]
        mean = codec.decode(codec.add([kept.encode(terms, rank=r, round_id=key) for r, kept in enumerate(stacked)]))  # type: ignore[union-attr]
        for row in range(ROWS):
            own = reduce(or_, [inner.propose(apart[r][row].correct(xs[r][row])) for r in range(WORKERS)])
            payloads = [apart[r][row].encode(own, rank=r, round_id=key + row) for r in range(WORKERS)]
            np.testing.assert_array_equal(mean[row], inner.decode(inner.add(payloads)))
    restored = codec.residual()
    restored.load_state_dict(stacked[0].state_dict())  # type: ignore[union-attr]
    np.testing.assert_array_equal(restored.correct(stacks()[0]), stacked[0].correct(stacks()[0]))  # type: ignore[union-attr]


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="rows=0"):
        Stacked(Sparse(2), rows=0)
    codec = Stacked(Sparse(2), rows=2)
    with pytest.raises(InputError, match="does not have 2 rows"):
        codec.propose(np.ones((3, 4), np.float32))
    with pytest.raises(InputError, match="over a server, average row by row"):
        codec.parts(8, 0, 1)

"""The sketch's kernels: native equals reference, and peeling does not depend on its order."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.kernels.sketch import reference
from sumwire.kernels.sketch.reference import Coordinates, Geometry, Ints
from tests.kernels.backends import LEVELS, backend_at


@pytest.fixture(scope="module", params=LEVELS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    with backend_at(request.param, "sketch") as module:
        yield module


@st.composite
def problems(draw: st.DrawFn) -> tuple[Geometry, Coordinates, Ints]:
    """A geometry, and values to put there: too many at times."""
    size = draw(st.one_of(st.integers(1, 300), st.integers(1, 20_000)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    at = np.flatnonzero(rng.random(size) < draw(st.sampled_from([0.0, 0.01, 0.3, 1.0]))).astype(np.uint32)
    log_block, load = draw(st.integers(0, 10)), draw(st.sampled_from([0.3, 1.0, 1.3, 3.0]))
    starts = 1 + max(0, int(load * len(at) / 3) - 2**log_block)
    span = draw(st.integers(1, starts))
    probes = draw(st.sampled_from([0, 1, 3, 10]))
    words = -(-size // 64) if probes == 0 else draw(st.integers(1, 500))
    key = draw(st.integers(0, 2**64 - 1))
    values = rng.integers(-(2**63), 2**63, len(at), dtype=np.int64)
    return Geometry(size, log_block, starts + 2**log_block - 1, span, words, probes, key), at, values


@given(problem=problems())
def test_native_is_the_reference(backend: ModuleType, problem: tuple[Geometry, Coordinates, Ints]) -> None:
    geometry, at, values = problem
    results = []
    for kernels in (reference, backend):
        cells, words = np.zeros(geometry.cells, np.int64), np.zeros(geometry.words, np.uint64)
        kernels.insert(geometry, at, values, cells)
        kernels.mark(geometry, at, words)
        candidates = kernels.candidates(geometry, words)
        rest, found = np.empty_like(cells), np.empty(len(candidates), np.int64)
        left = kernels.peel(geometry, candidates, cells, found, rest)
        check = kernels.checksum(geometry.key, candidates, found)
        results.append((cells, words, candidates, rest, found, left, np.uint64(check)))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        assert (a == b).all()
    cells, words, candidates, rest, found, left, _ = results[0]
    assert np.isin(at, candidates).all()
    sent = np.zeros(geometry.size, np.int64)
    sent[at] = values
    assert (found[~left] == sent[candidates[~left]]).all()
    if not left.any():
        assert not rest.any()


@given(problem=problems(), seed=st.integers(0, 2**32))
def test_what_stays_is_the_2_core(backend: ModuleType, problem: tuple[Geometry, Coordinates, Ints], seed: int) -> None:
    """Peeling one at a time, in any order, leaves what the rounds leave."""
    geometry, at, values = problem
    at, values = at[:400], values[:400]
    cells = np.zeros(geometry.cells, np.int64)
    reference.insert(geometry, at, values, cells)
    left = backend.peel(geometry, at, cells, np.empty(len(at), np.int64), cells.copy())
    where = reference.cells_of(geometry, at)
    holds: dict[int, set[int]] = {}
    for item, column in enumerate(where.T.tolist()):
        for cell in column:
            holds.setdefault(cell, set()).add(item)
    rng, alive = np.random.default_rng(seed), set(range(len(at)))
    while pure := [cell for cell, items in holds.items() if len(items) == 1]:
        (item,) = holds[pure[rng.integers(len(pure))]]
        alive.remove(item)
        for cell in where[:, item].tolist():
            holds[cell].discard(item)
    assert alive == set(np.flatnonzero(left).tolist())


@given(
    words=st.lists(st.integers(0, 2**32 - 1), max_size=50),
    exponent=st.integers(0, 254),
    log_workers=st.integers(0, 16),
)
def test_quantize_is_exact_or_escapes(backend: ModuleType, words: list[int], exponent: int, log_workers: int) -> None:
    lsb = max(max(exponent, 1) - 126 + log_workers - 63, -149)
    bits = np.array([*words, 0, 1 << 31, 1, 0x7F800000, 0x7FC00000, exponent << 23, exponent << 23 | 1], np.uint32)
    whole, escapes = reference.quantize(bits, exponent, lsb)
    again, same = backend.quantize(bits, exponent, lsb)
    assert (whole == again).all()
    assert (escapes == same).all()
    values = bits.view(np.float32)
    assert escapes[~np.isfinite(values)].all()
    kept = ~escapes
    assert (np.abs(whole) < 2 ** (63 - log_workers)).all()
    assert (whole[kept].astype(np.float64) * 2.0**lsb == values[kept]).all()
    beyond = (bits >> np.uint32(23) & np.uint32(255)) > exponent
    assert (np.ldexp(values[escapes & ~beyond].astype(np.float64), -lsb) % 1 != 0).all()


@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50),
    lsb=st.integers(-149, 81),
    count=st.integers(1, 65536),
)
def test_finish_is_the_reference(backend: ModuleType, values: list[int], lsb: int, count: int) -> None:
    whole = np.array([*values, -(2**63), 2**63 - 1, 2**53, 2**53 + 1, -(2**62) - 1], np.int64)
    at = 3 * np.arange(len(whole), dtype=np.uint32)[::-1].copy()
    a, b = np.zeros(3 * len(whole), np.float32), np.zeros(3 * len(whole), np.float32)
    reference.finish(at, whole, lsb, count, a)
    backend.finish(at, whole, lsb, count, b)
    assert (a.view(np.uint32) == b.view(np.uint32)).all()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 2048, 5000])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_nonzeros(backend: ModuleType, size: int, density: float) -> None:
    rng = np.random.default_rng(size)
    x = np.where(rng.random(size) < density, rng.standard_normal(size), -0.0).astype(np.float32)
    x[size // 2 : size // 2 + 1] = np.nan
    at, words = backend.nonzeros(x)
    assert (at == np.flatnonzero(x)).all()
    assert (words == x[at].view(np.uint32)).all()
    assert at.dtype == words.dtype == np.uint32


@pytest.mark.parametrize("load", [1.1, 1.3])
def test_large_tables_are_the_reference_too(backend: ModuleType, load: float) -> None:
    """Large enough for whatever native does to stay in the caches."""
    rng = np.random.default_rng(0)
    size = 2_000_000
    at = np.flatnonzero(rng.random(size) < 0.08).astype(np.uint32)
    values = rng.integers(-(2**63), 2**63, len(at), dtype=np.int64)
    geometry = Geometry(size, 7, int(load * len(at) / 3), 9000, -(-size // 64), 0, 12345)
    results = []
    for kernels in (reference, backend):
        cells = np.zeros(geometry.cells, np.int64)
        kernels.insert(geometry, at, values, cells)
        rest, found = np.empty_like(cells), np.empty(len(at), np.int64)
        left = kernels.peel(geometry, at, cells, found, rest)
        results.append((cells, rest, found, left))
    for a, b in zip(*results, strict=True):
        assert (a == b).all()
    assert results[0][3].any() == (load < 1.2)


def test_cells_that_hold_every_block_are_counted_right(backend: ModuleType) -> None:
    """More items in a cell than any small counter has room for: the count must not pass for 1."""
    size = 70_000
    at, values = np.arange(size, dtype=np.uint32), np.ones(size, np.int64)
    for log_block, table in ((0, 1), (0, 2), (3, 8), (10, 1025)):
        geometry = Geometry(size, log_block, table, 1, -(-size // 64), 0, 5)
        for count in (1, 257, 65_537, size):
            cells, found = np.zeros(geometry.cells, np.int64), np.empty(count, np.int64)
            backend.insert(geometry, at[:count], values[:count], cells)
            assert cells.sum() == 3 * count
            rest = np.empty_like(cells)
            left = backend.peel(geometry, at[:count], cells, found, rest)
            expected = reference.peel(geometry, at[:count], cells, np.empty(count, np.int64), np.empty_like(cells))
            assert (left == expected).all()
            assert (found == ~left).all()


def test_memory_is_not_trusted_between_calls(backend: ModuleType) -> None:
    """Native keeps its scratch: what a large, stuck peel left there must not show in a small one."""
    rng = np.random.default_rng(1)
    for size, load in ((60_000, 0.5), (3000, 1.4), (40_000, 1.4), (10, 3.0)):
        at = np.flatnonzero(rng.random(size) < 0.5).astype(np.uint32)
        geometry = Geometry(size, 2, int(load * len(at) / 3) + 4, 2, -(-size // 64), 0, size)
        cells, values = np.zeros(geometry.cells, np.int64), rng.integers(1, 9, len(at))
        backend.insert(geometry, at, values, cells)
        results = []
        for kernels in (reference, backend):
            found, rest = np.empty(len(at), np.int64), np.empty_like(cells)
            results.append((kernels.peel(geometry, at, cells, found, rest), found, rest))
        for a, b in zip(*results, strict=True):
            assert (a == b).all()

"""Bytes of a lossless round stay under both bars: 0.6 of the paper's best, and 1.03 of a dense ring.

`python -m benchmarks.sparse_bytes` has the whole table; sizes here are smaller, which is harder to keep the bars with.
"""

from __future__ import annotations

import pytest
from benchmarks.sparse_bytes import MOST_OF_DENSE, MOST_OF_LHC

from sumwire.kernels import backend
from sumwire.lab.sparse_bytes import LAWS, Shares, count, drawn


@pytest.fixture(autouse=True)
def _native() -> None:
    if backend.name() != "native":
        pytest.skip("the reference makes the same bytes, slowly")


def measure(law: str, size: int, workers: int, density: float) -> Shares:
    return count(drawn(law, size, workers, density), workers)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("density", [0.001, 0.003, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("workers", [4, 16])
def test_both_bars(law: str, workers: int, density: float) -> None:
    figures = measure(law, 1 << 17, workers, density)
    assert figures.own == pytest.approx(density, rel=0.5)
    assert figures.ratio <= MOST_OF_LHC
    assert figures.padded <= MOST_OF_DENSE


@pytest.mark.parametrize(("law", "density"), [("zipf", 0.003), ("zipf", 0.3), ("rows", 0.01), ("uniform", 0.03)])
def test_both_bars_among_many_workers(law: str, density: float) -> None:
    figures = measure(law, 1 << 18, 64, density)
    assert figures.ratio <= MOST_OF_LHC
    assert figures.padded <= MOST_OF_DENSE


@pytest.mark.parametrize("density", [0.5, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("law", [*LAWS, "same"])
def test_hardly_any_zeros_cost_hardly_more_than_dense(law: str, density: float) -> None:
    assert measure(law, 1 << 16, 4, density).padded <= MOST_OF_DENSE


def test_figures_of_the_prototype() -> None:
    """Shares of a dense ring that were worked out before the codec was written."""
    for workers, density, union, ours in ((4, 0.001, 0.0035, 0.0029), (16, 0.01, 0.097, 0.062), (16, 0.1, 0.6, 0.37)):
        figures = measure("zipf", 1 << 20, workers, density)
        assert figures.union == pytest.approx(union, rel=0.03)
        assert figures.ours == pytest.approx(ours, rel=0.05)

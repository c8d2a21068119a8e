"""Which owner adds which row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sumwire.codec.algebra import MAX_WORKERS
from sumwire.codec.rows.rows import owners


@given(st.integers(1, 300), st.lists(st.integers(0, 2**40), unique=True, max_size=50))
def test_every_run_of_rows_has_each_owner_once(ranks: int, runs: list[int]) -> None:
    numbers = (np.array(runs, np.int64)[:, None] * ranks + np.arange(ranks)).reshape(-1)
    found = owners(numbers, ranks).reshape(-1, ranks)
    assert (np.sort(found, axis=1) == np.arange(ranks)).all()


def test_owners_of_many_rows_among_many_ranks() -> None:
    """A table of ranks by rows would have 100 GB."""
    numbers = np.arange(200_000) * MAX_WORKERS  # a step in which every row would have one owner if nothing mixed them
    counts = np.bincount(owners(numbers, MAX_WORKERS), minlength=MAX_WORKERS)
    assert counts.max() < 30
    assert (counts > 0).mean() > 0.9

"""Stacked rows: whatever their codec does, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from sumwire import ConfigError, InputError, Lattice, Rows, Sparse, average
from sumwire.codec.adaptive import Adaptive
from sumwire.codec.rows.rows import RowSlices
from sumwire.codec.sparse.compact import Compact
from sumwire.codec.stacked.codec import Stacked


def test_rows_join_as_their_codec_does() -> None:
    a, b = np.zeros((2, 1, 8), np.float32)
    a[0, 3], b[0, 5] = 1, 2
    np.testing.assert_array_equal(average(Stacked(Compact(2), rows=1), [a, b]), (a + b) / 2)


def test_rows_of_one_value() -> None:
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(average(Stacked(Sparse(1), rows=3), [x]), x)


def test_a_single_double_is_averaged_by_the_lattice() -> None:
    codec = Adaptive(Lattice(2, 8), Sparse(2))
    assert average(codec, [np.ones(1), np.ones(1)])[0] == pytest.approx(1, abs=0.1)


def test_adaptive_refuses_feedback() -> None:
    with pytest.raises(ConfigError, match="residuals"):
        Adaptive(Lattice(2, 4, feedback=True), Sparse(2))


@pytest.mark.parametrize("numbers", [[3, 3], [5, 3], [-1, 2], [2, 9]])
def test_row_numbers_must_ascend_within_the_table(numbers: list[int]) -> None:
    x = RowSlices((9, 2), np.array(numbers), np.ones((2, 2), np.float32))
    with pytest.raises(InputError, match=r"ascend, each once, within 0..8"):
        Rows(1).propose(x)

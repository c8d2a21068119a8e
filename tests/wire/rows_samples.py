"""Rows of tables, and what they are when made dense."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire.codec.rows.rows import RowSlices

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def table(rows: int, width: int, seed: int, dtype: str = "float32", share: float = 0.3) -> RowSlices:
    """About this share of a table's rows; bfloat16 as the uint16 that stands for it."""
    rng = np.random.default_rng(seed)
    numbers = np.flatnonzero(rng.random(rows) < share)
    values = rng.standard_normal((len(numbers), width)).astype(DTYPES[dtype])
    return RowSlices((rows, width), numbers, values.view(np.uint16) if dtype == "bfloat16" else values)


@st.composite
def some_rows(draw: st.DrawFn) -> RowSlices:
    rows, width = draw(st.integers(1, 60)), draw(st.integers(0, 5))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    return table(rows, width, draw(st.integers(0, 999)), draw(st.sampled_from(sorted(DTYPES))), share)


def dense(x: RowSlices) -> NDArray[np.float32]:
    out = np.zeros(x.shape, np.float32)
    values = x.values.view(ml_dtypes.bfloat16) if x.values.dtype == np.uint16 else x.values
    out[x.numbers] = values.astype(np.float32)
    return out


def bits_of(x: RowSlices) -> tuple[tuple[int, ...], bytes, bytes]:
    return x.shape, x.numbers.tobytes(), x.values.tobytes()

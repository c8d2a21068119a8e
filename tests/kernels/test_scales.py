"""Scales of one byte: the raster is what it says, rounding covers, and every backend gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sumwire.kernels.lattice import scales
from sumwire.kernels.lattice.scales import FRACTIONS, LARGEST_SCALE, MOST_STEP, RASTER

Floats = NDArray[np.float32]

LARGEST = int(LARGEST_SCALE.view(np.uint32))
ANY = hnp.arrays(np.uint32, st.integers(0, 40), elements=st.integers(0, 2**32 - 1))
VALID = hnp.arrays(
    np.uint32,
    st.integers(0, 40),
    elements=st.one_of(st.integers(0, LARGEST), st.integers(0x3F000000, 0x40800000), st.integers(0, 1 << 23)),
)


def rounded(bits: NDArray[np.uint32]) -> Floats:
    out = bits.view(np.float32).copy()
    scales.round_scales(out)
    return out


def test_the_raster_is_rounded_up_exactly() -> None:
    for j, fraction in enumerate(FRACTIONS.tolist()):
        assert ((1 << 23) + fraction) ** 8 >= 1 << (8 * 23 + j)
        assert not j or ((1 << 23) + fraction - 1) ** 8 < 1 << (8 * 23 + j)
    assert (np.diff(RASTER.astype(np.int64)) > 0).all()
    assert RASTER[0] == 1
    assert RASTER[-1] == LARGEST
    np.testing.assert_array_equal(scales.steps_of(RASTER), np.arange(MOST_STEP + 1))
    normal = RASTER[23:].view(np.float32).astype(np.float64)
    np.testing.assert_allclose(normal, 2.0 ** (np.arange(len(normal)) / 8 - 126), rtol=2**-23)


@given(VALID)
def test_rounding_covers_and_is_as_tight_as_a_byte_allows(bits: NDArray[np.uint32]) -> None:
    given_, out = bits.view(np.float32), rounded(bits)
    assert (out >= given_).all()
    assert ((out == 0) == (given_ == 0)).all()
    np.testing.assert_array_equal(rounded(out.view(np.uint32)), out)
    top = out.max(initial=0)
    near = given_ >= max(top * 2.0**-31, 2.0**-126)
    assert (out[near] <= given_[near] * 1.0906).all()
    # Subnormal scales are powers of two; what is too far below the largest is rounded up by more.
    low = (out > 0) & (out < 2.0**-126) & (out > top * 2.0**-31)
    assert (out[low] < 2 * given_[low].astype(np.float64)).all()


@given(VALID)
def test_codes_come_back(bits: NDArray[np.uint32]) -> None:
    out = rounded(bits)
    base = scales.largest_step(out)
    codes = scales.codes_of(out, base)
    assert codes.max(initial=0) == (255 if out.any() else 0)
    assert scales.scales_of(codes, base).tobytes() == out.tobytes()


@given(VALID)
def test_rounding_down_is_the_nearest_below(bits: NDArray[np.uint32]) -> None:
    down = bits.view(np.float32).copy()
    scales.round_down(down)
    assert (down <= bits.view(np.float32)).all()
    live = down > 0
    np.testing.assert_array_equal(live, bits > 0)
    above = RASTER[np.minimum(scales.steps_of(down[live].view(np.uint32)) + 1, MOST_STEP)]
    assert ((above > bits[live]) | (bits[live] == LARGEST)).all()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, -1.0, -0.0, 2.0**115 * 1.0001, 3e38])
def test_what_no_terms_may_hold_stays(bad: float) -> None:
    out = rounded(np.array([1.1, bad, 0.0], np.float32).view(np.uint32))
    assert out[1:2].tobytes() == np.float32(bad).tobytes()
    assert out[2] == 0


@given(st.one_of(ANY, VALID))
def test_native_rounds_alike(bits: NDArray[np.uint32]) -> None:
    native = pytest.importorskip("sumwire.kernels.lattice.native", exc_type=OSError)
    out = bits.view(np.float32).copy()
    native.round_scales(out)
    assert out.tobytes() == rounded(bits).tobytes()

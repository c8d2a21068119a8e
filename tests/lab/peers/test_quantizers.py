"""Formats against their definition, and errors against the bounds of the papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire.lab.peers.base import Vector
from sumwire.lab.peers.block_float import E2M1, E2M3, E3M2, E4M3, BlockFloatQuantizer, TinyFloat
from sumwire.lab.peers.casts import CastQuantizer
from sumwire.lab.peers.dynamic import ANY_WIDTHS, WIDTHS, GroupQuantizer, allot, levels
from sumwire.lab.peers.integers import HadamardQuantizer, IntegerQuantizer
from sumwire.lab.peers.quantizer import Quantizer
from sumwire.lab.peers.sparse import TopKQuantizer
from tests.lab.peers import gradients


def decoded(quantizer: Quantizer, x: Vector, seed: int = 0) -> Vector:
    rng = np.random.default_rng(seed)
    return quantizer.decode(quantizer.encode(x, lambda n: rng.random(n, dtype=np.float32)), x.size)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(E2M1, "float4_e2m1fn"), (E2M3, "float6_e2m3fn"), (E3M2, "float6_e3m2fn"), (E4M3, "float8_e4m3fn")],
)
def test_tiny_floats_have_the_values_and_the_rounding_of_ml_dtypes(kind: TinyFloat, dtype: str) -> None:
    theirs = getattr(pytest.importorskip("ml_dtypes"), dtype)
    steps = np.linspace(-kind.largest, kind.largest, 4001, dtype=np.float32)
    ties = np.concatenate([kind.values, (kind.values[1:] + kind.values[:-1]) / 2])
    x = np.concatenate([steps, ties, -ties])
    codes = kind.encode(x, "nearest", lambda n: np.zeros(n, np.float32)).astype(np.uint16)
    np.testing.assert_array_equal(kind.decode(codes), x.astype(theirs).astype(np.float32))
    np.testing.assert_array_equal(codes, x.astype(theirs).view(np.uint8))


def test_bfloat16_has_the_rounding_of_ml_dtypes() -> None:
    theirs = pytest.importorskip("ml_dtypes").bfloat16
    x = np.random.default_rng(0).integers(0, 1 << 32, 5000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x[np.isfinite(x) & (np.abs(x) < 1e38)], np.float32([1 + 2**-8, 1 + 3 * 2**-8, 0, -0.0])])
    np.testing.assert_array_equal(decoded(CastQuantizer("bf16"), x), x.astype(theirs).astype(np.float32))


@pytest.mark.parametrize("kind", [E2M1, E2M3, E3M2])
def test_mx_scales_follow_the_specification(kind: TinyFloat) -> None:
    """The scale is 2**(floor(log2(max)) - exponent of the largest value); what lies above saturates."""
    for peak in (1.0, 1.9, 2.0, 3.0, 1e-3, 5e4):
        x = np.zeros(32, np.float32)
        x[3], x[4] = peak, -peak / 3
        unit = 2.0 ** (np.floor(np.log2(peak)) - np.floor(np.log2(kind.largest)))
        found = decoded(BlockFloatQuantizer(kind, 32), x) / unit
        best = [kind.values[np.argmin(np.abs(kind.values - v / unit))] for v in (peak, peak / 3)]
        assert found[3] == best[0]
        assert abs(found[4]) == best[1]


@settings(max_examples=30)
@given(
    bits=st.integers(2, 8),
    block=st.sampled_from([1, 7, 64, 512]),
    size=st.integers(1, 700),
    norm=st.sampled_from(["max", "l2"]),
    rounding=st.sampled_from(["nearest", "stochastic"]),
    exponent=st.integers(-120, 100),
)
def test_integers_are_within_a_step(bits: int, block: int, size: int, norm: str, rounding: str, exponent: int) -> None:
    x = np.ldexp(gradients(1, size)[0], exponent)
    quantizer = IntegerQuantizer(bits, block, rounding=rounding, norm=norm)  # type: ignore[arg-type]
    back = decoded(quantizer, x)
    for start in range(0, size, block):
        here = slice(start, start + block)
        piece = x[here].astype(np.float64)
        scale = np.abs(piece).max() if norm == "max" else np.linalg.norm(piece)
        step = scale / (2 ** (bits - 1) - (rounding == "stochastic"))
        # Rounded to nearest, +scale has no code of its own: it gets the one below.
        top = piece > scale - step / 2
        limit = np.where((rounding == "nearest") & ~top, step / 2, step)
        assert (np.abs(back[here] - piece) <= limit * 1.00001).all()


def test_nearest_integers_have_the_error_of_uniform_noise_and_of_the_top() -> None:
    """A step's square over 12; and the share of +max that has no code."""
    (x,) = gradients(1, 128 * 1000)
    rows = x.reshape(-1, 128).astype(np.float64)
    step = np.abs(rows).max(axis=1, keepdims=True) / 8
    lost = np.square(np.maximum(rows - 7.5 * step, 0) + step / 2)[rows > 7.5 * step].sum()
    found = np.square(decoded(IntegerQuantizer(4, 128), x) - x).sum()
    assert found == pytest.approx(rows.size * np.mean(step**2) / 12 + lost, rel=0.03)


@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_qsgd_keeps_the_bound_of_its_paper(bits: int) -> None:
    """Expected squared error of a bucket of d: at most min(d / s**2, sqrt(d) / s) of its energy."""
    (x,) = gradients(1, 512)
    quantizer = IntegerQuantizer(bits, 512, rounding="stochastic", norm="l2")
    s = 2 ** (bits - 1) - 1
    errors = [np.square(decoded(quantizer, x, seed) - x).sum() for seed in range(30)]
    bound = min(512 / s**2, 512**0.5 / s) * np.square(x).sum()
    assert bound / 20 < np.mean(errors) < bound


def test_a_transform_spreads_an_outlier() -> None:
    x = gradients(1, 128)[0]
    x[9] = 40
    plain, smooth = (decoded(q, x) for q in (IntegerQuantizer(4, 128), HadamardQuantizer(IntegerQuantizer(4, 128), 32)))
    rest = np.arange(128) != 9
    assert np.square(smooth - x)[rest].sum() < np.square(plain - x)[rest].sum()


@given(size=st.integers(1, 300), density=st.floats(0.001, 1), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_topk_sends_the_largest_exactly(size: int, density: float, seed: int) -> None:
    (x,) = gradients(1, size, seed)
    found = decoded(TopKQuantizer(density), x)
    sent = found != 0
    assert sent.sum() == max(1, round(density * size))
    np.testing.assert_array_equal(found[sent], x[sent])
    assert np.abs(x[~sent]).max(initial=0) <= np.abs(x[sent]).min()


def test_groups_clamp_nothing_and_wider_ones_are_finer() -> None:
    """A group's largest value is a level, up to the rounding of its scales."""
    (x,) = gradients(1, 3 * 256)
    x[256:512] *= 1e-20
    errors = []
    for width in WIDTHS:
        table = levels(width)
        assert (np.diff(table) > 0).all()
        np.testing.assert_allclose(table, -table[::-1])
        back = decoded(GroupQuantizer(np.full(3, width)), x)
        step = np.diff(table).max()
        peak = np.abs(x).reshape(-1, 16).max(axis=1).repeat(16)
        top = np.abs(x).reshape(-1, 256).max(axis=1).repeat(256)
        # Scales are rounded up: of supergroups by 1/128 at most, of groups by 1/255 of the largest one.
        assert (np.abs(back - x) <= step * (peak + top * 1.01 / 255) * 1.01).all()
        errors.append(np.square(back / top - x / top).sum())
    assert errors[0] > 16 * errors[1] > 256 * errors[2]


def test_bits_go_where_the_energy_is() -> None:
    norms = np.array([1e-6, 1, 2, 1000, 0], np.float32)
    lengths = np.array([256, 256, 256, 256, 10])
    assert allot(norms, lengths, 2.0).tolist() == [2] * 5
    assert allot(norms, lengths, 8.0).tolist() == [8] * 5
    for bits, choices, expected in ((4.1, WIDTHS, [2, 2, 4, 8, 2]), (4.6, ANY_WIDTHS, [2, 4, 4, 8, 2])):
        widths = allot(norms, lengths, bits, choices)
        assert widths.tolist() == expected
        assert (widths * lengths).sum() <= bits * lengths.sum()

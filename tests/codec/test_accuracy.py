"""The errors that DESIGN promises: the paper's, ours, the predicted, on noise and on real gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire import ConfigError, Lattice, average
from sumwire.codec.lattice.coding import rotate
from sumwire.lab.gradients import worker_gradients
from tests.codec.lattice.test_unbiased import nmse

AS_PUBLISHED: dict[str, Any] = {
    "widths": "fixed", "block": 4096, "unbiased": False, "terms": "exact", "down_bits": "exact",
}  # fmt: skip
PAPER: dict[str, Any] = {"granularity": 30, "clip": 1 / 32, **AS_PUBLISHED}
FINER: dict[str, Any] = {"granularity": 60, "clip": 1 / 512, **AS_PUBLISHED}

# Prototype figures: workers, correlation, paper's setting, the same stratified, a finer lattice.
TABLE = [
    (4, 0.0, 0.0201, 0.0155, 0.0135),
    (4, 0.9, 0.0095, 0.0082, 0.0036),
    (10, 0.0, 0.0200, 0.0144, 0.0121),
    (10, 0.9, 0.0069, 0.0062, 0.0014),
    (30, 0.0, 0.0199, 0.0136, 0.0115),
    # The prototype had 0.0054 for the middle one. That is its clamping alone: with the rounding that
    # stratified workers keep (predicted_nmse says 0.0059) it cannot be less than 0.0056.
    (30, 0.9, 0.0059, 0.00575, 0.0006),
]


@pytest.mark.parametrize(("workers", "correlation", "paper", "stratified", "finer"), TABLE)
def test_the_table_of_the_design(
    workers: int, correlation: float, paper: float, stratified: float, finer: float
) -> None:
    rounding: Any
    for options, rounding, expected in (
        (PAPER, "independent", paper),
        (PAPER, "stratified", stratified),
        (FINER, "stratified", finer),
    ):
        codec = Lattice(workers, 4, rounding=rounding, **options)
        measured = nmse(codec, workers, correlation, size=1 << 17, rounds=2)
        # 5 %, and half a digit of the table itself where that has one digit only.
        half_digit = 0.00005 if expected < 0.001 else 0.0
        assert abs(measured - expected) <= 0.05 * expected + half_digit, (options, rounding, measured)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(
    "codec",
    [
        *(Lattice(4, bits, energy=0.0, down_bits="exact") for bits in (1, 2, 4, 7)),
        Lattice(2, 2, down_bits="exact"),
        Lattice(64, 2, down_bits="exact"),
        Lattice(4, 2, unbiased=False, down_bits="exact"),
        Lattice.thc(8, block=1024),
        Lattice(8, 3),
        Lattice(64, 4),
        Lattice(16, 5),
    ],
    ids=lambda c: f"n{c.workers}b{c.bits}{c.rounding[0]}{c.unbiased:d}d{c.down_bits}",
)
def test_predictions_hold(codec: Lattice, correlation: float) -> None:
    measured = nmse(codec, codec.workers, correlation)
    # Sums of similar payloads of few bits end where these are clamped: less error than of Gaussian ones.
    limit = 0.15 if codec.bits <= 3 and codec.narrow_bits and correlation > 0.5 else 0.1
    assert measured == pytest.approx(codec.predicted_nmse(correlation=correlation), rel=limit)


def test_exact_sums_of_many_similar_workers_are_five_times_better_than_the_paper() -> None:
    ours = nmse(Lattice(30, 4, down_bits="exact"), 30, 0.9)
    assert nmse(Lattice.thc(30, block=1 << 15), 30, 0.9) >= 5 * ours


def test_counting_both_directions() -> None:
    """12 bits in all at 4 workers: at least 8 times less error than the paper's 4 up and 8 down."""
    codec = Lattice(4, total_bits=12)
    assert (codec.bits, codec.down_bits) == (6, 6)
    assert nmse(Lattice.thc(4, block=1 << 15), 4, 0.0) >= 8 * nmse(codec, 4, 0.0)


@pytest.mark.parametrize("workers", [4, 8, 16, 64])
@pytest.mark.parametrize("total", range(8, 15))
def test_a_budget_for_both_directions_buys_no_more_error_than_exact_sums_would(workers: int, total: int) -> None:
    """Of unrelated and of similar workers; the error is that of the mean after both directions."""
    ours = Lattice(workers, total_bits=total)
    narrow = 0 if ours.narrow_bits is None else ours.narrow_bits
    assert ours.bits + (narrow or ours.sum_bits) <= total
    for bits in range(1, total):
        try:
            lanes = Lattice(workers, bits, lane_bits=total - bits)
        except ConfigError:
            continue
        for correlation in (0.0, 0.5):
            assert ours.predicted_nmse(correlation=correlation) <= 1.02 * lanes.predicted_nmse(correlation=correlation)


def real_nmse(codec: Lattice, xs: list[NDArray[np.float32]]) -> float:
    mean = np.mean(xs, axis=0, dtype="f8")
    return float(np.square(average(codec, xs) - mean).sum() / np.square(mean).sum())


def test_bits_follow_the_energy_of_real_gradients() -> None:
    """Of a transformer, whose layers differ most."""
    xs = worker_gradients("gpt", 8, steps=20)
    assert real_nmse(Lattice.thc(8), xs) >= 10 * real_nmse(Lattice(8, 4, energy=1.0), xs)


def test_each_improvement_helps_on_real_gradients() -> None:
    """Lose one, and this fails: stratified rounding, a lattice chosen for n, bits by energy."""
    xs = worker_gradients("resnet", 8, steps=60)
    best = real_nmse(Lattice(8, 4), xs)
    assert real_nmse(Lattice.thc(8), xs) >= 1.8 * real_nmse(Lattice(8, 4, energy=1.0), xs)
    assert real_nmse(Lattice(8, 4, rounding="independent"), xs) > 1.2 * best
    assert real_nmse(Lattice(8, 4, granularity=30, clip=1 / 32), xs) > 1.1 * best
    assert real_nmse(Lattice(8, 4, widths="fixed"), xs) > 1.5 * best


def test_one_scale_per_block_keeps_quiet_layers() -> None:
    """With one scale over everything, a layer a hundred times smaller drowns in the other's noise."""
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(1 << 15).astype("f4") * np.repeat([1, 0.01], 1 << 14).astype("f4") for _ in range(4)]
    quiet = slice(1 << 14, None)
    mean = np.mean(xs, axis=0)[quiet]
    for block, keeps in ((1 << 15, False), (512, True)):
        codec = Lattice(4, 4, rounding="independent", **(PAPER | {"block": block, "unbiased": True}))
        error = np.square(average(codec, xs)[quiet] - mean).sum() / np.square(mean).sum()
        assert (error < 0.03) == keeps
        assert (error > 10) != keeps


@pytest.mark.parametrize("bits", [2, 4])
def test_rotation_tames_heavy_tails(bits: int) -> None:
    """Without rotation, one large coordinate spoils the range of its block."""
    xs = [np.random.default_rng(k).standard_t(2, 1 << 14).astype("f4") for k in range(4)]
    with_rotation = real_nmse(Lattice(4, bits, widths="fixed"), xs)
    without = real_nmse(Lattice(4, bits, widths="fixed", rotate=False), xs)
    assert with_rotation * 3 < without


def test_the_sum_matches_the_uncompressed_one_within_the_predicted_bound() -> None:
    rng = np.random.default_rng(9)
    xs = [rng.standard_normal(1 << 15).astype("f4") for _ in range(8)]
    codec = Lattice(8, 4, widths="fixed")
    assert real_nmse(codec, xs) < 1.12 * codec.predicted_nmse()


def test_rotated_blocks_look_gaussian() -> None:
    spike = np.zeros(1 << 14, np.float32)
    spike[::1024] = 100.0
    spike[1::512] = np.linspace(-50, 50, 32)
    y = rotate(spike, block=1024, key=3).reshape(16, 1024)
    scale = np.sqrt(np.square(y).mean(axis=1, keepdims=True))
    assert np.abs(y / scale).max() < 5
    assert np.square(y).sum() == pytest.approx(np.square(spike).sum(), rel=1e-5)

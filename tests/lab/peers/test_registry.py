"""Every peer by name: any size, any seed, other bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sumwire.errors import ConfigError
from sumwire.lab.peers import ADJUSTABLE, PEERS, Outcome, at_bits
from tests.lab.peers import exact, gradients, nmse

every = pytest.mark.parametrize("name", PEERS)


@every
def test_a_peer_says_what_it_is(name: str) -> None:
    peer = PEERS[name](2, 1000)
    assert peer.name == name
    assert len(peer.paper) > 20
    assert "\n" not in peer.paper
    assert "published" in (type(peer).__doc__ or "").lower()


@every
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 31, 1000])
def test_any_size_over_several_rounds(name: str, workers: int, size: int) -> None:
    peer = PEERS[name](workers, size)
    for seed in range(3):
        outcome = peer.average(gradients(workers, size, seed))
        assert outcome.mean.shape == (size,)
        assert outcome.mean.dtype == np.float32
        assert (outcome.bits > 0) == (size > 0)
    assert peer.held_back().shape == (size,)


@every
def test_zeros_stay_zeros(name: str) -> None:
    """No scale is zero in these formats by accident: a scheme that divides by it would return NaN."""
    outcome = PEERS[name](3, 700).average([np.zeros(700, np.float32)] * 3)
    assert not outcome.mean.any()


@every
def test_a_scale_of_all_tensors_is_a_scale_of_the_mean(name: str) -> None:
    """By a power of two, so that nothing is rounded otherwise."""
    tensors = gradients(3, 600)
    small, large = (PEERS[name](3, 600).average([x * np.float32(k) for x in tensors]).mean for k in (1, 8))
    np.testing.assert_allclose(large, 8 * small, rtol=1e-5, atol=1e-6)


@every
def test_the_seed_decides(name: str) -> None:
    tensors = gradients(3, 600)

    def rounds(seed: int) -> list[Outcome]:
        peer = PEERS[name](3, 600, seed=seed)
        return [peer.average(tensors) for _ in range(2)]

    first, again, other = rounds(1), rounds(1), rounds(2)
    for one, two in zip(first, again, strict=True):
        assert one.mean.tobytes() == two.mean.tobytes()
        assert one.bits == two.bits
    random = PEERS[name](3, 600).unbiased and name != "fp32"
    if random:
        assert first[0].mean.tobytes() != other[0].mean.tobytes()


@every
def test_tensors_are_left_as_they_were(name: str) -> None:
    tensors = gradients(3, 600)
    for x in tensors:
        x.flags.writeable = False
    PEERS[name](3, 600).average(tensors)


ERRORS = {
    "fp32": 1e-13,
    "fp16": 1e-6,
    "bf16": 1e-5,
    "fp8-rows": 1.5e-3,
    "mxfp6": 1.5e-3,
    "mxfp4": 0.025,
    "qgz-4": 0.025,
}
"""Limits of NMSE for Gaussian tensors: those of one quantization in other implementations, twice."""


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_the_format(name: str) -> None:
    assert ERRORS[name] / 20 < max(nmse(PEERS[name](4, 5000), gradients(4, 5000)), 1e-14) < ERRORS[name]


@pytest.mark.parametrize(("name", "expected"), [("mxfp4", 0.0132), ("fp8-rows", 7e-4), ("ef-sign", 1 - 2 / np.pi)])
def test_errors_are_those_that_other_implementations_have(name: str, expected: float) -> None:
    """Of Gaussian values quantized once: torchao's MXFP4, torch's float8; signs have a formula.

    With one worker the mean that an owner quantizes has been quantized already, which changes it no more.
    """
    assert nmse(PEERS[name](1, 100_000), gradients(1, 100_000)) == pytest.approx(expected, rel=0.06)


def test_more_bits_less_error() -> None:
    tensors = gradients(4, 2000)
    for scheme in ("qsgd", "qsgd-owner", "qgz", "loco", "loco-integers", "sdp4bit", "dynamiq-any", "recompressed"):
        found = [nmse(at_bits(scheme, bits)(4, 2000), tensors) for bits in (3, 5, 7)]
        assert found[0] > 4 * found[1] > 16 * found[2], scheme
    # Widths of 2, 4 and 8 only: where all blocks are alike, a share of them gets the next one.
    found = [nmse(at_bits("dynamiq", bits)(4, 2000), tensors) for bits in (3, 5, 7)]
    assert found[0] > 4 * found[1] > 6 * found[2]


@pytest.mark.parametrize("scheme", ADJUSTABLE)
def test_bits_are_about_those_asked_for(scheme: str) -> None:
    tensors = gradients(2, 10_000)
    outcome = at_bits(scheme, 4)(2, 10_000).average(tensors)
    assert (
        3.5
        < outcome.up_bits
        <= (4.0 if scheme in ("dynamiq", "dynamiq-any", "topk", "topk-owner", "dgc", "powersgd") else 4.3)
    )
    assert np.square(outcome.mean - exact(tensors)).sum() < np.square(exact(tensors)).sum()


@pytest.mark.parametrize(
    ("scheme", "bits", "says"),
    [
        ("mxfp4", 4, "choose from qsgd"),
        ("qsgd", 4.5, "whole number"),
        ("qsgd", 1, "bits=1 is not in 2"),
        ("dynamiq", 1, "2.625"),
        ("topk", 0, "bits=0"),
        ("topk", 65, "bits=65"),
        ("dgc", float("nan"), "bits=nan"),
    ],
)
def test_bits_that_a_scheme_cannot_have(scheme: str, bits: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        at_bits(scheme, bits)(2, 100)

"""Schemes that experiments compare: what their names promise, in one process and over links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sumwire.errors import SumwireError
from sumwire.lab.experiments import find
from sumwire.lab.experiments.schemes import SCHEMES, Scheme
from sumwire.lab.experiments.throughput import DENSE, METHODS, QUICK
from sumwire.lab.experiments.traces import noise
from sumwire.lab.methods import is_ours, parse_methods
from sumwire.lab.simulate import true_mean

WIRED = tuple(scheme for scheme in SCHEMES if scheme.over_links)
POINT = {"workers": 3, "seed": 1}
SIDE = 64
XS = [
    np.outer(*np.random.default_rng(7).standard_normal((2, SIDE), np.float32)).ravel() + own / 4
    for own in noise(3, SIDE**2, 0.0, seed=8)
]
"""Gradients of a matrix, of low rank but for some noise."""
EXACT = true_mean(XS)


def by_label(label: str) -> Scheme:
    (found,) = (scheme for scheme in SCHEMES if scheme.label == label)
    return found


def test_every_scheme_has_its_own_label_and_method_over_links() -> None:
    labels = [scheme.label for scheme in SCHEMES]
    assert len(set(labels)) == len(labels)
    assert parse_methods(",".join(METHODS), bits=1) == METHODS
    assert METHODS[: len(WIRED)] == tuple(scheme.over_links for scheme in WIRED)
    for scheme in WIRED:
        assert is_ours(scheme.over_links) == scheme.ours


def test_methods_that_are_timed_are_among_all() -> None:
    for names in (DENSE, QUICK):
        assert set(parse_methods(names, bits=1)) <= set(METHODS)
        assert names.startswith("fp32,")
    for points in (find("throughput").quick, find("throughput").full):
        assert {str(point.get("methods", "")) for point in points} <= {"", DENSE, QUICK}


def test_fp32_is_first_and_exact() -> None:
    first = SCHEMES[0]
    exchange = first.build(POINT)(SIDE**2).average(XS)
    assert (first.label, first.over_links) == ("fp32", "fp32")
    assert np.array_equal(exchange.means[0], EXACT.astype(np.float32))
    assert (exchange.up_bits, exchange.down_bits) == (32, 32)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.label)
def test_every_scheme_averages(scheme: Scheme) -> None:
    """What a round leaves out, or puts in as noise, is made up for in later ones of the same tensors."""
    method = scheme.build(POINT)(SIDE**2)
    exchanges = [method.average(XS) for _ in range(20)]
    together = np.mean([exchange.means[0] for exchange in exchanges], axis=0, dtype=np.float64)
    assert all(np.isfinite(exchange.means[0]).all() for exchange in exchanges)
    assert np.corrcoef(exchanges[0].means[0], EXACT)[0, 1] > 0.2
    assert np.corrcoef(together, EXACT)[0, 1] > 0.8
    for exchange in exchanges:
        assert 0 < exchange.up_bits <= 32
        assert 0 < exchange.down_bits <= 32


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme.ours], ids=lambda scheme: scheme.label)
def test_our_labels_name_the_bits_that_travel(scheme: Scheme) -> None:
    exchange = scheme.build(POINT)(SIDE**2).average(XS)
    number = int(scheme.label.split()[1])
    found = exchange.up_bits if " up" in scheme.label else exchange.up_bits + exchange.down_bits
    assert number <= found < number + 0.2  # scales


def test_only_labels_with_feedback_keep_a_residual() -> None:
    for label in ("Sumwire, 2 up, feedback", "THC, feedback", "Sumwire, 2 bits up", "THC"):
        method = by_label(label).build(POINT)(SIDE**2)
        method.average(XS)
        assert (method.residual_norm() > 0) == ("feedback" in label)


def test_a_point_decides_workers_and_random_numbers() -> None:
    def first(scheme: Scheme, seed: int) -> Any:
        return scheme.build({"workers": 3, "seed": seed})(SIDE**2).average(XS).means[0]

    for label in ("Sumwire, 8 bits", "THC", "terngrad"):
        scheme = by_label(label)
        assert np.array_equal(first(scheme, 1), first(scheme, 1))
        assert not np.array_equal(first(scheme, 1), first(scheme, 2))
        with pytest.raises(SumwireError):
            scheme.build({"workers": 2, "seed": 0})(SIDE**2).average(XS)

"""Error feedback loses nothing: what has not arrived is held back, to the last bit that float32 keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire.lab.peers import PEERS, Peer
from sumwire.lab.peers.feedback import EFSign, LoCo
from sumwire.lab.peers.low_rank import PowerSGD
from sumwire.lab.peers.sparse import DGC, TopK
from tests.lab.peers import exact, gradients

EXACT: list[Callable[[int, int], Peer]] = [
    TopK,
    partial(TopK, density=0.01),
    partial(TopK, exchange="owner"),
    partial(DGC, momentum=0.0, density=0.05),
    EFSign,
    partial(EFSign, block=50),
    partial(EFSign, double_way=True),
    partial(PowerSGD, rank=1),
    partial(PowerSGD, rank=3),
]


@settings(max_examples=40)
@given(
    build=st.sampled_from(EXACT),
    workers=st.integers(1, 4),
    size=st.one_of(st.integers(0, 40), st.sampled_from([255, 256, 300])),
    rounds=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    exponent=st.integers(-30, 30),
    zeros=st.booleans(),
)
def test_means_and_what_is_held_back_add_up_to_the_tensors(
    build: Callable[[int, int], Peer], workers: int, size: int, rounds: int, seed: int, exponent: int, zeros: bool
) -> None:
    peer = build(workers, size)
    given_, arrived, peak = np.zeros(size), np.zeros(size), 0.0
    for k in range(rounds):
        tensors = [np.ldexp(x, exponent).astype(np.float32) for x in gradients(workers, size, seed + k)]
        if zeros:
            tensors[0][:] = 0
        given_ += exact(tensors)
        arrived += peer.average(tensors).mean
        peak = max(peak, *(float(np.abs(x).max(initial=0)) for x in tensors))
    np.testing.assert_allclose(arrived + peer.held_back(), given_, rtol=0, atol=1e-5 * rounds * peak)


def test_schemes_without_feedback_hold_nothing_back() -> None:
    for name in ("fp32", "qsgd-4", "mxfp4", "dynamiq-5"):
        peer = PEERS[name](2, 100)
        peer.average(gradients(2, 100))
        assert not peer.held_back().any()


@pytest.mark.parametrize("name", ["topk-10%", "ef-sign", "ef-sign-double", "powersgd-2", "loco-4"])
def test_with_feedback_the_error_of_many_rounds_does_not_grow(name: str) -> None:
    """Means of the same tensors over 30 rounds: without a residual, errors would add up."""
    tensors = gradients(2, 400)
    peer = PEERS[name](2, 400)
    first = peer.average(tensors).mean
    total = first + sum(peer.average(tensors).mean for _ in range(29))
    alone, together = (np.linalg.norm(x - exact(tensors)) for x in (first, total / 30))
    assert together < alone / 2


def test_dgc_follows_its_recurrence() -> None:
    """Against the paper's algorithm, written down for one worker and value by value."""
    peer = DGC(1, 40, density=0.1, momentum=0.9)
    u, v = [0.0] * 40, [0.0] * 40
    for seed in range(6):
        (x,) = gradients(1, 40, seed)
        sent = peer.average([x]).mean
        for i in range(40):
            u[i] = 0.9 * u[i] + float(x[i])
            v[i] += u[i]
        for i in sorted(range(40), key=lambda i: -abs(v[i]))[:4]:
            assert sent[i] == pytest.approx(v[i], rel=1e-5)
            u[i] = v[i] = 0.0
        assert np.count_nonzero(sent) == 4
    np.testing.assert_allclose(peer.held_back(), v, rtol=1e-4, atol=1e-5)


def test_dgc_clips_each_worker_at_its_share_of_the_norm() -> None:
    peer = DGC(4, 100, density=1.0, clip=2.0)
    mean = peer.average([np.full(100, 5, np.float32)] * 4).mean
    assert np.linalg.norm(mean) == pytest.approx(2 / 4**0.5, rel=1e-5)
    assert DGC(4, 1, density=1.0, clip=2.0).average([np.full(1, 0.5, np.float32)] * 4).mean.tolist() == [0.5]


def test_loco_with_beta_1_is_feedback_up_to_eight_bits_and_a_reset_forgets() -> None:
    tensors = gradients(1, 512)
    exactly, never, always = (LoCo(1, 512, beta=b, reset=r) for b, r in ((1.0, 10**6), (0.0, 10**6), (1.0, 1)))
    ours, without, forgetful = (
        np.mean([p.average(tensors).mean for _ in range(20)], axis=0) for p in (exactly, never, always)
    )
    assert np.linalg.norm(ours - tensors[0]) < np.linalg.norm(without - tensors[0]) / 4
    np.testing.assert_array_equal(without, forgetful)


def test_signs_lose_what_the_norms_say() -> None:
    """Energy minus (sum of magnitudes)**2 / d."""
    (x,) = gradients(1, 1000)
    mean = EFSign(1, 1000).average([x]).mean
    lost = np.square(x.astype(float)).sum() - np.abs(x.astype(float)).sum() ** 2 / 1000
    assert np.square(mean.astype(float) - x).sum() == pytest.approx(lost, rel=1e-4)
    assert (np.sign(mean) == np.sign(x)).all()

"""The mean over many rounds is the mean, where a scheme says so; statistics with fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire.lab.peers import PEERS, Peer
from sumwire.lab.peers.block_float import E3M2, MX
from sumwire.lab.peers.dynamic import DynamiQ
from sumwire.lab.peers.integers import QSGD, SDP4Bit
from sumwire.lab.peers.ternary import TernGrad
from tests.dme.test_unbiased import MAX_Z, worst_z
from tests.lab.peers import exact, gradients

WORKERS, SIZE, ROUNDS = 3, 300, 150

UNBIASED: dict[str, Callable[[int, int], Peer]] = {
    **{name: build for name, build in PEERS.items() if build(WORKERS, SIZE).unbiased},
    "terngrad without clipping": partial(TernGrad, clip=None),
    "terngrad by layers": partial(TernGrad, clip=None, layers=[100, 200]),
    "qsgd in l2": partial(QSGD, norm="l2", bucket=64),
    "qsgd on a ring": partial(QSGD, exchange="ring", bucket=32),
    "sdp4bit": partial(SDP4Bit, rounding="stochastic"),
    "sdp4bit in nodes": partial(SDP4Bit, rounding="stochastic", per_node=3),
    "mxfp6 e3m2": partial(MX, kind=E3M2, rounding="stochastic", exchange="ring"),
    "dynamiq-3": partial(DynamiQ, bits=3),
}


def errors_of(peer: Peer, scale: float = 1.0) -> NDArray[np.float64]:
    """Errors, one row per round, of tensors with one value that dwarfs its neighbors."""
    tensors = gradients(WORKERS, SIZE)
    tensors[0][5] = 15
    found = [scale * peer.average(tensors).mean.astype(np.float64) for _ in range(ROUNDS)]
    errors = np.array(found) - exact(tensors)
    errors[np.abs(errors) < 1e-6 * 15] = 0.0  # float32 rounds, too
    return errors


def projected(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Onto the mean, which reveals shrinkage, and onto random signs."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (SIZE, 10))
    return errors @ np.column_stack([exact(gradients(WORKERS, SIZE)), signs])


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased(name: str) -> None:
    peer = UNBIASED[name](WORKERS, SIZE)
    assert peer.unbiased
    errors = errors_of(peer)
    assert worst_z(errors) < MAX_Z
    assert worst_z(projected(errors)) < MAX_Z


@pytest.mark.parametrize("name", ["qgz-4", "mxfp4", "terngrad"])
def test_the_test_would_notice_a_bias(name: str) -> None:
    peer = PEERS[name](WORKERS, SIZE)
    assert not peer.unbiased
    assert worst_z(errors_of(peer)) > MAX_Z


def test_the_test_would_notice_shrinkage_by_a_fiftieth() -> None:
    assert worst_z(projected(errors_of(QSGD(WORKERS, SIZE, bits=6), scale=0.98))) > MAX_Z


def test_correlated_rounding_beats_independent_rounding_of_equal_tensors() -> None:
    """Numbers of workers lie in different strata, so their errors cancel in part."""
    (x,) = gradients(1, 4096)

    def error(correlated: bool) -> float:
        peer = DynamiQ(8, 4096, correlated=correlated)
        return sum(float(np.square(peer.average([x] * 8).mean - x).sum()) for _ in range(5))

    assert error(True) < 0.96 * error(False)

"""Wrong tensors and options are refused with a message that helps; no number is made up for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sumwire.errors import ConfigError, InputError, MismatchError, NonFiniteError, RangeError
from sumwire.lab.peers import PEERS
from sumwire.lab.peers.casts import AllReduce
from sumwire.lab.peers.dynamic import DynamiQ
from sumwire.lab.peers.exchange import QuantizedPeer
from sumwire.lab.peers.feedback import EFSign, LoCo, SignQuantizer
from sumwire.lab.peers.integers import QSGD, HadamardQuantizer, IntegerQuantizer, SDP4Bit
from sumwire.lab.peers.low_rank import PowerSGD
from sumwire.lab.peers.sparse import DGC, TopK
from sumwire.lab.peers.ternary import TernGrad
from tests.lab.peers import gradients

every = pytest.mark.parametrize("name", PEERS)


@every
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused_and_change_nothing(name: str, value: float) -> None:
    good, bad = gradients(2, 300), gradients(2, 300)
    bad[1][7] = value
    peer, other = PEERS[name](2, 300), PEERS[name](2, 300)
    with pytest.raises(NonFiniteError) as caught:
        peer.average(bad)
    assert (caught.value.index, caught.value.count) == (7, 1)
    assert caught.value.__notes__ == ["in the tensor of worker 1"]
    assert peer.average(good).mean.tobytes() == other.average(good).mean.tobytes()


@every
def test_huge_values_are_averaged_or_refused(name: str) -> None:
    """Never a finite number that is far above the largest value, and never NaN."""
    huge = [np.full(300, 3e38, np.float32)] * 2
    try:
        mean = PEERS[name](2, 300).average(huge).mean
    except RangeError:
        return
    assert np.isfinite(mean).all()
    assert np.abs(mean).max() <= 3.2e38


def test_fp16_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(RangeError, match="fp16 cannot represent"):
        PEERS["fp16"](1, 1).average([np.array([7e4], np.float32)])
    assert PEERS["bf16"](1, 1).average([np.array([65536], np.float32)]).mean.tolist() == [65536]


@every
def test_tensors_that_do_not_fit(name: str) -> None:
    peer = PEERS[name](2, 10)
    with pytest.raises(MismatchError, match="got 1 tensors for 2 workers"):
        peer.average(gradients(1, 10))
    with pytest.raises(MismatchError, match=r"worker 0 has shape \(9,\), not \(10,\)"):
        peer.average(gradients(2, 9))
    with pytest.raises(MismatchError, match=r"shape \(2, 5\)"):
        peer.average([x.reshape(2, 5) for x in gradients(2, 10)])
    wrong: Any = [gradients(2, 10)[0], np.zeros(10)]
    with pytest.raises(InputError, match="worker 1 is float64"):
        peer.average(wrong)
    with pytest.raises(InputError, match="worker 0 is list"):
        peer.average([[0.0] * 10] * 2)  # type: ignore[list-item]


@every
@pytest.mark.parametrize(
    ("workers", "size", "seed", "says"),
    [
        (0, 1, 0, "workers=0"),
        (2.5, 1, 0, "workers=2.5"),
        (1 << 15, 1, 0, "workers=32768"),
        (1, -1, 0, "size=-1"),
        (1, 1, -1, "seed=-1"),
    ],
)
def test_workers_size_and_seed(name: str, workers: Any, size: int, seed: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PEERS[name](workers, size, seed=seed)


@pytest.mark.parametrize(
    ("build", "options", "says"),
    [
        (AllReduce, {"kind": "fp64"}, "kind='fp64'"),
        (AllReduce, {"exchange": "tree"}, "exchange='tree'"),
        (QSGD, {"bits": 17}, "bits=17"),
        (QSGD, {"bucket": 0}, "block=0"),
        (QSGD, {"norm": "l1"}, "norm='l1'"),
        (SDP4Bit, {"per_node": 3}, "does not divide workers=4"),
        (SDP4Bit, {"per_node": 5}, "per_node=5"),
        (SDP4Bit, {"order": 48}, "power of two"),
        (TernGrad, {"layers": [5, 4]}, "add up to 9 values"),
        (TernGrad, {"layers": [10, 0]}, "layers=0"),
        (TernGrad, {"clip": 0}, "clip=0"),
        (PowerSGD, {"rank": 0}, "rank=0"),
        (PowerSGD, {"shape": (3, 3)}, "has 9 values, not size=10"),
        (TopK, {"density": 0}, "density=0"),
        (TopK, {"density": 1.5}, "density=1.5"),
        (TopK, {"exchange": "ring"}, "a ring quantizes partial sums"),
        (DGC, {"momentum": 1.1}, "momentum=1.1"),
        (DGC, {"clip": 0.0}, "clip=0"),
        (EFSign, {"block": 0}, "block=0"),
        (EFSign, {"double_way": 2}, "double_way=2"),
        (LoCo, {"beta": 2}, "beta=2"),
        (LoCo, {"reset": 0}, "reset=0"),
        (LoCo, {"down": "fp8"}, "down='fp8'"),
        (DynamiQ, {"bits": 9}, "bits=9"),
        (QuantizedPeer, {"up": SignQuantizer(8), "exchange": "gather", "server_feedback": True}, "nobody else sends"),
    ],
)
def test_options(build: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(4, 10, **options)


def test_a_transform_must_divide_its_blocks() -> None:
    with pytest.raises(ConfigError, match="divides the block, 96"):
        HadamardQuantizer(IntegerQuantizer(4, 96), 64)

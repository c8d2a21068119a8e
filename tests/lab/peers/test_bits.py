"""Counted bits are those of the arrays, and these arrays are all that a receiver needs."""

from __future__ import annotations

import numpy as np
import pytest

from sumwire.lab.peers import PEERS, at_bits
from sumwire.lab.peers.base import bits_of
from sumwire.lab.peers.block_float import E2M1, E2M3, E3M2, E4M3, BlockFloatQuantizer
from sumwire.lab.peers.casts import CastQuantizer
from sumwire.lab.peers.dynamic import GroupQuantizer
from sumwire.lab.peers.feedback import SignQuantizer
from sumwire.lab.peers.integers import HadamardQuantizer, IntegerQuantizer, SDP4Bit
from sumwire.lab.peers.quantizer import Quantizer
from sumwire.lab.peers.sparse import TopKQuantizer
from sumwire.lab.peers.ternary import TernGrad
from tests.lab.peers import gradients

BYTES = {
    "fp32": (4000, 4000),
    "fp16": (2000, 2000),
    "bf16": (2000, 2000),
    "bf16-ring": (2000, 2000),
    "powersgd-1": (4 * (33 + 31), 4 * (33 + 31)),
    "powersgd-4": (16 * (33 + 31), 16 * (33 + 31)),
    "topk-10%": (800, 1600),
    "dgc-0.1%": (8, 16),
    "dgc-1%": (80, 160),
    "terngrad": (250 + 4, 375 + 4),  # sums of 3 workers, -3 to 3, in 3 bits
    "qsgd-4": (500 + 8, 2 * 508),
    "qsgd-4-owner": (500 + 8, 508),
    "ef-sign": (125 + 4, 2 * 129),
    "ef-sign-double": (125 + 4, 129),
    "fp8-rows": (1000 + 8, 1008),
    "qgz-4": (500 + 16, 516),
    "loco-4": (500 + 16, 2000),
    "loco-4-4": (500 + 16, 516),
    "sdp4bit-4": (512 + 32, 500 + 32),  # filled up to a multiple of 32 before the transform
    "mxfp4": (500 + 32, 532),
    "mxfp6": (750 + 32, 782),
    "mxfp6-ring": (750 + 32, 782),
}
"""What a worker sends and receives for 1000 values, 3 workers: codes, and scales or indices."""


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_a_thousand_values(name: str) -> None:
    outcome = PEERS[name](3, 1000).average(gradients(3, 1000))
    found = (outcome.up_bits * 1000 / 8, outcome.down_bits * 1000 / 8)
    # A ring sends two thirds of a tensor, in shards of whole blocks: as many bytes per value as a whole one.
    assert found == pytest.approx(BYTES[name])


def test_bits_down_grow_with_workers_where_all_gather() -> None:
    for name in ("topk-10%", "dgc-1%", "qsgd-4", "ef-sign"):
        for workers in (1, 2, 9):
            outcome = PEERS[name](workers, 500).average(gradients(workers, 500))
            assert outcome.down_bits == pytest.approx((workers - 1) * outcome.up_bits)


def test_terngrad_sums_get_wider_with_workers_and_scales_with_layers() -> None:
    for workers, width in ((1, 2), (3, 3), (4, 4), (100, 8)):
        outcome = TernGrad(workers, 800, layers=[300, 500]).average(gradients(workers, 800))
        assert (outcome.up_bits, outcome.down_bits) == (2 + 64 / 800, width + 64 / 800)


def test_two_levels_cost_eight_bits_and_a_share_of_four() -> None:
    outcome = SDP4Bit(4, 1024, per_node=2).average(gradients(4, 1024))
    assert outcome.up_bits == pytest.approx(8.25 + 4.25 / 2)
    assert outcome.down_bits == 4.25


@pytest.mark.parametrize("scheme", ["dynamiq", "dynamiq-any"])
@pytest.mark.parametrize("bits", [3, 5, 6.5])
def test_dynamiq_spends_its_budget_and_no_more(scheme: str, bits: float) -> None:
    tensors = [x * np.repeat([0.1, 1, 30], 4000)[:11_111].astype(np.float32) for x in gradients(4, 11_111)]
    outcome = at_bits(scheme, bits)(4, 11_111).average(tensors)
    assert bits - 0.12 < outcome.up_bits < bits + 0.02  # a supergroup's upgrade; bytes that end each array
    assert bits - 0.12 < outcome.down_bits < bits + 0.02


def test_recompressed_counts_payloads_and_terms_both_ways() -> None:
    outcome = PEERS["recompressed-4"](4, 8192).average(gradients(4, 8192))
    assert outcome.up_bits == pytest.approx(4 + 8 / 512, abs=0.02)
    assert outcome.down_bits == pytest.approx(4 + 2 * 8 / 512, abs=0.02)


QUANTIZERS: dict[str, Quantizer] = {
    "fp16": CastQuantizer("fp16"),
    "bf16": CastQuantizer("bf16"),
    "integers": IntegerQuantizer(5, 100, rounding="stochastic"),
    "hadamard": HadamardQuantizer(IntegerQuantizer(3, 64), 16),
    "sign": SignQuantizer(300),
    "topk": TopKQuantizer(0.05),
    "groups": GroupQuantizer(np.array([2, 8, 4, 2])),
    **{
        f"{kind.exponent_bits}-{kind.mantissa_bits}-{scale}": BlockFloatQuantizer(kind, 32, scale=scale)
        for kind in (E2M1, E2M3, E3M2, E4M3)
        for scale in ("power", "float32")
    },
}


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("size", [769, 1000, 1024])
def test_a_receiver_needs_the_counted_bytes_only(name: str, size: int) -> None:
    quantizer = QUANTIZERS[name]
    (x,) = gradients(1, size)
    rng = np.random.default_rng(0)
    parts = quantizer.encode(x, lambda n: rng.random(n, dtype=np.float32))
    sent = [part.tobytes() for part in parts]
    assert sum(map(len, sent)) == bits_of(parts) / 8
    received = tuple(np.frombuffer(data, part.dtype) for data, part in zip(sent, parts, strict=True))
    values = quantizer.decode(received, size)
    assert values.shape == (size,)
    assert values.dtype == np.float32
    assert np.square(values - x).sum() < 0.9 * np.square(x).sum()

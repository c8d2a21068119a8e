"""All peers by name at their published settings, and those with a knob at other bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from sumwire.codec.options import real_number
from sumwire.errors import ConfigError
from sumwire.lab.peers.base import Peer, near_square
from sumwire.lab.peers.block_float import E2M1, E2M3, MX, Fp8Rows
from sumwire.lab.peers.casts import AllReduce
from sumwire.lab.peers.dynamic import DynamiQ
from sumwire.lab.peers.feedback import EFSign, LoCo
from sumwire.lab.peers.integers import QSGD, SDP4Bit, ZeroPlusPlus
from sumwire.lab.peers.low_rank import PowerSGD
from sumwire.lab.peers.recompressed import DecompressAddRecompress
from sumwire.lab.peers.sparse import DGC, LEAST_DENSITY, TopK
from sumwire.lab.peers.ternary import TernGrad


class Build(Protocol):
    """Makes a peer for a number of workers and values."""

    def __call__(self, workers: int, size: int, *, seed: int = 0) -> Peer: ...


PEERS: Mapping[str, Build] = MappingProxyType(
    {
        "fp32": AllReduce,
        "fp16": partial(AllReduce, kind="fp16"),
        "bf16": partial(AllReduce, kind="bf16"),
        "bf16-ring": partial(AllReduce, kind="bf16", exchange="ring"),
        "powersgd-1": partial(PowerSGD, rank=1),
        "powersgd-2": partial(PowerSGD, rank=2),
        "powersgd-4": partial(PowerSGD, rank=4),
        "topk-10%": TopK,
        "dgc-0.1%": DGC,
        "dgc-1%": partial(DGC, density=0.01),
        "terngrad": TernGrad,
        "qsgd-4": QSGD,
        "qsgd-4-owner": partial(QSGD, exchange="owner"),
        "ef-sign": EFSign,
        "ef-sign-double": partial(EFSign, double_way=True),
        "fp8-rows": Fp8Rows,
        "qgz-4": ZeroPlusPlus,
        "loco-4": LoCo,
        "loco-4-4": partial(LoCo, down="integers"),
        "sdp4bit-4": SDP4Bit,
        "mxfp4": partial(MX, kind=E2M1),
        "mxfp4-stochastic": partial(MX, kind=E2M1, rounding="stochastic"),
        "mxfp4-ring": partial(MX, kind=E2M1, exchange="ring"),
        "mxfp6": partial(MX, kind=E2M3),
        "mxfp6-stochastic": partial(MX, kind=E2M3, rounding="stochastic"),
        "mxfp6-ring": partial(MX, kind=E2M3, exchange="ring"),
        "dynamiq-5": DynamiQ,
        "dynamiq-any-5": partial(DynamiQ, any_width=True),
        "recompressed-4": DecompressAddRecompress,
    }
)
"""Peers by name. `PEERS[name](workers, size)` has the settings that its docstring says are published."""

_WHOLE: Mapping[str, Callable[..., Peer]] = {
    "qsgd": QSGD,
    "qsgd-owner": partial(QSGD, exchange="owner"),
    "qgz": ZeroPlusPlus,
    "loco": LoCo,
    "loco-integers": partial(LoCo, down="integers"),
    "sdp4bit": SDP4Bit,
    "recompressed": DecompressAddRecompress,
}
"""Schemes whose codes have a whole number of bits; scales come on top."""

ADJUSTABLE = (*_WHOLE, "dynamiq", "dynamiq-any", "topk", "topk-owner", "dgc", "powersgd")
"""Schemes that `at_bits` knows."""


def at_bits(scheme: str, bits: float) -> Build:
    """A scheme at about `bits` bits per value up; `Outcome.up_bits` has the exact number.

    Integers have `bits` per code, and scales on top; "dynamiq" has at most `bits` in all; sparse schemes send bits / 64
    of the values; PowerSGD gets the largest rank, at least 1, whose factors fit into `bits`.

    >>> peer = at_bits("qsgd-owner", 6)(4, 1024)
    >>> peer.name, at_bits("topk", 3.2)(4, 1024).name
    ('qsgd-6-owner', 'topk-5%')
    """
    if scheme not in ADJUSTABLE:
        raise ConfigError(f"no scheme {scheme!r} with a number of bits: choose from {', '.join(ADJUSTABLE)}")
    if scheme in _WHOLE:
        if bits != round(real_number("bits", bits, 1, 32)):
            raise ConfigError(f"bits={bits} is not a whole number, which {scheme} needs: its codes have one width")
        return partial(_WHOLE[scheme], bits=int(bits))
    if scheme in ("dynamiq", "dynamiq-any"):
        return partial(DynamiQ, bits=bits, any_width=scheme == "dynamiq-any")
    bits = real_number("bits", bits, 64 * LEAST_DENSITY, 64)
    if scheme == "powersgd":
        return partial(_low_rank, bits=bits)
    if scheme == "dgc":
        return partial(DGC, density=bits / 64)
    return partial(TopK, density=bits / 64, exchange="owner" if scheme == "topk-owner" else "gather")


def _low_rank(workers: int, size: int, *, bits: float, seed: int = 0) -> Peer:
    rank = int(bits * size / (32 * sum(near_square(size))))
    return PowerSGD(workers, size, rank=max(1, rank), seed=seed)

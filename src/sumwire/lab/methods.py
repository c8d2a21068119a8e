"""Named methods of training together: DDP with the hooks built into torch, with peers or with Sumwire, and DiLoCo.

The other hooks built into torch do not run here: that for bf16 wants NCCL (ours does the same on gloo), the hooks that
quantize per tensor or per channel crash on CPU tensors, and batched PowerSGD fails an assertion inside torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from sumwire.aggregate.connect import connect
from sumwire.errors import ConfigError
from sumwire.lab.links import Network
from sumwire.lab.wired import WIRED, PeerHook, bf16_hook
from sumwire.train import DiLoCo, attach
from sumwire.train.diloco.options import EXACT_BITS

_SWITCHED = ("switch", "lossy", "resync")
NAMES = (
    *("fp32", "fp16", "bf16", "powersgd-<rank>", "sumwire-<bits>", "sumwire-total-<bits>"),
    *(f"{kind}-<bits>" for kind in _SWITCHED),
    *("diloco-<bits>", "peer-<name>"),
)

_PEER = "peer-"

_PATTERN = re.compile(r"(fp32|fp16|bf16|powersgd|sumwire(?:-total)?|switch|lossy|resync|diloco)(?:-([1-9][0-9]?))?")
_LARGEST = {"powersgd": 64, "sumwire": 8, "sumwire-total": 32, "diloco": 32} | dict.fromkeys(_SWITCHED, 8)


class Place(NamedTuple):
    """What methods that average in the network need to know of it."""

    aggregator: str = ""
    token: str = ""
    resync: int = 1
    """Steps after which "resync" makes parameters equal again."""
    every: int = 20
    """Steps from one exchange of "diloco" to the next."""
    seed: int = 0
    """Of peers' random numbers."""


class Wrapped(NamedTuple):
    """A model that is trained together by one of the methods."""

    model: nn.Module
    step_bytes: Callable[[], float]
    """Calculated bytes that each rank sent for the last step."""
    close: Callable[[], None] = lambda: None
    follow: Callable[[Optimizer], None] = lambda optimizer: None
    """Called with the optimizer, before the first step."""
    codec_seconds: Callable[[], float] = lambda: 0.0
    """Time that this rank spent encoding, adding and decoding for the last step; 0 of torch's hooks, which do not say.
    Where several rounds overlap, it is the sum over them."""

    @property
    def bare(self) -> nn.Module:
        """The model without DDP."""
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model


def parse_methods(text: str, bits: int) -> tuple[str, ...]:
    """Method names from a comma-separated list; "sumwire", "switch" and "diloco" without a width get `bits`.

    >>> parse_methods("fp32,powersgd-2,sumwire", bits=4)
    ('fp32', 'powersgd-2', 'sumwire-4')
    """
    words = (word.strip() for word in text.split(","))
    names = tuple(f"{word}-{bits}" if word in ("sumwire", "diloco", *_SWITCHED) else word for word in words)
    for name in names:
        _parse(name)
        if names.count(name) > 1:
            raise ConfigError(f"method {name!r} is listed twice: list it once")
    return names


def label(name: str) -> str:
    """
    >>> label("powersgd-2"), label("sumwire-total-8"), label("peer-qgz-4")
    ('PowerSGD rank 2', 'Sumwire, 8 bits total', 'peer qgz-4')
    """
    kind, number = _parse(name)
    if kind == _PEER:
        return f"peer {name.removeprefix(_PEER)}"
    return {
        "fp32": "fp32",
        "fp16": "fp16 hook",
        "bf16": "bf16 hook",
        "powersgd": f"PowerSGD rank {number}",
        "sumwire": f"Sumwire, {number}-bit",
        "sumwire-total": f"Sumwire, {number} bits total",
        "switch": f"Sumwire, {number}-bit, switch",
        "lossy": f"Sumwire, {number}-bit, lossy",
        "resync": f"Sumwire, {number}-bit, resync",
        "diloco": "DiLoCo, fp32" if number == EXACT_BITS else f"DiLoCo, Sumwire {number}-bit",
    }[kind]


def is_ours(name: str) -> bool:
    """Whether Sumwire compresses what is exchanged."""
    kind, number = _parse(name)
    return kind.startswith(("sumwire", *_SWITCHED)) or (kind == "diloco" and number < EXACT_BITS)


def check_network(names: Sequence[str], network: Network) -> None:
    """Refuse methods that need a switch where there is none."""
    for name in names:
        if _parse(name)[0] in _SWITCHED and not network.aggregator:
            raise ConfigError(f"method {name!r} averages in the network, and there is no switch in it: add --switch")


def wrap(name: str, model: nn.Module, place: Place) -> Wrapped:
    """Wrap the model in a new DDP that exchanges gradients with this method."""
    kind, number = _parse(name)
    if kind == "powersgd":
        return _powersgd(model, number)
    if kind == _PEER:
        return _peer(model, name.removeprefix(_PEER), place.seed)
    if kind == "diloco":
        return _diloco(model, number, place.every)
    wrapped = DistributedDataParallel(model)
    if kind in _SWITCHED:
        return _switched(wrapped, kind, number, place)
    if kind.startswith("sumwire"):
        return _sumwire(wrapped, **{"total_bits" if kind.endswith("total") else "bits": number})
    width = 4
    if kind == "fp16":
        wrapped.register_comm_hook(None, fp16_compress_hook)
        width = 2
    elif kind == "bf16":
        wrapped.register_comm_hook(None, bf16_hook)
        width = 2
    return Wrapped(wrapped, lambda: _ring(width * _size(model)))


def _parse(name: str) -> tuple[str, int]:
    if name.startswith(_PEER):
        if name.removeprefix(_PEER) not in WIRED:
            raise ConfigError(
                f"no method {name!r}: peers that run over links are {', '.join(_PEER + w for w in WIRED)}"
            )
        return _PEER, 0
    match = _PATTERN.fullmatch(name)
    if match is None or (match[2] is None) != (match[1] not in _LARGEST):
        raise ConfigError(f"no method {name!r}: choose from {', '.join(NAMES)}")
    kind, number = match[1], int(match[2] or 0)
    if kind == "diloco" and 8 < number < EXACT_BITS:
        raise ConfigError(f"no method {name!r}: diloco accepts 1 to 8, and 32 for fp32")
    if kind in _LARGEST and number > _LARGEST[kind]:
        raise ConfigError(f"no method {name!r}: {kind} accepts 1 to {_LARGEST[kind]}")
    return kind, number


def _powersgd(model: nn.Module, rank: int) -> Wrapped:
    # The hook waits for collectives inside callbacks, which run on gloo's two threads: several buckets in flight
    # would deadlock. Hence a single bucket.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1000)
    # start_powerSGD_iter=2 is the minimum that torch accepts with error feedback and a warm start.
    state = PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2, use_error_feedback=True, warm_start=True
    )
    wrapped.register_comm_hook(state, powerSGD_hook)
    sent = 0

    def step_bytes() -> float:
        nonlocal sent
        before, sent = sent, state.total_numel_after_compression
        # torch counts nothing before compression starts.
        return _ring(4 * (sent - before or _size(model)))

    return Wrapped(wrapped, step_bytes)


def _peer(model: nn.Module, name: str, seed: int) -> Wrapped:
    # Peers see all gradients at once.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1000)
    hook = PeerHook(name, seed=seed)
    hook.attach(wrapped)
    return Wrapped(wrapped, lambda: hook.sent, hook.close, codec_seconds=lambda: hook.seconds)


def _sumwire(model: DistributedDataParallel, **budget: int) -> Wrapped:
    # A comparison measures compression, so it must not fall back to all-reduce on fast links.
    state = attach(model, fallback=False, **budget)

    def codec_seconds() -> float:
        return sum(seconds for kind, seconds in state.statistics.seconds.items() if kind != "exchange")

    return Wrapped(model, lambda: float(state.statistics.sent), state.close, codec_seconds=codec_seconds)


def _switched(model: DistributedDataParallel, kind: str, bits: int, place: Place) -> Wrapped:
    loss = "reliable" if kind == "switch" else "lossy"
    link = connect(place.aggregator, rank=dist.get_rank(), workers=dist.get_world_size(), token=place.token, loss=loss)
    resync = place.resync if kind == "resync" else None
    state = attach(model, server=link, fallback=False, bits=bits, resync=resync)

    def close() -> None:
        state.close()
        link.close()

    return Wrapped(model, lambda: float(state.statistics.sent), close)


def _diloco(model: nn.Module, bits: int, every: int) -> Wrapped:
    running: list[DiLoCo] = []

    def follow(optimizer: Optimizer) -> None:
        running.append(DiLoCo(model, optimizer, every=every, bits=bits))

    def step_bytes() -> float:
        (diloco,) = running
        return 0.0 if diloco.steps % every else float(diloco.statistics.sent)

    return Wrapped(model, step_bytes, lambda: running[0].close(), follow)


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _ring(nbytes: int) -> float:
    """Each rank's share of a ring all-reduce."""
    ranks = dist.get_world_size()
    return 2 * nbytes * (ranks - 1) / ranks

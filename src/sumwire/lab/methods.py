"""Named methods of exchanging gradients in DDP: those built into torch, and Sumwire.

The other hooks built into torch do not run here: bf16 is not supported on CPU, the hooks that quantize per tensor or
per channel crash on CPU tensors, and batched PowerSGD fails an assertion inside torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError
from sumwire.train import attach

NAMES = ("fp32", "fp16", "powersgd-<rank>", "sumwire-<bits>", "sumwire-total-<bits>")

_PATTERN = re.compile(r"(fp32|fp16|powersgd|sumwire(?:-total)?)(?:-([1-9][0-9]?))?")
_LARGEST = {"powersgd": 64, "sumwire": 8, "sumwire-total": 32}


class Wrapped(NamedTuple):
    """A model whose gradients are exchanged by one of the methods."""

    model: DistributedDataParallel
    step_bytes: Callable[[], float]
    """Calculated bytes that each rank sent for the gradients of the last step."""
    close: Callable[[], None] = lambda: None


def parse_methods(text: str, bits: int) -> tuple[str, ...]:
    """Method names from a comma-separated list; "sumwire" without a width gets `bits`.

    >>> parse_methods("fp32,powersgd-2,sumwire", bits=4)
    ('fp32', 'powersgd-2', 'sumwire-4')
    """
    words = (word.strip() for word in text.split(","))
    names = tuple(f"sumwire-{bits}" if word == "sumwire" else word for word in words)
    for name in names:
        _parse(name)
        if names.count(name) > 1:
            raise ConfigError(f"method {name!r} is listed twice: list it once")
    return names


def label(name: str) -> str:
    """
    >>> label("powersgd-2"), label("sumwire-total-8")
    ('PowerSGD rank 2', 'Sumwire, 8 bits total')
    """
    kind, number = _parse(name)
    return {
        "fp32": "fp32",
        "fp16": "fp16 hook",
        "powersgd": f"PowerSGD rank {number}",
        "sumwire": f"Sumwire, {number}-bit",
        "sumwire-total": f"Sumwire, {number} bits total",
    }[kind]


def wrap(name: str, model: nn.Module) -> Wrapped:
    """Wrap the model in a new DDP that exchanges gradients with this method."""
    kind, number = _parse(name)
    if kind == "powersgd":
        return _powersgd(model, number)
    wrapped = DistributedDataParallel(model)
    if kind.startswith("sumwire"):
        return _sumwire(wrapped, **{"total_bits" if kind.endswith("total") else "bits": number})
    width = 4
    if kind == "fp16":
        wrapped.register_comm_hook(None, fp16_compress_hook)
        width = 2
    return Wrapped(wrapped, lambda: _ring(width * _size(model)))


def _parse(name: str) -> tuple[str, int]:
    match = _PATTERN.fullmatch(name)
    if match is None or (match[2] is None) != (match[1] not in _LARGEST):
        raise ConfigError(f"no method {name!r}: choose from {', '.join(NAMES)}")
    kind, number = match[1], int(match[2] or 0)
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


def _sumwire(model: DistributedDataParallel, **budget: int) -> Wrapped:
    # A comparison measures compression, so it must not fall back to all-reduce on fast links.
    state = attach(model, fallback=False, **budget)
    return Wrapped(model, lambda: float(state.statistics.sent), state.close)


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _ring(nbytes: int) -> float:
    """Each rank's share of a ring all-reduce."""
    ranks = dist.get_world_size()
    return 2 * nbytes * (ranks - 1) / ranks

"""Ways to exchange gradients in DDP: torch's own, and Sumwire, each under a name.

torch's other built-in hooks do not run here: bf16 is refused on CPU, those that quantise per tensor or per
channel crash on CPU tensors, and torch 2.13's batched PowerSGD fails an assertion of its own.
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
    """A model whose gradients are exchanged in some way."""

    model: DistributedDataParallel
    step_bytes: Callable[[], float]
    """What each rank sent for the gradients of the last step, by calculation."""
    close: Callable[[], None] = lambda: None


def parse_methods(text: str, bits: int) -> tuple[str, ...]:
    """Names separated by commas; plain "sumwire" has so many bits.

    >>> parse_methods("fp32,powersgd-2,sumwire", bits=4)
    ('fp32', 'powersgd-2', 'sumwire-4')
    """
    words = (word.strip() for word in text.split(","))
    names = tuple(f"sumwire-{bits}" if word == "sumwire" else word for word in words)
    for name in names:
        _parse(name)
        if names.count(name) > 1:
            raise ConfigError(f"method {name!r} was named twice: once is enough")
    return names


def label(name: str) -> str:
    """
    >>> label("powersgd-2"), label("sumwire-total-8")
    ('PowerSGD rank 2', 'Sumwire, 8 bits in all')
    """
    kind, number = _parse(name)
    return {
        "fp32": "fp32",
        "fp16": "fp16 hook",
        "powersgd": f"PowerSGD rank {number}",
        "sumwire": f"Sumwire, {number}-bit",
        "sumwire-total": f"Sumwire, {number} bits in all",
    }[kind]


def wrap(name: str, model: nn.Module) -> Wrapped:
    """A new DDP wrapper around the model that exchanges its gradients by this method."""
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
        raise ConfigError(f"no method {name!r}: {kind} goes up to {_LARGEST[kind]}")
    return kind, number


def _powersgd(model: nn.Module, rank: int) -> Wrapped:
    # The hook waits for collectives inside callbacks, which run on gloo's two threads: with several buckets
    # under way they all wait for each other. So one bucket for all.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1000)
    # start_powerSGD_iter=2 is the earliest that torch allows with error feedback and a warm start.
    state = PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2, use_error_feedback=True, warm_start=True
    )
    wrapped.register_comm_hook(state, powerSGD_hook)
    sent = 0

    def step_bytes() -> float:
        nonlocal sent
        before, sent = sent, state.total_numel_after_compression
        # Nothing is counted before compression starts.
        return _ring(4 * (sent - before or _size(model)))

    return Wrapped(wrapped, step_bytes)


def _sumwire(model: DistributedDataParallel, **budget: int) -> Wrapped:
    # A contest measures the method, not its good sense to give up.
    state = attach(model, fallback=False, **budget)
    return Wrapped(model, lambda: float(state.meter.sent), state.close)


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _ring(nbytes: int) -> float:
    """Each rank's share of a ring all-reduce."""
    ranks = dist.get_world_size()
    return 2 * nbytes * (ranks - 1) / ranks

"""The outer parameters, which all workers share, their optimizer, and how a fragment of them is updated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from sumwire.codec.base import Codec
from sumwire.errors import ConfigError, MismatchError
from sumwire.train.ddp.layout import Span, exact_tensors
from sumwire.train.diloco.options import DiLoCoSettings
from sumwire.train.dtypes import as_reals, reals
from sumwire.train.snapshots import bytes_of, header_of, pack, packed_size, unpack

DIGEST_WORDS = 4
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
"""What outer parameters are kept in: an outer step of 16 bits would get lost in rounding."""

OuterFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def here(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's values at this rank: of one that FSDP2 has sharded, the shard."""
    values = parameter.detach()
    return values.to_local() if isinstance(values, DTensor) else values


class Fragment:
    """Parameters that are exchanged together, one behind another in a flat buffer: first those averaged exactly."""

    def __init__(
        self,
        named: Mapping[str, torch.Tensor],
        codec: Codec | None,
        carried: Codec | None,
        settings: DiLoCoSettings,
        first: int,
    ) -> None:
        names = list(named)
        sizes = {name: reals(here(named[name])) for name in names}
        exact = set(names)
        if codec is not None:
            exact = {names[k] for k in exact_tensors(codec, [sizes[name] for name in names], settings.exact_below)}
        self.names = [*(name for name in names if name in exact), *(name for name in names if name not in exact)]
        self.parameters = [named[name] for name in self.names]
        self.outer = [torch.nn.Parameter(_master(here(parameter))) for parameter in self.parameters]
        self.sizes = [sizes[name] for name in self.names]
        devices = {here(parameter).device for parameter in self.parameters}
        self.flat = torch.zeros(sum(self.sizes), device=devices.pop() if len(devices) == 1 else "cpu")
        """The pseudo-gradient, then its mean over the workers."""
        self.exact = sum(sizes[name] for name in exact)
        """Values at the front that are averaged exactly."""
        self.spans = self._cut(carried, settings.span, first)

    def _cut(self, codec: Codec | None, span: int, first: int) -> list[Span]:
        if codec is None:
            return []
        span = span // codec.alignment * codec.alignment or codec.alignment
        edges = [*range(self.exact, self.flat.numel(), span), self.flat.numel()]
        return [Span(number, lo, hi, None, codec.residual()) for number, (lo, hi) in enumerate(pairwise(edges), first)]

    @torch.no_grad()
    def take_pseudo_gradient(self) -> None:
        """How far this worker has come from the outer parameters, with the sign of a gradient."""
        for outer, parameter, flat in zip(self.outer, self.parameters, self._views(), strict=True):
            flat.copy_(as_reals((outer - here(parameter).to(outer.dtype)).reshape(-1)))

    @torch.no_grad()
    def set_gradients(self) -> None:
        """Hand the mean to the outer optimizer."""
        for outer, flat in zip(self.outer, self._views(), strict=True):
            outer.grad = torch.empty_like(outer)
            as_reals(outer.grad.view(-1)).copy_(flat)

    @torch.no_grad()
    def go_on_from_outer(self, own_share: float) -> None:
        """Continue from the outer parameters, with a share of this worker's own."""
        for outer, parameter in zip(self.outer, self.parameters, strict=True):
            mine = here(parameter)
            mine.copy_(outer + own_share * (mine.to(outer.dtype) - outer) if own_share else outer)

    def _views(self) -> Iterable[torch.Tensor]:
        return torch.split(self.flat, self.sizes)


class Outer:
    """All fragments, the outer optimizer, and the buffers that are averaged: what all workers have alike.

    `codec` decides which parameters are averaged exactly, alike at all ranks of a site; `carried`, the same as the
    aggregator carries it, has the residuals, and only the rank that exchanges has it.
    """

    def __init__(
        self,
        named: Mapping[str, torch.Tensor],
        buffers: list[torch.Tensor],
        make: OuterFactory,
        codec: Codec | None,
        carried: Codec | None,
        settings: DiLoCoSettings,
    ) -> None:
        self.fragments: list[Fragment] = []
        first = 0
        for part in split(named, settings.fragments):
            self.fragments.append(Fragment(part, codec, carried, settings, first))
            first += len(self.fragments[-1].spans)
        self.buffers = buffers
        self.buffer_flat = torch.zeros(sum(reals(buffer) for buffer in buffers))
        parameters = [outer for fragment in self.fragments for outer in fragment.outer]
        self.optimizer = make(parameters)
        _check_optimizer(self.optimizer, parameters)
        self.exchanges = 0
        """Begun so far, of all fragments."""

    # Buffers

    @torch.no_grad()
    def take_buffers(self) -> None:
        """Copy this worker's, to be averaged."""
        for buffer, flat in zip(self.buffers, self._buffer_views(), strict=True):
            flat.copy_(as_reals(buffer.detach().reshape(-1)))

    @torch.no_grad()
    def set_buffers(self) -> None:
        """Go on with their mean."""
        for buffer, flat in zip(self.buffers, self._buffer_views(), strict=True):
            values = torch.empty(buffer.shape, dtype=buffer.dtype)
            as_reals(values.view(-1)).copy_(flat)
            buffer.copy_(values)

    def _buffer_views(self) -> Iterable[torch.Tensor]:
        return torch.split(self.buffer_flat, [reals(buffer) for buffer in self.buffers])

    # The outer step

    def step(self, fragment: Fragment) -> None:
        """Update the outer parameters of a fragment, whose flat buffer has the mean; no others have gradients."""
        fragment.set_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    # What workers compare, and what a newcomer is sent

    def header(self, progress: Mapping[str, int]) -> dict[str, Any]:
        """Plain values: where training is, and the outer optimizer's."""
        saved = self.optimizer.state_dict()
        groups = [{key: value for key, value in group.items() if key != "params"} for group in saved["param_groups"]]
        state = [
            [index, key, str(value.dtype).removeprefix("torch."), list(value.shape)]
            if isinstance(value, torch.Tensor)
            else [index, key, value]
            for index, key, value in _entries(saved)
        ]
        return {**progress, "exchanges": self.exchanges, "groups": groups, "state": state}

    def tensors(self) -> Iterator[torch.Tensor]:
        """Everything else."""
        for fragment in self.fragments:
            yield from (outer.detach() for outer in fragment.outer)
        yield from (value for *_, value in _entries(self.optimizer.state_dict()) if isinstance(value, torch.Tensor))
        yield from (buffer.detach() for buffer in self.buffers)

    def digest(self, steps: int) -> NDArray[np.int32]:
        """Words of 30 bits that workers share exactly when all of this is equal (up to a collision)."""
        header = json.dumps(self.header({"step": steps}), sort_keys=True).encode()
        hashed = hashlib.blake2b(header, digest_size=4 * DIGEST_WORDS)
        for tensor in self.tensors():
            hashed.update(bytes_of(tensor).data)
        return (np.frombuffer(hashed.digest(), np.uint32) >> 2).astype(np.int32)

    def packed(self, progress: Mapping[str, int]) -> NDArray[np.int32]:
        """All of it as words."""
        return pack(self.header(progress), self.tensors())

    def packed_size(self, progress: Mapping[str, int]) -> int:
        """How many words that are."""
        return packed_size(self.header(progress), self.tensors())

    def take(self, words: NDArray[np.int32]) -> dict[str, Any]:
        """Go on from what another worker has packed; its plain values."""
        header = header_of(words)
        saved: dict[str, Any] = {"state": {}, "param_groups": []}
        for group, known in zip(header["groups"], self.optimizer.state_dict()["param_groups"], strict=True):
            saved["param_groups"].append({**group, "params": known["params"]})
        for index, key, *what in header["state"]:
            values = what[0] if len(what) == 1 else torch.empty(what[1], dtype=getattr(torch, what[0]))
            saved["state"].setdefault(index, {})[key] = values
        filled = [value for *_, value in _entries(saved) if isinstance(value, torch.Tensor)]
        mine = [outer.detach() for fragment in self.fragments for outer in fragment.outer]
        unpack(words, [*mine, *filled, *(buffer.detach() for buffer in self.buffers)])
        self.optimizer.load_state_dict(saved)
        self.exchanges = int(header["exchanges"])
        for fragment in self.fragments:
            fragment.go_on_from_outer(0.0)
            for span in fragment.spans:
                if span.residual is not None and not span.residual.empty:
                    span.residual.value[...] = 0  # of steps from other parameters
        return header


def split(named: Mapping[str, torch.Tensor], fragments: int) -> list[dict[str, torch.Tensor]]:
    """Parameters in their order, in fragments of about the same size."""
    if len(named) < fragments:
        raise ConfigError(f"fragments={fragments}, but the model trains {len(named)} parameters: use at most as many")
    total, done = sum(reals(here(parameter)) for parameter in named.values()), 0
    parts: list[dict[str, torch.Tensor]] = [{}]
    for left, (name, parameter) in zip(range(len(named), 0, -1), named.items(), strict=True):
        full = done >= total * len(parts) / fragments or left == fragments - len(parts)
        if parts[-1] and len(parts) < fragments and full:
            parts.append({})
        parts[-1][name] = parameter
        done += reals(here(parameter))
    return parts


def _master(values: torch.Tensor) -> torch.Tensor:
    return values.to(_WIDER.get(values.dtype, values.dtype), copy=True).contiguous()


def _entries(saved: Mapping[str, Any]) -> list[tuple[int, str, Any]]:
    """An optimizer's state in an order that does not depend on its history."""
    state = saved["state"]
    return [(index, key, state[index][key]) for index in sorted(state) for key in sorted(state[index])]


def _check_optimizer(optimizer: object, parameters: list[torch.nn.Parameter]) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"outer(parameters) gave a {type(optimizer).__name__}, not an optimizer: pass a function such as "
            "lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)"
        )
    theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if theirs != {id(parameter) for parameter in parameters}:
        raise MismatchError(
            "the outer optimizer does not have the outer parameters: let `outer` build it from those it is called with"
        )
    try:
        json.dumps(
            [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        )
    except TypeError as error:
        raise ConfigError(
            f"the outer optimizer has an option that is not a plain value ({error}), which a newcomer could not be "
            "sent: use numbers"
        ) from None

"""How buckets of gradients are cut into rounds, and which of their tensors are sent exactly.

The layout is fixed at the first compressed step and saved with the state. DDP may hand over its
buckets in another order or size later (it rebuilds them once, and starts anew after a restart): then
gradients are staged into the layout's buckets, so that the same bits come out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from sumwire.codec.base import Codec
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.options import same

EXACT_SHARE = 0.05
"""Exact tensors may add this much to a bucket's bytes."""


@dataclass(eq=False)
class Span:
    """A run of a bucket that is averaged in one round."""

    number: int
    start: int
    stop: int
    exact: torch.Tensor | None
    """Positions within the run that are averaged exactly."""
    residual: Residual | None
    choice: str = ""
    """Which codec the last round used, where there is a choice."""
    _copies: dict[torch.device, torch.Tensor] = field(default_factory=dict)

    def exact_on(self, device: torch.device) -> torch.Tensor:
        """The positions on a device, copied once."""
        assert self.exact is not None
        if device not in self._copies:
            self._copies[device] = self.exact.to(device)
        return self._copies[device]


@dataclass(eq=False)
class Bucket:
    """Tensors that lie behind one another, and the rounds that average them."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    spans: list[Span]
    starts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        edges = [0, *accumulate(self.sizes)]
        self.starts = dict(zip(self.names, edges, strict=False))

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def take_leftover(self, name: str, gradient: torch.Tensor) -> None:
        """Add to this tensor's gradient what its residuals still hold, and forget it there."""
        start = self.starts[name]
        flat = gradient.view(-1)
        for span in self.spans:
            lo, hi = max(start, span.start), min(start + len(flat), span.stop)
            if lo < hi and span.residual is not None and not span.residual.empty:
                held = span.residual.value[lo - span.start : hi - span.start]
                flat[lo - start : hi - start] += torch.as_tensor(held).to(flat)
                held[:] = 0


@dataclass(frozen=True)
class Cutting:
    """What decides how buckets become rounds."""

    codec: Codec
    span: int
    """Coordinates of a round, at most."""
    exact_below: int
    """Tensors of at most this many coordinates may be averaged exactly."""

    def bucket(self, names: Sequence[str], sizes: Sequence[int], dtype: torch.dtype, first: int) -> Bucket:
        """A bucket whose rounds are numbered from `first`."""
        total, exact = sum(sizes), self._exact(sizes)
        spans = []
        for number, start in enumerate(range(0, total, self.span), first):
            stop = min(start + self.span, total)
            here = exact[(exact >= start) & (exact < stop)] - start
            spans.append(Span(number, start, stop, here if len(here) else None, self.codec.residual()))
        return Bucket(tuple(names), tuple(sizes), dtype, spans)

    def _exact(self, sizes: Sequence[int]) -> torch.Tensor:
        """Positions of the tensors that are averaged exactly."""
        edges = [0, *accumulate(sizes)]
        chosen = [
            torch.arange(edges[index], edges[index + 1]) for index in exact_tensors(self.codec, sizes, self.exact_below)
        ]
        return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)


def exact_tensors(codec: Codec, sizes: Sequence[int], exact_below: int) -> list[int]:
    """Which tensors to average exactly: the smallest, as long as they stay cheap. Their error then costs nothing."""
    bits = codec.expected_bits(sum(sizes))
    if bits is None:
        return []  # all are exact
    room = EXACT_SHARE * (bits[0] + bits[1]) / 64
    chosen = []
    for index in sorted(range(len(sizes)), key=lambda k: sizes[k]):
        room -= sizes[index]
        if sizes[index] > exact_below or room < 0:
            break
        chosen.append(index)
    return sorted(chosen)


class Layout:
    """The buckets that rounds are cut from, from the first compressed step to the end of the training."""

    def __init__(self, cutting: Cutting) -> None:
        self._cutting = cutting
        self.buckets: list[Bucket] = []
        self.complete = False
        """Whether all buckets of a step are in it."""

    def find(self, gradients: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Bucket | None:
        """The bucket of just these tensors, in this order."""
        names, sizes = tuple(gradients), tuple(gradient.numel() for gradient in gradients.values())
        same = (each for each in self.buckets if each.names == names and each.sizes == sizes and each.dtype == dtype)
        return next(same, None)

    def add(self, gradients: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Bucket:
        """A bucket of these tensors, behind those that are there."""
        sizes = [gradient.numel() for gradient in gradients.values()]
        self.buckets.append(self._cutting.bucket(tuple(gradients), sizes, dtype, self._rounds))
        return self.buckets[-1]

    def end_step(self) -> None:
        """All buckets have been seen, unless steps were not compressed."""
        self.complete = bool(self.buckets)

    @property
    def _rounds(self) -> int:
        return sum(len(bucket.spans) for bucket in self.buckets)

    def take_leftovers(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """What residuals still hold of these tensors goes into their gradients."""
        for name, gradient in gradients.items():
            for bucket in self.buckets:
                if name in bucket.starts:
                    bucket.take_leftover(name, gradient)

    def digest(self) -> str:
        """Short, and the same for the same layout."""
        text = repr([(bucket.names, bucket.sizes, bucket.dtype) for bucket in self.buckets])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def state_dict(self, *, residuals: bool = True) -> list[dict[str, Any]]:
        """Plain lists, for a checkpoint; or, without residuals, for JSON. Empty until the layout is complete."""
        return [
            {
                "names": list(bucket.names),
                "sizes": list(bucket.sizes),
                "dtype": str(bucket.dtype).removeprefix("torch."),
                "residuals": [
                    span.residual.state_dict() if span.residual and residuals else None for span in bucket.spans
                ],
            }
            for bucket in self.buckets
            if self.complete
        ]

    def load_state_dict(self, saved: Sequence[dict[str, Any]], *, residuals: bool = True) -> None:
        """The buckets that were saved, with their residuals or with empty ones."""
        self.buckets = []
        for entry in saved:
            dtype = getattr(torch, entry["dtype"])
            bucket = self._cutting.bucket(entry["names"], entry["sizes"], dtype, self._rounds)
            if residuals:
                same("number of rounds of a bucket", len(bucket.spans), len(entry["residuals"]), "load this state")
                for span, residual in zip(bucket.spans, entry["residuals"], strict=True):
                    if span.residual is not None and residual is not None:
                        span.residual.load_state_dict(residual)
            self.buckets.append(bucket)
        self.complete = bool(self.buckets)


def holds_residuals(saved: Sequence[dict[str, Any]]) -> bool:
    """Whether a saved layout has any residuals."""
    return any(residual is not None for entry in saved for residual in entry["residuals"])


def layout_problem(saved: Sequence[dict[str, Any]], trained: Mapping[str, int]) -> str | None:
    """Why a saved layout does not fit a model that trains these parameters, of these sizes."""
    known = {name: size for entry in saved for name, size in zip(entry["names"], entry["sizes"], strict=True)}
    for name in sorted(known.keys() | trained.keys() if known else ()):
        if name not in trained:
            return f"the saved layout has parameter {name!r}, which this model does not train"
        if name not in known:
            return f"this model trains parameter {name!r}, which the saved layout does not have"
        if known[name] != trained[name]:
            return f"parameter {name!r} has {known[name]} values in the saved layout, {trained[name]} in this model"
    return None

"""One FSDP unit's reduce-scatter in compressed form.

FSDP2 hands over a flat input of n rows, one for each rank of the shard group. A row is a tensor of its
own, so that blocks never straddle shards:

    join      propose each row, one maximum of all rows' terms over the ranks, encode each row
    exchange  all-to-all: row r's payload goes to rank r
    add       its owner adds n payloads by table and decodes once

So b bits a coordinate go up and nothing comes down. FSDP2 waits for its reduce-scatter anyway, so all of
it runs in the calling thread, over a communicator of its own.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.group.cost import LATENCY, RATE
from sumwire.aggregate.meter import Meter
from sumwire.aggregate.slots import Buffers
from sumwire.codec.base import same
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.options import LARGEST_SCALE
from sumwire.codec.lattice.parts import LatticePayload, LatticeTerms
from sumwire.codec.lattice.residual import Residual
from sumwire.errors import ConfigError, NonFiniteError, RangeError
from sumwire.train.dtypes import as_reals

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
except ImportError as error:
    raise ConfigError(
        f"torch {torch.__version__} has no FSDPModule.set_custom_reduce_scatter: use torch 2.9 or later"
    ) from error

_log = logging.getLogger(__name__)

_UNIT_BITS, _PLACE_BITS = 14, 20

FIRST_CALLS = 1 << 28
"""First calls are below: enough that nobody can prepare gradients for one's random numbers."""

# Renamed in torch 2.13.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def round_id(call: int, unit: int, place: int) -> int:
    """One for each row of each call, so that no two share random numbers; places count rows over all replicas."""
    if unit >> _UNIT_BITS or place >> _PLACE_BITS:
        raise ConfigError(f"unit {unit} or rank {place} is beyond {1 << _UNIT_BITS} units and {1 << _PLACE_BITS} ranks")
    return (call << _UNIT_BITS | unit) << _PLACE_BITS | place


def pays(codec: Lattice, ranks: int, size: int, value_bits: int = 32) -> bool:
    """Whether a coded reduce-scatter of `size` coordinates is faster, by the constants of `aggregate.cost`.

    plain   n-1 messages                       (n-1)/n * N * value bits
    coded   3(n-1) messages (join, payloads)   (n-1)/n * (N * b + 64 * blocks) bits

    >>> codec = Lattice(workers=4, bits=4)
    >>> pays(codec, 4, 20_000), pays(codec, 4, 10_000)
    (True, False)
    """
    saved = size * (value_bits - codec.bits) - 64 * ranks * codec.blocks(size // ranks)
    return saved / ranks / RATE > 2 * LATENCY


class Steps(Protocol):
    """What all units of a model share."""

    feedback: bool
    warmup: int
    meter: Meter

    def begin(self, calls: int) -> None:
        """A unit is called that had so many calls before."""


@dataclass(eq=False)
class Channel:
    """What units sharded over the same ranks have in common."""

    codec: Lattice
    wire: Wire
    first_call: int
    """Where calls begin to count for random numbers: the same at all ranks."""
    buffers: Buffers = field(default_factory=Buffers)


class Unit(ReduceScatter):
    """The reduce-scatter of one FSDP unit: a module with parameters of its own."""

    def __init__(self, steps: Steps, channel: Channel, parameters: Any, index: int) -> None:
        self._steps, self.channel, self._index = steps, channel, index
        self._parameters: Any = weakref.ref(parameters)  # or a state that is kept would keep the model
        self._replica = int(getattr(parameters.mesh_info, "replicate_mesh_rank", None) or 0)
        self._residuals: list[Residual] = []
        self._warned = False
        self.calls = 0
        self.first_call = channel.first_call

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for an input or output, as FSDP2 itself would allocate it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """output = this rank's row, reduced over the ranks. It is complete on return, also if `async_op`."""
        factor, ranks = _factor(op), self.channel.wire.ranks
        output_tensor, input_tensor = as_reals(output_tensor), as_reals(input_tensor)
        self._steps.begin(self.calls)
        self.calls += 1
        sent = None
        if self.calls > self._steps.warmup and self._compressible(input_tensor):
            sent = self._coded(output_tensor, input_tensor, factor)
        if sent is None:
            self._plain(output_tensor, input_tensor, group, op, factor)
        ring = input_tensor.numel() * input_tensor.element_size() * (ranks - 1) // ranks
        meter = self._steps.meter
        meter.values += input_tensor.numel()
        meter.sent += ring if sent is None else sent
        meter.plain_sent += ring

    def _compressible(self, flat: torch.Tensor) -> bool:
        """The same at all ranks, as it depends on nothing but sizes and settings."""
        ranks = self.channel.wire.ranks
        if not pays(self.channel.codec, ranks, flat.numel(), 8 * flat.element_size()):
            return False
        trained = [p for p in self._parameters().fsdp_params if p.sharded_param.requires_grad]
        whole = ranks * sum(
            p.padded_sharded_param_size.numel() * (2 if p.sharded_param.is_complex() else 1) for p in trained
        )
        if not self._steps.feedback or flat.numel() == whole:
            return True
        # FSDP2 leaves out parameters without a gradient, and nothing tells whose residuals are left over.
        if not self._warned and self.channel.wire.rank == 0:
            _log.warning(
                "an FSDP unit got gradients of %d of its %d coordinates; with feedback, such are sent uncompressed: "
                "set_reduce_scatter_unused_params(True) or feedback=False avoids that", flat.numel(), whole,
            )  # fmt: skip
        self._warned = True
        return False

    def _plain(self, output: torch.Tensor, flat: torch.Tensor, group: Any, op: Any, factor: float | None) -> None:
        if factor is not None and op == dist.ReduceOp.PREMUL_SUM:
            flat, op = flat.mul_(factor), dist.ReduceOp.SUM  # which gloo can do, too
        with self._steps.meter.time("exchange"):
            _reduce_scatter(output, flat, op=op, group=group)

    def _coded(self, output: torch.Tensor, flat: torch.Tensor, factor: float | None) -> int | None:
        """Bytes sent; None, and nothing has changed, if some rank's gradients are not finite."""
        wire, buffers, meter = self.channel.wire, self.channel.buffers, self._steps.meter
        n, me = wire.ranks, wire.rank
        with meter.time("encode"):
            rows = self._rows(flat)
            scales = self._scales(rows)
        with meter.time("exchange"):
            joined = wire.max(scales.reshape(-1).view(np.int32))
        if not bool((scales <= LARGEST_SCALE).all()):
            return None
        with meter.time("encode"):
            terms = [LatticeTerms(self.channel.codec, (len(rows[0]),), its) for its in scales]
            sent = [each.payload_bytes(self.channel.codec) for each in terms]
            outbox = buffers.take("outbox", sum(sent))
            self._encode(rows, terms, np.split(outbox, np.cumsum(sent)[:-1]))
        inbox = buffers.take("inbox", n * sent[me])
        with meter.time("exchange"):
            moved = wire.all_to_all(outbox, sent, inbox, [sent[me]] * n)
        mean = self._mean(terms[me], inbox.reshape(n, -1))
        if factor is not None:
            mean *= np.float32(n * factor)
        output.copy_(torch.from_numpy(mean))
        return joined + moved

    def _rows(self, flat: torch.Tensor) -> list[Any]:
        """What to encode for each rank, on the host."""
        rows: list[Any] = list(flat.cpu().reshape(self.channel.wire.ranks, -1))
        if not self._steps.feedback:
            return rows
        if not self._residuals or self._residuals[0].value.shape != rows[0].shape:  # other parameters train now
            self._residuals = [Residual(self.channel.codec) for _ in rows]
        return [residual.correct(row) for residual, row in zip(self._residuals, rows, strict=True)]

    def _scales(self, rows: list[Any]) -> NDArray[np.float32]:
        """This rank's terms, row by row; NaN, which wins every maximum, if it has none to offer."""
        codec, n = self.channel.codec, len(rows)
        scales = self.channel.buffers.take("scales", n * codec.blocks(len(rows[0])), np.float32).reshape(n, -1)
        try:
            for its, row in zip(scales, rows, strict=True):
                its[:] = codec.propose(row).scales
        except (NonFiniteError, RangeError):
            scales[:] = np.nan
        return scales

    def _round_id(self, row: int) -> int:
        return round_id(self.first_call + self.calls - 1, self._index, self._replica * self.channel.wire.ranks + row)

    def _encode(self, rows: list[Any], terms: list[LatticeTerms], outs: list[NDArray[np.uint8]]) -> None:
        for number, (row, its, out) in enumerate(zip(rows, terms, outs, strict=True)):
            keys: Any = {"rank": self.channel.wire.rank, "round_id": self._round_id(number), "out": out}
            if self._steps.feedback:
                self._residuals[number].encode(its, **keys)
            else:
                self.channel.codec.encode(row, its, **keys)

    def _mean(self, terms: LatticeTerms, inbox: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of this rank's row, from all ranks' payloads."""
        codec, buffers, meter = self.channel.codec, self.channel.buffers, self._steps.meter
        plan, number = terms.plan(codec), self._round_id(self.channel.wire.rank)
        with meter.time("add"):
            room = int(plan.lanes_at[-1])
            payloads = [
                LatticePayload(codec, terms, number, sender, data, plan.widths, 0, len(plan.widths))
                for sender, data in enumerate(inbox)
            ]
            total = codec.add(payloads, out=buffers.take("lanes", room))
        with meter.time("decode"):
            return codec.decode(total, out=buffers.take("mean", terms.size, np.float32))

    def state_dict(self) -> dict[str, Any]:
        """What `State.state_dict` has of this unit."""
        return {
            "family": self.channel.codec.family,
            "rank": self._replica * self.channel.wire.ranks + self.channel.wire.rank,
            "calls": self.calls,
            "first_call": self.first_call,
            "residuals": [residual.state_dict() for residual in self._residuals],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same unit at the same rank."""
        mine = self.state_dict()
        for what in ("family", "rank"):
            same(what, mine[what], state[what], "load this state")
        self._residuals = [Residual(self.channel.codec) for _ in state["residuals"]]
        for residual, kept in zip(self._residuals, state["residuals"], strict=True):
            residual.load_state_dict(kept)
        self.calls, self.first_call = int(state["calls"]), int(state["first_call"])


def _factor(op: Any) -> float | None:
    """What the sum over the ranks is multiplied by; None for the mean."""
    if op == dist.ReduceOp.AVG:
        return None
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.PREMUL_SUM and isinstance(state := op.__getstate__(), tuple):
        return float(state[1])
    raise ConfigError(f"reduction {op} is not a mean or sum: give set_gradient_divide_factor a number, or do without")

"""Averages over a torch process group (gloo, NCCL, MPI): nobody decompresses on the way.

A round passes three stages, each in a thread of its own, the first two over a communicator of their own:

    join      propose, maximum of the terms over the ranks, encode
    exchange  all-to-all of payloads, table add, all-gather of packed sums; or a plain SUM of words
    decode    decode the sum over the tensor

so rounds follow each other like wagons, no caller waits for the network, and large messages never share a
link with one another.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sumwire.aggregate import cost
from sumwire.aggregate.agreement import agree
from sumwire.aggregate.cost import Algorithm
from sumwire.aggregate.meter import Meter
from sumwire.aggregate.pipeline import Pipeline
from sumwire.aggregate.slots import Slot, Slots
from sumwire.aggregate.ways import WAYS, Trip
from sumwire.aggregate.wires import Wire, twins
from sumwire.codec.lattice import Lattice
from sumwire.codec.lattice_checks import LARGEST_SCALE
from sumwire.codec.lattice_parts import LatticeTerms
from sumwire.codec.residual import Residual
from sumwire.errors import ConfigError, InputError, NonFiniteError, RangeError, RoundError, SumwireError

UNDER_WAY = 3
"""Rounds that may hold memory at once: one per stage."""

SAMPLE = 1 << 18
"""Coordinates of which a sampled round measures the error."""

_PATIENCE_AT_EXIT = 5.0

_NO_VALUES = np.empty(0, np.float32)


@dataclass(eq=False)
class Round:
    """One tensor on its way through the stages; its mean is written over it."""

    tensor: torch.Tensor
    round_id: int
    algorithm: Algorithm
    done: Callable[[BaseException | None], None]
    residual: Residual | None = None
    exact: torch.Tensor | None = None
    """Positions (int64) of coordinates that are sent as they are."""
    sampled: bool = False
    """Also sum some coordinates exactly, to measure the error."""
    meter: Meter = field(default_factory=Meter)
    settings: Mapping[str, object] | None = None
    """What ranks must agree on before this round."""
    ready: Any = None
    """An event on the device's stream, after which the tensor is complete."""

    host: torch.Tensor = field(init=False)
    kept: torch.Tensor | None = None
    """The exact positions' own values."""
    trip: Trip | None = None
    truth: NDArray[np.float32] | None = None
    slot: Slot | None = None
    slots: Slots | None = None

    def borrow(self, slots: Slots) -> Slot:
        self.slots, self.slot = slots, slots.borrow()
        return self.slot

    def finish(self, error: BaseException | None) -> None:
        """Whatever came of it, its memory is free again."""
        if self.slots is not None and self.slot is not None:
            self.slots.give_back(self.slot)
        self.slot = self.trip = None
        self.done(error)


class Collective:
    """Averages tensors over the ranks of a process group, compressed by a `Lattice`.

    Law: every rank gets the same bits, those of `sumwire.average` over the ranks' tensors. Bits: b up
    and w down a coordinate (`sharded`), against 64 for a ring of fp32. A tensor that some rank cannot
    encode (NaN, Inf, beyond 2**115) goes the plain way at all ranks, as without Sumwire.

    >>> import torch.distributed as dist                                    # doctest: +SKIP
    >>> dist.init_process_group("gloo")                                     # doctest: +SKIP
    >>> with Collective(sumwire.Lattice(dist.get_world_size())) as ranks:   # doctest: +SKIP
    ...     ranks.average(gradient, round_id=1)                             # in place

    Options, the same at every rank (which is checked, by name, before anything else is sent):

    codec      a `Lattice` for as many workers as the group has ranks
    group      the process group (default: the whole world); all its ranks must build this together
    algorithm  "auto" takes the cheapest by `cost.choose`; "sharded", "lanes" or "plain" by force
    backend    of the communicators (default: the group's own for CPU tensors, else gloo)
    settings   further things that must agree between the ranks
    """

    def __init__(
        self,
        codec: Lattice,
        group: dist.ProcessGroup | None = None,
        *,
        algorithm: Literal["auto"] | Algorithm = "auto",
        backend: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        if algorithm != "auto" and algorithm not in cost.ALGORITHMS:
            raise ConfigError(f"algorithm={algorithm!r} is not one of auto, {', '.join(cost.ALGORITHMS)}")
        self.codec = codec
        self.algorithm = algorithm
        self._wires: list[Wire] = twins(group, 2, backend)
        self.rank, self.ranks = self._wires[0].rank, self._wires[0].ranks
        mine = {"workers": codec.workers, "codec": repr(codec), "codec family": codec.family, "algorithm": algorithm}
        agree(self._wires[0], mine | {"backend": backend} | dict(settings or {}))
        if codec.workers != self.ranks:
            raise ConfigError(
                f"the codec was built for workers={codec.workers}, the group has {self.ranks} ranks: build it with "
                f"workers={self.ranks}"
            )
        self._slots = Slots(UNDER_WAY)
        self._pipeline: Pipeline[Round] = Pipeline("sumwire", self._stages, self._blame)
        atexit.register(self._close_at_exit)

    @property
    def _stages(self) -> tuple[Callable[[Round], None], ...]:
        return self._join, self._exchange, self._decode

    def __enter__(self) -> Collective:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout: float | None = None) -> None:
        """Finish the rounds under way, end the threads (or give up on them after `timeout` s) and the communicators."""
        atexit.unregister(self._close_at_exit)
        self._pipeline.close(timeout)
        for wire in self._wires:
            wire.close()

    def _close_at_exit(self) -> None:
        # Threads of ours or of gloo that still hold tensors while the interpreter goes down would abort the process.
        self.close(_PATIENCE_AT_EXIT)

    @property
    def error(self) -> BaseException | None:
        """What ended this collective, if anything did."""
        return self._pipeline.error

    def choose(self, size: int) -> Algorithm:
        """The way that a tensor of `size` coordinates goes."""
        if self.algorithm != "auto":
            return self.algorithm
        return cost.choose(self.codec, self.ranks, size, all_to_all=self._wires[0].has_all_to_all)

    def average(self, tensor: torch.Tensor, *, round_id: int, **options: Any) -> torch.Tensor:
        """Replace the tensor by its mean over the ranks; returns it when that is done.

        All ranks must average the same tensors in the same order, each with a `round_id` of its own.
        """
        finished = threading.Event()
        errors: list[BaseException] = []

        def done(error: BaseException | None) -> None:
            errors.extend([error] if error else [])
            finished.set()

        self.submit(tensor, round_id=round_id, done=done, **options)
        finished.wait()
        if errors:
            raise errors[0]
        return tensor

    def average_async(self, tensor: torch.Tensor, *, round_id: int, **options: Any) -> torch.futures.Future[Any]:
        """As `average`, but returns a future of the tensor at once."""
        return promise(lambda done: self.submit(tensor, round_id=round_id, done=done, **options), tensor)

    def submit(
        self,
        tensor: torch.Tensor,
        *,
        round_id: int,
        done: Callable[[BaseException | None], None],
        algorithm: Algorithm | None = None,
        **options: Any,
    ) -> None:
        """Start a round and return; another thread calls `done`. See `Round` for the options."""
        if tensor.dim() != 1 or not tensor.is_contiguous() or not tensor.dtype.is_floating_point:
            raise InputError(
                f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)} cannot be averaged in place: pass a flat, "
                "contiguous view of floating point"
            )
        if self.ranks == 1:
            done(None)  # the mean of one is itself
            return
        way = algorithm or self.choose(tensor.numel())
        job = Round(tensor, round_id, way, done, **options)
        if tensor.is_cuda:
            job.ready = torch.cuda.current_stream(tensor.device).record_event()
        self._pipeline.submit(job)

    def _blame(self, job: Round, error: BaseException) -> BaseException:
        """What a collective says when a peer is gone, in words that help."""
        if isinstance(error, SumwireError) or not isinstance(error, RuntimeError):
            return error
        return RoundError(
            f"round {job.round_id} of {job.tensor.numel()} values failed at rank {self.rank}: {error}. Probably "
            "another rank has died or hangs; no parameter was changed: restart from the last checkpoint"
        )

    # The stages

    def _join(self, job: Round) -> None:
        if job.settings is not None:
            agree(self._wires[0], job.settings)
        if job.ready is not None:
            job.ready.synchronize()
        if job.algorithm == "plain":
            return
        job.host = job.tensor.cpu()  # itself, where it is there already
        slot = job.borrow(self._slots)
        if self.error is not None:
            raise self.error  # it may have come while we waited for the slot
        with job.meter.time("encode"):
            source = job.host if job.residual is None else torch.from_numpy(job.residual.correct(job.host))
            exact = self._take_exact(job, source)
            if job.sampled:
                job.truth = (source[:SAMPLE].float() / self.ranks).numpy()
            scales = self._scales(source, exact)
        with job.meter.time("exchange"):
            sent = self._wires[0].max(scales.view(np.int32))
        if not bool((scales <= LARGEST_SCALE).all()):
            self._go_plain(job)
            return
        with job.meter.time("encode"):
            terms = LatticeTerms(self.codec, tuple(source.shape), scales)
            out = slot.take("payload", terms.payload_bytes(self.codec))
            keys: Any = {"rank": self.rank, "round_id": job.round_id, "out": out}
            if job.residual is None:
                payload = self.codec.encode(source, terms, **keys)
            else:
                payload = job.residual.encode(terms, **keys)
                if job.exact is not None:
                    job.residual.value[job.exact.numpy()] = 0  # noise of zeros: their values are sent apart
        job.trip = Trip(self.codec, slot, terms, payload, exact, job.meter, sent)

    def _take_exact(self, job: Round, source: torch.Tensor) -> NDArray[np.float32]:
        """The values that are sent as they are; the codec sees zeros there."""
        if job.exact is None:
            return _NO_VALUES
        job.kept = job.host[job.exact]
        source[job.exact] = 0
        return job.kept.float().numpy()

    def _scales(self, source: torch.Tensor, exact: NDArray[np.float32]) -> NDArray[np.float32]:
        """This rank's terms; NaN, which wins every maximum, where it has none to offer."""
        try:
            if source.dtype == torch.float64 and np.isinf(exact).any():
                raise NonFiniteError("beyond float32", index=0, count=1)
            return self.codec.propose(source).scales.copy()
        except (NonFiniteError, RangeError):
            return np.full(self.codec.blocks(source.numel()), np.nan, np.float32)

    def _go_plain(self, job: Round) -> None:
        """Some rank has no terms: all take this tensor as it is, and its residual is not touched."""
        job.algorithm = "plain"
        if job.residual is None and job.exact is not None:
            assert job.kept is not None
            job.tensor[job.exact] = job.kept.to(job.tensor.device)
        job.residual, job.truth = None, None

    def _exchange(self, job: Round) -> None:
        wire = self._wires[1]
        if job.trip is None:
            with job.meter.time("exchange"):
                # In this order and dtype, so that the result has the bits of DDP's own all-reduce.
                dist.all_reduce(job.tensor.mul_(1.0 / self.ranks), group=wire.group)
            job.meter.count(job.tensor, None, self.ranks)
            return
        WAYS[job.algorithm].exchange(job.trip, wire)
        if job.truth is not None:
            job.trip.sent += wire.sum(job.truth)

    def _decode(self, job: Round) -> None:
        trip = job.trip
        if trip is None:
            return
        with job.meter.time("decode"):
            direct = job.host.dtype == torch.float32
            mean = job.host.numpy() if direct else trip.slot.take("mean", trip.terms.size, np.float32)
            WAYS[job.algorithm].decode(trip, mean)
            if job.truth is not None:
                job.meter.sample(mean[: len(job.truth)], job.truth)
            if not direct or job.host is not job.tensor:
                job.tensor.copy_(torch.from_numpy(mean))
            if job.exact is not None:
                job.tensor[job.exact] = torch.from_numpy(trip.exact / np.float32(self.ranks)).to(job.tensor)
        job.meter.count(job.tensor, trip.sent, self.ranks)


def promise(start: Callable[[Callable[[BaseException | None], None]], None], value: Any) -> torch.futures.Future[Any]:
    """A future of `value`, which `start` is given the means to fulfil or to break."""
    devices: list[Any] | None = [value.device] if isinstance(value, torch.Tensor) and value.is_cuda else None
    future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)

    def done(error: BaseException | None) -> None:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(RoundError(str(error)))

    start(done)
    # A callback that raises is the only way to hand C++, where DDP waits, a proper error.
    return future.then(lambda settled: settled.value())

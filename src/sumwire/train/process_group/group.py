"""A process group that compresses large sums of floats, and is gloo in all else."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from sumwire.aggregate.group.communicator import OWN
from sumwire.aggregate.group.cost import pays, shard_pays
from sumwire.aggregate.group.group import FIRST_ROUNDS
from sumwire.aggregate.group.private import PrivateGroup
from sumwire.aggregate.lifetime import Lifetime
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.base import Codec
from sumwire.errors import ConfigError
from sumwire.train.process_group.options import GroupOptions
from sumwire.train.process_group.rounds import AllReduceRound, ReduceScatterRound
from sumwire.train.process_group.work import RoundWork, of_work

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Of these, sums are compressed."""

GLOO_AVERAGES = torch.__version__ >= "2.9"  # which torch compares as versions
"""Whether gloo knows AVG. Before, it refuses all-reduces, up to torch 2.7, and gives sums in reduce-scatters."""

_CPU = torch.device("cpu")
_UNSET = timedelta(milliseconds=-1)
"""The timeout of a call that has none of its own."""
_PATIENCE = 10.0
"""Seconds that rounds in flight may take when their group is destroyed."""


class SumwireGroup(dist.ProcessGroup):
    """Compresses all-reduces and reduce-scatters that sum or average large tensors of floats; passes all else to gloo.

    Law: after an all-reduce, all ranks have the same bits, those of `sumwire.average` over their tensors, times the
    number of ranks for a SUM, rounded to the tensor's dtype once; a reduce-scatter has those of each row. If any rank's
    tensor has NaN or Inf, all reduce it exactly, with gloo's bits. What is compressed depends on nothing but the
    operation, dtype, size and options, which are equal at all ranks. Rounds are asynchronous and in order; what goes
    wrong in one is raised by its `wait` and by all later ones'.

    Cost: 4 + 5.2 bits per coordinate instead of 64 for an all-reduce, 4 instead of 32 for a reduce-scatter, each times
    (n-1)/n; per group two more gloo groups and five threads.

    Made by `dist.new_group(backend="sumwire")` or `dist.init_process_group("cpu:sumwire")`.

    Parameters
    ----------
    store, rank, size, timeout
        As for any process group.
    options
        What is compressed.
    first_round
        Where rounds begin to count, for random numbers; default: at a random number that all ranks share.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: GroupOptions,
        *,
        first_round: int | None = None,
    ) -> None:
        empty: Any = super().__init__  # the form without a store, the only one that Python may inherit
        empty(rank, size)
        self.options = options
        self.statistics = Statistics()
        """Of all that was compressed."""
        self._gloo = dist.ProcessGroupGloo(PrefixStore("exact", store), rank, size, timeout=timeout)
        self._gloo._set_sequence_number_for_group()
        # What this class does not override, torch itself passes to gloo; and what it does, when nothing is compressed.
        self._exact = dist.ProcessGroup(store, rank, size)
        for group in (self, self._exact):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(_CPU, dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._rounds: RoundsInFlight | None = None
        self._lifetime: Lifetime | None = None
        self._last: Future[Any] | None = None
        if size == 1:
            return
        self._codec, self._rows_codec = options.choose(size), options.choose_rows(size)
        self._group = PrivateGroup(self._codec, store, rank=rank, timeout=timeout, settings=options.settings)
        self._next = self._group.session % FIRST_ROUNDS if first_round is None else first_round
        self._rounds = RoundsInFlight(self._group)
        self._lifetime = Lifetime(self, self._rounds.end, "sumwire-group-end")

    # Collectives. What follows the tensors is (opts), or for callers in Python also (op, timeout).

    def allreduce(self, tensors: Any, *options: Any, **named: Any) -> Any:  # type: ignore[override]
        """Compressed, if it sums or averages one large tensor of floats."""
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        mean = self._is_mean(*options, **named)
        if mean is not None and len(listed) == 1 and self._pays(listed[0]):
            return RoundWork([self._reduce(listed[0], self._codec, mean)], listed)
        return self._reduce_exactly(listed, *options, **named)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], *options: Any, **named: Any) -> Any:
        """Large tensors are compressed, each in a round of its own; if none is, all of it is gloo's."""
        mean, listed = self._is_mean(*options, **named), list(tensors)
        coded = [mean is not None and self._pays(tensor) for tensor in listed]
        if mean is None or not any(coded) or len({tensor.dtype for tensor in listed}) > 1:
            return self._exact.allreduce_coalesced(listed, *options, **named)
        codecs = [self._codec if yes else None for yes in coded]
        return RoundWork([self._reduce(*each, mean) for each in zip(listed, codecs, strict=True)], listed)

    def reduce_scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:  # type: ignore[override]
        """Compressed, if inputs are as large as the output, and it pays."""
        single = isinstance(outputs, torch.Tensor)
        if single or len(outputs) == 1:
            output, rows = (outputs, inputs) if single else (outputs[0], inputs[0])
            if {(row.shape, row.dtype) for row in rows} == {(output.shape, output.dtype)}:
                work = self._scatter([output], [tuple(rows)], *options, **named)
                if work is not None:
                    return work
        return self._scatter_exactly("reduce_scatter", outputs, inputs, *options, **named)

    def _reduce_scatter_base(self, outputTensor: Any, inputTensor: Any, *options: Any, **named: Any) -> Any:
        work = self._scatter([outputTensor], [inputTensor], *options, **named)
        return work or self._scatter_exactly("_reduce_scatter_base", outputTensor, inputTensor, *options, **named)

    def reduce_scatter_single(self, outputTensor: Any, inputTensor: Any, *options: Any, **named: Any) -> Any:
        """The new name of `_reduce_scatter_base`, in torch 2.13."""
        work = self._scatter([outputTensor], [inputTensor], *options, **named)
        return work or self._scatter_exactly("reduce_scatter_single", outputTensor, inputTensor, *options, **named)

    def reduce_scatter_tensor_coalesced(
        self, outputTensors: Any, inputTensors: Any, *options: Any, **named: Any
    ) -> Any:
        """Large tensors are compressed, as by `reduce_scatter_single`."""
        work = self._scatter(outputTensors, inputTensors, *options, **named)
        name = "reduce_scatter_tensor_coalesced"
        return work or self._scatter_exactly(name, outputTensors, inputTensors, *options, **named)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # its new name, in torch 2.13

    def barrier(self, *options: Any, **named: Any) -> Any:
        """Gloo's, once the rounds of this rank are done: in this thread, as gloo counts barriers when they begin."""
        if self._last is not None:
            wait([self._last])
        return self._exact.barrier(*options, **named)

    # What is gloo's alone. torch would pass it on itself, but with Python's lock held; and gloo's threads, which want
    # that lock to let go of a tensor that Python knows, have gloo's own lock then: both would wait forever.

    def broadcast(self, *given: Any, **named: Any) -> Any:
        """Gloo's."""
        return self._exact.broadcast(*given, **named)

    def allgather(self, *given: Any, **named: Any) -> Any:
        """Gloo's."""
        return self._exact.allgather(*given, **named)

    def allgather_into_tensor_coalesced(self, *given: Any, **named: Any) -> Any:
        """Gloo's."""
        return self._exact.allgather_into_tensor_coalesced(*given, **named)

    def alltoall_base(self, *given: Any, **named: Any) -> Any:
        """Gloo's."""
        return self._exact.alltoall_base(*given, **named)

    def send(self, *given: Any, **named: Any) -> Any:
        """Gloo's."""
        return self._exact.send(*given, **named)

    def recv(self, *given: Any, **named: Any) -> Any:
        """Gloo's."""
        return self._exact.recv(*given, **named)

    # What is compressed

    def _is_mean(self, *options: Any, **named: Any) -> bool | None:
        """Whether a mean is asked for, or a sum; None if anything else, or in a time of its own: that is gloo's."""
        names = self.options.groups
        given = [*options, *named.values()]
        if self._rounds is None or len(given) > 1 or (names is not None and self.group_desc not in names):
            return None
        if given and getattr(given[0], "timeout", _UNSET) != _UNSET:
            return None
        op = _operation(*given)
        return True if op == dist.ReduceOp.AVG else False if op == dist.ReduceOp.SUM else None

    def _pays(self, tensor: torch.Tensor) -> bool:
        if tensor.numel() < self.options.min_size or not _is_dense(tensor):
            return False
        return pays(self._codec, self.size(), tensor.numel(), 8 * tensor.element_size())

    def _rows_pay(self, output: torch.Tensor, size: int) -> bool:
        if self._rows_codec is None or size < self.options.min_size or not _is_dense(output):
            return False
        return shard_pays(self._rows_codec, self.size(), size, 8 * output.element_size())

    # Rounds

    def _submit(self, steps: AllReduceRound | ReduceScatterRound) -> Future[Any]:
        assert self._rounds is not None
        self._group.set_timeout(self._gloo.options._timeout)  # the user may have set another
        self._last = self._rounds.submit(steps)
        return self._last

    def _take_ids(self, count: int) -> int:
        self._next += count
        return self._next - count

    def _reduce(self, tensor: torch.Tensor, codec: Codec | None, mean: bool) -> Future[Any]:
        number = self._take_ids(1)
        return self._submit(
            AllReduceRound(self._group, tensor, codec, round_id=number, mean=mean, statistics=self.statistics)
        )

    def _scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor | tuple[torch.Tensor, ...]],
        *options: Any,
        **named: Any,
    ) -> RoundWork | None:
        """None if that is not ours: to be compressed are some, and gloo would take them all."""
        mean, ranks = self._is_mean(*options, **named), self.size()
        if mean is None or len(outputs) != len(inputs):
            return None
        sizes = [ranks * output.numel() for output in outputs]
        coded = [self._rows_pay(*each) for each in zip(outputs, sizes, strict=True)]
        fits = all(
            isinstance(rows, tuple) or (rows.numel() == size and rows.dtype == output.dtype)
            for rows, output, size in zip(inputs, outputs, sizes, strict=True)
        )
        if not any(coded) or not fits or not all(map(_is_dense, outputs)):
            return None
        rounds = []
        for output, rows, yes in zip(outputs, inputs, coded, strict=True):
            whole = torch.stack(rows) if isinstance(rows, tuple) else rows
            rounds.append(
                self._submit(
                    ReduceScatterRound(
                        self._group,
                        whole.detach().reshape(ranks, -1),
                        output,
                        self._rows_codec if yes else None,
                        round_id=self._take_ids(ranks),  # one for each row
                        mean=mean,
                        statistics=self.statistics,
                    )
                )
            )
        return RoundWork(rounds, list(outputs))

    def _scatter_exactly(self, name: str, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """By gloo, which before torch 2.9 gives the sum where a mean is asked for."""
        if not GLOO_AVERAGES and _operation(*options, *named.values()) == dist.ReduceOp.AVG:
            raise ConfigError(
                f"gloo of torch {torch.__version__} gives sums where a reduce-scatter asks for a mean, and this one is "
                "not compressed: use SUM and divide, or torch 2.9 or newer"
            )
        return getattr(self._exact, name)(outputs, inputs, *options, **named)

    def _reduce_exactly(self, tensors: list[torch.Tensor], *options: Any, **named: Any) -> Any:
        """By gloo, which reads a tensor as if it were contiguous, whatever its strides are."""
        if all(each.layout != torch.strided or each.is_contiguous() for each in tensors):
            return self._exact.allreduce(tensors, *options, **named)
        dense = [each.detach().contiguous() for each in tensors]
        work = self._exact.allreduce(dense, *options, **named)

        def copy_back() -> None:
            for each, reduced in zip(tensors, dense, strict=True):
                each.detach().copy_(reduced)

        return RoundWork([of_work(work)], tensors, copy_back)

    # The end

    @property
    def error(self) -> BaseException | None:
        """What ended the rounds of this group, if anything did."""
        return None if self._rounds is None else self._rounds.error

    def shutdown(self) -> None:
        """Finish what is in flight, or give up on it after 10 seconds; then end threads and groups."""
        if self._lifetime is not None:
            self._lifetime.close(_PATIENCE)
        super().shutdown()

    def abort(self) -> None:
        """Fail what is in flight, and end threads and groups."""
        if self._lifetime is not None:
            self._group.close()
            self._lifetime.close(_PATIENCE)
        super().abort()

    def getBackendName(self) -> str:
        return OWN


def _operation(*options: Any) -> Any:
    """What the options of a call reduce by."""
    op = options[0] if options else dist.ReduceOp.SUM
    return getattr(op, "reduceOp", op)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether it is of a kind that can be compressed."""
    return tensor.dtype in FLOATS and tensor.device.type == "cpu" and tensor.layout == torch.strided

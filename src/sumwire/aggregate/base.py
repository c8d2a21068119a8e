"""Whoever averages calls the same lines, over whatever joins and adds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sumwire.aggregate.round import Round
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.algebra import ErrorFeedback, Payload, Shape, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.tensors import Tensor, as_tensor, check_out, float32_pairs, give_back, is_float64, join_pairs
from sumwire.errors import ConfigError, MismatchError, RoundError
from sumwire.kernels.arrays import Buffers


@dataclass(eq=False)
class Workspace:
    """Memory that a round borrows, valid until it ends, and where its cost is counted."""

    buffers: Buffers = field(default_factory=Buffers)
    statistics: Statistics = field(default_factory=Statistics)
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext)
    """Entered while this round computes, before there is anything to add."""

    def take(self, name: str, size: int, dtype: DTypeLike = np.uint8, *, like: Any = None) -> NDArray[Any]:
        """`size` elements, with whatever they held before; on the device of `like`, if that is a torch tensor."""
        if hasattr(like, "data_ptr"):
            lent: NDArray[Any] = self.buffers.take_tensor(name, size, dtype, like)
            return lent
        return self.buffers.take(name, size, dtype)


class Aggregator(ABC):
    """Where workers' terms are joined and their payloads added: a process group, a server, a switch, one process.

    Law: `average` gives every worker the same bits, those of `sumwire.average` over the tensors of all workers in the
    sum; where an aggregator averages exactly by a sum of its own, the bits of that. An aggregator never asks which
    codec it carries, so any codec works over any aggregator. All workers must average the same tensors in the same
    order.

    A new aggregator implements `join`, `add` and `close`; everything else follows.
    """

    ascending: ClassVar[bool] = False
    """Whether rounds must be numbered upwards in the order in which they begin."""
    lossy: bool = False
    """Whether units of a sum of which nothing arrived are taken as zero, instead of failing their round."""
    can_listen: ClassVar[bool] = False
    """Whether a worker that others have done rounds without can come back, by `listen`."""

    carries_tensors: bool = False
    """Whether payloads may lie in a GPU's memory, as torch tensors; if not, tensors are copied to the host first."""

    rank: int
    """Of this worker, 0..workers-1."""
    workers: int
    codec: Codec
    """What `average` uses unless told otherwise."""

    @abstractmethod
    def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        """Everyone's terms, joined with `|`."""

    @abstractmethod
    def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        """Everyone's payloads, added with `+`, and narrow if the codec narrows."""

    def begin_add(self, payload: Payload, *, workspace: Workspace | None = None) -> Callable[[], Sum]:
        """The beginning of `add`; what it returns does the rest, once, while later rounds may begin in other threads.

        Whoever begins rounds in the same order at all workers must end them in that order, too.
        """
        total = self.add(payload, workspace=workspace)
        return lambda: total

    def add_shard(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        """The same, of this worker's shard only, not narrow: a reduce-scatter.

        Shard k is units edges[k]..edges[k + 1].
        """
        edges = payload.codec.edges(payload.terms, self.workers)
        return self.add(payload, workspace=workspace).part(edges[self.rank], edges[self.rank + 1])

    @abstractmethod
    def close(self) -> None:
        """End connections and threads; this aggregator cannot be used any more."""

    def average(
        self,
        x: Tensor,
        *,
        codec: Codec | None = None,
        residual: ErrorFeedback | None = None,
        out: Tensor | None = None,
        round_id: int | None = None,
    ) -> Tensor:
        """The mean of all workers' tensors, in x's kind, dtype and shape.

        Parameters
        ----------
        x
            NumPy array or torch CPU tensor.
        codec
            Default: this aggregator's `codec`, or the residual's.
        residual
            Error feedback: the tensor is corrected first, and what does not arrive goes into the residual. The sum is
            then divided by `workers`, because what is missing comes later; without a residual, by the count of
            workers in it.
        out
            Where to write the mean, instead of fresh memory; may be x.
        round_id
            The same at all workers, another for every round. Default: the next one.

        Raises
        ------
        RoundError
            If the round cannot complete. All of the tensor is then back in the residual: do not average it again.
        """
        if out is not None:
            check_out(out, as_tensor(x))
        codec = codec or (residual.codec if residual is not None else self.codec)
        return Round(self, x, codec, round_id=round_id, residual=residual, out=out).run()

    def average_exactly(
        self, x: Tensor, *, round_id: int, out: Tensor | None = None, workspace: Workspace | None = None
    ) -> Tensor:
        """The mean without loss, NaN and Inf included; of float64, with float32's range and about its precision."""
        exact, work = Sparse(self.workers), workspace or Workspace()
        inner = Workspace(work.buffers)  # whose values the caller's round counts
        try:
            if not is_float64(x):
                return Round(self, x, exact, round_id=round_id, out=out, workspace=inner).run()
            pairs = Round(self, float32_pairs(x), exact, round_id=round_id, workspace=inner).run()
            return give_back(join_pairs(pairs), x, out)
        finally:
            work.statistics.add_cost(inner.statistics)

    # What an aggregator may know better

    def takes_along(self, nbytes: int) -> bool:
        """Whether `join_along` is there, for this many bytes of values."""
        return False

    def join_along(self, terms: Terms, values: Tensor, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        """As `join`; values, a torch CPU tensor, become their exact mean over the workers, in place, and in the same
        messages where they fit. If the round fails, they are not defined."""
        raise ConfigError(f"a {type(self).__name__} averages exact values in rounds of their own: use average_exactly")

    def average_ahead(
        self, x: Tensor, *, round_id: int, out: Tensor | None = None, workspace: Workspace | None = None
    ) -> Tensor | None:
        """As `average_exactly`, while rounds before this one are still being added; None if that cannot be."""
        return None

    def sums_on(self, device: Any) -> bool:
        """Whether tensors on this device, a GPU, are averaged exactly there; if not, they are copied to the host."""
        return False

    def next_round(self) -> int:
        """The number of the next round, the same at all workers."""
        raise ConfigError(f"a {type(self).__name__} does not number rounds: pass round_id")

    @property
    def first_round(self) -> int:
        """Where rounds begin to count, the same at all workers."""
        return 0

    def side_channel(self, name: str) -> Aggregator:
        """The same workers with rounds of their own, for something that is rarely exchanged; closed with this one."""
        return self

    def prepare(self, codec: Codec) -> Codec:
        """The codec as this aggregator carries it best: it decodes to the same, or as closely as plain sums allow."""
        return codec

    def pays(self, codec: Codec, size: int) -> bool:
        """Whether compressing a tensor of `size` coordinates is expected to be faster than sending it exactly."""
        return True

    def skip(self, terms: Terms, *, round_id: int, reason: str) -> Sum:
        """The others' sum: this worker cannot encode its tensor under terms that were joined without it."""
        raise MismatchError(reason)

    def listen(self, codec: Codec, shape: Shape, *, round_id: int, reason: str) -> Sum:
        """The others' sum, under terms that they join: this worker takes no part, and nobody waits for it."""
        raise RoundError(f"round {round_id} needs every worker ({reason}): a {type(self).__name__} leaves nobody out")

    @property
    def upcoming(self) -> int:
        """The number that `next_round` will give, where that can be told."""
        raise ConfigError(f"a {type(self).__name__} does not number rounds: pass round_id")

    def end_round(self, round_id: int, error: BaseException | None = None) -> None:  # noqa: B027  (most have no use for it)
        """Nothing more comes from this worker for a round; `error` says why it gave up, if it did."""

    def check_residual(self, codec: Codec, residual: ErrorFeedback | None) -> None:  # noqa: B027  (most have no use for it)
        """Raise if workers could divide the same sum by different numbers."""

    def check_settings(self, settings: Mapping[str, object]) -> None:  # noqa: B027  (most have no use for it)
        """Raise `MismatchError`, at every worker, unless all have the same settings."""

    def report(self, *, nmse: float) -> None:  # noqa: B027  (most have no use for it)
        """Tell whoever watches, a server's page say, the normalized squared error of a round. Never waits."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

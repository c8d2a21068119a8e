"""A whole round in one process: for simulation, tests, and tensors that are all here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.round import Round
from sumwire.codec.algebra import Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.tensors import Tensor, as_tensor, float32_pairs, give_back, is_float64, join_pairs
from sumwire.errors import ConfigError, RoundError


def average(
    codec: Codec, xs: Iterable[Tensor], *, round_id: int = 0, residuals: Sequence[Residual] | None = None
) -> Tensor:
    """The mean of the tensors as `codec` computes it: propose, join, encode, add, narrow, decode.

    Parameters
    ----------
    codec
        Built for at least as many workers as there are tensors.
    xs
        One tensor per worker.
    round_id
        Give every tensor and step one of its own: rounds of one id share all random numbers, so that their errors
        repeat instead of averaging out.
    residuals
        One for each tensor and of this codec: every tensor is corrected first, and what its payload does not hold
        stays in its residual. The sum is then divided by `codec.workers`, however few tensors there are, because the
        others' come later.

    Returns
    -------
    Tensor
        In the inputs' shape, and the first one's dtype and kind (torch for torch). If some tensor holds NaN or Inf,
        the mean is computed exactly, so they show.

    Examples
    --------
    >>> import numpy as np, sumwire
    >>> xs = [np.full(8, k, np.float32) for k in range(4)]
    >>> mean = average(sumwire.Lattice(workers=4, bits=8), xs)
    >>> bool(np.allclose(mean, 1.5, atol=0.2))
    True
    """
    xs = [as_tensor(x) for x in xs]
    if not xs:
        raise ConfigError("nothing to average: pass at least one tensor")
    if residuals is not None and (len(residuals) != len(xs) or len(set(map(id, residuals))) != len(xs)):
        raise ConfigError(f"{len(residuals)} residuals for {len(xs)} tensors: each tensor needs one of its own")
    kept: Sequence[Residual | None] = residuals or [None] * len(xs)
    group = Local.create(len(xs), codec)
    workers = [
        Round(each, x, codec, round_id=round_id, residual=residual)
        for each, x, residual in zip(group, xs, kept, strict=True)
    ]
    if workers[0].exact:
        return _exactly(xs)
    terms = reduce(or_, [worker.propose() for worker in workers])
    payloads = [worker.encode(terms) for worker in workers]
    if not terms.encodable:
        return _exactly(xs)
    total = codec.add([payload for payload in payloads if payload is not None]).narrow()
    follow_up = codec.follow_up(total)
    if follow_up is None:
        mean = codec.decode(total, divide_by="count" if residuals is None else "workers")
    else:
        again = follow_up.terms.codec
        rest = [
            again.encode(follow_up.pick(x), follow_up.terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)
        ]
        mean = follow_up.decode(again.add(rest))
    return codec.to_tensor(mean, xs[0], None)


def _exactly(xs: Sequence[Tensor]) -> Tensor:
    """The mean without loss, in rank order."""
    if not is_float64(xs[0]):
        return average(Sparse(len(xs)), xs)
    pairs = [float32_pairs(x) for x in xs]
    return give_back(join_pairs(average(Sparse(len(xs)), pairs)), xs[0])


class Local(Aggregator):
    """One of several workers that are threads of this process.

    >>> import numpy as np, sumwire
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> group = Local.create(2, sumwire.Sparse(2))
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(pool.map(lambda worker: float(worker.average(np.float32([worker.rank]))[0]), group))
    [0.5, 0.5]
    """

    def __init__(self, rank: int, codec: Codec, meeting: _Meeting) -> None:
        self.rank, self.workers, self.codec = rank, meeting.workers, codec
        self._meeting = meeting
        self._rounds = 0

    @classmethod
    def create(cls, workers: int, codec: Codec) -> list[Local]:
        """All workers of a group, one for each thread."""
        meeting = _Meeting(workers)
        return [cls(rank, codec, meeting) for rank in range(workers)]

    def next_round(self) -> int:
        self._rounds += 1
        return self._rounds - 1

    def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        joined: Terms = self._meeting.merge(("join", round_id), self.rank, terms, lambda all_: reduce(or_, all_))
        return joined

    def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        return self._add("add", payload, lambda payloads: _add_up(payloads).narrow())

    def add_shard(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        # Not narrow: a shard's sum does not travel.
        edges = payload.codec.edges(payload.terms, self.workers)
        return self._add("add shards", payload, _add_up).part(edges[self.rank], edges[self.rank + 1])

    def _add(self, what: str, payload: Payload, merge: Callable[[list[Payload]], Sum]) -> Sum:
        total: Sum = self._meeting.merge((what, payload.round_id), self.rank, payload, merge)
        return total

    def end_round(self, round_id: int, error: BaseException | None = None) -> None:
        if error is not None:
            self._meeting.fail(RoundError(f"worker {self.rank} gave up round {round_id}: {error}"))

    def close(self) -> None:
        """The others' rounds that wait for this worker fail."""
        self._meeting.fail(RoundError(f"worker {self.rank} has left: its rounds cannot complete"))


def _add_up(payloads: list[Payload]) -> Sum:
    codec, terms = payloads[0].codec, payloads[0].terms
    total = codec.add(payloads)
    if codec.adds_at_once:
        return total
    # It holds payloads, whose memory each worker may use for its next round: add them up now.
    lo, hi = codec.edges(terms, 1)
    return total.part(lo, hi)


@dataclass(eq=False)
class _Merged:
    """What all workers' values give, for each of them to fetch; or why they give nothing."""

    waiting: int
    value: Any = None
    error: BaseException | None = None


class _Meeting:
    """Where threads wait for one another: the last to come merges what all have brought."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._brought: dict[Hashable, dict[int, Any]] = {}
        self._merged: dict[Hashable, _Merged] = {}
        self._error: RoundError | None = None
        self._changed = threading.Condition()

    def merge(self, key: Hashable, rank: int, value: Any, merge: Callable[[list[Any]], Any]) -> Any:
        """What `merge` makes of all workers' values, in rank order."""
        with self._changed:
            if self._error is not None:
                raise self._error
            values = self._brought.setdefault(key, {})
            values[rank] = value
            if len(values) == self.workers:
                merged = self._merged[key] = _Merged(self.workers)
                del self._brought[key]
                try:
                    merged.value = merge([values[each] for each in range(self.workers)])
                except Exception as error:
                    merged.error = error
                self._changed.notify_all()
            while key not in self._merged:
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            merged = self._merged[key]
            merged.waiting -= 1
            if not merged.waiting:
                del self._merged[key]
            if merged.error is not None:
                raise merged.error
            return merged.value

    def fail(self, error: RoundError) -> None:
        """Rounds that are not complete never will be."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

"""One tensor's way into a mean: propose, join, encode, add, decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sumwire.codec.algebra import FOLLOW_UP, DivideBy, ErrorFeedback, Floats, FollowUp, Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.options import same_family
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.tensors import Tensor, as_tensor, float32_view, size_of
from sumwire.errors import MismatchError, NonFiniteError, RangeError, RoundError

if TYPE_CHECKING:
    from sumwire.aggregate.base import Aggregator, Workspace


@dataclass(frozen=True, eq=False)
class Request:
    """What a worker wants added."""

    terms: Terms
    round_id: int
    payload: Payload | None
    reason: str = ""
    """Why there is no payload: the others' sum is wanted nevertheless."""


class Round:
    """A round at one worker. `run` does it all; rounds in flight pass `agree`, `compress`, `add`, `gather`, `decode`.

    A tensor that some worker cannot encode (NaN, Inf, beyond 2**115) is averaged exactly by all; so is every tensor if
    there is no codec.
    """

    keeps_late: ClassVar[bool] = True
    """Whether a residual takes back what the sum does not hold; if not, it is lost, and sums are divided by the count
    of workers in them also where there is a residual."""

    def __init__(
        self,
        aggregator: Aggregator,
        x: Tensor,
        codec: Codec | None,
        *,
        round_id: int | None,
        noise_id: int | None = None,
        residual: ErrorFeedback | None = None,
        out: Tensor | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        from sumwire.aggregate.base import Workspace

        if codec is not None and residual is not None:
            same_family(codec, residual.codec, "average with this residual")
        if codec is not None:
            aggregator.check_residual(codec, residual)
        self.aggregator = aggregator
        self.codec = Sparse(aggregator.workers) if codec is None else aggregator.prepare(codec)
        self.x, self.out, self.residual = as_tensor(x), out, residual
        self.round_id = aggregator.next_round() if round_id is None else round_id
        self._noise_id = self.round_id if noise_id is None else noise_id
        """Decides all random numbers, whatever number the aggregator knows the round by."""
        self.workspace = workspace or Workspace()
        self.along: Tensor = None
        """Values, of another tensor, that become their exact mean when terms are joined (`Aggregator.join_along`)."""
        self._source: Tensor = None
        """What is encoded: the tensor, or the tensor and its residual."""
        self._terms: Terms | None = None
        self._payload: Payload | None = None
        self._reason = ""
        """Why there is no payload."""
        self._rest: Callable[[], Sum] | None = None
        """What is left of adding."""
        self._total: Sum | None = None
        self._follow_up: FollowUp | None = None
        self._second: Sum | None = None
        """Of the second exchange."""
        self._mean: Tensor = None
        self.exact = codec is None or not codec.accepts(self.x)
        """Averaged without loss: as asked for, or because the codec cannot take this tensor, or some worker's."""

    def run(self) -> Tensor:
        """The mean."""
        try:
            self.agree()
            self.compress()
            self.add()
            self.gather()
        except BaseException as error:
            self.aggregator.end_round(self.round_id, error)
            raise
        self.aggregator.end_round(self.round_id)
        return self.decode()

    # The steps

    def propose(self) -> Terms:
        """This worker's terms."""
        self.load()
        with self.workspace.turn, self.workspace.statistics.time("encode"):
            self._source = self.x if self.residual is None else self.residual.correct(self.x)
            try:
                return self.codec.propose(self._source)
            except (NonFiniteError, RangeError):
                return self.codec.refuse(tuple(self._source.shape))

    def agree(self) -> None:
        """Propose and join; or average exactly, where that need not wait for the rounds before."""
        self._join()
        if self.exact:
            try:
                self._mean = self.aggregator.average_ahead(
                    self.x, round_id=self.round_id, out=self.out, workspace=self.workspace
                )
            except RoundError:
                self.failed()
                raise

    def _join(self) -> None:
        if self.exact:
            self.load()
            return
        terms = self.propose()
        if self.codec.agrees:
            try:
                terms = self._joined(terms)
            except RoundError:
                self.failed()
                raise
        self._take(terms)

    def takes_along(self, nbytes: int) -> bool:
        """Whether `along` may be set, to this many bytes."""
        return not self.exact and self.codec.agrees and self.aggregator.takes_along(nbytes)

    def _joined(self, terms: Terms) -> Terms:
        if self.along is None:
            return self.aggregator.join(terms, round_id=self.round_id, workspace=self.workspace)
        return self.aggregator.join_along(terms, self.along, round_id=self.round_id, workspace=self.workspace)

    def _take(self, terms: Terms) -> None:
        self._terms = terms
        if not terms.encodable:
            self.exact, self.round_id = True, self.round_id | FOLLOW_UP

    def compress(self) -> None:
        """Encode under the joined terms."""
        if self._terms is not None and not self.exact:
            self.encode(self._terms)

    def encode(self, terms: Terms) -> Payload | None:
        """This worker's payload under the joined terms, if it can have one."""
        self._take(terms)
        if self.exact:
            return None
        with self.workspace.turn, self.workspace.statistics.time("encode"):
            room = self.codec.payload_room(terms, self._source.itemsize)
            stays = self.codec.stays_on_device(self._source) and not self.codec.payloads_on_host
            out = self.workspace.take("payload", room, like=self._source if stays else None) if room else None
            try:
                if self.residual is not None:
                    self._payload = self.residual.encode(
                        terms, rank=self.aggregator.rank, round_id=self._noise_id, out=out
                    )
                else:
                    self._payload = self.codec.encode(
                        self._source, terms, rank=self.aggregator.rank, round_id=self._noise_id, out=out
                    )
            except (MismatchError, NonFiniteError) as error:
                self._reason = str(error)  # terms were joined without this worker, which came late
        return self._payload

    def add(self) -> None:
        """Payloads in; of the sum, what need not wait for `gather`."""
        if self._mean is not None:
            return
        try:
            if self.exact:
                self.settle(
                    self.aggregator.average_exactly(
                        self.x, round_id=self.round_id, out=self.out, workspace=self.workspace
                    )
                )
                return
            self._rest = self._begin(self.request())
        except RoundError:
            self.failed()
            raise
        if self.codec.follows_up:  # by payloads, which stay in the order of rounds
            self.gather()

    def gather(self) -> None:
        """The sum out; with the second exchange, if the codec needs one."""
        rest, self._rest = self._rest, None
        try:
            while rest is not None:
                request = self.accept(rest())
                rest = None if request is None else self._begin(request)
        except RoundError:
            self.failed()
            raise

    def _begin(self, request: Request) -> Callable[[], Sum]:
        if request.payload is not None:
            return self.aggregator.begin_add(request.payload, workspace=self.workspace)
        total = self.aggregator.skip(request.terms, round_id=request.round_id, reason=request.reason)
        return lambda: total

    def reduce_scatter(self, *, out: Floats | None = None) -> Floats | None:
        """This worker's shard of the mean, instead of all of it; None if some worker cannot encode its tensor.

        The codec is one that decodes what a sum covers: a `Stacked` one.
        """
        self._join()
        if self.exact:
            return None
        self.compress()
        if self._payload is None:
            raise MismatchError(self._reason)
        try:
            total = self.aggregator.add_shard(self._payload, workspace=self.workspace)
        except RoundError:
            self.failed()
            raise
        with self.workspace.statistics.time("decode"):
            return self.codec.decode(total, out=out, divide_by=self._divide_by)

    def request(self) -> Request:
        """What is to be added."""
        assert self._terms is not None
        payload = self._payload
        if payload is not None and payload.round_id != self.round_id:
            payload = replace(payload, round_id=self.round_id)
        return Request(self._terms, self.round_id, payload, self._reason)

    def accept(self, total: Sum) -> Request | None:
        """Take what was added, and say what is to be added next, if the codec needs a second exchange."""
        if self._follow_up is not None:
            self._second = total
            return None
        self._keep(total)
        self._total = total if total.round_id == self._noise_id else replace(total, round_id=self._noise_id)
        self._follow_up = self.codec.follow_up(self._total)
        return None if self._follow_up is None else self._ask_again(self._follow_up)

    def settle(self, mean: Tensor) -> None:
        """Take the mean that was averaged exactly."""
        self._mean = mean

    def failed(self) -> None:
        """The round cannot complete: what the residual would have been rid of stays there."""
        if self._total is None and self._mean is None:
            self._keep(None)

    def _keep(self, total: Sum | None) -> None:
        """Take back into the residual what the sum does not hold; everything, if there is no sum."""
        if self.residual is None or not self.keeps_late:
            return
        if self._payload is None:
            self.residual.unsent(self.x)
        elif total is None:
            self.residual.lost(self._payload)
        else:
            for lo, hi in total.late:
                self.residual.lost(self._payload.part(lo, hi))

    def _ask_again(self, follow_up: FollowUp) -> Request:
        number, terms, rank = self.round_id | FOLLOW_UP, follow_up.terms, self.aggregator.rank
        if rank not in follow_up.ranks:
            return Request(terms, number, None, f"round {self.round_id} was summed without it")
        return Request(
            terms, number, terms.codec.encode(follow_up.pick(self._source), terms, rank=rank, round_id=number)
        )

    def decode(self) -> Tensor:
        """The mean, once it is known what was added."""
        if self._mean is None:
            assert self._total is not None
            with self.workspace.statistics.time("decode"):
                self._mean = self.codec.to_tensor(self._decode(self._total), self.x, self.out)
        self.store(self._mean)
        plain = self.codec.plain_bytes(self.x, self.aggregator.workers)
        self.workspace.statistics.add_values(size_of(self.x), plain)
        return self._mean

    def _decode(self, total: Sum) -> Floats:
        shape = total.shape
        out = None if self.out is None else float32_view(self.out)
        if out is None and self.out is not None:
            like = self.out if self.codec.stays_on_device(self.out) else None
            out = self.workspace.take("mean", int(np.prod(shape, dtype=np.int64)), np.float32, like=like)
        if self._follow_up is not None:
            assert self._second is not None
            return self._follow_up.decode(self._second, out=out)
        return self.codec.decode(
            total,
            out=out,
            missing="zero" if self.aggregator.lossy else "raise",
            divide_by=self._divide_by,
        )

    @property
    def _divide_by(self) -> DivideBy:
        return "count" if self.residual is None or not self.keeps_late else "workers"

    # Where tensors are not in this host's memory

    def load(self) -> None:
        """Make `x` readable."""

    def store(self, mean: Tensor) -> None:
        """Hand the mean over."""

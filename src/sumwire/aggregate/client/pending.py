"""A round that a worker waits for: what it has sent, what has come back."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import Any

from sumwire.aggregate.client.contribution import Contribution, Pieces
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.algebra import FOLLOW_UP, Payload, Shape, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.errors import MismatchError
from sumwire.wire import control, frame
from sumwire.wire.frame import Frame


@dataclass
class Pending:
    """One round, until its result is here. Everything is kept that may have to be sent again."""

    round_id: int
    rank: int
    codec: Codec
    shape: Shape
    spans: list[list[Span]]
    """The parts of each shard."""
    agreed: asyncio.Future[Terms]
    """Terms, joined."""
    done: asyncio.Future[None]
    proposal: Pieces | None = None
    terms: Terms | None = None
    agreement: Pieces = field(default_factory=list)
    """The joined terms, as shards that did not join them need them."""
    overruled: bool = False
    """The others go on with other terms: what was encoded is of no use."""
    parts: dict[Span, Pieces] = field(default_factory=dict)
    """This worker's payload."""
    sums: dict[Span, Any] = field(default_factory=dict)
    without: dict[Span, control.Expired] = field(default_factory=dict)
    """Parts that were summed without some workers."""
    abstained: control.Abstain | None = None
    statuses: dict[int, control.Status] = field(default_factory=dict)
    """What each shard said last of this round."""
    news: int = 0
    """How often a shard has said something new."""
    statistics: Statistics = field(default_factory=Statistics)
    """Where bytes are counted that are sent for it."""
    resent: bool = False
    """Whether some of it was sent more than once, so that it may still be queued when the result is there."""

    @classmethod
    def of(cls, codec: Codec, shape: Shape, round_id: int, rank: int, shards: int) -> Pending:
        """A round that begins now."""
        loop = asyncio.get_running_loop()
        spans = [codec.parts(math.prod(shape), shard, shards) for shard in range(shards)]
        return cls(round_id, rank, codec, shape, spans, loop.create_future(), loop.create_future())

    @property
    def stays_open(self) -> bool:
        """Whether the round is not over with its sum, because a second exchange may follow."""
        return not self.round_id & FOLLOW_UP and (self.codec.follows_up or not self._encodable)

    @property
    def _encodable(self) -> bool:
        return self.terms is None or self.terms.encodable

    @property
    def late(self) -> list[Span]:
        """Parts that do not have this worker's payload, of those that are here."""
        if self.overruled or self.abstained is not None:
            return [span for spans in self.spans for span in spans]
        return sorted(s for s, note in self.without.items() if self.rank in self._ranks(note))

    def _ranks(self, note: control.Expired) -> set[int]:
        return control.read_ranks(note.ranks, self.codec.workers)

    def concerns(self, shard: int) -> bool:
        """Whether a shard has anything to do with this round now."""
        return shard == 0 if self.terms is None or not self._encodable else bool(self.spans[shard])

    @property
    def progress(self) -> tuple[bool, int, int]:
        """Changes whenever something has happened that brings the result nearer."""
        return self.terms is not None, len(self.sums), self.news

    # What arrives

    def heard(self, shard: int, status: control.Status) -> None:
        """What a shard has of this worker's payload."""
        if self.statuses.get(shard) != status:
            self.statuses[shard] = status
            self.news += 1

    def agree(self, terms: Terms) -> None:
        """These are the joined terms."""
        if self.terms is not None:
            if self.terms.digest == terms.digest:
                return
            self.overruled = True  # the server was restarted, and others were faster
            self.parts.clear()
            self.sums.clear()
            self.without.clear()
        self.terms = terms
        if self.codec.agrees:
            self.agreement = [control.to_bytes(control.Agreed(frame.to_bytes(terms, round_id=self.round_id)))]
        if not self.agreed.done():
            self.agreed.set_result(terms)
        if not terms.encodable and not self.done.done():
            self.done.set_result(None)  # there is nothing to add

    def miss(self, note: control.Expired) -> None:
        """Who is missing from the sum that comes next."""
        self._ranks(note)  # raises, if there are no such workers
        if (note.lo, note.hi) not in self.sums:
            self.without[note.lo, note.hi] = note

    def forget_notes(self, shard: int) -> None:
        """A shard was started afresh: from sums that have not come, others may be missing now."""
        for span in self.spans[shard]:
            if span not in self.sums:
                self.without.pop(span, None)

    def receive(self, received: Frame) -> None:
        """A part of the sum. What cannot be used now is asked for again."""
        span = (received.lo, received.hi)
        if self.terms is None or span in self.sums or not any(span in spans for spans in self.spans):
            return
        missing = len(self._ranks(self.without[span])) if span in self.without else 0
        if received.count != self.codec.workers - missing:
            return  # who is missing comes before it
        try:
            self.sums[span] = received.sum(self.codec, self.terms)
        except MismatchError:
            return  # made under terms that are on their way
        if not self.done.done() and len(self.sums) == sum(map(len, self.spans)):
            self.done.set_result(None)

    def total(self) -> Sum:
        """The result, which knows what of it was summed without this worker."""
        total = self.codec.side_by_side(list(self.sums.values()))
        return replace(total, late=tuple(self.late)) if self.late else total

    def fail(self, error: Exception) -> None:
        for future in (self.agreed, self.done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits gets it; nobody need to

    # What is sent

    def upload(self, upload: Payload | Contribution) -> None:
        """Take what is to be sent part by part."""
        if self.overruled or self.terms is None or upload.terms.digest != self.terms.digest:
            self.overruled = True
            return
        for spans in self.spans:
            for lo, hi in spans:
                if (lo, hi) not in self.sums:
                    if isinstance(upload, Contribution):
                        self.parts[lo, hi] = upload.pieces(lo, hi)
                    else:
                        self.parts[lo, hi] = frame.buffers(upload.part(lo, hi))

    def everything(self) -> bytes:
        """The total as messages, for others who wait for it: `read_total` reads them."""
        terms = [self.agreement] if self.overruled else []
        parts = [*terms, *(pieces for shard in range(len(self.spans)) for pieces in self.results(shard))]
        return b"".join(piece for pieces in parts for piece in pieces)

    def results(self, shard: int) -> list[Pieces]:
        """What this worker has of the result, for a shard that has lost it."""
        mine = [span for span in self.spans[shard] if span in self.sums]
        notes = {span: [control.to_bytes(self.without[span])] for span in mine if span in self.without}
        return [[*notes.get(span, []), *frame.buffers(self.sums[span])] for span in mine]

    def messages(self, shard: int, arrived: frozenset[int] = frozenset()) -> list[Pieces]:
        """Everything for a shard that has only the payload's parts that begin at `arrived`."""
        if not self.concerns(shard):
            return []
        out: list[Pieces] = [self.agreement] if self.agreement else []
        if self.terms is None and self.proposal is not None:
            out.append(self.proposal)
        out += self.results(shard)
        here = [span for span in self.spans[shard] if span in self.parts and span not in self.sums]
        out += [self.parts[span] for span in here if span[0] not in arrived]
        if self.abstained is not None:
            out.append([control.to_bytes(self.abstained)])
        return out

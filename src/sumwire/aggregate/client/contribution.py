"""What a rack has of a round, as the server takes it, and the total as the server gives it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sumwire.codec.algebra import Addend, Span, Sum, Terms
from sumwire.errors import FrameError
from sumwire.wire import control
from sumwire.wire.control import CONTROL_SIZE, Control
from sumwire.wire.frame import Frame, buffers, parse, parse_header
from sumwire.wire.header import HEADER_SIZE

Pieces = list[bytes | memoryview]


@dataclass(frozen=True, eq=False)
class Contribution:
    """One sum of some workers' payloads; or the payloads, where floats are added in rank order."""

    parts: Sequence[Addend]
    ranks: Sequence[int]
    """The workers in it."""

    @property
    def terms(self) -> Terms:
        return self.parts[0].terms

    def pieces(self, lo: int, hi: int) -> Pieces:
        """Messages that contribute units lo..hi: who is in it goes before a sum, and after payloads."""
        codec, round_id = self.parts[0].codec, self.parts[0].round_id
        frames = [piece for part in self.parts for piece in buffers(part.part(lo, hi))]
        holds = control.to_bytes(control.Holds(round_id, lo, hi, control.write_ranks(self.ranks, codec.workers)))
        return [holds, *frames] if codec.adds_at_once else [*frames, holds]


def read_total(data: bytes | memoryview, terms: Terms, rank: int) -> Sum:
    """The sum in a server's messages; its `late` are the parts without this worker."""
    codec, sums, without, late = terms.codec, [], dict[Span, set[int]](), list[Span]()
    for message in _messages(memoryview(data)):
        match message:
            case Frame():
                span = (message.lo, message.hi)
                sums.append(message.sum(codec, terms))
                if rank in without.get(span, ()):
                    late.append(span)
            case control.Expired():
                without[message.lo, message.hi] = control.read_ranks(message.ranks, codec.workers)
            case control.Agreed():  # others than before: the server was restarted
                terms = parse(bytes(message.frame)).terms(codec, terms.shape)
            case _:
                raise FrameError(f"{message.word.name} is no part of a total")
    total = codec.side_by_side(sums)
    return replace(total, late=tuple(late)) if late else total


def _messages(data: memoryview) -> Iterator[Control | Frame]:
    while data:
        if data[: len(control.MAGIC)] == control.MAGIC:
            length = CONTROL_SIZE + control.read_length(data)
            yield control.read(data[:length])
        else:
            length = HEADER_SIZE + parse_header(data).length
            yield parse(bytes(data[:length]))  # in memory of its own, which kernels may read as words
        data = data[length:]

"""A job in one process, without sockets: workers, an aggregator, and messages in an order that is random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sumwire import Codec, Lattice, Sketch, Sparse
from sumwire.aggregate.protocol import HISTORY
from sumwire.aggregate.server.job_aggregator import JobAggregator
from sumwire.aggregate.server.options import Rules
from sumwire.aggregate.server.round import Send
from sumwire.wire import control
from sumwire.wire.control import CONTROL_SIZE
from sumwire.wire.frame import Frame, describe, parse, parse_header, to_bytes
from sumwire.wire.header import HEADER_SIZE
from sumwire.wire.limits import Kind

Span = tuple[int, int]


def codec_of(kind: str, workers: int) -> Codec:
    """Small ones, so that rounds are quick."""
    return {
        "lattice": lambda: Lattice(workers, 4, block=64),
        "narrow": lambda: Lattice(workers, 4, block=64, down_bits=3.5),
        "sparse": lambda: Sparse(workers, block=64),
        "sketch": lambda: Sketch(workers),
    }[kind]()


def tensor(rank: int, round_id: int, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Anybody can compute anybody's."""
    rng = np.random.default_rng([rank, round_id, size])
    return (rng.standard_normal(size) * (rng.random(size) < 0.3)).astype(np.float32)


def split(pieces: list[bytes | memoryview]) -> list[control.Control | Frame]:
    """The messages in what is sent."""
    data, out = b"".join(bytes(piece) for piece in pieces), []
    while data:
        if data[:4] == control.MAGIC:
            end = CONTROL_SIZE + control.read_length(data)
            out.append(control.read(data[:end]))
        else:
            end = HEADER_SIZE + parse_header(data[:HEADER_SIZE]).length
            out.append(parse(data[:end]))
        data = data[end:]
    return out


@dataclass
class Seen:
    """What one worker knows of one round."""

    terms: Any = None
    payload: Any = None
    sums: dict[Span, bytes] = field(default_factory=dict)
    without: dict[Span, control.Expired] = field(default_factory=dict)
    failed: control.Failed | None = None
    abstained: bool = False

    def over(self, spans: list[Span]) -> bool:
        return self.failed is not None or self.sums.keys() >= set(spans)


class World:
    """Workers that take part in rounds, and the aggregator that adds for them."""

    def __init__(self, rules: Rules, codec: Codec, size: int, rounds: int, rng: random.Random) -> None:
        self.rules, self.codec, self.size, self.rng, self.now = rules, codec, size, rng, 0.0
        self.rounds = range(rounds)
        self.spans = codec.parts(size, 0, 1)
        self.seen = {(rank, r): Seen() for rank in range(rules.workers) for r in self.rounds}
        self.mail: list[tuple[int, Any]] = []
        """Messages that are on their way to the aggregator, and from whom."""
        self.sent: dict[tuple[int, Span], set[int]] = {}
        """Whose payload of a part has reached an aggregator."""
        self.aggregator = self._aggregator()
        for rank in range(rules.workers):
            self.aggregator.greet(rank, 0, self.now)
            for r in self.rounds:
                self.begin(rank, r)

    def _aggregator(self) -> JobAggregator:
        aggregator = JobAggregator(self.rules)
        aggregator.learn(describe(self.codec))
        return aggregator

    # Workers

    def begin(self, rank: int, r: int) -> None:
        if not self.codec.agrees:
            self._encode(rank, r, self.codec.propose(tensor(rank, r, self.size)))
        else:
            self.mail.append((rank, to_bytes(self.codec.propose(tensor(rank, r, self.size)), round_id=r)))

    def _encode(self, rank: int, r: int, terms: Any) -> None:
        seen = self.seen[rank, r]
        seen.terms = terms
        if seen.abstained:
            return
        try:
            seen.payload = self.codec.encode(tensor(rank, r, self.size), terms, rank=rank, round_id=r)
        except ValueError:  # late, and larger than the terms: as a link does
            self.abstain(rank, r)
            return
        for lo, hi in self.spans:
            self.mail.append((rank, to_bytes(seen.payload.part(lo, hi))))

    def abstain(self, rank: int, r: int) -> None:
        self.seen[rank, r].abstained = True
        self.mail.append((rank, control.Abstain(r, "it does not feel like it")))

    def _receive(self, rank: int, message: control.Control | Frame) -> None:
        seen = self.seen[rank, message.round_id]
        if isinstance(message, control.Failed):
            seen.failed = message
        elif isinstance(message, control.Expired):
            seen.without[message.lo, message.hi] = message
        elif isinstance(message, Frame) and message.kind is Kind.TERMS:
            if seen.terms is None:
                self._encode(rank, message.round_id, message.terms(self.codec, (self.size,)))
            assert seen.terms == message.terms(self.codec, (self.size,))
        elif isinstance(message, Frame):
            self._check_sum(rank, seen, message)

    # The law

    def _check_sum(self, rank: int, seen: Seen, message: Frame) -> None:
        """It is the sum of exactly those workers that it says it is."""
        span, workers = (message.lo, message.hi), set(range(self.rules.workers))
        missing = control.read_ranks(seen.without[span].ranks) if span in seen.without else set()
        total = message.sum(self.codec, seen.terms)
        assert total.count == message.count == len(workers - missing)
        assert workers - missing <= self.sent[message.round_id, span], "somebody's payload was made up"
        payloads = []
        for who in sorted(workers - missing):
            x = tensor(who, message.round_id, self.size)
            whole = self.codec.encode(x, seen.terms, rank=who, round_id=message.round_id)
            payloads.append(whole.part(*span))
        mine = to_bytes(total)
        assert mine == to_bytes(self.codec.add(payloads).narrow())
        assert seen.sums.setdefault(span, mine) == mine, "one worker was given two sums"

    # Messages

    def step(self, *, duplicates: float = 0.2) -> None:
        """One message arrives, any of them; perhaps it will once more."""
        at = self.rng.randrange(len(self.mail))
        rank, message = self.mail[at]
        if self.rng.random() >= duplicates:
            self.mail.pop(at)
        self.hand_in(rank, message)

    def hand_in(self, rank: int, message: Any) -> None:
        if isinstance(message, bytes):
            frame = parse(message)
            if frame.kind is Kind.PAYLOAD:
                self.sent.setdefault((frame.round_id, (frame.lo, frame.hi)), set()).add(rank)
            sends = self.aggregator.frame(rank, frame, self.now)
        elif isinstance(message, control.Agreed):
            sends = self.aggregator.agreed(rank, parse(message.frame), self.now)
        elif isinstance(message, control.Expired):
            sends = self.aggregator.expired(rank, message)
        elif isinstance(message, control.Abstain):
            sends = self.aggregator.abstain(rank, message, self.now)
        else:
            sends = self.aggregator.ask(rank, message.round_id, self.now)
        self.deliver(sends)

    def deliver(self, sends: list[Send]) -> None:
        for send in sends:
            for message in split(send.pieces):
                for rank in send.ranks:
                    if hasattr(message, "round_id"):
                        self._receive(rank, message)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.deliver(self.aggregator.tick(self.now))

    def restart(self) -> None:
        """The server's memory is gone, and what was on its way; workers come back and tell it what they know."""
        self.aggregator, self.mail = self._aggregator(), []
        for rank in range(self.rules.workers):
            in_flight = [r for r in self.rounds if not self.seen[rank, r].over(self.spans)]
            self.deliver(self.aggregator.greet(rank, min(in_flight, default=len(self.rounds)), self.now, "before"))
        for (rank, r), seen in self.seen.items():
            if seen.failed is not None:
                continue
            if seen.terms is None:
                self.begin(rank, r)
                continue
            again: list[Any] = []
            if self.codec.agrees:
                again.append(control.Agreed(to_bytes(seen.terms, round_id=r)))
            for span, total in seen.sums.items():
                again += [seen.without[span]] if span in seen.without else []
                again.append(total)
            if not seen.over(self.spans) and seen.payload is not None:
                again += [to_bytes(seen.payload.part(*s)) for s in self.spans]
            if seen.abstained:
                again.append(control.Abstain(r, "it does not feel like it"))
            for message in again:  # of one worker they come in order
                self.hand_in(rank, message)

    def drain(self) -> None:
        """All that is on its way arrives; then time passes, until nothing is open any more."""
        for _ in range(100):
            while self.mail:
                self.step(duplicates=0)
            for (rank, r), seen in self.seen.items():
                if not seen.over(self.spans):
                    self.hand_in(rank, control.Ask(r))
            if not self.mail and not self.aggregator.open_rounds:
                break
            self.tick(self.rules.timeout / 3)
        assert not self.aggregator.open_rounds
        assert len(self.rounds) <= HISTORY

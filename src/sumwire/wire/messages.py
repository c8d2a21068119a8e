"""What worker and aggregator say to each other beside frames. `control` writes and reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias


class Word(IntEnum):
    """What a control message says."""

    HELLO = 1
    WELCOME = 2
    CODEC = 3
    AGREED = 4
    ABSTAIN = 5
    EXPIRED = 6
    FAILED = 7
    REFUSED = 8
    ASK = 9
    STATUS = 10
    MEASURED = 11
    WHICH = 12
    PING = 13
    PONG = 14
    HOLDS = 15


@dataclass(frozen=True)
class Hello:
    """A worker introduces itself; the first message on a connection."""

    word: ClassVar[Word] = Word.HELLO
    job: str
    token: str = field(repr=False)
    rank: int
    process: str
    """Chosen at random by each link: tells a link that comes back from another that claims the same rank."""
    workers: int
    position: int
    """The worker's oldest round in flight, or the next one; 0 if it has just begun."""
    known: str
    """The incarnation that welcomed it before, if any did."""
    span: int = 1
    """Ranks, from `rank` on, that it speaks for: 1 of a worker; more of a rack, which adds for its workers."""


@dataclass(frozen=True)
class Welcome:
    """The aggregator's answer."""

    word: ClassVar[Word] = Word.WELCOME
    incarnation: str
    """Of the job at this shard. Another one tells workers that what they sent before is forgotten."""
    shard: int
    shards: int
    quorum: int
    next_round: int
    """Where a worker that has just begun goes on: the oldest round in flight, or the one after all of them; 0 if there
    were none."""
    first_round: int
    """Where a job begins of which no shard has had a round. Random, so that nobody knows its random numbers ahead."""
    timeout: float
    """Seconds without an arrival after which the aggregator gives a round up."""
    scale_cap: float
    """How many times the median of workers' scales the joined ones may be; 0 if any."""


@dataclass(frozen=True)
class Describe:
    """Which codec a family's name stands for."""

    word: ClassVar[Word] = Word.CODEC
    family: str
    kind: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Abstain:
    """A worker will not send anything for this round."""

    word: ClassVar[Word] = Word.ABSTAIN
    round_id: int
    reason: str


@dataclass(frozen=True)
class Expired:
    """Blocks or shards lo..hi of the round were summed without these workers. Goes before every such sum."""

    word: ClassVar[Word] = Word.EXPIRED
    round_id: int
    lo: int
    hi: int
    ranks: str
    """As `write_ranks` gives them."""


@dataclass(frozen=True)
class Holds:
    """Which workers are in a rack's contribution to blocks or shards lo..hi. The rack goes on without its others.

    Goes before a contribution that is a sum, and after one that is payloads.
    """

    word: ClassVar[Word] = Word.HOLDS
    round_id: int
    lo: int
    hi: int
    ranks: str
    """As `write_ranks` gives them."""


@dataclass(frozen=True)
class Failed:
    """The round will have no result."""

    word: ClassVar[Word] = Word.FAILED
    round_id: int
    missing: list[int]
    reason: str
    next_round: int
    """Where the job is, for a worker that is behind; else 0."""


@dataclass(frozen=True)
class Ask:
    """What of this round is missing? Asked by a worker that has waited for long; passed on to those it waits for."""

    word: ClassVar[Word] = Word.ASK
    round_id: int


@dataclass(frozen=True)
class Status:
    """The answer: whether the worker's terms are here, and the first blocks or shards of its parts that are."""

    word: ClassVar[Word] = Word.STATUS
    round_id: int
    proposed: int
    """1 or 0."""
    arrived: list[int]
    messages: int
    """Terms and parts of payloads of all workers that are here: tells the worker that others are on their way."""


@dataclass(frozen=True)
class Measured:
    """What a worker found the error of its rounds to be; only shown, never acted upon."""

    word: ClassVar[Word] = Word.MEASURED
    nmse: float


@dataclass(frozen=True)
class Which:
    """A frame of this family came, which nobody has described: describe it, and send the frame again."""

    word: ClassVar[Word] = Word.WHICH
    family: str


@dataclass(frozen=True)
class Ping:
    """Are you there? Asked of a worker when another process claims its rank."""

    word: ClassVar[Word] = Word.PING


@dataclass(frozen=True)
class Pong:
    """The answer."""

    word: ClassVar[Word] = Word.PONG


@dataclass(frozen=True)
class Refused:
    """The connection ends here, and why."""

    word: ClassVar[Word] = Word.REFUSED
    reason: str


@dataclass(frozen=True)
class Agreed:
    """Terms that another shard has joined: a whole terms frame."""

    word: ClassVar[Word] = Word.AGREED
    frame: bytes | memoryview


Control: TypeAlias = (
    Hello
    | Welcome
    | Describe
    | Abstain
    | Expired
    | Holds
    | Failed
    | Ask
    | Status
    | Measured
    | Which
    | Ping
    | Pong
    | Refused
    | Agreed
)

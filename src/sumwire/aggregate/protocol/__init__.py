"""What client and server both know, neither of which imports the other: numbers of rounds, `tls`, `connection`."""

from __future__ import annotations

from sumwire.codec.algebra import FOLLOW_UP

HISTORY = 8
"""Rounds that a worker may have in flight. A server keeps the results of as many, so that nobody misses any."""


def place(round_id: int) -> int:
    """Where a round is in the order of rounds: a second exchange is where its first is.

    >>> place(7), place(7 | FOLLOW_UP)
    (7, 7)
    """
    return round_id & ~FOLLOW_UP


def name(round_id: int) -> str:
    """What a round is called in messages.

    >>> name(7), name(7 | FOLLOW_UP)
    ('round 7', 'the second exchange of round 7')
    """
    return f"the second exchange of round {place(round_id)}" if round_id & FOLLOW_UP else f"round {round_id}"

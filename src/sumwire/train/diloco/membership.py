"""Who is in: workers compare what they have after every outer step, and a newcomer takes it over.

Two joins and, where somebody needs it, a transfer. Each is idempotent, and every worker decides by the joined words
alone, also one that came too late for its own to be in them: so all decide alike.

    wish      a newcomer says that it is there; the others that they are
    compare   the digest of the outer state, whether a wish was heard, and how long the state is
    transfer  those whose digest is the agreed one offer the state, in chunks; everybody else takes it
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.base import Aggregator
from sumwire.codec.snapshot import NOTHING
from sumwire.errors import BehindError, MismatchError, RoundError
from sumwire.train.diloco.outer import DIGEST_WORDS
from sumwire.train.snapshots import join_words

CHUNK = 1 << 20
"""Words of a transfer that travel together: few enough that a slow link sends them before a server gives up."""
TRIES = 40
"""Joins of a chunk that may end before somebody who has it has come."""
PAUSE = 0.05
"""Seconds before the first repetition, doubled for each further one up to the longest."""
LONGEST_PAUSE = 60.0
APART = 1 << 60
"""Numbers of joins where an aggregator has no side channels: far from those of other rounds."""

Words = NDArray[np.int32]


@dataclass(frozen=True)
class Agreement:
    """What workers found when they compared: the same at all of them."""

    digest: Words
    equal: bool
    wish: bool
    size: int
    """Words of the state."""
    first: int
    """Number of the transfer's first join."""

    @property
    def transfer(self) -> bool:
        """Whether the state is sent now."""
        return self.wish or not self.equal


class Membership:
    """The joins of one worker, over side channels of its aggregator."""

    def __init__(self, aggregator: Aggregator, settings: int, *, elastic: bool, patience: float) -> None:
        self._channel = aggregator.side_channel("diloco")
        self._states = aggregator.side_channel("diloco-state")
        self._settings, self._elastic, self._patience = settings, elastic, patience
        # Wishes have even numbers, comparisons odd ones: so a newcomer can tell them apart.
        self._next = _even(self._channel.first_round) if aggregator.ascending else APART
        self._next_chunk = self._states.first_round if aggregator.ascending else 2 * APART

    @property
    def in_progress(self) -> bool:
        """Whether the others have begun without this worker."""
        if not self._elastic:
            return False
        # After a restart the server counts from another number, and the others may be below it.
        return not self._channel.first_round <= self._channel.upcoming <= self._next + 1

    # What a member does

    def compare(self, digest: Words, size: int) -> Agreement:
        """Compare with the others. Raises `BehindError` if they have gone on, or agree on something else."""
        number, self._next = self._next, self._next + 2
        wish = self._hear_wish(number) if self._elastic else False
        high, low = divmod(self._next_chunk, 1 << 31)
        mine = np.array([*digest, *-digest, self._settings, -self._settings, wish, size, high, low], np.int32)
        agreement = self._read(join_words(self._channel, mine, len(mine), number + 1)[0])
        if agreement.equal and not np.array_equal(agreement.digest, digest):
            raise BehindError("the other workers agree on other parameters than this one's")
        return agreement

    def _hear_wish(self, number: int) -> bool:
        try:
            joined, _ = join_words(self._channel, np.zeros(1, np.int32), 1, number)
        except BehindError:
            raise
        except RoundError:
            return True  # a newcomer began it and nobody else came in time: it is still there
        return bool(joined[0] > 0)

    def _read(self, joined: Words) -> Agreement:
        highest, negated = joined[:DIGEST_WORDS], joined[DIGEST_WORDS : 2 * DIGEST_WORDS]
        settings, negated_settings, wish, size, high, low = (int(word) for word in joined[2 * DIGEST_WORDS :])
        if settings != -negated_settings or settings != self._settings:
            raise MismatchError(
                "workers were given different options: every, fragments, delay, mix, buffers, bits and the codec's "
                "must be the same everywhere"
            )
        return Agreement(highest, bool(np.array_equal(highest, -negated)), wish > 0, size, (high << 31) + low)

    def offer(self, agreement: Agreement, mine: Words) -> None:
        """Send the state to those who need it."""
        self._transfer(agreement, lambda start, size: mine[start : start + size])

    def request(self, agreement: Agreement) -> Words:
        """The state, for a member that has another one."""
        return self._transfer(agreement, lambda _, size: np.full(size, NOTHING, np.int32), patient=True)

    def _transfer(
        self, agreement: Agreement, offered: Callable[[int, int], Words | None], *, patient: bool = False
    ) -> Words:
        self._next_chunk = agreement.first
        chunks = []
        for start in range(0, agreement.size, CHUNK):
            size = min(CHUNK, agreement.size - start)
            chunks.append(self._chunk(offered(start, size), size, patient))
        return np.concatenate(chunks)

    def _chunk(self, offered: Words | None, size: int, patient: bool) -> Words:
        for attempt in range(TRIES):
            if patient:  # those who have it send much, so they come later, and a quorum would not wait for them
                time.sleep(min(PAUSE * 2**attempt, LONGEST_PAUSE))
            number, self._next_chunk = self._next_chunk, self._next_chunk + 1
            joined, _ = join_words(self._states, offered, size, number)
            if bool((joined != NOTHING).any()):
                return joined
        raise RoundError(f"nobody offered the parameters in {TRIES} joins: have all workers that had them died?")

    # What a newcomer does

    def catch_up(self) -> tuple[Agreement, Words]:
        """Wait until the others compare, and take the state from them."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                agreement = self._knock()
                if agreement.transfer:
                    return agreement, self._transfer(agreement, lambda *_: None)
            except RoundError as error:
                if time.monotonic() > give_up:
                    raise RoundError(
                        f"no worker has sent parameters to a newcomer for {self._patience:g} s ({error}): are the "
                        "others running, and enough for the server's quorum without it?"
                    ) from error
                time.sleep(PAUSE)

    def _knock(self) -> Agreement:
        """Tell a wish, and hear how the comparison after it ends."""
        number = self._next = _even(self._channel.upcoming)
        try:
            join_words(self._channel, np.ones(1, np.int32), 1, number)
        except BehindError:
            raise
        except RoundError:
            pass  # alone for too long: whoever comes next hears of it nevertheless
        joined = self._listen(2 * DIGEST_WORDS + 6, number + 1)
        self._next = number + 2
        return self._read(joined)

    def _listen(self, size: int, number: int) -> Words:
        """The others' words; they may take many inner steps until they come."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                return join_words(self._channel, None, size, number)[0]
            except BehindError:
                raise
            except RoundError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(PAUSE)


def _even(number: int) -> int:
    return number + number % 2

"""Keeps the outer state equal at all workers: compares it after every outer step, and hands it to those who need it."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import BehindError, MismatchError, RoundError
from sumwire.train.diloco.exchange import Exchange
from sumwire.train.diloco.membership import Agreement, Membership
from sumwire.train.diloco.options import DiLoCoSettings
from sumwire.train.diloco.outer import Outer
from sumwire.train.diloco.site import Site
from sumwire.train.snapshots import header_of

_log = logging.getLogger(__name__)

COMPLETE = 1 << 30
"""In the first word of a digest: of two states, workers take the one that no exchange is missing from."""


class Synchronization:
    """Of one process; only a site's leader speaks to the others."""

    def __init__(
        self, outer: Outer, site: Site, exchange: Exchange | None, settings: DiLoCoSettings, workers: int
    ) -> None:
        self._outer, self._site, self._exchange = outer, site, exchange
        self._failed = False
        """Whether the last comparison failed."""
        self._membership: Membership | None = None
        if exchange is not None:
            self._membership = Membership(
                exchange.aggregator, settings.digest(workers), elastic=exchange.elastic, patience=settings.patience
            )

    def begin(self) -> int:
        """Begin with what all others have: the steps that they have done."""
        words = self._site.tell(self._first_words)
        return 0 if words is None else self._take(words)

    def _first_words(self) -> NDArray[np.int32] | None:
        assert self._membership is not None
        assert self._exchange is not None
        if self._membership.in_progress:
            return self._catch_up()
        try:
            return self._compare(0)
        except RoundError:
            if not self._exchange.elastic:
                raise
            return self._catch_up()  # the server was restarted, and others go on elsewhere

    def compare(self, steps: int, *, complete: bool, behind: bool) -> int:
        """After an outer step: the steps done, which are others' if this worker has missed some.

        `complete` says whether all its exchanges since the last time have ended well; `behind`, that the others have
        gone on without it.
        """
        words = self._site.tell(lambda: self._catch_up() if behind else self._compare(steps, complete))
        return steps if words is None else self._take(words)

    def _compare(self, steps: int, complete: bool = True) -> NDArray[np.int32] | None:
        """Another worker's state, if this one must take it."""
        assert self._membership is not None
        assert self._exchange is not None
        digest, progress = self._outer.digest(steps), self._progress(steps)
        digest[0] |= COMPLETE * complete
        try:
            agreement = self._membership.compare(digest, self._outer.packed_size(progress))
            if not agreement.transfer:
                self._failed = False
                return None
            if agreement.digest[0] == digest[0]:
                self._membership.offer(agreement, self._outer.packed(progress))
                return None
            _log.warning("Sumwire: outer parameters differ after step %d: this worker takes another's", steps)
            return self._verified(agreement, self._membership.request(agreement))
        except BehindError:
            return self._catch_up()
        except RoundError as error:
            if self._failed or not self._exchange.elastic or not steps:
                raise
            # The next comparison finds what this one would have found; but twice in a row, the server is gone.
            self._failed = True
            _log.warning("Sumwire: workers could not compare their states after step %d: %s", steps, error)
            return None

    def _catch_up(self) -> NDArray[np.int32]:
        assert self._membership is not None
        _log.info("Sumwire: others are ahead; this worker waits for their next outer step")
        return self._verified(*self._membership.catch_up())

    def _verified(self, agreement: Agreement, words: NDArray[np.int32]) -> NDArray[np.int32]:
        """Load it, and see that it is what the others have."""
        digest, theirs = self._outer.digest(self._take(words)), agreement.digest % COMPLETE
        if digest[0] != theirs[0] or (agreement.equal and not np.array_equal(digest, theirs)):
            raise MismatchError(
                "the parameters that arrived are not those that the others have: is this the same model, with the "
                "same outer optimizer?"
            )
        return words

    def _progress(self, steps: int) -> dict[str, int]:
        assert self._exchange is not None
        ids = self._exchange.ids
        return {"step": steps, "first_step": ids.first_step, "next_round": ids.next_round}

    def _take(self, words: NDArray[np.int32]) -> int:
        header = header_of(words)
        self._outer.take(words)
        if self._exchange is not None:
            ids = self._exchange.ids
            ids.first_step = int(header["first_step"])
            if self._exchange.elastic:
                ids.next_round = int(header["next_round"])
        return int(header["step"])

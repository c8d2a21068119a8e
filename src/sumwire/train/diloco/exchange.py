"""A fragment's exchange: its rounds, in the background, over whatever aggregator there is."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.group.group import FIRST_ROUNDS, Group
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.base import Codec
from sumwire.errors import ConfigError, RoundError
from sumwire.train.connection import Connection, connect_model
from sumwire.train.ddp.round import Part, RoundIds
from sumwire.train.diloco.options import DiLoCoSettings
from sumwire.train.diloco.outer import Fragment, Outer
from sumwire.train.rounds import TensorRound

_log = logging.getLogger(__name__)

_used: weakref.WeakSet[Aggregator] = weakref.WeakSet()
"""Links of users that a DiLoCo has counted rounds of its own on."""

Over = str | Aggregator | dist.ProcessGroup | None
"""What workers average over."""


class Outcome(IntEnum):
    """What became of an exchange."""

    FAILED = 0
    """There is no mean, at this worker at least: it goes on as if there had been no exchange."""
    DONE = 1
    BEHIND = 2
    """The others have gone on without this worker."""


class OuterRound(TensorRound):
    """A round whose worker, if it comes too late, does not send again: it goes on from the others' sum.

    Where rounds `may_skip`, one that fails does not end all that come after it.
    """

    keeps_late = False
    failed_with: RoundError | None = None

    def agree(self) -> None:
        self._unless_failed(super().agree)

    def add(self) -> None:
        self._unless_failed(super().add)

    def gather(self) -> None:
        self._unless_failed(super().gather)

    def _unless_failed(self, stage: Callable[[], None]) -> None:
        if self.failed_with is not None:
            return
        try:
            stage()
        except RoundError as error:
            if not self.may_skip:
                raise
            self.failed_with, self._mean = error, self.tensor.zero_()

    @property
    def outcome(self) -> Outcome:
        """Once it is over."""
        return Outcome.BEHIND if self.behind else Outcome.DONE if self.failed_with is None else Outcome.FAILED


@dataclass(eq=False)
class InFlight:
    """An exchange that has begun."""

    fragment: int
    futures: list[Future[Any]]
    rounds: list[OuterRound]
    statistics: Statistics
    began: float = field(default_factory=perf_counter)
    seconds: float | None = None
    """That it took, once it is done."""

    def wait(self) -> Outcome:
        """Until the fragment's flat buffer has the mean, or there is none."""
        for future in self.futures:
            future.result()
        if self.seconds is None:
            self.seconds = perf_counter() - self.began
        outcomes = {each.outcome for each in self.rounds}
        for each in self.rounds:
            if each.failed_with is not None:
                _log.warning("Sumwire: an exchange failed, and training goes on without it: %s", each.failed_with)
                break
        return next((each for each in (Outcome.BEHIND, Outcome.FAILED) if each in outcomes), Outcome.DONE)

    def note_time(self, _: Future[Any]) -> None:
        """Called when a round is done: how long all have taken."""
        if all(future.done() for future in self.futures):
            self.seconds = perf_counter() - self.began


class Exchange:
    """Averages fragments over the workers, each of which may be a site of several processes."""

    def __init__(self, over: Over, settings: DiLoCoSettings) -> None:
        self.connection = connect(over, settings)
        self.rounds, self.aggregator = self.connection.rounds, self.connection.rounds.aggregator
        self.codec: Codec | None = None if settings.exact else self.connection.codec
        self.elastic = self.aggregator.can_listen
        """Whether workers may come and go."""
        first_step = self.connection.first_step if settings.seed is None else 0
        self.ids = RoundIds(self.aggregator, first_step=first_step, next_round=self.connection.next_round)

    def begin(self, outer: Outer, number: int) -> InFlight:
        """Start averaging a fragment's pseudo-gradient; with the first one, buffers."""
        fragment = outer.fragments[number]
        self.ids.begin_step(outer.exchanges)
        exact = [fragment.flat[: fragment.exact]]
        if number == 0:
            exact.append(outer.buffer_flat)
        flight = InFlight(number, [], [], Statistics())
        for values in exact:
            if values.numel():
                self._submit(flight, values, None, self.ids.other(), Part.OTHER)
        self._submit_spans(flight, fragment)
        for future in flight.futures:
            future.add_done_callback(flight.note_time)
        return flight

    def _submit_spans(self, flight: InFlight, fragment: Fragment) -> None:
        for span in fragment.spans:
            values = fragment.flat[span.start : span.stop]
            pays = self.codec is not None and self.aggregator.pays(self.codec, values.numel())
            self._submit(flight, values, self.codec if pays else None, span.number, Part.SPAN, span.residual)

    def _submit(
        self, flight: InFlight, values: torch.Tensor, codec: Codec | None, number: int, part: Part, residual: Any = None
    ) -> None:
        job = OuterRound(
            self.aggregator,
            values,
            codec,
            round_id=self.ids.round(number, part),
            noise_id=self.ids.noise(number, part),
            statistics=flight.statistics,
            residual=None if codec is None else residual,
        )
        job.may_skip = self.elastic
        flight.rounds.append(job)
        flight.futures.append(self.rounds.submit(job))


def connect(over: Over, settings: DiLoCoSettings) -> Connection:
    """The workers' aggregator, and the codec as it takes it."""
    if not isinstance(over, Aggregator):
        group = over if not isinstance(over, str) else None
        if (settings.rank is None) and not dist.is_initialized():
            raise ConfigError(
                "there is no process group: call torch.distributed.init_process_group first, or pass an open link, or "
                '"host:port" of a server with rank=, workers= and job='
            )
        connection = connect_model(settings, group)
    else:
        codec = over.prepare(settings.choose(over.workers))
        if over in _used:
            raise ConfigError("this link has carried a DiLoCo before, whose rounds are over: open another one")
        if over.ascending:
            _used.add(over)
        first = over.session if isinstance(over, Group) else over.first_round
        upcoming = over.upcoming if over.ascending else 0
        connection = Connection(RoundsInFlight(over, lent=True), codec, first % FIRST_ROUNDS, upcoming)
    aggregator = connection.rounds.aggregator
    if aggregator.lossy:
        connection.end(0)
        raise ConfigError(
            'over a lossy link workers get different sums, and their parameters would drift apart: use loss="reliable"'
        )
    return connection

"""The four stages of a round, and the threads that run them. They know nothing of the collective that feeds them,
so that it can be garbage-collected while they wait for work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.group.consistency import agree
from sumwire.aggregate.pipeline import Pipeline
from sumwire.aggregate.probe import probe
from sumwire.aggregate.round import Round, Route
from sumwire.aggregate.slots import Slots
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import RoundError, SumwireError

UNDER_WAY = 4
"""Rounds that may hold memory at once: one per stage."""


class Stages:
    """join, exchange and share over a communicator each, then decode."""

    def __init__(
        self,
        codec: Lattice | Sparse,
        routes: Mapping[str, Route],
        wires: list[Wire],
        closed: Callable[[], None] | None,
    ) -> None:
        self._codec, self._routes, self._wires, self._closed = codec, routes, wires, closed
        self._slots = Slots(UNDER_WAY)
        stages = (self._join, self._exchange, self._share, self._decode)
        self._pipeline: Pipeline[Round] = Pipeline("sumwire", stages, self._blame)

    @property
    def error(self) -> BaseException | None:
        """What ended the pipeline, if anything did."""
        return self._pipeline.error

    @property
    def run_here(self) -> bool:
        """Whether the calling thread is one of these."""
        return self._pipeline.runs_here

    def submit(self, job: Round) -> None:
        self._pipeline.submit(job)

    def stop(self) -> None:
        """Take no more rounds."""
        self._pipeline.stop()

    def end(self, patience: float | None) -> None:
        """Finish the rounds under way, or give up on them after a while; then end all that was opened for them."""
        self._pipeline.close(patience)
        for wire in self._wires:
            wire.close()
        if self._closed is not None:
            self._closed()

    def _blame(self, job: Round, error: BaseException) -> BaseException:
        """What a collective says when a peer is gone, in words that help."""
        if isinstance(error, SumwireError) or not isinstance(error, RuntimeError):
            return error
        return RoundError(
            f"round {job.round_id} of {job.tensor.numel()} values failed at rank {self._wires[0].rank}: {error}. "
            "Probably another rank has died or hangs; no parameter was changed: restart from the last checkpoint"
        )

    def _join(self, job: Round) -> None:
        if job.settings is not None:
            agree(self._wires[0], job.settings)
        if job.ready is not None:
            job.ready.synchronize()
        if job.algorithm == "plain":
            return
        job.host = job.tensor.cpu()  # itself, where it is there already
        job.borrow(self._slots)
        if self.error is not None:
            raise self.error  # it may have come while we waited for the slot
        if job.algorithm == "probe":
            assert isinstance(self._codec, Lattice)
            probe(job, self._wires[0], self._codec)
        self._routes[job.algorithm].join(job, self._wires[0])

    def _exchange(self, job: Round) -> None:
        self._routes[job.algorithm].exchange(job, self._wires[1])

    def _share(self, job: Round) -> None:
        self._routes[job.algorithm].share(job, self._wires[2])

    def _decode(self, job: Round) -> None:
        self._routes[job.algorithm].decode(job)

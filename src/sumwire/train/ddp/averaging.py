"""From a bucket of gradients to rounds, and from their means back to the bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

from sumwire.aggregate.rounds import SettingsCheck
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.base import Codec
from sumwire.codec.rows.codec import Rows
from sumwire.errors import InputError
from sumwire.train.connection import Connection
from sumwire.train.ddp.exact import ExactValues, Piece, take_for_join
from sumwire.train.ddp.layout import Bucket, Layout, Span
from sumwire.train.ddp.round import GradientRound, Part, RoundIds
from sumwire.train.ddp.staging import Staging
from sumwire.train.dtypes import as_reals, check_dtypes, reals
from sumwire.train.options import Settings
from sumwire.train.rounds import TensorRound, settled, when_done

Averages = tuple[list[Future[Any]], Callable[[], torch.Tensor]]
"""Rounds, and what gives the bucket's means once they are done."""


SAMPLE = 1 << 21
"""Coordinates that a probe averages at most."""


class Mode(Enum):
    """How the gradients of a step are averaged."""

    EXACT = "exactly: the warm-up"
    COMPRESSED = "compressed"
    FALLEN_BACK = "exactly: compressing would take longer"


class Averager:
    """Averages the buckets of one step after another, each as several rounds in flight.

    It must not know the state, and rounds must not know it: torch hides what it holds from the garbage collector.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        layout: Layout,
        ids: RoundIds,
        names: MutableMapping[torch.Tensor, str],
    ) -> None:
        self.rounds, self.codec, self.layout, self.ids = connection.rounds, connection.codec, layout, ids
        self._names, self._settings = names, settings
        self.fell_behind = threading.Event()
        """Set by a round that the others have done without this rank."""
        if connection.behind:
            self.fell_behind.set()
        self._mode, self._step, self._statistics = Mode.EXACT, 0, Statistics()
        self._check: Mapping[str, object] | None = None
        self._exact = ExactValues()
        self._staging: Staging | None = None
        self._steps_seen = 0
        self._leftovers_sent = False  # after falling back: no residual holds anything any more
        self._keeps_sample = False
        self.sample: torch.Tensor | None = None
        """A copy of some gradients of the step, if asked for; None if there are too few to compress."""
        self._unfinished: list[torch.futures.Future[torch.Tensor]] = []
        self._errors: list[BaseException] = []

    def begin_step(
        self,
        step: int,
        mode: Mode,
        statistics: Statistics,
        *,
        check: Mapping[str, object] | None = None,
        keep_sample: bool = False,
    ) -> None:
        """What comes from now on belongs to this step. `check` is compared between ranks before anything else."""
        self._step, self._mode, self._statistics, self._check = step, mode, statistics, check
        self.ids.begin_step(step)
        self._exact = ExactValues()
        self._steps_seen += 1
        self._leftovers_sent = self._leftovers_sent and mode is Mode.FALLEN_BACK
        self._keeps_sample, self.sample = keep_sample, None
        self._unfinished, self._errors = [], []

    def average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The future of the bucket with its mean over the ranks."""
        buffer = bucket.buffer()
        if buffer.layout == torch.strided:
            futures, finish = self._average_flat(bucket, buffer)
        else:
            futures, finish = self._average_sparse(bucket, buffer)
        if bucket.is_last():
            futures = [*futures, *self._end_step()]
        future = settled(futures, finish, buffer.device, instead=buffer, failed=self._errors.append)
        self._unfinished.append(future)
        return future

    def _end_step(self) -> list[Future[Any]]:
        if self._staging is not None and self._mode is Mode.COMPRESSED:
            self._staging.check_complete()
        self.layout.end_step()
        self._leftovers_sent = self._mode is Mode.FALLEN_BACK
        return self._exact.average(self._submit_exact)

    def _submit_exact(self, values: torch.Tensor) -> Future[Any]:
        """A round of values that the rounds of their spans have counted already."""
        apart, statistics = Statistics(), self._statistics
        _, future = self.submit(values, None, apart)
        future.add_done_callback(lambda _: statistics.add_cost(apart))
        return future

    def wait(self) -> None:
        """Until all rounds of the step are done; raises what went wrong in one of them."""
        futures, errors = self._unfinished, self._errors
        self._unfinished, self._errors = [], []
        self._exact = ExactValues()  # whose futures keep the gradients that they have completed
        for future in futures:
            future.wait()
        if errors:
            raise errors[0]

    def forget(self) -> None:
        """Hold no gradients any more."""
        self._unfinished, self._exact, self._staging, self.sample = [], ExactValues(), None, None

    # Buckets

    def _average_sparse(self, bucket: GradBucket, buffer: torch.Tensor) -> Averages:
        """The one gradient of nn.Embedding(sparse=True), which DDP puts into a bucket of its own."""
        if not self._settings.takes_sparse:
            raise InputError(
                f'gradients of layout {buffer.layout} would not stay sparse in a lattice: attach with codec="sparse" '
                'or "auto", or use sparse=False'
            )
        rows = Rows(self.rounds.aggregator.workers)
        if not rows.accepts(buffer):
            dense, dims = buffer.to_dense(), buffer.sparse_dim()
            futures, _ = self._average_flat(bucket, dense.view(-1))
            return futures, lambda: dense.to_sparse(dims)
        # Without loss also in the warm-up: torch itself would send no less.
        _, future = self.submit(buffer, rows, self._statistics)
        return [future], future.result

    def _average_flat(self, bucket: GradBucket, buffer: torch.Tensor) -> Averages:
        flat = as_reals(buffer)
        gradients = self._gradients_of(bucket, flat)
        if self._keeps_sample:
            self._keep_sample(flat[:SAMPLE])
        if self._mode is not Mode.COMPRESSED:
            return self._average_exactly(gradients, flat), lambda: buffer
        known = self.layout.find(gradients, flat.dtype)
        if known is None and not self.layout.complete:
            known = self.layout.add(gradients, flat.dtype)
        if known is not None:
            return self._average_bucket(known, flat), lambda: buffer
        if self._staging is None:
            self._staging = Staging(self.layout.buckets, self._average_bucket)
        return self._staging.put(gradients), partial(_staged, self._staging, gradients, buffer)

    def _gradients_of(self, bucket: GradBucket, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        # Not bucket.gradients(): of complex parameters, whose buffer DDP hands over as reals, it has the wrong halves.
        parameters = bucket.parameters()
        sizes = [reals(parameter) for parameter in parameters]
        names = [self._names.setdefault(parameter, str(len(self._names))) for parameter in parameters]
        if sum(sizes) != flat.numel() or not flat.dtype.is_floating_point:
            check_dtypes(zip(names, parameters, strict=True))
            raise InputError(
                f"a bucket of {flat.numel()} {flat.dtype} values for parameters of {sum(sizes)}: this version of torch "
                "lays out buckets in a way that Sumwire does not know; use torch 2.6 to 2.13"
            )
        return dict(zip(names, torch.split(flat, sizes), strict=True))

    def _average_exactly(self, gradients: dict[str, torch.Tensor], flat: torch.Tensor) -> list[Future[Any]]:
        if self._mode is Mode.FALLEN_BACK:
            if not self._leftovers_sent:
                self.layout.take_leftovers(gradients)
        elif self._steps_seen > 1 and not self.layout.complete:
            # DDP rebuilds its buckets once, after the first step of a process.
            self.layout.add(gradients, flat.dtype)
        return [self.submit(flat, None, self._statistics)[1]]

    def _keep_sample(self, flat: torch.Tensor) -> None:
        """The longest there is."""
        longer = self.sample is None or flat.numel() > self.sample.numel()
        if longer and self.rounds.aggregator.pays(self.codec, flat.numel()):
            self.sample = flat.clone()

    # Rounds

    def _average_bucket(self, bucket: Bucket, flat: torch.Tensor) -> list[Future[Any]]:
        """All rounds of a bucket of the layout."""
        pieces: list[Piece] = []
        futures = [self._average_span(span, flat[span.start : span.stop], pieces) for span in bucket.spans]
        if not pieces:
            return futures
        done: Future[None] = Future()
        if not all(piece.by_join for piece in pieces):
            futures.append(self._exact.averaged)
        when_done(futures, done, partial(_put_back, pieces))
        return [done]

    def _average_span(self, span: Span, flat: torch.Tensor, pieces: list[Piece]) -> Future[Any]:
        aggregator, number = self.rounds.aggregator, span.number
        if not aggregator.pays(self.codec, flat.numel()):
            return self.submit(flat, None, self._statistics)[1]
        positions = None if span.exact is None else span.exact_on(flat.device)
        if positions is not None and flat.device.type != "cpu":
            # Before the round notes from when on the device has the whole tensor.
            pieces.append(self._exact.take(flat, positions))
            positions = None
        job = GradientRound(
            aggregator,
            span,
            flat,
            self.codec,
            round_id=self.ids.round(number, Part.SPAN),
            noise_id=self.ids.noise(number, Part.SPAN),
            statistics=self._statistics,
        )
        if positions is not None:
            pieces.append(self._take_exact(positions, flat, job))
        every = self._settings.sample_every
        if every > 0 and self._step % every == 0 and number == 0:
            job.sample_id = self.ids.round(number, Part.SAMPLE)
        return self._run(job)

    def _take_exact(self, positions: torch.Tensor, flat: torch.Tensor, job: GradientRound) -> Piece:
        if not job.takes_along(len(positions) * flat.itemsize):
            return self._exact.take(flat, positions)
        piece = take_for_join(flat, positions)
        job.along = piece.means
        return piece

    def submit(
        self, tensor: torch.Tensor, codec: Codec | None, statistics: Statistics
    ) -> tuple[TensorRound, Future[Any]]:
        """A round of something that is not in the layout, exactly if there is no codec; nothing is kept for later."""
        number = self.ids.other()
        job = TensorRound(
            self.rounds.aggregator,
            tensor,
            codec,
            round_id=self.ids.round(number, Part.OTHER),
            noise_id=self.ids.noise(number, Part.OTHER),
            statistics=statistics,
            residual=None if codec is None else codec.residual(),  # which aggregators want to see, if the codec has one
        )
        return job, self._run(job)

    def _run(self, job: TensorRound) -> Future[Any]:
        if self._check is not None:
            self.rounds.submit(SettingsCheck(self.rounds.aggregator, self._check))
            self._check = None
        job.may_skip = self._settings.resync is not None and self.rounds.aggregator.can_listen
        future = self.rounds.submit(job)
        future.add_done_callback(partial(_note_behind, job, self.fell_behind))
        return future


def _note_behind(job: TensorRound, fell_behind: threading.Event, done: Future[Any]) -> None:
    if job.behind:
        fell_behind.set()


def _put_back(pieces: list[Piece]) -> None:
    for piece in pieces:
        piece.put_back()


def _staged(staging: Staging, gradients: dict[str, torch.Tensor], buffer: torch.Tensor) -> torch.Tensor:
    staging.take(gradients)
    return buffer

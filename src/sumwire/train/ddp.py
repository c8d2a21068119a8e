"""DistributedDataParallel's gradients, averaged in compressed form: a communication hook and its state."""

import logging
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.utils.weak import WeakTensorKeyDictionary

from sumwire.aggregate.client import Link
from sumwire.aggregate.collective import Collective, promise
from sumwire.aggregate.group.cost import Algorithm
from sumwire.aggregate.meter import Meter
from sumwire.codec.base import Codec, whole_number
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import ConfigError, InputError, MismatchError, RoundError
from sumwire.train.dtypes import as_reals, check_dtypes, reals
from sumwire.train.layout import Bucket, Cutting, Span, describe, hash_of, restore
from sumwire.train.options import choose
from sumwire.train.remote import Remote
from sumwire.train.scalars import Log, logger, report, scalars
from sumwire.train.staging import Done, Staging
from sumwire.train.trial import Stopwatch, Trial

_log = logging.getLogger(__name__)

_FORMAT = 3

FIRST_STEPS = 1 << 32
"""First steps are below: enough that nobody can prepare gradients for one's random numbers."""


class State:
    """What the hook needs from step to step: codec, communicators, residuals, layout, figures.

    >>> from torch.nn.parallel import DistributedDataParallel               # doctest: +SKIP
    >>> model = DistributedDataParallel(net)                                # doctest: +SKIP
    >>> model.register_comm_hook(State(bits=4), hook)                       # doctest: +SKIP

    (`sumwire.train.attach(model, bits=4)` does the same, and names parameters in checkpoints.)

    Law: all ranks end every step with the same bits. NaN and Inf come out as from plain DDP. Cost: about
    b + w bits a coordinate on the wire; with feedback two more copies of the gradients in memory, and always
    about three spans. Options, all the same at every rank but for `log`:

    bits           bits a coordinate that a rank sends (default 4)
    total_bits     instead of bits: both directions together
    codec          "lattice" (default), "sparse" (lossless, for gradients that are mostly zeros), "auto" (whichever
                   is shorter, bucket by bucket, from their density), or a `Lattice` or `Sparse` of your own
    feedback       keep what was not sent for the next step (default: see docs/training.md)
    energy         of the codec
    seed           of the codec: makes runs repeatable (default: random numbers that nobody can know before, the same at
                   all ranks and kept in checkpoints)
    process_group  default: the whole world
    warmup         steps at first that are sent exactly; they also time the plain exchange
    fallback       if compressing takes longer than plain all-reduce, stop it (True) or only say so (False)
    exact_below    tensors of at most so many coordinates are sent exactly while that is cheap
    span           coordinates of a round at most, so that large buckets pipeline
    algorithm      "auto", or one by force: see `Collective`
    server         "host:port" of a parameter server that adds the payloads (docs/server.md), or an open `Link` to it
    job            its name at the server (default: one that nobody else has); a second model of the same process gets
                   "name#2"
    token, tls     as in `sumwire.connect`
    sample_every   every so many steps, the error of some coordinates is measured, and with codec="auto" the
                   density of all
    log            called as log(name, value, step) after each step, or a TensorBoard writer
    names          names of parameters, by which checkpoints know them
    """

    def __init__(
        self,
        bits: int | None = None,
        *,
        total_bits: int | None = None,
        codec: str | Codec | None = None,
        feedback: bool | None = None,
        energy: float | None = None,
        seed: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        warmup: int = 2,
        fallback: bool = True,
        exact_below: int = 1024,
        span: int = 1 << 23,
        algorithm: Literal["auto"] | Algorithm = "auto",
        server: str | Link | None = None,
        job: str | None = None,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        sample_every: int = 100,
        log: Any = None,
        names: Mapping[torch.Tensor, str] | None = None,
    ) -> None:
        for name, value, least in (
            ("warmup", warmup, 0),
            ("exact_below", exact_below, 0),
            ("span", span, 1 << 12),
            ("sample_every", sample_every, 0),
        ):
            if whole_number(name, value) < least:
                raise ConfigError(f"{name}={value} is less than {least}")
        self._options: dict[str, Any] = {
            "bits": bits, "total_bits": total_bits, "codec": codec, "feedback": feedback, "energy": energy, "seed": seed
        }  # fmt: skip
        choice = choose(2, **self._options)  # so that a bad option fails here, not in the first backward
        if choice.algorithm is not None and algorithm != "auto":
            raise ConfigError(f"algorithm={algorithm!r} and codec={codec!r} were both given: either decides alone")
        if server is not None and (algorithm != "auto" or choice.algorithm is not None):
            raise ConfigError("a server decides how payloads are added: leave out algorithm, and name the codec")
        self._unknown = choice.algorithm
        self._remote = Remote(server, job, token, tls)
        # Where steps begin to count for random numbers: agreed between the ranks, unless runs are to be repeatable.
        self._first_step: int | None = None if seed is None else 0
        self._page: Link | None = None  # of the rank that tells the server the errors
        self._sent = 0  # rounds of this step that a server was sent
        self._lossless = isinstance(choice.codec, Sparse)
        self._group = process_group
        self._warmup = warmup
        self._fallback = fallback
        self._exact_below = exact_below
        self._span = span
        self._algorithm = algorithm
        self._sample_every = sample_every
        self._log: Log | None = logger(log)
        # Weak: a state that is kept, for its figures or its checkpoint, must not keep parameters and gradients.
        self._names: MutableMapping[torch.Tensor, str] = WeakTensorKeyDictionary()
        self._names.update(names or {})
        self._collective: Collective | None = None
        self._closed = False
        self._model: weakref.ref[torch.nn.Module] | None = None  # with which communicators end
        self._cutting: Cutting | None = None
        self._buckets: list[Bucket] = []
        self._complete = False
        self._staging: Staging | None = None
        self._loaded: dict[str, Any] = {}
        self._pays = True
        self._flushed = False  # after falling back: no residual holds anything any more
        self._trial = Trial(done=algorithm == "plain")
        self._verdict: torch.Tensor | None = None  # the figures it rests on: after the step, the ranks' mean
        self._settings: dict[str, Any] | None = None  # what the first round must find agreed
        self._ran_before = False
        self._ran: bool | None = None  # whether the last step of this process was compressed; None before the first
        self._stopwatch = Stopwatch()
        self.step = 0
        """Steps done: backward passes that synchronised gradients."""
        self.meter = Meter()
        """Figures of the step under way, or of the last one."""

    # What users call

    @property
    def codec(self) -> Lattice | Sparse:
        """The codec in use; with "auto", the one for buckets that are not sparse."""
        return self.start().codec

    @property
    def takes_sparse(self) -> bool:
        """Whether gradients of nn.Embedding(sparse=True) can be averaged: a lattice would make them dense."""
        return self._lossless or self._unknown is not None

    @property
    def ways(self) -> list[tuple[int, str, float]]:
        """What codec="auto" has picked: values, algorithm and density of each round of a step, as far as known."""
        spans = (span for bucket in self._buckets for span in bucket.spans)
        return [(s.stop - s.start, s.way, s.density) for s in spans if s.way is not None and s.density is not None]

    @property
    def compressing(self) -> bool:
        """Whether the next step is compressed: not in the warm-up, nor after falling back."""
        return self._pays and self.step >= self._warmup

    def start(self) -> Collective:
        """Build codec and communicators, unless they are there. All ranks must come here together."""
        if self._collective is None:
            parent = self._group if self._group is not None else dist.group.WORLD
            codec, feedback, _ = choose(dist.get_world_size(parent), **self._options)
            settings = {
                "warmup": self._warmup, "fallback": self._fallback, "exact_below": self._exact_below,
                "span": self._span, "sample_every": self._sample_every, "feedback": feedback, "probe": self._unknown,
            }  # fmt: skip
            block = codec.block if isinstance(codec, Lattice) else 1
            self._cutting = Cutting(codec, feedback, self._span // block * block or block, self._exact_below)
            opened = ExitStack()
            try:
                self._collective = Collective(
                    codec,
                    parent,
                    algorithm=self._algorithm,
                    settings=settings,
                    link=self._remote.link(opened),
                    closed=opened.close,
                )
            except BaseException:
                opened.close()
                raise
            self._page = self._collective.link if self._collective.rank == 0 else None
            if self._first_step is None:
                self._first_step = self._collective.session % FIRST_STEPS
            model = self._model() if self._model is not None else None
            if model is not None:
                self._collective.end_with(model)
            if self._loaded:
                self._restore(self._loaded)
        return self._collective

    def end_with(self, model: torch.nn.Module) -> None:
        """Close, without logging the last step, when this model is garbage-collected; as when the state itself is."""
        self._model = weakref.ref(model)
        if self._collective is not None:
            self._collective.end_with(model)

    def close(self, timeout: float | None = None) -> None:
        """Log the last step, end threads, communicators and a link that was opened here; wait so long at most.

        A closed state cannot average before `reopen`, but its figures and its `state_dict` stay.
        """
        if self._collective is not None and not self._closed:
            self._log_step()
            self._closed = True
        if self._collective is not None:
            self._collective.close(timeout)

    def reopen(self) -> None:
        """Go on after `close`, where it ended. All ranks must come here together."""
        if self._closed:
            self._collective, self._closed = None, False
            self.start()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs. Residuals are this rank's own: save it at every rank."""
        if self._collective is None:
            return dict(self._loaded)
        return {
            "format": _FORMAT,
            "family": self._collective.codec.family,
            "rank": self._collective.rank,
            "step": self.step,
            "first_step": self._first_step,
            "pays": self._pays,
            "trial": asdict(self._trial),
            "buckets": describe(self._buckets) if self._complete else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of this rank, before the first step."""
        if self._ran is not None:
            raise ConfigError(f"a state that has done {self.step} steps cannot load another: build a new one")
        known = {"format", "family", "rank", "step", "first_step", "pays", "trial", "buckets"}
        if state and (set(state) != known or state["format"] != _FORMAT):
            raise ConfigError(f"not a DDP state of format {_FORMAT}: it has keys {sorted(state)}")
        self._loaded = dict(state)
        if self._collective is not None and self._loaded:
            self._restore(self._loaded)

    def _restore(self, state: dict[str, Any]) -> None:
        assert self._collective is not None
        assert self._cutting is not None
        codec, rank = self._collective.codec, self._collective.rank
        if state["family"] != codec.family:
            raise MismatchError(
                f"the state was saved with codec family {state['family']}, this one has {codec.family}: use the "
                "options and the number of ranks that it was saved with"
            )
        if state["rank"] != rank:
            raise MismatchError(
                f"the state was saved by rank {state['rank']}, this is rank {rank}: load each rank's own"
            )
        self._buckets = restore(self._cutting, state["buckets"])
        if not self._collective.has_all_to_all:
            for span in (span for bucket in self._buckets for span in bucket.spans):
                span.way = None  # it was picked on a process group that could do more
        self._complete = bool(self._buckets)
        self.step, self._pays = int(state["step"]), bool(state["pays"])
        self._first_step = int(state["first_step"])
        self._trial = Trial(**state["trial"])
        self._loaded = {}

    # What the hook calls

    def average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The future of the bucket with its mean over the ranks."""
        collective = self.start()
        if collective.error is not None:
            raise RoundError(f"this state is unusable since an earlier error: {collective.error}")
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            return self._average_sparse(bucket, buffer)
        return self._average_flat(bucket, buffer)

    def _average_sparse(self, bucket: GradBucket, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The one gradient of nn.Embedding(sparse=True), which DDP puts into a bucket of its own."""
        if not self.takes_sparse:
            raise InputError(
                f'gradients of layout {buffer.layout} would not stay sparse in a lattice: attach with codec="sparse" '
                'or "auto", or use sparse=False'
            )
        if not self.start().takes_rows(buffer):
            dense, dims = buffer.to_dense(), buffer.sparse_dim()
            return self._average_flat(bucket, dense.view(-1)).then(lambda settled: _sparse(settled, dense, dims))
        kept: list[torch.Tensor] = []

        def start(done: Done) -> None:
            # Without loss also in the warm-up: torch's own way would send no less.
            self._round(done, buffer, round_id=0, keep=kept.append)

        return self._take(bucket, start, kept).then(lambda settled: settled.value()[0])

    def _average_flat(self, bucket: GradBucket, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        flat = as_reals(buffer)
        # Not bucket.gradients(): of complex parameters, whose buffer DDP hands over as reals, it has the wrong halves.
        sizes = [reals(parameter) for parameter in bucket.parameters()]
        if sum(sizes) != flat.numel() or not flat.dtype.is_floating_point:
            check_dtypes((name, p) for name, p in zip(self._names_of(bucket), bucket.parameters(), strict=True))
            raise InputError(
                f"a bucket of {flat.numel()} {flat.dtype} values for parameters of {sum(sizes)}: this version of torch "
                "lays out buckets in a way that Sumwire does not know; use torch 2.6 to 2.13"
            )
        gradients = list(torch.split(flat, sizes))
        return self._take(bucket, lambda done: self._submit(bucket, flat, gradients, done), buffer)

    def _take(self, bucket: GradBucket, start: Callable[[Done], None], value: Any) -> torch.futures.Future[Any]:
        """Start a bucket's rounds, at its place in the step; a future of `value` once they are done."""
        if bucket.index() == 0:
            self._begin_step()
        ranks = self.start().ranks
        asking = bucket.is_last() and self._trial.complete and not self._trial.done and ranks > 1

        def begin(done: Done) -> None:
            done = _after(2, done) if asking else done
            start(done)
            if asking:
                # An ordinary round beside the bucket's own: nobody waits for it, and all have it before the next step.
                self._verdict = torch.tensor(self._trial.figures())
                self._round(done, self._verdict, round_id=0, algorithm="plain", meter=Meter())

        future = promise(begin, value)
        if bucket.is_last():
            self._end_step()
        return future

    def _submit(self, bucket: GradBucket, buffer: torch.Tensor, gradients: list[torch.Tensor], done: Done) -> None:
        assert self._collective is not None
        names = self._names_of(bucket)
        if not self.compressing:
            if not self._pays and not self._flushed:
                self._flush(names, gradients, last=bucket.is_last())
            # DDP rebuilds its buckets once, after the first step of a process.
            if self._ran_before and self._pays and not self._complete:
                self._add_bucket(names, gradients, buffer.dtype)
            self._round(done, buffer, round_id=0, algorithm="plain")
            return
        known = next((each for each in self._buckets if each.names == names and each.dtype == buffer.dtype), None)
        if known is None and not self._complete:
            known = self._add_bucket(names, gradients, buffer.dtype)
        if known is not None:
            self._average(known, buffer, done)
            return
        if self._staging is None:
            self._staging = Staging(self._buckets, self._average)
        self._staging.put(dict(zip(names, gradients, strict=True)), done)

    def _flush(self, names: tuple[str, ...], gradients: list[torch.Tensor], *, last: bool) -> None:
        """After falling back, what residuals still hold goes out with the next gradient."""
        for name, gradient in zip(names, gradients, strict=True):
            for home in self._buckets:
                if name in home.starts:
                    home.take_leftover(name, gradient)
        self._flushed = last

    def _names_of(self, bucket: GradBucket) -> tuple[str, ...]:
        return tuple(self._names.setdefault(p, str(len(self._names))) for p in bucket.parameters())

    def _add_bucket(self, names: tuple[str, ...], gradients: list[torch.Tensor], dtype: torch.dtype) -> Bucket:
        assert self._cutting is not None
        sizes = [gradient.numel() for gradient in gradients]
        first = sum(len(each.spans) for each in self._buckets)
        self._buckets.append(self._cutting.bucket(names, sizes, dtype, first))
        return self._buckets[-1]

    def _average(self, bucket: Bucket, flat: torch.Tensor, done: Done) -> None:
        """All rounds of a bucket of the layout."""
        if not bucket.spans:
            done(None)  # it holds no values
            return
        sampled = self._sample_every > 0 and self.step % self._sample_every == 0
        all_done = _after(len(bucket.spans), done)
        for span in bucket.spans:
            self._round(
                all_done,
                flat[span.start : span.stop],
                round_id=self._round_id(span),
                residual=span.residual,
                exact=span.exact,
                sampled=sampled and span.number == 0,
                **self._way_of(span),
            )

    def _round_id(self, span: Span) -> int:
        assert self._first_step is not None
        return (self._first_step + self.step) << 24 | self._number_of(span)

    def _number_of(self, span: Span) -> int:
        """A round's number within its step: its place, whatever the order in which DDP hands buckets over.

        A server wants rounds in ascending order, which is the same unless a checkpoint has another layout.
        """
        if self._remote.server is None:
            return span.number
        self._sent += 1
        return self._sent - 1

    def _way_of(self, span: Span) -> dict[str, Any]:
        """Which way a round goes: as it was picked, unless it is time to measure densities."""
        again = self._sample_every > 0 and self.step % self._sample_every == 0
        if self._unknown is None:
            return {}  # the collective chooses, whatever a checkpoint of another setting has picked
        if span.way is not None and not again:
            return {"algorithm": span.way}

        def picked(way: Algorithm, density: float) -> None:
            assert self._collective is not None
            if way != span.way and self._collective.rank == 0:
                values = span.stop - span.start
                _log.info("round %d, %d values: density %.2g %%, goes %s", span.number, values, 100 * density, way)
            span.way, span.density = way, density

        return {"algorithm": self._unknown, "picked": picked}

    def _round(self, done: Done, flat: torch.Tensor, **options: Any) -> None:
        assert self._collective is not None
        stopwatch = self._stopwatch
        stopwatch.start()

        def finished(error: BaseException | None) -> None:
            stopwatch.stop()
            done(error)

        settings, self._settings = self._settings, None
        options.setdefault("meter", self.meter)
        self._collective.submit(flat, done=finished, settings=settings, **options)

    # Between steps

    def _begin_step(self) -> None:
        if self._ran is None:
            # States that do not belong together would issue other rounds, or turn the same ones another way.
            names = [bucket.names for bucket in self._buckets]
            ways = [[span.way for span in bucket.spans] for bucket in self._buckets]
            self._settings = {
                "step": self.step, "first step": self._first_step, "compressing": self.compressing,
                "buckets": hash_of(names), "ways": hash_of(ways),
            }  # fmt: skip
        else:
            self._log_step()
            self._trial.record(self._stopwatch.seconds, self.meter, coded=self._ran)
        if self._verdict is not None:
            self._judge(self._verdict)
            self._verdict = None
        self._ran_before = self._ran is not None
        self._ran, self._sent = self.compressing, 0
        self._stopwatch = Stopwatch()
        self.meter = Meter()

    def _log_step(self) -> None:
        if self._ran is None:
            return
        if self._log is not None:
            for name, value in scalars(self.meter).items():
                self._log(name, value, self.step - 1)
        if self._page is not None:
            report(self.meter, self._page)

    def _end_step(self) -> None:
        if self._staging is not None and self.compressing:
            self._staging.check_complete()
        self._complete = bool(self._buckets)
        self.step += 1

    def _judge(self, figures: torch.Tensor) -> None:
        assert self._collective is not None
        pays, sentence = self._trial.verdict(*figures.tolist())
        if not pays and self._fallback:
            self._pays = False
            sentence += "; falling back to plain all-reduce (fallback=False goes on)"
        if self._collective.rank == 0:
            _log.log(logging.INFO if pays else logging.WARNING, "%s", sentence)


def _after(count: int, done: Done) -> Done:
    """A callback that calls `done` once: at the first error, or when called `count` times."""
    left, lock = [count], threading.Lock()
    failed: list[BaseException] = []

    def one(error: BaseException | None) -> None:
        with lock:
            left[0] = left[0] - 1 if error is None else -1
            last = left[0] == 0
            first_error = error is not None and not failed
            failed.extend([error] if error else [])
        if first_error or last:
            done(error)

    return one


def _sparse(settled: torch.futures.Future[Any], dense: torch.Tensor, dims: int) -> torch.Tensor:
    settled.value()  # raises what went wrong
    return dense.to_sparse(dims)


def hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook: `model.register_comm_hook(State(bits=4), hook)`."""
    return state.average(bucket)

"""What `attach` returns for DDP: it lives as long as the model, and is what a checkpoint holds."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.utils.weak import WeakTensorKeyDictionary

from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.lifetime import Lifetime
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.base import Codec
from sumwire.errors import ConfigError, RoundError, SumwireError
from sumwire.train.attached import Attached
from sumwire.train.checkpoint import check_format, keeps_residuals, mismatch
from sumwire.train.connection import Connection, connect_model
from sumwire.train.ddp.averaging import Averager, Mode
from sumwire.train.ddp.layout import Cutting, Layout, holds_residuals, layout_problem
from sumwire.train.ddp.round import RoundIds
from sumwire.train.ddp.verdict import Verdict, measure
from sumwire.train.dtypes import trained_sizes
from sumwire.train.options import DDPOptions, Settings
from sumwire.train.rounds import call_after_backward

_FORMAT = 5
_KEYS = frozenset({"format", "codec", "rank", "step", "first_step", "buckets"})


class DDPState(Attached):
    """What the hook needs from step to step: codec, aggregator, residuals, layout, statistics.

    Law: all ranks end every step with the same bits. NaN and Inf come out as from plain DDP. Cost: about
    b + w bits per coordinate on the wire; with feedback two more copies of the gradients in memory, and always
    about three spans.

    Parameters
    ----------
    bits
        Bits per coordinate that a rank sends (default 4).
    process_group
        Default: the whole world.
    names
        Names of parameters, by which checkpoints know them.
    options
        See `DDPOptions`.

    Examples
    --------
    >>> from torch.nn.parallel import DistributedDataParallel               # doctest: +SKIP
    >>> model = DistributedDataParallel(net)                                # doctest: +SKIP
    >>> model.register_comm_hook(DDPState(bits=4), hook)                    # doctest: +SKIP

    (`sumwire.train.attach(model, bits=4)` does the same, and names parameters in checkpoints.)
    """

    def __init__(
        self,
        bits: int | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        names: Mapping[torch.Tensor, str] | None = None,
        **options: Unpack[DDPOptions],
    ) -> None:
        self.settings = Settings(bits=bits, **options)
        super().__init__(self.settings.log)
        self._group = process_group
        # Weak: a state that is kept, for its statistics or its checkpoint, must not keep parameters and gradients.
        self._names: MutableMapping[torch.Tensor, str] = WeakTensorKeyDictionary()
        self._names.update(names or {})
        self._connection: Connection | None = None
        self._averager: Averager | None = None
        self._layout: Layout | None = None
        # Where steps begin to count for random numbers: agreed between the ranks, unless runs are to be repeatable.
        self._first_step: int | None = None if self.settings.seed is None else 0
        self._model: weakref.ref[torch.nn.Module] | None = None  # with which communicators end
        self._loaded: dict[str, Any] = {}
        self._strict = True
        self._verdict = Verdict()
        self._steps_here = 0  # of this process

    # What users call

    @property
    def codec(self) -> Codec:
        """The codec in use."""
        return self.start().codec

    @property
    def compressing(self) -> bool:
        """Whether the next step is compressed: not in the warm-up, nor after falling back."""
        return self._mode is Mode.COMPRESSED

    @property
    def _mode(self) -> Mode:
        if self.step < self.settings.warmup:
            return Mode.EXACT
        return Mode.COMPRESSED if self._verdict.pays else Mode.FALLEN_BACK

    def start(self) -> Averager:
        """Build codec and aggregator, unless they are there. All ranks must come here together."""
        if self._averager is None:
            device = next((parameter.device for parameter in self._names), None)
            connection = self._connection = connect_model(self.settings, self._group, device)
            self._lifetime = Lifetime(self, connection.end, "sumwire-end")
            self._averager = self._average_over(connection)
            model = self._model() if self._model is not None else None
            if model is not None:
                self._lifetime.follow(model)
            if self._loaded:
                self._restore(self._averager)
        return self._averager

    def _average_over(self, connection: Connection) -> Averager:
        settings, codec = self.settings, connection.codec
        if self._layout is None:
            block = codec.alignment
            span = settings.span // block * block or block
            self._layout = Layout(Cutting(codec, span, settings.exact_below))
        if self._first_step is None:
            self._first_step = connection.first_step
        ids = RoundIds(connection.rounds.aggregator, first_step=self._first_step, next_round=connection.next_round)
        return Averager(connection, settings, self._layout, ids, self._names)

    def end_with(self, model: torch.nn.Module) -> None:
        """Close, without logging the last step, when this model is garbage-collected; as when the state itself is."""
        self._model = weakref.ref(model)
        if self._lifetime is not None:
            self._lifetime.follow(model)

    def close(self, timeout: float | None = None) -> None:
        if self._connection is None:
            return
        if self._averager is not None:
            self._averager.forget()
        self._connection.rounds.stop()
        super().close(0 if self._connection.rounds.runs_here else timeout)

    def reopen(self) -> None:
        """Go on after `close`, where it ended. All ranks must come here together."""
        if self._closed:
            self._averager, self._closed = None, False
            self.start()

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        if self._averager is None:
            return dict(self._loaded)
        return {
            "format": _FORMAT,
            "codec": self._averager.codec.description(),
            "rank": self._averager.rounds.aggregator.rank,
            "step": self.step,
            "first_step": self._averager.ids.first_step,
            "buckets": self._averager.layout.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        if self._steps_here:
            raise ConfigError(f"a state that has done {self.step} steps cannot load another: attach anew")
        if state:
            check_format(state, _KEYS, _FORMAT, "DDP")
        self._loaded, self._strict = dict(state), strict
        if self._averager is not None and self._loaded:
            self._restore(self._averager)

    def _restore(self, averager: Averager) -> None:
        state, layout = self._loaded, self._loaded["buckets"]
        model = self._model() if self._model is not None else None
        unfit = layout_problem(layout, trained_sizes(self._names, model)) if self._names else None
        kept = keeps_residuals(
            mismatch(state["codec"], averager.codec) or unfit,
            state["rank"],
            averager.rounds.aggregator.rank,
            strict=self._strict,
            has_any=holds_residuals(layout),
        )
        averager.layout.load_state_dict([] if unfit else layout, residuals=kept)
        self.step = int(state["step"])
        self._first_step = averager.ids.first_step = int(state["first_step"])
        self._loaded = {}

    # What the hook calls

    def average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The future of the bucket with its mean over the ranks."""
        if self._closed:
            raise RoundError("this state is closed: attach again, on all ranks together, to go on")
        averager = self.start()
        error = averager.rounds.error
        if error is not None:
            raise RoundError(f"this state is unusable since an earlier error: {error}")
        if bucket.index() == 0:
            self._begin_step(averager)
        future = averager.average(bucket)
        if bucket.is_last():
            # Not earlier: a checkpointed module runs backward passes within the backward pass, which end before it.
            finish = partial(self._finish_step, averager, self.step)
            self.step += 1
            self._steps_here += 1
            if not call_after_backward(finish):
                finish()  # a rank without inputs, which only shadows the others (`Join`)
        return future

    def _begin_step(self, averager: Averager) -> None:
        check = None
        if self._steps_here == 0:
            # States that do not belong together would issue other rounds, or turn the same ones another way.
            check = {
                "step": self.step, "first step": averager.ids.first_step, "compressing": self.compressing,
                "buckets": averager.layout.digest(),
            }  # fmt: skip
        else:
            self._log_step()
        self.statistics = Statistics()
        may_fall_back = self.settings.fallback and averager.rounds.aggregator.workers > 1
        measured = may_fall_back and self._mode is not Mode.EXACT and self._verdict.due(self.step)
        averager.begin_step(self.step, self._mode, self.statistics, check=check, keep_sample=measured)

    def _finish_step(self, averager: Averager, step: int) -> None:
        """At the end of the backward pass, where waiting costs nothing: DDP will only wait, too."""
        sample, averager.sample = averager.sample, None
        try:
            averager.wait()
            if sample is not None:
                self._measure(averager, sample, step)
        except Exception as error:
            # The rounds keep their error: with its traceback, it would keep whatever calls this.
            ours = copy.copy(error) if isinstance(error, SumwireError) else RoundError(str(error))
            # After DDP has finished its own work, so that it stays usable.
            if not call_after_backward(partial(_raise, ours)):
                raise ours from None

    def _measure(self, averager: Averager, sample: torch.Tensor, step: int) -> None:
        aggregator = averager.rounds.aggregator
        figures = measure(sample, averager.codec, averager.submit, partial(aggregator.pays, averager.codec))
        if averager.fell_behind.is_set():
            return  # this rank's rounds were skipped; the others will tell it
        if figures is None:
            self._verdict.postpone(step)
        else:
            self._verdict.judge(figures, step, say=aggregator.rank == 0)

    def _log_step(self) -> None:
        super()._log_step()
        nmse = self.statistics.nmse
        if self._averager is not None and nmse is not None and math.isfinite(nmse):
            aggregator = self._averager.rounds.aggregator
            if aggregator.rank == 0:
                aggregator.report(nmse=nmse)

    # Where ranks fall behind

    @property
    def behind(self) -> bool:
        """Whether the others have gone on without this rank: it takes part again after the next resync."""
        return self.start().fell_behind.is_set()

    @behind.setter
    def behind(self, value: bool) -> None:
        event = self.start().fell_behind
        (event.set if value else event.clear)()

    def side_channel(self, name: str) -> Aggregator:
        """The same ranks with rounds of their own."""
        return self.start().rounds.aggregator.side_channel(name)

    def progress(self) -> dict[str, Any]:
        """What a rank that comes back must know beside the parameters: plain values, the same at all others."""
        averager = self.start()
        return {
            "step": self.step,
            "first_step": averager.ids.first_step,
            "next_round": averager.ids.next_round,
            "pays": self._verdict.pays,
            "measured_at": self._verdict.measured_at,
            "buckets": averager.layout.state_dict(residuals=False),
        }

    def resume(self, progress: dict[str, Any]) -> None:
        """Go on where the others are."""
        averager = self.start()
        self.step = int(progress["step"])
        self._first_step = averager.ids.first_step = int(progress["first_step"])
        averager.ids.next_round = int(progress["next_round"])
        self._verdict.pays, self._verdict.measured_at = progress["pays"], progress["measured_at"]
        if not averager.layout.complete:
            averager.layout.load_state_dict(progress["buckets"])
        self.behind = False


def _raise(error: SumwireError) -> None:
    raise error

"""transformers: a callback that compresses the gradients of a `Trainer` under DDP.

>>> from transformers import Trainer                                              # doctest: +SKIP
>>> from sumwire.train.huggingface import SumwireTrainerCallback                  # doctest: +SKIP
>>> trainer = Trainer(model, args, callbacks=[SumwireTrainerCallback(4)])         # doctest: +SKIP
>>> trainer.train()                                                               # doctest: +SKIP

Accelerate alone needs no callback: `attach(accelerator.prepare(model), bits=4)`.
"""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError
from sumwire.train import DDPState, attach
from sumwire.train.ddp.attachment import attachment_of
from sumwire.train.scalars import scalars

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler
except ImportError:
    raise ImportError(
        "sumwire.train.huggingface needs transformers' Trainer: pip install transformers accelerate"
    ) from None

_log = logging.getLogger(__name__)


class SumwireTrainerCallback(TrainerCallback):
    """Averages gradients in compressed form: `SumwireTrainerCallback(bits=4, **options)`, with `attach`'s options.

    With one process there is nothing to compress; FSDP and DeepSpeed are refused.

    Every rank writes its state as `sumwire-rank-N.pt` into the trainer's checkpoints and finds it there when
    training resumes. A checkpoint outside of `output_dir` must be named in
    `TrainingArguments(resume_from_checkpoint=...)` too: the trainer does not tell callbacks where it resumes from.
    Resuming without these files, or with another number of ranks, starts afresh; with other options, without what
    residuals held.

    log=True adds each step's figures (`sumwire/bits_per_value`, ...) of rank 0 to what the trainer logs and reports.

    Threads and communicators end with the training. The trainer tells callbacks nothing of an exception: then they end
    with its model.
    """

    def __init__(self, bits: int | None = None, *, log: Any = None, **options: Any) -> None:
        self._log_figures = log is True
        options["log"] = None if isinstance(log, bool) else log
        DDPState(bits, **options)  # so that a bad option fails here, not when training starts
        self.state: DDPState | None = None
        """Of the training in progress, or of the last one; None where there was nothing to compress."""
        self._bits = bits
        self._options = options

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.world_size == 1:
            _log.info("one process: no gradients to exchange, nothing to compress")
            return
        if self._log_figures:
            self._come_first()
        wrapper = _wrapper_of(kwargs["model"])
        attachment = attachment_of(wrapper)
        again = self.state is not None and attachment is not None and attachment.state is self.state
        if again and self.state is not None and state.global_step == 0:
            self.state.reopen()  # train() was called again, and the trainer kept its wrapper
            return
        self.state = attach(wrapper, self._bits, **self._options)
        if state.global_step > 0:
            self._resume(args, state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.state is not None:
            self.state.close()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        # Only what is logged of training, not of evaluation or at the end.
        if self._log_figures and self.state is not None and logs is not None and "loss" in logs:
            figures = scalars(self.state.statistics)
            logs.update(figures)
            state.log_history[-1].update(figures)

    def _come_first(self) -> None:
        """Before the callbacks that report what is logged. The trainer hands none of them its list of callbacks."""
        for handler in gc.get_objects():
            if type(handler) is CallbackHandler and self in handler.callbacks:
                handler.callbacks.remove(self)
                handler.callbacks.insert(0, self)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        path = _path(args, state.global_step)
        # The trainer has made the folder at every rank; where it has not (hyperparameter search), it is elsewhere.
        if self.state is None or args.save_only_model or not path.parent.is_dir():
            return
        partial = path.with_suffix(".partial")
        torch.save({"ranks": args.world_size, "state": self.state.state_dict()}, partial)
        os.replace(partial, path)

    def _resume(self, args: TrainingArguments, step: int) -> None:
        assert self.state is not None
        path = _path(args, step)
        if args.resume_from_checkpoint and Path(args.resume_from_checkpoint).is_dir():
            path = Path(args.resume_from_checkpoint, path.name)
        saved = torch.load(path, weights_only=True) if path.exists() else {}
        found: list[Any] = [None] * args.world_size
        dist.all_gather_object(found, saved.get("ranks"))
        # One without a state would send other rounds than the rest: all ranks load theirs, or none does.
        if found == [args.world_size] * args.world_size:
            self.state.load_state_dict(saved["state"], strict=False)
        elif args.process_index == 0:
            _log.warning(
                "training resumes at step %d but %s is not there for all of %d ranks: compression starts afresh. "
                "A checkpoint elsewhere must be named in TrainingArguments(resume_from_checkpoint=...) too",
                step, path, args.world_size,
            )  # fmt: skip


def _path(args: TrainingArguments, step: int) -> Path:
    return Path(str(args.output_dir), f"checkpoint-{step}", f"sumwire-rank-{args.process_index}.pt")


def _wrapper_of(model: torch.nn.Module) -> DistributedDataParallel:
    """The DDP around a model.

    The trainer hands its callbacks the bare model, and with torch_compile its `model_wrapped` is no DDP either, so
    we look for the wrapper ourselves. Wrappers with a hook are of an earlier train().
    """
    gc.collect()
    # type, not isinstance: some lazy modules import themselves when asked for their class.
    found: list[Any] = [o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel)]
    wrappers = [wrapper for wrapper in found if wrapper.module is model]
    wrappers.sort(key=lambda wrapper: len(wrapper._comm_hooks))
    if not wrappers:
        raise ConfigError(
            "SumwireTrainerCallback found no DistributedDataParallel around the model: it cannot compress what FSDP or "
            "DeepSpeed sends; train under plain torchrun, or remove the callback"
        )
    wrapper: DistributedDataParallel = wrappers[0]
    return wrapper

"""Lightning: a callback that compresses the gradients of its DDP strategy.

>>> from lightning.pytorch import Trainer                                        # doctest: +SKIP
>>> from sumwire.train.lightning import SumwireCallback                          # doctest: +SKIP
>>> trainer = Trainer(strategy="ddp", devices=2, callbacks=[SumwireCallback(4)]) # doctest: +SKIP
>>> trainer.fit(module, data)                                                    # doctest: +SKIP
"""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumwire.errors import ConfigError
from sumwire.train import DDPState, attach
from sumwire.train.scalars import scalars
from sumwire.train.wrappers import find

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]
    except ImportError:
        raise ImportError("sumwire.train.lightning needs Lightning: pip install lightning") from None

_log = logging.getLogger(__name__)

_KEY = "sumwire"
"""Where a checkpoint holds the states, a list by rank."""


class SumwireCallback(Callback):
    """Averages gradients in compressed form: `SumwireCallback(bits=4, **options)`, the options those of `attach`.

    It registers the hook itself because `DDPStrategy(ddp_comm_hook=...)` silently skips hooks on CPUs.
    With one process there is nothing to compress; other strategies than DDP are refused.

    log=True logs each step's figures (`sumwire/bits_per_value`, ...) of rank 0 through the module's loggers.

    Checkpoints hold all ranks' states: Lightning writes them at rank 0, so the others send theirs there. With
    feedback=True that is one more copy of the model per rank. Resuming with other options goes on without what
    residuals held; with another number of ranks it starts afresh, and so does a checkpoint that was written because
    of an exception, when other ranks may be gone.
    """

    def __init__(self, bits: int | None = None, *, log: bool = False, **options: Any) -> None:
        DDPState(bits, **options)  # so that a bad option fails here, not when the fit starts
        self.state: DDPState | None = None
        """Of the fit in progress, or of the last one; None where there was nothing to compress."""
        self._bits = bits
        self._log_figures = log
        self._options = options
        self._loaded: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loaded, self._loaded, self.state = self._loaded, None, None
        if trainer.world_size == 1:
            _log.info("one process: no gradients to exchange, nothing to compress")
            return
        try:
            model = find(trainer.strategy.model)
        except ConfigError:
            model = None
        if not isinstance(model, DistributedDataParallel):
            raise ConfigError(
                f"SumwireCallback cannot compress what {type(trainer.strategy).__name__} sends: "
                'use Trainer(strategy="ddp"), or remove the callback'
            )
        self.state = attach(model, self._bits, **self._options)
        if loaded is not None:
            self.state.load_state_dict(loaded, strict=False)  # or other bits could not resume

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self._log_figures and self.state is not None:
            pl_module.log_dict(scalars(self.state.statistics), rank_zero_only=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.state is not None:
            self.state.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.state is not None:
            self.state.close(timeout=0)  # not waiting for rounds that other ranks may have left

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning comes here at every rank, unless one of them failed: then nobody may wait for the others.
        if self.state is None or trainer.interrupted:
            return
        states: list[Any] | None = [None] * trainer.world_size if trainer.is_global_zero else None
        dist.gather_object(self.state.state_dict(), states)
        if states is not None:
            checkpoint[_KEY] = states

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            return
        states = checkpoint.get(_KEY, [])
        if len(states) == trainer.world_size:
            self._loaded = states[trainer.global_rank]
        elif trainer.is_global_zero and trainer.world_size > 1:
            _log.warning(
                "the checkpoint holds states of %d ranks and this job has %d: compression starts afresh",
                len(states), trainer.world_size,
            )  # fmt: skip

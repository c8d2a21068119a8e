"""What the states of DDP and FSDP2 have in common: a step count, statistics, and an end."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

from sumwire.aggregate.lifetime import Lifetime
from sumwire.aggregate.statistics import Statistics
from sumwire.train.scalars import logger, scalars

_log = logging.getLogger(__name__)


class Attached(ABC):
    """What `attach` returns: statistics, and what belongs in every rank's checkpoint.

    Threads and communicators end with `close`, or when the model is garbage-collected.
    """

    def __init__(self, log: Any) -> None:
        self._log = logger(log)
        self._closed = False
        self._lifetime: Lifetime | None = None
        self.step = 0
        """Steps done: backward passes that synchronized gradients."""
        self.statistics = Statistics()
        """Of the step in progress, or of the last one."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs. Residuals are this rank's own: save it at every rank."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Go on from a `state_dict`, before the first step.

        Parameters
        ----------
        state
            Of this rank. Another rank's will do as well, but for its residuals: they are dropped, with a warning.
        strict
            False drops, with a warning, what does not fit this codec, number of ranks or model, instead of raising
            `MismatchError`.
        """

    def close(self, timeout: float | None = None) -> None:
        """Log the last step, end threads and communicators; wait `timeout` seconds for that at most.

        A closed state cannot average any more, but its statistics and its `state_dict` stay.
        """
        if not self._closed:
            self._closed = True
            self._log_step()
        if self._lifetime is not None:
            self._lifetime.close(timeout)

    def give_way(self) -> None:
        """Close, because the model is attached again."""
        _log.warning("Sumwire: this model was already attached; the previous state is closed, and new options apply")
        self.close()

    def _log_step(self) -> None:
        if self._log is None or not self.statistics.values:
            return
        try:
            for name, value in scalars(self.statistics).items():
                self._log(name, value, self.step - 1)
        except Exception:  # or this rank would leave the others waiting, for a chart
            _log.warning("the `log` that was passed to attach failed; it is not called again", exc_info=True)
            self._log = None


class Idle(Attached):
    """What `attach` returns where there is one process: nothing is exchanged, nothing is kept."""

    compressing = False
    behind = False

    def __init__(self) -> None:
        super().__init__(None)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Accepts what several processes have saved: one needs none of it."""

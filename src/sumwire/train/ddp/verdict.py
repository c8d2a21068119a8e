"""Does compressing pay on this link? Measured now and then, decided by all ranks alike.

A probe averages a copy of some gradients exactly and compressed, in turn, and nothing else meanwhile. It touches no
gradient and no residual, so training depends on the verdict alone, not on when it is reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from sumwire.aggregate.cost_model import break_even
from sumwire.aggregate.statistics import Statistics
from sumwire.codec.base import Codec
from sumwire.train.rounds import TensorRound

_log = logging.getLogger(__name__)

EVERY = 1000
"""Steps from one measurement to the next."""
AGAIN = 10
"""Steps after which to try again, where gradients could not be compressed."""
REPEATS = 2
"""Of each exchange; the quicker counts, as others interfere."""
PIECES = 4
"""Rounds of an exchange at most: those of a step overlap, too."""
MARGIN = 0.05
"""By how much the other exchange must be faster for the mind to change: times vary."""

Submit = Callable[[torch.Tensor, Codec | None, Statistics], tuple[TensorRound, Future[Any]]]
"""Averages a tensor in place, exactly if there is no codec."""


@dataclass(frozen=True)
class Figures:
    """What a probe measured: the ranks' mean."""

    values: int
    plain: float
    """Seconds of the exact exchange."""
    coded: float
    """Seconds of the compressed one."""
    plain_bits: float
    """That a rank sends."""
    break_even: float
    """Bits per second."""

    def sentence(self) -> str:
        """With the times and rates."""
        rate = self.plain_bits / self.plain if self.plain else float("inf")
        return (
            f"{self.values:,} gradients take {1e3 * self.coded:.1f} ms compressed, {1e3 * self.plain:.1f} ms without "
            f"(at {rate / 1e9:.2g} Gbit/s; break-even at about {self.break_even / 1e9:.2g} Gbit/s)"
        )


def measure(gradients: torch.Tensor, codec: Codec, submit: Submit, pays: Callable[[int], bool]) -> Figures | None:
    """Time both exchanges; None if these gradients cannot be compressed. All ranks come here together.

    `pays` says whether a round of a number of coordinates is worth compressing at all.
    """
    # Rounds of a step overlap; but none is so short that it would not be compressed.
    count = next((count for count in (PIECES, PIECES // 2) if pays(gradients.numel() // count)), 1)
    seconds: dict[bool, float] = {}
    costs = {False: Statistics(), True: Statistics()}
    # The first exchange of each kind waits for the slowest rank and touches fresh memory: it is not timed.
    for timed in range(REPEATS + 1):
        for coded in (False, True):
            cost, pieces = Statistics(), gradients.clone().chunk(count)
            start = perf_counter()
            rounds = [submit(piece, codec if coded else None, cost) for piece in pieces]
            for _, future in rounds:
                future.result()
            elapsed = perf_counter() - start
            if any(probe.behind for probe, _ in rounds) or (coded and any(probe.exact for probe, _ in rounds)):
                return None  # left behind by the others; or NaN or Inf at some rank, which is the same at all
            if timed and elapsed < seconds.get(coded, float("inf")):
                seconds[coded], costs[coded] = elapsed, cost
    codec_seconds = sum(value for kind, value in costs[True].seconds.items() if kind != "exchange")
    means = torch.tensor([seconds[False], seconds[True], codec_seconds])
    submit(means, None, Statistics())[1].result()
    plain, compressed, codec_seconds = means.tolist()
    plain_bits, coded_bits = (8.0 * costs[coded].sent for coded in (False, True))
    limit = max(0.0, break_even(plain_bits - coded_bits, codec_seconds))
    return Figures(gradients.numel(), plain, compressed, plain_bits, limit)


class Verdict:
    """Whether to compress: yes, until measured otherwise. It belongs to a run, on its links, not to a checkpoint."""

    def __init__(self) -> None:
        self.pays = True
        """Whether gradients are compressed."""
        self.measured_at: int | None = None
        """The step of the last measurement."""
        self._said: bool | None = None

    def due(self, step: int) -> bool:
        """Whether to measure in this step; the same at all ranks."""
        return self.measured_at is None or step >= self.measured_at + EVERY

    def postpone(self, step: int) -> None:
        """Nothing could be measured: some gradient was NaN or Inf."""
        self.measured_at = step + AGAIN - EVERY

    def judge(self, figures: Figures, step: int, *, say: bool) -> None:
        """Change the mind, in whichever direction, and say so once."""
        # Nothing that only this rank knows may decide: a rank that came back has said nothing yet.
        faster = figures.coded <= figures.plain * (1 + MARGIN if self.pays else 1 - MARGIN)
        self.measured_at = step
        self.pays = faster
        if say and faster != self._said:
            # The good news is news only after bad news.
            level = logging.INFO if faster and self._said is None else logging.WARNING
            _log.log(level, "Sumwire: %s: %s%s", self._finding(faster), figures.sentence(), self._remedy(faster))
        self._said = faster

    def _finding(self, faster: bool) -> str:
        if faster:
            again = " now, so gradients are compressed again" if self._said is False else ""
            return f"compression pays here{again}"
        return "compression does not pay here, so gradients are sent uncompressed from the next step"

    def _remedy(self, faster: bool) -> str:
        if faster:
            return ""
        return f". It is measured again every {EVERY} steps; attach(..., fallback=False) always compresses"

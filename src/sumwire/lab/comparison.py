"""Data of a comparison of training methods: the settings that ranks receive, and the evaluations that they report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What every rank needs to run the same comparison."""

    workload: str
    methods: tuple[str, ...]
    steps: int
    every: int
    """Steps between evaluations."""
    seed: int
    interface: str | None
    """The interface whose counters measure the bytes sent; None: bytes are calculated."""

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Settings:
        fields = json.loads(text)
        return cls(**fields | {"methods": tuple(fields["methods"])})


@dataclass(frozen=True)
class Point:
    """One evaluation: training steps, training seconds and bytes sent per rank so far, and the scores."""

    step: int
    seconds: float
    sent: float
    accuracy: float
    loss: float


@dataclass
class Run:
    """The training run of one method, evaluation by evaluation."""

    method: str
    points: list[Point] = field(default_factory=list)
    identical: bool | None = None
    """Whether all ranks ended with bit-identical weights; None while the run is in progress."""

    def score(self, metric: str) -> list[float]:
        return [getattr(point, metric) for point in self.points]

    def reached(self, metric: str, target: float) -> Point | None:
        """The first evaluation of a trained model that meets the target."""
        sign = 1 if metric == "accuracy" else -1
        trained = zip(self.points[1:], self.score(metric)[1:], strict=True)
        return next((point for point, score in trained if sign * score >= sign * target), None)

    @property
    def step_seconds(self) -> float:
        """Median over the intervals between evaluations, which ignores slow first steps."""
        return self._median("seconds")

    @property
    def step_bytes(self) -> float:
        return self._median("sent")

    def _median(self, name: str) -> float:
        return median(float(getattr(b, name) - getattr(a, name)) / (b.step - a.step) for a, b in pairwise(self.points))


def record(runs: dict[str, Run], line: dict[str, Any]) -> Run:
    """Add what a rank reported to its method's run."""
    run = runs.setdefault(line["method"], Run(line["method"]))
    if "identical" in line:
        run.identical = line["identical"]
    else:
        run.points.append(Point(**{key: value for key, value in line.items() if key != "method"}))
    return run

"""A contest in figures: what its ranks are told, and what they tell."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from sumwire.errors import ConfigError
from sumwire.lab.links import MAX_RATE, MIN_RATE, format_rate

_UNITS = {"m": 1e6, "g": 1e9}


def parse_rate(text: str) -> float | None:
    """Bit/s; None for links as they are.

    >>> parse_rate("100Mbit"), parse_rate("2.5Gbit"), parse_rate("unshaped")
    (100000000.0, 2500000000.0, None)
    """
    if text == "unshaped":
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([mg])bit(?:/s)?", text.lower())
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        limits = f"from {format_rate(MIN_RATE)} to {format_rate(MAX_RATE)}"
        raise ConfigError(f"{text!r} is not a rate: write 100Mbit, 1Gbit, 10Gbit ({limits}) or unshaped")
    return rate


@dataclass(frozen=True)
class Plan:
    """What all ranks must know to run the same contest."""

    workload: str
    methods: tuple[str, ...]
    steps: int
    every: int
    seed: int
    interface: str | None
    """Whose counters tell the bytes; None: they are calculated."""

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Plan:
        fields = json.loads(text)
        return cls(**fields | {"methods": tuple(fields["methods"])})


@dataclass(frozen=True)
class Point:
    """An evaluation: after so many steps and so many seconds of training, with so many bytes sent by each rank."""

    step: int
    seconds: float
    sent: float
    accuracy: float
    loss: float


@dataclass
class Run:
    """One method's way, evaluation by evaluation."""

    method: str
    points: list[Point] = field(default_factory=list)
    identical: bool | None = None
    """Whether all ranks ended with the same bits; None: it has not ended."""

    def score(self, metric: str) -> list[float]:
        return [getattr(point, metric) for point in self.points]

    def reached(self, metric: str, target: float) -> Point | None:
        """The first evaluation of a trained model at the target or past it."""
        sign = 1 if metric == "accuracy" else -1
        trained = zip(self.points[1:], self.score(metric)[1:], strict=True)
        return next((point for point, score in trained if sign * score >= sign * target), None)

    @property
    def step_seconds(self) -> float:
        """Median over the stretches between evaluations, so without the slow first steps."""
        return self._median("seconds")

    @property
    def step_bytes(self) -> float:
        return self._median("sent")

    def _median(self, name: str) -> float:
        return median(float(getattr(b, name) - getattr(a, name)) / (b.step - a.step) for a, b in pairwise(self.points))


def add(runs: dict[str, Run], line: dict[str, Any]) -> Run:
    """Note what a rank reported."""
    run = runs.setdefault(line["method"], Run(line["method"]))
    if "identical" in line:
        run.identical = line["identical"]
    else:
        run.points.append(Point(**{key: value for key, value in line.items() if key != "method"}))
    return run

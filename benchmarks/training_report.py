"""Settings that benchmarks.training compares, and its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

Run = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One setting of the codec; bits=None is fp32."""

    bits: int | None = None
    energy: float = 0.0
    feedback: bool = False
    even: bool = False
    """A uniform table, as `attach` uses; its sums are 2 bits narrower."""

    def __str__(self) -> str:
        bits = f"{self.bits}{', even' if self.even else ''}"
        return f"{bits} | {self.energy:g} | {'on' if self.feedback else 'off'}" if self.bits else "fp32 | |"


SETTINGS = [
    Setting(),
    *(Setting(b, e, ef) for b, ef, e in product((2, 3, 4), (False, True), (0.0, 0.5, 1.0))),
    *(Setting(b, e, even=True) for b, e in product((2, 3, 4), (0.5, 1.0))),
]


METRICS = {
    "path": ("loss over all steps", 4), "train": ("training loss", 4), "test": ("test loss", 4),
    "accuracy": ("test accuracy %", 2),
}  # fmt: skip


def _paired(ours: Sequence[Run], theirs: Sequence[Run]) -> list[str]:
    """Mean difference of every metric, with its standard error."""
    cells = []
    for metric, (_, digits) in METRICS.items():
        d = np.array([a[metric] - b[metric] for a, b in zip(ours, theirs, strict=True)])
        cells.append(f"{d.mean():+.{digits}f} ± {d.std(ddof=1) / math.sqrt(len(d)):.{digits}f}")
    return cells


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|" + "---|" * " | ".join(head).count("|") + "---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


def tables(runs: Sequence[Run]) -> None:
    for model in dict.fromkeys(run["model"] for run in runs):
        by: dict[str, list[Run]] = {}
        for run in sorted((r for r in runs if r["model"] == model), key=lambda r: int(r["seed"])):
            by.setdefault(run["setting"], []).append(run)
        titles, setting = [title for title, _ in METRICS.values()], "bits | energy | feedback"
        spread = [
            [str(s), *(f"{np.mean(v):.{d}f} ± {np.std(v, ddof=1):.{d}f}" for v, d in _columns(by[str(s)]))]
            for s in SETTINGS
        ]
        _table(f"{model}: mean and standard deviation of {len(by[str(Setting())])} seeds", [setting, *titles], spread)
        less = [[str(s), *_paired(by[str(s)], by[str(Setting())])] for s in SETTINGS[1:]]
        _table(f"{model}: difference from fp32 with the same seed, and standard error", [setting, *titles], less)
        choices = [[f"{a} | {b}", *_paired(by[str(a)], by[str(b)])] for a, b in _choices()]
        _table(
            f"{model}: difference between two settings, and standard error",
            [setting, "minus " + setting, *titles],
            choices,
        )
        head = ["up", "down", "NMSE", "layers: median", "worst", "sum over steps: median", "worst", "residual"]
        errors = [[str(s), *_errors(by[str(s)])] for s in SETTINGS[1:]]
        _table(f"{model}: bits per coordinate (plus 0.0625 for terms) and error of the mean", [setting, *head], errors)


def _columns(runs: Sequence[Run]) -> list[tuple[list[float], int]]:
    return [([run[metric] for run in runs], digits) for metric, (_, digits) in METRICS.items()]


def _choices() -> list[tuple[Setting, Setting]]:
    """Pairs of settings that differ in one option: energy or 0, feedback or none, uniform or optimal table."""
    coded = SETTINGS[1:]
    energy = [(s, replace(s, energy=0.0)) for s in coded if s.energy and not s.even]
    feedback = [(s, replace(s, feedback=False)) for s in coded if s.feedback]
    return energy + feedback + [(s, replace(s, even=False)) for s in coded if s.even]


def _errors(runs: Sequence[Run]) -> list[str]:
    cells = [f"{np.mean([run[key] for run in runs]):.3g}" for key in ("up", "down", "nmse")]
    for key in ("layers", "layers_late"):
        layers = {layer: float(np.mean([run[key][layer] for run in runs])) for layer in runs[0][key]}
        worst = max(layers, key=lambda layer: layers[layer])
        cells += [f"{np.median(list(layers.values())):.3g}", f"{layers[worst]:.3g} ({worst})"]
    return [*cells, f"{np.mean([run['residual'] for run in runs]):.3g}"]

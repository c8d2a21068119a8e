"""Settings that benchmarks.training compares, and its tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sumwire.lab.record import Record

Run = dict[str, Any]


Variant = Literal["", "exact sums", "uncorrected", "owner feedback"]


@dataclass(frozen=True)
class Setting:
    """One setting of the codec; bits=None is fp32."""

    bits: int | None = None
    energy: float = 0.5
    feedback: bool = False
    variant: Variant = ""
    """Default sums are narrow. Or exact; or exact sums of even tables, without correction for clamping, as `attach`
    used before it narrowed; or narrow with what narrowing loses added to the owner's next sum."""

    @property
    def name(self) -> str:
        if not self.bits:
            return "fp32"
        return f"{self.bits} bit{'s' if self.bits > 1 else ''}{', ' if self.variant else ''}{self.variant}"

    def __str__(self) -> str:
        return f"{self.name} | {self.energy:g} | {'on' if self.feedback else 'off'}" if self.bits else "fp32 | |"


_BITS = (1, 2, 3, 4)
SETTINGS = [
    Setting(),
    *(Setting(b) for b in _BITS),
    *(Setting(4, e) for e in (0.0, 1.0)),
    *(Setting(b, feedback=True) for b in (1, 2, 4)),
    *(Setting(b, variant="exact sums") for b in (1, 2, 4)),
    *(Setting(b, variant="uncorrected") for b in _BITS),
    *(Setting(b, variant="owner feedback") for b in (2, 4)),
]
MANY_SETTINGS = [Setting(), Setting(4), Setting(4, variant="uncorrected")]
"""Of many workers, which take long."""


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
    for model, by in _by_setting(runs):
        titles, setting = [title for title, _ in METRICS.values()], "bits | energy | feedback"
        spread = [
            [str(s), *(f"{np.mean(v):.{d}f} ± {np.std(v, ddof=1):.{d}f}" for v, d in _columns(by[str(s)]))]
            for s in present(by)
        ]
        _table(f"{model}: mean and standard deviation of {len(by[str(Setting())])} seeds", [setting, *titles], spread)
        less = [[str(s), *_paired(by[str(s)], by[str(Setting())])] for s in present(by)[1:]]
        _table(f"{model}: difference from fp32 with the same seed, and standard error", [setting, *titles], less)
        choices = [[f"{a} | {b}", *_paired(by[str(a)], by[str(b)])] for a, b in _choices(present(by))]
        _table(
            f"{model}: difference between two settings, and standard error",
            [setting, "minus " + setting, *titles],
            choices,
        )
        head = ["up", "down", "NMSE", "layers: median", "worst", "sum over steps: median", "worst", "residual"]
        errors = [[str(s), *_errors(by[str(s)])] for s in present(by)[1:]]
        _table(f"{model}: bits per coordinate (plus 0.0625 for terms) and error of the mean", [setting, *head], errors)


def _by_setting(runs: Sequence[Run]) -> Iterator[tuple[str, dict[str, list[Run]]]]:
    """Of each model, the runs of every setting, sorted by seed."""
    for model in dict.fromkeys(run["model"] for run in runs):
        by: dict[str, list[Run]] = {}
        for run in sorted((r for r in runs if r["model"] == model), key=lambda r: int(r["seed"])):
            by.setdefault(run["setting"], []).append(run)
        yield model, by


def _columns(runs: Sequence[Run]) -> list[tuple[list[float], int]]:
    return [([run[metric] for run in runs], digits) for metric, (_, digits) in METRICS.items()]


def present(by: dict[str, list[Run]]) -> list[Setting]:
    """Settings that were run."""
    return [setting for setting in SETTINGS if str(setting) in by]


def _choices(settings: Sequence[Setting]) -> list[tuple[Setting, Setting]]:
    """Pairs of settings that differ in one option."""
    return [pair for pairs in _options(settings).values() for pair in pairs]


def _errors(runs: Sequence[Run]) -> list[str]:
    cells = [f"{np.mean([run[key] for run in runs]):.3g}" for key in ("up", "down", "nmse")]
    for key in ("layers", "layers_late"):
        layers = {layer: float(np.mean([run[key][layer] for run in runs])) for layer in runs[0][key]}
        worst = max(layers, key=lambda layer: layers[layer])
        cells += [f"{np.median(list(layers.values())):.3g}", f"{layers[worst]:.3g} ({worst})"]
    return [*cells, f"{np.mean([run['residual'] for run in runs]):.3g}"]


def record_lines(runs: Sequence[Run], record: Record) -> None:
    """Append a line per model and setting, and one per option that the transformer's settings differ in."""
    workers = runs[0]["workers"]
    for model, by in _by_setting(runs):
        score, name = ("accuracy", "test_accuracy") if model == "conv" else ("test", "validation_loss")
        for setting in present(by):
            own, plain = by[str(setting)], by[str(Setting())]
            line: dict[str, Any] = {"setting": setting.name}
            if setting.bits:
                layers = np.mean([list(run["layers"].values()) for run in own], axis=0)
                line = {
                    "setting": setting.name,
                    "bits": setting.bits,
                    "energy": setting.energy,
                    "feedback": "on" if setting.feedback else "off",
                    "less_fp32": _difference([(own, plain)], score),
                    "bits_up": float(np.mean([run["up"] for run in own])),
                    "bits_down": float(np.mean([run["down"] for run in own])),
                    "layer_error": {"median": float(np.median(layers)), "worst": float(layers.max())},
                }
            figures = {
                key: _mean([run[metric] for run in own]) for key, metric in (("training_loss", "train"), (name, score))
            }
            record.add(section="settings", task=model, workers=workers, seeds=len(own), **line, **figures)
        for option, pairs in _options(present(by)).items() if model == "transformer" else ():
            if not pairs:
                continue
            chosen = [(by[str(a)], by[str(b)]) for a, b in pairs]
            difference = _difference(chosen, score)
            about = {"task": model, "workers": workers, "seeds": len(chosen[0][0]), "option": option}
            about["settings"] = len(pairs)
            record.add(section="options", **about, validation_loss_difference=difference)


def _options(settings: Sequence[Setting]) -> dict[str, list[tuple[Setting, Setting]]]:
    """Pairs of settings that differ only in the option."""
    coded = [s for s in settings if s.bits]
    pairs = {
        "feedback on, against off": [(s, replace(s, feedback=False)) for s in coded if s.feedback],
        "energy 0.5, against 0": [(replace(s, energy=0.5), s) for s in coded if s.energy == 0],
        "energy 1, against 0.5": [(s, replace(s, energy=0.5)) for s in coded if s.energy == 1],
        "narrow sums, against exact ones": [(replace(s, variant=""), s) for s in coded if s.variant == "exact sums"],
        "corrected, against uncorrected": [
            (replace(s, variant="exact sums"), s) for s in coded if s.variant == "uncorrected"
        ],
        "defaults, against those before": [(replace(s, variant=""), s) for s in coded if s.variant == "uncorrected"],
        "feedback at owners, against none": [
            (s, replace(s, variant="")) for s in coded if s.variant == "owner feedback"
        ],
    }
    return {option: [pair for pair in both if pair[1] in coded and pair[0] in coded] for option, both in pairs.items()}


def _mean(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1))}


def _difference(pairs: Sequence[tuple[Sequence[Run], Sequence[Run]]], metric: str) -> dict[str, float]:
    """Mean over pairs and seeds, and its standard error."""
    d = [a[metric] - b[metric] for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
    return {"mean": float(np.mean(d)), "standard_error": float(np.std(d, ddof=1) / math.sqrt(len(d)))}

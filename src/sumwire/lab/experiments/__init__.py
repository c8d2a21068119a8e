"""Experiments: each asks one question, and answers it with measurements, tables and charts.

`sumwire lab list`, `sumwire lab run NAME`, `sumwire lab report`.
"""

from __future__ import annotations

from importlib import import_module

from sumwire.errors import ConfigError
from sumwire.lab.experiments.base import Experiment, Summary

NAMES = (
    "accuracy", "installed", "training", "throughput", "links", "bits", "bits_training", "ablation", "scale",
    "scale_training", "hops", "hops_training", "loss", "stragglers", "drift", "stages", "sparse", "sparse_bytes",
    "sketch",
)  # fmt: skip
"""Modules of this package that measure."""
SUMMARIES = ("equal_bits", "time_to_target", "sweep")
"""Modules of this package that calculate from what others measured."""
REPORTED = (*SUMMARIES, *NAMES)
"""All of them, in the order of the report."""


def find(name: str) -> Experiment:
    """The experiment of this name.

    >>> find("hops").name
    'hops'
    """
    if name not in NAMES:
        raise ConfigError(f"no experiment {name!r}: choose from {', '.join(NAMES)}")
    experiment: Experiment = import_module(f"{__name__}.{name}").EXPERIMENT
    return experiment


def find_summary(name: str) -> Summary:
    """The summary of this name.

    >>> find_summary("equal_bits").sources
    ('accuracy',)
    """
    if name not in SUMMARIES:
        raise ConfigError(f"no summary {name!r}: choose from {', '.join(SUMMARIES)}")
    summary: Summary = import_module(f"{__name__}.{name}").SUMMARY
    return summary


def find_shown(name: str) -> Experiment | Summary:
    """The experiment or summary of this name."""
    return find_summary(name) if name in SUMMARIES else find(name)

"""Experiments: each asks one question, and answers it with measurements, tables and charts.

`sumwire lab list`, `sumwire lab run NAME`, `sumwire lab report`.
"""

from __future__ import annotations

from importlib import import_module

from sumwire.errors import ConfigError
from sumwire.lab.experiments.base import Experiment

NAMES = (
    "accuracy", "installed", "training", "links", "bits", "bits_training", "ablation", "scale", "scale_training",
    "hops", "hops_training", "loss", "stragglers", "drift", "stages", "sparse", "sparse_bytes", "sketch",
)  # fmt: skip
"""Modules of this package, in the order of the report."""


def find(name: str) -> Experiment:
    """The experiment of this name.

    >>> find("hops").name
    'hops'
    """
    if name not in NAMES:
        raise ConfigError(f"no experiment {name!r}: choose from {', '.join(NAMES)}")
    experiment: Experiment = import_module(f"{__name__}.{name}").EXPERIMENT
    return experiment

"""Gradients like those of published models in training: normal values, with recorded sizes and correlations.

`record` keeps two things of several workers' gradients: the root mean square of every run of `RUN` values, as a byte,
and for every tensor how similar workers are. Signs, outliers, and zeros within a run are not kept. Recordings of the
models in `SHAPES` are files in traces/, which `record_trace.py` writes.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.errors import ConfigError
from sumwire.lab.workloads.shapes import SHAPES

RUN = 512
"""Values with a scale in common, in the order of the flat gradient, whatever tensors they are of."""
PER_OCTAVE = 8
LOWEST = -30
"""Code 1 is a root mean square of 2**LOWEST, each further one is 2**(1/PER_OCTAVE) times as much; code 0 is zero."""
FOLDER = "traces"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Recording:
    """What gradients of a model look like."""

    codes: NDArray[np.uint8]
    """Of each run's root mean square; the last run may be shorter."""
    correlations: Floats
    """Of two workers' gradients, for each tensor; unrelated ones may be a little below zero."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was trained, and how."""

    @property
    def scales(self) -> Floats:
        """The root mean square of each run."""
        powers = np.exp2((np.arange(256) - 1) / PER_OCTAVE + LOWEST)
        powers[0] = 0
        return powers.astype(np.float32)[self.codes]

    def draw(self, sizes: Sequence[int], worker: int, *, seed: int) -> Floats:
        """One worker's flat gradient; `sizes` are the numbers of values of its tensors."""
        # In place: these are half a gigabyte each.
        gradient = np.random.default_rng((seed, 0)).standard_normal(sum(sizes), np.float32)
        own = np.random.default_rng((seed, 1 + worker)).standard_normal(len(gradient), np.float32)
        for part, correlation in zip(_parts(sizes), self.correlations.clip(0, 1), strict=True):
            gradient[part] *= np.sqrt(correlation)
            own[part] *= np.sqrt(1 - correlation)
        gradient += own
        whole = len(gradient) // RUN
        scales = self.scales
        gradient[: whole * RUN].reshape(-1, RUN)[:] *= scales[:whole, None]
        gradient[whole * RUN :] *= scales[whole:]
        # A negative value times zero is -0.0, which gradients do not have.
        gradient += 0
        return gradient

    def save(self, path: Path) -> None:
        about = json.dumps(self.about, ensure_ascii=False)
        np.savez_compressed(path, codes=self.codes, correlations=self.correlations, about=np.array(about))


def record(gradients: Iterable[Floats], sizes: Sequence[int]) -> Recording:
    """The recording of flat gradients, one per worker; `sizes` are the numbers of values of their tensors."""
    squares, own = np.zeros(-(-sum(sizes) // RUN)), np.zeros(len(sizes))
    total, workers = np.zeros(sum(sizes), np.float32), 0
    for gradient in gradients:
        squares += _squares_of_runs(gradient)
        own += [_square(gradient[part]) for part in _parts(sizes)]
        total += gradient
        workers += 1
    if workers < 2:
        raise ConfigError(f"{workers} gradients have no correlation: record those of 2 workers or more")
    together = np.array([_square(total[part]) for part in _parts(sizes)])
    # |a + b|^2 = |a|^2 + |b|^2 + 2ab, for any number of workers: ab by the mean square, averaged over pairs.
    correlations = np.divide(together - own, (workers - 1) * own, out=np.zeros(len(sizes)), where=own > 0)
    lengths = np.minimum(RUN, sum(sizes) - RUN * np.arange(len(squares)))
    return Recording(_codes(np.sqrt(squares / workers / lengths)), correlations.astype(np.float32))


def recorded_gradient(model: str, worker: int, *, seed: int = 0) -> Floats:
    """One worker's flat gradient, like those that were recorded of this model.

    >>> recorded_gradient("resnet-50", 0).shape
    (25557032,)
    """
    return load(model).draw(_sizes(model), worker, seed=seed)


def load(model: str) -> Recording:
    """The recording of a published model that Sumwire comes with."""
    sizes = _sizes(model)
    path = files("sumwire.lab.workloads") / FOLDER / f"{model}.npz"
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as found:
            recording = Recording(found["codes"], found["correlations"], json.loads(str(found["about"])))
        _check(recording, sizes)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(
            f"cannot read the recorded gradients of {model!r} in {path} ({error}): install Sumwire anew, or record "
            f"them with `python -m sumwire.lab.workloads.record_trace {model}`"
        ) from error
    return recording


def _check(recording: Recording, sizes: Sequence[int]) -> None:
    codes, correlations = recording.codes, recording.correlations
    if codes.dtype != np.uint8 or codes.shape != (-(-sum(sizes) // RUN),):
        raise ValueError(f"its scales are {codes.dtype} of shape {codes.shape}, which are not those of this model")
    if correlations.dtype != np.float32 or correlations.shape != (len(sizes),) or not np.isfinite(correlations).all():
        raise ValueError("its correlations are not a finite number for each tensor of this model")


def _sizes(model: str) -> list[int]:
    if model not in SHAPES:
        raise ConfigError(f"no shapes of {model!r}: choose from {', '.join(SHAPES)}")
    return [math.prod(shape) for shape in SHAPES[model]]


def _parts(sizes: Sequence[int]) -> list[slice]:
    """Where each tensor is in the flat gradient."""
    return [slice(*ends) for ends in pairwise(np.cumsum([0, *sizes]).tolist())]


def _square(values: Floats) -> float:
    # In float64, but without a copy in it.
    return float(np.einsum("i,i->", values, values, dtype=np.float64))


def _squares_of_runs(values: Floats) -> NDArray[np.float64]:
    whole = len(values) // RUN
    runs = values[: whole * RUN].reshape(-1, RUN)
    found: NDArray[np.float64] = np.einsum("ij,ij->i", runs, runs, dtype=np.float64)
    tail = values[whole * RUN :]
    return np.append(found, _square(tail)) if len(tail) else found


def _codes(scales: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The nearest code; beyond the range, its end."""
    steps = PER_OCTAVE * (np.log2(scales, out=np.zeros_like(scales), where=scales > 0) - LOWEST)
    return np.where(scales > 0, np.clip(np.rint(steps) + 1, 1, 255), 0).astype(np.uint8)

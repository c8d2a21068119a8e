"""Density of gradients: of one worker and of the union of several, by kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

from sumwire.lab.display import plain_table, progress_bars
from sumwire.lab.gradients import Source
from sumwire.lab.workloads.base import Workload
from sumwire.lab.workloads.registry import find
from sumwire.lab.workloads.reproducible import reproducible

WORKERS = (1, 4, 16)

_KINDS: Sequence[tuple[type[nn.Module], str]] = (
    (nn.Embedding, "embedding"),
    (nn.LSTM, "recurrent"),
    (nn.Conv2d, "convolution"),
    (nn.Linear, "linear"),
)


@dataclass(frozen=True)
class Row:
    """Tensors of one kind, and the share of coordinates that are non-zero at one or more of n workers, by n."""

    kind: str
    tensors: int
    parameters: int
    union: dict[int, float]


def densities(gradients: Sequence[NDArray[np.float32]]) -> list[float]:
    """Densities of the union of the first 1, 2, ... gradients.

    >>> import numpy as np
    >>> densities([np.float32([1, 0, 0, 0]), np.float32([2, 0, 3, 0])])
    [0.25, 0.5]
    """
    union = np.zeros(gradients[0].shape, np.bool_)
    found = []
    for gradient in gradients:
        union |= gradient != 0
        found.append(float(union.mean()))
    return found


def describe(
    workload: str | Workload,
    *,
    steps: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    workers: Sequence[int] = WORKERS,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Train for `steps` and measure gradients: one row per kind of tensor, and one for all."""
    source = Source(workload, max(workers), steps, batch, seed)
    with reproducible(seed):
        model = source.train(on_step)
        kinds = _kinds(model)
        unions = [torch.zeros(parameter.shape, dtype=torch.bool) for parameter in model.parameters()]
        counts: dict[int, list[int]] = {}
        # One worker at a time: all gradients at once may take gigabytes.
        for worker, parts in enumerate(source.gradients(model), start=1):
            for union, part in zip(unions, parts, strict=True):
                union |= part != 0
            if worker in workers:
                counts[worker] = [int(union.sum()) for union in unions]
    sizes = [union.numel() for union in unions]
    names = [*dict.fromkeys(kinds)]
    chosen = {name: [i for i, kind in enumerate(kinds) if kind == name] for name in names}
    if len(names) > 1:
        chosen["all"] = list(range(len(kinds)))
    return [
        Row(
            kind,
            len(places),
            total := sum(sizes[i] for i in places),
            {worker: sum(counts[worker][i] for i in places) / total for worker in workers},
        )
        for kind, places in chosen.items()
    ]


def run(name: str, *, steps: int | None = None, batch: int | None = None, seed: int = 0) -> None:
    """Train and print a table."""
    workload, console = find(name), Console(highlight=False)
    with progress_bars(console) as progress:
        training = progress.add_task(f"training {name}", total=None)
        rows = describe(
            workload,
            steps=steps,
            batch=batch,
            seed=seed,
            on_step=lambda done, total: progress.update(training, completed=done, total=total),
        )
    console.print("", f"{workload.description}: non-zero values", "", table(rows), sep="\n", soft_wrap=True)


def table(rows: Sequence[Row], title: str = "") -> Table:
    """The rows as a table for the terminal."""
    headings = [f"of {workers} workers" if workers > 1 else "of 1 worker" for workers in rows[0].union]
    shown = plain_table(title, "kind of tensor", "tensors", "parameters", *headings)
    for row in rows:
        cells = [f"{share:.2%}" for share in row.union.values()]
        shown.add_row(row.kind, f"{row.tensors}", f"{row.parameters:,}", *cells)
    return shown


def _kinds(model: nn.Module) -> list[str]:
    """The kind of every parameter, in order."""
    owners = {id(parameter): module for module in model.modules() for parameter in module.parameters(recurse=False)}
    return [
        next((name for kind, name in _KINDS if isinstance(owners[id(parameter)], kind)), "other")
        for parameter in model.parameters()
    ]

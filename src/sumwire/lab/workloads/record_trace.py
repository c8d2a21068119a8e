"""Train a published model for some steps, and record what its gradients look like.

    python -m sumwire.lab.workloads.record_trace resnet-50 --steps 30
    python -m sumwire.lab.workloads.record_trace resnet-50 --show

Minutes on a CPU, and several gigabytes of memory. The file goes to traces/, beside this module, or where --out says.
--show prints what was trained for the file that is there.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sumwire import __version__
from sumwire.errors import ConfigError
from sumwire.lab.gradients import Source
from sumwire.lab.workloads.pretrain import PRETRAINED, Pretraining
from sumwire.lab.workloads.recorded import FOLDER, Recording, load, record
from sumwire.lab.workloads.reproducible import reproducible

WORKERS = 4
"""Whose gradients are recorded: their batches differ, their weights do not."""


def record_workload(
    workload: Pretraining, *, workers: int = WORKERS, seed: int = 0, report: Callable[[str], None] = lambda line: None
) -> Recording:
    """Train with one seed, which decides all but the last bits, and record the gradients of workers."""
    source = Source(workload, workers, None, None, seed)

    def on_step(done: int, steps: int) -> None:
        report(f"step {done} of {steps}: loss {source.losses[-1]:.3f}")

    with reproducible(seed):
        model = source.train(on_step)
        report(f"gradients of {workers} workers")
        flat = (torch.cat([part.flatten() for part in parts]).numpy() for parts in source.gradients(model))
        recording = record(flat, [parameter.numel() for parameter in model.parameters()])
    about = {
        "model": workload.name,
        "trained": workload.description,
        "data": workload.source,
        "steps": source.steps,
        "batch": source.batch,
        "workers": workers,
        "seed": seed,
        "losses": [round(loss, 3) for loss in source.losses],
        "versions": {
            "sumwire": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
    return replace(recording, about=about)


def find(name: str) -> Pretraining:
    if name not in PRETRAINED:
        raise ConfigError(f"no published model {name!r}: choose from {', '.join(PRETRAINED)}")
    return PRETRAINED[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=", ".join(PRETRAINED))
    parser.add_argument("--steps", type=int, help="of training before gradients are recorded")
    parser.add_argument("--batch", type=int, help="samples per step and worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / FOLDER, help="folder of the file")
    parser.add_argument("--show", action="store_true", help="print what was trained for the file that is there")
    arguments = parser.parse_args()
    workload = find(arguments.model)
    if arguments.show:
        print(json.dumps(load(workload.name).about, indent=2))
        return
    given = {name: getattr(arguments, name) for name in ("steps", "batch") if getattr(arguments, name) is not None}
    recording = record_workload(replace(workload, **given), seed=arguments.seed, report=print)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{workload.name}.npz"
    recording.save(path)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")

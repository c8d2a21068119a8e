"""DiLoCo with compressed pseudo-gradients against fp32, and against averaging in every step: loss, bytes and seconds.

    python -m benchmarks.sites --workers 4,8 --every 30 --steps 240 --json benchmarks/results/sites.jsonl
    python -m benchmarks.sites --workers 4 --every 30 --steps 240 --methods fp32,4,ddp-fp16,ddp-sumwire-4 --target 3.1

Workers are threads of one process that train a byte-level GPT on Python's documentation, each on its own batches, with
`DiLoCo` over a `Local` aggregator: the same code as across sites, without a network. Bytes are those of terms,
payloads, sums and digests in both directions of a server, without headers of frames.

A run whose line is in the file already is not repeated, so that a benchmark that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.sites.report import report
from benchmarks.sites.training import DILOCO, WORKLOAD, Case, train
from sumwire.lab.record import Record, add_option
from sumwire.lab.workloads import Data, find

FIELDS = ("workers", "every", "steps", "parameters", "batch", "method", "seed")
"""Which run a line is of."""


def runs_in(path: Path | None) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return [line for line in map(json.loads, lines) if line["section"] == "run"]


def run(case: Case, data: Data, method: str, seed: int, path: Path | None, done: list[dict[str, Any]]) -> None:
    """Unless it is done."""
    every = case.every if method in DILOCO else 1
    which: dict[str, Any] = {"workers": case.workers, "every": every, "steps": case.steps, "parameters": case.size}
    which |= {"batch": case.batch, "method": method, "seed": seed}
    if any(all(line[field] == which[field] for field in FIELDS) for line in done):
        return
    result = train(case, data, method, seed)
    fields: dict[str, Any] = {"section": "run", **which, "tokens": case.step_tokens, "loss": result.curve[-1][1]}
    fields |= {"curve": result.curve, "up": result.up, "down": result.down, "step_seconds": result.step_seconds}
    Record(path, seed=seed).add(**fields)
    done.append(fields)
    print(f"{which}: {fields['loss']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="4,8")
    parser.add_argument("--every", default="30,100")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--methods", default="fp32,4,2+feedback", help=f"{', '.join(DILOCO)}, ddp-fp16, ddp-...")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=240)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="sequences of 64 tokens, for each worker and step")
    parser.add_argument("--target", type=float, help="held-out loss that seconds are counted to")
    add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data, done = find(WORKLOAD).load(0), runs_in(args.json)
    methods = args.methods.split(",")
    for every in map(int, args.every.split(",")):
        for workers in map(int, args.workers.split(",")):
            case = Case(workers, every, args.steps, args.width, args.layers, args.batch)
            for seed in range(args.seeds):
                for method in methods:
                    run(case, data, method, seed, args.json, done)
            report(case, methods, done, args.target, Record(args.json, seed=0))


if __name__ == "__main__":
    main()

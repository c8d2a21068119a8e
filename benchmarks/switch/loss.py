"""Training over links that lose packets: is it as accurate as fp32? THC's experiment, over a switch in the kernel.

Every method trains the same model from the same weights on the same batches. fp32 is plain DDP on this machine, where
nothing is lost. The others average over the switch, and every link loses packets in each direction:

    reliable         what is lost is sent again, until sums are exact
    lossy            what is missing at the deadline is not in the sum; workers that miss a result drift apart
    lossy + resync   the same, and all workers take one worker's parameters after each epoch
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sumwire.lab.comparison import compare, find_task
from sumwire.lab.links import Network, links
from sumwire.lab.record import Record
from sumwire.lab.switched import switched_links
from sumwire.lab.testbed import Impairment

METHODS = {"fp32": "fp32", "switch-4": "reliable", "lossy-4": "lossy", "resync-4": "lossy + resync"}
TASK = find_task("conv")

Raw = dict[str, Any]


def run(options: argparse.Namespace, record: Record) -> None:
    """Train with every method and seed; print and record one line for each method."""
    workers = (options.workers or [4])[0]
    raws = _read(options.append)
    for seed in range(options.seeds):
        for network, methods in _places(workers, options):
            missing = [
                method for method in methods if not any((r["seed"], r["method"]) == (seed, method) for r in raws)
            ]
            raws += list(_train(network, missing, seed, options)) if missing else []
    print("method            accuracy  deviation  ms/step  ranks agree")
    for method, name in METHODS.items():
        line = _figures([raw for raw in raws if raw["method"] == method and raw["seed"] < options.seeds])
        mean, deviation = line["accuracy"]["mean"], line["accuracy"].get("deviation", 0.0)
        agree = "yes" if line["ranks_agree"] else "no"
        print(f"{name:16}  {mean:8.4f}  {deviation:9.4f}  {line['ms_per_step']:7.0f}  {agree}")
        lost = 0.0 if method == "fp32" else 100 * options.loss
        record.add(section="loss", aggregator=name, workers=workers, loss_percent=lost, **line)


def _places(
    workers: int, options: argparse.Namespace
) -> Iterator[tuple[AbstractContextManager[Network], tuple[str, ...]]]:
    """Networks, and what is trained in each: what is lost there, and whether the switch waits for it."""
    bad = Impairment(loss=options.loss)
    yield links(workers, None), ("fp32",)
    yield switched_links(workers, None, impairment=bad), ("switch-4",)
    yield switched_links(workers, None, impairment=bad, deadline=options.deadline), ("lossy-4", "resync-4")


def _train(
    network: AbstractContextManager[Network], methods: list[str], seed: int, options: argparse.Namespace
) -> Iterator[Raw]:
    with network as built:
        runs = compare(built, TASK, methods, seed=seed, steps=options.steps)
    for run in runs:
        raw = {"seed": seed, "method": run.method, "accuracy": run.points[-1].accuracy}
        raw |= {"ms_per_step": 1e3 * run.step_seconds, "identical": run.identical}
        print(f"seed {seed}, {METHODS[run.method]}: {raw['accuracy']:.4f}", flush=True)
        if options.append:
            with options.append.open("a") as file:
                file.write(json.dumps(raw) + "\n")
        yield raw


def _read(path: Path | None) -> list[Raw]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path is not None and path.exists() else []


def _figures(raws: list[Raw]) -> dict[str, Any]:
    last = [raw["accuracy"] for raw in raws]
    return {
        "seeds": len(raws),
        "accuracy": {"mean": fmean(last), "samples": last} | ({"deviation": stdev(last)} if len(last) > 1 else {}),
        "ms_per_step": fmean(raw["ms_per_step"] for raw in raws),
        "ranks_agree": all(raw["identical"] for raw in raws),
    }

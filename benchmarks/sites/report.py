"""What all runs of a case come to: loss over seeds, bytes, and seconds on slow links, which are calculated.

A round takes as long as the slower direction's bytes at the link's rate, and its round trips of 50 ms: one of fp16
(values up, means down), two of PowerSGD (its two factors) and of Sumwire (terms, payloads), two more of DiLoCo
(digests). Nothing overlaps with computing. A step takes the CPU time that it had in these runs, the median of all: the
same for all methods, as what they compute is the same.
"""

from __future__ import annotations

import math
from statistics import mean, median
from typing import Any

from benchmarks.sites.training import DILOCO, Case
from sumwire.lab.record import Record, spread

RATES = (10, 100)
"""Mbit/s."""
ROUND_TRIP = 0.05
Run = dict[str, Any]


def label(method: str) -> str:
    """
    >>> label("2+feedback"), label("ddp-powersgd-4")
    ('DiLoCo, 2 bits, feedback', 'DDP, PowerSGD rank 4')
    """
    if method in DILOCO:
        bits, _, feedback = method.partition("+")
        return f"DiLoCo, {bits if bits == 'fp32' else f'{bits} bits'}{', feedback' if feedback else ''}"
    kind, _, number = method.removeprefix("ddp-").partition("-")
    names = {"powersgd": f"PowerSGD rank {number}", "sumwire": f"Sumwire, {number} bits"}
    return f"DDP, {names.get(kind, kind)}"


def round_trips(method: str) -> int:
    return 4 if method in DILOCO else 1 if method == "ddp-fp16" else 2


def round_seconds(run: Run, rate: float) -> float:
    return float(8 * max(run["up"], run["down"]) / (rate * 1e6) + ROUND_TRIP * round_trips(run["method"]))


def seconds_to(run: Run, target: float, rate: float, step_seconds: float) -> float | None:
    """Until the held-out loss is at most this."""
    reached = next((step for step, loss in run["curve"] if loss <= target), None)
    if reached is None:
        return None
    return float(reached * step_seconds + reached // run["every"] * round_seconds(run, rate))


def report(case: Case, methods: list[str], done: list[Run], target: float | None, record: Record) -> None:
    """Print a line for each method that has runs, and append it."""
    alike = [run for run in done if run["parameters"] == case.size and run["batch"] == case.batch]
    step_seconds = median(run["step_seconds"] for run in alike)
    mine = [run for run in alike if run["workers"] == case.workers and run["steps"] == case.steps]
    by_method = {
        method: {run["seed"]: run for run in mine if run["method"] == method and run["every"] in (1, case.every)}
        for method in methods
    }
    print(
        f"{case.workers} workers, H={case.every}, {case.steps} steps of {case.step_tokens} tokens and "
        f"{1e3 * step_seconds:.0f} ms, {case.size:,} parameters"
    )
    print(f"| method | seeds | loss | bytes per token | {' | '.join(f's at {rate} Mbit/s' for rate in RATES)} |")
    for method, runs in by_method.items():
        if not runs:
            continue
        first, losses = next(iter(runs.values())), [run["loss"] for run in runs.values()]
        fields: dict[str, Any] = {"section": "methods", "label": label(method), "seeds": len(runs)}
        fields |= {field: first[field] for field in ("workers", "every", "steps", "parameters", "batch", "method")}
        fields |= {"loss": {**spread(losses), "mean": mean(losses)}, "step_seconds": step_seconds}
        exact = by_method.get("fp32", {})
        paired = [(run["loss"], exact[seed]["loss"]) for seed, run in runs.items() if seed in exact]
        if method != "fp32" and paired:
            fields["percent_of_fp32"] = {"mean": 100 * (sum(a for a, _ in paired) / sum(b for _, b in paired) - 1)}
            fields["percent_of_fp32"] |= {"samples": [100 * (a / b - 1) for a, b in paired]}
        fields["bytes_per_token"] = (first["up"] + first["down"]) / (first["every"] * case.step_tokens)
        fields["round_seconds"] = {f"{rate} Mbit/s": round_seconds(first, rate) for rate in RATES}
        if target is not None:
            fields |= {"target": target, "reached": 0, "seconds_to": {}}
            for rate in RATES:
                found = [seconds_to(run, target, rate, step_seconds) for run in runs.values()]
                seconds = [each for each in found if each is not None]
                fields["reached"] = len(seconds)
                if len(seconds) > len(runs) // 2:  # else the median is not known
                    ordered = sorted(math.inf if each is None else each for each in found)
                    fields["seconds_to"][f"{rate} Mbit/s"] = {"median": median(ordered), "lowest": ordered[0]}
        shown = [fields["label"], len(runs), f"{mean(losses):.4f}", f"{fields['bytes_per_token']:.0f}"]
        shown += [f"{each:.2f}" for each in fields["round_seconds"].values()]
        print("| " + " | ".join(map(str, shown)) + " |", flush=True)
        record.add(**fields)

"""Time to target over shaped links: real workers, torch's methods and Sumwire, several seeds.

A comparison is one workload and one seed: all methods run one after the other in the same processes, from the same
weights and on the same batches. The method that runs first changes from seed to seed.

python -m benchmarks.time_to_target [--rate 100Mbit] [--seeds 5] [--first 0] [--workloads conv,transformer]
    [--methods fp32,...,sumwire-4] [--append results.json]
python -m benchmarks.time_to_target --seeds 0 --append results.json    # print the tables again
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from sumwire.lab.comparison import Point, Run, compare, find_task
from sumwire.lab.links import format_rate, links, parse_rate
from sumwire.lab.methods import label, parse_methods
from sumwire.lab.record import Record, add_option, spread
from sumwire.lab.workloads import TARGETS

METHODS = "fp32,fp16,powersgd-1,powersgd-2,powersgd-4,sumwire-4,sumwire-2"
KEY = ("workload", "rate", "shaped", "workers", "steps")
"""Runs that agree in these fields share a table."""

Raw = dict[str, Any]


def run_comparison(workload: str, methods: Sequence[str], seed: int, args: argparse.Namespace) -> list[Raw]:
    """The run of every method, with the fields that identify it."""
    task, begin = find_task(workload), seed % len(methods)
    order = [*methods[begin:], *methods[:begin]]
    with links(args.workers, args.rate) as network:
        print(f"{workload}, seed {seed}: {network.note}", file=sys.stderr)
        runs = compare(network, task, order, seed=seed, steps=args.steps)
        about = {
            "workload": workload, "rate": args.rate, "shaped": network.shaped, "workers": args.workers,
            "steps": args.steps or task.steps, "seed": seed,
        }  # fmt: skip
    for run in runs:
        point = run.reached(task.metric, task.check_target())
        when = f"target after {point.seconds:.1f} s, {point.step} steps" if point else "target not reached"
        score = run.score(task.metric)[-1]
        ms, kb = 1e3 * run.step_seconds, run.step_bytes / 1e3
        print(
            f"  {label(run.method)}: {when}; {ms:.0f} ms, {kb:.0f} kB per step; final score {score:.4f}",
            file=sys.stderr,
        )
    return [about | asdict(run) for run in runs]


def merge(old: Sequence[Raw], new: Sequence[Raw]) -> list[Raw]:
    """Both lists; a repeated run replaces the earlier one."""
    return list({tuple(r[key] for key in (*KEY, "seed", "method")): r for r in (*old, *new)}.values())


def tables(records: Sequence[Raw], record: Record) -> None:
    for about in dict.fromkeys(tuple(raw[key] for key in KEY) for raw in records):
        workload, rate, shaped, workers, steps = about
        task = find_task(workload)
        mine = [raw for raw in records if tuple(raw[key] for key in KEY) == about]
        where = format_rate(rate) if shaped else "links NOT SHAPED"
        goal = f"{task.metric} {task.target:g}"
        print(f"\n### {workload}: {task.description}; {workers} workers, {where}, {steps} steps, to {goal}\n")
        head = ["method", "reached", "s to target", "of fp32's", "steps to target", "ms/step", "kB/step"]
        print(f"| {' | '.join([*head, f'final {task.metric}', 'ranks agree'])} |\n|---|" + "---|" * 8)
        base = seconds([raw for raw in mine if raw["method"] == "fp32"])
        for method in dict.fromkeys(raw["method"] for raw in sorted(mine, key=lambda r: int(r["seed"]))):
            line = figures([r for r in mine if r["method"] == method], base)
            print(f"| {' | '.join(row(line))} |")
            goals = {"link": where, "workers": workers, "steps": steps, "target": {task.metric: task.check_target()}}
            record.add(task=workload, **goals, **line)
    print(
        "\nMedian (min to max) over seeds; of fp32's: median of the ratios at equal seeds; "
        "final: mean ± standard deviation."
    )


def figures(records: Sequence[Raw], base: dict[int, float]) -> dict[str, Any]:
    """What is recorded of a method; None where no seed reached the target."""
    task = find_task(records[0]["workload"])
    runs = [to_run(raw) for raw in records]
    points = [point for run in runs if (point := run.reached(task.metric, task.check_target()))]
    ratios = [taken / base[seed] for seed, taken in seconds(records).items() if seed in base]
    last = [run.score(task.metric)[-1] for run in runs]
    return {
        "method": label(runs[0].method),
        "seeds": len(runs),
        "reached": len(points),
        "seconds_to_target": spread([point.seconds for point in points]) if points else None,
        "percent_of_fp32": 100 * median(ratios) if ratios else None,
        "steps_to_target": spread([point.step for point in points]) if points else None,
        "ms_per_step": spread([1e3 * run.step_seconds for run in runs]),
        "kb_per_step": median(run.step_bytes for run in runs) / 1e3,
        "final": {"mean": fmean(last)} | ({"deviation": stdev(last)} if len(last) > 1 else {}),
        "ranks_agree": all(run.identical for run in runs),
    }


def row(line: dict[str, Any]) -> list[str]:
    share, final = line["percent_of_fp32"], line["final"]
    return [
        line["method"],
        f"{line['reached']} of {line['seeds']}",
        show(line["seconds_to_target"], 1),
        "-" if share is None else f"{share:.0f}%",
        show(line["steps_to_target"], 0),
        show(line["ms_per_step"], 0),
        f"{line['kb_per_step']:,.0f}",
        f"{final['mean']:.4f}" + (f" ± {final['deviation']:.4f}" if "deviation" in final else ""),
        "yes" if line["ranks_agree"] else "NO",
    ]


def seconds(records: Sequence[Raw]) -> dict[int, float]:
    """Time to target by seed, for runs that reached it."""
    found = {}
    for raw in records:
        task = find_task(raw["workload"])
        if point := to_run(raw).reached(task.metric, task.check_target()):
            found[raw["seed"]] = point.seconds
    return found


def to_run(raw: Raw) -> Run:
    return Run(raw["method"], [Point(**point) for point in raw["points"]], raw["identical"])


def show(over: dict[str, Any] | None, digits: int) -> str:
    if over is None:
        return "-"
    return f"{over['median']:.{digits}f} ({over['lowest']:.{digits}f} to {over['highest']:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=parse_rate, default="100Mbit", help="link rate, or unshaped")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--workloads", default=",".join(TARGETS))
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--steps", type=int, help="fewer steps, for a smoke test")
    parser.add_argument(
        "--append", type=Path, help="file of raw results, to which runs are added; the tables include all of them"
    )
    add_option(parser)
    args = parser.parse_args()
    methods = parse_methods(args.methods, bits=4)
    records: list[Raw] = json.loads(args.append.read_text()) if args.append and args.append.exists() else []
    for workload in args.workloads.split(","):
        for seed in range(args.first, args.first + args.seeds):
            records = merge(records, run_comparison(workload, methods, seed, args))
            if args.append:
                args.append.write_text(json.dumps(records))
    tables(records, Record(args.json, seed=args.first))


if __name__ == "__main__":
    main()

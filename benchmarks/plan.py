"""How far the predictions of `sumwire plan` are from what was measured.

    python -m benchmarks.plan
    sumwire plan --calibrate
    python -m benchmarks.exchange --rates 1Gbit,10Gbit --runs 5 --json measured.jsonl
    python -m benchmarks.plan --measured measured.jsonl --steps benchmarks/results/lab/throughput.jsonl

Without options: of every exchange in results/exchange.jsonl and every training in results/time_to_target.jsonl, except
those with PowerSGD, which the model does not have. No calibration of their machine was kept: kernels have the speeds of
results/kernels.jsonl, which is of the same one; what a byte costs is solved for from three of the 40 exchanges, those
on the loopback device without DDP. The compute time of a training is solved for from its fp32 run. Points that
something was solved for from are "fitted", and not counted. The exchanges that docs/benchmarks.md reports in prose are
"quoted": they are newer, and of the kind of machine whose costs come with Sumwire.

--measured, --steps: exchanges and steps that were just measured here, against the calibration of this machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.tables.render import newest
from sumwire.aggregate import transports
from sumwire.aggregate.cost_model import BUSY, LATENCY, Job, Link, Machine, Stage, all_reduce, predict, sharded
from sumwire.codec.lattice.codec import Lattice
from sumwire.errors import ConfigError
from sumwire.lab.calibration import DEFAULT, load
from sumwire.lab.links import format_rate, parse_rate
from sumwire.lab.plan import parameters_of
from sumwire.lab.record import Record, add_option
from sumwire.lab.workloads import TRACES, find
from sumwire.train.options import ENERGY

TOLERANCE = 0.2
RANKS, CORES = 4, 2
"""Of all exchanges: on one machine."""
ROUND_TRIP = 1e-4
"""Seconds between namespaces of one machine, at most."""

# The transcribed lines are from before sums were narrow, and terms were single bytes.
BEFORE: dict[str, dict[str, Any]] = {
    "sumwire-4": {"bits": 4, "lane_bits": 6},
    "sumwire-2": {"bits": 2, "lane_bits": 4},
    "sumwire-12-in-all": {"bits": 5, "lane_bits": 7},
    "sumwire-4-feedback": {"bits": 4, "lane_bits": 6, "feedback": True},
}
NOW: dict[str, dict[str, Any]] = {
    "sumwire-4": {"bits": 4},
    "sumwire-2": {"bits": 2},
    "sumwire-12-in-all": {"total_bits": 12},
    "sumwire-4-feedback": {"bits": 4, "feedback": True},
    "sumwire-4-down-5": {"bits": 4, "down_bits": 5},
}
ADDING = "table add of 8 payloads into 8-bit lanes, Gbit/s of payload"
FITTED = ("alone: fp32", "alone: fp16", "alone: sumwire-4")
"""On the loopback device."""
QUOTED = {
    ("100 Mbit/s", "alone: fp32"): 12994,
    ("100 Mbit/s", "alone: sumwire-4"): 2375,
    ("100 Mbit/s", "alone: switch-4"): 2106,
    ("1 Gbit/s", "alone: sumwire-4"): 314,
    ("10 Gbit/s", "alone: sumwire-4"): 184,
}
"""Milliseconds of exchanges, from docs/benchmarks.md: with narrow sums, on 2 virtual cores of an AMD EPYC."""
DENSE: tuple[transports.Dense, ...] = ("fp32", "bf16", "fp16")
STEPS: dict[str, dict[str, Any]] = {
    **{f"sumwire-{bits}": {"bits": bits} for bits in (2, 4)},
    **{f"sumwire-total-{total}": {"total_bits": total} for total in (6, 8, 10, 12, 16)},
}
"""Methods of `sumwire lab run throughput`."""
FITTED_STEPS = "gpt-small"
"""The workload whose steps the model's form was chosen by."""
METHODS = {"fp32": "fp32", "fp16 hook": "fp16", "Sumwire, 4-bit": "sumwire-4", "Sumwire, 2-bit": "sumwire-2"}
"""Of trainings, as contenders of exchanges."""


@dataclass(frozen=True)
class Point:
    """A measured time and its prediction, in milliseconds."""

    source: str
    link: str
    contender: str
    measured: float
    predicted: float
    fitted: bool = False

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def within(self) -> bool:
        return abs(self.ratio - 1) <= TOLERANCE


def transcribed_machine() -> Machine:
    """The machine of the transcribed lines, from what is known of it."""
    kernels = {line["what"]: line["value"] for line in newest("kernels", transcribed=True) if line["level"] == "avx512"}
    speed = kernels["memcpy of 64 MiB, GB/s"]
    copy = 4 / float((speed["lowest"] + speed["highest"]) / 2)

    def cost(what: str) -> float:
        return float(kernels[what]["median"]) * copy

    propose, encode = cost("propose (norms)"), cost("encode, per-block widths, 4 bits on average")
    decode, add = cost("decode, per-block widths, n=4"), 4 / kernels[ADDING]["median"]
    residual = cost("encode with residual, in place, 4 bits") - cost("encode, fixed 4 bits")
    lines = {
        line["contender"]: line
        for line in exchanges(newest("exchange", transcribed=True))
        if line["link"] == "loopback"
    }
    # Without links, CPU is the limit: elapsed time in which cores were busy, of all cores, for all ranks.
    fp32, fp16, coded = (1e6 * BUSY * CORES / RANKS * lines[name]["ms"]["median"] for name in FITTED)
    values = lines[FITTED[0]]["values"]
    job = Job(values=values, workers=RANKS)
    dense, codec = all_reduce(RANKS, values), codec_of("sumwire-4", BEFORE)
    traffic = sharded(RANKS, *codec.expected_bits(values))
    messages = 1e9 * job.rounds * LATENCY
    per_byte = (fp32 - messages * dense.messages) / (dense.bits / 8)
    half = (fp16 - messages * dense.messages - per_byte * dense.bits / 16) / values
    kernels_ns = (propose + encode + add + decode) * values
    exchange = (coded - messages * traffic.messages - kernels_ns) / (traffic.bits / 8)
    return Machine(
        name=lines[FITTED[0]]["machine"], propose=propose, encode=encode, add=add, narrow=0.0, decode=decode,
        residual=residual, copy=copy, cast=half, bf16=0.0, fp16=0.0, all_reduce=per_byte, exchange=exchange,
        message=1e9 * LATENCY, round=0.0, step=0.0,
    )  # fmt: skip


def exchanges(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those that the model can predict."""
    for line in lines:
        name = line["contender"].partition(": ")[2]
        if line["section"] == "main" and name in (*DENSE, *BEFORE, *NOW):
            yield line


def codec_of(contender: str, codecs: dict[str, dict[str, Any]], ranks: int = RANKS) -> Lattice:
    options = codecs[contender] | ({"terms": "exact"} if codecs is BEFORE else {})
    return Lattice(ranks, energy=ENERGY, **options)


def stages_of(contender: str, job: Job, link: Link, machine: Machine, codecs: dict[str, dict[str, Any]]) -> list[Stage]:
    for kind in DENSE:
        if contender == kind:
            return transports.dense(job, link, machine, kind)
    if contender == "switch-4":
        return transports.by_packets(job, link, machine, codec_of("sumwire-4", codecs))
    return transports.over_group(job, link, machine, codec_of(contender, codecs, job.workers))


def link_of(name: str) -> Link:
    return Link(None if name == "loopback" else parse_rate(name.replace("bit/s", "bit")), ROUND_TRIP)


def of_exchanges(
    source: str, lines: Sequence[dict[str, Any]], machine: Machine, codecs: dict[str, dict[str, Any]]
) -> Iterator[Point]:
    for line in exchanges(lines):
        where, _, contender = line["contender"].partition(": ")
        job = Job(values=line["values"], workers=line["ranks"], ranks_per_host=line["ranks"], cores=CORES)
        # Without DDP, nothing is copied into buckets, and nothing else is done for it.
        own = machine if where == "DDP" else replace(machine, copy=0.0, step=0.0)
        step = predict(stages_of(contender, job, link_of(line["link"]), own, codecs), job).step
        fitted = codecs is BEFORE and line["link"] == "loopback" and line["contender"] in FITTED
        yield Point(source, line["link"], line["contender"], line["ms"]["median"], 1e3 * step, fitted)


def of_quoted() -> Iterator[Point]:
    values = next(exchanges(newest("exchange", transcribed=True)))["values"]
    job = Job(values=values, workers=RANKS, ranks_per_host=RANKS, cores=CORES)
    machine = replace(DEFAULT, copy=0.0, step=0.0)
    for (link, name), measured in QUOTED.items():
        step = predict(stages_of(name.removeprefix("alone: "), job, link_of(link), machine, NOW), job).step
        yield Point("quoted", link, name, measured, 1e3 * step)


def of_trainings(machine: Machine) -> Iterator[Point]:
    """Steps, of which the compute time is whatever fp32 leaves for it."""
    lines = [line for line in newest("time_to_target") if line["method"] in METHODS]
    for task in dict.fromkeys(line["task"] for line in lines):
        values = parameters_of(find(task).model(find(task).load(0)))
        job = Job(values=values, workers=RANKS, ranks_per_host=RANKS, cores=CORES)
        mine = {METHODS[line["method"]]: line for line in lines if line["task"] == task}
        for contender, line in mine.items():
            measured, link = line["ms_per_step"]["median"], link_of(line["link"])
            if contender == "fp32":
                exchange = predict(stages_of(contender, job, link, machine, BEFORE), job).step
                job = replace(job, compute=max(0.0, measured / 1e3 - exchange))
            step = predict(stages_of(contender, job, link, machine, BEFORE), job).step
            yield Point(
                "time_to_target", line["link"], f"{task}: {contender}", measured, 1e3 * step, contender == "fp32"
            )


def of_steps(lines: Sequence[dict[str, Any]], machine: Machine) -> Iterator[Point]:
    """Steps of `sumwire lab run throughput`, which also timed steps in which nothing is exchanged: they do not depend
    on the links, so their median over these counts."""
    known = [line for line in lines if line["method"] in (*DENSE, *STEPS)]
    if not all("compute_ms" in line for line in known):
        raise ConfigError(
            "steps without compute_ms: measure them again with `sumwire lab run throughput --full --again`"
        )
    for workload, workers in dict.fromkeys((line["workload"], line["workers"]) for line in known):
        mine = [line for line in known if (line["workload"], line["workers"]) == (workload, workers)]
        compute = median(line["compute_ms"] for line in mine) / 1e3
        job = Job(values=mine[0]["values"], workers=workers, ranks_per_host=workers, cores=CORES, compute=compute)
        source = "true sizes" if workload in TRACES else "small models"
        for line in mine:
            stages = stages_of(line["method"], job, Link(line["rate"], ROUND_TRIP), machine, STEPS)
            what = f"{workload}, {workers} workers: {line['method']}"
            predicted = 1e3 * predict(stages, job).step
            yield Point(source, format_rate(line["rate"]), what, line["ms"], predicted, workload == FITTED_STEPS)


def published() -> list[Point]:
    """All points of the results files."""
    machine = transcribed_machine()
    return [
        *of_exchanges("exchange", newest("exchange", transcribed=True), machine, BEFORE),
        *of_trainings(machine),
        *of_quoted(),
    ]


def measured_here(measured: Path | None, steps: Path | None) -> list[Point]:
    """Points that were measured on this machine."""
    machine = load()
    if machine is None:
        raise ConfigError("no calibration of this machine: measure it with `sumwire plan --calibrate`, then come again")
    points: list[Point] = []
    if measured is not None:
        points += of_exchanges("here", lines_of(measured, machine), machine, NOW)
    if steps is not None:
        points += of_steps(lines_of(steps, machine), machine)
    return points


def lines_of(path: Path, machine: Machine) -> list[dict[str, Any]]:
    """Of a results file, if they were measured where the calibration was."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    foreign = {line["machine"] for line in lines} - {machine.name}
    if foreign:
        raise ConfigError(f"{path} was measured on {', '.join(foreign)}, the calibration is of {machine.name}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, help="lines of benchmarks.exchange, measured on this machine")
    parser.add_argument("--steps", type=Path, help="lines of sumwire lab run throughput, measured on this machine")
    add_option(parser)
    given = parser.parse_args()
    here = given.measured or given.steps
    points = measured_here(given.measured, given.steps) if here else published()
    record = Record(given.json, seed=0)
    print("| source | link | what | measured, ms | predicted, ms | ratio |\n|---|---|---|---|---|---|")
    for point in points:
        note = " fitted" if point.fitted else "" if point.within else " **misses**"
        times = f"{point.measured:.0f} | {point.predicted:.0f} | {point.ratio:.2f}{note}"
        print(f"| {point.source} | {point.link} | {point.contender} | {times} |")
        record.add(
            section="points", source=point.source, link=point.link, contender=point.contender,
            measured_ms=point.measured, predicted_ms=point.predicted, ratio=point.ratio, note=note.strip(" *"),
        )  # fmt: skip
    for source in dict.fromkeys(point.source for point in points):
        counted = [point for point in points if point.source == source and not point.fitted]
        within = sum(point.within for point in counted)
        share = 100 * within / len(counted)
        print(f"\n{source}: {within} of {len(counted)} within {TOLERANCE:.0%}, {share:.0f} %")
        record.add(section="share", source=source, points=len(counted), within=within, percent=share)


if __name__ == "__main__":
    main()

"""The in-network aggregator between hosts in namespaces: is every sum right, and how fast are they?

python -m benchmarks.switch stress        100,000 chunks over bad links: no sum may be wrong
python -m benchmarks.switch throughput    end to end, against an aggregator in user space
python -m benchmarks.switch rate          packets per second of one core of the switch
python -m benchmarks.switch loss          accuracy of training over links that lose packets, beside fp32

Needs root, iproute2 and a C compiler; the load generator is compiled when it starts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.switch import cores, loss
from benchmarks.switch.load import KERNEL, USER, Load, aggregating, exchange, generator, job_of
from sumwire.lab.record import Record, add_option, spread
from sumwire.lab.testbed import Impairment, SwitchedNetwork, switched_network

BAD = Impairment(loss=0.03, duplicates=0.05, reordering=0.05)
COUNTED = ("wrong", "resent", "late", "expired")


def measure(
    bed: SwitchedNetwork, program: Path, aggregator: str, load: Load, *, quorum: int | None = None
) -> list[dict[str, Any]]:
    """What every worker counted in one exchange."""
    job = job_of(bed, load, quorum=quorum)
    with aggregating(bed, aggregator, job, program):
        return exchange(bed, program, job, load, padded=aggregator in ("xdp", "generic"))


def stress(program: Path, options: argparse.Namespace, record: Record) -> bool:
    """Whether no sum was wrong."""
    right = True
    titles = ("aggregator", "workers", "quorum", "chunks", *COUNTED, "lost", "doubled", "reordered", "seconds")
    print("".join(f"{title:>10}" for title in titles))
    for aggregator in options.aggregators or ["tc"]:
        for workers in options.workers or [2, 4, 8, 16]:
            quorum = workers - 1 if options.straggler else workers
            load = Load(chunks=options.chunks, straggle=(2000,) if options.straggler else ())
            with switched_network(workers, impairment=BAD) as bed:
                found = measure(bed, program, aggregator, load, quorum=quorum)
                links = bed.impaired()
            total = {name: sum(each[name] for each in found) for name in found[0]}
            seconds = max(each["seconds"] for each in found)
            # Nothing is lost: every worker has a result for every chunk, or was told that it came too late for it.
            whole = total["results"] + total["expired"] == workers * options.chunks
            right = right and whole and not total["wrong"] and not total["other"]
            figures = [workers, quorum, options.chunks, *(total[name] for name in COUNTED), *links.values(), seconds]
            print(f"{aggregator:>10}" + "".join(f"{figure:10.6g}" for figure in figures), flush=True)
            record.add(
                section="stress",
                aggregator=aggregator,
                workers=workers,
                quorum=quorum,
                chunks=options.chunks,
                seconds=seconds,
                **{name: total[name] for name in COUNTED},
                **links,
            )
    return right


def throughput(program: Path, options: argparse.Namespace, record: Record) -> None:
    """Fp32-equivalent rate of each worker, and the ratio to the user-space aggregator in the same run."""
    contenders = options.aggregators or ["user", "broadcast", "tc", "generic", "xdp"]
    print("aggregator  workers  Mpackets/s  Gbit/s of fp32 per worker  x user")
    for workers in options.workers or [4, 8]:
        load = Load(chunks=options.chunks, result=options.result)
        samples: dict[str, list[float]] = {name: [] for name in contenders}
        with switched_network(workers, mtu=1500 if options.result <= 1408 else 9000) as bed:
            for _ in range(options.runs):
                for name in contenders:
                    found = measure(bed, program, name, load)
                    _check(found)
                    samples[name].append(workers * load.chunks / max(each["seconds"] for each in found))
        for name in contenders:
            ratios = [mine / user for mine, user in zip(samples[name], samples["user"], strict=True)]
            rate, fp32 = median(samples[name]), median(samples[name]) / workers * load.result * 32
            print(f"{name:10}  {workers:7}  {rate / 1e6:10.3f}  {fp32 / 1e9:25.2f}  {median(ratios):6.2f}", flush=True)
            record.add(
                section="throughput",
                aggregator=name,
                workers=workers,
                result=load.result,
                packets_per_second=spread(samples[name]),
                ratio=spread(ratios),
            )


def rate(program: Path, options: argparse.Namespace, record: Record) -> None:
    """Packets that one core of the switch takes and answers per second."""
    contenders = options.aggregators or ["user", "broadcast", "tc", "generic", "xdp"]
    print("aggregator  workers  us of CPU per packet  kpackets/s per core  x user")
    for workers in options.workers or [4]:
        load = Load(chunks=options.chunks, result=options.result)
        samples: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.runs):
            for name in contenders:
                samples[name].append(_core_seconds(program, name, workers, load) / (workers * load.chunks))
        for name in contenders:
            ratios = [user / mine for mine, user in zip(samples[name], samples["user"], strict=True)]
            cost = median(samples[name])
            print(f"{name:10}  {workers:7}  {cost * 1e6:20.2f}  {1e-3 / cost:19.0f}  {median(ratios):6.2f}", flush=True)
            record.add(
                section="rate",
                aggregator=name,
                workers=workers,
                result=load.result,
                microseconds_per_packet=spread([1e6 * sample for sample in samples[name]]),
                ratio=spread(ratios),
            )


def _core_seconds(program: Path, name: str, workers: int, load: Load) -> float:
    with switched_network(workers) as bed:
        job = job_of(bed, load)
        with aggregating(bed, name, job, program) as process:
            threads = cores.pin(bed, process)
            before = cores.cpu_seconds(threads)
            _check(exchange(bed, program, job, load, padded=name in ("xdp", "generic"), core=cores.WORKER_CORE))
            return cores.cpu_seconds(threads) - before


def _check(found: list[dict[str, Any]]) -> None:
    wrong = sum(each["wrong"] for each in found)
    if wrong:
        raise SystemExit(f"{wrong} sums were wrong: these figures mean nothing")


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["stress", "throughput", "rate", "loss"])
    parser.add_argument("--workers", type=_numbers, help="numbers of workers, such as 4,8")
    known = f"of {', '.join(USER + KERNEL)}"
    parser.add_argument("--aggregators", type=lambda text: text.split(","), help=known)
    parser.add_argument("--chunks", type=int, help="chunks of each exchange")
    parser.add_argument("--result", type=int, default=1024, help="bytes of a result, one for each lane")
    parser.add_argument("--runs", type=int, default=5, help="exchanges of each aggregator, in turn")
    parser.add_argument("--straggler", action="store_true", help="stress: one slow worker, and a quorum without it")
    parser.add_argument("--loss", type=float, default=0.01, help="loss: share of packets lost in each direction")
    parser.add_argument("--deadline", type=float, default=0.1, help="loss: seconds that the switch waits, if lossy")
    parser.add_argument("--seeds", type=int, default=3, help="loss: trainings of each method")
    parser.add_argument("--append", type=Path, help="loss: file of trainings; those in it are not repeated")
    parser.add_argument("--steps", type=int, help="loss: fewer steps, for a smoke test")
    add_option(parser)
    options = parser.parse_args()
    record = Record(options.json, seed=0)
    if options.what == "loss":
        loss.run(options, record)
        return
    options.chunks = options.chunks or {"stress": 100_000, "throughput": 20_000, "rate": 20_000}[options.what]
    with generator() as program:
        if options.what == "stress":
            sys.exit(not stress(program, options, record))
        (throughput if options.what == "throughput" else rate)(program, options, record)


if __name__ == "__main__":
    main()

"""Bytes a second through the server beside iperf3, and its processes' CPU time beside a server that decompresses."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import sumwire
from benchmarks.server.common import BITS, DECOMPRESSING, LIMIT, Task, span, spawn, verdict
from benchmarks.server.decompressing import DecompressServer
from benchmarks.server.feeder import average, feed
from sumwire.lab.record import Record, spread

TICK = os.sysconf("SC_CLK_TCK")
LINK = "whole `link.average`"


def cpu_seconds(pids: list[int]) -> tuple[float, float]:
    """User and system time of processes, so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) for stat in stats) / TICK, sum(int(stat[12]) for stat in stats) / TICK


def children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def guarded(work: Callable[..., None], task: Task, rank: int, gate: Any, out: Any) -> None:
    try:
        work(task, rank, gate, out)
    except BaseException:
        gate.abort()  # nobody need wait for us
        raise


class Run(NamedTuple):
    """Of one contender: bytes through its sockets in both directions, CPU of the server's processes."""

    seconds: float
    bytes: float
    user: float = 0.0
    system: float = 0.0

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds / 1e9


@contextmanager
def crew(server: Any, work: Callable[..., None], task: Task) -> Iterator[Callable[[], Run]]:
    """A server and its workers; each call is a run of `rounds` rounds."""
    before = children()
    with server:
        pids = sorted(children() - before)
        gate, out = spawn.Barrier(task.workers + 1), spawn.Queue()
        task = task._replace(address=server.address)
        workers = [spawn.Process(target=guarded, args=(work, task, rank, gate, out)) for rank in range(task.workers)]
        for worker in workers:
            worker.start()

        def run() -> Run:
            gate.wait(LIMIT)
            start, (user, system) = time.perf_counter(), cpu_seconds(pids)
            gate.wait(LIMIT)
            seconds, (user_then, system_then) = time.perf_counter() - start, cpu_seconds(pids)
            moved = sum(out.get() for _ in workers)
            return Run(seconds, moved, user_then - user, system_then - system)

        try:
            run()
            yield run
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()


@contextmanager
def iperf3(connections: int, seconds: float) -> Iterator[Callable[[], Run]]:
    """What the machine's TCP moves by this many connections in each direction."""
    if shutil.which("iperf3") is None:
        sys.exit("iperf3 was not found: apt-get install iperf3")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    serving = subprocess.Popen(["iperf3", "-s", "-p", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run() -> Run:
        command = ["iperf3", "-c", "127.0.0.1", "-p", port, "-P", str(connections), "--bidir", "-t", f"{seconds:g}"]
        end = json.loads(subprocess.run([*command, "-J"], check=True, capture_output=True).stdout)["end"]
        both = [end["sum_received"], end["sum_received_bidir_reverse"]]
        return Run(1.0, sum(way["bytes"] / way["seconds"] for way in both))

    try:
        time.sleep(0.5)
        yield run
    finally:
        serving.terminate()
        serving.wait()


def throughput(given: argparse.Namespace) -> None:
    workers, size, rounds = given.ranks, given.size, given.rounds
    task = Task("", workers, size, rounds, given.runs, given.window)
    with ExitStack() as stack:
        contenders = {"iperf3": stack.enter_context(iperf3(workers, given.seconds))}
        for shards in (1, 2):
            server = sumwire.Server(workers, shards=shards)
            contenders[f"{shards} shard{'s' * (shards > 1)}"] = stack.enter_context(crew(server, feed, task))
        yardstick = DecompressServer(workers)
        contenders[DECOMPRESSING] = stack.enter_context(crew(yardstick, feed, task))
        whole = task._replace(rounds=max(1, rounds // 4))
        contenders[LINK] = stack.enter_context(crew(sumwire.Server(workers), average, whole))
        runs = [{name: run() for name, run in contenders.items()} for _ in range(given.runs)]
    print(f"\n### {workers} workers, {size:,} coordinates, {BITS} bits, loopback\n")
    print(f"`python -m benchmarks.server {' '.join(sys.argv[1:])}`: median [lowest - highest] of {given.runs} runs of")
    print(f"{rounds} rounds, {given.window} in flight at once; iperf3 with -P {workers} --bidir, {given.seconds:g} s\n")
    print("| | GB/s through the server, in + out | of iperf3, % | rounds/s | server CPU, ns a value | user | system |")
    print("|---|---|---|---|---|---|---|")
    record, about = (
        Record(given.json, seed=0),
        {"coordinates": size, "workers": workers, "bits": BITS, "runs": given.runs},
    )
    for name in contenders:
        line = figures(name, runs, whole.rounds if name == LINK else rounds, workers * size)
        forms = {
            "gb_per_second": ".2f",
            "percent_of_iperf3": ".0f",
            "rounds_per_second": ".1f",
            "cpu_ns_per_value": ".2f",
        }
        cells = [name, *(span(line[key]["samples"], form) if key in line else "" for key, form in forms.items())]
        cells += [f"{line[key]:.2f}" if key in line else "" for key in ("user_ns", "system_ns")]
        print("| " + " | ".join(cells) + " |")
        record.add(section="rates", **about, what=name, **line)
    print()
    for name in [name for name in contenders if "shard" in name]:
        share = median(run[name].rate / run["iperf3"].rate for run in runs)
        print(f"- The bar, 60 % of iperf3, with {name}: {share:.0%}, **{'met' if share >= 0.6 else 'missed'}**.")
    ratios = [cpu_of(run[DECOMPRESSING]) / cpu_of(run["1 shard"]) for run in runs]
    print(f"- CPU of {DECOMPRESSING} / ours, sockets and all: {span(ratios, '.1f')}; {verdict(median(ratios))}.")
    what = f"CPU of {DECOMPRESSING} over ours, with TCP"
    record.add(section="ratio", **about, what=what, cpu_ratio=spread(ratios))


def figures(name: str, runs: list[dict[str, Run]], rounds: int, values: int) -> dict[str, Any]:
    """What is recorded of a contender, whose runs have `rounds` rounds of `values` values."""
    own, line = [run[name] for run in runs], {}
    if name != LINK:
        line["gb_per_second"] = spread([run.rate for run in own])
    if name == "iperf3":
        return line
    if name != LINK:
        line["percent_of_iperf3"] = spread([100 * run[name].rate / run["iperf3"].rate for run in runs])
    each = 1e9 / (rounds * values)
    return line | {
        "rounds_per_second": spread([rounds / run.seconds for run in own]),
        "cpu_ns_per_value": spread([each * (run.user + run.system) for run in own]),
        "user_ns": median(each * run.user for run in own),
        "system_ns": median(each * run.system for run in own),
    }


def cpu_of(run: Run) -> float:
    """In seconds; the system counts ticks, so that none is less than one of them."""
    return max(run.user + run.system, 1 / TICK)

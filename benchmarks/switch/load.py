"""Runs the load generator of this folder on the hosts of a testbed, against an aggregator in or above the kernel."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.switch.switch import Switch
from sumwire.lab.launch import LaunchError
from sumwire.lab.namespaces import PREFIX, inside
from sumwire.lab.testbed import SwitchedNetwork

KERNEL = ("tc", "xdp", "generic")
USER = ("user", "broadcast")
"""A recvmmsg server that sends results to each worker, or once to all."""

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))
_SECRET = "a secret of benchmarks"


@contextmanager
def generator() -> Iterator[Path]:
    """The load generator, compiled for this machine."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "switch-load"
        subprocess.run(
            ["cc", "-std=gnu11", "-O3", "-march=native", "-Wall", *map(str, _SOURCES), "-o", str(program)], check=True
        )
        yield program


@dataclass(frozen=True, kw_only=True)
class Load:
    """What every worker sends: chunks of 4-bit indices whose results have `result` lanes of 8 bits."""

    chunks: int
    window: int = 128
    result: int = 1024
    straggle: Sequence[int] = ()
    """Microseconds that workers wait before each batch, by rank; 0 for the others."""


def job_of(bed: SwitchedNetwork, load: Load, *, quorum: int | None = None, deadline: float | None = None) -> JobOptions:
    """All hosts of a testbed in one job, each at its own port."""
    peers = tuple(f"{host.address}@{port}" for host, port in zip(bed.hosts, bed.ports, strict=True))
    return JobOptions(
        number=1, secret=_SECRET, peers=peers, quorum=quorum, deadline=deadline, window=load.window, channels=1
    )


@contextmanager
def aggregating(bed: SwitchedNetwork, aggregator: str, job: JobOptions, program: Path) -> Iterator[int | None]:
    """An aggregator in the testbed's switch; the process in which it adds, if it is one."""
    with ExitStack() as stack:
        if aggregator in KERNEL:
            switch = Switch(bed.ports, [job], address=bed.switch.address, mode=aggregator)
            inside(bed.switch_pid, switch.start)
            stack.callback(switch.stop)
            yield None
            return
        everyone = f"{PREFIX}.255" if aggregator == "broadcast" else "-"
        server = subprocess.Popen(
            [*bed.switch.enter, str(program), "server", bed.switch.address, str(job.workers), everyone]
        )
        stack.enter_context(server)
        stack.callback(server.kill)
        yield server.pid


def exchange(
    bed: SwitchedNetwork,
    program: Path,
    job: JobOptions,
    load: Load,
    *,
    padded: bool,
    core: int | None = None,
    seconds: float = 600.0,
) -> list[dict[str, Any]]:
    """All workers' exchange, on one core or any: what each of them counted."""
    with ExitStack() as stack:
        workers = []
        for rank, host in enumerate(bed.hosts):
            straggle = load.straggle[rank] if rank < len(load.straggle) else 0
            pinned = () if core is None else ("taskset", "--cpu-list", str(core))
            command = [*host.enter, *pinned, str(program), "worker", bed.switch.address, str(rank), str(job.workers)]
            command += [str(load.chunks), str(load.window), str(load.result), str(int(padded))]
            command += [str(job.keys[0]), str(straggle)]
            worker = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(worker.kill)
            workers.append(worker)
        end = time.monotonic() + seconds
        while any(worker.poll() is None for worker in workers):
            failed = [rank for rank, worker in enumerate(workers) if worker.poll()]
            if failed or time.monotonic() > end:
                raise LaunchError(f"workers {failed} failed" if failed else f"no end after {seconds:.0f} s")
            time.sleep(0.02)
        return [json.loads(worker.communicate()[0]) for worker in workers]

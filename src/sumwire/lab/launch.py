"""Run one Python module as the ranks of a torch process group, a rank on each host of a network.

torchrun does the starting: one agent per host, or one for all ranks where hosts are this machine. Ranks
find the usual environment (RANK, WORLD_SIZE, MASTER_ADDR, ...) and speak to us with `report`.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, Any, NamedTuple

from sumwire.errors import ConfigError, SumwireError
from sumwire.lab.links import Host, Network

PORT = 29500
"""Where host 0's agent listens. Namespaces are ours alone, so nobody else has it."""

TAIL_LINES = 20
"""So much of a failed rank's stderr goes into the error."""

_REPORT = "SUMWIRE_REPORT"
_POLL = 0.05
_GRACE = 2.0
"""Ranks that lost a peer fail too, and torchrun may see them first: wait so long for the one to blame."""
_LAST_BREATH = 10.0

_FAILED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")


class LaunchError(SumwireError, RuntimeError):
    """Ranks failed or took too long. None of them runs any more."""


def report(**fields: Any) -> None:
    """Hand one JSON object to the `on_line` of whoever launched this rank; without a launcher, do nothing."""
    path = os.environ.get(_REPORT)
    if path is None:
        return
    # A file and not a pipe: torchrun closes pipes, and a busy launcher must not block a rank that measures time.
    with open(path, "ab", buffering=0) as file:
        file.write(json.dumps(fields).encode() + b"\n")  # one write in append mode: ranks never interleave


def launch(
    network: Network,
    module: str,
    arguments: Sequence[str],
    *,
    on_line: Callable[[dict[str, Any]], None],
    timeout: float,
) -> None:
    """Run `python -m module *arguments` as one rank per host until all end well, else raise `LaunchError`.

    `on_line` gets what ranks `report`, in the order of their reports. No process outlives the call, whether
    it returns, raises, or is interrupted; if we are killed, the kernel kills them.
    """
    if timeout <= 0:
        raise ConfigError(f"timeout={timeout}: ranks need some seconds to start; give more than 0")
    deadline = monotonic() + timeout
    with TemporaryDirectory(prefix="sumwire-") as name:
        directory = Path(name)
        (directory / "failures").touch()
        with (directory / "report").open("ab+") as reports, _agents(network, module, arguments, directory) as agents:
            while True:
                codes = agents.poll(_POLL)
                for line in _lines(reports):
                    on_line(line)
                if all(code == 0 for code in codes):
                    return
                if any(codes):
                    raise _failure(agents, directory, module)
                if monotonic() > deadline:
                    raise LaunchError(
                        f"{len(network.hosts)} ranks of {module} did not end within {timeout:g} s and were stopped; "
                        f"raise timeout or give them less to do{_tails(directory)}"
                    )


class _Agents(NamedTuple):
    processes: list[subprocess.Popen[bytes]]
    stdout: int
    """Read end of the stdout of all agents and all ranks: it ends when the last of them is gone."""

    def poll(self, seconds: float) -> list[int | None]:
        """Wait a little, and swallow what ranks print."""
        if select.select([self.stdout], [], [], seconds)[0]:
            os.read(self.stdout, 1 << 16)
        return [process.poll() for process in self.processes]

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        deadline = monotonic() + _LAST_BREATH
        while select.select([self.stdout], [], [], max(0.0, deadline - monotonic()))[0]:
            if not os.read(self.stdout, 1 << 16):
                break


@contextmanager
def _agents(network: Network, module: str, arguments: Sequence[str], directory: Path) -> Iterator[_Agents]:
    """One torchrun per host, or one for all, and the end of them all."""
    # torchrun gives ranks sessions of their own, out of reach of a signal to its process group, and may take minutes
    # to heed SIGTERM. So everyone is tied to their parent: the kernel kills ranks when their agent is gone.
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ConfigError("`setpriv` was not found; the lab runs on Linux and needs the package util-linux")
    # -P: of the current directory only what `_path` puts there is to be run.
    tied = [setpriv, "--pdeathsig", "KILL", sys.executable, "-P"]
    worker = ["--no-python", *tied, "-m", __name__, str(directory / "failures"), module, *arguments]
    hosts = network.hosts if network.shaped else network.hosts[:1]
    read, write = os.pipe()
    agents = _Agents([], read)
    with ExitStack() as stack:
        stack.callback(os.close, read)
        stack.callback(agents.stop)
        try:
            for number, host in enumerate(hosts):
                logs = directory / f"host{number}"
                options = [*_rendezvous(network, number), "--redirects", "2", "--log-dir", str(logs)]
                with (directory / f"agent{number}").open("wb") as stderr:
                    command = [*host.enter, *tied, "-m", "torch.distributed.run", *options, *worker]
                    agents.processes.append(_start(command, host, directory, write, stderr, _path(module)))
        finally:
            os.close(write)
        yield agents


def _rendezvous(network: Network, number: int) -> list[str]:
    host, workers = network.hosts[number], len(network.hosts)
    if not network.shaped:
        # Port 0: the agent finds a free one, and no one can take it in between.
        endpoint = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host.address}:0"]
        return ["--nproc-per-node", str(workers), *endpoint, "--local-addr", host.address]
    place = ["--nnodes", str(workers), "--node-rank", str(number), "--nproc-per-node", "1"]
    return [*place, "--master-addr", network.hosts[0].address, "--master-port", str(PORT), "--local-addr", host.address]


def _path(module: str) -> dict[str, str]:
    """Where ranks find a module: the current directory, too, unless it is one of ours."""
    if module.startswith("sumwire."):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())]))}


def _start(
    command: Sequence[str], host: Host, directory: Path, stdout: int, stderr: IO[bytes], path: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    environment = (
        os.environ
        | path
        | {
            _REPORT: str(directory / "report"),
            "GLOO_SOCKET_IFNAME": host.interface,
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
    )
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )


def _lines(reports: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Whole lines that were added since the last call."""
    while (line := reports.readline()).endswith(b"\n"):
        yield json.loads(line)
    reports.seek(-len(line), os.SEEK_CUR)


def _failure(agents: _Agents, directory: Path, module: str) -> LaunchError:
    deadline = monotonic() + _GRACE
    while monotonic() < deadline and None in agents.poll(_POLL):
        pass
    said = [(directory / f"agent{number}").read_text(errors="replace") for number in range(len(agents.processes))]
    failed = {int(rank): int(code) for text in said for rank, code in _FAILED.findall(text)}
    if not failed:
        return LaunchError(f"torchrun could not run {module}:\n{_tail(''.join(said))}")
    order = [int(rank) for rank in (directory / "failures").read_text().split()]
    blamed = min(failed, key=lambda rank: (_innocence(failed[rank]), order.index(rank) if rank in order else 0))
    code = failed[blamed]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    words = _tail(_logs(directory)[blamed].read_text(errors="replace")) or "(it wrote nothing to stderr)"
    return LaunchError(f"rank {blamed} of {module} {how}:\n{words}")


def _innocence(code: int) -> int:
    """Killed ranks (out of memory, say) leave no word and make others fail; SIGTERM is torchrun clearing up."""
    return 2 if code == -signal.SIGTERM else 1 if code > 0 else 0


def _logs(directory: Path) -> dict[int, Path]:
    """Each rank's stderr. Either every host has one rank, or there is one host: its number or the rank's is 0."""
    found = directory.glob("host*/*/attempt_0/*/stderr.log")
    return {int(path.parts[-5].removeprefix("host")) + int(path.parts[-2]): path for path in found}


def _tails(directory: Path) -> str:
    texts = {rank: _tail(path.read_text(errors="replace")) for rank, path in sorted(_logs(directory).items())}
    return "".join(f"\nrank {rank} said:\n{text}" for rank, text in texts.items() if text)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-TAIL_LINES:])


def _main(failures: str, module: str, *arguments: str) -> None:
    """A rank: run the module, and if it fails, say so before our sockets close and make others fail."""
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            with open(failures, "a") as file:
                file.write(f"{os.environ['RANK']}\n")
        raise


if __name__ == "__main__":
    _main(*sys.argv[1:])

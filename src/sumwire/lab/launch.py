"""Run a Python module as the ranks of a torch process group, one rank per host of a network.

torchrun starts the ranks: one agent per host, or one agent for all ranks if every host is this machine. Ranks
find the usual environment (RANK, WORLD_SIZE, MASTER_ADDR, ...) and send results back with `report`.
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
"""Where the agent of host 0 listens. Namespaces are private, so the port is free."""

TAIL_LINES = 20
"""Lines of a failed rank's stderr that the error quotes."""

_REPORT = "SUMWIRE_REPORT"
_POLL = 0.05
_GRACE = 2.0
"""Seconds to wait for the first failure: ranks that lose a peer fail too, and torchrun may see them earlier."""
_KILL_TIMEOUT = 10.0

_FAILED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")


class LaunchError(SumwireError, RuntimeError):
    """Ranks failed or timed out. None of them is running anymore."""


def report(**fields: Any) -> None:
    """Send one JSON object to the `on_line` callback of the launcher; without a launcher, do nothing."""
    path = os.environ.get(_REPORT)
    if path is None:
        return
    # A file, not a pipe: torchrun closes pipes, and a busy launcher must not block a rank that measures time.
    with open(path, "ab", buffering=0) as file:
        file.write(json.dumps(fields).encode() + b"\n")  # a single write in append mode, so that lines never interleave


def launch(
    network: Network,
    module: str,
    arguments: Sequence[str],
    *,
    on_line: Callable[[dict[str, Any]], None],
    timeout: float,
) -> None:
    """Run `python -m module *arguments` as one rank per host until all succeed; raise `LaunchError` if one fails.

    `on_line` is called with every report, in order. No process outlives the call, whether it returns, raises or is
    interrupted; if this process is killed, the kernel kills the ranks.
    """
    if timeout <= 0:
        raise ConfigError(f"timeout={timeout} is not positive: ranks need some seconds to start")
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
                        f"{len(network.hosts)} ranks of {module} did not finish within {timeout:g} s and were stopped; "
                        f"raise the timeout or give them less to do{_tails(directory)}"
                    )


class _Agents(NamedTuple):
    processes: list[subprocess.Popen[bytes]]
    stdout: int
    """Read end of the pipe that all agents and ranks have as stdout: EOF means that all have exited."""

    def poll(self, seconds: float) -> list[int | None]:
        """Wait for `seconds` at most, discard what ranks print, and return exit codes."""
        if select.select([self.stdout], [], [], seconds)[0]:
            os.read(self.stdout, 1 << 16)
        return [process.poll() for process in self.processes]

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        deadline = monotonic() + _KILL_TIMEOUT
        while select.select([self.stdout], [], [], max(0.0, deadline - monotonic()))[0]:
            if not os.read(self.stdout, 1 << 16):
                break


@contextmanager
def _agents(network: Network, module: str, arguments: Sequence[str], directory: Path) -> Iterator[_Agents]:
    """Start one torchrun per host, or one for all ranks, and stop them when the context ends."""
    # torchrun starts ranks in new sessions, which a signal to its process group does not reach, and may take minutes
    # to react to SIGTERM. So every process is tied to its parent: the kernel kills ranks when their agent exits.
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ConfigError("`setpriv` was not found; the lab runs on Linux and needs the package util-linux")
    # -P: import from the current directory only if `_path` adds it.
    tied = [setpriv, "--pdeathsig", "KILL", sys.executable, "-P"]
    worker = ["--no-python", *tied, "-m", __name__, str(directory / "failures"), module, *arguments]
    hosts = network.hosts if network.apart else network.hosts[:1]
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
    if not network.apart:
        # Port 0: the agent picks a free port and binds it at once, so no other process can take it.
        endpoint = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host.address}:0"]
        return ["--nproc-per-node", str(workers), *endpoint, "--local-addr", host.address]
    place = ["--nnodes", str(workers), "--node-rank", str(number), "--nproc-per-node", "1"]
    return [*place, "--master-addr", network.hosts[0].address, "--master-port", str(PORT), "--local-addr", host.address]


def _path(module: str) -> dict[str, str]:
    """PYTHONPATH with the current directory, unless the module is part of Sumwire."""
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
    """Complete lines that were added since the last call."""
    while (line := reports.readline()).endswith(b"\n"):
        yield json.loads(line)
    reports.seek(-len(line), os.SEEK_CUR)


def _failure(agents: _Agents, directory: Path, module: str) -> LaunchError:
    deadline = monotonic() + _GRACE
    while monotonic() < deadline and None in agents.poll(_POLL):
        pass
    logs = [(directory / f"agent{number}").read_text(errors="replace") for number in range(len(agents.processes))]
    failed = {int(rank): int(code) for text in logs for rank, code in _FAILED.findall(text)}
    if not failed:
        return LaunchError(f"torchrun could not run {module}:\n{_tail(''.join(logs))}")
    order = [int(rank) for rank in (directory / "failures").read_text().split()]
    blamed = min(failed, key=lambda rank: (_blame_order(failed[rank]), order.index(rank) if rank in order else 0))
    code = failed[blamed]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    stderr = _tail(_logs(directory)[blamed].read_text(errors="replace")) or "(it wrote nothing to stderr)"
    return LaunchError(f"rank {blamed} of {module} {how}:\n{stderr}")


def _blame_order(code: int) -> int:
    """Killed ranks (out of memory, say) report nothing and make others fail; SIGTERM is torchrun cleaning up."""
    return 2 if code == -signal.SIGTERM else 1 if code > 0 else 0


def _logs(directory: Path) -> dict[int, Path]:
    """The stderr file of each rank. Either every host has one rank, or there is one host: one of the numbers is 0."""
    found = directory.glob("host*/*/attempt_0/*/stderr.log")
    return {int(path.parts[-5].removeprefix("host")) + int(path.parts[-2]): path for path in found}


def _tails(directory: Path) -> str:
    texts = {rank: _tail(path.read_text(errors="replace")) for rank, path in sorted(_logs(directory).items())}
    return "".join(f"\nstderr of rank {rank}:\n{text}" for rank, text in texts.items() if text)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-TAIL_LINES:])


def _main(failures: str, module: str, *arguments: str) -> None:
    """Run the module as a rank; on failure, record that before its sockets close and make other ranks fail."""
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

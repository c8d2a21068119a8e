"""Scripts on several ranks as torchrun runs them, by one process that imports torch for all of them.

A real torchrun imports torch once for itself and once per rank, which takes longer than most scripts. Here `Launcher`
keeps a process that has imported what scripts need; each rank is a fork of it, in the environment that torchrun
gives to its workers. (tests/train/test_examples.py and tests/lab use the real one.)
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Done:
    failed: bool
    stdout: str
    stderr: str


class Launcher:
    """Imports `modules` once; then starts any number of jobs, one after the other."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torchrun", "torch._dynamo", *modules],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def run(self, ranks: int, script: Path | str, *arguments: str, cwd: Path = ROOT, timeout: float = 600) -> Done:
        """A file, or a module by its name; what all ranks print comes together."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, name) for name in ("stdout", "stderr")]
            module = isinstance(script, str)
            job = {"ranks": ranks, "script": str(script), "module": module, "arguments": arguments, "cwd": str(cwd)}
            print(json.dumps(job | {"outputs": [str(path) for path in outputs]}), file=self._process.stdin, flush=True)
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                os.killpg(self._process.pid, signal.SIGKILL)
            said = self._process.stdout.readline()
            stdout, stderr = (path.read_text() if path.exists() else "" for path in outputs)
        assert said, f"{script} did not end within {timeout:.0f} s; it printed:\n{stdout}\n{stderr}"
        return Done(json.loads(said), stdout, stderr)


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # or every rank would copy all that was imported when it ends, to look for garbage
    for line in sys.stdin:
        job = json.loads(line)
        ranks: dict[int, int] = {}
        store, port = host_store()
        for rank in range(job["ranks"]):
            pid = os.fork()
            if pid == 0:
                work(rank, port, job)
                return  # and end as every script does
            ranks[pid] = rank
        print(json.dumps(wait_for(ranks)), flush=True)
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)


def host_store() -> tuple[int, int]:
    """Where ranks meet: torchrun has it, too. In a process of its own, since it starts threads; its id and port."""
    import torch.distributed as dist

    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(sender, str(store.port).encode())
        os.close(sender)
        while True:
            signal.pause()
    os.close(sender)
    port = int(os.read(receiver, 10))
    os.close(receiver)
    return pid, port


def wait_for(ranks: dict[int, int]) -> bool:
    """Until all have ended; if one fails, the others are stopped."""
    failed = False
    while ranks:
        pid, status = os.wait()
        if ranks.pop(pid, None) is not None and status and not failed:
            failed = True
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    return failed


def work(rank: int, port: int, job: dict[str, Any]) -> None:
    for target, path in zip((1, 2), job["outputs"], strict=True):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, target)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(job["cwd"])
    count = str(job["ranks"])
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), ROLE_RANK=str(rank), GROUP_RANK="0",
        WORLD_SIZE=count, LOCAL_WORLD_SIZE=count, ROLE_WORLD_SIZE=count, GROUP_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0", TORCHELASTIC_RUN_ID="none",
    )  # fmt: skip
    sys.argv = [job["script"], *job["arguments"]]
    if job["module"]:
        runpy.run_module(job["script"], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(job["script"], run_name="__main__")


if __name__ == "__main__":
    main()

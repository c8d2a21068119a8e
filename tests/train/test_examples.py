"""The examples under a real torchrun, and what happens when one of their workers is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    # Else restarted workers find addresses of the dead ones, in plain DDP too: pytorch#135712, with torch 2.13.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
TORCHRUN = ["--standalone", "--nproc-per-node", "2"]
STARTED = re.compile(r"rank (\d) pid (\d+) starts at step (\d+)")
STEP = re.compile(r"step (\d+) loss ([\d.]+) sent (\d+) bytes, plain (\d+)")
DONE = re.compile(r"rank (\d) done: weights ([0-9a-f]{8})")


@contextmanager
def torchrun(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A job of two ranks, and all that they print. It does not outlive this context."""
    command = [sys.executable, "-m", "torch.distributed.run", *TORCHRUN, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        try:
            yield job
        finally:
            job.terminate()  # torchrun then ends its workers; killed, it would leave them behind


def load(checkpoints: Path) -> int:
    """Read the newest checkpoint in full; its step, or 0."""
    folders = sorted(checkpoints.glob("step-*"))
    if not folders:
        return 0
    assert set(torch.load(folders[-1] / "model.pt")) == {"model", "optimizer"}
    step = int(folders[-1].name.removeprefix("step-"))
    for rank in range(2):
        saved = torch.load(folders[-1] / f"sumwire-rank-{rank}.pt")
        assert (saved["rank"], saved["step"]) == (rank, step)
    return step


def test_a_job_that_loses_a_worker_goes_on_from_its_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    pids: dict[str, int] = {}
    starts: list[tuple[str, int]] = []
    steps: dict[int, set[tuple[float, int]]] = {}
    last: dict[str, str] = {}
    said = ""
    options = ["--steps", "15", "--batch", "4", "--save-every", "6", "--checkpoints", str(tmp_path)]
    with torchrun("--max-restarts", "1", "examples/train_ddp.py", *options) as job:
        assert job.stdout is not None
        for line in job.stdout:  # which may hold what two ranks said at once
            said += line
            for rank, pid, start in STARTED.findall(line):
                pids[rank] = int(pid)
                starts.append((rank, int(start)))
            for step, loss, sent, plain in STEP.findall(line):
                steps.setdefault(int(step), set()).add((float(loss), int(sent)))
                assert sent == plain if int(step) < 2 else int(sent) < int(plain) / 5
                assert load(tmp_path) in ((0, 6, 12, 15) if int(step) < 6 else (6, 12, 15))  # it may be ahead of us
                if step == "7" and len(starts) == 2:
                    os.kill(pids["1"], signal.SIGKILL)
            last.update(DONE.findall(line))
        assert job.wait(60) == 0, said
    again = max(start for _, start in starts)
    assert again in (6, 12)
    assert sorted(starts) == [("0", 0), ("0", again), ("1", 0), ("1", again)]
    # Steps since the checkpoint ran twice, with the same loss and the same bytes: nothing of what makes them was lost.
    assert sorted(steps) == list(range(15))
    assert [step for step, seen in steps.items() if len(seen) != 1] == []
    assert min(steps[14])[0] < min(steps[0])[0] - 1
    assert last["0"] == last["1"]  # weights
    assert load(tmp_path) == 15

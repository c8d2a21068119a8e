"""The examples under a real torchrun, and what happens when one of their workers is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    while folders := sorted(checkpoints.glob("step-*")):
        try:
            return read(folders[-1])
        except FileNotFoundError:
            # Only one that is not the newest anymore may be gone, or about to go.
            assert sorted(checkpoints.glob("step-*"))[-1] != folders[-1]
    return 0


def read(folder: Path) -> int:
    assert set(torch.load(folder / "model.pt")) == {"model", "optimizer"}
    step = int(folder.name.removeprefix("step-"))
    for rank in range(2):
        saved = torch.load(folder / f"sumwire-rank-{rank}.pt")
        assert (saved["rank"], saved["step"]) == (rank, step)
    return step


@dataclass
class Lives:
    """What a job of which a worker was killed has printed."""

    starts: list[tuple[str, int]] = field(default_factory=list)
    """Rank and step of every process."""
    steps: dict[int, set[tuple[float, int]]] = field(default_factory=dict)
    """Loss and bytes sent."""
    weights: dict[str, str] = field(default_factory=dict)

    @property
    def again(self) -> int:
        """Where it went on."""
        return max(start for _, start in self.starts)


def lose_a_worker(checkpoints: Path) -> Lives:
    found, pids, said = Lives(), {}, ""
    options = ["--steps", "15", "--batch", "4", "--save-every", "6", "--checkpoints", str(checkpoints)]
    with torchrun("--max-restarts", "1", "examples/train_ddp.py", *options) as job:
        assert job.stdout is not None
        for line in job.stdout:  # which may hold what two ranks said at once
            said += line
            for rank, pid, start in STARTED.findall(line):
                pids[rank] = int(pid)
                found.starts.append((rank, int(start)))
            for step, loss, sent, plain in STEP.findall(line):
                if step == "7" and len(found.starts) == 2:
                    os.kill(pids["1"], signal.SIGKILL)
                found.steps.setdefault(int(step), set()).add((float(loss), int(sent)))
                assert sent == plain if int(step) < 2 else int(sent) < int(plain) / 5
                # Whenever one looks, the newest checkpoint is complete; but before the kill there is no time to look.
                assert len(found.starts) == 2 or load(checkpoints) in (6, 12, 15)
            found.weights.update(DONE.findall(line))
        assert job.wait(300) == 0, said
    assert load(checkpoints) == 15
    return found


def test_a_job_that_loses_a_worker_goes_on_from_its_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    for attempt in range(5):
        found = lose_a_worker(tmp_path / str(attempt))
        if found.again < 15:  # else this process was so slow that the job had done all its steps before the kill
            break
    assert found.again in (6, 12)
    assert sorted(found.starts) == [("0", 0), ("0", found.again), ("1", 0), ("1", found.again)]
    # Steps since the checkpoint ran twice, with the same loss and the same bytes: nothing of what makes them was lost.
    assert sorted(found.steps) == list(range(15))
    assert [step for step, seen in found.steps.items() if len(seen) != 1] == []
    assert min(found.steps[14])[0] < min(found.steps[0])[0] - 1
    assert found.weights["0"] == found.weights["1"]

"""Attach, train, close, over and over, in fresh processes under load: looks for what fails once in a thousand times.

    python -m tests.train.soak --runs 2000 --seconds 1200 --logs soak-logs

Every run has two ranks that share this machine's cores with a process that only burns time. A model with an embedding
(dense or sparse gradients, by turns) trains a few steps with one of several options, is checked against the mean of
both ranks' gradients, and closes; or not: every third run leaves that to the garbage collector, every fifth to the end
of the process. What a run printed is kept if it fails.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sumwire.train import attach
from tests import ranks

OPTIONS: list[dict[str, Any]] = [
    {"bits": 4},
    {"bits": 2, "feedback": True},
    {"codec": "sparse"},
    {"codec": "auto"},
    {"codec": "sketch"},
    {"bits": 8, "sample_every": 1, "resync": 2},
]


class Words(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(500, 32, sparse=sparse)
        self.body = nn.Linear(32, 64)
        self.head = nn.Linear(64, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.relu(self.body(self.table(words).mean(1))))
        return out


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randint(500, (16, 6), generator=torch.Generator().manual_seed(100 * step + rank))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    grads = [p.grad for p in model.parameters()]
    assert all(grad is not None for grad in grads)
    return [grad.to_dense().clone() for grad in grads if grad is not None]


def train_once(rank: int, n: int, run: int, log: Path | None) -> float:
    """One run; the largest error of a gradient, as a share of the mean of the ranks' own."""
    if log is not None:
        sys.stderr = open(log.with_suffix(f".rank{rank}"), "w", buffering=1)  # noqa: SIM115  (until the process ends)
        faulthandler.enable(sys.stderr)
        faulthandler.dump_traceback_later(150, file=sys.stderr)
    options = OPTIONS[run % len(OPTIONS)]
    sparse = options.get("codec") in ("sparse", "auto", "sketch") and run // len(OPTIONS) % 2 == 0
    model = DistributedDataParallel(Words(sparse=sparse), bucket_cap_mb=0.02)
    state = attach(model, warmup=run % 2, fallback=False, algorithm="auto" if run % 4 else "sharded", **options)
    lossless = options.get("codec") in ("sparse", "sketch")
    worst = 0.0
    for step in range(4):
        wanted = None
        for r in range(n):
            alone = Words(sparse=sparse)
            alone.load_state_dict(model.module.state_dict())
            alone(batch(r, step)).square().mean().backward()
            own = gradients(alone)
            wanted = own if wanted is None else [a + b for a, b in zip(wanted, own, strict=True)]
        assert wanted is not None
        model.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        for found, total in zip(gradients(model), wanted, strict=True):
            error = float((found - total / n).norm() / (total / n).norm().clamp_min(1e-12))
            assert error < (1e-5 if lossless else 2.0), f"step {step}: a gradient is {error:.3g} off"
            worst = max(worst, error)
    if run % 5 and run % 3:
        state.close()
    elif run % 5:
        del model, state
    faulthandler.cancel_dump_traceback_later()
    return worst


def burn(stop: Any) -> None:
    while not stop.is_set():
        sum(range(10_000))


def soak(runs: int, seconds: float, logs: Path, *, first: int = 0, loads: int = 1) -> list[int]:
    """The runs that failed, whose logs are kept."""
    logs.mkdir(parents=True, exist_ok=True)
    stop = ranks.context.Event()
    burners = [ranks.context.Process(target=burn, args=(stop,), daemon=True) for _ in range(loads)]
    for each in burners:
        each.start()
    failed: list[int] = []
    begun, done = time.monotonic(), 0
    for run in range(first, first + runs):
        if time.monotonic() - begun > seconds:
            break
        log = logs / f"run-{run}"
        outcomes = ranks.outcomes_of(2, train_once, run, log)
        done += 1
        errors = [error for _, error in outcomes if error]
        if errors:
            failed.append(run)
            log.with_suffix(".errors").write_text("\n".join(errors))
            print(f"run {run} failed: see {log}.*", flush=True)
        else:
            for rank in range(2):
                log.with_suffix(f".rank{rank}").unlink(missing_ok=True)
        if done % 100 == 0:
            print(f"{done} runs in {time.monotonic() - begun:.0f} s, {len(failed)} failed", flush=True)
    stop.set()
    for each in burners:
        each.join(10)
    print(f"{done} runs in {time.monotonic() - begun:.0f} s, {len(failed)} failed: {failed}", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--loads", type=int, default=1, help="processes that only burn time")
    parser.add_argument("--logs", type=Path, default=Path("soak-logs"))
    args = parser.parse_args()
    multiprocessing.freeze_support()
    sys.exit(bool(soak(args.runs, args.seconds, args.logs, first=args.first, loads=args.loads)))


if __name__ == "__main__":
    main()

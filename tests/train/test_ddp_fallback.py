"""What the DDP hook logs, and what becomes of residuals when it stops compressing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from sumwire.train import attach
from sumwire.train.ddp.verdict import Figures
from tests import ranks
from tests.train.ddp_models import Gains, batch, build, same, train, weights

DOES_NOT_PAY = Figures(values=1, plain=1e-3, coded=2e-3, plain_bits=32.0, break_even=1e9)


def run_logged(rank: int, n: int) -> list[tuple[str, float, int]]:
    said: list[tuple[str, float, int]] = []
    model = build()
    attach(model, bits=4, warmup=1, fallback=False, sample_every=2, algorithm="sharded",
           log=lambda *entry: said.append(entry) if rank == 0 else None)  # fmt: skip
    train(rank, model, range(4))
    return said


def test_scalars() -> None:
    said = ranks.run(2, run_logged)[0]
    by_step = [{name: value for name, value, step in said if step == k} for k in range(3)]
    assert by_step[0]["sumwire/bits_per_value"] == pytest.approx(32)
    assert by_step[0]["sumwire/saved_bytes"] == 0
    assert 4 < by_step[1]["sumwire/bits_per_value"] < 6
    assert by_step[1]["sumwire/saved_bytes"] > by_step[1]["sumwire/sent_bytes"]
    assert by_step[2]["sumwire/sent_bytes"] > by_step[1]["sumwire/sent_bytes"]  # what a sample costs is counted
    for step in (1, 2):
        for kind in ("encode", "exchange", "add", "decode"):
            assert by_step[step][f"sumwire/{kind}_seconds"] > 0
    assert 1e-4 < by_step[2]["sumwire/nmse"] < 0.1
    assert "sumwire/nmse" not in by_step[1]


def run_fallen_back(rank: int, n: int) -> np.ndarray:
    model = build()
    state = attach(model, bits=2, feedback=True, warmup=3)  # and its small buckets go plain by the cost rule
    train(rank, model, range(8))
    state._verdict.judge(DOES_NOT_PAY, 7, say=False)
    train(rank, model, range(8, 12))
    return weights(model)


def test_feedback_outlives_the_warm_up_and_the_fall_back() -> None:
    same(ranks.run(2, run_fallen_back))


def run_leftovers(rank: int, n: int) -> float:
    """Everything that residuals held at the fall-back reaches the gradients of the next step."""
    model = DistributedDataParallel(Gains(torch.float32))
    state = attach(model, bits=2, feedback=True, warmup=1, algorithm="sharded", exact_below=0)
    sent = np.zeros(sum(p.numel() for p in model.parameters()))
    wanted = np.zeros_like(sent)
    for step in range(9):
        for r in range(n):
            model.module.zero_grad()
            model.module(batch(r, step, rows=200).reshape(-1)).backward()
            wanted += np.concatenate([p.grad.numpy() for p in model.parameters()]) / n
        model.zero_grad()
        model(batch(rank, step, rows=200).reshape(-1)).backward()
        sent += np.concatenate([p.grad.numpy() for p in model.parameters()])
        if step == 4:
            state._verdict.judge(DOES_NOT_PAY, step, say=False)
    assert not state.compressing
    return float(np.linalg.norm(sent - wanted) / np.linalg.norm(wanted))


def test_what_residuals_hold_is_sent_when_compression_stops() -> None:
    assert max(ranks.run(2, run_leftovers)) < 1e-5

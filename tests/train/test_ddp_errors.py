"""What the DDP hook says of NaN, wrong options, and ranks that die or hang."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sumwire import ConfigError, Lattice, RoundError
from sumwire.train import DDPState, attach
from tests import ranks
from tests.train.ddp_models import Result, batch, build, same, train, weights


def run_poisoned(rank: int, n: int, value: float, feedback: bool) -> Result:
    model = build(bucket_cap_mb=25)
    state = attach(model, bits=4, fallback=False, warmup=1, feedback=feedback)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gradients = []
    for step in range(4):
        optimizer.zero_grad()
        x = batch(rank, step)
        if step == 2 and rank == 1:
            x[0, 0] = value
        before = weights(model)
        scaler.scale(model(x).square().mean()).backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).numpy())
        scaler.step(optimizer)
        scaler.update()
        skipped = bool(np.array_equal(before, weights(model)))
        assert skipped == (step == 2)
    residuals = [
        span.residual.value for bucket in state.start().layout.buckets for span in bucket.spans if span.residual
    ]
    assert bool(residuals) == feedback
    assert all(np.isfinite(residual).all() for residual in residuals)
    return {"weights": weights(model), "gradients": gradients}


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_at_one_rank_is_seen_by_all_and_poisons_nothing(value: float, feedback: bool) -> None:
    results = ranks.run(3, run_poisoned, value, feedback)
    same([result["weights"] for result in results])
    assert np.isfinite(results[0]["weights"]).all()
    for result in results:
        assert [bool(np.isfinite(g).all()) for g in result["gradients"]] == [True, True, False, True]


def run_mismatched(rank: int, n: int, options: list[dict[str, Any]]) -> str:
    try:
        attach(build(), **options[rank])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([{"bits": 4}, {"bits": 3}], ["bits is 4 at rank 0 and 3 at rank 1"]),
        ([{"warmup": 4}, {"warmup": 3}], ["warmup is 4 at rank 0 and 3 at rank 1"]),
        ([{"algorithm": "packed"}, {}], ["algorithm is packed at rank 0 and auto at rank 1"]),
        ([{"feedback": True}, {"feedback": False}], ["feedback is True at rank 0 and False at rank 1"]),
    ],
)
def test_ranks_that_were_set_up_differently_are_told_at_once(options: list[dict[str, Any]], words: list[str]) -> None:
    for said in ranks.run(2, run_mismatched, options):
        assert said.startswith("MismatchError")
        for word in words:
            assert word in said


def run_dying(rank: int, n: int) -> str:
    import os

    model = build()
    attach(model, bits=4, fallback=False, warmup=1, algorithm="sharded")
    train(rank, model, range(2))
    loss = model(batch(rank, 2)).square().mean()
    if rank == 1:
        os._exit(7)
    try:
        loss.backward()
    except Exception as error:
        first = str(error)
        try:
            model(batch(rank, 3)).square().mean().backward()
        except Exception as error:
            raise RuntimeError(f"FIRST {first} THEN {error}") from None
    return "no error"


def test_a_worker_that_dies_makes_the_others_fail_with_a_clear_error() -> None:
    outcomes = ranks.outcomes_of(3, run_dying)
    assert "died" in outcomes[1][1]
    for rank in (0, 2):
        said = str(outcomes[rank])
        assert "FIRST" in said, said
        assert "another rank has died" in said, said
        assert "THEN" in said
        assert "unusable since an earlier error" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 9}, "bits"),
        ({"bits": 4, "total_bits": 12}, "total_bits"),
        ({"codec": Lattice(2), "bits": 4}, "codec"),
        ({"warmup": -1}, "warmup=-1"),
        ({"span": 10}, "span=10"),
        ({"log": 3}, "log=3"),
        ({"energy": 7.0}, "energy"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DDPState(**options)


def run_hanging(rank: int, n: int, failed: Path, seconds: float) -> str:
    import time

    model = build()
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), dist.group.WORLD)
    try:
        attach(model, bits=4, fallback=False, warmup=0).start()
    except RoundError:
        failed.touch()
        raise RuntimeError("no time to begin") from None
    loss = model(batch(rank, 0)).square().mean()
    if rank == 1:
        while not failed.exists():
            time.sleep(0.01)
        raise RuntimeError("woke up")
    try:
        loss.backward()
    finally:
        failed.touch()
    return "no error"


def test_a_worker_that_hangs_fails_the_others_within_the_timeout(tmp_path: Path) -> None:
    """It hangs until the other has failed: without a timeout, both would wait forever."""
    for seconds in (3.0, 30.0, 200.0):  # which a busy machine may need for both to begin
        outcomes = ranks.outcomes_of(2, run_hanging, tmp_path / f"failed after {seconds}", seconds)
        if not any("no time to begin" in error for _, error in outcomes):
            break
    assert "another rank has died or hangs" in outcomes[0][1]
    assert "woke up" in outcomes[1][1]

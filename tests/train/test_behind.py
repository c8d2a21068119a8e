"""What must not stop training: a log that raises, and a verdict that a rank misses."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sumwire import Sparse
from sumwire.aggregate.local import Local
from sumwire.aggregate.statistics import Statistics
from sumwire.errors import BehindError
from sumwire.train import attach
from sumwire.train.ddp import state as module
from sumwire.train.rounds import TensorRound
from tests import ranks
from tests.train.test_ddp_fallback import DOES_NOT_PAY


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(30_000))

    def forward(self, x: float) -> torch.Tensor:
        return (self.weight * x).sum()


def trained_with_a_bad_log(rank: int, n: int) -> dict[str, Any]:
    """One rank's log raises at its second figure: how often it was called, what was said, and the last gradient."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sumwire").addHandler(handler)
    found: dict[str, Any] = {}
    for kind, model in (("ddp", DistributedDataParallel(Weighted())), ("fsdp", fully_shard(Weighted()))):
        said.clear()
        calls: list[str] = []

        def log(name: str, value: float, step: int, calls: list[str] = calls) -> None:
            calls.append(name)
            if rank == 0 and len(calls) == 2:
                raise OSError("disk full")

        state = attach(model, bits=8, log=log, **({"warmup": 0, "fallback": False} if kind == "ddp" else {}))
        for _ in range(4):
            model.zero_grad()
            model(rank + 1.0).backward()
        whole = next(iter(model.parameters())).grad
        mean = whole if kind == "ddp" else whole.full_tensor()  # type: ignore[union-attr]
        state.close()
        found[kind] = len(calls), [each for each in said if "`log`" in each], float(mean.mean()), state.step
    return found


def test_a_log_that_raises_does_not_stop_training() -> None:
    results = ranks.run(2, trained_with_a_bad_log)
    for kind in ("ddp", "fsdp"):
        (calls, said, mean, steps), (others, unsaid, their_mean, _) = (result[kind] for result in results)
        assert (calls, steps) == (2, 4)
        assert said == ["the `log` that was passed to attach failed; it is not called again"]
        assert others > 4  # figures of every step
        assert unsaid == []
        assert mean == their_mean
        assert abs(mean - 1.5) < 0.05


class Gone(Local):
    """The job has gone on without this worker."""

    def add(self, *_: Any, **__: Any) -> Any:
        raise BehindError("round 7 is over")


def test_a_round_that_is_missed_leaves_zeros_and_says_so() -> None:
    gradients = torch.ones(3)
    job = TensorRound(Gone.create(1, Sparse(1))[0], gradients, None, round_id=7, statistics=Statistics())
    job.may_skip = True
    job.agree()
    job.compress()
    job.add()
    job.gather()
    job.decode()
    assert job.behind
    assert gradients.tolist() == [0, 0, 0]


def missing_the_verdict(rank: int, n: int) -> tuple[bool, int | None]:
    """Rank 1 is behind in the step that measures: it must not fall back alone, or it would issue other rounds."""
    model = DistributedDataParallel(Weighted())
    state = attach(model, warmup=0, algorithm="sharded")
    module.measure = lambda *_: DOES_NOT_PAY  # type: ignore[assignment]
    if rank == 1:
        state.behind = True
    model(1.0).backward()
    return state.compressing, state._verdict.measured_at


def test_a_rank_that_is_behind_does_not_judge() -> None:
    assert ranks.run(2, missing_the_verdict) == [(False, 0), (True, None)]

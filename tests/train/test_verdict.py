"""Whether compressing pays: measured in a run, decided by all ranks alike, and changed when links change."""

from __future__ import annotations

import io
import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from sumwire.train import attach
from sumwire.train.ddp import verdict
from sumwire.train.ddp.verdict import EVERY, Figures, Verdict
from tests import ranks


def figures(plain: float, coded: float) -> Figures:
    return Figures(values=1000, plain=plain, coded=coded, plain_bits=32e3, break_even=2e9)


SLOW, FAST = figures(plain=0.5, coded=0.1), figures(plain=0.1, coded=0.2)


def test_the_mind_changes_in_both_directions_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    judge = Verdict()
    pays = []
    for step, found in enumerate([SLOW, SLOW, FAST, FAST, SLOW]):
        judge.judge(found, step * EVERY, say=True)
        pays.append(judge.pays)
    assert pays == [True, True, False, False, True]
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["INFO", "WARNING", "WARNING"]
    assert all(text.startswith("Sumwire: compression") and "Gbit/s" in text and "ms" in text for _, text in said)
    assert "fallback=False" in said[1][1]
    assert "uncompressed from the next step" in said[1][1]
    assert "compressed again" in said[2][1]


def test_it_is_measured_now_and_then() -> None:
    judge = Verdict()
    assert judge.due(7)
    judge.postpone(7)
    assert next(step for step in range(8, 2100) if judge.due(step)) == 7 + verdict.AGAIN
    judge.judge(SLOW, 20, say=False)
    assert next(step for step in range(21, 2100) if judge.due(step)) == 20 + EVERY


def test_what_is_nearly_equal_changes_nothing() -> None:
    judge = Verdict()
    judge.judge(figures(plain=1.0, coded=1.04), 0, say=False)
    assert judge.pays
    judge.judge(figures(plain=1.0, coded=1.06), 0, say=False)
    assert not judge.pays
    judge.judge(figures(plain=1.0, coded=0.96), 0, say=False)
    assert not judge.pays


def test_a_rank_that_came_back_judges_as_the_others() -> None:
    there, back = Verdict(), Verdict()
    there.judge(FAST, 0, say=False)
    back.pays, back.measured_at = there.pays, there.measured_at  # as `DDPState.resume` does
    for judge in (there, back):
        judge.judge(figures(plain=1.0, coded=0.98), EVERY, say=False)
    assert there.pays == back.pays


class Gains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(20_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gain * x).sum()


def step_once(model: nn.Module, rank: int, step: int, *, bad: bool = False) -> np.ndarray:
    model.zero_grad()
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(10 * step + rank))
    model(x * (math.inf if bad else 1.0)).backward()
    grad = model.module.gain.grad
    assert grad is not None
    return grad.numpy().copy()


def run_changing_links(rank: int, n: int, options: dict[str, Any]) -> dict[str, Any]:
    """Measurements as on a fast link at first, and later as on a slow one."""
    told = io.StringIO()
    logging.lastResort = logging.StreamHandler(told)  # what users see who have not configured logging
    logging.lastResort.setLevel(logging.WARNING)
    real = verdict.measure
    measured: list[int] = []

    def measure(*arguments: Any) -> Figures | None:
        found = real(*arguments)
        measured.append(state.step - 1)
        return found and (FAST if len(measured) == 1 else SLOW)

    from sumwire.train.ddp import state as module

    module.measure, verdict.EVERY = measure, 5  # type: ignore[attr-defined]
    model = DistributedDataParallel(Gains())
    state = attach(model, bits=2, algorithm="sharded", warmup=1, seed=0, **options)
    compressing, grads = [], []
    for step in range(9):
        compressing.append(state.compressing)
        grads.append(step_once(model, rank, step))
    return {"compressing": compressing, "grads": grads, "told": told.getvalue(), "measured": measured,
            "saved": sorted(state.state_dict())}  # fmt: skip


def truth(n: int, step: int) -> np.ndarray:
    xs = [torch.randn(20_000, generator=torch.Generator().manual_seed(10 * step + rank)) for rank in range(n)]
    return torch.stack(xs).mean(0).numpy()


def test_all_ranks_fall_back_and_return_together_and_say_so() -> None:
    results = ranks.run(2, run_changing_links, {"feedback": True})
    for result in results:
        assert result["measured"] == [1, 6]
        assert result["compressing"] == [False, True, False, False, False, False, False, True, True]
        assert not {"pays", "trial", "verdict"} & set(result["saved"])
    for step in range(9):
        np.testing.assert_array_equal(results[0]["grads"][step], results[1]["grads"][step])
        error = np.square(results[0]["grads"][step] - truth(2, step)).mean()
        assert (error < 1e-12) == (step in (0, 3, 4, 5, 6)), (step, error)
    # What the residuals held goes out with the first plain step, so two steps together are exact.
    both = results[0]["grads"][1] + results[0]["grads"][2] - truth(2, 1) - truth(2, 2)
    np.testing.assert_allclose(both, 0, atol=1e-5)
    lines = results[0]["told"].splitlines()
    assert len(lines) == 2
    assert all(line.startswith("Sumwire: ") for line in lines)
    assert results[1]["told"] == ""


def test_fallback_can_be_declined() -> None:
    declined = ranks.run(2, run_changing_links, {"fallback": False})[0]
    assert declined["compressing"] == [False] + [True] * 8
    assert declined["measured"] == []
    assert declined["told"] == ""


def run_measured(rank: int, n: int, fallback: bool) -> list[np.ndarray]:
    Verdict.judge = lambda self, figures, step, *, say: setattr(self, "measured_at", step)  # type: ignore[method-assign]
    model = DistributedDataParallel(Gains())
    state = attach(model, bits=2, algorithm="sharded", warmup=1, seed=0, fallback=fallback, feedback=True)
    grads = [step_once(model, rank, step) for step in range(4)]
    assert state._verdict.measured_at == (1 if fallback else None)
    return grads


def test_measuring_changes_no_bit() -> None:
    for with_probes, without in zip(*(ranks.run(2, run_measured, each)[0] for each in (True, False)), strict=True):
        np.testing.assert_array_equal(with_probes, without)


def run_overflowing(rank: int, n: int) -> dict[str, Any]:
    """As with a GradScaler that starts too high: the first gradients are Inf at one rank."""
    model = DistributedDataParallel(Gains())
    state = attach(model, bits=4, algorithm="sharded", warmup=0)
    verdict.AGAIN = 2
    compressing = []
    for step in range(6):
        step_once(model, rank, step, bad=step < 3 and rank == 1)
        compressing.append(state.compressing)
    return {"compressing": compressing, "measured_at": state._verdict.measured_at}


def test_gradients_that_cannot_be_compressed_are_not_measured() -> None:
    for result in ranks.run(2, run_overflowing):
        assert result["measured_at"] == 4
        assert result["compressing"][:4] == [True] * 4


def run_resumed(rank: int, n: int) -> list[bool]:
    """Saved where compressing did not pay; resumed elsewhere."""
    model = DistributedDataParallel(Gains())
    state = attach(model, bits=4, algorithm="sharded", warmup=0)
    state._verdict.judge(FAST, 0, say=False)
    step_once(model, rank, 0)
    assert not state.compressing
    saved = state.state_dict()
    resumed = attach(model, bits=4, algorithm="sharded", warmup=0)
    resumed.load_state_dict(saved)
    return [state._closed, resumed.compressing, resumed._verdict.due(resumed.step)]


def test_a_verdict_is_not_resumed() -> None:
    assert ranks.run(2, run_resumed) == [[True, True, True]] * 2


def run_joining(rank: int, n: int) -> list[Any]:
    """One rank has fewer inputs, and only shadows the other when that measures."""
    Verdict.judge = lambda self, figures, step, *, say: setattr(self, "measured_at", step)  # type: ignore[method-assign]
    model = DistributedDataParallel(Gains())
    state = attach(model, bits=4, algorithm="sharded", warmup=2)
    with Join([model]):
        for step in range(1 if rank else 5):
            step_once(model, rank, step)
    return [state.step, state._verdict.measured_at]


def test_a_rank_without_inputs_measures_too() -> None:
    assert ranks.run(2, run_joining) == [[5, 2]] * 2

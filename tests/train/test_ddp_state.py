"""The state of the DDP hook: saved, restored, refused and closed."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import torch

from sumwire import MismatchError
from sumwire.train import attach
from tests import ranks
from tests.train.ddp_models import build, run_attached, same, train, weights


def run_pieces(rank: int, n: int, split: int, options: dict[str, Any]) -> np.ndarray:
    """Six steps, saved and restored through torch.save after `split` of them."""
    options = {"fallback": False, "algorithm": "sharded", **options}
    model, file = build(), io.BytesIO()
    state = attach(model, **options)
    optimizer = train(rank, model, range(split))
    torch.save({"model": model.module.state_dict(), "o": optimizer.state_dict(), "s": state.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()))
    resumed = build(seed=5)
    resumed.module.load_state_dict(saved["model"])
    state = attach(resumed, **options)
    state.load_state_dict(saved["s"])
    optimizer = torch.optim.SGD(resumed.parameters(), lr=0.05, momentum=0.9)
    optimizer.load_state_dict(saved["o"])
    train(rank, resumed, range(split, 6), optimizer)
    assert state.step == 6
    return weights(resumed)


def run_twice(rank: int, n: int) -> list[np.ndarray]:
    """Random numbers are another run's every time, but not those of a run that is resumed."""
    options = {"fallback": False, "algorithm": "sharded", "bits": 3, "feedback": True, "warmup": 0}
    model, found = build(), []
    state = attach(model, **options)
    optimizer = train(rank, model, range(3))
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), state.state_dict()))
    train(rank, model, range(3, 6), optimizer)
    found.append(weights(model))
    for resume in (True, False):
        again = build(seed=5)
        again.module.load_state_dict(saved[0])
        state = attach(again, **options)
        if resume:
            state.load_state_dict(saved[2])
        optimizer = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
        optimizer.load_state_dict(copy.deepcopy(saved[1]))
        train(rank, again, range(3, 6), optimizer)
        found.append(weights(again))
    return found


def test_random_numbers_are_kept_in_checkpoints() -> None:
    first, second = ranks.run(2, run_twice)
    for mine, others in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, others)
    whole, resumed, another = first
    np.testing.assert_array_equal(whole, resumed)
    assert (whole != another).any()


def run_whole_and_pieces(rank: int, n: int, warmup: int, split: int, feedback: bool) -> list[np.ndarray]:
    options = {"warmup": warmup, "bits": 3, "feedback": feedback, "seed": 0}
    return [run_attached(rank, n, 6, options, {}), run_pieces(rank, n, split, options)]


def test_a_restored_state_continues_bit_for_bit() -> None:
    # Warm-up, steps before the checkpoint, feedback.
    cases = [(0, 1, False), (0, 3, True), (1, 2, True), (2, 1, False), (2, 2, True), (1, 4, False)]
    # Two ranks: with more, DDP's own exact sums depend on how it cuts its buckets.
    for results in ranks.run_cases(2, run_whole_and_pieces, cases):
        same([weights for both in results for weights in both])


def run_torn(rank: int, n: int) -> str:
    model = build()
    state = attach(model, fallback=False, warmup=0, algorithm="sharded")
    saved = []
    for step in range(3):
        train(rank, model, range(step, step + 1))
        saved.append(state.state_dict())
    resumed = build()
    attach(resumed, fallback=False, warmup=0, algorithm="sharded").load_state_dict(saved[1 + rank])
    try:
        train(rank, resumed, range(1))
    except MismatchError as error:
        return str(error)
    return "no error"


def test_states_of_different_steps_are_refused_by_all() -> None:
    for said in ranks.run(2, run_torn):
        assert "step is 2 at rank 0 and 3 at rank 1" in said


def run_closed(rank: int, n: int) -> str:
    model = build()
    said: list[tuple[str, float, int]] = []
    state = attach(model, fallback=False, warmup=0, log=lambda *entry: said.append(entry))
    train(rank, model, range(1))
    state.close()
    assert {step for _, _, step in said} == {0}  # the last step was logged
    try:
        train(rank, model, range(1, 2))
    except Exception as error:
        return str(error)
    return "no error"


def test_a_closed_state_says_so() -> None:
    for said in ranks.run(2, run_closed):
        assert "closed" in said

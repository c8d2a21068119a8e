"""The state of the compressed reduce-scatter: saved, restored and refused."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch

import sumwire
from sumwire.train import attach
from tests import ranks
from tests.train.fsdp_models import build, train, weights


def run_pieces(rank: int, n: int, options: list[dict[str, Any]]) -> list[list[np.ndarray]]:
    return [pieces(rank, each) for each in options]


def pieces(rank: int, options: dict[str, Any]) -> list[np.ndarray]:
    """Six steps without a break, and saved and restored through torch.save after one and three of them."""
    found = []
    for split in (6, 1, 3):
        model, file = build(), io.BytesIO()
        state = attach(model, **options)
        optimizer, _ = train(rank, model, range(split))
        torch.save(state.state_dict(), file)
        saved = {"m": model.state_dict(), "o": optimizer.state_dict()}
        resumed = build(seed=5)
        resumed.load_state_dict(saved["m"])
        state = attach(resumed, **options)
        state.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
        optimizer = torch.optim.SGD(resumed.parameters(), lr=0.02, momentum=0.9)
        optimizer.load_state_dict(saved["o"])
        train(rank, resumed, range(split, 6), optimizer)
        assert state.step == 6
        found.append(weights(resumed))
    return found


def test_a_restored_state_continues_bit_for_bit() -> None:
    for result in ranks.run(
        2, run_pieces, [{"bits": 3, "feedback": True, "seed": 1}, {"bits": 3, "warmup": 2, "seed": 1}]
    ):
        for whole, *resumed in result:
            for each in resumed:
                np.testing.assert_array_equal(each, whole)


def run_random_resume(rank: int, n: int) -> list[np.ndarray]:
    """A step after a checkpoint, without a break and resumed: random numbers are the run's own."""
    model = build()
    state = attach(model, bits=3, feedback=True)
    optimizer, _ = train(rank, model, range(2))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), state.state_dict()))
    train(rank, model, range(2, 3), optimizer)
    resumed = build(seed=5)
    resumed.load_state_dict(saved[0])
    attach(resumed, bits=3, feedback=True).load_state_dict(saved[2])
    optimizer = torch.optim.SGD(resumed.parameters(), lr=0.02, momentum=0.9)
    optimizer.load_state_dict(saved[1])
    train(rank, resumed, range(2, 3), optimizer)
    return [weights(model), weights(resumed)]


def test_random_numbers_are_kept_in_checkpoints() -> None:
    for whole, resumed in ranks.run(2, run_random_resume):
        np.testing.assert_array_equal(whole, resumed)


def run_foreign_states(rank: int, n: int) -> list[str]:
    state = attach(build(), bits=4, feedback=True)
    mine = state.state_dict()
    unit = mine["units"]["first"]
    said = []
    for wrong in (
        {"format": 1, "units": mine["units"]},
        {"format": 5, "units": {"first": unit}},
        {"format": 5, "buckets": []},
        attach(build(), bits=3).state_dict(),
    ):
        with pytest.raises(sumwire.SumwireError) as caught:
            state.load_state_dict(wrong)
        said.append(str(caught.value))
    return said


def test_states_of_something_else_are_refused() -> None:
    for said in ranks.run(2, run_foreign_states):
        for words, message in zip(
            ["format 5", "FSDP units", "state of a FSDP2 model", "bits: the state has 3, this codec has 4"],
            said,
            strict=True,
        ):
            assert words in message


def run_torn(rank: int, n: int) -> str:
    model = build()
    state = attach(model, bits=4)
    states = []
    for step in range(2):
        train(rank, model, range(step, step + 1))
        states.append(state.state_dict())
    resumed = build()
    attach(resumed, bits=4).load_state_dict(states[rank])
    with pytest.raises(sumwire.MismatchError) as caught:
        train(rank, resumed, range(1))
    return str(caught.value)


def test_states_of_different_steps_are_refused_by_all() -> None:
    for said in ranks.run(2, run_torn):
        assert "calls of FSDP units" in said

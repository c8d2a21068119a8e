"""What the compressed reduce-scatter says of NaN, wrong options and another torch."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import sumwire
from sumwire import ConfigError, Lattice
from sumwire.train import attach
from sumwire.train.fsdp import FSDPState, collective
from tests import ranks
from tests.train.fsdp_models import Gains, Net, Result, build, distance, gradients, noise


def run_poisoned(rank: int, n: int) -> Result:
    found: Result = {}
    for name in ("plain", "coded", "fed"):
        model = fully_shard(Gains())
        state = attach(model, bits=8, feedback=name == "fed") if name != "plain" else None
        before = None
        found[name] = []
        for step, value in enumerate((0.0, float("nan"), float("inf"), 1e38, 0.0)):
            model.zero_grad()
            x = noise(rank, step)
            if rank == 1 and value:
                x[3] = value
            if state is not None and step == 1:
                before = str(state.state_dict()["units"]["(root)"]["reduce_scatter"]["residual"])
            model(x).backward()
            found[name].append(gradients(model))
            if state is not None and step == 3:
                assert before == str(state.state_dict()["units"]["(root)"]["reduce_scatter"]["residual"])
    return found


def test_nan_at_one_rank_is_what_plain_fsdp_gives_and_poisons_nothing() -> None:
    for result in ranks.run(2, run_poisoned):
        for name in ("coded", "fed"):
            for step, (coded, plain) in enumerate(zip(result[name], result["plain"], strict=True)):
                if step in (0, 4):
                    assert 0 < distance(coded, plain) < 0.04
                else:
                    assert not np.isfinite(plain).all()
                    np.testing.assert_array_equal(coded, plain)


def test_other_reductions_are_refused() -> None:
    assert collective.sum_factor(dist.ReduceOp.PREMUL_SUM(torch.tensor([0.25]))) == 0.25
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PREMUL_SUM):
        with pytest.raises(ConfigError, match="set_gradient_divide_factor"):
            collective.sum_factor(op)


def run_attach(rank: int, n: int, cases: list[list[dict[str, Any]]]) -> list[str]:
    said = []
    for options in cases:
        with pytest.raises(sumwire.SumwireError) as caught:
            attach(build(), **options[rank])
        said.append(f"{type(caught.value).__name__}: {caught.value}")
    return said


def test_ranks_that_were_set_up_wrongly_are_told_at_once() -> None:
    cases = {
        "MismatchError.* bits is 4 at rank 0 and 3 at rank 1": [{"bits": 4}, {"bits": 3}],
        "MismatchError.* warmup is 4 at rank 0 and 0 at rank 1": [{"warmup": 4}, {}],
        "ConfigError.* workers=3, .* has 2 ranks: build it with workers=2": [{"codec": Lattice(3)}] * 2,
    }
    for said in ranks.run(2, run_attach, list(cases.values())):
        for pattern, message in zip(cases, said, strict=True):
            assert re.search(pattern, message), message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 9}, "bits"),
        ({"warmup": -1}, "warmup=-1"),
        ({"log": 3}, "log=3"),
        ({"codec": Lattice(2), "bits": 4}, "codec"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FSDPState(Net(), **options)


def test_a_state_wants_a_sharded_model() -> None:
    with pytest.raises(ConfigError, match="fully_shard"):
        FSDPState(Net())


def test_torch_without_the_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp._fully_shard._fsdp_api", None)
    monkeypatch.delitem(sys.modules, "sumwire.train.fsdp.reduce_scatter")
    with pytest.raises(ConfigError, match="torch 2.9 or later"):
        importlib.import_module("sumwire.train.fsdp.reduce_scatter")

"""States loaded elsewhere: by another rank, with other options, into another model."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sumwire
from sumwire.train import attach
from tests import ranks

OPTIONS: dict[str, Any] = {"bits": 4, "feedback": True, "warmup": 0, "fallback": False, "algorithm": "sharded"}


class Net(nn.Module):
    def __init__(self, name: str = "body", *, width: int = 200, extra: bool = False, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name = name
        self.add_module(name, nn.Linear(30, width))
        self.head = nn.Linear(width, 4)
        if extra:
            self.head = nn.Sequential(self.head, nn.Linear(4, 4))
        if frozen:
            self.head.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(getattr(self, self.name)(x))
        return out


def step(model: nn.Module, rank: int) -> None:
    model(torch.randn(8, 30, generator=torch.Generator().manual_seed(rank))).square().mean().backward()


def listen() -> list[str]:
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sumwire").addHandler(handler)
    return said


def saved_state(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(Net())
    state = attach(model, **OPTIONS)
    step(model, rank)
    step(model, rank)
    saved = state.state_dict()
    state.close()
    return saved


def run_elsewhere(rank: int, n: int) -> dict[str, Any]:
    """What was saved here, loaded by others: errors with and without `strict`, and the steps that follow."""
    saved, said, found = saved_state(rank), listen(), {}
    others: dict[str, Any] = {
        "same": (Net(), {}, saved),
        "bits": (Net(), {"bits": 3}, saved),
        "ranks": (Net(), {}, saved | {"codec": saved["codec"] | {"workers": 5}}),
        "model": (Net("trunk"), {}, saved),
        "more": (Net(extra=True), {}, saved),
        "wider": (Net(width=300), {}, saved),
        "frozen": (Net(frozen=True), {}, saved),
        "rank": (Net(), {}, saved | {"rank": 7}),
    }
    for name, (net, options, state) in others.items():
        said.clear()
        model = DistributedDataParallel(net)
        attached = attach(model, **OPTIONS | options)
        error = ""
        try:
            attached.load_state_dict(state)
        except sumwire.MismatchError as caught:
            error = str(caught)
            attached.load_state_dict(state, strict=False)
        resumed = attached.step
        spans = [span for bucket in attached.start().layout.buckets for span in bucket.spans]
        held = any(span.residual is not None and not span.residual.empty for span in spans)
        step(model, rank)
        grads = np.concatenate([p.grad.reshape(-1).numpy() for p in model.parameters() if p.requires_grad])
        found[name] = {"error": error, "said": list(said), "step": resumed, "held": held, "grads": grads}
        attached.close()
    return found


def test_what_does_not_fit_is_named_or_dropped() -> None:
    results = ranks.run(2, run_elsewhere)
    for found in results:
        assert {name: each["step"] for name, each in found.items()} == dict.fromkeys(found, 2)
        assert {name for name, each in found.items() if each["held"]} == {"same"}
        assert found["same"]["error"] == ""
        assert found["same"]["said"] == []
        assert "bits: the state has 4, this codec has 3" in found["bits"]["error"]
        assert "strict=False" in found["bits"]["error"]
        assert "workers: the state has 5, this codec has 2" in found["ranks"]["error"]
        assert "parameter 'body.bias', which this model does not train" in found["model"]["error"]
        assert "does not have" in found["more"]["error"]
        assert "'body.bias' has 200 values in the saved layout, 300 in this model" in found["wider"]["error"]
        assert "'head.weight', which this model does not train" in found["frozen"]["error"]
        assert found["rank"]["error"] == ""
        for name in ("bits", "ranks", "model", "rank", "more", "wider", "frozen"):
            assert len(found[name]["said"]) == 1, name
            assert "residuals are dropped" in found[name]["said"][0], name
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name]["grads"], results[1][name]["grads"])


def test_other_formats_are_refused_with_a_remedy() -> None:
    state = sumwire.train.DDPState(4)
    with pytest.raises(sumwire.ConfigError, match="format 3.*reads format 5.*new state"):
        state.load_state_dict({"format": 3, "family": "x"})
    with pytest.raises(sumwire.ConfigError, match="not the state of a DDP model"):
        state.load_state_dict({"model": 1})


def run_fsdp(rank: int, n: int) -> dict[str, Any]:
    def sharded() -> nn.Module:
        net = Net()
        fully_shard(net.head)
        return fully_shard(net)

    options: dict[str, Any] = {"bits": 4, "feedback": True}
    model = sharded()
    state = attach(model, **options)
    step(model, rank)
    saved, said = state.state_dict(), listen()
    other = attach(sharded(), **options | {"bits": 3})
    with pytest.raises(sumwire.MismatchError) as caught:
        other.load_state_dict(saved)
    other.load_state_dict(saved, strict=False)
    again = attach(model, **options)  # which closes the state before
    return {"error": str(caught.value), "said": said, "step": other.step, "closed": state._closed, "new": again.step}


def test_fsdp_states_too() -> None:
    for found in ranks.run(2, run_fsdp):
        assert "bits: the state has 4, this codec has 3" in found["error"]
        assert found["step"] == 1
        assert found["closed"]
        assert found["new"] == 0
        assert "2 FSDP units" in found["said"][0]
        assert "already attached" in found["said"][1]


@pytest.mark.parametrize(
    ("option", "why"),
    [("fallback", "by size alone"), ("server", "its shard only"), ("sample_every", "truth"), ("resync", "own shard"),
     ("span", "one round"), ("algorithm", "sharded"), ("exact_below", "one tensor"), ("colour", "takes bits")],
)  # fmt: skip
def test_options_that_fsdp_has_not_are_refused_with_the_reason(option: str, why: str) -> None:
    from sumwire.train.fsdp import FSDPState

    with pytest.raises(sumwire.ConfigError, match=f"'{option}' does not work with FSDP2.*{why}"):
        FSDPState(Net(), **{option: 1})


def _forget(accelerator: Any) -> None:
    """As a new process would."""
    accelerator._models.clear()
    accelerator._custom_objects.clear()


def run_accelerate(rank: int, n: int, folder: Path) -> dict[str, Any]:
    """Accelerate saves rank 0's state only, and loads it at every rank."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", LOCAL_RANK=str(rank))  # though the group is there
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    results = {}
    for feedback in (False, True):
        _forget(accelerator)
        model = accelerator.prepare(Net())
        state = attach(model, **OPTIONS | {"feedback": feedback})
        accelerator.register_for_checkpointing(state)
        step(model, rank)
        where = folder / str(feedback)
        accelerator.save_state(str(where))
        step(model, rank)
        whole = model.module.head.weight.grad.numpy().copy()
        state.close()
        said = listen()
        _forget(accelerator)
        resumed = accelerator.prepare(Net())
        accelerator.register_for_checkpointing(attach(resumed, **OPTIONS | {"feedback": feedback}))
        accelerator.load_state(str(where))
        step(resumed, rank)
        grad = resumed.module.head.weight.grad.numpy()
        results[feedback] = {"said": list(said), "grad": grad.copy(), "whole": whole}
    return results


def test_accelerates_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    first, second = ranks.run(2, run_accelerate, tmp_path)
    for feedback in (False, True):
        np.testing.assert_array_equal(first[feedback]["grad"], second[feedback]["grad"])
    assert first[False]["said"] == first[True]["said"] == second[False]["said"] == []
    assert "saved by rank 0, this is rank 1" in second[True]["said"][0]

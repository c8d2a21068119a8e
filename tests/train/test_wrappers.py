"""attach finds what exchanges gradients, behind what users wrap around it."""

from __future__ import annotations

import copy
import io
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sumwire import ConfigError
from sumwire.train import attach
from tests import ranks

OPTIONS: dict[str, Any] = {
    "bits": 8,
    "warmup": 0,
    "fallback": False,
    "algorithm": "sharded",
    "seed": 0,
    "sample_every": 0,
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 100), nn.Linear(100, 3))


def sent_and_grads(model: Any, state: Any, rank: int) -> tuple[float, list[np.ndarray]]:
    """After one step: bits per value, and gradients, which must be everyone's."""
    model(torch.randn(8, 30, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    for grad in grads:
        both = [torch.empty_like(grad) for _ in range(2)]
        torch.distributed.all_gather(both, grad)
        assert torch.equal(*both)
    return state.statistics.bits_per_value, [grad.numpy() for grad in grads]


class Around(nn.Module):
    """A wrapper of the user's own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def run_wrapped(rank: int, n: int) -> dict[str, Any]:
    from torch.distributed._composable.replicate import replicate

    plain = DistributedDataParallel(net())
    kinds: dict[str, nn.Module] = {
        "plain": plain,
        "compile outside": torch.compile(DistributedDataParallel(net()), backend="eager"),
        "compile inside": DistributedDataParallel(torch.compile(net(), backend="eager")),
        "own wrapper": Around(DistributedDataParallel(net())),
        "replicate": replicate(net()),
    }
    results: dict[str, Any] = {}
    for name, model in kinds.items():
        state = attach(model, **OPTIONS)
        bits, grads = sent_and_grads(model, state, rank)
        results[name] = bits, grads, state.state_dict()["buckets"]
        state.close()
    return results


def test_wrappers_change_neither_gradients_nor_names() -> None:
    results = ranks.run(2, run_wrapped)[0]
    bits, grads, layout = results.pop("plain")
    assert 7 < bits < 11
    for name, (others, found, known) in results.items():
        assert others == bits, name
        assert all(np.array_equal(a, b) for a, b in zip(grads, found, strict=True)), name
        assert known == layout, name


def run_refused(rank: int, n: int) -> list[str]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrong: list[Any] = [net(), None, [net()], nn.ModuleList([DistributedDataParallel(net()) for _ in range(2)])]
    said = []
    try:
        wrong.append(FullyShardedDataParallel(net(), device_id=torch.device("cpu")))
    except Exception:  # an older torch does not do this without a GPU
        wrong.append(type("FullyShardedDataParallel", (Around,), {})(net()))
    for model in wrong:
        with pytest.raises(ConfigError) as caught:
            attach(model)
        said.append(str(caught.value))
    return said


def test_what_cannot_be_attached_is_refused_with_the_reason() -> None:
    plain, nothing, listed, two, fsdp1 = ranks.run(2, run_refused)[0]
    assert "attach(DistributedDataParallel(model))" in plain
    assert "not None of type NoneType" in nothing
    assert "of type list" in listed
    assert "2 models" in two
    assert "FSDP1" in fsdp1
    assert "fully_shard" in fsdp1


def test_torchfts_wrapper_is_refused_with_the_reason() -> None:
    theirs = type("DistributedDataParallel", (Around,), {"__module__": "torchft.ddp"})
    with pytest.raises(ConfigError, match="through its Manager"):
        attach(theirs(net()))


def test_one_process_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    state = attach(net(), bits=4)
    assert "only process" in caplog.text
    assert state.state_dict() == {}
    state.load_state_dict({"format": 5})
    state.close()
    assert not state.compressing
    with pytest.raises(ConfigError, match="bits"):
        attach(net(), bits=77)
    with pytest.raises(ConfigError, match=r"attach\(DistributedDataParallel\(model\), server="):
        attach(net(), server="localhost:4650", job="x", rank=1, workers=3)


def run_again(rank: int, n: int) -> list[Any]:
    """Attached with other options, copied, saved whole, attached to the copy, and after close."""
    model = DistributedDataParallel(net())
    first = attach(model, **OPTIONS, resync=2)
    bits = [sent_and_grads(model, first, rank)[0]]
    second = attach(model, **OPTIONS | {"bits": 2})
    bits.append(sent_and_grads(model, second, rank)[0])
    assert first._closed
    assert not model._forward_pre_hooks
    twin = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    assert [type(state).__name__ for _, state in twin._comm_hooks] == ["Attachment"]
    twin(torch.ones(8, 30)).sum().backward()  # an ordinary DDP
    third = attach(twin, **OPTIONS)
    bits.append(sent_and_grads(twin, third, rank)[0])
    second.close()
    last = attach(model, **OPTIONS)
    bits.append(sent_and_grads(model, last, rank)[0])
    return bits


def test_attaching_again_and_copies() -> None:
    eight, two, copied, again = ranks.run(2, run_again)[0]
    assert copied == pytest.approx(eight, rel=0.01)
    assert again == pytest.approx(eight, rel=0.01)
    assert two < 0.6 * eight


def run_resynced_copy(rank: int, n: int) -> bool:
    model = DistributedDataParallel(net())
    attach(model, **OPTIONS, resync=1)
    twin = copy.deepcopy(model)
    for _ in range(2):
        twin(torch.ones(8, 30)).sum().backward()
    return all(torch.isfinite(p.grad).all() for p in twin.parameters() if p.grad is not None)


def test_a_copy_is_not_resynced() -> None:
    assert all(ranks.run(2, run_resynced_copy))


def run_alone(rank: int, n: int) -> str:
    model = DistributedDataParallel(net())
    torch.distributed.barrier()
    if rank == 0:
        world = torch.distributed.group.WORLD
        torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=2), world)  # that it waits for the other
        attach(model, **OPTIONS)
    return ""


def test_a_rank_that_attaches_alone_is_told() -> None:
    said = ranks.outcomes_of(2, run_alone)[0]
    assert "RoundError: not every rank took part in attach" in str(said)

"""The DDP hook between real processes: its gradients beside those of plain DDP, whatever DDP is told to do."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sumwire import ConfigError
from sumwire.aggregate.group import communicator
from sumwire.train import DDPState, attach, hook
from sumwire.train.ddp.averaging import Averager
from tests import ranks
from tests.train.ddp_models import Gains, Net, Result, batch, build, run_attached, run_plain, same, train, weights


def near(coded: list[np.ndarray], plain: np.ndarray, most: float) -> bool:
    """Whether all ranks have the same bits, close to those of plain DDP and not quite these."""
    same(coded)
    return bool(0 < np.linalg.norm(coded[0] - plain) / np.linalg.norm(plain) < most)


def run_options(rank: int, n: int, steps: int, options: dict[str, Any] | None, ddp: dict[str, Any]) -> np.ndarray:
    """Weights after training; without options, those of plain DDP."""
    return run_plain(rank, n, steps) if options is None else run_attached(rank, n, steps, options, ddp)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_all_ranks_end_with_the_same_bits_near_plain_ddp(n: int) -> None:
    options = [None, {"bits": 6}, {"bits": 6, "feedback": True}]
    plain, *coded = ranks.run_cases(n, run_options, [(8, each, {}) for each in options])
    for each in coded:
        if n == 1:
            np.testing.assert_array_equal(each, plain)
        else:
            assert near(each, plain[0], 0.02)


def test_warm_up_has_the_bits_of_plain_ddp() -> None:
    plain, coded = ranks.run_cases(3, run_options, [(4, None, {}), (4, {"warmup": 4}, {})])
    np.testing.assert_array_equal(coded[0], plain[0])


WIDE = 512
"""So that vectors are few beside matrices: they are averaged exactly."""


def run_small(rank: int, n: int, hop_bytes: int, options: dict[str, Any], nan: str) -> dict[str, np.ndarray]:
    """Gradients in a compressed step; how many rounds of their own small tensors had is "rounds"."""
    communicator.ONE_HOP_BYTES = hop_bytes
    rounds: list[torch.Tensor] = []
    submit = Averager._submit_exact
    Averager._submit_exact = lambda self, values: (rounds.append(values), submit(self, values))[1]  # type: ignore
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(WIDE))
    state = attach(model, bits=8, fallback=False, warmup=0, algorithm="sharded", **options)
    if nan and rank == 1:
        parameter = dict(model.module.named_parameters())[nan]
        parameter.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([3]), torch.nan))
    (model(batch(rank, 0)) - batch(rank, 0)[:, :5]).square().mean().backward()
    assert state.compressing
    found = {name: p.grad.numpy().copy() for name, p in model.module.named_parameters() if p.grad is not None}
    return found | {"rounds": np.array(len(rounds))}


def run_small_plain(rank: int, n: int) -> dict[str, np.ndarray]:
    """This rank's own gradients."""
    torch.manual_seed(0)
    model = Net(WIDE)
    (model(batch(rank, 0)) - batch(rank, 0)[:, :5]).square().mean().backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("hop_bytes", [0, 1 << 14])
@pytest.mark.parametrize("options", [{}, {"feedback": True, "sample_every": 1}])
def test_small_tensors_have_their_true_mean_beside_terms_or_in_a_round_of_their_own(
    hop_bytes: int, options: dict[str, Any]
) -> None:
    own = [run_small_plain(rank, 3) for rank in range(3)]
    results = ranks.run(3, run_small, hop_bytes, options, "")
    assert [int(result.pop("rounds")) for result in results] == [0 if hop_bytes else 1] * 3
    for name, found in results[0].items():
        same([result[name] for result in results])
        mean = np.mean([each[name] for each in own], axis=0, dtype=np.float64)
        error = np.linalg.norm(found - mean) / np.linalg.norm(mean)
        assert error < 1e-6 if found.ndim == 1 else 1e-4 < error < 0.1, (name, error)


@pytest.mark.parametrize(("nan", "lost"), [("norm.bias", 1), ("body.weight", WIDE)])
def test_nan_in_a_small_tensor_stays_there_and_one_in_a_large_tensor_does_not_lose_small_ones(
    nan: str, lost: int
) -> None:
    own = [run_small_plain(rank, 3) for rank in range(3)]
    results = ranks.run(3, run_small, 1 << 14, {}, nan)
    for name, found in results[0].items():
        same([result[name] for result in results])
        if name == nan:
            assert np.isnan(found).sum() == lost
            assert np.isnan(found[3]).all()
        elif name != "rounds":
            mean = np.mean([each[name] for each in own], axis=0, dtype=np.float64)
            assert np.linalg.norm(found - mean) < (1e-6 if found.ndim == 1 else 0.1) * np.linalg.norm(mean), name


DDP_OPTIONS: list[dict[str, Any]] = [
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"gradient_as_bucket_view": True},
    {"bucket_cap_mb": 25},
    {"bucket_cap_mb": 0.001},
]


def test_ddp_options() -> None:
    cases = [(5, {"bits": 6, "feedback": True}, ddp) for ddp in DDP_OPTIONS]
    plain, *coded = ranks.run_cases(2, run_options, [(5, None, {}), *cases])
    for ddp, each in zip(DDP_OPTIONS, coded, strict=True):
        assert near(each, plain[0], 0.02), ddp


def run_accumulating(rank: int, n: int, attached: bool) -> np.ndarray:
    model = build()
    if attached:
        attach(model, bits=8, fallback=False, warmup=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                model(batch(rank, 10 * step + micro)).square().mean().backward()
        optimizer.step()
    return weights(model)


def test_gradient_accumulation() -> None:
    plain, coded = ranks.run_cases(2, run_accumulating, [(False,), (True,)])
    assert near(coded, plain[0], 0.01)


def run_unused(rank: int, n: int) -> Result:
    model = build(find_unused_parameters=True)
    attach(model, bits=4, fallback=False, warmup=0, feedback=True, algorithm="sharded")
    for step in range(3):
        model.zero_grad()
        model(batch(rank, step), use_side=False).square().mean().backward()
    partly = build(find_unused_parameters=True)
    attach(partly, bits=4, fallback=False, warmup=0, algorithm="sharded")
    partly(batch(rank, 0), use_side=rank == 0).square().mean().backward()
    grad = partly.module.side.weight.grad
    return {"unused": model.module.side.weight.grad, "partly": None if grad is None else grad.numpy()}


def test_unused_parameters_keep_no_gradient_and_partly_used_ones_are_averaged() -> None:
    results = ranks.run(2, run_unused)
    assert all(result["unused"] is None for result in results)
    same([result["partly"] for result in results])
    assert np.any(results[0]["partly"])


def run_join(rank: int, n: int) -> np.ndarray:
    model = build()
    state = attach(model, bits=6, fallback=False, warmup=1, feedback=True, algorithm="sharded")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(batch(rank, step)).square().mean().backward()
            optimizer.step()
            mine = weights(model)
    assert state.step == 7  # those that had joined took part
    return mine if rank == 2 else weights(model)  # rank 2's own, before join hands out the final model


def test_uneven_inputs_under_join() -> None:
    same(ranks.run(3, run_join))


def run_two_models(rank: int, n: int) -> list[np.ndarray]:
    first, second = build(1), build(2)
    attach(first, bits=4, fallback=False, warmup=0, algorithm="sharded")
    attach(second, bits=2, fallback=False, warmup=0, feedback=True, algorithm="sharded")
    for step in range(3):
        x = batch(rank, step)
        (first(x) + second(x)).square().mean().backward()
    return [p.grad.numpy() for model in (first, second) for p in model.parameters() if p.grad is not None]


def test_several_models_in_one_process() -> None:
    results = ranks.run(2, run_two_models)
    for pair in zip(*results, strict=True):
        same(list(pair))


def run_dtype(rank: int, n: int, dtype: torch.dtype, attached: bool) -> np.ndarray:
    model = DistributedDataParallel(Gains(dtype), bucket_cap_mb=0.01)
    if attached:
        attach(model, bits=8, fallback=False, warmup=1, algorithm="sharded")
    for step in range(3):
        model.zero_grad()
        model(batch(rank, step, rows=200).reshape(-1).to(dtype)).backward()
    return torch.cat([p.grad.double().reshape(-1) for p in model.parameters() if p.grad is not None]).numpy()


def test_other_dtypes() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float64)
    results = ranks.run_cases(2, run_dtype, product(dtypes, (False, True)))
    for dtype, plain, coded in zip(dtypes, results[::2], results[1::2], strict=True):
        assert near(coded, plain[0], 0.03), dtype


def run_subgroup(rank: int, n: int) -> np.ndarray:
    import torch.distributed as dist

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = build(process_group=pairs[rank // 2])
    attach(model, bits=4, fallback=False, warmup=0, algorithm="sharded")
    train(rank, model, range(2))
    return weights(model)


def test_subgroups_average_apart() -> None:
    a, b, c, d = ranks.run(4, run_subgroup)
    same([a, b])
    same([c, d])
    assert not np.array_equal(a, c)


def run_exact(rank: int, n: int) -> Result:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 600), nn.LayerNorm(600), nn.Linear(600, 600))
    model, plain = DistributedDataParallel(net), DistributedDataParallel(net)
    state = attach(model, bits=4, fallback=False, warmup=0, algorithm="sharded", feedback=True)
    found: Result = {}
    for name, wrapped in (("coded", model), ("plain", plain)):
        net.zero_grad()
        wrapped(batch(rank, 0)).square().mean().backward()
        found[name] = {key: p.grad.numpy().copy() for key, p in net.named_parameters() if p.grad is not None}
    residual = state.start().layout.buckets[0].spans[0].residual
    exact = state.start().layout.buckets[0].spans[0].exact
    assert residual is not None
    assert exact is not None
    assert not residual.value[exact.numpy()].any()
    return found


def test_small_tensors_are_exact() -> None:
    # Two ranks, so that the order of addition does not matter.
    for result in ranks.run(2, run_exact):
        for name in ("0.bias", "1.weight", "1.bias", "2.bias"):
            np.testing.assert_allclose(result["coded"][name], result["plain"][name], rtol=1e-6)
        assert not np.allclose(result["coded"]["2.weight"], result["plain"]["2.weight"], rtol=1e-3)


def run_waiting(rank: int, n: int) -> bool:
    """Rank 1 starts its backward only when rank 0's hooks have all returned: blocking there would hang."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    model = build()
    state = DDPState(
        bits=4, fallback=False, warmup=0, algorithm="sharded", names={p: k for k, p in model.module.named_parameters()}
    )
    state.start()

    def watched(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        future = hook(state, bucket)
        if rank == 0 and bucket.is_last():
            store.set("rank 0 came through", "yes")
        return future

    model.register_comm_hook(state, watched)
    loss = model(batch(rank, 0)).square().mean()
    if rank == 1:
        store.wait(["rank 0 came through"])
    loss.backward()
    return True


def test_the_hook_never_waits_for_the_network() -> None:
    assert ranks.run(2, run_waiting) == [True, True]


class WithNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(5000))
        self.nothing = nn.Parameter(torch.empty(0, dtype=torch.float64))  # alone in a bucket of its dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gain * x).square().mean() + self.nothing.sum()


def run_empty(rank: int, n: int) -> np.ndarray:
    model = DistributedDataParallel(WithNothing())
    attach(model, fallback=False, warmup=0, algorithm="sharded")
    for step in range(2):
        model.zero_grad()
        model(batch(rank, step, rows=250).reshape(-1)).backward()
    return model.module.gain.grad.numpy()


def test_a_bucket_without_values() -> None:
    same(ranks.run(2, run_empty))


def run_uneven_groups(rank: int, n: int) -> list[str]:
    import torch.distributed as dist

    dist.new_group([0, 1])  # of which rank 2 is not
    said = []
    model = build()
    attach(model, fallback=False, warmup=0, algorithm="sharded")
    train(rank, model, range(2))
    trio = dist.new_group([0, 1, 2])
    try:
        attach(build(process_group=trio))
    except ConfigError as error:
        said.append(str(error))
    return [str(weights(model).sum()), *said]


def test_ranks_may_belong_to_other_groups_too() -> None:
    results = ranks.run(3, run_uneven_groups)
    assert len({result[0] for result in results}) == 1
    for result in results:
        assert "equally many" in result[1]

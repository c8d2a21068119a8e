"""DDP, FSDP2, HSDP, functional collectives and torch.compile over the backend: as over gloo, but for the last bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from sumwire.train.process_group import SumwireGroup, register_backend
from sumwire.train.process_group.group import GLOO_AVERAGES
from tests import ranks
from tests.train.fsdp_models import build, train, weights

SIZE = 24_000
BITS = 8


def begin(rank: int, n: int, backend: str) -> None:
    """From now on, all groups of the process have this backend, as in a script that says so once."""
    register_backend(bits=BITS, min_size=1_000)
    store = PrefixStore(backend, dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    dist.init_process_group(backend, store=store, rank=rank, world_size=n)


def compressed() -> int:
    """Values that groups of this process have compressed."""
    groups = [each for each in dist.distributed_c10d._world.pg_map if isinstance(each, SumwireGroup)]
    return sum(each.statistics.values for each in groups)


def train_ddp(rank: int, steps: int = 4, **options: Any) -> np.ndarray:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(100, 300), torch.nn.ReLU(), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 7)
    )
    model = DistributedDataParallel(net, bucket_cap_mb=0.05, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x = torch.randn(8, 100, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return parameters_to_vector(net.parameters()).detach().numpy()


def train_fsdp(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    names = ("replicate", "shard")[-len(shape) :]
    model = build(mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    train(rank, model, range(4))
    return np.asarray(weights(model))


def run_trained(rank: int, n: int, shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for backend in ("gloo", "cpu:sumwire"):
        begin(rank, n, backend)
        found["ddp", backend] = train_ddp(rank), compressed()
        for shape in shapes:
            before = compressed()
            found[shape, backend] = train_fsdp(rank, shape), compressed() - before
    found["static"] = train_ddp(rank, static_graph=True), train_ddp(rank, gradient_as_bucket_view=True)
    return found


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_trains_as_over_gloo() -> None:
    # Before torch 2.9 FSDP2 asks gloo for means, which it does not know: gradients are sums then.
    shapes: list[tuple[int, ...]] = [(4,), (2, 2), (4, 1)] if GLOO_AVERAGES else []
    results = ranks.run(4, run_trained, shapes)
    for name in ("ddp", *shapes):
        for result in results:
            exact, nothing = result[name, "gloo"]
            ours, values = result[name, "cpu:sumwire"]
            assert nothing == 0
            assert values > 100_000
            assert 0 < distance(ours, exact) < 5e-3, name
            np.testing.assert_array_equal(ours, results[0][name, "cpu:sumwire"][0])
    for result in results:
        for ours in result["static"]:
            assert 0 < distance(ours, result["ddp", "gloo"][0]) < 5e-3


def run_functional(rank: int, n: int) -> dict[str, Any]:
    assert not dist.is_backend_available("sumwire")
    import sumwire.torch  # noqa: F401  (one word registers it)

    assert dist.is_backend_available("sumwire")
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # groups of others are as before
    begin(rank, n, "cpu:sumwire")
    group = dist.group.WORLD
    x = torch.randn(SIZE, generator=torch.Generator().manual_seed(rank))
    truth = torch.stack([torch.randn(SIZE, generator=torch.Generator().manual_seed(k)) for k in range(n)]).sum(0)
    found: dict[str, Any] = {}

    def check(name: str, result: torch.Tensor, expected: torch.Tensor) -> None:
        found[name] = float((result - expected).square().sum() / expected.square().sum())

    check("all_reduce", functional.all_reduce(x, "sum", group) + 0, truth)
    check("average", functional.all_reduce(x, "avg", group) + 0, truth / n)
    check("scattered", functional.reduce_scatter_tensor(x, "sum", 0, group) + 0, truth.view(n, -1)[rank])
    coalesced = functional.all_reduce_coalesced([x, x[:10]], "sum", group)
    check("coalesced", coalesced[0] + 0, truth)
    torch.testing.assert_close(coalesced[1] + 0, truth[:10])
    rows = functional.reduce_scatter_tensor_coalesced([x], "avg", [0], group)
    check("coalesced rows", rows[0] + 0, truth.view(n, -1)[rank] / n)
    assert torch.equal(functional.all_reduce(x, "max", group) + 0, functional.all_reduce(x, "max", group) + 0)
    found["values"] = compressed()

    @torch.compile(backend="eager", fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        dist.all_reduce(doubled)
        return doubled + 1

    check("compiled", step(x) - 1, 2 * truth)
    model = DistributedDataParallel(torch.nn.Linear(100, 200))
    run = torch.compile(model, backend="eager")
    before = compressed()
    run(x[:1_000].view(10, 100)).sum().backward()
    found["compiled ddp"] = compressed() - before
    found["gradient"] = model.module.weight.grad.numpy().copy()
    return found


def test_functional_collectives_and_compile() -> None:
    results = ranks.run(2, run_functional)
    for found in results:
        for name in ("all_reduce", "average", "scattered", "coalesced", "coalesced rows", "compiled"):
            assert 0 < found[name] < 1e-3, name
        assert found["values"] == 5 * SIZE + 10
        assert found["compiled ddp"] == 200 * 101
        np.testing.assert_array_equal(found["gradient"], results[0]["gradient"])

"""Real processes: workers of one process group, sites of several ranks under DDP or FSDP2, a server, packets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sumwire import Server, connect
from sumwire.errors import ConfigError
from sumwire.train import DiLoCo
from tests import ranks
from tests.aggregate.network.netting import SECRET, aggregating
from tests.train.diloco.workers import build, train, values

STEPS, EVERY = 8, 4
SITES = [[0, 1], [2, 3]]


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def alone(rank: int, **options: Any) -> tuple[Any, str]:
    model = build(seed=rank)  # all but one begin with what another has
    optimizer = sgd(model)
    diloco = DiLoCo(model, optimizer, every=EVERY, seed=1, **options)
    train(model, optimizer, range(STEPS), rank)
    diloco.close()
    return values(model).numpy(), diloco.digest()


def under_ddp(rank: int, server: str) -> dict[str, Any]:
    """Two sites of two ranks: over a process group of their first ranks, and over a server."""
    groups = [dist.new_group(site) for site in SITES]
    leaders = dist.new_group([site[0] for site in SITES])
    site = rank // 2
    found = {}
    for name, over in (("group", leaders), ("server", server)):
        model = DistributedDataParallel(build(), process_group=groups[site])
        optimizer = sgd(model)
        at_server = {"rank": site, "workers": 2, "job": "ddp"} if name == "server" else {}
        diloco = DiLoCo(model, optimizer, over, every=EVERY, seed=1, **at_server)
        train(model, optimizer, range(STEPS), rank)
        sent = diloco.statistics.sent
        diloco.close()
        found[name] = values(model).numpy(), diloco.digest(), sent
    return found


def sharded(rank: int) -> tuple[Any, Any, str]:
    """The same with shards, each averaged over its counterparts; and with the whole model at each of two sites."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "shard"))
    model: Any = fully_shard(build(), mesh=mesh["shard"])
    optimizer = sgd(model)
    diloco = DiLoCo.local_sgd(model, optimizer, mesh["site"].get_group(), every=EVERY, bits=32)
    train(model, optimizer, range(EVERY), rank)
    found = torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()])
    diloco.close()
    try:
        DiLoCo(model, optimizer, "127.0.0.1:1", rank=0, workers=2, job="x")
        refused = ""
    except ConfigError as error:
        refused = str(error)
    whole = DistributedDataParallel(build(), process_group=mesh["shard"].get_group())
    optimizer = sgd(whole)
    leaders = mesh["site"].get_group()
    diloco = DiLoCo.local_sgd(whole, optimizer, leaders, every=EVERY, bits=32)
    train(whole, optimizer, range(EVERY), rank)
    diloco.close()
    return found.numpy(), values(whole).numpy(), refused


def everything(rank: int, n: int, server: str) -> dict[str, Any]:
    return {
        "compressed": alone(rank),
        "feedback": alone(rank, bits=2, feedback=True),
        "streaming": alone(rank, fragments=2, delay=1, mix=0.0),
        "ddp": under_ddp(rank, server),
        "fsdp": sharded(rank),
    }


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    with Server(workers=2) as server:
        return ranks.run(4, everything, server.address)


@pytest.mark.parametrize("kind", ["compressed", "feedback", "streaming"])
def test_ranks_of_a_process_group_stay_equal(results: list[dict[str, Any]], kind: str) -> None:
    assert len({result[kind][1] for result in results}) == 1
    if kind != "streaming":  # where the last steps are of each alone
        assert all(np.array_equal(result[kind][0], results[0][kind][0]) for result in results)
    moved = results[0][kind][0] - values(build()).numpy()
    assert 0.01 < np.linalg.norm(moved) < 100


def test_a_ddp_site_exchanges_once_and_all_its_ranks_follow(results: list[dict[str, Any]]) -> None:
    for name in ("group", "server"):
        assert len({result["ddp"][name][1] for result in results}) == 1
        assert all(np.array_equal(result["ddp"][name][0], results[0]["ddp"][name][0]) for result in results)
        assert [result["ddp"][name][2] > 0 for result in results] == [True, False, True, False]


def test_shards_of_fsdp_give_what_whole_models_give(results: list[dict[str, Any]]) -> None:
    for shards, whole, refused in (result["fsdp"] for result in results):
        np.testing.assert_allclose(shards, whole, rtol=1e-4, atol=1e-6)
        assert np.array_equal(shards, results[0]["fsdp"][0])
        assert "FSDP2 over a server" in refused


def test_over_a_server_and_over_packets_workers_stay_equal() -> None:
    with Server(workers=2) as server, aggregating(2, mtu=9000) as aggregator:
        for over, options in ((server.address, {}), (aggregator.address, {"token": SECRET})):

            def work(rank: int, over: str = over, options: Any = options) -> tuple[torch.Tensor, str]:
                model = build(seed=rank)
                optimizer = sgd(model)
                with connect(over, rank=rank, workers=2, **options) as link:
                    diloco = DiLoCo(model, optimizer, link, every=EVERY, bits=2, feedback=True)
                    train(model, optimizer, range(STEPS), rank)
                    diloco.close()
                    if link.ascending:
                        with pytest.raises(ConfigError, match="has carried a DiLoCo before"):
                            DiLoCo(model, optimizer, link)
                return values(model), diloco.digest()

            with ThreadPoolExecutor(2) as pool:
                one, other = pool.map(work, range(2))
            assert torch.equal(one[0], other[0])
            assert one[1] == other[1]


def test_a_lossy_link_is_refused() -> None:
    model = build()
    with (
        aggregating(1, mtu=9000, deadline=1.0) as aggregator,
        connect(aggregator.address, rank=0, workers=1, token=SECRET, loss="lossy") as link,
        pytest.raises(ConfigError, match="drift apart"),
    ):
        DiLoCo(model, sgd(model), link)

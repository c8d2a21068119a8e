"""What attach opens ends with the model: threads, descriptors and process groups, counted over many models."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sumwire import MismatchError, RoundError, Server
from sumwire.train import DDPState, attach, hook
from tests import ranks

CYCLES = {"attached": 8, "sharded": 8, "over_a_server": 6}
FEW = 4

Counts = tuple[int, int, int]

GROUPS: dict[str, Any] = {}
WATCHED: list[Any] = []


def counts() -> Counts:
    """Threads and descriptors of this process, and process groups that torch knows."""
    groups = len(dist.distributed_c10d._world.pg_map)
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), groups


def settled(most: Counts) -> Counts:
    """The counts, when they are no more than these; for a while they may be, as other threads do the closing."""
    deadline = time.monotonic() + 200
    gc.collect()
    while not within(now := counts(), most) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def within(found: Counts, most: Counts) -> bool:
    return all(a <= b for a, b in zip(found, most, strict=True))


def repeated(rank: int, n: int, name: str, *args: Any) -> list[Counts]:
    """The counts after each of several lives of a model."""
    GROUPS["pair"] = dist.new_group([0, 1])
    at_start = counts()
    kept: list[Any] = []
    found: list[Counts] = []
    for _ in range(CYCLES.get(name, FEW)):
        LIVES[name](rank, kept, *args)
        if not found and "last model" in GROUPS:  # so that the first life does not end as it began
            found.append(counts())
        else:
            found.append(settled(found[0] if found else at_start))
        dist.barrier()
    assert all(each() is None for each in WATCHED)
    for state in kept:
        assert state.step == 3
        assert state.state_dict()
        state.close()
    return found


def watch(model: nn.Module) -> None:
    """Neither the model nor its parameters may outlive the test, though its state does."""
    WATCHED.extend(weakref.ref(each) for each in (model, *model.parameters()))


def train(model: nn.Module, steps: int = 3) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(4, 200)).sum().backward()


def ddp() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(200, 300))


def attached(rank: int, kept: list[Any]) -> None:
    model = ddp()
    attach(model, warmup=1, fallback=False)
    train(model)


def state_kept(rank: int, kept: list[Any]) -> None:
    model = ddp()
    kept.append(attach(model, warmup=1, fallback=False, codec="auto"))
    train(model)
    watch(model)


def logging_model(rank: int, kept: list[Any]) -> None:
    """The state holds its model: a cycle, of which the garbage collector must see every part."""
    model = ddp()
    attach(model, warmup=1, fallback=False, resync=2, log=lambda *entry: model.training)
    train(model)


def registered_by_hand(rank: int, kept: list[Any]) -> None:
    model = ddp()
    model.register_comm_hook(DDPState(warmup=1, fallback=False), hook)
    train(model)


def closed(rank: int, kept: list[Any]) -> None:
    model = ddp()
    state = attach(model, warmup=1, fallback=False)
    train(model)
    state.close()
    state.close()
    kept.append(state)


def closed_and_reopened(rank: int, kept: list[Any]) -> None:
    model = ddp()
    state = attach(model, warmup=1, fallback=False)
    train(model, 2)
    state.close()
    state.reopen()
    state.reopen()
    train(model, 1)
    assert state.step == 3


def refused(rank: int, kept: list[Any]) -> None:
    with pytest.raises(MismatchError, match="seed is 0 at rank 0 and 1 at rank 1"):
        attach(ddp(), seed=rank)


def in_a_subgroup(rank: int, kept: list[Any]) -> None:
    """torch names groups of a part of the world by how many there are: ranks must count alike, whoever closes first."""
    model = DistributedDataParallel(nn.Linear(200, 300), process_group=GROUPS["pair"])
    attach(model, warmup=1, fallback=False)
    train(model)
    if rank == 1:
        GROUPS["last model"] = model  # and the one before goes, which rank 0 has closed long since


def sharded(rank: int, kept: list[Any]) -> None:
    model = fully_shard(nn.Sequential(fully_shard(nn.Linear(200, 300))))
    attach(model)
    train(model)


def sharded_state_kept(rank: int, kept: list[Any]) -> None:
    model = fully_shard(nn.Linear(200, 300))
    kept.append(attach(model))
    train(model)
    watch(model)
    with pytest.raises(RoundError, match="closed"):
        closing(rank)


def closing(rank: int) -> None:
    model = fully_shard(nn.Linear(200, 300))
    logged: list[int] = []
    state = attach(model, log=lambda name, value, step: logged.append(step))
    train(model, 2)
    state.close()
    assert set(logged) == {0, 1}  # the last step, too
    assert state.state_dict()["units"]
    train(model, 1)


def over_a_server(rank: int, kept: list[Any], address: str) -> None:
    model = ddp()
    attach(model, warmup=1, fallback=False, server=address)
    train(model)


LIVES: dict[str, Callable[..., None]] = {
    life.__name__: life
    for life in (
        attached, state_kept, logging_model, registered_by_hand, closed, closed_and_reopened, refused, in_a_subgroup,
        sharded, sharded_state_kept, over_a_server,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in LIVES if name != "over_a_server"])
def test_nothing_is_left_of_a_model_that_is_gone(name: str) -> None:
    for found in ranks.run(2, repeated, name):
        assert all(within(each, found[0]) for each in found), found


def test_links_that_were_opened_for_a_model_are_closed() -> None:
    with Server(workers=2) as server:
        for found in ranks.run(2, repeated, "over_a_server", server.address):
            assert all(within(each, found[0]) for each in found), found

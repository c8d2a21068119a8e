"""Our group under torchft's real lighthouse, managers and DiLoCo; a replica is killed in the middle of a step."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import pytest
import torch

from tests.ranks import context

pytest.importorskip("torchft", reason="torchft is not installed: pip install torchft-nightly")

SIZE = 30_000
WAIT = timedelta(seconds=300)


def values(replica: int, step: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + replica))


def replica(index: int, lighthouse: str, sender: Connection, done: list[Event]) -> None:
    import torch.distributed as dist
    from torchft import Manager

    from sumwire.train.torchft import ProcessGroupSumwire

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupSumwire(WAIT, bits=8, min_size=1_000, seed=1)
    manager = Manager(
        pg=group, min_replica_size=2, load_state_dict=lambda _: None, state_dict=lambda: {"nothing": torch.zeros(1)},
        lighthouse_addr=lighthouse, replica_id=f"replica_{index}", store_addr="127.0.0.1", store_port=store.port,
        rank=0, world_size=1, timeout=WAIT, quorum_timeout=WAIT, hostname="127.0.0.1", use_async_quorum=False,
        init_sync=False,
    )  # fmt: skip
    committed: dict[int, list[Any]] = {2: [], 3: []}
    failed, firsts = 0, set()
    while len(committed[3]) < 2 or len(committed[2]) < 2 or not failed:
        manager.start_quorum()
        step, size = manager.current_step(), manager.num_participants()
        firsts.add(group.parent._next)
        if index == 2 and all(each.is_set() for each in done):
            os.kill(os.getpid(), signal.SIGKILL)
        x, there = values(index, step), torch.zeros(3)
        there[index] = 1
        manager.allreduce(x).wait()
        manager.allreduce(there).wait()  # exactly, as it is small: who took part
        if manager.should_commit():
            members = tuple(there.nonzero().flatten().tolist())
            assert len(members) == size
            # The same at both who stay, however slow the third is to come or to send heartbeats.
            if size == 3 or (committed[3] and members == (0, 1)):
                committed[size].append((step, members, x.numpy().copy(), group.parent.statistics.values))
        else:
            failed += 1
        if len(committed[3]) == 2:
            done[index].set()
    model, steps = train(manager, index)
    sender.send((committed, failed, len(firsts), model, steps))
    manager.shutdown(wait=False)
    group.shutdown()


def train(manager: Any, index: int) -> tuple[np.ndarray, int]:
    """Two outer steps of torchft's DiLoCo."""
    from torchft.local_sgd import DiLoCo

    torch.manual_seed(0)
    model = torch.nn.Linear(100, 300)
    before = manager.current_step()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, nesterov=True, momentum=0.9)
    with DiLoCo(manager, [model], inner, outer, sync_every=2, pin_memory=False):
        for step in range(4):
            inner.zero_grad()
            model(values(index, step)[:800].view(8, 100)).square().mean().backward()
            inner.step()
    return model.weight.detach().numpy().copy(), manager.current_step() - before


def test_replicas_come_and_go() -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1_000, heartbeat_timeout_ms=2_000)
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    pipes, done = [context.Pipe(duplex=False) for _ in range(3)], [context.Event() for _ in range(3)]
    replicas = [
        context.Process(target=replica, args=(index, address, sender, done), daemon=True)
        for index, (_, sender) in enumerate(pipes)
    ]
    try:
        for process, (_, sender) in zip(replicas, pipes, strict=True):
            process.start()
            sender.close()
        for receiver, _ in pipes[:2]:
            assert receiver.poll(600), "a replica hangs"
        results = [receiver.recv() for receiver, _ in pipes[:2]]
    finally:
        for process in replicas:
            process.join(5)
            process.kill()
        lighthouse.shutdown()
    for committed, failed, groups, _, steps in results:
        assert failed >= 1  # the step in which the third died
        assert groups >= 2
        assert steps == 2
        for size, means in committed.items():
            for step, members, mean, compressed in means:
                assert len(members) == size
                truth = torch.stack([values(each, step) for each in members]).mean(0).numpy()
                assert 0 < np.square(mean - truth).sum() / np.square(truth).sum() < 1e-3
                assert compressed >= SIZE
    (first, _, _, model, _), (second, _, _, other, _) = results
    for size in (2, 3):
        ours = {(step, members): mean for step, members, mean, _ in first[size]}
        shared = [(ours[step, members], mean) for step, members, mean, _ in second[size] if (step, members) in ours]
        assert shared
        for mean, theirs in shared:
            np.testing.assert_array_equal(mean, theirs)
    np.testing.assert_array_equal(model, other)

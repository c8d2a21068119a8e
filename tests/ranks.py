"""Real ranks for tests: processes that form a gloo group, run one function and report its results."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

context = multiprocessing.get_context("forkserver")
# The server imports torch once; every rank is then a cheap fork of it.
context.set_forkserver_preload(
    ["pytest", "torch._dynamo", "torch.nn.parallel", "torch.distributed.fsdp", "sumwire.train", "tests.preloaded"]
)


PATIENCE, GROUP = 600.0, 300.0
"""Seconds after which ranks are taken to hang, and that a collective may take: a busy machine needs many of them."""


class RankFailed(AssertionError):
    """Some rank raised; the message holds every rank's traceback."""


def run(
    ranks: int, function: Callable[..., Any], *args: Any, timeout: float = PATIENCE, group: float = GROUP
) -> list[Any]:
    """`function(rank, ranks, *args)` on every rank; results in rank order.

    `group` is the process group's timeout.
    """
    outcomes = outcomes_of(ranks, function, *args, timeout=timeout, group=group)
    failed = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(outcomes) if error]
    if failed:
        raise RankFailed("\n".join(failed))
    return [result for result, _ in outcomes]


def run_cases(ranks: int, function: Callable[..., Any], cases: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """`function(rank, ranks, *case)` for each of these, by the same ranks; results by case, in rank order."""
    return [list(results) for results in zip(*run(ranks, _cases, function, list(cases)), strict=True)]


def _cases(rank: int, ranks: int, function: Callable[..., Any], cases: Sequence[Sequence[Any]]) -> list[Any]:
    return [function(rank, ranks, *case) for case in cases]


def outcomes_of(
    ranks: int, function: Callable[..., Any], *args: Any, timeout: float = PATIENCE, group: float = GROUP
) -> list[tuple[Any, str]]:
    """As `run`, but (result, traceback) of every rank, whether it failed or not."""
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory, "store").as_uri()
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(target=_rank, args=(rank, ranks, store, group, sender, function, args), daemon=True)
            for rank, (_, sender) in enumerate(pipes)
        ]
        try:
            for process, (_, sender) in zip(processes, pipes, strict=True):
                process.start()
                sender.close()
            return [_outcome(rank, receiver, timeout) for rank, (receiver, _) in enumerate(pipes)]
        finally:
            for process, (receiver, _) in zip(processes, pipes, strict=True):
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()
                receiver.close()


def _outcome(rank: int, receiver: Connection, timeout: float) -> tuple[Any, str]:
    if not wait([receiver], timeout):
        return None, f"hung for {timeout:.0f} s"
    try:
        result: tuple[Any, str] = receiver.recv()
        return result
    except EOFError:
        return None, "died"


def _rank(
    rank: int, ranks: int, store: str, timeout: float, sender: Connection, function: Callable[..., Any], args: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    # Above the parent's own loopback address nothing is needed, whatever the host is called.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout)
        )
        result = function(rank, ranks, *args)
        dist.barrier()
        dist.destroy_process_group()
        sender.send((result, ""))
    except BaseException:
        sender.send((None, traceback.format_exc()))
        os._exit(1)  # the group may be broken: nothing to tear down in order

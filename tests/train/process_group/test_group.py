"""What a group of backend "sumwire" compresses, how it fails, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

import sumwire.torch  # noqa: F401  (registers the backend)
from sumwire import ConfigError, Lattice, MismatchError, RoundError, Sparse
from sumwire.train import attach
from sumwire.train.process_group import GroupOptions, SumwireGroup, register_backend
from tests import ranks

SIZE = 24_000


def group_of(*members: int, **options: Any) -> SumwireGroup:
    """Of these ranks, or of all."""
    return dist.new_group(  # type: ignore[no-any-return]
        members or None, backend="sumwire", pg_options=GroupOptions(**{"min_size": 1_000, **options}),
        timeout=timedelta(seconds=300), group_desc="chosen",
    )  # fmt: skip


def values(rank: int, size: int = SIZE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank))


def compressed(group: Any, size: int = SIZE, dtype: torch.dtype = torch.float32) -> bool:
    """Whether an all-reduce of this size is; the result is right in any case."""
    before = group.statistics.values
    x = values(dist.get_rank(), size).to(dtype)
    dist.all_reduce(x, group=group)
    members = dist.get_process_group_ranks(group)
    truth = torch.stack([values(rank, size).to(dtype).double() for rank in members]).sum(0)
    assert float((x - truth).square().sum() / truth.square().sum()) < 0.4  # 2 bits are the fewest here
    return bool(group.statistics.values > before)


def run_options(rank: int, n: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    group = group_of()
    found["sizes"] = [compressed(group, size) for size in (999, 1_000, 1_001, SIZE)]
    found["halves"] = [compressed(group, size, torch.float16) for size in (3_000, SIZE)]  # the former would not pay
    found["default"] = (
        compressed(dist.new_group(backend="sumwire"), 65_535),
        compressed(dist.new_group(backend="sumwire"), 65_536),
    )
    found["named"] = compressed(group_of(groups=("chosen",))), compressed(group_of(groups=["mesh_dp"]))
    for name, codec in {"sparse": "sparse", "sketch": "sketch", "auto": "auto", "own": Lattice(2, 3)}.items():
        other = group_of(codec=codec)
        compressed(other)
        output = torch.empty(SIZE // n)
        before = other.statistics.values
        (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(output, values(0), group=other)
        truth = n * values(0).view(n, -1)[rank]
        assert float((output - truth).square().sum() / truth.square().sum()) < 0.4
        found[name] = other.statistics.values > before
    # Our own trainers, over a group of ours: their communicators must be gloo's, or they would compress twice.
    model = DistributedDataParallel(torch.nn.Linear(200, 200), process_group=group)
    state = attach(model, bits=4, warmup=0, fallback=False)
    before = group.statistics.values
    model(torch.ones(1, 200)).sum().backward()
    found["attached"] = state.compressing, group.statistics.values - before
    state.close()
    # Ranks that are alone, and subgroups.
    alone = [group_of(member) for member in range(n)][rank]
    x = values(rank)
    dist.all_reduce(x, group=alone)
    assert torch.equal(x, values(rank))
    first, last = group_of(0, 1), group_of(n - 2, n - 1)
    found["subgroups"] = [compressed(each) for each in (first, last) if isinstance(each, dist.ProcessGroup)]
    repeated = []
    for _ in range(2):
        x = values(rank)
        dist.all_reduce(x, group=group_of(seed=5))
        repeated.append(x)
    found["repeatable"] = torch.equal(*repeated)
    fresh = values(rank)
    dist.all_reduce(fresh, group=group_of())
    found["fresh"] = not torch.equal(fresh, repeated[0])
    register_backend(bits=2, min_size=5_000)
    found["registered"] = [compressed(dist.new_group(backend="sumwire"), size) for size in (4_999, SIZE)]
    register_backend()
    return found


def test_options() -> None:
    for rank, found in enumerate(ranks.run(3, run_options)):
        assert found["sizes"] == [False, False, False, True]  # 1000 would not pay
        assert found["halves"] == [False, True]
        assert found["default"] == (False, True)
        assert found["named"] == (True, False)
        assert (found["sparse"], found["sketch"], found["auto"], found["own"]) == (True, False, False, True)
        assert found["subgroups"] == [True] * (2 if rank == 1 else 1)
        assert found["repeatable"]
        assert found["fresh"]
        assert found["registered"] == [False, True]
        assert found["attached"] == (True, 0)


def test_an_older_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.6.0"))
    with pytest.raises(ConfigError, match=r"needs torch 2\.7 or newer: torch 2\.6\.0 loses the errors"):
        register_backend()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 0}, "bits=0"),
        ({"min_size": 0}, "min_size=0 is less than 1"),
        ({"min_size": 1.5}, "min_size"),
        ({"groups": "mesh_dp"}, "are not names"),
        ({"groups": [3]}, "are not names"),
        ({"codec": "zip"}, "codec='zip' is not one of"),
        ({"codec": Sparse(2), "bits": 4}, "bits=4 has no meaning"),
        ({"codec": Lattice(2, feedback=True)}, "cannot keep residuals"),
        ({"feedback": True}, "'feedback' is not an option of a process group"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        register_backend(**options)


def run_mistakes(rank: int, n: int) -> list[str]:
    said = []
    for make in (
        lambda: dist.new_group(backend="sumwire", pg_options={"bits": 4}),
        lambda: group_of(bits=4 + rank),
        lambda: group_of(min_size=1_000 + rank),
    ):
        with pytest.raises((ConfigError, MismatchError)) as caught:
            make()
        said.append(str(caught.value))
    group = group_of()
    with pytest.raises(MismatchError) as caught:
        dist.all_reduce(values(rank, SIZE + rank), group=group)
    said.append(str(caught.value))
    # What comes later has no partner to count on.
    work = dist.all_reduce(values(rank), group=group, async_op=True)
    with pytest.raises(MismatchError):
        work.wait()
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="MismatchError.*size differs"):
        work.get_future().wait()
    model = DistributedDataParallel(torch.nn.Linear(200, 200), process_group=group)
    with pytest.raises(RuntimeError, match="size differs"):  # from DDP, by way of C++
        model(torch.ones(1, 200)).sum().backward()
    return said


def test_mistakes_are_named_at_every_rank() -> None:
    for options, bits, least, size in ranks.run(2, run_mistakes):
        assert "pg_options is a dict: pass sumwire.train.GroupOptions" in options
        assert "bits is 4 at rank 0 and 5 at rank 1" in bits
        assert "min_size is 1000 at rank 0 and 1001 at rank 1" in least
        assert "size differs; it is 24000 at rank 0 and 24001 at rank 1" in size


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("sumwire")]


def run_ends(rank: int, n: int) -> list[int]:
    counts = []
    group = group_of()
    compressed(group)
    counts.append(len(threads()))
    unwaited = dist.all_reduce(values(rank), group=group, async_op=True)
    dist.barrier(group)
    assert unwaited.is_completed()
    assert dist.barrier(group, async_op=True).wait()
    dist.destroy_process_group(group)
    counts.append(len(threads()))
    with pytest.raises(RoundError, match="closed"):
        group.allreduce([values(rank)]).wait()
    aborted = group_of()
    alone = aborted.allreduce([values(rank)]) if rank == 0 else None
    if alone is not None:
        with pytest.raises(RoundError, match="not done after 0.01 s"):
            alone.wait(timedelta(seconds=0.01))
    dist.barrier()
    aborted.abort()
    if alone is not None:
        with pytest.raises(RoundError):
            alone.wait()
    counts.append(len(threads()))
    gone = group_of()
    del gone
    return counts


def test_destroying_ends_threads_and_rounds() -> None:
    for used, destroyed, aborted in ranks.run(2, run_ends):
        assert used == 6
        assert (destroyed, aborted) == (0, 0)


def run_killed(rank: int, n: int) -> str:
    group = group_of()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=200), group)
    compressed(group)
    assert group._group._timeout == timedelta(seconds=200)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RoundError) as caught:
        dist.all_reduce(values(rank), group=group)
    dist.destroy_process_group(group)
    assert not threads()
    print(str(caught.value), flush=True)
    raise AssertionError(str(caught.value))  # as rank 1 comes to no barrier


def test_a_rank_that_dies_fails_the_round() -> None:
    (_, survivor), (_, killed) = ranks.outcomes_of(2, run_killed)
    assert killed == "died"
    assert "AssertionError: round" in survivor
    assert "failed at rank 0" in survivor


def test_no_collective_is_left_to_torch_which_would_call_gloo_with_python_s_lock_held() -> None:
    """gloo's threads may want that lock while they have gloo's own: DDP's second step could wait forever."""
    passed_by_torch = {
        "allgather", "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced", "alltoall_base", "barrier",
        "broadcast", "recv", "reduce_scatter", "reduce_scatter_tensor_coalesced", "send",
    }  # fmt: skip
    assert passed_by_torch <= set(vars(SumwireGroup))

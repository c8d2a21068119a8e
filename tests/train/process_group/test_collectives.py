"""Backend "sumwire" against gloo: every collective that torch has, compressed where it may be and equal where not."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import sumwire
import sumwire.torch
from sumwire.train.process_group import GroupOptions
from sumwire.train.process_group import group as process_group
from sumwire.train.process_group.group import GLOO_AVERAGES
from tests import ranks

SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
OF_GLOO = (SUM, AVG) if GLOO_AVERAGES else (SUM,)
LARGE, SMALL = 30_000, 100
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SEEDED = GroupOptions(bits=8, seed=3, min_size=1_000)
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def noise(rank: int, size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * seed + rank)).to(dtype)


def both(call: Callable[[dist.ProcessGroup], Any], groups: list[dist.ProcessGroup]) -> list[Any]:
    """What a call gives on gloo and on our group: a result, or the words of its error."""
    found: list[Any] = []
    for group in groups:
        try:
            found.append(call(group))
        except (RuntimeError, ValueError) as error:
            words = re.sub(r"\[F.*?\.cpp", "", str(error).splitlines()[0])  # without the time
            found.append(f"{type(error).__name__}: {words}")
    return found


def reduced(tensor: torch.Tensor, op: Any, group: dist.ProcessGroup) -> torch.Tensor:
    dist.all_reduce(tensor, op, group)
    return tensor


def scattered(tensor: torch.Tensor, op: Any, group: dist.ProcessGroup) -> torch.Tensor:
    output = torch.empty(len(tensor) // group.size(), dtype=tensor.dtype)
    reduce_scatter(output, tensor, op, group)
    return output


def packed(value: Any) -> bytes:
    """Tensors would travel as open files of a process that ends."""
    torch.save(value, file := io.BytesIO())
    return file.getvalue()


def run_ranks(n: int, function: Callable[[int, int], bytes]) -> list[Any]:
    return [torch.load(io.BytesIO(result), weights_only=False) for result in ranks.run(n, function)]


def run_exact(rank: int, n: int) -> bytes:
    """Collectives that must not differ from gloo's."""
    groups = [dist.new_group(backend="gloo"), dist.new_group(backend="sumwire", pg_options=SEEDED)]
    found: list[tuple[str, Any, Any]] = []

    def compare(name: str, call: Callable[[dist.ProcessGroup], Any]) -> None:
        found.append((name, *both(call, groups)))

    ops = {name: getattr(dist.ReduceOp, name) for name in ("SUM", "MAX", "MIN", "PRODUCT", "BAND", "BOR")}
    ops |= {"AVG": AVG} if GLOO_AVERAGES else {}
    ops["PREMUL_SUM"] = dist._make_nccl_premul_sum(2.0)
    for name, op in ops.items():
        for dtype in (*DTYPES, torch.int32, torch.uint8, torch.bool, torch.int16):
            small = noise(rank, SMALL).mul(3).to(dtype)
            compare(f"{name} of few {dtype}", lambda group, x=small, op=op: reduced(x.clone(), op, group))
            if dtype not in DTYPES or name not in ("SUM", "AVG"):
                large = noise(rank, LARGE).mul(3).to(dtype)
                compare(f"{name} of many {dtype}", lambda group, x=large, op=op: reduced(x.clone(), op, group))
                compare(f"scattered {name} of {dtype}", lambda group, x=large, op=op: scattered(x.clone(), op, group))
    strided = noise(rank, 2 * SMALL)[::2]
    compare("strided", lambda group: reduced(strided.contiguous() if group is groups[0] else strided, SUM, group))
    compare("empty", lambda group: reduced(torch.empty(0), SUM, group))
    compare("one value", lambda group: reduced(torch.tensor(1.5 + rank), SUM, group))
    for bad in (float("nan"), float("inf")):
        for dtype in DTYPES:
            large = noise(rank, LARGE, dtype)
            large[rank], large[5] = bad, -float("inf") if rank == 1 else bad
            for op in OF_GLOO:
                compare(f"{bad} in {dtype}", lambda group, x=large, op=op: reduced(x.clone(), op, group))
                compare(f"{bad} scattered", lambda group, x=large, op=op: scattered(x.clone(), op, group))
    huge = torch.full((LARGE,), 1e300, dtype=torch.float64)
    compare("beyond float32", lambda group: reduced(huge.clone(), SUM, group))
    complexes = torch.view_as_complex(noise(rank, 2 * SMALL).view(-1, 2))
    compare("complex", lambda group: reduced(complexes.clone(), SUM, group))
    large = noise(rank, LARGE)

    def copied(call: Callable[[torch.Tensor, dist.ProcessGroup], object]) -> Callable[[dist.ProcessGroup], Any]:
        def made(group: dist.ProcessGroup) -> torch.Tensor:
            x = large.clone()
            call(x, group)
            return x

        return made

    compare("broadcast", copied(lambda x, group: dist.broadcast(x, 1, group)))
    compare("reduce", copied(lambda x, group: dist.reduce(x, 0, group=group)))
    if GLOO_AVERAGES:
        compare("reduce to a mean", copied(lambda x, group: dist.reduce(x, 1, AVG, group)))
    compare("all_to_all", copied(lambda x, group: dist.all_to_all_single(x, large.clone(), group=group)))
    compare(
        "scatter", copied(lambda x, g: dist.scatter(x, [large + k for k in range(n)] if not rank else None, group=g))
    )
    compare("send", copied(lambda x, g: dist.send(x, 1, g) if rank == 0 else dist.recv(x, 0, g) if rank == 1 else None))
    everyone = [torch.empty(LARGE) for _ in range(n)]
    compare("all_gather", lambda group: (dist.all_gather(everyone, large, group), torch.stack(everyone))[1])
    whole = torch.empty(n * LARGE)
    compare("gathered in one", lambda group: (all_gather(whole, large, group), whole.clone())[1])
    objects: list[Any] = [None] * n
    compare("objects", lambda group: (dist.all_gather_object(objects, {"rank": rank}, group), list(objects))[1])
    compare("barrier", lambda group: dist.barrier(group))
    compare("monitored", lambda group: group.monitored_barrier())
    if torch.__version__ >= "2.10":  # gloo ended the process before
        compare("wrong sizes", lambda group: reduce_scatter(torch.empty(LARGE), large, group=group))
    return packed(found)


def test_all_but_large_sums_of_floats_is_gloo() -> None:
    for results in run_ranks(3, run_exact):
        assert len(results) > 120
        for name, gloo, ours in results:
            if isinstance(gloo, torch.Tensor):
                assert gloo.dtype == ours.dtype, name
                assert (
                    torch.equal(gloo.nan_to_num(7), ours.nan_to_num(7))
                    if gloo.is_floating_point()
                    else torch.equal(gloo, ours)
                ), name
            else:
                assert gloo == ours, name


def run_compressed(rank: int, n: int) -> bytes:
    group = dist.new_group(backend="sumwire", pg_options=SEEDED)
    first = group._next
    sums = {}
    for dtype in DTYPES:
        # Of halves it would not pay to compress a reduce-scatter, and gloo must know means for itself.
        for op in (SUM, AVG) if GLOO_AVERAGES or dtype.itemsize > 2 else (SUM,):
            x = noise(rank, LARGE, dtype)
            sums[dtype, op.name] = reduced(x.clone(), op, group), scattered(x.clone(), op, group)
    strided = torch.stack([noise(rank, LARGE), torch.zeros(LARGE)], 1)
    dist.all_reduce(strided[:, 0], group=group)
    negative = torch.complex(noise(rank, LARGE), noise(rank, LARGE, seed=1)).conj().imag
    dist.all_reduce(negative, group=group)
    # All in flight before the first is waited for, of several sizes, among others that gloo does.
    several = [noise(rank, size, seed=size) for size in (LARGE, 7, 1_000, 70_001, 3, LARGE + 1)]
    works = [dist.all_reduce(each, group=group, async_op=True) for each in several]
    for work in reversed(works):
        assert work.wait()
    listed = torch.empty(LARGE)
    dist.reduce_scatter(listed, [noise(rank, LARGE, seed=k) for k in range(n)], group=group)
    together = [noise(rank, LARGE), noise(rank, 10), noise(rank, LARGE, seed=9)]
    with _coalescing_manager(group):
        for each in together:
            dist.all_reduce(each, group=group)
    outputs = [torch.empty(LARGE), torch.empty(5)]
    with _coalescing_manager(group):
        for output in outputs:
            reduce_scatter(output, noise(rank, n * len(output)), group=group)
    plain = torch.empty(LARGE)
    group._reduce_scatter_base(plain, noise(rank, n * LARGE), dist.ReduceScatterOptions()).wait()
    by_op = noise(rank, LARGE)
    work = group.allreduce(by_op, AVG)
    future = work.get_future().wait()
    assert work.is_completed()
    assert work.is_success()
    assert future[0] is by_op or torch.equal(future[0], by_op)
    found = {
        "first": first, "sums": sums, "strided": strided, "negative": negative, "several": several, "listed": listed,
        "together": together, "outputs": outputs, "plain": plain, "by_op": by_op, "sent": group.statistics.sent,
    }  # fmt: skip
    return packed(found)


def same(*tensors: torch.Tensor) -> torch.Tensor:
    """All ranks have these bits."""
    for other in tensors[1:]:
        assert torch.equal(tensors[0], other)
    return tensors[0]


def near(result: torch.Tensor, truth: torch.Tensor, bound: float = 3e-3) -> None:
    """Compressed to 8 bits: close, but not equal."""
    error = float((result.double() - truth).square().sum() / truth.square().sum())
    assert 0 < error < bound


@pytest.mark.parametrize("n", [2, 3])
def test_large_sums_of_floats_are_those_of_average(n: int) -> None:
    results = run_ranks(n, run_compressed)
    first = results[0]["first"]
    inputs = [noise(rank, LARGE) for rank in range(n)]
    mean = sumwire.average(sumwire.Lattice(n, 8, energy=0.5, seed=3), [x.numpy() for x in inputs], round_id=first)
    summed = results[0]["sums"][torch.float32, "SUM"][0].numpy()
    np.testing.assert_array_equal(summed, np.asarray(mean) * np.float32(n))
    for dtype in DTYPES:
        truth = torch.stack([noise(rank, LARGE, dtype).double() for rank in range(n)]).sum(0)
        for op, divisor in (("SUM", 1), ("AVG", n)):
            if (dtype, op) not in results[0]["sums"]:
                continue
            found = [result["sums"][dtype, op] for result in results]
            assert {each.dtype for pair in found for each in pair} == {dtype}
            near(same(*(reduced for reduced, _ in found)), truth / divisor)
            near(torch.cat([own for _, own in found]), truth / divisor)

    def total(size: int, seed: int = 0) -> torch.Tensor:
        return torch.stack([noise(rank, size, seed=seed).double() for rank in range(n)]).sum(0)

    near(same(*(result["strided"][:, 0] for result in results)), total(LARGE))
    assert not any(result["strided"][:, 1].any() for result in results)
    near(same(*(result["negative"] for result in results)), -total(LARGE, 1))
    for k, tensor in enumerate(results[0]["several"]):
        alike = same(*(result["several"][k] for result in results))
        if len(tensor) > 100:
            near(alike, total(len(tensor), len(tensor)))
        else:
            torch.testing.assert_close(alike.double(), total(len(tensor), len(tensor)), rtol=1e-6, atol=1e-6)
    for rank, result in enumerate(results):
        near(result["listed"], total(LARGE, rank))
        near(result["outputs"][0], total(n * LARGE).view(n, -1)[rank])
        torch.testing.assert_close(result["outputs"][1].double(), total(5 * n).view(n, -1)[rank], rtol=1e-6, atol=1e-6)
        near(result["plain"], total(n * LARGE).view(n, -1)[rank])
        near(result["by_op"], total(LARGE) / n)
        near(result["together"][0], total(LARGE))
        near(result["together"][2], total(LARGE, 9))
        torch.testing.assert_close(result["together"][1].double(), total(10), rtol=1e-6, atol=1e-6)
    same(*(result["by_op"] for result in results))


def run_old_gloo(rank: int, n: int) -> list[str]:
    process_group.GLOO_AVERAGES = False  # type: ignore[misc]
    group = dist.new_group(backend="sumwire", pg_options=SEEDED)
    few = noise(rank, SMALL * n)
    found = []
    for call in (
        lambda: scattered(few, AVG, group),
        lambda: dist.reduce_scatter(torch.empty(SMALL), list(few.split(SMALL)), AVG, group),
    ):
        try:
            call()
        except sumwire.ConfigError as error:
            found.append(str(error))
    assert torch.equal(scattered(few, SUM, group), scattered(few, SUM, dist.group.WORLD))
    large = noise(rank, LARGE)
    assert scattered(large, AVG, group).shape == (LARGE // n,)  # compressed, so that gloo need not know means
    return found


def test_a_mean_that_old_gloo_takes_for_a_sum_is_refused() -> None:
    for found in ranks.run(2, run_old_gloo):
        assert len(found) == 2
        assert all("gives sums where a reduce-scatter asks for a mean" in words for words in found)

"""The matrix in training for residuals, dtypes and a server: gradients and residuals have the bits of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sumwire import Codec, Lattice, Server, Sketch, Sparse, average
from sumwire.codec.rows.codec import Rows
from sumwire.train import attach
from sumwire.train.ddp.round import Part
from sumwire.train.fsdp.collective import round_id
from tests import ranks
from tests.aggregate.test_matrix_kinds import arrays

STEPS = 3
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
TABLE = (60, 4)
CODECS: dict[str, Callable[[int, int], Codec]] = {
    "energy": lambda rank, n: Lattice(n, 3, seed=7),
    "feedback": lambda rank, n: Lattice(n, 2, seed=7, feedback=True),
    "fixed feedback": lambda rank, n: Lattice(n, 3, widths="fixed", seed=7, feedback=True),
    "mixed feedback": lambda rank, n: Lattice(n, 4, seed=7, feedback=True).with_bits(2 + rank % 3),
    "thc": lambda rank, n: Lattice.thc(n, block=1024),
    "uniform": lambda rank, n: Lattice.uniform(n, block=512),
    "sparse": lambda rank, n: Sparse(n, seed=7),
    "sketch": lambda rank, n: Sketch(n, seed=7),
}
LOSSLESS = ("sparse", "sketch")
FSDP = ("energy", "feedback", "mixed feedback", "sparse")
DDP_SIZE, FSDP_ROW = 2400, 15_000  # the second one so large that compressing float16 pays for 2 to 8 ranks


def gradient(name: str, rank: int, step: int, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Mostly zeros but for lattices."""
    return noise(rank, step, dtype, size, 0.02 if name in LOSSLESS else 1.0)


@lru_cache(maxsize=1000)
def noise(rank: int, step: int, dtype: torch.dtype, size: int, density: float) -> torch.Tensor:
    rng = np.random.default_rng((rank, step, DTYPES.index(dtype)))
    return torch.from_numpy(rng.standard_normal(size) * (rng.random(size) < density)).to(dtype)


def rows(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of some rows of a table, and their gradients."""
    rng = np.random.default_rng((rank, step))
    numbers = np.flatnonzero(rng.random(TABLE[0]) < 0.2)
    return torch.from_numpy(numbers), torch.from_numpy(rng.standard_normal((len(numbers), TABLE[1]))).float()


class Weighted(nn.Module):
    """The gradient of its weight is whatever it is called with."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).double().sum()


class Every(nn.Module):
    """A weight of every dtype, so that DDP has a bucket for each; and perhaps an embedding, whose rows are summed."""

    def __init__(self, size: int, *, table: bool = False) -> None:
        super().__init__()
        self.each = nn.ModuleList(Weighted(size, dtype) for dtype in DTYPES)
        self.table = nn.Embedding(*TABLE, sparse=True) if table else None

    def forward(self, name: str, rank: int, step: int) -> torch.Tensor:
        xs = [gradient(name, rank, step, each.weight.dtype, len(each.weight)) for each in self.each]
        total = torch.stack([each(x) for each, x in zip(self.each, xs, strict=True)]).sum()
        if self.table is not None:
            numbers, values = rows(rank, step)
            total = total + (self.table(numbers) * values).sum()
        return total


def by_ddp(rank: int, n: int, name: str, server: str | None) -> dict[str, Any]:
    """Every step's gradients and numbers that decide its random numbers; and what residuals have at last."""
    model = DistributedDataParallel(Every(DDP_SIZE, table=name == "sparse"))
    how = {"algorithm": "sharded"} if server is None else {"server": server}
    state = attach(
        model, codec=CODECS[name](rank, n), seed=7, warmup=0, fallback=False, exact_below=0, sample_every=0, **how
    )
    found: dict[str, Any] = {"numbers": [], "gradients": [], "rows": []}
    for step in range(STEPS):
        model.zero_grad()
        model(name, rank, step).backward()
        found["numbers"].append([state.start().ids.noise(bucket, Part.SPAN) for bucket in range(len(DTYPES))])
        found["gradients"].append([arrays(each.weight.grad) for each in model.module.each])
        if model.module.table is not None:
            found["rows"].append(arrays(model.module.table.weight.grad.coalesce()))
    buckets = state.state_dict()["buckets"]
    found["order"] = [getattr(torch, bucket["dtype"]) for bucket in buckets]
    kept = {getattr(torch, bucket["dtype"]): bucket["residuals"][0] for bucket in buckets}
    found["residuals"] = [None if kept[dtype] is None else kept[dtype]["value"].numpy() for dtype in DTYPES]
    state.close()
    return found


def by_fsdp(rank: int, n: int, name: str) -> dict[str, Any]:
    """Every step's whole gradients, and what residuals of every row have at last."""
    model = Every(FSDP_ROW * n)
    for each in model.each:
        fully_shard(each)
    state = attach(fully_shard(model), codec=CODECS[name](rank, n), seed=7)
    found: dict[str, Any] = {"gradients": []}
    for step in range(STEPS):
        model.zero_grad()
        model(name, rank, step).backward()
        found["gradients"].append([arrays(each.weight.grad.full_tensor()) for each in model.each])
    kept = [unit["reduce_scatter"]["residual"] for unit in state.state_dict()["units"].values()]
    found["residuals"] = [None if each is None else [row["value"].numpy() for row in each["rows"]] for each in kept]
    state.close()
    return found


def train(rank: int, n: int, server: str, ddp: Sequence[str], fsdp: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = {f"group {name}": by_ddp(rank, n, name, None) for name in ddp}
    found |= {f"server {name}": by_ddp(rank, n, name, server) for name in ddp}
    return found | {f"fsdp {name}": by_fsdp(rank, n, name) for name in fsdp}


def in_one_process(codecs: list[Codec], xs: list[torch.Tensor], number: int, residuals: list[Any]) -> torch.Tensor:
    """The mean; by hand where workers spend different numbers of bits."""
    if len({codec.member for codec in codecs}) == 1:
        mean: torch.Tensor = average(
            codecs[0], xs, round_id=number, residuals=residuals if residuals[0] is not None else None
        )
        return mean
    sources = [residual.correct(x) for residual, x in zip(residuals, xs, strict=True)]
    terms = reduce(or_, [codec.propose(x) for codec, x in zip(codecs, sources, strict=True)])
    payloads = [residual.encode(terms, rank=rank, round_id=number) for rank, residual in enumerate(residuals)]
    whole: torch.Tensor = codecs[0].to_tensor(codecs[0].decode(codecs[0].add(payloads).narrow()), xs[0], None)
    return whole


def same_bits(got: list[Any], expected: torch.Tensor, what: str, *, rounding: float = 0) -> None:
    dtype, values = arrays(expected)
    assert got[0] == dtype, what
    if rounding:
        np.testing.assert_allclose(got[1], values, rtol=rounding, atol=rounding, err_msg=what)
    else:
        np.testing.assert_array_equal(got[1], values, err_msg=what)


def check_ddp(results: list[dict[str, Any]], n: int, name: str, what: str, *, group: bool) -> None:
    codecs = [CODECS[name](rank, n) for rank in range(n)]
    order = results[0]["order"]
    assert sorted(map(str, order)) == sorted(map(str, DTYPES))
    for k, dtype in enumerate(DTYPES):
        residuals = [codec.residual() for codec in codecs]
        # A process group adds what its codec cannot take in float64; others add pairs of float32, in float32.
        rounding = 1e-6 if group and name in LOSSLESS and dtype == torch.float64 else 0
        for step in range(STEPS):
            xs = [gradient(name, rank, step, dtype, DDP_SIZE) for rank in range(n)]
            right = in_one_process(codecs, xs, results[0]["numbers"][step][order.index(dtype)], residuals)
            for result in results:
                same_bits(result["gradients"][step][k], right, f"{what}, {dtype}, step {step}", rounding=rounding)
        for result, residual in zip(results, residuals, strict=True):
            wanted = None if residual is None else residual.value
            np.testing.assert_array_equal(result["residuals"][k], wanted, err_msg=f"residual of {what}, {dtype}")
    for step, got in enumerate(results[0]["rows"]):
        mine = [rows(rank, step) for rank in range(n)]
        tables = [torch.sparse_coo_tensor(at[None], values, TABLE, check_invariants=True) for at, values in mine]
        for one, wanted in zip(got, arrays(average(Rows(n), tables)), strict=True):
            np.testing.assert_array_equal(one, wanted, err_msg=f"rows of {what}")
        assert all(np.array_equal(result["rows"][step][2], got[2]) for result in results)


def check_fsdp(results: list[dict[str, Any]], n: int, name: str) -> None:
    codecs = [CODECS[name](rank, n) for rank in range(n)]
    codecs = [codec.for_plain_sums() if isinstance(codec, Lattice) else codec for codec in codecs]  # sums stay
    size = FSDP_ROW * n
    spans = [slice(FSDP_ROW * r, FSDP_ROW * (r + 1)) for r in range(n)]
    for k, dtype in enumerate(DTYPES):
        residuals = [[codec.residual() for codec in codecs] for _ in spans]
        before, after = factors(n, dtype)
        for step in range(STEPS):
            xs = [gradient(name, rank, step, dtype, size) / before for rank in range(n)]
            if dtype == torch.float16:
                xs = [x.float() for x in xs]  # whose means are rounded to float16 later
            means = [
                in_one_process(codecs, [x[span] for x in xs], round_id(step, k, r), residuals[r])
                for r, span in enumerate(spans)
            ]
            mean = torch.cat(means)
            if after is not None:
                mean = (mean.float() * n).to(dtype) / after
            rounding = 1e-6 if name == "sparse" and dtype == torch.float64 else 0  # for which FSDP2's own is used
            for result in results:
                same_bits(result["gradients"][step][k], mean, f"fsdp {name}, {dtype}, step {step}", rounding=rounding)
        for rank, result in enumerate(results):
            wanted = None if residuals[0][rank] is None else [row[rank].value for row in residuals]
            np.testing.assert_array_equal(result["residuals"][k], wanted, err_msg=f"residual of fsdp {name}, {dtype}")


def factors(n: int, dtype: torch.dtype) -> tuple[float, float | None]:
    """What FSDP2 divides gradients by before it sums them, lest they overflow, and sums by after; None: it averages."""
    if dtype in (torch.float32, torch.bfloat16):
        return 1, None
    before = 1
    while n % before == 0 and n / before > before:
        before *= 2
    return before, n / before


@pytest.mark.parametrize(
    ("n", "ddp", "fsdp"),
    [
        (2, ("energy", "feedback", "sparse"), ("feedback",)),
        (3, tuple(CODECS), FSDP),
        (8, ("feedback", "mixed feedback", "sparse"), ("feedback",)),
    ],
    ids=["2", "3", "8"],
)
def test_training(n: int, ddp: Sequence[str], fsdp: Sequence[str]) -> None:
    """Every codec on three ranks; on others some."""
    with Server(workers=n) as server:
        results = ranks.run(n, train, server.address, ddp, fsdp)
    for name in ddp:
        for where in ("group", "server"):
            what = f"{where} {name}"
            check_ddp([result[what] for result in results], n, name, what, group=where == "group")
    for name in fsdp:
        check_fsdp([result[f"fsdp {name}"] for result in results], n, name)

"""The same matrix for other dtypes, rows, residuals and NaN: every aggregator gives the bits of `sumwire.average`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sumwire import Codec, Lattice, Server, Sketch, Sparse, average, connect
from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.local import Local
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices
from tests import ranks
from tests.aggregate.test_matrix import WORKERS, member, tensor

SIZE, ROUNDS = 2100, 3
NAMES = ("energy", "fixed", "thc", "uniform", "mixed", "sparse", "sketch", "stuck")
LOSSLESS = ("sparse", "sketch", "stuck")


@dataclass(frozen=True)
class Case:
    """What is averaged, with which codec, and how close a process group, which sums plainly what is exact, must be."""

    codec: Callable[[int, int], Codec]
    x: Callable[[int, int], Any]
    """By rank and round."""
    rounds: int = 1
    plain: float | None = None
    """Relative error where a process group falls back to an all-reduce."""


def dense(name: str, dtype: str) -> Case:
    # A process group adds what its codec cannot take in float64; the others add pairs of float32, in float32.
    plain = 1e-6 if dtype == "float64" and name in LOSSLESS else None

    def x(rank: int, _: int) -> Any:
        if dtype == "bfloat16":
            return torch.from_numpy(tensor(rank, SIZE, name)).bfloat16()
        return tensor(rank, SIZE, name, dtype)

    def codec(rank: int, n: int) -> Codec:
        # Within a group, a rank keeps to its member of a family: "mixed" has one that no other case has.
        return Lattice(n, 5).with_bits(2 + rank % 4) if name == "mixed" else member(name, rank, n)

    return Case(codec, x, plain=plain)


def fed(dtype: str = "float32", **options: Any) -> Case:
    def x(rank: int, step: int) -> Any:
        values = np.random.default_rng((rank, step)).standard_normal(SIZE)
        return torch.from_numpy(values).bfloat16() if dtype == "bfloat16" else values.astype(dtype)

    return Case(lambda rank, n: Lattice(n, feedback=True, **options), x, rounds=ROUNDS)


def poisoned(codec: Callable[[int], Codec], plain: float | None = None) -> Case:
    """Inf and NaN at worker 0 in the second of three rounds."""

    def x(rank: int, step: int) -> Any:
        found = tensor(rank + 10 * step, SIZE, "sparse")
        if rank == 0 and step == 1:
            found[[3, 900]] = np.nan, -np.inf
        return found

    return Case(lambda rank, n: codec(n), x, rounds=ROUNDS, plain=plain)


def rows(rank: int, step: int) -> RowSlices:
    rng = np.random.default_rng((rank, step))
    numbers = np.flatnonzero(rng.random(90) < 0.2)
    return RowSlices((90, 4), numbers, rng.standard_normal((len(numbers), 4)).astype(np.float32))


def coo(rank: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    mine = rows(rank, step)
    numbers, values = torch.from_numpy(mine.numbers)[None], torch.from_numpy(mine.values).to(dtype)
    return torch.sparse_coo_tensor(numbers, values, mine.shape, check_invariants=False)


def sparse_rows(rank: int, n: int) -> Codec:
    return Rows(n)


CASES = {f"{name} {dtype}": dense(name, dtype) for name in NAMES for dtype in ("float16", "bfloat16", "float64")} | {
    "feedback": fed(),
    "feedback of fixed width": fed(bits=2, widths="fixed"),
    "feedback float16": fed("float16"),
    "feedback bfloat16": fed("bfloat16"),
    "feedback float64": fed("float64", bits=3),
    "NaN in a lattice": poisoned(lambda n: Lattice(n, 4), plain=1e-6),
    "NaN beside feedback": poisoned(lambda n: Lattice(n, 4, feedback=True), plain=1e-6),
    "NaN in a sparse tensor": poisoned(lambda n: Sparse(n)),
    "NaN in a sketch": poisoned(lambda n: Sketch(n)),
    "row slices": Case(sparse_rows, rows, rounds=ROUNDS),
    "COO float32": Case(sparse_rows, lambda rank, step: coo(rank, step, torch.float32)),
    "COO float16": Case(sparse_rows, lambda rank, step: coo(rank, step, torch.float16)),
    "COO bfloat16": Case(sparse_rows, lambda rank, step: coo(rank, step, torch.bfloat16)),
}


def arrays(x: Any) -> list[Any]:
    """What can be compared, and sent between processes."""
    if isinstance(x, RowSlices):
        return [x.numbers, x.values]
    if isinstance(x, torch.Tensor) and x.layout == torch.sparse_coo:
        return [str(x.dtype), *(part for each in (x.indices(), x.values()) for part in arrays(each))]
    if isinstance(x, torch.Tensor):
        return [str(x.dtype), (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()]
    return [x]


def first_round(label: str) -> int:
    return 20 + 2 * ROUNDS * list(CASES).index(label)


def averages(aggregator: Aggregator) -> dict[str, list[Any]]:
    """Every case's means, and what its residual has at last."""
    found = {}
    for label, case in CASES.items():
        codec = case.codec(aggregator.rank, aggregator.workers)
        residual = codec.residual()
        means = [
            aggregator.average(
                case.x(aggregator.rank, step), codec=codec, residual=residual, round_id=first_round(label) + step
            )
            for step in range(case.rounds)
        ]
        found[label] = [each for mean in means for each in arrays(mean)]
        found[label] += [] if residual is None else [residual.value.copy()]
    return found


def expected(label: str, n: int, *, owned: bool = True) -> list[list[Any]]:
    """For each rank, in one process; sums are narrow if they have owners."""
    case = CASES[label]
    codecs = [case.codec(rank, n) for rank in range(n)]
    if not owned:
        codecs = [codec.for_plain_sums() if isinstance(codec, Lattice) else codec for codec in codecs]
    residuals = [codec.residual() for codec in codecs]
    means: list[Any] = []
    for step in range(case.rounds):
        xs, round_id = [case.x(rank, step) for rank in range(n)], first_round(label) + step
        if "mixed" in label:
            means += arrays(mixed(codecs, xs, round_id))
        else:
            means += arrays(
                average(codecs[0], xs, round_id=round_id, residuals=residuals if residuals[0] is not None else None)
            )
    return [means + ([] if residual is None else [residual.value]) for residual in residuals]


def mixed(codecs: list[Codec], xs: list[Any], round_id: int) -> Any:
    """Of workers that spend different numbers of bits."""
    terms = codecs[0].propose(xs[0])
    for codec, x in zip(codecs[1:], xs[1:], strict=True):
        terms = terms | codec.propose(x)
    payloads = [c.encode(x, terms, rank=r, round_id=round_id) for r, (c, x) in enumerate(zip(codecs, xs, strict=True))]
    return codecs[0].to_tensor(codecs[0].decode(codecs[0].add(payloads).narrow()), xs[0], None)


def check(
    results: list[dict[str, list[Any]]], n: int, *, group: bool = False, skip: str | None = None, owned: bool = True
) -> None:
    for label, case in CASES.items():
        if skip is not None and skip in label:
            continue
        right = expected(label, n, owned=owned)
        for mine, wanted in zip([result[label] for result in results], right, strict=True):
            for got, value in zip(mine, wanted, strict=True):
                if isinstance(value, str):
                    assert got == value, label
                elif group and case.plain:
                    assert got.dtype == value.dtype, label
                    np.testing.assert_allclose(got, value, rtol=case.plain, atol=case.plain, err_msg=f"{label}, {n}")
                else:
                    assert got.dtype == value.dtype, label
                    np.testing.assert_array_equal(got, value, err_msg=f"{label}, {n} workers")


@pytest.mark.parametrize("n", WORKERS)
def test_nan_and_inf_show_where_they_belong(n: int) -> None:
    for label in CASES:
        if label.startswith("NaN"):
            second = expected(label, n)[0][1]
            assert (np.flatnonzero(np.isnan(second)).tolist(), np.flatnonzero(np.isinf(second)).tolist()) == (
                [3],
                [900],
            )
            assert all(np.isfinite(expected(label, n)[0][step]).all() for step in (0, 2))


@pytest.mark.parametrize("n", WORKERS)
def test_threads(n: int) -> None:
    with ThreadPoolExecutor(n) as pool:
        check(list(pool.map(averages, Local.create(n, Lattice(n)))), n)


@pytest.mark.parametrize("n", WORKERS)
def test_server(n: int) -> None:
    with Server(workers=n, first_round=0) as server:

        def work(rank: int) -> dict[str, list[Any]]:
            with connect(server.address, rank=rank, workers=n) as link:
                return averages(link)

        with ThreadPoolExecutor(n) as pool:
            check(list(pool.map(work, range(n))), n)


def over_group(rank: int, n: int) -> list[dict[str, list[Any]]]:
    found = []
    for algorithm in ("sharded", "packed"):
        with Group(Lattice(n), algorithm=algorithm) as group:  # type: ignore[arg-type]
            found.append(averages(group))
    return found


@pytest.mark.parametrize("n", WORKERS)
def test_process_group(n: int) -> None:
    results = ranks.run(n, over_group)
    check([sharded for sharded, _ in results], n, group=True)
    # The order of a plain sum of sparse values is the collective's own: see test_group.py.
    check([packed for _, packed in results], n, group=True, skip="sparse", owned=False)

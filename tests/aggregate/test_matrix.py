"""Every codec over every aggregator gives the bits of `sumwire.average`, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire import Codec, Lattice, Server, Sketch, Sparse, average, connect
from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.local import Local
from tests import ranks

CODECS: dict[str, Callable[[int], Codec]] = {
    "energy": lambda n: Lattice(n, 4),
    "fixed": lambda n: Lattice(n, 3, widths="fixed"),
    "total": lambda n: Lattice(n, total_bits=12, table="uniform"),
    "thc": lambda n: Lattice.thc(n, block=4096),
    "uniform": lambda n: Lattice.uniform(n, block=1024),
    "narrow": lambda n: Lattice(n, 4, down_bits=4.5),
    "segments": lambda n: Lattice(n, 8, down_bits=3, block=64),
    "unrotated": lambda n: Lattice(n, 4, rotate=False, block=64),
    "sparse": lambda n: Sparse(n),
    "sketch": lambda n: Sketch(n),
    "stuck": lambda n: Sketch(n, rows_per_nonzero=0.3),
}
SIZES = (0, 1, 7, 513, 5000)
WORKERS = (1, 2, 3, 4, 8)
DTYPES = ("float32", "float16", "float64")


def tensor(rank: int, size: int, codec: str, dtype: str = "float32") -> NDArray[Any]:
    """Dense for lattices; mostly zeros for the lossless codecs."""
    rng = np.random.default_rng((rank, size))
    x = rng.standard_normal(size) * np.exp(rng.standard_normal(size // 700 + 1)).repeat(700)[:size]
    if codec in ("sparse", "sketch", "stuck"):
        x *= rng.random(size) < 0.05
    return x.astype(dtype)


def member(name: str, rank: int, n: int) -> Codec:
    """What a rank encodes with: of "mixed", every second one spends fewer bits."""
    if name == "mixed":
        codec = Lattice(n, 4)
        return codec.with_bits(2) if rank % 2 else codec
    return CODECS[name](n)


def expected(name: str, n: int, size: int, round_id: int, dtype: str, plain: bool) -> Any:
    xs = [tensor(rank, size, name, dtype) for rank in range(n)]
    if name != "mixed":
        codec = CODECS[name](n)
        # What can only sum has no owner that could narrow.
        return average(codec.for_plain_sums() if plain and "lattice" in codec.family else codec, xs, round_id=round_id)
    codecs = [member(name, rank, n) for rank in range(n)]
    terms = codecs[0].propose(xs[0])
    for codec, x in zip(codecs[1:], xs[1:], strict=True):
        terms = terms | codec.propose(x)
    payloads = [c.encode(x, terms, rank=r, round_id=round_id) for r, (c, x) in enumerate(zip(codecs, xs, strict=True))]
    total = codecs[0].add(payloads)
    return codecs[0].decode(total if plain else total.narrow()).astype(dtype)


def averages(aggregator: Aggregator, name: str, dtype: str) -> list[Any]:
    codec = member(name, aggregator.rank, aggregator.workers)
    return [
        aggregator.average(tensor(aggregator.rank, size, name, dtype), codec=codec, round_id=10 + k)
        for k, size in enumerate(SIZES)
    ]


def over_group(rank: int, n: int, names: list[str], algorithm: Any, dtype: str) -> list[list[Any]]:
    found = []
    for name in names:
        with Group(member(name, rank, n), algorithm=algorithm) as group:
            found.append(averages(group, name, dtype))
    return found


def over_threads(n: int, name: str, dtype: str) -> list[list[Any]]:
    group = Local.create(n, Lattice(n))
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(lambda worker: averages(worker, name, dtype), group))


def over_server(address: str, n: int, name: str, dtype: str) -> list[list[Any]]:
    def work(rank: int) -> list[Any]:
        with connect(address, rank=rank, workers=n, job=name) as link:
            return averages(link, name, dtype)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, range(n)))


def check(results: list[list[Any]], name: str, n: int, dtype: str, *, plain: bool = False) -> None:
    for k, size in enumerate(SIZES):
        right = expected(name, n, size, 10 + k, dtype, plain)
        for result in results:
            np.testing.assert_array_equal(result[k], right, err_msg=f"{name}, {n} workers, {size} values")


NAMES = [*CODECS, "mixed"]


@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize("name", NAMES)
def test_threads(name: str, n: int) -> None:
    check(over_threads(n, name, "float32"), name, n, "float32")


@pytest.mark.parametrize("algorithm", ["sharded", "packed"])
@pytest.mark.parametrize("n", WORKERS)
def test_process_group(n: int, algorithm: str) -> None:
    results = ranks.run(n, over_group, NAMES, algorithm, "float32")
    for k, name in enumerate(NAMES):
        if algorithm == "packed" and name == "sparse":
            continue  # the order of a plain sum is the collective's own: see test_group.py
        check([result[k] for result in results], name, n, "float32", plain=algorithm == "packed")


@pytest.fixture(scope="module", params=WORKERS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A number of workers and the address of their server; every codec has a job of its own there."""
    with Server(workers=request.param, first_round=0) as server:
        yield request.param, server.address


@pytest.mark.parametrize("name", NAMES)
def test_server(served: tuple[int, str], name: str) -> None:
    n, address = served
    check(over_server(address, n, name, "float32"), name, n, "float32")

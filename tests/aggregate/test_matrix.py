"""Every codec over every aggregator gives the bits of `sumwire.average`, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire import Codec, Lattice, Server, Sketch, Sparse, average, connect
from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.group.group import Group
from sumwire.aggregate.local import Local
from tests import ranks
from tests.aggregate.network.netting import aggregating, each, linked
from tests.aggregate.network.netting import tree as racks_of_packets

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
WORKERS = (1, 2, 3, 8)
ALGORITHMS: tuple[Literal["sharded", "packed"], ...] = ("sharded", "packed")


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
    return together([member(name, rank, n) for rank in range(n)], xs, round_id, plain=plain).astype(dtype)


def together(codecs: list[Codec], xs: list[Any], round_id: int, *, plain: bool = False) -> Any:
    """The mean of workers that may spend different numbers of bits."""
    if all(codec == codecs[0] for codec in codecs):
        return average(codecs[0], xs, round_id=round_id)
    terms = codecs[0].propose(xs[0])
    for codec, x in zip(codecs[1:], xs[1:], strict=True):
        terms = terms | codec.propose(x)
    payloads = [c.encode(x, terms, rank=r, round_id=round_id) for r, (c, x) in enumerate(zip(codecs, xs, strict=True))]
    total = codecs[0].add(payloads)
    return codecs[0].decode(total if plain else total.narrow())


def averages(aggregator: Aggregator, name: str, dtype: str) -> list[Any]:
    codec = member(name, aggregator.rank, aggregator.workers)
    return [
        aggregator.average(tensor(aggregator.rank, size, name, dtype), codec=codec, round_id=10 + k)
        for k, size in enumerate(SIZES)
    ]


def over_group(rank: int, n: int, dtype: str) -> dict[tuple[str, str], list[Any]]:
    """By algorithm and codec. Within a group, a rank keeps to its member of a family: "mixed" has its own."""
    found = {}
    for algorithm in ALGORITHMS:
        for names in (CODECS, ["mixed"]):
            with Group(member("mixed", rank, n), algorithm=algorithm) as group:
                found |= {(algorithm, name): averages(group, name, dtype) for name in names}
    return found


def over_threads(n: int, name: str, dtype: str) -> list[list[Any]]:
    group = Local.create(n, Lattice(n))
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(lambda worker: averages(worker, name, dtype), group))


def over_server(addresses: list[str], n: int, name: str, dtype: str) -> list[list[Any]]:
    """Over one server, or several racks of as many workers each."""

    def work(rank: int) -> list[Any]:
        with connect(addresses[rank * len(addresses) // n], rank=rank, workers=n, job=name) as link:
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


@pytest.mark.parametrize("n", WORKERS)
def test_process_group(n: int) -> None:
    results = ranks.run(n, over_group, "float32")
    for algorithm, name in product(ALGORITHMS, NAMES):
        if algorithm == "packed" and name == "sparse":
            continue  # the order of a plain sum is the collective's own: see test_group.py
        check([result[algorithm, name] for result in results], name, n, "float32", plain=algorithm == "packed")


@pytest.fixture(scope="module")
def tree() -> Iterator[list[str]]:
    """The addresses of two racks of four workers each."""
    with ExitStack() as stack:
        root = stack.enter_context(Server(workers=8, first_round=0))
        racks = [Server(workers=8, upstream=root.address, ranks=(lo, lo + 4)) for lo in (0, 4)]
        yield [stack.enter_context(rack).address for rack in racks]


@pytest.mark.parametrize("name", NAMES)
def test_tree(tree: list[str], name: str) -> None:
    check(over_server(tree, 8, name, "float32"), name, 8, "float32")


@pytest.fixture(scope="module", params=WORKERS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A number of workers and the address of their server; every codec has a job of its own there."""
    with Server(workers=request.param, first_round=0) as server:
        yield request.param, server.address


def check_packets(links: list[Any], name: str) -> None:
    """What the network cannot add is exchanged whole; a Lattice has the widths and lanes that it can."""
    n = len(links)
    codecs = [member(name, rank, n) for rank in range(n)]
    if name == "mixed":  # with packets, every block of a worker must have the same width
        codecs = [Lattice(n, 4, widths="fixed").with_bits(2 + 2 * (rank % 2)) for rank in range(n)]

    def averages(link: Aggregator) -> list[Any]:
        xs = [tensor(link.rank, size, name) for size in SIZES]
        return [link.average(x, codec=codecs[link.rank], round_id=10 + k) for k, x in enumerate(xs)]

    carried = [links[0].prepare(codec) for codec in codecs]
    results = each(links, averages)
    for k, size in enumerate(SIZES):
        right = together(carried, [tensor(rank, size, name) for rank in range(n)], 10 + k)
        for result in results:
            np.testing.assert_array_equal(result[k], right, err_msg=f"{name}, {n} workers, {size} values")


@pytest.mark.parametrize("n", WORKERS)
def test_packets(n: int) -> None:
    with aggregating(n, mtu=9000) as aggregator, linked(aggregator, n) as links:
        for name in NAMES:
            check_packets(links, name)


def test_packets_in_racks_below_a_server() -> None:
    with Server(workers=8, first_round=0) as root:
        for name in NAMES:
            with racks_of_packets(root.address, name=name) as links:
                check_packets(links, name)


@pytest.mark.parametrize("name", NAMES)
def test_server(served: tuple[int, str], name: str) -> None:
    n, address = served
    check(over_server([address], n, name, "float32"), name, n, "float32")

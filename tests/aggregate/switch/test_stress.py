"""A short version of `python -m benchmarks.switch stress`: no sum is wrong, whatever links do."""

from __future__ import annotations

import shutil

import pytest
from benchmarks.switch.load import Load, aggregating, exchange, generator, job_of

from sumwire.lab.testbed import Impairment, switched_network
from tests.aggregate.switch.packets import REASON

pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=REASON),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is needed for the load generator"),
]

WORKERS = 3


@pytest.fixture(scope="module")
def program():
    with generator() as program:
        yield program


@pytest.fixture(scope="module")
def bed():
    with switched_network(WORKERS, impairment=Impairment(loss=0.03, duplicates=0.05, reordering=0.05)) as bed:
        yield bed


def run(bed, program, aggregator: str, load: Load, quorum: int | None = None):
    job = job_of(bed, load, quorum=quorum)
    with aggregating(bed, aggregator, job, program):
        found = exchange(bed, program, job, load, padded=aggregator == "xdp")
    return {name: sum(each[name] for each in found) for name in found[0]}


@pytest.mark.parametrize("aggregator", ["tc", "xdp", "user"])
def test_every_lane_of_every_result_is_right(bed, program, aggregator):
    total = run(bed, program, aggregator, Load(chunks=1000))
    assert (total["wrong"], total["other"], total["late"], total["expired"]) == (0, 0, 0, 0)
    assert total["results"] == WORKERS * 1000
    assert all(bed.impaired().values())


def test_a_straggler_is_not_waited_for_and_told_what_it_missed(bed, program):
    total = run(bed, program, "tc", Load(chunks=2000, straggle=(20_000,)), quorum=WORKERS - 1)
    assert (total["wrong"], total["other"]) == (0, 0)
    assert total["results"] + total["expired"] == WORKERS * 2000
    assert total["late"] + total["expired"] > 0

"""Laws of predictions: what more rate, fewer bits, fewer workers and more cores may change, and in which direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError, Lattice
from sumwire.aggregate import transports
from sumwire.aggregate.cost_model import (
    BUSY,
    BUSY_ALONE,
    TCP,
    Job,
    Link,
    Machine,
    Stage,
    all_reduce,
    break_even,
    crossing,
    exchange_seconds,
    predict,
    sharded,
)

MACHINE = Machine(
    name="some", propose=0.3, encode=0.8, add=0.05, narrow=0.4, decode=0.6, residual=0.5, copy=0.4, cast=0.5,
    bf16=0.5, fp16=1.0, all_reduce=0.8, exchange=1.0, message=5e4, round=1e6,
    step=1e6,
)  # fmt: skip
WORKERS = (1, 2, 4, 8, 30)
WIDTHS = (2, 3, 4, 8)

Stages = Callable[[Job, Link, Machine], list[Stage]]


@cache
def codec(workers: int, bits: int) -> Lattice:
    return Lattice(workers, bits)


def transports_of(workers: int, bits: int) -> dict[str, Stages]:
    coded = (transports.over_group, transports.over_server, transports.by_packets)
    return {
        "fp32": transports.dense,
        "bf16": partial(transports.dense, kind="bf16"),
        "fp16": partial(transports.dense, kind="fp16"),
        **{each.__name__: partial(each, codec=codec(workers, bits)) for each in coded},
    }


jobs = st.builds(
    Job,
    values=st.integers(1, 10**10),
    workers=st.sampled_from(WORKERS),
    compute=st.floats(0, 100),
    ranks_per_host=st.integers(1, 8),
    cores=st.integers(1, 64),
    overlap=st.floats(0, 1),
)
rates = st.floats(1e5, 1e12)
links = st.builds(Link, rates, st.floats(0, 1))
kinds = st.sampled_from(sorted(transports_of(4, 4)))


@given(jobs, links, rates, kinds, st.sampled_from(WIDTHS), st.integers(1, 500))
def test_more_rate_never_makes_a_step_longer(
    job: Job, link: Link, rate: float, kind: str, bits: int, every: int
) -> None:
    stages = transports_of(job.workers, bits)[kind]
    slow, fast = sorted([link.rate or 0.0, rate])
    steps = [predict(stages(job, replace(link, rate=r), MACHINE), job, every=every).step for r in (slow, fast, None)]
    assert steps[0] >= steps[1] * (1 - 1e-12)
    assert steps[1] >= steps[2] * (1 - 1e-12) >= job.compute * (1 - 1e-9)


@given(jobs, links, st.sampled_from(["over_group", "over_server", "by_packets"]))
def test_fewer_bits_never_take_longer(job: Job, link: Link, kind: str) -> None:
    found = [predict(transports_of(job.workers, bits)[kind](job, link, MACHINE), job) for bits in WIDTHS]
    assert [each.wire for each in found] == sorted(each.wire for each in found)
    assert [each.step for each in found] == sorted(each.step for each in found)


@given(jobs, links, kinds)
def test_one_worker_costs_nothing_on_the_wire(job: Job, link: Link, kind: str) -> None:
    alone = replace(job, workers=1)
    found = predict(transports_of(1, 4)[kind](alone, link, MACHINE), alone)
    assert (found.step, found.exchange, found.wire, found.latency) == (job.compute, 0, 0, 0)


@given(jobs, links, kinds)
def test_a_step_is_between_the_longer_part_and_the_sum(job: Job, link: Link, kind: str) -> None:
    found = predict(transports_of(job.workers, 4)[kind](job, link, MACHINE), job)
    assert max(job.compute, found.exchange) <= found.step * (1 + 1e-9)
    assert found.step <= (job.compute / job.busy + found.exchange) * (1 + 1e-9)
    idle = replace(job, compute=0.0)
    assert predict(found.stages, idle).step == pytest.approx(found.exchange)


@given(jobs, links, kinds)
def test_sharing_cores_never_helps_and_more_of_them_never_hurt(job: Job, link: Link, kind: str) -> None:
    stages = transports_of(job.workers, 4)[kind]

    def step(**change: int) -> float:
        other = replace(job, **change)
        return predict(stages(other, link, MACHINE), other).step

    assert step(ranks_per_host=job.ranks_per_host + 1) >= step() * (1 - 1e-12)
    assert step(cores=job.cores + 1) <= step() * (1 + 1e-12)


def test_rounds_overlap_in_different_stages_and_the_cpu_of_a_host_is_a_limit() -> None:
    job = Job(values=4 * 25 * 2**20 // 4, workers=4)
    assert job.rounds == 4
    stages = [Stage("encode", cpu=1.0), Stage("add", wire=8.0), Stage("decode", cpu=3.0)]
    assert exchange_seconds(stages, job) == 8 + (1 + 3) / 4
    assert exchange_seconds(stages, replace(job, ranks_per_host=8, cores=8)) == 8 + (1 + 3) / 4
    assert exchange_seconds(stages, replace(job, ranks_per_host=8, cores=7)) > 8 + (1 + 3) / 4
    assert exchange_seconds(stages, replace(job, ranks_per_host=800, cores=2)) == pytest.approx(1600 / BUSY)
    both = exchange_seconds(stages, replace(job, ranks_per_host=8, cores=2))
    assert max(9, 16 / BUSY) < both < 9 + 16 / BUSY
    assert Stage("add", cpu=1, wire=2, latency=4).seconds() == 7
    assert Stage("add", cpu=1, wire=2, latency=4, overlaps=True).seconds() == 6


def test_where_ranks_share_cores_a_step_of_one_round_leaves_them_idle_longer() -> None:
    small, large = Job(values=1000, workers=4, compute=1.0), Job(values=10**8, workers=4, compute=1.0)
    assert (small.busy, large.busy) == (1, 1)
    small, large = (replace(job, ranks_per_host=4, cores=2) for job in (small, large))
    assert (small.busy, large.busy) == (BUSY_ALONE, BUSY)
    stages = [Stage("add", cpu=1.0)]
    assert exchange_seconds(stages, small) == pytest.approx(((2 / BUSY_ALONE) ** 3 + 1) ** (1 / 3))
    assert predict(stages, small).step == pytest.approx(1 / BUSY_ALONE + exchange_seconds(stages, small))


def test_a_model_of_one_bucket_overlaps_with_nothing() -> None:
    small = Job(values=1000, workers=4, compute=1.0)
    assert predict([Stage("add", wire=0.5)], small).step == 1.5
    large = Job(values=65 * 10**6, workers=4, compute=1.0, overlap=0.5)
    assert large.rounds == 10
    assert predict([Stage("add", wire=0.4)], large).step == pytest.approx(1.04)
    assert predict([Stage("add", wire=4.0)], large).step == pytest.approx(1 - 0.5 * 0.9 + 4)
    assert predict([Stage("add", wire=4.0)], large, every=10).step == pytest.approx(1.4)


def test_the_wire_carries_headers() -> None:
    """1514 bytes of Ethernet for 1448 of a tensor, and an acknowledgment of 66 for each two."""
    assert pytest.approx((1514 + 33) / 1448) == TCP
    job, link = Job(values=10**7, workers=4), Link(1e9)
    found = predict(transports.dense(job, link, MACHINE), job)
    assert found.wire == pytest.approx(2 * 3 / 4 * 32e7 / 1e9 * TCP)


@pytest.mark.parametrize("round_trip", [0.0, 0.01])
def test_round_trips_count_once_per_stage(round_trip: float) -> None:
    """A ring has 2(n-1) hops, one after the other; terms, shards and sums have three, however many ranks there are."""
    job, link = Job(values=1000, workers=8), Link(1e9, round_trip)
    ring = predict(transports.dense(job, link, MACHINE), job)
    coded = predict(transports.over_group(job, link, MACHINE, codec(8, 4)), job)
    assert (ring.latency, coded.latency) == (pytest.approx(14 * round_trip / 2), pytest.approx(3 * round_trip / 2))


def test_a_servers_link_carries_all_workers() -> None:
    job, link = Job(values=10**7, workers=8), Link(1e9)
    slow = transports.over_server(job, link, MACHINE, codec(8, 4))
    fast = transports.over_server(job, link, MACHINE, codec(8, 4), server=Link(1e11))
    assert predict(slow, job).wire == pytest.approx(8 * predict(fast, job).wire)


@given(st.floats(0.1, 10), st.floats(1e6, 1e9), st.floats(1e6, 1e11))
def test_the_crossing_is_where_both_are_equal(fixed: float, bits: float, saved: float) -> None:
    def coded(rate: float) -> float:
        return fixed + bits / rate

    def plain(rate: float) -> float:
        return (bits + saved) / rate

    rate = crossing(coded, plain)
    assert rate == pytest.approx(break_even(saved, fixed), rel=1e-6)
    assert crossing(coded, coded) == 0.0
    assert crossing(plain, lambda rate: plain(rate) + 1) == math.inf


def test_break_even() -> None:
    assert break_even(8e9, 2.0) == 4e9
    assert break_even(8e9, 0.0) == math.inf


def test_what_attach_compares_is_what_plan_predicts() -> None:
    """`Group.pays` and predictions count the same bits."""
    job, link = Job(values=10**6, workers=4), Link(1e9)
    bits = codec(4, 4).expected_bits(job.values)
    group = predict(transports.over_group(job, link, MACHINE, codec(4, 4)), job)
    ring = predict(transports.dense(job, link, MACHINE), job)
    assert group.wire == pytest.approx(link.seconds(sharded(4, *bits).bits) * TCP * transports.CONTENTION)
    assert ring.wire == pytest.approx(link.seconds(all_reduce(4, job.values).bits) * TCP)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Link(0.0), "rate=0.0"),
        (lambda: Link(math.nan), "rate=nan"),
        (lambda: Link(1e9, -1.0), "round_trip=-1.0"),
        (lambda: Job(values=0, workers=4), "values=0"),
        (lambda: Job(values=10, workers=0), "workers=0"),
        (lambda: Job(values=10, workers=4, compute=-1.0), "compute=-1.0"),
        (lambda: Job(values=10, workers=4, cores=0), "cores=0"),
        (lambda: Job(values=10, workers=4, ranks_per_host=0), "ranks_per_host=0"),
        (lambda: Job(values=10, workers=4, overlap=1.5), "overlap=1.5"),
        (lambda: replace(MACHINE, encode=-1.0), "encode=-1.0"),
        (lambda: predict([], Job(values=10, workers=4), every=0), "every=0"),
        (lambda: transports.dense(Job(values=10, workers=4), Link(1e9), MACHINE, "fp8"), "kind='fp8'"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()

"""The same link over the switch in the kernel, between hosts in namespaces: a worker cannot tell who adds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import Lattice, Sketch, Sparse
from sumwire.aggregate.network.link import PacketLink
from sumwire.aggregate.switch.switch import Switch
from sumwire.lab.namespaces import inside
from sumwire.lab.testbed import Impairment, switched_network
from tests.aggregate.network.netting import each
from tests.aggregate.server.serving import tensors
from tests.aggregate.switch.packets import REASON
from tests.aggregate.switch.workers import SECRET, job_on

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

WORKERS = 3


@pytest.fixture(scope="module")
def bed() -> Any:
    with switched_network(WORKERS, impairment=Impairment(loss=0.03, duplicates=0.05, reordering=0.03)) as bed:
        yield bed


@pytest.mark.parametrize("mode", ["tc", "xdp", "generic", "user"])
def test_averages_are_exact_over_every_mode(bed: Any, mode: str) -> None:
    switch = Switch(bed.ports, [job_on(bed, *range(WORKERS))], address=bed.switch.address, mode=mode)
    lost = bed.impaired()["lost"]
    with ExitStack() as stack:
        stack.callback(switch.stop)
        inside(bed.switch_pid, switch.start)
        address = f"udp://{bed.switch.address}/2"
        links = [PacketLink(address, rank=rank, workers=WORKERS, token=SECRET, timeout=20.0) for rank in range(WORKERS)]
        for link in links:
            stack.callback(link.close)
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda link: inside(bed.pids[link.rank], link.open), links))
        for r, codec in enumerate([Lattice(WORKERS, 4), Sketch(WORKERS), Sparse(WORKERS)]):
            xs = tensors(WORKERS, r, 30_000, 1.0 if isinstance(codec, Lattice) else 0.02)
            right = sumwire.average(links[0].prepare(codec), xs, round_id=r)
            for mean in each(links, lambda link: link.average(xs[link.rank], codec=codec, round_id=r)):  # noqa: B023
                np.testing.assert_array_equal(mean, right, err_msg=f"{type(codec).__name__} by {mode}")
        assert bed.impaired()["lost"] > lost, "nothing was lost: the test tests nothing"


def test_two_switches_below_a_server_give_the_bits_of_one_process() -> None:
    """Two racks of four, each with ports, programs and jobs of its own; the server is where both can reach it."""
    racks, rack = 2, 4
    workers = racks * rack
    with switched_network(workers, impairment=Impairment(loss=0.02)) as bed, ExitStack() as stack:
        server = sumwire.Server(workers, host=bed.switch.address)
        stack.callback(server.stop)
        inside(bed.switch_pid, server.start)
        links = []
        for k in range(racks):
            hosts, port = range(k * rack, (k + 1) * rack), 4660 + k
            jobs = [job_on(bed, *hosts, number=1), job_on(bed, *hosts, number=2, quorum=1)]
            ports = [bed.ports[host] for host in hosts]
            switch = Switch(ports, jobs, address=bed.switch.address, port=port, mode="tc")
            stack.callback(switch.stop)
            inside(bed.switch_pid, switch.start)
            for rank in hosts:
                link = sumwire.connect(
                    f"udp://{bed.switch.address}:{port}/1", rank=rank, workers=workers, ranks=(hosts[0], hosts[-1]),
                    upstream=server.address, token=SECRET, timeout=20.0,
                )  # fmt: skip
                stack.callback(link.close)
                links.append(link)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda link: inside(bed.pids[link.rank], link.open), links))
        for r, codec in enumerate([Lattice(workers, 4), Sketch(workers), Sparse(workers)], links[0].upcoming):
            xs = tensors(workers, r, 30_000, 1.0 if isinstance(codec, Lattice) else 0.02)
            right = sumwire.average(links[0].prepare(codec), xs, round_id=r)
            for mean in each(links, lambda link: link.average(xs[link.rank], codec=codec)):  # noqa: B023
                np.testing.assert_array_equal(mean, right, err_msg=type(codec).__name__)
        assert bed.impaired()["lost"], "nothing was lost: the test tests nothing"

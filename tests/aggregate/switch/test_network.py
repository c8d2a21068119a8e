"""The switch between hosts in namespaces, over real veth links."""

from __future__ import annotations

import socket
from contextlib import contextmanager

import numpy as np
import pytest

from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.protocol.packet import PORT, Operation, PacketKind
from sumwire.aggregate.switch.switch import Switch
from sumwire.errors import ConfigError
from sumwire.lab.namespaces import inside
from sumwire.lab.testbed import switched_network
from tests.aggregate.switch.packets import REASON
from tests.aggregate.switch.workers import SECRET, Worker, job_on

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

WORKERS = 3


@contextmanager
def switch_on(bed, *jobs: JobOptions, mode: str = "tc", **options: object):
    switch = Switch(bed.ports, jobs, address=bed.switch.address, mode=mode, **options)
    try:
        yield inside(bed.switch_pid, switch.start)
    finally:
        switch.stop()


@pytest.fixture(scope="module", params=[1500, 9000])
def bed(request):
    with switched_network(WORKERS, mtu=request.param) as bed:
        bed.mtu = request.param
        yield bed


@pytest.fixture
def workers(bed):
    made: list[Worker] = []
    yield lambda job, rank, *more, **given: made.append(Worker(bed, job, rank, *more, **given)) or made[-1]
    for worker in made:
        worker.socket.close()


@pytest.mark.parametrize("mode", ["tc", "xdp", "generic"])
def test_results_reach_all_workers(bed, workers, mode):
    if mode == "xdp" and bed.mtu > 3506:
        # What the kernel says of devices whose packets do not fit a page.
        with pytest.raises(ConfigError, match="native XDP"), switch_on(bed, job_on(bed, 0), mode=mode):
            pass
        return
    job = job_on(bed, *range(WORKERS))
    with switch_on(bed, job, mode=mode) as switch:
        mine = [workers(job, rank) for rank in range(WORKERS)]
        welcome = [worker.hello() for worker in mine][-1]
        assert welcome["joined"] == [0, 1, 2]
        assert welcome["body"] == {("tc", 9000): 8896, ("generic", 9000): 3392}.get((mode, bed.mtu), 1408)
        random = np.random.default_rng(1)
        for chunk in range(20):
            bodies = [random.bytes(welcome["body"]) for _ in mine]
            for worker, body in zip(mine, bodies, strict=True):
                worker.merge(welcome["session"], body, chunk=chunk, op=Operation.ADD32)
            want = sum(np.frombuffer(body, "<u4") for body in bodies).astype("<u4").tobytes()
            for worker in mine:
                header, body = worker.receive()
                assert (header.kind, header.chunk, header.members) == (PacketKind.RESULT, chunk, 7)
                assert body == want
        assert switch.plane.refusals()["control"] == 3


def test_workers_behind_one_port_each_get_the_result(bed, workers):
    job = job_on(bed, 0, 0, 1)
    with switch_on(bed, job):
        mine = [workers(job, 0, 5000, host=0), workers(job, 1, 5001, host=0), workers(job, 2, host=1)]
        session = [worker.hello() for worker in mine][-1]["session"]
        for worker in mine:
            worker.merge(session, bytes([1 << worker.rank] * 64))
        assert [worker.receive()[1] for worker in mine] == [bytes([7] * 64)] * 3


def test_other_traffic_passes(bed, workers):
    with switch_on(bed, job_on(bed, 0)) as switch:
        with (
            inside(bed.pids[1], lambda: socket.create_server(("0.0.0.0", 6000))) as server,
            inside(bed.pids[0], lambda: socket.create_connection((bed.hosts[1].address, 6000))) as client,
            server.accept()[0] as peer,
        ):
            client.sendall(b"x" * 100_000)
            assert len(peer.recv(100_000, socket.MSG_WAITALL)) == 100_000
        assert switch.plane.refusals()["foreign"] > 0


def test_a_worker_at_another_port_than_configured_is_refused(bed, workers):
    job = JobOptions(number=2, secret=SECRET, peers=(f"{bed.hosts[0].address}@{bed.ports[1]}",))
    with switch_on(bed, job) as switch:
        mine = workers(job, 0)
        mine.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            mine.hello()
        mine.socket.settimeout(60)
        mine.merge(1, bytes(64))
        assert mine.receive()[0].kind == PacketKind.REFUSED  # it passed to the control plane, which has no use for it
        assert switch.plane.refusals()["wrong_peer"] == 1


def test_a_restarted_worker_begins_a_session_and_the_others_are_told(bed, workers):
    job = job_on(bed, 0, 1)
    with switch_on(bed, job):
        first, second = workers(job, 0), workers(job, 1)
        first.hello(1)
        session = second.hello(2)["session"]
        first.merge(session, b"a" * 64)
        again = workers(job, 1, PORT + 1).hello(3)
        assert (again["session"], again["joined"]) == (session + 1, [1])
        first.merge(session, b"a" * 64, chunk=1)
        header, _ = first.receive()
        assert (header.kind, header.session) == (PacketKind.STALE, session + 1)
        rejoined = first.hello(1)
        assert (rejoined["session"], rejoined["joined"]) == (session + 1, [0, 1])

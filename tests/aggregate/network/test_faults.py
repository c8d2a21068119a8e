"""What must not become a wrong sum, a hang or silence: stale packets, missing ones, and workers that make mistakes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from sumwire import Lattice, Residual, RoundError, Sparse, average
from sumwire.aggregate.network.aggregator import PacketAggregator
from sumwire.aggregate.network.link import PacketLink
from sumwire.aggregate.protocol.packet import HEADER, Operation, PacketHeader, PacketKind, keys_of
from sumwire.codec.snapshot import NOTHING
from sumwire.train.resync import _digest
from sumwire.train.snapshots import join_words
from tests.aggregate.network.netting import SECRET, BadPath, aggregating, each, linked, restart
from tests.aggregate.server.serving import tensors


class Selective(BadPath):
    """Loses what `drops` says of a header, on the way up or down."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), loss=0.0, doubled=0.0, late=0.0, seed=0)

    def drops(self, header: PacketHeader, *, up: bool) -> bool:
        return False

    def _pass(self, sock: socket.socket, data: bytes, to: Any) -> None:
        if not self.drops(PacketHeader.unpack(data), up=sock is self._back):
            super()._pass(sock, data, to)


@contextmanager
def over(aggregator: PacketAggregator, paths: list[Selective], **options: Any) -> Iterator[list[PacketLink]]:
    """A link of each worker, over a path of its own."""
    n = len(paths)
    links = [
        PacketLink(f"udp://127.0.0.1:{path.port}", rank=rank, workers=n, token=SECRET, timeout=20.0, **options)
        for rank, path in enumerate(paths)
    ]
    try:
        each(links, lambda link: link.open())
        yield links
    finally:
        for link in links:
            link.close()
        for path in paths:
            path.close()


class Raw:
    """Workers that send what they are told to."""

    def __init__(self, aggregator: PacketAggregator) -> None:
        self._to, self._key = ("127.0.0.1", aggregator.port), keys_of(SECRET)[0]
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in aggregator.jobs[0].peers]
        for each_socket in self._sockets:
            each_socket.settimeout(60)

    def send(self, worker: int, body: bytes, **fields: Any) -> None:
        usual = {"kind": PacketKind.MERGE, "worker": worker, "length": len(body), "key": self._key}
        self._sockets[worker].sendto(PacketHeader(**(usual | fields)).pack() + body, self._to)

    def receive(self, worker: int) -> tuple[PacketHeader, bytes]:
        data = self._sockets[worker].recv(1 << 16)
        return PacketHeader.unpack(data), data[HEADER:]

    def ask(self, worker: int, kind: PacketKind, body: dict[str, Any]) -> dict[str, Any]:
        self.send(worker, json.dumps(body).encode(), kind=kind, members=9)
        found: dict[str, Any] = json.loads(self.receive(worker)[1])
        return found

    def close(self) -> None:
        for each_socket in self._sockets:
            each_socket.close()


@pytest.fixture
def raw() -> Iterator[tuple[PacketAggregator, Raw]]:
    with aggregating(2, window=1) as aggregator:
        workers = Raw(aggregator)
        yield aggregator, workers
        workers.close()


def test_a_packet_with_too_many_payloads_leaves_nothing_behind(raw: tuple[PacketAggregator, Raw]) -> None:
    _, workers = raw
    for w in range(2):
        session = workers.ask(w, PacketKind.HELLO, {"nonce": w + 1})["session"]
    common = {"op": Operation.ADD8, "session": session, "result": 64, "tag": 7}
    for w in range(2):
        workers.send(w, bytes([50]) * 64, chunk=0, count=1, **common)
    assert [set(workers.receive(w)[1]) for w in range(2)] == [{100}, {100}]
    workers.send(1, bytes([1]) * 64, chunk=2, count=1000, **common)
    header, why = workers.receive(1)
    assert header.kind == PacketKind.REFUSED
    assert b"1000 payloads are more than lanes have room for, 2: configure headroom" in why
    for w in range(2):
        workers.send(w, bytes([1]) * 64, chunk=2, count=1, **common)
    for w in range(2):
        header, body = workers.receive(w)
        assert (set(body), header.count) == ({2}, 2)


def test_a_table_of_a_worker_s_former_self_changes_nothing(raw: tuple[PacketAggregator, Raw]) -> None:
    aggregator, former = raw
    for w in range(2):
        former.ask(w, PacketKind.HELLO, {"nonce": 111 + w})
    with linked(aggregator, 2) as links:
        session = links[0].first_round
        table = former.ask(0, PacketKind.TABLE, {"name": "x", "bits": 1, "lane": 8, "values": [0, 1]})
        assert "say HELLO first" in table["error"]
        xs = tensors(2, 0, 3000)
        for mean in each(links, lambda link: link.average(xs[link.rank], codec=Lattice(2), round_id=1)):
            np.testing.assert_array_equal(mean, average(links[0].prepare(Lattice(2)), xs, round_id=1))
        assert links[0].first_round == session


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"name":"a","bits":1.0,"lane":8,"values":[0,1]}'])
def test_control_packets_that_cannot_be_read_do_not_end_the_aggregator(body: bytes) -> None:
    with aggregating(2) as aggregator:
        answer = aggregator.control.answer
        workers = Raw(aggregator)
        workers.ask(0, PacketKind.HELLO, {"nonce": 1})
        session = aggregator.control.session(0)
        datagram = PacketHeader(
            kind=PacketKind.TABLE, key=keys_of(SECRET)[0], length=min(len(body), 65535), session=session
        ).pack()
        reply = answer(datagram + body, "127.0.0.1", 4660)
        assert reply is not None
        assert PacketHeader.unpack(reply).kind == PacketKind.REFUSED
        # Whatever else goes wrong there, the thread goes on.
        failing = threading.Event()

        def fail(*_: Any) -> bytes:
            failing.set()
            raise ZeroDivisionError

        aggregator.control.answer = fail  # type: ignore[method-assign]
        workers.send(1, b"{}", kind=PacketKind.HELLO, members=9)
        assert failing.wait(60)
        aggregator.control.answer = answer  # type: ignore[method-assign]
        assert workers.ask(1, PacketKind.HELLO, {"nonce": 2})["joined"] == [0, 1]
        workers.close()


def test_a_restart_is_told_to_whoever_waits_for_payloads() -> None:
    with aggregating(2) as aggregator, linked(aggregator, 2) as links:
        codec, x = links[0].prepare(Lattice(2)), tensors(1, 0, 50_000)[0]
        terms = each(links, lambda link: link.join(codec.propose(x), round_id=0))[0]
        restart(aggregator, 1)
        with pytest.raises(RoundError, match="a worker was restarted, so start all of them again"):
            links[0].add(codec.encode(x, terms, rank=0, round_id=0))


def test_gathered_payloads_are_whole_where_a_quorum_is_enough() -> None:
    """Different workers are late for different packets; those that said how much they have are waited for."""
    xs = tensors(3, 5, 4000)
    rights = {
        tuple(members): average(Sparse(3), [xs[rank] for rank in members])
        for size in (2, 3)
        for members in combinations(range(3), size)
    }
    with aggregating(3, quorum=2) as aggregator, linked(aggregator, 3, path={"late": 0.1}) as links:
        for r in range(6):
            means = each(links, lambda link: link.average(xs[link.rank], codec=Sparse(3), round_id=r))  # noqa: B023
            for mean in means:
                np.testing.assert_array_equal(mean, means[0])
            assert any(np.array_equal(means[0], right) for right in rights.values())


def test_blocks_of_several_lane_widths_behind_the_whole_ones_stay_together() -> None:
    x = tensors(1, 6, 3 * 512 + 256 + 128 + 64)[0]
    x[3 * 512 :][:256] *= 100  # more bits, and so wider lanes
    xs = [x, -x, x]
    with aggregating(3, quorum=2) as aggregator, linked(aggregator, 3, path={"late": 0.15}) as links:
        codec = links[0].prepare(Lattice(3))
        assert len({int(width) for width in codec.propose(x).layout(codec).classes[3:]} - {0}) > 1
        for r in range(12):
            means = each(links, lambda link: link.average(xs[link.rank], codec=codec, round_id=r))  # noqa: B023
            np.testing.assert_array_equal(means[0], means[1])
            np.testing.assert_array_equal(means[0], means[2])


def test_a_round_that_nobody_can_take_part_in_ends() -> None:
    """Each worker misses another packet of terms, so that these cover neither: nobody begins a payload's chunk."""

    class Missing(Selective):
        chunk = 0

        def drops(self, header: PacketHeader, *, up: bool) -> bool:
            return up and (header.kind, header.channel, header.chunk) == (PacketKind.MERGE, 0, self.chunk)

    xs = tensors(2, 7, 400_000)
    with aggregating(2, deadline=0.1) as aggregator:
        paths = [Missing(aggregator.port) for _ in range(2)]
        paths[0].chunk = 1
        with over(aggregator, list(paths), loss="lossy") as links:
            codec = links[0].prepare(Lattice(2, feedback=True))
            residuals = [Residual(codec), Residual(codec)]
            means = each(links, lambda link: link.average(xs[link.rank], residual=residuals[link.rank], round_id=0))
    for rank, mean in enumerate(means):
        assert not mean.any()
        np.testing.assert_allclose(residuals[rank].value, xs[rank], rtol=1e-6)


def test_what_is_in_the_others_sum_does_not_go_back_into_the_residual() -> None:
    """A worker that hears nothing for long finds its slots gone; the others have what it sent."""

    class Deaf(Selective):
        deaf = False

        def drops(self, header: PacketHeader, *, up: bool) -> bool:
            return self.deaf and not up

    n, size = 2, 60_000
    with aggregating(n, deadline=0.05, window=4) as aggregator:
        paths = [Selective(aggregator.port), Deaf(aggregator.port)]
        with over(aggregator, paths, loss="lossy") as links:
            codec, xs = links[0].prepare(Lattice(n, 8, feedback=True, widths="fixed")), tensors(n, 8, size)
            residuals, together = [Residual(codec) for _ in range(n)], threading.Barrier(n)

            def work(link: PacketLink) -> Any:
                own = residuals[link.rank]
                terms = link.join(codec.propose(own.correct(xs[link.rank])), round_id=0)
                payload = own.encode(terms, rank=link.rank, round_id=0)
                if link.rank == 1:
                    paths[1].deaf = True  # type: ignore[attr-defined]
                together.wait()
                total = link.add(payload)
                if link.rank == 0:  # which has more chunks than there are slots
                    paths[1].deaf = False  # type: ignore[attr-defined]
                for lo, hi in total.late:
                    own.lost(payload.part(lo, hi))
                return total

            totals = each(links, work)
        assert not totals[1].counts.all(), "no slot was gone: the test tests nothing"
        late = {block for lo, hi in totals[1].late for block in range(lo, hi)}
        there = np.flatnonzero(totals[0].counts == n).tolist()
        assert not late & set(there)
        mean = codec.decode(totals[0], missing="zero", divide_by="workers")
        kept = n * mean + residuals[0].value + residuals[1].value
        whole = [block for block in there if (block + 1) * codec.block <= size]
        for block in whole:
            where = slice(block * codec.block, (block + 1) * codec.block)
            np.testing.assert_allclose(kept[where], (xs[0] + xs[1])[where], atol=1e-4)


def test_parameters_of_which_a_part_is_missing_are_recognized() -> None:
    """As resync offers them: where the one that has them misses a deadline, the words are nobody's."""

    class Missing(Selective):
        def drops(self, header: PacketHeader, *, up: bool) -> bool:
            return up and header.kind == PacketKind.MERGE and header.channel == 2 and header.chunk == 3

    words = tensors(1, 9, 20_000)[0].view(np.int32)
    with aggregating(2, deadline=0.1) as aggregator:
        paths = [Missing(aggregator.port), Selective(aggregator.port)]
        with over(aggregator, list(paths), loss="lossy") as links:

            def work(link: PacketLink) -> Any:
                offered = words if link.rank == 0 else np.full(len(words), NOTHING, np.int32)
                return join_words(link.side_channel("resync-parameters"), offered, len(words), 5)[0]

            found = each(links, work)[1]
    assert (found == NOTHING).any()
    assert _digest(found) != _digest(words)


def test_waiting_for_an_aggregator_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    link, began = PacketLink("udp://127.0.0.1:9", rank=0, workers=2, token=SECRET, timeout=60.0), time.monotonic()

    def interrupted() -> float:
        if time.monotonic() > began + 0.3:
            raise KeyboardInterrupt
        return time.monotonic()

    monkeypatch.setattr("sumwire.aggregate.network.greeting.monotonic", interrupted)
    with pytest.raises(KeyboardInterrupt):
        link.open()
    assert time.monotonic() - began < 30

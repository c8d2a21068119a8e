"""What a hostile worker or stranger can do to the others of a server: real sockets, real processes, true sums."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire import Lattice, Residual, RoundError, Sparse
from sumwire.aggregate.server import connection
from sumwire.codec.lattice.coding import stream_key
from sumwire.kernels.lattice.blocks import signs
from sumwire.wire import control
from sumwire.wire.frame import Frame, describe, to_bytes
from tests.aggregate.server.serving import Peer, hello, linked, serving, small_buffers, tensors
from tests.wire.fuzz import forge


async def _mean(links: list[Any], round_id: int, xs: list[Any], codec: Any) -> Any:
    means = (link.average(x, codec=codec, round_id=round_id) for link, x in zip(links, xs, strict=True))
    return (await asyncio.gather(*means))[0]


def test_one_worker_cannot_replace_everybodys_sum() -> None:
    """A worker that hands out a sum of -777 takes part in nothing; the others' mean is that of what went in."""

    async def main() -> None:
        codec, xs = Sparse(2), tensors(2, 0, 100)
        async with serving(2) as site, linked(site, 2, ranks=[0]) as (honest,):
            liar = await Peer.greeted(site, 1, 2, position=1 << 40, known="a server before this one")
            liar.say(describe(codec))
            terms = codec.propose(xs[1])
            lie = np.full(100, -777, np.float32)
            forged = codec.add([codec.encode(lie, terms, rank=rank) for rank in (0, 1)]).narrow()
            task = asyncio.create_task(honest.average(xs[0], codec=codec, round_id=0))
            for span in ((0, 1), (1, 2)):
                liar.send(to_bytes(forged.part(*span)))
            payload = codec.encode(xs[1], terms, rank=1)
            for span in ((0, 1), (1, 2)):
                liar.send(to_bytes(payload.part(*span)))
            assert np.array_equal(await task, (xs[0] + xs[1]) / 2)
            liar.close()

    asyncio.run(main())


def test_one_worker_cannot_end_a_job_by_its_greeting() -> None:
    async def main() -> None:
        codec = Lattice(3)
        async with serving(3, quorum=2) as site:
            liar = await Peer.greeted(site, 2, 3, position=(1 << 63) - 1, known="a server before this one")
            async with linked(site, 3, ranks=[0, 1]) as links:
                for r in range(3):
                    xs = tensors(2, r, 300)
                    mean = await _mean(links, r, xs, codec)
                    assert np.square(mean - (xs[0] + xs[1]) / 2).mean() < 0.05
            liar.close()

    asyncio.run(main())


def test_nobody_waits_longer_than_the_timeout() -> None:
    """A worker says that others are missing who do not exist, and a server that answers what nobody can use."""

    async def main() -> None:
        codec, xs = Sparse(2), tensors(2, 0, 100)
        async with serving(2, timeout=1.0) as site, linked(site, 2, ranks=[0], timeout=1.0, retry=0.05) as (honest,):
            liar = await Peer.greeted(site, 1, 2)
            liar.say(describe(codec))
            task = asyncio.create_task(honest.average(xs[0], codec=codec, round_id=0))
            for ranks in ("0c", "ff" * 8):
                liar.say(control.Expired(0, 0, 1, ranks))
            assert "no such worker" in (await liar.until(control.Refused)).reason
            with pytest.raises(RoundError, match="workers 1 sent nothing for 1 s"):
                await asyncio.wait_for(task, 20)
            liar.close()

    asyncio.run(main())


def test_a_server_whose_answers_are_of_no_use_is_given_up() -> None:
    """It claims a round's sum is of more workers than its note allows, and would be asked for ever."""

    async def main() -> None:
        codec, x, ended = Sparse(2), tensors(1, 0, 100)[0], asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer(reader, writer)
            while True:
                message = await peer.next(60)
                if message is None:
                    peer.close()
                    ended.set()
                    return
                if isinstance(message, control.Hello):
                    peer.say(control.Welcome("one", 0, 1, 2, 0, 0, 0.2, 0.0))
                elif isinstance(message, control.Ask):
                    peer.say(control.Status(message.round_id, 0, [], 1))
                    peer.say(control.Expired(message.round_id, 0, 1, "02"))
                    whole = codec.add([codec.encode(x, codec.propose(x), rank=rank) for rank in (0, 1)]).narrow()
                    peer.send(to_bytes(whole.part(0, 1)))

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with sumwire.AsyncLink(address, rank=0, workers=2, timeout=0.3, retry=0.02) as link:
            with pytest.raises(RoundError, match="no usable answer from the server"):
                await asyncio.wait_for(link.average(x, codec=codec, round_id=0), 30)
        await ended.wait()
        server.close()

    asyncio.run(main())


# Memory and time


def _peak_of_server(pid: int) -> int:
    """Bytes that a server's shard has had at most."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (line,) = [line for line in Path(f"/proc/{child}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def _sent(sock: socket.socket, data: memoryview) -> memoryview:
    """What is left once the server reads no more."""
    with contextlib.suppress(TimeoutError):
        while data:
            data = data[sock.send(data) :]
    return data


@contextlib.contextmanager
def _serving(*options: str, before: list[str] | None = None) -> Any:
    """`sumwire serve`, and its address and process."""
    command = [*(before or []), sys.executable, "-m", "sumwire", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split("port ")[1].split(",")[0])
        yield f"127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _greeted(address: str, rank: int, workers: int, **fields: Any) -> socket.socket:
    host, port = address.split(":")
    sock = socket.create_connection((host, int(port)))
    sock.sendall(control.to_bytes(hello(rank, workers, **fields)))
    assert sock.recv(4) == control.MAGIC
    return sock


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads a child's memory from /proc")
def test_a_claimed_size_costs_nothing_that_was_not_sent() -> None:
    """A few bytes of a Sparse tensor that claims 2^30 coordinates: the memory of the process tells."""
    codec = Sparse(1)
    with _serving("--workers", "1") as (address, process):
        with sumwire.connect(address, rank=0, workers=1, job="warm") as link:
            link.average(np.ones(100, np.float32), codec=codec)
        before = _peak_of_server(process.pid)
        sock = _greeted(address, 0, 1, job="hostile")
        sock.sendall(control.to_bytes(describe(codec)))
        small = codec.encode(np.zeros(1 << 20, np.float32), codec.propose(np.zeros(1 << 20, np.float32)), rank=0)
        sock.sendall(forge(to_bytes(small), size=1 << 30))
        with sumwire.connect(address, rank=0, workers=1, job="honest") as link:
            for _ in range(5):
                assert link.average(np.ones(100, np.float32), codec=codec)[0] == 1
        sock.close()
        assert _peak_of_server(process.pid) - before < 64 << 20


def test_a_tensor_over_the_limit_is_refused_by_name() -> None:
    async def main() -> None:
        async with serving(1, max_size=1000) as site:
            peer = await Peer.greeted(site, 0, 1)
            x = np.ones(1001, np.float32)
            peer.say(describe(Sparse(1)))
            peer.send(to_bytes(Sparse(1).encode(x, Sparse(1).propose(x), rank=0)))
            reason = (await peer.next()).reason
            assert "1001 coordinates is over this server's limit of 1000: cut it, or start the server with" in reason
            peer.close()

    asyncio.run(main())


def test_the_memory_limit_holds_for_all_jobs_together() -> None:
    """32 jobs of two workers, one of whom never comes: what they hold, and what is on its way, stays within it."""

    async def main() -> None:
        limit, codec, x = 8 << 20, Lattice(2, 8), np.ones(500_000, np.float32)
        terms = codec.propose(x)
        async with serving(2, memory=limit) as site:
            peers = [await Peer.greeted(site, 0, 2, job=f"job {k}") for k in range(32)]
            for peer in peers:
                peer.say(describe(codec))
                peer.say(control.Agreed(to_bytes(terms)))
                peer.send(to_bytes(codec.encode(x, terms, rank=0)))
            most, memory = 0, site.shards[0].memory
            for _ in range(200):
                await asyncio.sleep(0.005)
                most = max(most, memory.used)
            assert limit / 4 < most <= limit
            for peer in peers:
                peer.close()

    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads a child's memory from /proc")
def test_many_jobs_cannot_fill_the_memory_of_a_server() -> None:
    """A dozen jobs send 16 MiB each to a server that may hold 64: the process has no more than that."""
    codec, x = Lattice(2, 8), np.ones(16 << 20, np.float32)
    terms = codec.propose(x)
    agreed = control.to_bytes(control.Agreed(to_bytes(terms)))
    spans = codec.parts(x.size, 0, 1)
    whole = codec.encode(x, terms, rank=0)
    frames = b"".join(to_bytes(whole.part(*span)) for span in spans)
    with _serving("--workers", "2", "--memory", "64", "--log-level", "error") as (address, process):
        with sumwire.connect(address, rank=0, workers=2, job="warm"):
            before = _peak_of_server(process.pid)
        crowd = [_greeted(address, 0, 2, job=f"job {k}") for k in range(12)]
        left = {sock: memoryview(frames) for sock in crowd}
        for sock in crowd:
            sock.sendall(control.to_bytes(describe(codec)) + agreed)
            sock.settimeout(0.2)
        deadline = time.monotonic() + 100  # a busy machine takes several passes
        while True:
            for sock, data in left.items():
                left[sock] = _sent(sock, data)
            if _peak_of_server(process.pid) - before > 16 << 20 or time.monotonic() > deadline:
                break
        assert 16 << 20 < _peak_of_server(process.pid) - before < (64 << 20) + (32 << 20)
        for sock in crowd:
            sock.close()


def test_agreements_are_admitted_like_frames() -> None:
    async def main() -> None:
        limit, codec = 1 << 20, Lattice(2, 8, block=64)
        async with serving(2, memory=limit) as site:
            memory, peers = site.shards[0].memory, []
            for k in range(8):
                peer = await Peer.greeted(site, 0, 2, job=f"job {k}")
                peers.append(peer)
                peer.say(describe(codec))
                for r in range(8):
                    terms = codec.propose(np.full(64 * 1000, r + 1, np.float32))
                    peer.say(control.Agreed(to_bytes(terms, round_id=r)))
            most = 0
            for k in range(10_000):  # half a second at least, and longer on a busy machine
                await asyncio.sleep(0.005)
                most = max(most, memory.used)
                if k > 100 and most > limit / 4:
                    break
            assert limit / 4 < most <= limit
            for peer in peers:
                peer.close()

    asyncio.run(main())


def test_heavy_adding_leaves_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one job's sum is made, which here waits for it, another job has its round."""
    may_go_on, add = threading.Event(), Sparse._add

    def slow(self: Any, parts: Any, out: Any = None) -> Any:
        if parts[0].size > 1000:
            assert may_go_on.wait(60)
        return add(self, parts, out)

    monkeypatch.setattr(Sparse, "_add", slow)

    async def main() -> None:
        codec, large, small = Sparse(1), np.ones(300_000, np.float32), np.ones(10, np.float32)
        async with serving(1) as site, linked(site, 1, job="large") as (one,), linked(site, 1, job="small") as (two,):
            waiting = asyncio.create_task(one.average(large, codec=codec))
            await asyncio.sleep(0.2)
            assert np.array_equal(await asyncio.wait_for(two.average(small, codec=codec), 30), small)
            assert not waiting.done()
            may_go_on.set()
            assert np.array_equal(await waiting, large)

    asyncio.run(main())


def test_who_sends_faster_than_its_job_works_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small messages behind a sum that takes long: they wait with their sender, not in the server's memory."""
    may_go_on, add = threading.Event(), Sparse._add

    def slow(self: Any, parts: Any, out: Any = None) -> Any:
        assert may_go_on.wait(60)
        return add(self, parts, out)

    monkeypatch.setattr(Sparse, "_add", slow)

    async def main() -> None:
        codec, x = Sparse(2), np.ones(500_000, np.float32)
        async with serving(2, quorum=1) as site:
            peer = await Peer.greeted(site, 0, 2)
            peer.say(describe(codec))
            peer.send(to_bytes(codec.encode(x, codec.propose(x), rank=0).part(0, 1)))
            for _ in range(3000):
                peer.say(control.Ask(3))
            (job,) = site.shards[0].jobs.values()
            while len(job.serial._waiting) < connection.MAX_WAITING // 2:
                await asyncio.sleep(0.01)
            for _ in range(100):
                await asyncio.sleep(0.001)
                assert len(job.serial._waiting) <= connection.MAX_WAITING + 2  # and a tick of the clock
            may_go_on.set()
            answers = 0
            while answers < 3000:
                answers += isinstance(await peer.next(60), control.Status)
            peer.close()

    asyncio.run(main())


def test_a_worker_that_is_uploading_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is behind its payload: another process that claims its rank is refused all the same."""
    monkeypatch.setattr(connection, "CHALLENGE", 0.3)

    async def main() -> None:
        codec, x = Sparse(1), np.ones(100_000, np.float32)
        data = to_bytes(codec.encode(x, codec.propose(x), rank=0))
        async with serving(1) as site:
            peer = await Peer.greeted(site, 0, 1)
            peer.say(describe(codec))
            intruder = await Peer.at(site)
            intruder.say(hello(0, 1))
            task = asyncio.create_task(intruder.next(60))
            for at in range(0, len(data), 1000):
                peer.send(data[at : at + 1000])
                await asyncio.sleep(0.005)
                if task.done():
                    break
            assert "taken by another live process" in (await task).reason
            for each in (peer, intruder):
                each.close()

    asyncio.run(main())


def test_results_that_nobody_reads_do_not_outlive_their_rounds() -> None:
    async def main() -> None:
        codec, x = Sparse(2), np.ones(200_000, np.float32)
        async with serving(2, quorum=1) as site, linked(site, 2, ranks=[0]) as (fast,):
            sock = socket.socket()
            small_buffers(sock)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", site.port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
            slow = Peer(reader, writer)
            slow.say(hello(1, 2))
            (job,) = site.shards[0].jobs.values()
            for r in range(400):  # on a busy machine it takes more of them
                slow.say(control.Ask(r))
                await fast.average(x, codec=codec, round_id=r)
                slow.say(control.Ask(r))
                await asyncio.sleep(0.06)
                if 1 not in job.connections and r:
                    break
            assert 1 not in job.connections
            slow.close()

    asyncio.run(main())


# Strangers


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
def test_idle_connections_leave_descriptors_for_workers() -> None:
    """300 of them, where a process may have 64 open files."""
    with _serving("--workers", "2", before=["prlimit", "--nofile=64:64"]) as (address, _):
        host, port = address.split(":")
        crowd = []
        for _ in range(300):
            with contextlib.suppress(OSError):
                crowd.append(socket.create_connection((host, int(port)), timeout=5))
        with (
            sumwire.connect(address, rank=0, workers=2, timeout=100) as one,
            sumwire.connect(address, rank=1, workers=2, timeout=100) as two,
        ):
            x = np.ones(10, np.float32)
            with ThreadPoolExecutor(2) as pool:
                means = list(pool.map(lambda link: link.average(x, codec=Sparse(2)), (one, two)))
            assert all(np.array_equal(mean, x) for mean in means)
        for sock in crowd:
            sock.close()


# Scales


async def _with_one_inflated_scale(**options: Any) -> float:
    """NMSE of the mean of four tensors, of which one comes with terms 100 times too large."""
    xs, codec = tensors(4, 0, 20_000), Lattice(4)
    truth = np.mean(xs, axis=0, dtype=np.float64)
    async with serving(4, **options) as site, linked(site, 4, ranks=range(3)) as honest:
        liar = await Peer.greeted(site, 3, 4)
        liar.say(describe(codec))
        tasks = [
            asyncio.create_task(link.average(x, codec=codec, round_id=0)) for link, x in zip(honest, xs, strict=False)
        ]
        liar.send(to_bytes(codec.propose(xs[3] * 100)))
        terms = (await liar.until(Frame)).terms(codec, (20_000,))
        liar.send(to_bytes(codec.encode(codec.fit(xs[3], terms), terms, rank=3)))
        mean, *_ = await asyncio.gather(*tasks)
        liar.close()
    return float(np.square(mean - truth).sum() / np.square(truth).sum())


def test_a_cap_keeps_one_inflated_scale_from_ruining_the_mean() -> None:
    assert asyncio.run(_with_one_inflated_scale()) > 1
    assert asyncio.run(_with_one_inflated_scale(scale_cap=2.0)) < 0.1


@pytest.mark.parametrize("feedback", [False, True])
def test_a_worker_above_the_cap_is_held_to_it(feedback: bool) -> None:
    """One that is large, and honest about it: it counts as much as the cap allows; what it keeps, it has not lost."""

    async def main() -> None:
        xs, codec = tensors(3, 0, 2000), Lattice(3, 8, feedback=feedback)
        xs[2] *= 1000
        memories = [Residual(codec) if feedback else None for _ in xs]
        async with serving(3, scale_cap=4.0) as site, linked(site, 3) as links:
            means = await asyncio.gather(
                *(link.average(x, codec=codec, residual=m) for link, x, m in zip(links, xs, memories, strict=True))
            )
        assert np.sqrt(np.mean(means[0] ** 2)) < 3
        assert np.corrcoef(means[0], xs[2])[0, 1] > 0.8
        if feedback:
            kept = np.sum([memory.value for memory in memories if memory is not None], axis=0, dtype=np.float64)
            np.testing.assert_allclose(3 * means[0] + kept, np.sum(xs, axis=0, dtype=np.float64), rtol=1e-4, atol=1e-2)

    asyncio.run(main())


# Random numbers


def _kept(server: Any) -> float:
    """How much of a tensor that is lined up with the signs of round 0 is left of it after a round."""
    codec = Lattice(1, 4)
    x = np.tile(signs(stream_key(codec.seed, 0, 0), codec.block), 64).astype(np.float32)
    with server, sumwire.connect(server.address, rank=0, workers=1) as link:
        mean = link.average(x, codec=codec)
    return float(mean @ x / (x @ x))


def test_nobody_can_line_up_tensors_with_a_jobs_signs() -> None:
    """Where the first round is known, all energy of a block can be made to fall upon one coordinate, and be clamped."""
    assert _kept(sumwire.Server(1, first_round=0)) < 0.2
    assert _kept(sumwire.Server(1)) > 0.9

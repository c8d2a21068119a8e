"""What peers may do to a shard: nothing but lose their own connection."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import struct
import subprocess
import sys

import numpy as np
import pytest

import sumwire
from sumwire import Lattice, Sparse
from sumwire.aggregate.server import connection, memory, shard
from sumwire.kernels.hashing import crc32c
from sumwire.wire import control
from sumwire.wire.frame import Frame, describe, to_bytes
from sumwire.wire.limits import Kind
from tests.aggregate.server.serving import Peer, Site, hello, linked, serving, small_buffers, tensors
from tests.wire.fuzz import forge, honest, mangle


async def _still_works(site: Site, workers: int = 2, job: str = "others") -> None:
    """Another job is not touched."""
    async with linked(site, workers, job=job) as links:
        xs, codec = tensors(workers, 0, 300), Lattice(workers, block=64)
        first = links[0].upcoming
        got = await asyncio.gather(*(link.average(x, codec=codec) for link, x in zip(links, xs, strict=True)))
        assert np.array_equal(got[0], sumwire.average(codec, xs, round_id=first))


def _frame(kind: Kind = Kind.TERMS, rank: int = 0, size: int = 1000) -> bytes:
    codec, x = Lattice(2, block=64), np.ones(size, np.float32)
    terms = codec.propose(x)
    if kind is Kind.TERMS:
        return to_bytes(terms)
    return to_bytes(codec.encode(x, terms, rank=rank))


HUGE_CONTROL = struct.pack("<4sBBHII", b"SUMC", control.VERSION, control.Word.AGREED, 0, 200 << 20, 0)

BAD_GREETINGS = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", "neither a frame nor a control message"),
    "a frame first": (_frame(), "before the greeting"),
    "another word first": (control.to_bytes(control.Ask(1)), "before the greeting"),
    "a huge message first": (HUGE_CONTROL, "over the limit of 65536"),
    "a huge greeting": (struct.pack("<4sBBHII", b"SUMC", control.VERSION, 1, 0, 1 << 20, 0), "over the limit"),
    "a wrong token": (control.to_bytes(hello(0, 2, token="no")), "token is wrong"),
    "other workers": (control.to_bytes(hello(0, 3)), "given workers=3, the server --workers 2"),
    "no such rank": (control.to_bytes(hello(2, 2)), "rank 2 is not in 0..1"),
    "no name": (control.to_bytes(hello(0, 2, job="")), "printable"),
    "a long name": (control.to_bytes(hello(0, 2, job="x" * 300)), "printable"),
}


@pytest.mark.parametrize("greeting", BAD_GREETINGS)
def test_strangers_are_refused(greeting: str) -> None:
    async def main() -> None:
        async with serving(2) as site:
            data, reason = BAD_GREETINGS[greeting]
            peer = await Peer.at(site)
            peer.send(data)
            refused = await peer.next()
            assert isinstance(refused, control.Refused)
            assert reason in refused.reason
            assert await peer.next() is None
            peer.close()
            assert site.shards[0].jobs == {}

    asyncio.run(main())


HELLO_TWICE = control.to_bytes(hello(0, 2))
BAD_MESSAGES = {
    "garbage": (b"\x00" * 100, "neither a frame nor a control message"),
    "hello again": (HELLO_TWICE, "hello was said before"),
    "a damaged frame": (_frame()[:-1] + b"!", "CRC"),
    "a huge frame": (forge(_frame(Kind.PAYLOAD), length=1 << 31), "over this reader's limit"),
    "not for aggregators": (control.to_bytes(control.Refused("no")), "REFUSED is not for an aggregator"),
    "another's payload": (_frame(Kind.PAYLOAD, rank=1), "it may only speak for itself"),
    "a codec nobody knows": (control.to_bytes(control.Describe("x-00", "x", {"workers": 2})), "is unknown here"),
    "a codec of another name": (
        control.to_bytes(control.Describe("lattice-0000000000000000", "lattice", {"workers": 2})),
        "run the same release",
    ),
    "odd options": (
        control.to_bytes(control.Describe("lattice-00", "lattice", {"workers": 2, "bits": [[]]})),
        "cannot be built",
    ),
}


@pytest.mark.parametrize("message", BAD_MESSAGES)
def test_workers_are_refused(message: str) -> None:
    async def main() -> None:
        async with serving(2) as site:
            data, reason = BAD_MESSAGES[message]
            peer = await Peer.greeted(site, 0, 2)
            peer.say(describe(Lattice(2, block=64)))
            peer.send(data)
            refused = await peer.until(control.Refused)
            assert reason in refused.reason
            assert await peer.next() is None
            peer.close()
            await _still_works(site)

    asyncio.run(main())


def test_a_stranger_that_says_nothing_is_shown_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "GREETING", 0.1)

    async def main() -> None:
        async with serving(2) as site:
            quiet, slow = await Peer.at(site), await Peer.at(site)
            slow.send(control.to_bytes(hello(0, 2))[:20])
            for peer in (quiet, slow):
                assert "no greeting within 0.1 s" in (await peer.next()).reason
                assert await peer.next() is None
                peer.close()

    asyncio.run(main())


def test_many_strangers_do_not_keep_workers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MAX_STRANGERS", 8)

    async def main() -> None:
        async with serving(2) as site:
            crowd = [await Peer.at(site) for _ in range(30)]
            await _still_works(site)
            assert len(site.shards[0].strangers) <= 8
            for peer in crowd:
                peer.close()

    asyncio.run(main())


def test_unexpected_errors_are_logged_and_end_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(2) as site:
            peer = await Peer.greeted(site, 0, 2)
            with monkeypatch.context() as patch:
                patch.setattr(site.aggregator, "ask", lambda *_: 1 / 0)
                peer.say(control.Ask(0))
                assert "cannot be handled" in (await peer.next()).reason
            assert "ZeroDivisionError" in caplog.text
            peer.close()
            caplog.clear()
            monkeypatch.setattr(site.aggregator, "tick", lambda *_: 1 / 0)
            while "ZeroDivisionError" not in caplog.text:
                await asyncio.sleep(shard.TICK)
            await _still_works(site)  # whose clock still runs

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())


def test_jobs_do_not_see_each_other() -> None:
    async def main() -> None:
        async with serving(2) as site, linked(site, 2, job="a") as ours, linked(site, 2, job="b") as theirs:
            codec, xs, ys = Sparse(2), tensors(2, 0, 100), tensors(2, 7, 100)
            got = await asyncio.gather(
                *(link.average(x, codec=codec) for link, x in zip(ours, xs, strict=True)),
                *(link.average(y, codec=codec) for link, y in zip(theirs, ys, strict=True)),
            )
            assert np.array_equal(got[0], sumwire.average(codec, xs))
            assert np.array_equal(got[2], sumwire.average(codec, ys))
            peer = await Peer.greeted(site, 0, 2, job="c")
            peer.say(control.Ask(0))
            assert await peer.next() == control.Status(0, 0, [], 0)
            peer.close()

    asyncio.run(main())


def test_a_job_whose_workers_are_gone_begins_anew() -> None:
    async def main() -> None:
        async with serving(2) as site:
            codec, xs = Sparse(2), tensors(2, 0, 100)
            terms = codec.propose(xs[0])
            for _ in range(2):  # as DDP does: rounds are counted from 0 in every run
                async with linked(site, 2) as links:
                    for r in range(12):
                        payloads = [codec.encode(x, terms, rank=k, round_id=r) for k, x in enumerate(xs)]
                        sums = [link.add(p) for link, p in zip(links, payloads, strict=True)]
                        await asyncio.gather(*sums)
                while any(job.connections for job in site.shards[0].jobs.values()):
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_server_needs_no_torch() -> None:
    code = "import sys, sumwire.aggregate.server.process, sumwire.aggregate.client; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_undescribed_family_is_asked_for() -> None:
    async def main() -> None:
        async with serving(2) as site:
            peer = await Peer.greeted(site, 0, 2)
            peer.send(_frame())
            which = await peer.next()
            assert which == control.Which(Lattice(2, block=64).family)
            peer.close()

    asyncio.run(main())


def test_a_worker_that_comes_back_replaces_its_old_connection() -> None:
    """At once, if it is the same link."""

    async def main() -> None:
        async with serving(2) as site:
            half_open = await Peer.greeted(site, 0, 2, process="one")
            again = await Peer.greeted(site, 0, 2, process="one")
            assert await half_open.next() is None
            half_open.close()
            again.close()

    asyncio.run(main())


def test_a_process_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one with its rank takes over: a host that has vanished must not keep its successor out."""
    monkeypatch.setattr(connection, "CHALLENGE", 0.2)

    async def main() -> None:
        async with serving(2) as site:
            vanished = await Peer.greeted(site, 0, 2)
            async with linked(site, 2) as links:
                xs = tensors(2, 0, 100)
                await asyncio.gather(*(link.average(x) for link, x in zip(links, xs, strict=True)))
                assert isinstance(await vanished.next(), control.Ping)
                assert await vanished.next() is None
            vanished.close()

    asyncio.run(main())


def test_two_processes_with_one_rank_cannot_both_take_part() -> None:
    """Two trainings with default names: what they average is never of both."""

    async def main() -> None:
        async with serving(2) as site, linked(site, 2) as ours:
            for rank in (0, 1):
                with pytest.raises(sumwire.RoundError, match=f"rank {rank} of job 'default' is taken by another live"):
                    async with linked(site, 2, ranks=[rank]):
                        pass
            async with linked(site, 2, job="another") as theirs:
                codec = Sparse(2)
                for r in range(10):
                    xs, ys = tensors(2, r, 100), tensors(2, 100 + r, 100)
                    got = await asyncio.gather(
                        *(link.average(x, codec=codec) for link, x in zip(ours, xs, strict=True)),
                        *(link.average(y, codec=codec) for link, y in zip(theirs, ys, strict=True)),
                    )
                    assert np.array_equal(got[0], (xs[0] + xs[1]) / 2)
                    assert np.array_equal(got[2], (ys[0] + ys[1]) / 2)

    asyncio.run(main())


def test_a_link_whose_rank_was_taken_over_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was suspended, say, and another process has gone on in its place."""
    monkeypatch.setattr(connection, "CHALLENGE", 0.2)

    async def main() -> None:
        async with serving(1) as site, linked(site, 1) as (old,):
            wire = old._session.shards[0]._stream
            wire.transport.pause_reading()  # as if its process was stopped
            async with linked(site, 1) as (new,):
                assert np.array_equal(await new.average(np.ones(9, np.float32), codec=Sparse(1)), np.ones(9))
                wire.transport.resume_reading()
                with pytest.raises(sumwire.RoundError, match="taken by another live process"):
                    await old.average(np.zeros(9, np.float32), codec=Sparse(1))

    asyncio.run(main())


def test_a_slow_reader_is_cut_off_and_stalls_nobody() -> None:
    async def main() -> None:
        async with serving(3, quorum=2, max_queued=1 << 20) as site, linked(site, 3, ranks=[0, 1]) as links:
            sock = socket.socket()
            small_buffers(sock)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", site.port))
            peer = Peer(*await asyncio.open_connection(sock=sock, limit=1024))
            peer.say(hello(2, 3))
            codec = Lattice(3, 8)
            for r in range(12):
                peer.say(control.Ask(r))  # it wants all results, and reads none
                xs = tensors(3, r, 400_000)
                for asked in range(3):
                    peer.say(control.Ask(max(0, r - asked)))
                await asyncio.gather(*(link.average(x, codec=codec) for link, x in zip(links, xs, strict=False)))
            (job,) = site.shards[0].jobs.values()
            assert set(job.connections) == {0, 1}
            assert all(peer.queued <= 1 << 20 for peer in site.shards[0].connections)
            peer.close()

    asyncio.run(main())


@pytest.mark.parametrize("order", [1, -1])
def test_little_memory_slows_down_but_does_not_stop(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of later rounds come first, and block the way of the oldest ones: they are thrown away at last."""
    monkeypatch.setattr(memory, "PATIENCE", 0.05)
    workers, size, rounds = 3, 60_000, 6

    async def main() -> None:
        codec, memory = Lattice(workers, 8, block=64), 1 << 20
        async with serving(workers, memory=memory) as site, linked(site, workers, retry=0.3) as links:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    await asyncio.sleep(0)
                    most = max(most, site.shards[0].memory.used)

            watching = asyncio.create_task(watch())
            xs = {r: tensors(workers, r, size) for r in range(rounds)}
            terms, payloads = {}, {}
            for r in range(rounds):
                terms[r] = codec.propose(xs[r][0]) | codec.propose(xs[r][1]) | codec.propose(xs[r][2])
                payloads[r] = [codec.encode(xs[r][k], terms[r], rank=k, round_id=r) for k in range(workers)]

            async def work(rank: int) -> None:
                mine = range(rounds)[::order] if rank else range(rounds)
                totals = await asyncio.gather(*(links[rank].add(payloads[r][rank]) for r in mine))
                for r, total in zip(mine, totals, strict=True):
                    assert np.array_equal(codec.decode(total), codec.decode(codec.add(payloads[r]).narrow()))

            await asyncio.wait_for(asyncio.gather(*(work(rank) for rank in range(workers))), 200)
            watching.cancel()
            assert memory / 2 < most <= memory, most

    asyncio.run(main())


def test_half_open_workers_only_keep_their_own_round_waiting() -> None:
    async def main() -> None:
        async with serving(2, timeout=1.5) as site:
            peer = await Peer.greeted(site, 1, 2)
            peer.say(describe(Lattice(2, block=64)))
            peer.send(_frame()[:90])  # and then nothing more
            async with linked(site, 2, ranks=[0]) as (link,):
                with pytest.raises(sumwire.RoundError, match="workers 1 sent nothing"):
                    await link.average(np.ones(1000, np.float32), codec=Lattice(2, block=64))
            await _still_works(site)
            peer.close()

    asyncio.run(main())


def test_duplicates_and_reordered_frames_change_nothing() -> None:
    async def main() -> None:
        rng = random.Random(3)
        async with serving(2) as site, linked(site, 2, ranks=[0]) as (link,):
            codec, xs = Lattice(2, block=64), tensors(2, 0, 1000)
            peer = await Peer.greeted(site, 1, 2)
            mean = asyncio.create_task(link.average(xs[0], codec=codec))
            proposal = to_bytes(codec.propose(xs[1]))
            for data in rng.sample([control.to_bytes(describe(codec)), proposal, proposal], 3):
                peer.send(data)
            peer.send(control.to_bytes(describe(codec)) + proposal)
            while True:
                frame = await peer.next()
                if isinstance(frame, Frame):
                    break
            terms = frame.terms(codec, (1000,))
            payload = to_bytes(codec.encode(xs[1], terms, rank=1))
            for data in rng.sample([proposal, payload, payload, payload, proposal], 5):
                peer.send(data)
            assert np.array_equal(await mean, sumwire.average(codec, xs))
            peer.close()

    asyncio.run(main())


def test_mangled_messages_end_connections_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rng = random.Random(11)
        frames = [raw for _, raws in honest() for raw in raws]
        words = [control.to_bytes(control.Ask(3)), control.to_bytes(control.Abstain(3, "x"))]
        words += [control.to_bytes(control.Agreed(frames[0])), control.to_bytes(control.Expired(9, 0, 1, "01"))]
        words += [control.to_bytes(describe(codec)) for codec in (Lattice(2), Sparse(2), sumwire.Sketch(2))]
        async with serving(2, timeout=1) as site:
            codecs = [receiver.codec for receiver, _ in honest() if receiver.codec.workers == 2]
            for _ in range(150):
                peer = await Peer.greeted(site, rng.randrange(2), 2, position=rng.choice([0, 0, 3]))
                for codec in codecs:
                    peer.say(describe(codec))
                for _ in range(10):
                    raw = rng.choice(frames + words)
                    if raw[:4] == b"SUMW":
                        raw = mangle(rng, raw, frames) if rng.random() < 0.7 else raw
                    elif rng.random() < 0.7:
                        raw = _mangled_control(rng, raw)
                    peer.send(raw)
                await asyncio.sleep(0)
                peer.close()
            await _still_works(site)

    asyncio.run(main())
    assert "is refused" in caplog.text
    assert "should not happen" not in caplog.text


def _mangled_control(rng: random.Random, raw: bytes) -> bytes:
    """Other JSON, with a CRC that fits."""
    word, body = raw[5], bytearray(raw[16:])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(body))
        odd = [b"", b"-", b"9" * 30, b"[", b"null", bytes([rng.randrange(256)])]
        body[at : at + rng.randrange(3)] = rng.choice(odd)
    if rng.random() < 0.1:
        body = bytearray(json.dumps({"round_id": 1}).encode() + b"[" * 30_000)
    front = struct.pack("<4sBBHI", b"SUMC", control.VERSION, word, 0, len(body))
    crc = crc32c(np.frombuffer(body, np.uint8), crc32c(np.frombuffer(front, np.uint8)))
    return front + struct.pack("<I", crc) + bytes(body)

"""What a request does to its slot: the table of docs/in-network.md, row by row; and a model of it under hypothesis."""

from __future__ import annotations

import json
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.aggregate.protocol.packet import PORT, Operation, PacketHeader, PacketKind
from sumwire.aggregate.switch.records import JOB, SLOT, Counter
from tests.aggregate.switch.packets import OUTER, REASON, Bench, job

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

A, B, C = (bytes([1 << k] * 64) for k in range(3))
AB, ABC = bytes([3] * 64), bytes([7] * 64)


@pytest.fixture(params=["tc", "xdp"])
def three(request):
    mine = job(3)
    with Bench(mine, mode=request.param) as bench:
        yield bench, mine


def fill(bench, mine, chunk=0, **fields):
    *_, last = [bench.merge(mine, worker, body, chunk=chunk, **fields) for worker, body in enumerate((A, B, C))]
    return last


def test_a_duplicate_is_not_added_and_tells_who_is_there(three):
    bench, mine = three
    assert bench.merge(mine, 0, A, op=Operation.ADD8) == "taken"
    reply = bench.merge(mine, 0, A, op=Operation.ADD8)
    assert (reply.header.kind, reply.header.members, reply.header.count) == (PacketKind.WAITING, 0b001, 1)
    bench.merge(mine, 1, B, op=Operation.ADD8)
    assert bench.merge(mine, 2, C, op=Operation.ADD8).body == ABC


def test_a_duplicate_after_completion_gets_the_result_again_for_itself(three):
    bench, mine = three
    result = fill(bench, mine)
    again = bench.merge(mine, 1, B)
    assert (again.header.kind, again.body, again.header.worker) == (PacketKind.RESULT, result.body, 1)
    assert bench.poll(mine, 1, result=64).body == result.body
    assert bench.plane.counters(mine)[1, [Counter.DUPLICATES, Counter.POLLS]].tolist() == [2, 1]


def test_a_poll_of_an_open_chunk_is_told_who_is_there(three):
    bench, mine = three
    assert bench.poll(mine, 2, result=64).header.members == 0
    bench.merge(mine, 0, A)
    bench.merge(mine, 1, B)
    reply = bench.poll(mine, 2, result=64)
    assert (reply.header.kind, reply.header.members) == (PacketKind.WAITING, 0b011)
    assert bench.merge(mine, 2, C).body == ABC


def test_a_later_chunk_takes_the_slot_and_the_earlier_one_has_expired(three):
    bench, mine = three
    fill(bench, mine, chunk=3)
    assert bench.merge(mine, 0, A, chunk=3 + mine.slots) == "taken"
    reply = bench.merge(mine, 1, B, chunk=3)
    assert (reply.header.kind, reply.header.chunk, reply.header.tag) == (PacketKind.EXPIRED, 3, 3 + mine.slots)
    bench.merge(mine, 1, B, chunk=3 + mine.slots)
    assert bench.merge(mine, 2, C, chunk=3 + mine.slots).body == ABC


def test_chunks_are_ordered_beyond_the_largest_number(three):
    bench, mine = three
    last = 2**32 - mine.slots
    fill(bench, mine, chunk=last)
    assert fill(bench, mine, chunk=0).body == ABC
    assert bench.merge(mine, 0, A, chunk=last).header.kind == PacketKind.EXPIRED


def test_channels_do_not_share_slots(three):
    bench, mine = three
    bench.merge(mine, 0, A, channel=0)
    bench.merge(mine, 0, A, channel=1, tag=8)
    assert fill(bench, mine, chunk=1).body == ABC
    bench.merge(mine, 1, B, channel=1, tag=8)
    assert bench.merge(mine, 2, C, channel=1, tag=8).body == ABC


@pytest.mark.parametrize("other", [{"tag": 8}, {"op": Operation.ADD8}, {"result": 128}])
def test_whoever_is_out_of_step_is_told(three, other):
    bench, mine = three
    bench.merge(mine, 0, A)
    body = B * 2 if "result" in other else B
    reply = bench.merge(mine, 1, body, **other)
    header = reply.header
    assert header.kind == PacketKind.MISMATCH
    assert (header.tag, header.op, header.members) == (7, Operation.OR, 0b001)
    bench.merge(mine, 1, B)
    assert bench.merge(mine, 2, C).body == ABC


def test_lanes_of_another_width_are_out_of_step():
    mine = job(2)
    with Bench(mine) as bench:
        bench.install(mine, 0, 4, 8, list(range(16)))
        bench.install(mine, 1, 8, 16, list(range(256)))
        fields = {"op": Operation.LOOKUP, "result": 64}
        assert bench.merge(mine, 0, bytes(32), table=0, **fields) == "taken"
        assert bench.merge(mine, 1, bytes(32), table=1, **fields).header.kind == PacketKind.MISMATCH


def test_a_new_session_empties_slots_and_the_old_one_is_stale(three):
    bench, mine = three
    old = bench.control.session(mine.number)
    bench.merge(mine, 0, A, chunk=5)
    bench.plane.begin_session(mine, old + 1)
    reply = bench.merge(mine, 1, B, chunk=5, session=old)
    assert (reply.header.kind, reply.header.session) == (PacketKind.STALE, old + 1)
    assert fill(bench, mine, chunk=0, session=old + 1).body == ABC
    assert fill(bench, mine, chunk=5, session=old + 1).body == ABC


def test_a_quorum_completes_and_latecomers_get_a_result_without_them():
    mine = job(3, quorum=2)
    with Bench(mine) as bench:
        bench.merge(mine, 0, A)
        result = bench.merge(mine, 1, B)
        assert (result.body, result.header.members, result.header.count) == (AB, 0b011, 2)
        late = bench.merge(mine, 2, C)
        assert (late.body, late.header.members, late.header.worker) == (AB, 0b011, 2)
        assert bench.plane.counters(mine)[2, Counter.LATE] == 1


@pytest.mark.parametrize("by", ["duplicate", "poll", "newcomer"])
def test_after_the_deadline_any_packet_completes(by):
    mine = job(3, deadline=3600.0)
    with Bench(mine) as bench:
        bench.merge(mine, 0, A)
        assert bench.merge(mine, 0, A).header.kind == PacketKind.WAITING
        slots = bench.plane.descriptors
        slot = slots.read("slots", 0, np.zeros(1, SLOT))
        slot["begun"] -= np.uint64(3600 * 10**9)
        slots.write("slots", 0, slot)
        ask = {"duplicate": lambda: bench.merge(mine, 0, A), "poll": lambda: bench.poll(mine, 2, result=64)}
        reply = ask.get(by, lambda: bench.merge(mine, 1, B))()
        assert (reply.header.kind, reply.header.worker) == (PacketKind.RESULT, 255)
        assert (reply.body, reply.header.count) == ((AB, 2) if by == "newcomer" else (A, 1))
        assert bench.plane.counters(mine)[:, Counter.DEADLINES].sum() == 1


def test_jobs_do_not_touch_each_other():
    jobs = [job(3, number, channels=1) for number in (0, 7, 63)]
    with Bench(*jobs) as bench:
        for worker, body in enumerate((A, B)):
            for chunk in range(jobs[0].slots):
                for mine in jobs:
                    bench.merge(mine, worker, body, chunk=chunk)
        bench.plane.begin_session(jobs[1], 5)
        for mine in (jobs[0], jobs[2]):
            assert [bench.merge(mine, 2, C, chunk=chunk).body for chunk in range(mine.slots)] == [ABC] * mine.slots
        assert bench.plane.counters(jobs[0])[0, Counter.MERGED] == jobs[0].slots


def test_sums_of_aggregators_below_count_all_their_payloads():
    mine = job(2, headroom=5)
    with Bench(mine) as bench:
        bench.merge(mine, 0, A, op=Operation.ADD8, count=3)
        assert bench.merge(mine, 1, B, op=Operation.ADD8, count=3).header.kind == PacketKind.MISMATCH  # 6 > 5
        assert bench.merge(mine, 1, B, op=Operation.ADD8, count=2).header.count == 5


def test_sixty_four_workers():
    mine = job(64, channels=3)
    with Bench(mine) as bench:
        for chunk in range(2):
            for worker in range(63):
                assert bench.merge(mine, worker, A, chunk=chunk, channel=2, op=Operation.ADD64) == "taken"
            reply = bench.merge(mine, 63, A, chunk=chunk, channel=2, op=Operation.ADD64)
            assert (reply.header.count, reply.header.members) == (64, 2**64 - 1)
            assert reply.body == (np.frombuffer(A, "<u8") * 64).tobytes()


MODEL = job(3, quorum=2, window=2, channels=1)
_sessions = count(2_000_000_000)


@pytest.fixture(scope="module")
def modeled():
    with Bench(MODEL) as bench:
        yield bench


steps = st.tuples(st.integers(0, 2), st.integers(0, 12), st.sampled_from(["merge", "merge", "poll"]))


@given(st.lists(steps, max_size=60))
def test_any_order_of_packets_gives_what_the_model_gives(modeled, script):
    bench, session, slots = modeled, next(_sessions), {}
    bench.plane.begin_session(MODEL, session)
    for worker, chunk, kind in script:
        fields = {"chunk": chunk, "session": session, "op": Operation.ADD8}
        if kind == "poll":
            reply = bench.poll(MODEL, worker, result=64, **fields)
        else:
            reply = bench.merge(MODEL, worker, bytes([1 << worker] * 64), **fields)
        held, members = slots.get(chunk % MODEL.slots, (-1, ()))
        if chunk < held:
            assert reply.header.kind == PacketKind.EXPIRED
            continue
        if chunk > held and kind == "poll":
            assert (reply.header.kind, reply.header.members) == (PacketKind.WAITING, 0)
            continue
        members = members if chunk == held else ()
        complete = len(members) == 2
        if kind == "merge" and worker not in members and not complete:
            members = (*members, worker)
        slots[chunk % MODEL.slots] = chunk, members
        if len(members) == 2:
            total = sum(1 << member for member in members)
            assert (reply.header.kind, reply.header.members, reply.body) == (7, total, bytes([total] * 64))
            assert (reply.header.worker == 255) is not complete
        elif members[-1:] == (worker,) and reply == "taken":
            assert kind == "merge"
        else:
            assert (reply.header.kind, reply.header.members) == (PacketKind.WAITING, sum(1 << m for m in members))


def test_a_slot_that_another_cpu_has_just_begun_is_not_due():
    mine = job(3, deadline=10.0)
    with Bench(mine) as bench:
        bench.merge(mine, 0, A)
        slots = bench.plane.descriptors
        slot = slots.read("slots", 0, np.zeros(1, SLOT))
        slot["begun"] += 5_000_000_000  # it looked at the clock later, and got the lock first
        slots.write("slots", 0, slot)
        assert bench.merge(mine, 1, A) == "taken"


def test_stale_lookups_are_answered_although_their_tables_are_gone():
    mine = job(2)
    with Bench(mine) as bench:
        bench.install(mine, 0, 4, 8, list(range(16)))
        session = bench.control.session(mine.number)
        fields = {"op": Operation.LOOKUP, "table": 0, "result": 128, "session": session}
        assert bench.merge(mine, 0, A, **fields) == "taken"
        bench.plane.begin_session(mine, session + 1)
        assert bench.merge(mine, 1, A, **fields).header.kind == PacketKind.STALE


def test_a_hello_while_a_session_begins_must_be_said_again():
    """It comes to the control plane, but the program does not know the job at that moment."""
    mine = job(2)
    with Bench(mine, met=False) as bench:
        text = json.dumps({"nonce": 3}).encode()
        hello = bench.request(mine, 1, text, kind=PacketKind.HELLO, count=0, tag=0, result=0)
        record = bench.plane.descriptors.read("jobs", mine.number, np.zeros(1, JOB))
        bench.plane.descriptors.write("jobs", mine.number, np.zeros(1, JOB))
        assert bench.run(hello) == "passed"
        bench.plane.descriptors.write("jobs", mine.number, record)
        said = hello[OUTER:], str(mine.addresses[1]), PORT + 1
        assert bench.control.answer(*said) is None
        assert bench.run(hello) == "passed"
        assert PacketHeader.unpack(bench.control.answer(*said)).kind == PacketKind.WELCOME
        assert bench.merge(mine, 1, A) == "taken"

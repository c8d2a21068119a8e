"""Packets that are not for us, or not right, pass untouched and are counted by reason: one test per field."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire.aggregate.protocol.packet import Operation, PacketKind
from sumwire.aggregate.switch.records import SLOT
from tests.aggregate.switch.packets import OUTER, REASON, Bench, frame, job

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

MINE = job(3)
BODY = bytes(64)
LEAST = 34  # BPF_PROG_RUN wants an IP header where Ethernet announces one


@pytest.fixture(scope="module", params=["tc", "xdp"])
def bench(request):
    with Bench(MINE, mode=request.param, mtu=1500) as bench:
        bench.install(MINE, 2, 4, 8, list(range(16)))
        yield bench


def passes(bench, packet, reason):
    """The packet passes unchanged, is counted for this reason alone, and no slot has changed."""
    before, slots = bench.plane.refusals(), memory(bench)
    assert bench.run(packet) == "passed"
    after = bench.plane.refusals()
    assert {name for name in after if after[name] != before[name]} == {reason}
    assert memory(bench) == slots


def memory(bench):
    read = [bench.plane.descriptors.read("slots", k, np.zeros(1, SLOT)) for k in range(bench.plane.slots)]
    return b"".join(slot.tobytes() for slot in read)


WRONG = {
    "kind": ("malformed", {"kind": 99}),
    "a reply's kind": ("malformed", {"kind": PacketKind.RESULT}),
    "operation": ("malformed", {"op": 9}),
    "no operation": ("malformed", {"op": 0}),
    "channel": ("malformed", {"channel": 2}),
    "no payloads": ("malformed", {"count": 0}),
    "members": ("malformed", {"members": 1}),
    "length beyond the packet": ("malformed", {"length": 65, "result": 128}),
    "result of another length": ("malformed", {"result": 128}),
    "result of part of a grain": ("malformed", {"length": 63, "result": 63}),
    "nothing to merge": ("malformed", {"length": 0, "result": 0}),
    "poll with a body": ("malformed", {"kind": PacketKind.POLL}),
    "table that is not there": ("malformed", {"op": Operation.LOOKUP, "table": 3, "result": 128}),
    "table beyond all": ("malformed", {"op": Operation.LOOKUP, "table": 34, "result": 128}),
    "lookup of another length": ("malformed", {"op": Operation.LOOKUP, "table": 2, "result": 192}),
    "job": ("unknown_job", {"job": 4}),
    "job beyond all": ("unknown_job", {"job": 64}),
    "key": ("wrong_key", {"key": 1}),
    "the reply's key": ("wrong_key", {"key": MINE.keys[1]}),
    "worker": ("wrong_peer", {"worker": 3}),
    "another worker": ("wrong_peer", {"worker": 1}),
    "more payloads than there is room for": ("overflows", {"count": 4}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_field(bench, what):
    reason, fields = WRONG[what]
    passes(bench, bench.request(MINE, 0, BODY, padding=128, **fields), reason)


def test_a_result_longer_than_packets_may_be(bench):
    passes(bench, bench.request(MINE, 0, bytes(1472)), "oversized")
    lookup = {"op": Operation.LOOKUP, "table": 2}
    passes(bench, bench.request(MINE, 0, bytes(736), **lookup, result=1472, padding=800), "oversized")


def test_xdp_needs_requests_as_long_as_results():
    with Bench(MINE, mode="xdp") as bench:
        bench.install(MINE, 2, 4, 8, list(range(16)))
        bench.plane.padded = False
        passes(bench, bench.request(MINE, 0, bytes(32), op=Operation.LOOKUP, table=2, result=64), "oversized")


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (OUTER, 0x54, "foreign"),  # magic
        (OUTER + 4, 2, "wrong_version"),
        (OUTER + 38, 1, "malformed"),  # reserved
        (12, 0x86, "foreign"),  # not IPv4
        (14, 0x65, "foreign"),  # version of IP
        (14, 0x46, "foreign"),  # options
        (20, 0x20, "foreign"),  # more fragments
        (21, 0x01, "foreign"),  # not the first fragment
        (23, 6, "foreign"),  # TCP
        (38, 0, "malformed"),  # UDP length, below the body's
        (33, 1, "unknown_job"),  # another address than the aggregator's
        (37, 9, "unknown_job"),  # another UDP port
        (29, 77, "wrong_peer"),  # another sender's address
        (35, 99, "wrong_peer"),  # another sender's UDP port than HELLO had
    ],
)
def test_a_wrong_byte(bench, at, value, reason):
    packet = bytearray(bench.request(MINE, 0, bytes(256)))
    assert packet[at] != value
    packet[at] = value
    passes(bench, bytes(packet), reason)


def test_a_worker_that_has_not_said_hello_is_not_believed():
    with Bench(MINE, met=False) as bench:
        passes(bench, bench.request(MINE, 0, BODY), "wrong_peer")
        passes(bench, bench.request(MINE, 0, kind=PacketKind.HELLO, key=5), "wrong_key")
        passes(bench, bench.request(MINE, 0, kind=PacketKind.HELLO, source="10.9.3.77"), "wrong_peer")
        passes(bench, bench.request(MINE, 0, BODY), "wrong_peer")
        passes(bench, bench.request(MINE, 0, kind=PacketKind.HELLO), "control")
        assert bench.run(bench.request(MINE, 0, BODY)) == "taken"


@given(st.binary(max_size=300))
def test_anything_else_passes(bench, data):
    assert bench.run(frame(data, source="10.9.3.1", port=4660, worker=0)) == "passed"
    assert bench.run(data.ljust(LEAST, b"\0")) == "passed"


@given(st.integers(LEAST, OUTER + 48 + 63))
def test_a_packet_cut_short_passes(bench, size):
    assert bench.run(bench.request(MINE, 0, BODY)[:size]) == "passed"

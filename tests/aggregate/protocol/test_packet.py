"""Python's view of packets is that of bpf/frame.h, the only definition."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sumwire.aggregate.protocol import packet
from sumwire.aggregate.protocol.packet import Operation, PacketHeader, PacketKind
from sumwire.aggregate.switch import records
from sumwire.aggregate.switch.records import Counter, Refusal
from sumwire.errors import FrameError

BPF = Path(__file__).parents[3] / "bpf"
FRAME = re.sub(r"/\*.*?\*/", "", (BPF / "frame.h").read_text(), flags=re.DOTALL)
SIZES = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8}


def enumerators(name: str = "") -> dict[str, int]:
    """Of an enum of frame.h; of all unnamed ones."""
    found: dict[str, int] = {}
    for body in re.findall(rf"enum {name} ?{{(.*?)}}" if name else r"enum {(.*?)}", FRAME, re.DOTALL):
        following = 0
        for entry in filter(None, (part.strip() for part in body.split(","))):
            key, _, value = entry.partition("=")
            following = int(value, 0) if value else following
            found[key.strip()], following = following, following + 1
    return found


def fields(text: str, name: str) -> list[tuple[str, int, int]]:
    """(name, offset, bytes) of the fields of a struct, which must have no holes."""
    (body,) = re.findall(rf"struct {name} {{(.*?)}};", text, re.DOTALL)
    out, offset = [], 0
    for kind, field, length in re.findall(r"(u?int\d+_t) (\w+)(?:\[([^\]]+)\])?;", body):
        known = enumerators()
        count = eval(length, {}, known) if length else 1
        size = SIZES[kind] * int(count)
        assert offset % SIZES[kind] == 0, field
        out.append((field, offset, size))
        offset += size
    return out


def test_constants():
    known = enumerators()
    assert known.pop("SW_PADDED") == records.PADDED
    assert known == {name: getattr(packet, name.removeprefix("SW_")) for name in known}
    assert len(known) == 16


@pytest.mark.parametrize(
    ("name", "enum"),
    [("sw_kind", PacketKind), ("sw_op", Operation), ("sw_counter", Counter), ("sw_refusal", Refusal)],
)
def test_enums(name, enum):
    known = enumerators(name)
    last = {"sw_counter": "SW_COUNTERS", "sw_refusal": "SW_REFUSALS"}.get(name)
    if last:
        assert known.pop(last) == len(enum)
    assert known == {f"SW_{member.name}": member.value for member in enum}


@pytest.mark.parametrize(
    ("name", "dtype", "front"),
    [
        ("sw_job", records.JOB, 0),
        ("sw_peer", records.PEER, 0),
        ("sw_table", records.TABLE, 0),
        ("sw_slot", records.SLOT, 8),
    ],
)
def test_records(name, dtype, front):
    mine = [(field, dtype.fields[field][1] - front, dtype.fields[field][0].itemsize) for field in dtype.names]
    assert [each for each in mine if each[1] >= 0] == fields(FRAME, name)


def test_impairments():
    text = (BPF / "impair.h").read_text()
    dtype = records.IMPAIRMENT
    assert [(n, dtype.fields[n][1], dtype.fields[n][0].itemsize) for n in dtype.names] == fields(text, "sw_impairment")


def test_header_is_that_of_frame_h():
    marks = {"kind": 1, "op": 2, "table": 3, "job": 4, "worker": 5, "channel": 6, "length": 0, "result": 8, "key": 9,
             "session": 10, "chunk": 11, "tag": 12, "count": 13, "members": 14}  # fmt: skip
    data = PacketHeader(**marks).pack()
    assert PacketHeader.unpack(data) == PacketHeader(**marks)
    for name, offset, size in fields(FRAME, "sw_header"):
        want = {"magic": packet.MAGIC, "version": packet.VERSION, "reserved": 0}.get(name, marks.get(name))
        assert int.from_bytes(data[offset : offset + size], "little") == want, name


def test_golden_bytes():
    header = PacketHeader(kind=PacketKind.MERGE, op=Operation.LOOKUP, table=2, job=3, worker=1, length=32, result=64,
                          key=0x0102030405060708, session=7, chunk=9, tag=0xAABBCCDD, count=1)  # fmt: skip
    want = "53554d5001050102 0300010020004000 0807060504030201 0700000009000000 ddccbbaa01000000 0000000000000000"
    assert header.pack() == bytes.fromhex(want)


@pytest.mark.parametrize(
    ("data", "what"),
    [(b"SUMP", "48"), (b"SUMW\1" + bytes(43), "magic"), (b"SUMP\2" + bytes(43), "version"),
     (b"SUMP\1" + bytes(7) + b"\1" + bytes(35), "a body of 1 bytes")],
)  # fmt: skip
def test_malformed_headers(data, what):
    with pytest.raises(FrameError, match=what):
        PacketHeader.unpack(data)

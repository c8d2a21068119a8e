"""Golden bytes of Rows frames, and a second reader that follows docs/format.md and shares no code with the first.

Regenerate the bytes with `python -m tests.wire.test_golden_rows`: see test_golden.py.
"""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices
from sumwire.wire.frame import parse, to_bytes
from tests.wire.rows_samples import bits_of, dense, some_rows
from tests.wire.test_golden import ROUND, spec_crc32c, spec_header

CODEC = Rows(workers=3)
SHAPE = (20, 3)

GOLDEN = {
    "terms": (
        "53554d570101040000000000000000001efda3ea5487d40c08070605040302013c000000000000000000000000000000"
        "0000000000000000100000000000000000000000cbc511c614000000000000000300000000000000"
    ),
    "payload": (
        "53554d570102040100000000010000001efda3ea5487d40c08070605040302013c000000000000004a069c0012dc9e15"
        "0000000003000000380000000000000000000000810555a40100000000000000030000000000803f000000c00000003f"
        "000000000000000001000000000000001200000000000080000000000000807f"
    ),
    "float16": (
        "53554d570102040200000100010000001efda3ea5487d40c08070605040302013c000000000000004a069c0012dc9e15"
        "0000000003000000480000000000000000000000985ca1e7010000000000000003000000004400450046000000000000"
        "010000000000000000000000003c00400042000000000000010000000000000007000000000000000000000000000000"
    ),
    "bfloat16": (
        "53554d570102040300000200010000001efda3ea5487d40c08070605040302013c000000000000004a069c0012dc9e15"
        "000000000300000028000000000000000000000005a89409010000000000000003000000803f0040c07f000000000000"
        "00000000000000000000000000000000"
    ),
    "part": (
        "53554d570102040100000000010000001efda3ea5487d40c08070605040302013c000000000000004a069c0012dc9e15"
        "01000000030000002000000000000000000000008da57118000000000000000001000000000000001200000000000080"
        "000000000000807f"
    ),
    "sum": (
        "53554d570103040000000000020000001efda3ea5487d40c08070605040302013c000000000000004a069c0012dc9e15"
        "0000000003000000580000000000000000000000030e753c0100000000000000030000000000a040000040400000d040"
        "0100000000000000000000000000803f0000004000004040020000000000000007000000120000000000000000000000"
        "0000000000000000000000000000807f"
    ),
    "uneven": (
        "53554d570103040001000000020000001efda3ea5487d40c08070605040302013c000000000000004a069c0012dc9e15"
        "000000000300000054000000000000000000000077299daf010000000200000001000000010000000000000003000000"
        "0000803f000000c00000003f0100000000000000000000000000803f0000004000004040010000000000000012000000"
        "00000080000000000000807f"
    ),
}

MASK = (1 << 64) - 1


def tensors() -> list[RowSlices]:
    """A few rows, one of them everybody's; values that have another form in float16; -0.0, and a row of zeros."""
    first = np.array([[1, -2, 0.5], [-0.0, 0, np.inf]], np.float32)
    second = np.array([[1, 2, 3], [4, 5, 6], [0, 0, 0]], np.float16)
    third = np.array([[0x3F80, 0x4000, 0x7FC0]], np.uint16)  # bfloat16: 1, 2, NaN
    return [
        RowSlices(SHAPE, np.array([3, 18]), first),
        RowSlices(SHAPE, np.array([0, 3, 7]), second),
        RowSlices(SHAPE, np.array([3]), third),
    ]


def items():
    one, two, three = tensors()
    terms = CODEC.propose(one)
    payloads = [CODEC.encode(x, terms, rank=rank, round_id=ROUND) for rank, x in enumerate((one, two, three))]
    wide = RowSlices(SHAPE, two.numbers, two.values.astype(np.float32))
    again = CODEC.encode(wide, terms, rank=1, round_id=ROUND)
    return {
        "terms": terms,
        "payload": payloads[0],
        "float16": payloads[1],
        "bfloat16": payloads[2],
        "part": payloads[0].part(1, 3),
        "sum": payloads[0] + again,
        "uneven": payloads[0] + again.part(1, 2),
    }


def written() -> dict[str, str]:
    return {name: to_bytes(item, round_id=ROUND).hex() for name, item in items().items()}


def test_bytes_are_golden():
    assert written() == GOLDEN


def test_golden_bytes_are_read():
    made = items()
    terms = parse(bytes.fromhex(GOLDEN["terms"])).terms(CODEC, SHAPE)
    assert terms == made["terms"]
    assert (terms.table, terms.width) == SHAPE
    for name in ("payload", "float16", "bfloat16"):
        payload = parse(bytes.fromhex(GOLDEN[name])).payload(CODEC, terms)
        assert bits_of(CODEC.decode(payload)) == bits_of(CODEC.decode(made[name]))
    for name in ("sum", "uneven"):
        total = parse(bytes.fromhex(GOLDEN[name])).sum(CODEC, terms)
        assert [count for _, count in total.sums.values()] == [count for _, count in made[name].sums.values()]
        assert bits_of(CODEC.decode(total)) == bits_of(CODEC.decode(made[name]))


# The second reader: plain Python, no kernels


def spec_shard(row: int, shards: int) -> int:
    h = (row // shards + 1) * 0x9E3779B97F4A7C15 & MASK
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & MASK
    h = (h ^ h >> 27) * 0x94D049BB133111EB & MASK
    return (row + (h ^ h >> 31) % shards) % shards


def spec_read(raw: bytes, codec: Rows, shape: tuple[int, int]) -> tuple[dict[int, tuple[float, ...]], list[int]]:
    """The rows of a payload or sum by number, and the counts of its shards."""
    head, data = spec_header(raw), raw[72:]
    assert (head["codec"], head["size"], len(data)) == (4, shape[0] * shape[1], head["length"])
    assert head["crc"] == spec_crc32c(raw[:68] + data)
    assert "rows-" + head["fingerprint"].hex() == codec.family
    shards = head["hi"] - head["lo"]
    counts = [head["count"]] * shards
    if head["flags"]:
        counts, data = list(struct.unpack_from(f"<{shards}I", data)), data[4 * shards :]
    width, form = {0: (4, "f"), 1: (4, "f"), 2: (2, "e"), 3: (2, "H")}[head["bits"]]
    out = {}
    for shard in range(head["lo"], head["hi"]):
        (rows,) = struct.unpack_from("<Q", data)
        numbers = struct.unpack_from(f"<{rows}I", data, 8)
        assert list(numbers) == sorted({row for row in numbers if spec_shard(row, codec.shards) == shard})
        start = 8 + 4 * rows
        end = start + width * shape[1] * rows
        stop = -(-end // 8) * 8
        assert not any(data[end:stop])
        values = struct.unpack(f"<{shape[1] * rows}{form}", data[start:end])
        if form == "H":
            values = [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in values]
        out |= {row: tuple(values[k * shape[1] : (k + 1) * shape[1]]) for k, row in enumerate(numbers)}
        data = data[stop:]
    assert not data
    return out, counts


def spec_dense(rows: dict[int, tuple[float, ...]], shape: tuple[int, int]) -> np.ndarray:
    out = np.zeros(shape, np.float32)
    for number, values in rows.items():
        out[number] = values
    return out


def test_golden_bytes_obey_the_spec():
    one, two, three = tensors()
    raw = {name: bytes.fromhex(text) for name, text in GOLDEN.items()}
    assert struct.unpack("<qq", raw["terms"][72:]) == SHAPE
    for name, x in (("payload", one), ("float16", two), ("bfloat16", three)):
        rows, counts = spec_read(raw[name], CODEC, SHAPE)
        assert (sorted(rows), counts) == (x.numbers.tolist(), [1, 1, 1])
        np.testing.assert_array_equal(spec_dense(rows, SHAPE), dense(x))
    rows, _ = spec_read(raw["part"], CODEC, SHAPE)
    assert sorted(rows) == [row for row in (3, 18) if spec_shard(row, 3) > 0]
    np.testing.assert_array_equal(spec_dense(spec_read(raw["sum"], CODEC, SHAPE)[0], SHAPE), dense(one) + dense(two))
    rows, counts = spec_read(raw["uneven"], CODEC, SHAPE)
    assert counts == [1, 2, 1]
    some = dense(two)
    some[[row for row in range(20) if spec_shard(row, 3) != 1]] = 0
    np.testing.assert_array_equal(spec_dense(rows, SHAPE), dense(one) + some)


@given(workers=st.integers(1, 5), shards=st.integers(0, 9), data=st.data())
def test_frames_of_any_codec_obey_the_spec(workers, shards, data):
    codec = Rows(workers, shards=shards)
    x = data.draw(some_rows())
    payload = codec.encode(x, codec.propose(x), rank=workers - 1)
    for item in (payload, codec.add([payload])):
        rows, _ = spec_read(to_bytes(item), codec, x.shape)
        assert sorted(rows) == x.numbers.tolist()
        np.testing.assert_array_equal(spec_dense(rows, x.shape), dense(x))


if __name__ == "__main__":
    for name, text in written().items():
        print(f'    "{name}": (')
        for at in range(0, len(text), 96):
            print(f'        "{text[at : at + 96]}"')
        print("    ),")

"""Golden bytes of Sparse frames, and a second reader that follows docs/format.md and shares no code with the first.

Regenerate the bytes with `python -m tests.wire.test_golden_sparse`: see test_golden.py.
"""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sumwire.codec.sparse.codec import Sparse
from sumwire.wire.frame import parse, to_bytes
from tests.wire.test_golden import ROUND, spec_crc32c, spec_header

CODEC = Sparse(workers=3, block=64, seed=7)
SIZE = 500

GOLDEN = {
    "terms": (
        "53554d570101020000000000000000000172770b24b1cf6e0807060504030201f4010000000000000000000000000000"
        "0000000000000000000000000000000000000000280125a3"
    ),
    "payload": (
        "53554d570102020100000000010000000172770b24b1cf6e0807060504030201f4010000000000000000000000000000"
        "00000000030000002800000000000000000000004f09437b0103010000001500000000c0010503000000c2a919000000"
        "0000803f0000003f0000008000000000"
    ),
    "second": (
        "53554d570102020200000100010000000172770b24b1cf6e0807060504030201f4010000000000000000000000000000"
        "000000000300000054000000000000000000000018150f8902041b00000004ab14000000003c00400042004400450046"
        "00470048804800498049004a804a004b804b004c404c804cc04c004d404d804dc04d004e404e804ec04e000000000000"
        "0100020000000000004f404f"
    ),
    "sum": (
        "53554d570103020000000000020000000172770b24b1cf6e0807060504030201f4010000000000000000000000000000"
        "0000000003000000a400000000000000000000008e17655602031c0000000315f6130000000000c00000803f00000040"
        "00004040000080400000a0400000c0400000e04000000041000010410000204100003041000040410000504100006041"
        "00007041000080410000884100009041000098410000a0410000a8410000b0410000b8410000c0410000c8410000d041"
        "0000d841010503000000c2a9190000000000803f0000003f0000000001000200000000000000e0410000e841"
    ),
    "uneven": (
        "53554d570103020001000000020000000172770b24b1cf6e0807060504030201f4010000000000000000000000000000"
        "0000000003000000c8000000000000000000000001d316010100000002000000020000000103010000001500000000c0"
        "01030b000000f267777737f33f0100000000803f0000803f0000803f0000803f0000803f0000803f0000803f0000003f"
        "0000803f0000803f00000000010218000000e8eeeeeeeeeeeeeeeeeeee6e00000000803f0000803f0000803f0000803f"
        "0000803f0000803f0000803f0000803f0000803f0000803f0000803f0000803f0000803f0000803f0000803f0000803f"
        "0000803f0000803f0000803f0000803f0000803f0000803f0000803f0000803f"
    ),
}

MASK = (1 << 64) - 1


def tensors() -> list[np.ndarray]:
    """A few entries, a run, and every eighth of a stretch."""
    xs = np.zeros((3, SIZE), np.float32)
    xs[0, [1, 77, 300, 499]] = 1, -2, 0.5, -0.0
    xs[1, 100:130] = np.arange(30)
    xs[2, 128:448:8] = 1
    return list(xs)


def items():
    one, two, three = tensors()
    terms = CODEC.propose(one)
    payloads = [CODEC.encode(x, terms, rank=rank, round_id=ROUND) for rank, x in enumerate([one, two, three])]
    half = CODEC.encode(two.astype(np.float16), terms, rank=1, round_id=ROUND)
    return {
        "terms": terms,
        "payload": payloads[0],
        "second": half,
        "sum": CODEC.add([payloads[0], half]),
        "uneven": payloads[0] + payloads[2].part(1, 3),
    }


def written() -> dict[str, str]:
    return {name: to_bytes(item, round_id=ROUND).hex() for name, item in items().items()}


def test_bytes_are_golden():
    assert written() == GOLDEN


def test_golden_bytes_are_read():
    made = items()
    terms = parse(bytes.fromhex(GOLDEN["terms"])).terms(CODEC, (SIZE,))
    assert terms == made["terms"]
    payload = parse(bytes.fromhex(GOLDEN["payload"])).payload(CODEC, terms)
    assert CODEC.sum_of(payload).tobytes() == tensors()[0].tobytes()
    for name in ("sum", "uneven"):
        total = parse(bytes.fromhex(GOLDEN[name])).sum(CODEC, terms)
        assert total.counts == made[name].closed().counts
        assert CODEC.decode(total).tobytes() == CODEC.decode(made[name]).tobytes()


# The second reader: plain Python, no kernels


def spec_shards(size: int, codec: Sparse) -> list[list[int]]:
    """The coordinates of each shard, in its own order."""
    block = codec.block
    if block is None:
        want = max(1, size // (64 * codec.workers))
        block = min(4096, max(64, 1 << want.bit_length() - 1))

    def hashed(k: int) -> int:
        h = (k + 1) * 0x9E3779B97F4A7C15 + codec.seed & MASK
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & MASK
        h = (h ^ h >> 27) * 0x94D049BB133111EB & MASK
        return h ^ h >> 31

    own: list[list[int]] = [[] for _ in range(codec.workers)]
    for first in range(0, -(-size // block), codec.workers):
        group = sorted(range(first, first + codec.workers), key=lambda k: (hashed(k), k))
        for shard, k in enumerate(group):
            own[shard] += [k] if k * block < size else []
    return [[at for k in blocks for at in range(k * block, min(size, k * block + block))] for blocks in own]


def spec_index(data: bytes, bits: int) -> tuple[list[int], int]:
    """Which bits are set, and the bytes of the index."""
    mode, k = data[0], data[1]
    if mode in (0, 5):
        return (list(range(bits)) if mode else []), 2
    if mode in (3, 4):
        head = 2 + -(-(bits if mode == 3 else -(-bits // 64)) // 8)
        marks = int.from_bytes(data[2:head], "little")
        if mode == 3:
            return [j for j in range(bits) if marks >> j & 1], head
        filled = [w for w in range(-(-bits // 64)) if marks >> w & 1]
        words = struct.unpack_from(f"<{len(filled)}Q", data, head)
        ones = [64 * w + j for w, word in zip(filled, words, strict=True) for j in range(64) if word >> j & 1]
        return ones, head + 8 * len(filled)
    head = 6 if mode == 1 else 7
    (count,) = struct.unpack_from("<I", data, 2)
    assert 1 <= count <= bits
    stream, at, place, ones = int.from_bytes(data[head:], "little"), 0, 0, []

    def rice(k: int) -> int:
        nonlocal at
        start = at
        while stream >> at & 1:
            at += 1
        quotient, low = at - start, stream >> at + 1 & (1 << k) - 1
        at += 1 + k
        return quotient << k | low

    while len(ones) < count:
        place += rice(k)
        for _ in range(1 if mode == 1 else rice(data[6]) + 1):
            ones.append(place)
            place += 1
    return ones, head + -(-at // 8)


def spec_read(raw: bytes, codec: Sparse) -> tuple[dict[int, float], list[int]]:
    """The entries of a payload or sum, and the counts of its shards."""
    head, data = spec_header(raw), raw[72:]
    assert (head["codec"], head["digest"], len(data)) == (2, 0, head["length"])
    assert head["crc"] == spec_crc32c(raw[:68] + data)
    assert "sparse-" + head["fingerprint"].hex() == codec.family
    shards = spec_shards(head["size"], codec)[head["lo"] : head["hi"]]
    counts = [head["count"]] * len(shards)
    if head["flags"]:
        counts, data = list(struct.unpack_from(f"<{len(shards)}I", data)), data[4 * len(shards) :]
    width, form = {0: (4, "f"), 1: (4, "f"), 2: (2, "e"), 3: (2, "H")}[head["bits"]]
    out = {}
    for coordinates in shards:
        ones, used = spec_index(data, len(coordinates))
        start = -(-used // 4) * 4
        end = start + width * len(ones)
        stop = -(-end // 4) * 4
        assert not any(data[used:start] + data[end:stop])
        values = struct.unpack(f"<{len(ones)}{form}", data[start:end])
        if form == "H":
            values = [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in values]
        out |= {coordinates[one]: value for one, value in zip(ones, values, strict=True)}
        data = data[stop:]
    assert not data
    return out, counts


def dense(entries: dict[int, float], size: int) -> bytes:
    out = np.zeros(size, np.float32)
    for at, value in entries.items():
        out[at] = value
    return out.tobytes()


def test_golden_bytes_obey_the_spec():
    one, two, three = tensors()
    raw = {name: bytes.fromhex(text) for name, text in GOLDEN.items()}
    assert dense(spec_read(raw["payload"], CODEC)[0], SIZE) == one.tobytes()
    assert dense(spec_read(raw["second"], CODEC)[0], SIZE) == two.tobytes()
    assert dense(spec_read(raw["sum"], CODEC)[0], SIZE) == (one + two).tobytes()
    entries, counts = spec_read(raw["uneven"], CODEC)
    assert counts == [1, 2, 2]
    three[spec_shards(SIZE, CODEC)[0]] = -0.0
    assert dense(entries, SIZE) == (one + three).tobytes()


@given(
    workers=st.integers(1, 5),
    block=st.sampled_from([None, 64, 128]),
    seed=st.sampled_from([0, 1, 2**64 - 1]),
    size=st.integers(0, 1500),
    dtype=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
    data=st.data(),
)
def test_frames_of_any_codec_obey_the_spec(workers, block, seed, size, dtype, data):
    codec = Sparse(workers, block=block, seed=seed)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    density = rng.choice([0, 0.01, 0.1, 0.5, 0.95, 1], size // 200 + 1).repeat(200)[:size]
    x = (rng.standard_normal(size) * (rng.random(size) < density)).astype(dtype)
    payload = codec.encode(x, codec.propose(x), rank=workers - 1)
    expected = x.astype(np.float32).tobytes()
    assert dense(spec_read(to_bytes(payload), codec)[0], size) == expected
    assert dense(spec_read(to_bytes(codec.add([payload])), codec)[0], size) == expected


if __name__ == "__main__":
    for name, text in written().items():
        print(f'    "{name}": (')
        for at in range(0, len(text), 96):
            print(f'        "{text[at : at + 96]}"')
        print("    ),")

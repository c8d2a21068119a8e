"""Golden bytes, and a second reader that was written from docs/format.md alone.

Regenerate the bytes with `python -m tests.wire.test_golden`, and only together with the wire version
(or while no release has gone out).
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from sumwire import Lattice
from sumwire.wire.frame import parse, to_bytes
from tests.strategies import codecs, gradients

CODEC = Lattice(
    workers=2, bits=4, granularity=30, clip=1 / 32, block=64, seed=7, lane_bits=6, widths="energy", energy=1.0
)
EXACT = replace(CODEC, terms="exact")
SIZE = 64 + 8 + 2 + 1
ROUND = 0x0102030405060708

GOLDEN = {
    "terms": (
        "53554d570101010000000000000000007b6f76c087a9ee2208070605040302014b000000000000000000000000000000"
        "0000000004000000060000000000000000000000688947393904f7feffff"
    ),
    "payload": (
        "53554d570102010400000000010000007b6f76c087a9ee2208070605040302014b0000000000000075f69a4be60970d1"
        "0000000004000000260000000000000000000000c50bcb1b3c3cb45bd1b57766b4794555f5185bb569a31dd26987a44a"
        "2c3bc67c393f8877a450a55b3704"
    ),
    "second": (
        "53554d570102010400000100010000007b6f76c087a9ee2208070605040302014b0000000000000075f69a4be60970d1"
        "00000000040000002600000000000000000000005be072d4665447977778765557355466cc24ba785736858a76896654"
        "764589ba9766ba99798a7886a709"
    ),
    "sum": (
        "53554d570103010000000000020000007b6f76c087a9ee2208070605040302014b0000000000000075f69a4be60970d1"
        "00000000040000003900000000000000000000006e6d09104420e8c4824bec88086c44885289084b80a43498ce00064c"
        "44007e4a804b53005a56599665a99555695995997a49aaa92ab32bb2a559aea501"
    ),
    "uneven": (
        "53554d570103010001000000020000007b6f76c087a9ee2208070605040302014b0000000000000075f69a4be60970d1"
        "0000000004000000490000000000000000000000d27a259f01000000020000000200000002000000777759b5935bffdd"
        "59f19bbbeb30b55bd1373995d10f399357757df7717e00ff054114411450400414054004140545102ab32bb2a559aea5"
        "01"
    ),
    "exact terms": (
        "53554d57010101000000000000000000d8846c015248283308070605040302014b000000000000000000000000000000"
        "0000000004000000100000000000000000000000aacb80f688111242e8138742e200914200009442"
    ),
}


def items():
    xs = [np.arange(SIZE, dtype=np.float32), np.arange(SIZE, dtype=np.float32)[::-1] - 30]
    terms = CODEC.propose(xs[0]) | CODEC.propose(xs[1])
    one, two = (CODEC.encode(x, terms, rank=rank, round_id=ROUND) for rank, x in enumerate(xs))
    made = {"terms": terms, "payload": one, "second": two, "sum": one + two, "uneven": one + two.part(1, 4)}
    return made | {"exact terms": EXACT.propose(xs[0]) | EXACT.propose(xs[1])}


def written() -> dict[str, str]:
    return {name: to_bytes(item, round_id=ROUND).hex() for name, item in items().items()}


def test_bytes_are_golden():
    assert written() == GOLDEN


def test_golden_bytes_are_read():
    made = items()
    terms = parse(bytes.fromhex(GOLDEN["terms"])).terms(CODEC, (SIZE,))
    assert terms == made["terms"]
    assert parse(bytes.fromhex(GOLDEN["exact terms"])).terms(EXACT, (SIZE,)) == made["exact terms"]
    payload = parse(bytes.fromhex(GOLDEN["payload"])).payload(CODEC, terms)
    np.testing.assert_array_equal(payload.data, made["payload"].data)
    for name in ("sum", "uneven"):
        total = parse(bytes.fromhex(GOLDEN[name])).sum(CODEC, terms)
        np.testing.assert_array_equal(total.lanes, made[name].lanes)
        np.testing.assert_array_equal(total.counts, made[name].counts)


# The second reader: plain Python, no kernels


def spec_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def spec_header(raw: bytes) -> dict[str, int]:
    names = "magic version kind codec bits flags zero count fingerprint round_id size digest lo hi length zero2 crc"
    return dict(zip(names.split(), struct.unpack("<IBBBBHHI8sQQQIIQII", raw[:72]), strict=True))


def spec_blocks(size: int, block: int) -> list[int]:
    tail = [1 << k for k in range(20, -1, -1) if size % block >> k & 1]
    return [block] * (size // block) + tail


def spec_scales(codec: Lattice, body: bytes) -> list[float]:
    if codec.terms == "exact":
        return [s for (s,) in struct.iter_unpack("<f", body)]
    fractions = [0x0, 0xB95C2, 0x1837F1, 0x25FED7, 0x3504F4, 0x45672B, 0x5744FD, 0x6AC0C7]
    base, codes = int.from_bytes(body[:2], "little"), body[2:]
    assert max(codes, default=0) == 255 or (base == 0 and not any(codes))

    def scale(code: int) -> float:
        step = base - 255 + code
        bits = ((step - 23) // 8 + 1 << 23) + fractions[(step - 23) % 8] if step >= 23 else 1 << step
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])

    return [scale(code) if code else 0.0 for code in codes]


def spec_unpack(data: bytes, blocks: list[int], widths: list[int]) -> list[int]:
    """The lanes of all blocks, in order."""
    stream, at, lanes = int.from_bytes(data, "little"), 0, []
    for size, width in zip(blocks, widths, strict=True):
        for start in range(0, size, 256):
            group = [0] * min(256, size - start)
            shift = 0
            for plane in (32, 16, 8, 4, 2, 1):
                if not width & plane:
                    continue
                step = max(1, len(group) * plane // 8) if plane < 8 else len(group)
                order = [k for first in range(step) for k in range(first, len(group), step)]
                for k in order:
                    group[k] |= (stream >> at & (1 << plane) - 1) << shift
                    at += plane
                shift += plane
            lanes += group
    assert len(data) == (at + 7) // 8
    assert stream >> at == 0
    return lanes


def spec_allocate(scales: list[float], blocks: list[int], bits: int, floor: int, codec: Lattice) -> list[int]:
    if codec.widths == "fixed":
        return [bits if scale > 0 else 0 for scale in scales]
    ladder = range(9) if codec.widths == "energy" else sorted({0, *codec.widths})
    level = [(int.from_bytes(struct.pack("<f", s), "little") >> 15) * round(codec.energy * 256) for s in scales]

    def at(c: int) -> list[int]:
        wish = [max(0, (one + c) >> 16) for one in level]
        widths = [max(floor, max(w for w in ladder if w <= one)) for one in wish]
        return [w if scale > 0 else 0 for w, scale in zip(widths, scales, strict=True)]

    def cost(c: int) -> int:
        return sum(w * b for w, b in zip(at(c), blocks, strict=True))

    budget = bits * sum(blocks)
    low, high = -max(level, default=0), 65536 * (max(ladder) + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= budget else (low, middle - 1)
    out, wider, left = at(low), at(low + 1), budget - cost(low)
    for i, block in enumerate(blocks):
        more = (wider[i] - out[i]) * block
        if 0 < more <= left:
            out[i], left = wider[i], left - more
    return out


def spec_widths(scales: list[float], blocks: list[int], bits: int, codec: Lattice) -> tuple[list[int], list[int]]:
    """Classes, and the index widths of a sender that spends `bits`."""
    ladder = range(9) if codec.widths == "energy" else {codec.bits} if codec.widths == "fixed" else codec.widths
    least = min(w for w in ladder if w)
    classes = spec_allocate(scales, blocks, codec.family_bits, 0 if codec.feedback else least, codec)
    if bits == codec.family_bits:
        return classes, classes
    sent = [scale if cls else 0.0 for scale, cls in zip(scales, classes, strict=True)]
    own = spec_allocate(sent, blocks, bits, least, codec)
    return classes, [min(pair) for pair in zip(own, classes, strict=True)]


def check_by_the_spec(codec: Lattice, terms: bytes, payloads: list[bytes], total: bytes) -> None:
    """Look up every payload's indices, add them, and find the sum's lanes: all from the bytes."""
    family = codec._family.scheme_for_all
    for raw in (terms, *payloads, total):
        head = spec_header(raw)
        assert head["magic"] == int.from_bytes(b"SUMW", "little")
        assert len(raw) == 72 + head["length"]
        assert head["crc"] == spec_crc32c(raw[:68] + raw[72:])
        assert "lattice-" + head["fingerprint"].hex() == codec.family
    size, digest = spec_header(terms)["size"], hashlib.blake2b(terms[72:], digest_size=8).digest()
    blocks = spec_blocks(size, codec.block)
    scales = spec_scales(codec, terms[72:])
    expected = [0] * size
    for raw in payloads:
        head = spec_header(raw)
        assert head["digest"] == int.from_bytes(digest, "little")
        classes, widths = spec_widths(scales, blocks, head["bits"], codec)
        lane = iter(range(size))
        indices = iter(spec_unpack(raw[72:], blocks, widths))
        for block, cls, width in zip(blocks, classes, widths, strict=True):
            for _ in range(block):
                at, index = next(lane), next(indices)
                expected[at] += int(family.tables[cls, width].values[index]) if width else 0
    lattices = [family.lattices[cls] for cls in classes]
    assert spec_unpack(total[72:], blocks, [s.lane_bits if s else 0 for s in lattices]) == expected


def test_golden_bytes_obey_the_spec():
    raw = {name: bytes.fromhex(text) for name, text in GOLDEN.items()}
    check_by_the_spec(CODEC, raw["terms"], [raw["payload"], raw["second"]], raw["sum"])
    head = spec_header(raw["uneven"])
    assert (head["flags"], head["count"], head["lo"], head["hi"]) == (1, 2, 0, 4)
    assert struct.unpack("<4I", raw["uneven"][72:88]) == (1, 2, 2, 2)


@given(xs=gradients(max_workers=3), data=st.data())
def test_frames_of_any_codec_obey_the_spec(xs, data):
    assume(xs[0].size <= 2000)
    codec = data.draw(codecs(workers=len(xs)))
    terms = reduce(or_, (codec.propose(x) for x in xs))
    members = [codec] * len(xs)
    least = min(w for w in codec.widths if w) if isinstance(codec.widths, tuple) else 1
    members[0] = codec.with_bits(data.draw(st.integers(least, codec.bits)))
    payloads = [m.encode(x, terms, rank=rank) for rank, (m, x) in enumerate(zip(members, xs, strict=True))]
    frames = [to_bytes(payload) for payload in payloads]
    back = [parse(raw).payload(codec, terms) for raw in frames]
    check_by_the_spec(codec, to_bytes(terms), frames, to_bytes(codec.add(back)))


if __name__ == "__main__":
    for name, text in written().items():
        print(f'    "{name}": (')
        for at in range(0, len(text), 96):
            print(f'        "{text[at : at + 96]}"')
        print("    ),")

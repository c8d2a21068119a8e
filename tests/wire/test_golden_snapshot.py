"""Golden bytes of Snapshot frames, what docs/format.md says of them, and that whatever is written comes back.

Regenerate the bytes with `python -m tests.wire.test_golden_snapshot`: see test_golden.py.
"""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sumwire.codec.snapshot import NOTHING, Snapshot
from sumwire.wire.frame import build, describe, parse, to_bytes
from sumwire.wire.header import HEADER_SIZE
from tests.wire.test_golden import ROUND, spec_crc32c, spec_header

CODEC = Snapshot(workers=3)
WORDS = np.array([0, 1, -1, 2**31 - 1, -(2**31)], np.int32)

GOLDEN = {
    "terms": (
        "53554d570101050000000000000000009f727c424b068f1e080706050403020105000000000000000000000000000000"
        "0000000005000000140000000000000000000000879263360000000001000000ffffffffffffff7f00000080"
    ),
    "nothing": (
        "53554d570101050000000000000000009f727c424b068f1e080706050403020105000000000000000000000000000000"
        "0000000000000000000000000000000000000000b155c382"
    ),
    "payload": (
        "53554d570102050000000100010000009f727c424b068f1e0807060504030201050000000000000066194d746df633d1"
        "000000000000000000000000000000000000000047f306e1"
    ),
    "sum": (
        "53554d570103050000000000020000009f727c424b068f1e0807060504030201050000000000000066194d746df633d1"
        "00000000000000000000000000000000000000000f9fa677"
    ),
    "sum of nothing": (
        "53554d570103050000000000010000009f727c424b068f1e080706050403020105000000000000000000000000000000"
        "000000000000000000000000000000000000000032baa810"
    ),
}


def items():
    terms, nothing = CODEC.propose(WORDS), CODEC.propose(np.full(5, NOTHING))
    payloads = [CODEC.encode(WORDS, terms, rank=rank, round_id=ROUND) for rank in range(2)]
    return {
        "terms": terms,
        "nothing": nothing,
        "payload": payloads[1],
        "sum": payloads[0] + payloads[1],
        "sum of nothing": CODEC.add([CODEC.encode(WORDS, nothing, rank=0, round_id=ROUND)]),
    }


def written() -> dict[str, str]:
    return {name: to_bytes(item, round_id=ROUND).hex() for name, item in items().items()}


def test_bytes_are_golden():
    assert written() == GOLDEN


def test_golden_bytes_are_read():
    raw = {name: bytes.fromhex(text) for name, text in GOLDEN.items()}
    terms, nothing = (parse(raw[name]).terms(CODEC, (5,)) for name in ("terms", "nothing"))
    assert (terms.words.tolist(), nothing.values) == (WORDS.tolist(), None)
    assert parse(raw["payload"]).payload(CODEC, terms).rank == 1
    total = parse(raw["sum"]).sum(CODEC, terms)
    assert (total.count, CODEC.decode(total).tolist()) == (2, WORDS.tolist())
    assert (CODEC.decode(parse(raw["sum of nothing"]).sum(CODEC, nothing)) == NOTHING).all()


def test_golden_bytes_obey_the_spec():
    raw = {name: bytes.fromhex(text) for name, text in GOLDEN.items()}
    digest = int.from_bytes(hashlib.blake2b(raw["terms"][72:], digest_size=8).digest(), "little")
    assert raw["terms"][72:] == WORDS.astype("<i4").tobytes()
    for name, hi, said in (
        ("terms", 5, 0), ("nothing", 0, 0), ("payload", 0, digest), ("sum", 0, digest), ("sum of nothing", 0, 0)
    ):  # fmt: skip
        head = spec_header(raw[name])
        assert "snapshot-" + head["fingerprint"].hex() == CODEC.family
        assert (head["codec"], head["bits"], head["flags"], head["size"], head["lo"]) == (5, 0, 0, 5, 0)
        assert (head["hi"], head["length"], head["digest"], len(raw[name])) == (hi, 4 * hi, said, HEADER_SIZE + 4 * hi)
        assert head["crc"] == spec_crc32c(raw[name][:68] + raw[name][72:])


words = st.integers(0, 40).flatmap(lambda size: arrays(np.int32, size))
rounds = st.sampled_from([0, 7, 2**64 - 1])


@given(x=words, workers=st.integers(1, 5), round_id=rounds, empty=st.booleans())
def test_frames_come_back(x, workers, round_id, empty):
    x = np.full_like(x, NOTHING) if empty else x
    codec = Snapshot(workers)
    terms = codec.propose(x)
    raw = to_bytes(terms, round_id=round_id)
    assert len(raw) == HEADER_SIZE + terms.nbytes
    back = parse(raw).terms(codec, x.shape)
    assert back == terms
    assert to_bytes(back, round_id=round_id) == raw
    payloads = [codec.encode(x, terms, rank=rank, round_id=round_id) for rank in range(workers)]
    read = [parse(to_bytes(payload)).payload(codec, back) for payload in payloads]
    assert [(each.rank, each.round_id, to_bytes(each)) for each in read] == [
        (rank, round_id, to_bytes(payload)) for rank, payload in enumerate(payloads)
    ]
    total = parse(to_bytes(codec.add(read))).sum(codec, back)
    assert (total.count, total.round_id) == (workers, round_id)
    np.testing.assert_array_equal(codec.decode(total), x)


def test_terms_outlive_the_buffer_of_their_frame():
    buffer = bytearray(to_bytes(CODEC.propose(WORDS)))
    back = parse(memoryview(bytes(3) + buffer)[3:]).terms(CODEC, (5,))
    held = parse(buffer).terms(CODEC, (5,))
    buffer[HEADER_SIZE:] = bytes(20)
    assert back.words.tolist() == held.words.tolist() == WORDS.tolist()


def test_a_server_can_build_the_codec():
    assert build(describe(CODEC)) == CODEC


if __name__ == "__main__":
    for name, text in written().items():
        print(f'    "{name}": (')
        for at in range(0, len(text), 96):
            print(f'        "{text[at : at + 96]}"')
        print("    ),")

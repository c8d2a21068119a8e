"""One test per way that a frame of the Snapshot codec can be bad."""

from __future__ import annotations

import numpy as np
import pytest

from sumwire import FrameError, Lattice, MismatchError
from sumwire.codec.snapshot import NOTHING
from sumwire.wire.frame import parse, to_bytes
from sumwire.wire.header import Header
from sumwire.wire.limits import MAX_BLOCKS, Kind
from tests.wire.forging import forge
from tests.wire.test_golden_snapshot import CODEC, GOLDEN, WORDS, items

TERMS = items()["terms"]
RAW = {name: bytes.fromhex(text) for name, text in GOLDEN.items() if name != "sum of nothing"}


def read(raw, codec=CODEC, terms=TERMS):
    frame = parse(raw)
    if frame.kind is Kind.TERMS:
        return frame.terms(codec, terms.shape)
    return frame.payload(codec, terms) if frame.kind is Kind.PAYLOAD else frame.sum(codec, terms)


def refused(raw: bytes, message: str, error: type[Exception] = FrameError) -> None:
    with pytest.raises(error, match=message):
        read(raw)


def test_the_untouched_frames_are_fine():
    for raw in RAW.values():
        read(raw)
        assert forge(raw) == raw


@pytest.mark.parametrize("kind", ["terms", "payload", "sum"])
def test_bits(kind):
    refused(forge(RAW[kind], bits=1), f"bits 1 is wrong in a {kind} frame: 0..0 in a payload, else 0")


def test_size_over_the_limit():
    Header(kind=Kind.SUM, family=CODEC.family, size=MAX_BLOCKS, hi=0, length=0)
    refused(forge(RAW["payload"], size=MAX_BLOCKS + 1), "size 1073741825 is not in 0..1073741824 coordinates")


def test_size_of_another_snapshot():
    refused(forge(RAW["payload"], size=6), "size differs", MismatchError)


def test_range_of_terms():
    refused(forge(RAW["terms"], hi=MAX_BLOCKS + 1), "word range ends at hi=1073741825, the limit is 1073741824")
    refused(forge(RAW["terms"], lo=1), "word range of terms begins at lo=1: terms are never split")
    refused(forge(RAW["terms"], hi=6), "word range ends at hi=6, but size 5 has fewer words")
    refused(forge(RAW["terms"], hi=4, body=bytes(16)), "word range of terms ends at hi=4: it is 0 or all of 5 words")


@pytest.mark.parametrize(("kind", "length", "need"), [("terms", 0, 20), ("terms", 19, 20), ("nothing", 4, 0)])
def test_length_of_terms(kind, length, need):
    said = f"body length {length} of terms is not {need}, that of snapshot terms"
    refused(forge(RAW[kind], body=bytes(length)), said)


def test_words_that_say_nothing():
    empty = np.full(5, NOTHING)
    refused(forge(RAW["terms"], body=empty.tobytes()), "nothing but empty words has no body: hi and length must be 0")
    empty[4] += 1
    assert read(forge(RAW["terms"], body=empty.tobytes())).words.tolist() == empty.tolist()


def test_terms_cannot_refuse():
    refused(forge(RAW["nothing"], flags=2), "refuses 5 values, but snapshot encodes any such tensor")


@pytest.mark.parametrize("kind", ["payload", "sum"])
def test_a_body(kind):
    said = "payloads and sums of a snapshot are empty"
    refused(forge(RAW[kind], body=bytes(4)), f"body length 4, hi=0: {said}")
    refused(forge(RAW[kind], hi=5), f"body length 0, hi=5: {said}")
    refused(forge(RAW[kind], lo=5, hi=5), f"body length 0, hi=5: {said}")
    refused(forge(RAW[kind], lo=1), "word range 1..0 has lo > hi")


def test_counts_flag():
    refused(forge(RAW["payload"], flags=1), "announces counts in a payload frame")
    refused(forge(RAW["sum"], flags=1), "announces counts in a snapshot, which is never split")


def test_digest():
    refused(forge(RAW["payload"], digest=1), "terms digest differs", MismatchError)
    refused(forge(RAW["sum"], digest=0), "terms digest differs", MismatchError)


def test_rank_of_a_worker_that_is_not_there():
    refused(forge(RAW["payload"], rank=3), "rank 3 is not in 0..2")


def test_count_over_the_workers():
    assert read(forge(RAW["sum"], count=3)).count == 3
    refused(forge(RAW["sum"], count=4), "count 4 is over the headroom of 3")


@pytest.mark.parametrize("kind", ["terms", "payload", "sum"])
def test_another_codec(kind):
    lattice = Lattice(3, 4)
    theirs = lattice.propose(np.ones(5, np.float32))
    with pytest.raises(MismatchError, match="codec family differs \\('lattice-.*' and 'snapshot-.*'\\)"):
        read(RAW[kind], lattice, theirs)
    with pytest.raises(MismatchError, match="codec family differs \\('snapshot-.*' and 'lattice-.*'\\)"):
        read(to_bytes(theirs))
    if kind != "terms":
        with pytest.raises(
            MismatchError, match="under these terms: .* .codec: one has Snapshot, the other has Lattice"
        ):
            read(RAW[kind], CODEC, theirs)


def test_terms_of_another_snapshot_are_not_joined():
    other = CODEC.propose(np.append(WORDS, WORDS))
    with pytest.raises(MismatchError, match="shape differs"):
        other | read(RAW["nothing"])

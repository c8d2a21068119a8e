"""Control messages: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import FrameError, Lattice, MismatchError, Sketch, Sparse
from sumwire.codec.algebra import MAX_ROUND, MAX_WORKERS
from sumwire.kernels.hashing import crc32c
from sumwire.wire import control
from sumwire.wire.control import Word
from sumwire.wire.frame import build, describe

ROUNDS = st.integers(0, MAX_ROUND)
WORDS = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
FLAG = st.integers(0, 1)

MESSAGES = st.one_of(
    st.builds(
        control.Hello, TEXT, TEXT, st.integers(0, MAX_WORKERS - 1), TEXT, st.integers(0, MAX_WORKERS), ROUNDS, TEXT,
        st.integers(0, MAX_WORKERS),
    ),
    st.builds(control.Welcome, TEXT, WORDS, WORDS, WORDS, ROUNDS, ROUNDS, st.floats(0, 1e9), st.floats(0, 1e9)),
    st.builds(control.Describe, TEXT, TEXT, st.dictionaries(TEXT, st.integers() | TEXT | st.booleans(), max_size=4)),
    st.builds(control.Abstain, ROUNDS, TEXT),
    st.builds(control.Expired, ROUNDS, WORDS, WORDS, TEXT),
    st.builds(control.Holds, ROUNDS, WORDS, WORDS, TEXT),
    st.builds(control.Failed, ROUNDS, st.lists(WORDS, max_size=20), TEXT, ROUNDS),
    st.builds(control.Ask, ROUNDS),
    st.builds(control.Status, ROUNDS, FLAG, st.lists(WORDS, max_size=20), WORDS),
    st.builds(control.Measured, st.floats(0, 1e300)),
    st.builds(control.Which, TEXT),
    st.builds(control.Ping),
    st.builds(control.Pong),
    st.builds(control.Refused, TEXT),
    st.builds(control.Agreed, st.binary(max_size=100)),
)  # fmt: skip


@given(message=MESSAGES)
def test_messages_come_back(message: control.Control) -> None:
    raw = control.to_bytes(message)
    assert control.read_length(raw[: control.CONTROL_SIZE]) == len(raw) - control.CONTROL_SIZE
    assert control.read(raw) == message


@given(message=MESSAGES, data=st.data())
def test_damage_is_found(message: control.Control, data: st.DataObject) -> None:
    raw = bytearray(control.to_bytes(message))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        control.read(bytes(raw))


@given(data=st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        control.read(data)
    with pytest.raises(FrameError):
        control.read(_raw(Word.HELLO, data))


def _raw(word: int, body: bytes) -> bytes:
    front = struct.pack("<4sBBHI", b"SUMC", control.VERSION, word, 0, len(body))
    crc = crc32c(np.frombuffer(body, np.uint8), crc32c(np.frombuffer(front, np.uint8)))
    return front + struct.pack("<I", crc) + body


@given(word=st.sampled_from([w for w in Word if w is not Word.AGREED]), value=st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6,
), data=st.data())  # fmt: skip
def test_any_json_is_read_or_refused(word: Word, value: object, data: st.DataObject) -> None:
    """With the fields that it must have, too, but other values in one of them."""
    kind = control._BY_WORD[word]
    names = list(kind.__dataclass_fields__)
    body = {name: {"str": "", "int": 0, "float": 0.0, "list[int]": []}.get(str(f.type), {})
            for name, f in kind.__dataclass_fields__.items()}  # fmt: skip
    if names:
        body[data.draw(st.sampled_from(names))] = value
    for content in (value, body):
        try:
            message = control.read(_raw(word, json.dumps(content).encode()))
        except FrameError:
            continue
        assert control.read(control.to_bytes(message)) == message


MALFORMED = {
    "too deep": (_raw(Word.CODEC, b"[" * 60_000), "not JSON"),
    "not JSON": (_raw(Word.ASK, b"{"), "not JSON"),
    "not UTF-8": (_raw(Word.ASK, b"\xff\xfe\xff"), "not JSON"),
    "not an object": (_raw(Word.ASK, b"[1]"), "other fields"),
    "a field less": (_raw(Word.ABSTAIN, b'{"round_id": 1}'), "other fields"),
    "a field more": (_raw(Word.ASK, b'{"round_id": 1, "x": 1}'), "other fields"),
    "a bool for a number": (_raw(Word.ASK, b'{"round_id": true}'), "round_id of ASK"),
    "a float for a number": (_raw(Word.ASK, b'{"round_id": 1.0}'), "round_id of ASK"),
    "a negative round": (_raw(Word.ASK, b'{"round_id": -1}'), "round_id of ASK"),
    "a round too large": (_raw(Word.ASK, b'{"round_id": 18446744073709551616}'), "round_id of ASK"),
    "a number of many digits": (_raw(Word.ASK, b'{"round_id": ' + b"9" * 5000 + b"}"), "not JSON"),
    "half a character": (_raw(Word.REFUSED, b'{"reason": "\\ud800"}'), "reason of REFUSED"),
    "a long text": (_raw(Word.REFUSED, json.dumps({"reason": "x" * 20_000}).encode()), "reason of REFUSED"),
    "a long list": (
        _raw(Word.STATUS, json.dumps({"round_id": 1, "proposed": 0, "arrived": [1] * 5000, "messages": 0}).encode()),
        "arrived of STATUS",
    ),
    "an infinite error": (_raw(Word.MEASURED, b'{"nmse": Infinity}'), "nmse of MEASURED"),
    "another magic": (b"SUMD" + control.to_bytes(control.Ask(1))[4:], "magic"),
    "another version": (control.to_bytes(control.Ask(1))[:4] + b"\1" + control.to_bytes(control.Ask(1))[5:], "version"),
    "an unknown word": (_raw(99, b"{}"), "control word 99 is unknown"),
    "too long": (_raw(Word.ASK, bytes(1 << 17)), "over the limit of 65536"),
    "truncated": (control.to_bytes(control.Ask(1))[:-1], "not one control message"),
    "trailing bytes": (control.to_bytes(control.Ask(1)) + b"!", "not one control message"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_each_way_to_be_malformed_has_its_message(name: str) -> None:
    raw, reason = MALFORMED[name]
    with pytest.raises(FrameError, match=reason):
        control.read(raw)


@given(ranks=st.sets(st.integers(0, 999)))
def test_ranks_come_back(ranks: set[int]) -> None:
    assert control.read_ranks(control.write_ranks(ranks, 1000)) == ranks


def test_all_ranks_fit_a_message() -> None:
    raw = control.to_bytes(control.Expired(1, 0, 1, control.write_ranks(range(MAX_WORKERS), MAX_WORKERS)))
    assert len(control.read_ranks(control.read(raw).ranks)) == MAX_WORKERS
    with pytest.raises(FrameError, match="not hexadecimal"):
        control.read_ranks("xyz")
    with pytest.raises(FrameError, match=r"rank 4 is not in 0\.\.3: no such worker"):
        control.read_ranks(control.write_ranks({1, 4}, 5), 4)


def test_no_error_and_no_repr_shows_a_token() -> None:
    hello = control.Hello("job", "secret-token", 0, "a", 1, 0, "")
    assert "secret-token" not in repr(hello)
    raw = json.dumps(vars(hello) | {"token": ["secret-token"]}).encode()
    with pytest.raises(FrameError, match="token of HELLO is not what it must be$"):
        control.read(_raw(Word.HELLO, raw))


def test_golden_bytes() -> None:
    assert control.to_bytes(control.Ask(7)).hex() == (
        "53554d43" "03" "09" "0000" "0f000000" "eef0ebef" + b'{"round_id": 7}'.hex()
    )  # fmt: skip


@pytest.mark.parametrize(
    "codec",
    [
        Lattice(3),
        Lattice(3, 6, widths=(0, 2, 6)).with_bits(2),
        Lattice.thc(4),
        Sparse(5, seed=3),
        Sparse(100),
        Sparse(100, shards=100),
        Sparse(5, shards=1),
        Sketch(2),
    ],
)
def test_codecs_come_back(codec: Lattice | Sparse | Sketch) -> None:
    message = control.read(control.to_bytes(describe(codec)))
    assert isinstance(message, control.Describe)
    assert build(message) == codec


def test_a_sparse_codec_is_described_as_before_it_had_shards() -> None:
    assert describe(Sparse(4)).options == {"workers": 4, "block": None, "seed": 0}
    assert describe(Sparse(4, shards=2)).options == {"workers": 4, "block": None, "seed": 0, "shards": 2}


@given(options=st.dictionaries(
    st.sampled_from(["workers", "bits", "block", "seed", "energy", "widths", "clip", "granularity", "family_bits"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
), kind=st.sampled_from(["lattice", "sparse", "sketch"]))  # fmt: skip
def test_odd_options_build_nothing(options: dict[str, object], kind: str) -> None:
    with pytest.raises(MismatchError):
        build(control.Describe("none", kind, options))

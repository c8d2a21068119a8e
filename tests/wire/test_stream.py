"""The byte stream: messages come out as they went in, however the bytes are cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumwire import Sparse, SumwireError
from sumwire.wire import control
from sumwire.wire.frame import Frame, to_bytes
from sumwire.wire.header import HEADER_SIZE, Header
from sumwire.wire.sender import SLICE
from sumwire.wire.stream import FRONT, Stream


class Wire:
    """A transport that only remembers."""

    def __init__(self) -> None:
        self.reading, self.closing, self.written = True, False, bytearray()

    def set_write_buffer_limits(self, **_: int) -> None: ...
    def get_extra_info(self, _: str) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        assert len(data) <= SLICE
        self.written += data

    def abort(self) -> None:
        self.closing = True

    close = abort


class Reader(Stream):
    def __init__(self, room: Callable[[Header], bool] = lambda _: True, max_frame: int = 1 << 30) -> None:
        super().__init__(max_frame)
        self.got: list[Any] = []
        self.error: SumwireError | None = None
        self.room = room
        self.asked = 0
        self.wire = Wire()
        self.connection_made(self.wire)

    def control_received(self, message: control.Control) -> None:
        self.got.append(message)

    def frame_received(self, frame: Frame) -> None:
        self.got.append(frame)

    def refused(self, error: SumwireError) -> None:
        self.error = error
        self.close()

    def may_read(self, header: Header) -> bool:
        self.asked += 1
        return self.room(header)

    def feed(self, data: bytes, rng: random.Random) -> bytes:
        """As a transport does, in runs of any length, as long as it may; gives back the rest."""
        while data and self.wire.reading and not self.wire.closing:
            buffer = self.get_buffer(-1)
            assert len(buffer)
            n = min(len(buffer), len(data), rng.choice([1, 3, 70, 5000, 1 << 20]))
            buffer[:n] = data[:n]
            self.buffer_updated(n)
            data = data[n:]
        return data


def _frame(size: int, r: int) -> bytes:
    codec = Sparse(1)
    x = np.arange(1, size + 1, dtype=np.float32)
    return to_bytes(codec.encode(x, codec.propose(x), rank=0, round_id=r))


MESSAGES = st.lists(
    st.one_of(
        st.builds(_frame, st.sampled_from([0, 1, 50, FRONT // 4 - 40, FRONT // 4 + 40, FRONT]), st.integers(0, 99)),
        st.builds(lambda n: control.to_bytes(control.Refused("x" * n)), st.integers(0, 9000)),
        st.builds(lambda n: control.to_bytes(control.Agreed(bytes(n))), st.sampled_from([0, 100, FRONT, 3 * FRONT])),
    ),
    max_size=12,
)


def _raw(message: Any) -> bytes:
    if not isinstance(message, Frame):
        return control.to_bytes(message)
    codec = Sparse(1)
    return to_bytes(message.payload(codec, codec.propose(np.zeros(message.size, np.float32))))


@given(messages=MESSAGES, seed=st.integers(0, 2**32))
def test_messages_come_out_as_they_went_in(messages: list[bytes], seed: int) -> None:
    reader = Reader()
    assert reader.feed(b"".join(messages), random.Random(seed)) == b""
    assert [_raw(message) for message in reader.got] == messages
    assert reader.error is None
    assert reader.bytes_in == sum(map(len, messages))
    assert reader.asked == sum(message[:4] == b"SUMW" for message in messages), "each frame asks for room once"


@given(messages=MESSAGES, seed=st.integers(0, 2**32), skipped=st.sets(st.integers(0, 11)))
def test_frames_wait_for_room_or_are_skipped(messages: list[bytes], seed: int, skipped: set[int]) -> None:
    async def main() -> None:
        reader, rest, frames = Reader(room=lambda _: False), b"".join(messages), 0
        rng = random.Random(seed)
        while True:
            rest = reader.feed(rest, rng)
            if reader.wire.reading:
                break
            (reader.skip if frames in skipped else reader.read_on)()
            frames += 1
            await asyncio.sleep(0)
        kinds = [message[:4] == b"SUMW" for message in messages]
        wanted = [m for m, is_frame, nth in zip(messages, kinds, np.cumsum(kinds), strict=True)
                  if not is_frame or nth - 1 not in skipped]  # fmt: skip
        assert [_raw(message) for message in reader.got] == wanted
        assert rest == b""

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 200 OK", "neither a frame nor a control message"),
        (_frame(5000, 1)[:72], "over this reader's limit of 10000 bytes"),
        (control.to_bytes(control.Agreed(bytes(20_000)))[:16], "over the limit of 10000"),
        (b"SUMC" + bytes(12), "version 0"),
        (b"SUMW" + bytes(68), "version 0"),
    ],
)
def test_what_cannot_be_read_is_refused_before_memory_is_asked_for(data: bytes, reason: str) -> None:
    reader = Reader(max_frame=10_000)
    reader.feed(data + bytes(100), random.Random(0))
    assert reason in str(reader.error)
    assert reader._large is None


# The terms' digest, which no limit is about; the CRC; the body as far as the front has it, and behind that.
PLACES = [40, 47, 68, HEADER_SIZE, FRONT // 2, FRONT - 1, FRONT, FRONT + 1, 2 * FRONT, -1]


@given(
    size=st.sampled_from([10, FRONT // 4 + 40, FRONT]),
    place=st.sampled_from(PLACES),
    bit=st.integers(0, 7),
    seed=st.integers(0, 2**32),
    held=st.booleans(),
)
def test_a_damaged_frame_is_refused(size: int, place: int, bit: int, seed: int, held: bool) -> None:
    async def main() -> None:
        data, rng = bytearray(_frame(size, 1)), random.Random(seed)
        data[min(place, len(data) - 1)] ^= 1 << bit
        reader = Reader(room=lambda _: not held)
        rest = reader.feed(bytes(data) + _frame(10, 2), rng)
        if held:
            reader.read_on()
            await asyncio.sleep(0)
            reader.feed(rest, rng)
        assert "CRC" in str(reader.error)
        assert reader.got == []

    asyncio.run(main())


def test_unexpected_errors_are_refusals(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader()
    monkeypatch.setattr(reader, "control_received", lambda _: 1 / 0)
    reader.feed(control.to_bytes(control.Ask(1)) * 2, random.Random(0))
    assert "cannot be handled" in str(reader.error)
    assert "ZeroDivisionError" in caplog.text


def test_what_is_sent_waits_while_the_other_end_is_slow() -> None:
    writer = Reader()
    writer.pause_writing()
    writer.send(b"a" * (3 * SLICE), memoryview(b"b"))
    assert (writer.queued, len(writer.wire.written)) == (3 * SLICE + 1, 0)
    writer.resume_writing()
    assert (writer.queued, writer.bytes_out) == (0, 3 * SLICE + 1)
    assert bytes(writer.wire.written) == b"a" * (3 * SLICE) + b"b"
    writer.pause_writing()
    writer.send(b"x")
    writer.connection_lost(None)
    writer.send(b"y")
    assert writer.queued == 0

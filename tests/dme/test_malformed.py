"""One test per kind of malformed message: each is rejected, with little memory."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from sumwire import FrameError, InputError, MismatchError
from sumwire.dme import Correlated, Drive, Eden, MeanScheme, Rotated, Sampled, StochasticLevels, VariableLength
from sumwire.kernels import hashing
from tests.dme import RANGED, SCHEMES, every_scheme, vector

# Damaged in transit


@every_scheme
def test_a_flipped_bit_is_noticed_anywhere(scheme: MeanScheme) -> None:
    message = scheme.encode(vector("gaussian", 21), rank=200, round_id=300)
    for at in range(len(message)):
        bad = bytearray(message)
        bad[at] ^= 1 << at % 8
        with pytest.raises(FrameError, match="checksum"):
            scheme.decode(bad)


@every_scheme
def test_cut_off_or_too_long(scheme: MeanScheme) -> None:
    message = scheme.encode(vector("gaussian", 21))
    for length in range(len(message)):
        with pytest.raises(FrameError):
            scheme.decode(message[:length])
    for more in (b"\0", b"\0" * 4, message):
        with pytest.raises(FrameError):
            scheme.decode(message + more)


def test_a_message_of_another_scheme() -> None:
    x = vector("gaussian", 30)
    schemes = [*SCHEMES, StochasticLevels(16, seed=1), Eden(3, block=128, seed=10), Sampled(Rotated(4, seed=1), 0.999)]
    for mine in schemes:
        for other in schemes:
            if mine != other:
                with pytest.raises(MismatchError, match="same scheme and options"):
                    other.decode(mine.encode(x))


@every_scheme
def test_any_bytes_like_object_is_read(scheme: MeanScheme) -> None:
    x = vector("gaussian", 30)
    message = scheme.encode(x)
    assert type(message) is bytes
    expected = scheme.decode(message)
    padded = b"12345" + message
    for data in (bytearray(message), memoryview(message), memoryview(padded)[5:]):  # at any address
        assert np.array_equal(scheme.decode(data), expected)
    expected[:] = 0  # the result belongs to the caller
    for other in ("text", None, np.frombuffer(message, np.uint8), [1, 2]):
        with pytest.raises(InputError, match="decode takes bytes"):
            scheme.decode(other)


# Forged with a valid checksum; built from docs/dme.md, not with message.py


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def crc32c(data: bytes) -> int:
    return hashing.crc32c(np.frombuffer(data, np.uint8))


def seal(front: bytes) -> bytes:
    return front + struct.pack("<I", crc32c(front))


def forge(
    scheme: MeanScheme,
    shape: tuple[int, ...],
    body: bytes,
    *,
    flags: int = 0,
    round_id: int = 0,
    rank: int = 0,
    numbers: bytes | None = None,
) -> bytes:
    head = struct.pack("<IB", crc32c(repr(scheme).encode()), flags)
    if numbers is None:
        numbers = b"".join(varint(value) for value in (len(shape), *shape, round_id, rank))
    return seal(head + numbers + body)


def body_of(scheme: MeanScheme, message: bytes, shape: tuple[int, ...]) -> bytes:
    """The bytes between the header (for rank and round below 128) and the checksum."""
    return message[5 + len(varint(len(shape))) + sum(len(varint(n)) for n in shape) + 2 : -4]


def refused(scheme: MeanScheme, message: bytes, words: str) -> None:
    """Rejected with little memory: no length is trusted before it is checked."""
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match=words):
            scheme.decode(message)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@every_scheme
def test_forged_messages_are_fine_when_nothing_is_wrong(scheme: MeanScheme) -> None:
    for shape in ((40,), (5, 8), (), (0,)):
        x = vector("gaussian", int(np.prod(shape, dtype=int)) or 1)[: int(np.prod(shape, dtype=int))].reshape(shape)
        message = scheme.encode(x, rank=100, round_id=99)
        assert forge(scheme, shape, body_of(scheme, message, shape), rank=100, round_id=99) == message


@every_scheme
@pytest.mark.parametrize("flags", [2, 3, 128, 255])
def test_unknown_flags(scheme: MeanScheme, flags: int) -> None:
    body = body_of(scheme, scheme.encode(vector("gaussian", 9)), (9,))
    refused(scheme, forge(scheme, (9,), body, flags=flags), f"flags 0x{flags:02x}")


@every_scheme
def test_too_many_dimensions(scheme: MeanScheme) -> None:
    refused(scheme, forge(scheme, (1,) * 33, b""), "dimensions 33 is over the limit of 32")
    refused(scheme, forge(scheme, (), b"", numbers=varint(2**63)), "dimensions")
    body = body_of(scheme, scheme.encode(vector("gaussian", 1)), (1,))
    with pytest.raises(FrameError, match="limit"):
        scheme.decode(forge(scheme, (1,) * 33, body))


@every_scheme
def test_lengths_over_the_limit(scheme: MeanScheme) -> None:
    refused(scheme, forge(scheme, (2**32 + 1,), b""), "length 4294967297 is over the limit")
    refused(scheme, forge(scheme, (2**16, 2**17), b""), "has over 2147483648 coordinates")
    refused(scheme, forge(scheme, (2**31,) * 32, b""), "has over 2147483648 coordinates")


@every_scheme
def test_empty_shapes_that_numpy_does_not_have(scheme: MeanScheme) -> None:
    refused(scheme, forge(scheme, (2**31, 2**31, 0), b""), "shape")


@every_scheme
def test_round_and_rank_over_the_limit(scheme: MeanScheme) -> None:
    refused(scheme, forge(scheme, (1,), b"", round_id=2**64), "round")
    refused(scheme, forge(scheme, (1,), b"", rank=2**32), "rank 4294967296 is over the limit")


@every_scheme
def test_a_varint_that_does_not_end(scheme: MeanScheme) -> None:
    for numbers in (b"\x80" * 11 + b"\1", b"\xff" * 40, b"\1" + b"\x80" * 11 + b"\0"):
        refused(scheme, forge(scheme, (), b"", numbers=numbers), "longer than 64 bits")
    for numbers in (b"", b"\x80", b"\1", b"\1\5", b"\1\5\0", b"\1\5\0\x80", b"\4\1"):
        refused(scheme, forge(scheme, (), b"", numbers=numbers), "ends within its")


@every_scheme
def test_a_body_that_is_too_short_or_too_long(scheme: MeanScheme) -> None:
    body = body_of(scheme, scheme.encode(vector("gaussian", 200)), (200,))
    words = "were expected|whole words|damaged|bytes behind"
    for cut in (1, 4, 8, len(body) - 1, len(body)):
        refused(scheme, forge(scheme, (200,), body[:-cut]), words)
    refused(scheme, forge(scheme, (200,), body + b"\0"), words)
    refused(scheme, forge(scheme, (200,), body + b"\0" * 8), words)
    refused(scheme, forge(scheme, (0,), body), "an empty vector has no body")


FIXED_LENGTH = [scheme for scheme in SCHEMES if not isinstance(scheme, VariableLength)]


@pytest.mark.parametrize(
    "scheme", [scheme for scheme in FIXED_LENGTH if getattr(scheme, "block", 4096) == 4096], ids=repr
)
@pytest.mark.parametrize("shape", [(2**31,), (2**15, 2**16), (10**9,)])
def test_a_huge_shape_with_a_small_body(scheme: MeanScheme, shape: tuple[int, ...]) -> None:
    body = body_of(scheme, scheme.encode(vector("gaussian", 64)), (64,))
    refused(scheme, forge(scheme, shape, body), "were expected")


@pytest.mark.parametrize("scheme", [Rotated(4, block=64), Eden(2, block=64)], ids=repr)
def test_a_huge_shape_in_small_blocks(scheme: MeanScheme) -> None:
    refused(scheme, forge(scheme, (2 * 10**8,), b"1234"), "were expected")


@pytest.mark.parametrize("scheme", RANGED, ids=repr)
@pytest.mark.parametrize(
    "ends",
    [(np.nan, 1), (0, np.nan), (-np.inf, 0), (0, np.inf), (1, 0), (0, 3e38), (-3e38, 0), (0.0, -1e-45)],
    ids=str,
)
def test_ranges_that_no_encoder_sends(scheme: StochasticLevels, ends: tuple[float, float]) -> None:
    body = body_of(scheme, scheme.encode(vector("gaussian", 30)), (30,))
    refused(scheme, forge(scheme, (30,), floats(*ends) + body[8:]), "has a range outside")


@pytest.mark.parametrize("ends", [(np.nan, 1), (0, np.nan), (0, np.inf), (1, 0), (0, 3e38)], ids=str)
def test_ranges_of_any_block(ends: tuple[float, float]) -> None:
    scheme = Rotated(5, block=64)
    body = body_of(scheme, scheme.encode(vector("gaussian", 200)), (200,))
    for block in range(4):  # 64, 64, 64, 8
        bad = body[: 8 * block] + floats(*ends) + body[8 * block + 8 :]
        refused(scheme, forge(scheme, (200,), bad), "has a range outside")


@pytest.mark.parametrize("ends", [(np.nan, 1), (0, np.nan), (0, np.inf), (0, -1), (0, 3e38), (2e38, 1e38)], ids=str)
@pytest.mark.parametrize("scheme", [VariableLength(), VariableLength(16)], ids=repr)
def test_ranges_of_variable_length(scheme: MeanScheme, ends: tuple[float, float]) -> None:
    body = body_of(scheme, scheme.encode(vector("gaussian", 30)), (30,))
    refused(scheme, forge(scheme, (30,), floats(*ends) + body[8:]), "has a range outside")


@pytest.mark.parametrize("ends", [(3e38, 3e38), (np.inf, -np.inf)], ids=str)
def test_ranges_of_variable_length_that_overflow(ends: tuple[float, float]) -> None:
    scheme = VariableLength()
    body = body_of(scheme, scheme.encode(vector("gaussian", 30)), (30,))
    refused(scheme, forge(scheme, (30,), floats(*ends) + body[8:]), "has a range outside")


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, -1e-30, 3e38])
@pytest.mark.parametrize("scheme", [Drive(), Eden(3, block=128, seed=9)], ids=repr)
def test_scales_that_no_encoder_sends(scheme: MeanScheme, scale: float) -> None:
    body = body_of(scheme, scheme.encode(vector("gaussian", 192)), (192,))
    for block in range(2):  # 128, 64
        bad = body[: 4 * block] + floats(scale) + body[4 * block + 4 :]
        refused(scheme, forge(scheme, (192,), bad), "has a scale that is negative or too large")


@pytest.mark.parametrize("scheme", [Rotated(4), Eden(2)], ids=repr)
def test_whatever_is_not_refused_decodes_to_finite_values(scheme: MeanScheme) -> None:
    front = floats(-(2.0**96), 2.0**96) if isinstance(scheme, Rotated) else floats(2.0**96)
    message = forge(scheme, (4096,), front + b"\xff" * 1024)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            y = scheme.decode(message)
    except FrameError:
        return
    assert np.isfinite(y).all()


@pytest.mark.parametrize("scheme", [StochasticLevels(3), Rotated(3), Correlated(3), Sampled(Rotated(3), 1.0)], ids=repr)
def test_a_level_that_is_not_there(scheme: MeanScheme) -> None:
    """Indices into three levels have 2 bits, which can encode a fourth: at any position, in any tile."""
    for d, places in ((1, (0,)), (30, (0, 13, 29)), (70_000, (69_999,))):
        shape = (d,)
        body = body_of(scheme, scheme.encode(vector("gaussian", d)), shape)
        packed = len(body) - -(-d // 4)
        for at in places:
            bad = bytearray(body)
            bad[packed + at // 4] |= 3 << 2 * (at % 4)
            refused(scheme, forge(scheme, shape, bytes(bad)), "has an index 3, but there are only 3 levels")


@pytest.mark.parametrize("scheme", [VariableLength(), VariableLength(200)], ids=repr)
def test_damaged_symbols(scheme: MeanScheme) -> None:
    """Either rejected, or decoded to other levels within the range."""
    x = vector("gaussian", 100)
    body = body_of(scheme, scheme.encode(x), (100,))
    low, span = struct.unpack("<2f", body[:8])
    seen = set()
    for at in range(8, len(body)):
        bad = bytearray(body)
        bad[at] ^= 0x55
        try:
            y = scheme.decode(forge(scheme, (100,), bytes(bad)))
        except FrameError:
            seen.add("refused")
        else:
            seen.add("read")
            assert low <= y.min()
            assert y.max() <= low + span * (1 + 1e-6)
    assert "read" in seen


def test_who_takes_part_is_not_the_senders_choice() -> None:
    """A body from a client that was not sampled, and none from one that was."""
    scheme = Sampled(StochasticLevels(4), 0.5)
    drawn = next(rank for rank in range(99) if scheme.takes_part(rank=rank))
    other = next(rank for rank in range(99) if not scheme.takes_part(rank=rank))
    body = body_of(scheme, scheme.encode(vector("gaussian", 40), rank=drawn), (40,))
    assert body
    refused(scheme, forge(scheme, (40,), body, rank=other), "0 were expected")
    refused(scheme, forge(scheme, (40,), b"", rank=drawn), "the body has 0 bytes")
    assert not scheme.decode(forge(scheme, (40,), b"", rank=other)).any()


@every_scheme
def test_a_receiver_sets_its_own_limit(scheme: MeanScheme) -> None:
    message = scheme.encode(vector("gaussian", 100), rank=1)
    assert scheme.decode(message, max_size=100).shape == (100,)
    with pytest.raises(FrameError, match="over 99 coordinates"):
        scheme.decode(message, max_size=99)


def test_a_varint_that_is_longer_than_it_must_be() -> None:
    scheme = StochasticLevels(4)
    message = bytearray(scheme.encode(np.ones(3, np.float32)))
    assert message[6] == 3
    message[6:7] = b"\x83\x00"
    message[-4:] = crc32c(np.frombuffer(message[:-4], np.uint8)).to_bytes(4, "little")
    refused(scheme, bytes(message), "more bytes than needed")


def test_strided_memory_is_refused() -> None:
    data = Drive().encode(np.ones(64, np.float32))
    with pytest.raises(InputError, match="strided"):
        Drive().decode(memoryview(data + data)[::2])

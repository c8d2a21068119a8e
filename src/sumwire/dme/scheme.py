"""What every scheme is: one vector to bytes and back, without a word to the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.base import MAX_ROUND, whole_number
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.options import refuse_non_finite
from sumwire.codec.lattice.rotation import stream_key
from sumwire.codec.tensors import Tensor, flatten
from sumwire.dme.message import LIFTED, MAX_DIMENSIONS, MAX_RANK, MAX_SIZE, Body, Message, overhead, to_bytes
from sumwire.errors import ConfigError, FrameError, RangeError
from sumwire.kernels import lattice as kernels
from sumwire.kernels import scalar as level_kernels
from sumwire.kernels.arrays import to_float32
from sumwire.kernels.checksum import crc32c

Vector = NDArray[np.float32]
Array = NDArray[Any]

MAX_LEVELS = 1 << 16
LARGEST = 2.0**90
"""Magnitude of a coordinate: beyond it, a rotation of the largest block could overflow float32."""

_SMALL = 2.0**-64
_LIFT = np.float32(2.0**64)
_DROP = np.float32(2.0**-64)

_NOISE, _SIGN, _CHANCE, _ORDER = range(101, 105)  # streams of random numbers, none of them the Lattice's


@dataclass(frozen=True)
class Draw:
    """Whence a vector's random numbers come."""

    seed: int
    round_id: int
    rank: int

    @property
    def noise(self) -> int:
        """The client's own."""
        return stream_key(self.seed, self.round_id, _NOISE, self.rank)

    @property
    def own_signs(self) -> int:
        return stream_key(self.seed, self.round_id, _SIGN, self.rank + 1)

    @property
    def shared_signs(self) -> int:
        """The same for all clients of a round."""
        return stream_key(self.seed, self.round_id, _SIGN)

    @property
    def chance(self) -> int:
        """One number in 0..2**32-1 per client and round."""
        return stream_key(self.seed, self.round_id, _CHANCE, self.rank)

    def order(self, rank: int) -> int:
        """What another client of the round draws, to be compared with one's own."""
        return stream_key(self.seed, self.round_id, _ORDER, rank)


@dataclass(frozen=True)
class Facts:
    """A vector's range and energy."""

    low: float
    high: float
    energy: float


@dataclass(frozen=True)
class MeanScheme(ABC):
    """A way to send one vector in few bits: `encode` at the client, `decode` wherever the mean is made.

    Unlike a `Codec` it agrees on nothing first, and what it sends cannot be added: every message has to be
    decoded. Where a range that all share makes the scheme addable, `lattice` gives that codec.
    """

    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self._whole("seed", 0, (1 << 64) - 1)

    def _whole(self, name: str, low: int, high: int) -> None:
        """Keep an option as a plain int within its limits: both sides compare how options are written."""
        value = whole_number(name, getattr(self, name))
        if not low <= value <= high:
            raise ConfigError(f"{name}={value} is not in {low}..{high}")
        object.__setattr__(self, name, value)

    def encode(self, x: Tensor, *, rank: int = 0, round_id: int = 0) -> bytes:
        """The vector's message: any float dtype, shape and size. NaN, Inf or values over 2**90 are refused.

        Clients need ranks of their own, and rounds ids of their own, or their errors repeat.
        """
        draw = self._draw(rank, round_id)
        flat, shape = flatten(x)
        if len(shape) > MAX_DIMENSIONS or flat.size > MAX_SIZE:
            raise ConfigError(f"shape {shape} has over {MAX_DIMENSIONS} dimensions or 2**31 values: encode parts of it")
        values = to_float32(flat)
        facts = _survey(flat, values)
        lifted = 0 < max(-facts.low, facts.high) < _SMALL
        if lifted:
            values = values * _LIFT
            facts = Facts(facts.low * 2.0**64, facts.high * 2.0**64, facts.energy * 2.0**128)
        body = self._encode(values, facts, draw) if values.size else []
        return to_bytes(shape, draw.round_id, draw.rank, LIFTED * lifted, body, self._fingerprint)

    def decode(self, data: bytes | bytearray | memoryview, *, max_size: int = MAX_SIZE) -> Vector:
        """The estimate of the vector, float32, in its shape.

        Raises `FrameError` for damaged bytes and `MismatchError` for those of another scheme. Few bytes can stand for
        a large vector: a receiver that knows its vectors gives their size as `max_size`.
        """
        message = Message.parse(data, self._fingerprint, self, max_size)
        size = int(np.prod(message.shape, dtype=np.int64))
        if size:
            draw = Draw(self.seed, message.round_id, message.rank)
            values = self._decode(message.body, size, draw)
        elif message.body:
            raise FrameError(f"an empty vector has no body, this one has {len(message.body)} bytes")
        else:
            values = np.empty(0, np.float32)
        if message.flags & LIFTED:
            values = values * _DROP
        return values.reshape(message.shape)

    def _draw(self, rank: int, round_id: int) -> Draw:
        rank, round_id = whole_number("rank", rank), whole_number("round_id", round_id)
        if not 0 <= rank <= MAX_RANK or not 0 <= round_id <= MAX_ROUND:
            raise ConfigError(f"rank {rank} is not in 0..2**32-1 or round_id {round_id} not in 0..2**64-1")
        return Draw(self.seed, round_id, rank)

    def bits(self, d: int) -> float:
        """Bits of the message of a vector of d coordinates, all told, with rank and round below 128."""
        size = _dimension(d)
        return 8.0 * overhead(size) + (self._body_bits(size) if size else 0.0)

    def bound(self, d: int, n: int) -> float | None:
        """The published bound: the mean of n vectors has a squared error of at most this times the mean of
        their squared norms. None if none is known."""
        if whole_number("n", n) < 1:
            raise ConfigError(f"n={n} clients: there must be at least one")
        size = _dimension(d)
        factor = self._factor(size, n) if size else 0.0
        return None if factor is None else factor / n

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """The same scheme with a range that all workers share: a codec, whose payloads add."""
        raise ConfigError(f"{self!r} has no form that adds: only evenly spaced levels on a shared range do")

    @cached_property
    def _fingerprint(self) -> int:
        return crc32c(np.frombuffer(repr(self).encode(), np.uint8))

    @abstractmethod
    def _encode(self, x: Vector, facts: Facts, draw: Draw) -> list[Array]:
        """What to send of a vector that is not empty, in pieces."""

    @abstractmethod
    def _decode(self, body: Body, size: int, draw: Draw) -> Vector:
        """The vector of those pieces, joined."""

    @abstractmethod
    def _body_bits(self, size: int) -> float:
        """How long they are."""

    @abstractmethod
    def _factor(self, size: int, n: int) -> float | None:
        """n times the bound."""


def need_bytes(body: Body, expected: int) -> None:
    """Refuse a body that is not as long as the scheme says, before anything is made of it."""
    if len(body) != expected:
        raise FrameError(f"the body has {len(body)} bytes, {expected} were expected: the message is not what it says")


def _dimension(d: int) -> int:
    size = whole_number("d", d)
    if not 0 <= size <= MAX_SIZE:
        raise ConfigError(f"d={d} is not in 0..2**31")
    return size


def _survey(flat: NDArray[np.generic], values: Vector) -> Facts:
    """Range and energy of a vector that can be encoded; `flat` is as it was given, for what is said of it."""
    if not values.size:
        return Facts(0.0, 0.0, 0.0)
    blocks = len(kernels.block_sizes(values.size, level_kernels.LOG_TILE))
    low, high, energy = np.empty(blocks, np.float32), np.empty(blocks, np.float32), np.empty(blocks)

    def work(tile: level_kernels.Tile, *_: object) -> None:
        here = tile.blocks
        level_kernels.summarize(values[tile.coordinates], level_kernels.LOG_TILE, low[here], high[here], energy[here])

    level_kernels.run(work, values.size, level_kernels.LOG_TILE)
    total = float(energy.sum())
    if not np.isfinite(total):
        refuse_non_finite(flat)
    peak = max(-float(low.min()), float(high.max()))
    if peak > LARGEST:
        raise RangeError(f"the largest magnitude is {peak:.3g}; the limit is 2**90: scale the vector down")
    return Facts(float(low.min()), float(high.max()), total)

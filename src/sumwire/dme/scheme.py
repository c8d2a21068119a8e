"""The base of all schemes: one vector to bytes and back, without coordination between clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_ROUND
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.options import whole_number
from sumwire.codec.tensors import Tensor, flatten
from sumwire.dme.message import MAX_DIMENSIONS, MAX_RANK, MAX_SIZE, SCALED, Body, Message, overhead, to_bytes
from sumwire.dme.vector import StreamKeys, Vector, VectorStats, statistics
from sumwire.errors import ConfigError, FrameError
from sumwire.kernels.arrays import to_float32
from sumwire.kernels.hashing import crc32c

BodyPart = NDArray[np.float32] | NDArray[np.uint8]

MAX_LEVELS = 1 << 16

_SMALL = 2.0**-64
_SCALE_UP = np.float32(2.0**64)
_SCALE_DOWN = np.float32(2.0**-64)


@dataclass(frozen=True)
class MeanScheme(ABC):
    """Base of the schemes: `encode` one vector at the client, `decode` it wherever the mean is computed.

    Unlike a `Codec`, a scheme needs no agreement first, and its messages cannot be added: every message has to be
    decoded. Where a range shared by all clients makes the scheme addable, `lattice` returns that codec.

    Parameters
    ----------
    seed : int
        Seed of all random numbers; the same for all clients and for the decoder.
    """

    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self._check_integer("seed", 0, (1 << 64) - 1)

    def _check_integer(self, name: str, low: int, high: int) -> None:
        """Store an option as a plain int within its limits; the fingerprint depends on its repr."""
        object.__setattr__(self, name, whole_number(name, getattr(self, name), low, high))

    def encode(self, x: Tensor, *, rank: int = 0, round_id: int = 0) -> bytes:
        """Encode a vector as a message.

        Parameters
        ----------
        x : array or tensor
            Any float dtype and shape; at most 2**31 coordinates.
        rank : int
            Number of the client. Clients of equal rank repeat each other's errors.
        round_id : int
            Number of the round. Rounds of equal id repeat each other's errors.

        Returns
        -------
        bytes
            The message; `bits` gives its size.

        Raises
        ------
        ConfigError
            If `rank`, `round_id` or the shape is out of range.
        InputError
            If the dtype or the device of `x` is not supported.
        NonFiniteError
            If `x` holds NaN or Inf.
        RangeError
            If a magnitude exceeds 2**90.

        Examples
        --------
        >>> from sumwire.dme import Rotated
        >>> len(Rotated(16).encode(np.ones(1000, np.float32), rank=3, round_id=7))
        562
        """
        keys = self._keys(rank, round_id)
        flat, shape = flatten(x)
        if len(shape) > MAX_DIMENSIONS or flat.size > MAX_SIZE:
            raise ConfigError(
                f"shape {shape} has {len(shape)} dimensions and {flat.size} values; the limits are {MAX_DIMENSIONS} "
                "and 2**31: flatten it, x.reshape(-1), or encode it in parts"
            )
        values = to_float32(flat)
        stats = statistics(flat, values)
        scaled = 0 < max(-stats.low, stats.high) < _SMALL
        if scaled:
            values = values * _SCALE_UP
            stats = VectorStats(stats.low * 2.0**64, stats.high * 2.0**64, stats.energy * 2.0**128)
        body = self._encode(values, stats, keys) if values.size else []
        return to_bytes(shape, keys.round_id, keys.rank, SCALED * scaled, body, self._fingerprint)

    def decode(self, data: bytes | bytearray | memoryview, *, max_size: int = MAX_SIZE) -> Vector:
        """Decode a message to an estimate of its vector.

        Parameters
        ----------
        data : bytes, bytearray or memoryview
            A message of `encode`; it carries its rank and round.
        max_size : int
            Maximum number of coordinates to accept. A few bytes can stand for a large vector, so a receiver that
            knows the size of its vectors should pass it.

        Returns
        -------
        ndarray
            The estimate, float32, in the shape of the vector.

        Raises
        ------
        FrameError
            If the message is damaged, malformed or larger than `max_size`.
        InputError
            If `data` is not contiguous bytes.
        MismatchError
            If the message was encoded by another scheme or with other options.

        Examples
        --------
        >>> from sumwire.dme import StochasticLevels
        >>> scheme = StochasticLevels(3)
        >>> scheme.decode(scheme.encode(np.array([0, 1, 2], np.float32)))
        array([0., 1., 2.], dtype=float32)
        """
        message = Message.parse(data, self._fingerprint, self, max_size)
        size = int(np.prod(message.shape, dtype=np.int64))
        if size:
            keys = StreamKeys(self.seed, message.round_id, message.rank)
            values = self._decode(message.body, size, keys)
        elif message.body:
            raise FrameError(f"an empty vector has no body, but this message has one of {len(message.body)} bytes")
        else:
            values = np.empty(0, np.float32)
        if message.flags & SCALED:
            values = values * _SCALE_DOWN
        return values.reshape(message.shape)

    def _keys(self, rank: int, round_id: int) -> StreamKeys:
        return StreamKeys(
            self.seed, whole_number("round_id", round_id, 0, MAX_ROUND), whole_number("rank", rank, 0, MAX_RANK)
        )

    def bits(self, d: int) -> float:
        """Size of the message of a vector of `d` coordinates.

        Parameters
        ----------
        d : int
            Number of coordinates.

        Returns
        -------
        float
            Bits of the whole message, for a rank and a round below 128; an upper bound for `VariableLength`, and
            an average for `Sampled`.

        Raises
        ------
        ConfigError
            If `d` is not in 0..2**31.

        Examples
        --------
        >>> from sumwire.dme import Rotated
        >>> Rotated(16).bits(1024)
        4272.0
        """
        size = _dimension(d)
        return 8.0 * overhead(size) + (self._body_bits(size) if size else 0.0)

    def bound(self, d: int, n: int) -> float | None:
        """The published bound on the expected squared error of the mean of `n` vectors.

        Parameters
        ----------
        d : int
            Number of coordinates.
        n : int
            Number of clients.

        Returns
        -------
        float or None
            The bound as a multiple of the mean squared norm of the vectors; None if no bound is known.

        Raises
        ------
        ConfigError
            If `d` is not in 0..2**31, or `n` is less than 1.

        Examples
        --------
        >>> from sumwire.dme import Drive, StochasticBinary
        >>> StochasticBinary().bound(1024, 10), Drive().bound(1024, 10)
        (51.2, None)
        """
        if whole_number("n", n) < 1:
            raise ConfigError(f"n={n} clients are too few: there must be at least 1")
        size = _dimension(d)
        factor = self._factor(size, n) if size else 0.0
        return None if factor is None else factor / n

    def lattice(self, workers: int, **options: Any) -> Lattice:
        """The scheme on a range that all workers share: a codec whose payloads can be added.

        Parameters
        ----------
        workers : int
            Number of workers.
        **options
            Options of `Lattice` to override.

        Returns
        -------
        Lattice
            The codec.

        Raises
        ------
        ConfigError
            If the scheme has no such form.

        Examples
        --------
        >>> from sumwire.dme import Rotated
        >>> Rotated(16).lattice(workers=4).bits
        4
        """
        raise ConfigError(f"{self!r} has no addable form: only evenly spaced levels on a shared range have one")

    @cached_property
    def _fingerprint(self) -> int:
        return crc32c(np.frombuffer(repr(self).encode(), np.uint8))

    @abstractmethod
    def _encode(self, x: Vector, stats: VectorStats, keys: StreamKeys) -> list[BodyPart]:
        """The body of the message of a non-empty vector, in parts."""

    @abstractmethod
    def _decode(self, body: Body, size: int, keys: StreamKeys) -> Vector:
        """The vector of a body."""

    @abstractmethod
    def _body_bits(self, size: int) -> float:
        """Size of the body in bits."""

    @abstractmethod
    def _factor(self, size: int, n: int) -> float | None:
        """The bound times `n`."""


def _dimension(d: int) -> int:
    return whole_number("d", d, 0, MAX_SIZE)

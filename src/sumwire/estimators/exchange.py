"""The sum over partitions of one vector each, sent by a mean scheme, by a codec, or uncompressed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sparse.codec import Sparse
from sumwire.dme import Eden, MeanScheme
from sumwire.errors import ConfigError
from sumwire.estimators.partitions import Partitions, Spread
from sumwire.estimators.tiles import Floats
from sumwire.wire.frame import parse, to_bytes

AnyCodec: TypeAlias = Lattice | Sparse | Sketch
Scheme: TypeAlias = MeanScheme | AnyCodec | None
SchemeOption: TypeAlias = Scheme | Literal["auto"]


def resolve(scheme: object, partitions: int) -> Scheme:
    """The scheme that an estimator's option `scheme` denotes, checked against the number of partitions.

    >>> resolve("auto", 8) == Eden(4)
    True
    """
    if scheme is None or isinstance(scheme, MeanScheme):
        return scheme
    if isinstance(scheme, str) and scheme == "auto":
        return Eden(4)
    if not isinstance(scheme, AnyCodec):
        raise ConfigError(f'scheme={scheme!r} is not a scheme of sumwire.dme, a codec, "auto" or None')
    if scheme.workers < partitions:
        raise ConfigError(
            f"scheme={scheme!r} was built for {scheme.workers} workers, but there are {partitions} partitions: "
            f"build it with workers={partitions}, or use fewer partitions"
        )
    return scheme


@dataclass(frozen=True)
class Share:
    """What a partition contributes to a round; it stays on the partition until it is sent."""

    exact: Floats
    """A few numbers that are sent uncompressed."""
    vector: Floats
    """The vector that is sent by the scheme."""


class Exchange:
    """Sums the shares of partitions, round by round.

    Law: `total` estimates the sum without bias if the scheme is unbiased, and is exact with None. Bits: those of the
    scheme per coordinate and partition; 64 with None. Round ids count up from `first_round`, so that no two rounds
    share their noise.

    >>> from sumwire.estimators.partitions import split
    >>> with split(np.arange(8.0).reshape(4, 2), 2, client=None) as partitions:
    ...     exchange = Exchange(partitions, None, first_round=0)
    ...     shares = partitions.run(lambda rank, rows: Share(rows.max(axis=0), rows.sum(axis=0)), partitions.rows)
    ...     exchange.exact(shares), exchange.total(shares, np.ones(2)), exchange.bits_per_value
    (array([ 8., 10.]), array([12., 16.]), 64.0)
    """

    def __init__(self, partitions: Partitions, scheme: object, *, first_round: int) -> None:
        self.scheme = resolve(scheme, len(partitions))
        self._partitions, self._round = partitions, first_round
        self._bits = self._values = 0

    @property
    def bits_per_value(self) -> float:
        """Bits per coordinate of a vector, averaged over all rounds so far."""
        return self._bits / self._values

    def exact(self, shares: Spread) -> Floats:
        """The sum of the exact numbers."""
        return add_up(self._send(_exact, shares))

    def total(self, shares: Spread, units: Floats) -> Floats:
        """The sum of the vectors; each coordinate is sent in its unit.

        Schemes make errors of the same size in every coordinate, so units should be proportional to the tolerable
        errors, and about as large as coordinates, because schemes compute in float32. Dividing by powers of two is
        exact.
        """
        before = self._partitions.bits
        total = self._estimate(shares, units) * units
        self._bits += self._partitions.bits - before
        self._values += len(self._partitions) * total.size
        self._round += 1
        return total

    def _estimate(self, shares: Spread, units: Floats) -> Floats:
        """The sum, in units."""
        if self.scheme is None:
            return add_up(self._send(_plain, shares, units)).reshape(units.shape)
        if isinstance(self.scheme, MeanScheme):
            sent = self._send(_encode, shares, units, self.scheme, self._round)
            return _in_order([self.scheme.decode(data, max_size=units.size) for data in sent])
        return len(self._partitions) * self._mean(self.scheme, shares, units).astype(np.float64)

    def _mean(self, codec: AnyCodec, shares: Spread, units: Floats) -> NDArray[np.float32]:
        """The four verbs of the codec, with frames between the partitions and this process."""
        proposals = self._send(_propose, shares, units, codec, self._round)
        terms: Any = reduce(or_, (parse(data).terms(codec, units.shape) for data in proposals))
        agreed = to_bytes(terms, round_id=self._round)
        payloads = self._send(_encode_payload, shares, units, codec, agreed, self._round)
        return codec.decode(codec.add(parse(data).payload(codec, terms) for data in payloads))

    def _send(self, function: Callable[..., bytes], *arguments: Any) -> list[bytes]:
        return self._partitions.fetch(self._partitions.run(function, *arguments))


def add_up(sent: list[bytes]) -> Floats:
    """The sum of the float64 arrays that partitions sent."""
    return _in_order([np.frombuffer(data) for data in sent])


def _in_order(arrays: list[NDArray[Any]]) -> Floats:
    """The sum in float64 and in rank order, so that it is reproducible."""
    total = np.zeros(arrays[0].shape)
    for array in arrays:
        total += array
    return total


def _in_units(share: Share, units: Floats) -> NDArray[np.float32]:
    return (share.vector / units).astype(np.float32)


# Functions that run on partitions; they return the bytes to send.


def _exact(rank: int, share: Share) -> bytes:
    return share.exact.tobytes()


def _plain(rank: int, share: Share, units: Floats) -> bytes:
    return (share.vector / units).tobytes()


def _encode(rank: int, share: Share, units: Floats, scheme: MeanScheme, round_id: int) -> bytes:
    return scheme.encode(_in_units(share, units), rank=rank, round_id=round_id)


def _propose(rank: int, share: Share, units: Floats, codec: AnyCodec, round_id: int) -> bytes:
    return to_bytes(codec.propose(_in_units(share, units)), round_id=round_id)


def _encode_payload(rank: int, share: Share, units: Floats, codec: AnyCodec, agreed: bytes, round_id: int) -> bytes:
    terms: Any = parse(agreed).terms(codec, share.vector.shape)
    return to_bytes(codec.encode(_in_units(share, units), terms, rank=rank, round_id=round_id))

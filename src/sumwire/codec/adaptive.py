"""Lossy or lossless, round by round: whichever is expected to be shorter, decided by all workers alike."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Addend, Bytes, DivideBy, Floats, Missing, Payload, Shape, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.tensors import Tensor, flatten
from sumwire.errors import ConfigError, InputError

STRETCH = 4096
"""Coordinates whose density is measured together: a tensor may hold an embedding and dense layers."""

MEASURED = 256
"""Stretches that are measured, evenly spaced: more would cost time and change little."""


@dataclass(frozen=True, eq=False)
class AdaptiveTerms(Terms):
    """A Lattice's terms, and what sending the tensor without loss would take at the worker that needs most."""

    codec: Adaptive
    lattice: Terms
    lossless_bits: float
    """Per coordinate, both ways together."""
    density: float
    """Share of coordinates that are not 0."""

    @property
    def _figures(self) -> NDArray[np.int32]:
        # Floats that are not negative order as integers do.
        return np.array([self.lossless_bits, self.density], np.float32).view(np.int32)

    def _with(self, figures: NDArray[Any], lattice: Terms) -> AdaptiveTerms:
        bits, density = figures.view(np.float32).tolist()
        return AdaptiveTerms(self.codec, self.shape, lattice, bits, density)

    @property
    def words(self) -> NDArray[Any]:
        return np.concatenate([self._figures, self.lattice.words])

    def with_words(self, words: NDArray[Any]) -> AdaptiveTerms:
        return self._with(words[:2], self.lattice.with_words(words[2:]))

    @property
    def bases(self) -> NDArray[np.int32] | None:
        inner = self.lattice.bases
        return None if inner is None else np.concatenate([self._figures, inner])

    def codes(self, bases: NDArray[np.int32]) -> Bytes:
        return self.lattice.codes(bases[2:])

    def with_codes(self, bases: NDArray[np.int32], codes: Bytes) -> AdaptiveTerms:
        return self._with(bases[:2], self.lattice.with_codes(bases[2:], codes))

    def join_codes(self, bases: NDArray[np.int32], codes: Bytes) -> AdaptiveTerms:
        return self._with(bases[:, :2].max(axis=0), self.lattice.join_codes(bases[:, 2:], codes))

    @property
    def encodable(self) -> bool:
        return self.chosen is self.codec.sparse or self.lattice.encodable

    @property
    def choice(self) -> str:
        return type(self.chosen).__name__

    @cached_property
    def chosen(self) -> Codec:
        """The codec that this round uses."""
        up, down, terms = self.codec.lattice.expected_bits(self.size)
        shorter = self.lossless_bits * self.size < up + down + 2 * terms
        return self.codec.sparse if shorter else self.codec.lattice

    @property
    def nbytes(self) -> int:
        return self._figures.nbytes + self.lattice.nbytes if self.encodable else 0

    @cached_property
    def digest(self) -> int:
        return int.from_bytes(hashlib.blake2b(self.words.tobytes(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Adaptive(Codec):
    """A `Lattice` for dense tensors, a `Sparse` for those that are mostly zeros.

    Law: that of whichever codec a round uses; all workers use the same, by the figures of the one that would send most.
    Cost: a look at 256 stretches of the tensor, and 8 bytes of terms.

    >>> codec = Adaptive(Lattice(2, 4), Sparse(2))
    >>> x = np.zeros(10_000, np.float32)
    >>> x[7] = 1
    >>> type(codec.encode(x, codec.propose(x), rank=0)).__name__
    'SparsePayload'
    """

    lattice: Lattice
    sparse: Sparse
    workers: int = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.lattice, Lattice) or not isinstance(self.sparse, Sparse):
            given = f"{type(self.lattice).__name__} and {type(self.sparse).__name__}"
            raise InputError(f"Adaptive takes a Lattice and a Sparse codec, not {given}: build them first")
        if self.lattice.feedback:
            raise ConfigError("a Lattice with feedback=True needs residuals, which Sparse cannot use: omit feedback")
        if self.lattice.workers != self.sparse.workers:
            raise ConfigError(
                f"the Lattice is built for {self.lattice.workers} workers, the Sparse codec for {self.sparse.workers}: "
                "build both for the same number"
            )
        object.__setattr__(self, "workers", self.lattice.workers)

    @property
    def family(self) -> str:
        return f"adaptive-{self.lattice.family}-{self.sparse.family}"

    @property
    def sum_form(self) -> str:
        return self.lattice.sum_form

    @property
    def headroom(self) -> int:
        return min(self.lattice.headroom, self.sparse.headroom)

    def propose(self, x: Tensor) -> AdaptiveTerms:
        flat, shape = flatten(x)
        densities = _densities(flat)
        bits = math.inf if flat.dtype == np.float64 else lossless_bits(self.workers, densities)
        return AdaptiveTerms(self, shape, self.lattice.propose(x), bits, float(densities.mean()))

    def refuse(self, shape: Shape) -> AdaptiveTerms:
        return AdaptiveTerms(self, shape, self.lattice.refuse(shape), 64.0, 1.0)

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        codec, inner = _inner(terms)
        return codec.payload_room(inner, itemsize)

    def encode(self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> Payload:
        codec, inner = _inner(terms)
        return codec.encode(x, inner, rank=rank, round_id=round_id, out=out)

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        return total.codec.decode(total, out=out, missing=missing, divide_by=divide_by)

    @property
    def alignment(self) -> int:
        return self.lattice.alignment

    def expected_bits(self, size: int) -> tuple[float, float, float]:
        return self.lattice.expected_bits(size)

    def for_owners(self, count: int) -> Codec:
        return Adaptive(self.lattice, self.sparse.for_owners(count))

    def for_plain_sums(self) -> Codec:
        return self.lattice.for_plain_sums()

    # Payloads and sums are those of the chosen codec, which answers for them.

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> Sum:
        codec: Codec = parts[0].codec
        return codec.add(parts, out=out)

    def add(self, parts: Any, *, out: Bytes | None = None) -> Sum:
        return self._add(list(parts), out)

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        codec, inner = _inner(terms)
        return codec.edges(inner, shards)

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> Addend:
        codec, inner = _inner(terms)
        return codec.read_payload(inner, data, rank=rank, round_id=round_id, lo=lo, hi=hi, kind=kind)

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> Sum:
        codec, inner = _inner(terms)
        return codec.read_sum(inner, parts, count=count, round_id=round_id)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        return self.lattice.parts(size, shard, shards)

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return self.lattice.coordinates(size, lo, hi)

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return self.lattice.memory(size, None, lo, hi)


def _inner(terms: Terms) -> tuple[Codec, Terms]:
    """The codec that the joined terms choose, and its own terms."""
    assert isinstance(terms, AdaptiveTerms)
    chosen = terms.chosen
    if chosen is terms.codec.sparse:
        return chosen, terms.codec.sparse.empty_terms(terms.shape)
    return chosen, terms.lattice


def _densities(flat: NDArray[np.generic]) -> NDArray[np.float64]:
    """Share of non-zeros in some stretches. What has no lossless sum in float32 counts as dense."""
    if flat.dtype == np.float64 or not flat.size:
        return np.ones(1)
    whole = flat[: flat.size // STRETCH * STRETCH].reshape(-1, STRETCH)
    if not len(whole):
        return np.array([np.count_nonzero(flat) / flat.size])
    some = whole[:: -(-len(whole) // MEASURED)]
    densities: NDArray[np.float64] = np.count_nonzero(some, axis=1) / STRETCH
    return densities


def lossless_bits(workers: int, densities: NDArray[np.float64]) -> float:
    """Bits per coordinate that entries and their places take, own ones up and a union of independent ones down.

    >>> round(lossless_bits(4, np.array([0.01])), 2), lossless_bits(4, np.array([1.0]))
    (1.91, 64.0)
    """
    union = 1 - (1 - densities) ** workers
    return float((_entry_bits(densities) + _entry_bits(union)).mean())


def _entry_bits(density: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bits per coordinate of values and their places; never more than sending all."""
    apart = 1 / np.maximum(density, 1e-12)
    bits: NDArray[np.float64] = np.minimum(32.0, density * (32 + np.minimum(np.log2(apart) + 1.6, apart)))
    return bits

"""The Sparse codec's Terms, Payload and Sum, and how a sum's entries are expanded into the dense tensor.

Floats do not add associatively, so an open sum keeps its payloads, in rank order whatever the order of `+`,
and is added up once: when it is decoded, or closed to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Addend, Bytes, Floats, Missing, Payload, Sum, Terms
from sumwire.codec.options import one_of, same_family
from sumwire.codec.sparse import segment
from sumwire.codec.tensors import beside, float32_view, is_on_device
from sumwire.errors import ConfigError, InputError, MismatchError, RoundError
from sumwire.kernels import sparse as kernels
from sumwire.kernels.arrays import Buffers, thread_buffers

if TYPE_CHECKING:
    from sumwire.codec.sparse.codec import Sparse

_NO_WORDS = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class SparseTerms(Terms):
    """Nothing: only that all tensors have this shape."""

    codec: Sparse

    @property
    def words(self) -> NDArray[Any]:
        return _NO_WORDS

    def with_words(self, words: NDArray[Any]) -> SparseTerms:
        return self

    @property
    def digest(self) -> int:
        return 0


class _Segmented(Addend):
    """Segments lo..hi of a tensor, one after the other in `data`."""

    codec: Sparse
    data: Bytes
    sizes: tuple[int, ...]
    lo: int
    hi: int

    @property
    def size(self) -> int:
        """Coordinates of the whole tensor."""
        return self.terms.size

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])

    def segment(self, shard: int) -> Bytes:
        """One shard's bytes."""
        return self.data[self._edges[shard - self.lo] : self._edges[shard - self.lo + 1]]

    def segments(self) -> Iterator[tuple[int, Bytes]]:
        """Each shard's number and bytes."""
        for shard in range(self.lo, self.hi):
            yield shard, self.segment(shard)

    def _slice(self, lo: int, hi: int) -> tuple[Bytes, tuple[int, ...]]:
        if not self.lo <= lo <= hi <= self.hi:
            raise ConfigError(f"shards {lo}..{hi} are not within {self.lo}..{self.hi}")
        first, last = lo - self.lo, hi - self.lo
        return self.data[self._edges[first] : self._edges[last]], self.sizes[first:last]


@dataclass(frozen=True, eq=False)
class SparsePayload(_Segmented, Payload):
    """One worker's entries in shards lo..hi."""

    codec: Sparse
    kind: int
    """Of its values: see `segment.KINDS`."""
    data: Bytes = field(repr=False)
    sizes: tuple[int, ...] = field(repr=False)
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def value_kind(self) -> int:
        return self.kind

    def part(self, lo: int, hi: int) -> SparsePayload:
        """The payload of shards lo..hi alone, without copying."""
        data, sizes = self._slice(lo, hi)
        return SparsePayload(self.codec, self.terms, self.round_id, self.rank, self.kind, data, sizes, lo, hi)

    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        return self.data, tuple(int(self._edges[b] - self._edges[a]) for a, b in pairwise(edges))


@dataclass(frozen=True, eq=False)
class SparseSum(_Segmented, Sum):
    """Payloads that wait to be added in rank order; or, closed, the result, which takes no more."""

    codec: Sparse
    parts: tuple[SparsePayload, ...] | None = field(repr=False)
    """None: closed."""
    data: Bytes = field(default_factory=lambda: np.empty(0, np.uint8), repr=False)
    sizes: tuple[int, ...] = field(default=(), repr=False)
    counts: tuple[int, ...] = field(default=(), repr=False)
    """Payloads in each of shards lo..hi."""
    lo: int = 0
    hi: int = 0

    @staticmethod
    def of(parts: Sequence[SparsePayload | SparseSum]) -> SparseSum:
        """Payloads and open sums as one open sum; nothing is added yet."""
        payloads: list[SparsePayload] = []
        for part in parts:
            if isinstance(part, SparseSum) and part.parts is None:
                if len(parts) == 1:
                    return part
                raise MismatchError(
                    "cannot add to a sum that its owner has closed: floats must be added in rank order, so add all "
                    "payloads before the sum is sent"
                )
            payloads += [part] if isinstance(part, SparsePayload) else part.parts or ()
        payloads.sort(key=lambda payload: (payload.rank, payload.lo, payload.hi))
        for one, next_one in pairwise(payloads):
            if one.rank == next_one.rank and next_one.lo < one.hi:
                raise MismatchError(f"cannot add: rank {one.rank} is in the sum already; a payload adds only once")
        codec = parts[0].codec
        edges = np.zeros(codec.shards + 1, np.int64)
        np.add.at(edges, [payload.lo for payload in payloads], 1)
        np.add.at(edges, [payload.hi for payload in payloads], -1)
        return SparseSum(codec, parts[0].terms, parts[0].round_id, int(np.cumsum(edges).max()), tuple(payloads))

    @property
    def nbytes(self) -> int:
        return self.closed().data.nbytes

    def packed(self, out: Bytes | None = None) -> Bytes:
        return self.closed().data

    def counts_of_all(self) -> NDArray[np.int64]:
        """Payloads in each shard of the tensor; 0 in those that this sum does not cover."""
        counts = np.zeros(self.codec.shards, np.int64)
        closed = self.closed()
        counts[closed.lo : closed.hi] = closed.counts
        return counts

    def closed(self) -> SparseSum:
        """This sum, added up in one pass over the entries. Cached."""
        return self if self.parts is None else self._closed

    @cached_property
    def _closed(self) -> SparseSum:
        parts = self.parts or ()
        lo, hi = min(p.lo for p in parts), max(p.hi for p in parts)
        bits, buffers = self.codec.deal(self.size).bits, Buffers()
        pieces, counts = [], []
        for shard in range(lo, hi):
            here = [(part.kind, part.segment(shard)) for part in parts if part.lo <= shard < part.hi]  # in rank order
            pieces.append(segment.add(here, bits[shard], buffers).copy())
            counts.append(len(here))
        sizes = tuple(len(piece) for piece in pieces)
        data = np.concatenate([np.empty(0, np.uint8), *pieces])
        return SparseSum(
            self.codec, self.terms, self.round_id, max(counts, default=0), None, data, sizes, tuple(counts), lo, hi
        )  # fmt: skip

    @staticmethod
    def side_by_side(parts: Sequence[SparseSum]) -> SparseSum:
        """Closed sums of shards that follow each other, as one."""
        ordered = sorted((part.closed() for part in parts), key=lambda part: part.lo)
        if any(a.hi != b.lo for a, b in pairwise(ordered)):
            raise ConfigError("sums side by side must follow each other without gaps or overlaps")
        first, counts = ordered[0], tuple(count for part in ordered for count in part.counts)
        return SparseSum(
            first.codec,
            first.terms,
            first.round_id,
            max(counts, default=first.count),
            None,
            np.concatenate([part.data for part in ordered]),
            tuple(size for part in ordered for size in part.sizes),
            counts,
            first.lo,
            ordered[-1].hi,
        )

    def part(self, lo: int, hi: int) -> SparseSum:
        """The sum of shards lo..hi alone; closes it."""
        whole = self.closed()
        data, sizes = whole._slice(lo, hi)
        counts = whole.counts[lo - whole.lo : hi - whole.lo]
        count = max(counts, default=whole.count)
        return SparseSum(self.codec, self.terms, self.round_id, count, None, data, sizes, counts, lo, hi)


def decode(
    codec: Sparse, total: Sum | Payload, out: Floats | None, missing: Missing, divisor: float | None
) -> NDArray[np.float32]:
    """The sum over the divisor; None: over each shard's count."""
    one_of("missing", missing, ("raise", "zero"))
    if not isinstance(total, SparseSum | SparsePayload):
        raise InputError(f"decode takes a payload or sum of a Sparse codec, not {type(total).__name__}")
    same_family(codec, total.codec, "decode")
    whole = (total if isinstance(total, SparseSum) else SparseSum.of([total])).closed()
    counts = whole.counts_of_all()
    lost = np.flatnonzero(counts == 0)
    if len(lost) and missing == "raise":
        raise RoundError(
            f"nothing arrived of {len(lost)} of {codec.shards} shards (the first is {lost[0]}): wait for more "
            'frames, or take them as zero with missing="zero"'
        )
    flat = np.zeros(whole.size, np.float32) if out is None else _lent(out, whole)
    shards, scratch = codec.deal(whole.size), thread_buffers()
    for shard, data in whole.segments():
        entries = segment.read(data, 0, shards.bits[shard], scratch)
        values = np.asarray(entries.values, np.float32)
        over = divisor or float(counts[shard])
        words = segment.words_beside(entries.words, flat)
        kernels.expand(words, beside(values, flat), shards.starts[shard], shards.block, flat, over)
    return flat.reshape(whole.shape)


def _lent(out: NDArray[np.float32], total: SparseSum) -> NDArray[np.float32]:
    """The caller's memory, with zeros where shards are missing."""
    flat = float32_view(out) if isinstance(out, np.ndarray) or is_on_device(out) else None
    if flat is None or len(flat) != total.size:
        raise InputError(f"out must be a contiguous, writeable float32 array of {total.size} elements")
    if (total.counts_of_all() == 0).any():
        flat[:] = 0
    return flat

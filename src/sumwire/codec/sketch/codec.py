"""Count Sketch and peeling over exact integers: lossless sums of sparse tensors in one round.

`kernels/sketch/reference.py` defines every step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_WORKERS, Addend, Bytes, DivideBy, FollowUp, Missing, Payload, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.options import one_of, real_number, same, whole_number
from sumwire.codec.sketch import slices
from sumwire.codec.sketch.follow_up import SketchFollowUp
from sumwire.codec.sketch.parts import (
    ESCAPE,
    MAX_BLOCK,
    MAX_EXPONENT,
    MAX_SIZE,
    NO_ESCAPES,
    Peeled,
    SketchPayload,
    SketchSum,
    SketchTerms,
)
from sumwire.codec.sketch.slices import SketchSlice
from sumwire.codec.sketch.values import (
    escape_checksum,
    floats_of,
    largest_exponent,
    leftover_integers,
    read_tensor,
)
from sumwire.codec.tensors import Tensor, buffer
from sumwire.errors import ConfigError, InputError, MismatchError, RoundError
from sumwire.kernels import sketch as kernels
from sumwire.kernels.sketch import Coordinates

__all__ = ["MAX_SIZE", "Sketch"]

Floats = NDArray[np.float32]

_SPACIOUS = 64.0
"""Rows for each non-zero that make any table larger than plain lanes."""


@dataclass(frozen=True)
class Sketch(Codec):
    """Lossless sums of sparse tensors in one round: integers hashed into three tables, and peeled out again.

    Law: the sum is the exact sum, rounded once to float32, whatever the order of addition; the mean is
    that divided by the count in float32. Zeros of either sign are no entries, and a sum of zero is +0.0.
    Bits: about 83 a non-zero of the union, and one a coordinate or less for the index. No bias. Headroom:
    `workers` payloads, each rank once.

    >>> codec = Sketch(workers=2)
    >>> xs = [np.array([0, 1, 0, 2e-20], np.float32), np.array([0, 1e10, 0, 0], np.float32)]
    >>> terms = codec.propose(xs[0]) | codec.propose(xs[1])
    >>> total = codec.encode(xs[0], terms, rank=0) + codec.encode(xs[1], terms, rank=1)
    >>> codec.decode(total).tolist() == [0, 5e9, 0, float(np.float32(1e-20))]
    True

    Nothing is estimated: every peel is proven by a checksum and by what it leaves in the cells. Should values get
    stuck, `peel` says which ones, the same at every worker; `complete` takes them from a second exchange, as
    `sumwire.average` does.

    Options, all the same at every worker:

    workers           payloads that a sum must have room for
    rows_per_nonzero  cells for each non-zero; below 1.23 large peels get stuck
    block             coordinates hashed together, a power of two (default: by the number of non-zeros)
    seed              of the hashes; with round_id it decides them all
    """

    lossless = True
    follows_up = True

    workers: int
    rows_per_nonzero: float = field(default=1.30, kw_only=True)
    block: int | None = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        workers, seed = whole_number("workers", self.workers), whole_number("seed", self.seed)
        rows = real_number("rows_per_nonzero", self.rows_per_nonzero, 0.01, 64)
        block = None if self.block is None else whole_number("block", self.block)
        if not 1 <= workers <= MAX_WORKERS:
            raise ConfigError(f"workers={workers} is not in 1..{MAX_WORKERS}")
        if not 0 <= seed < 1 << 64:
            raise ConfigError(f"seed={seed} is not in 0..2**64-1")
        if block is not None and (not 1 <= block <= MAX_BLOCK or block & block - 1):
            raise ConfigError(f"block={block} is not a power of two in 1..{MAX_BLOCK}")
        for name, value in (("workers", workers), ("rows_per_nonzero", rows), ("block", block), ("seed", seed)):
            object.__setattr__(self, name, value)

    # Identity

    @property
    def rows_in_1024(self) -> int:
        """rows_per_nonzero as all workers compute with it: in 1024ths, rounded up."""
        return -int(-self.rows_per_nonzero * 1024 // 1)

    @cached_property
    def _digest(self) -> bytes:
        text = repr((self.workers, self.rows_in_1024, self.block, self.seed)).encode()
        return hashlib.blake2b(text, digest_size=16).digest()

    @property
    def family(self) -> str:
        return "sketch-" + self._digest[:8].hex()

    @property
    def key(self) -> int:
        """Where all hashes start."""
        return int.from_bytes(self._digest[8:], "little")

    @property
    def headroom(self) -> int:
        return self.workers

    # The four verbs

    def propose(self, x: Tensor) -> SketchTerms:
        """The largest exponent, and room for as many non-zeros as all workers may have together."""
        values, shape = read_tensor(x)
        at, words = kernels.nonzeros(values)
        capacity = min(values.size, self.workers * len(at))
        return SketchTerms(self, shape, largest_exponent(words), capacity)

    def accepts(self, x: Tensor) -> bool:
        """float64 has no sum in float32 without loss."""
        return not str(x.dtype).endswith("float64")

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> SketchPayload:
        """This worker's sketch. Terms that do not cover the tensor cost escapes or leftovers, never values.

        `out` (uint8, at least 8 * terms.cells long) is used for the cells instead of fresh memory.
        """
        rank, round_id = self.check_rank(rank, round_id)
        agreed = self._own(terms)
        values, shape = read_tensor(x)
        same("shape", agreed.shape, shape, "encode")
        at, words = kernels.nonzeros(values)
        whole, off = kernels.quantize(words, agreed.exponent, agreed.lsb)
        escapes = NO_ESCAPES
        if off.any():
            escapes = np.zeros(int(off.sum()), ESCAPE)
            escapes["at"], escapes["bits"], escapes["rank"] = at[off], words[off], rank
            at, whole = at[~off], whole[~off]
        geometry = agreed.geometry(round_id)
        cells = buffer(out, 8 * agreed.cells, np.uint8, values).view(np.int64)
        cells[:] = 0
        index = np.zeros(agreed.index_words, np.uint64)
        if agreed.direct:
            cells[at] = whole
        else:
            kernels.insert(geometry, at, whole, cells)
            kernels.mark(geometry, at, index)
        checksum = kernels.checksum(geometry.key, at, whole) + escape_checksum(geometry.key, escapes) & kernels.WORD
        exponent = largest_exponent(words)
        return SketchPayload(self, agreed, round_id, rank, index, cells, checksum, exponent, escapes)

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean: the exact sum, rounded to float32, divided by the count.

        A sketch arrives whole or not at all, so `missing` changes nothing.
        """
        one_of("missing", missing, ("raise", "zero"))
        one_of("divide_by", divide_by, ("count", "workers"))
        whole = self._sum(total)
        return self._all(whole, self.workers if divide_by == "workers" else whole.count, out)

    def sum_of(self, total: Sum | Payload) -> Floats:
        """The exact sum, rounded once to float32."""
        return self._all(self._sum(total), 1, None)

    def _all(self, total: SketchSum, divisor: int, out: Floats | None) -> Floats:
        peeled = self.peel(total)
        if len(peeled.leftovers):
            raise RoundError(
                f"{len(peeled.leftovers)} of {len(peeled.at)} values could not be peeled: finish with "
                "complete(peel(total), each rank's values there), or build the codec with more rows_per_nonzero "
                f"({self.rows_per_nonzero} now)"
            )
        return self.complete(peeled, divisor=divisor, out=out)

    def follow_up(self, total: Sum) -> FollowUp | None:
        """The second exchange of what could not be peeled, if anything."""
        peeled = self.peel(total)
        return SketchFollowUp(self, peeled) if len(peeled.leftovers) else None

    # A round in steps

    def peel(self, total: Sum | Payload) -> Peeled:
        """Take a sum apart as far as it goes; once per sum."""
        return self._sum(total).peeled

    def _peel(self, whole: SketchSum) -> Peeled:
        terms, geometry = whole.sketch_terms, whole.sketch_terms.geometry(whole.round_id)
        if terms.direct:
            at = np.flatnonzero(whole.cells).astype(np.uint32)
            return Peeled(whole, at, whole.cells[at], at[:0], whole.cells[:0])
        at = kernels.candidates(geometry, whole.index)
        values, rest = np.empty(len(at), np.int64), np.empty_like(whole.cells)
        left = kernels.peel(geometry, at, whole.cells, values, rest)
        return Peeled(whole, at, values, at[left], rest)

    def pick(self, x: Tensor, coordinates: Coordinates) -> Floats:
        """This worker's own values at the leftovers, for the second exchange."""
        return read_tensor(x)[0][coordinates]

    def second_terms(self, peeled: Peeled) -> SketchTerms:
        """Terms under which the leftovers have the same integers, and each a lane of its own."""
        spacious = Sketch(self.workers, rows_per_nonzero=_SPACIOUS, seed=self.seed)
        left = len(peeled.leftovers)
        return SketchTerms(spacious, (left,), peeled.total.sketch_terms.exponent, left)

    def complete(
        self,
        peeled: Peeled,
        exact: NDArray[Any] | SketchSum | None = None,
        *,
        divisor: int | None = None,
        out: Floats | None = None,
    ) -> Floats:
        """The mean (or the sum over another divisor) of a peel and of what all ranks of its sum have at its leftovers.

        That is their own values, a row per rank, or the sum of these under `second_terms`. Nothing comes back unless
        checksum and cells prove every value.
        """
        total, terms = peeled.total, peeled.total.sketch_terms
        geometry = terms.geometry(total.round_id)
        values = peeled.values
        if len(peeled.leftovers):
            stuck = leftover_integers(peeled, exact)
            rest = peeled.rest.copy()
            kernels.insert(geometry, peeled.leftovers, -stuck, rest)
            values = values.copy()
            values[np.searchsorted(peeled.at, peeled.leftovers)] = stuck
        else:
            rest = peeled.rest
        if rest.any():
            raise RoundError(
                f"corrupt round {total.round_id}: {np.count_nonzero(rest)} of {len(rest)} cells hold more than the "
                "index accounts for; nothing was decoded: run the round again"
            )
        found = kernels.checksum(geometry.key, peeled.at, values) + escape_checksum(geometry.key, total.escapes)
        if found & kernels.WORD != total.checksum:
            raise RoundError(
                f"corrupt round {total.round_id}: the values do not have the checksum that was sent; nothing was "
                "decoded: run the round again"
            )
        return floats_of(total, peeled.at, values, divisor or total.count, out)

    def predict(self, peeled: Peeled, *, margin: float = 0.1) -> SketchTerms:
        """Terms for the next round from this one's union and exponents, so that the join can be skipped."""
        terms = peeled.total.sketch_terms
        room = min(terms.size, int(len(peeled.at) * (1 + margin)) + 1)
        return SketchTerms(self, terms.shape, min(peeled.total.exponent + 1, MAX_EXPONENT), room)

    # Adding

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> Any:
        if isinstance(parts[0], SketchSlice):
            return slices.add(parts)
        ranks: list[int] = sorted(rank for part in parts for rank in part.ranks)
        for a, b in pairwise(ranks):
            if a == b:
                raise MismatchError(f"cannot add: rank {a} is in the sum already; each rank adds once")
        inputs = [part.cells for part in parts]
        cells = buffer(out, inputs[0].nbytes, np.uint8, *inputs).view(np.int64)
        np.copyto(cells, inputs[0])
        for more in inputs[1:]:
            np.add(cells, more, out=cells)
        index = np.bitwise_or.reduce([part.index for part in parts])
        escapes = np.concatenate([part.escapes for part in parts])
        escapes = escapes[np.lexsort((escapes["rank"], escapes["at"]))]
        checksum = sum(part.checksum for part in parts) & kernels.WORD
        exponent = max(part.exponent for part in parts)
        return SketchSum(
            self, parts[0].terms, parts[0].round_id, len(ranks), tuple(ranks), index, cells, checksum, exponent, escapes
        )

    # What aggregators ask

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        return 8 * self._own(terms).cells

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        """Units are 8-byte words: those of the index, then the cells."""
        words = self._own(terms).index_words + self._own(terms).cells
        return tuple(words * shard // shards for shard in range(shards + 1))

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> SketchSlice:
        return SketchSlice.read(self, self._own(terms), data, round_id, 1, (lo, hi))

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> SketchSum:
        mine = self._own(terms)
        return slices.join([SketchSlice.read(self, mine, data, round_id, count, span) for span, data in parts])

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        return [(0, 0)] if shard == 0 else []  # over a server a sketch is never split

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return size

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return 0  # a sum is as long as a payload

    def _sum(self, total: Sum | Payload) -> SketchSum:
        if not isinstance(total, Addend):
            raise InputError(f"a {type(total).__name__} cannot be decoded: pass a sum or a payload")
        same("codec family", self.family, total.codec.family, "decode")
        return total if isinstance(total, SketchSum) else self._add([total], None)

    def _own(self, terms: Terms) -> SketchTerms:
        if not isinstance(terms, SketchTerms):
            raise InputError(f"terms are a {type(terms).__name__}, Sketch needs SketchTerms")
        same("codec family", self.family, terms.codec.family, "read these terms")
        return terms

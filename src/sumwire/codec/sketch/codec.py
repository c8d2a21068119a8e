"""Count Sketch and peeling over exact integers: lossless sums of sparse tensors in one round.

`kernels/sketch/reference.py` defines every step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from sumwire.codec.algebra import MAX_WORKERS, Bytes, DivideBy, Floats, FollowUp, Missing, Payload, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.options import MAX_SEED, one_of, real_number, same_family, whole_number
from sumwire.codec.sketch import coding, network, slices
from sumwire.codec.sketch.coding import SketchFollowUp, largest_exponent, own_terms, read_tensor
from sumwire.codec.sketch.parts import MAX_BLOCK, MAX_EXPONENT, Peeled, SketchPayload, SketchSum, SketchTerms
from sumwire.codec.sketch.slices import SketchSlice
from sumwire.codec.streams import Merged
from sumwire.codec.tensors import Tensor
from sumwire.errors import ConfigError, InputError, RoundError
from sumwire.kernels import sketch as kernels
from sumwire.kernels.sketch import Coordinates

_SPACIOUS = 64.0
"""Rows for each non-zero that make any table larger than plain lanes."""


@dataclass(frozen=True)
class Sketch(Codec):
    """Lossless sums of sparse tensors in one round: integers hashed into three tables, and peeled out again.

    Parameters
    ----------
    workers : int
        Payloads that a sum must have room for.
    rows_per_nonzero : float, default 1.30
        Cells for each non-zero; below 1.23 large peels get stuck.
    block : int, optional
        Coordinates hashed together, a power of two. Default: by the number of non-zeros.
    seed : int, default 0
        Of the hashes; with `round_id` it decides them all.

    Notes
    -----
    Law: the sum is the exact sum, rounded once to float32, whatever the order of addition; the mean is that divided by
    the count in float32. Zeros of either sign are not sent, and a sum of zero is +0.0. Bits: about 83 per non-zero of
    the union, and one per coordinate or less for the index. No bias. Headroom: `workers` payloads, each rank once.

    Nothing is estimated: every peel is proven by a checksum and by what it leaves in the cells. Should values get
    stuck, `peel` says which ones, the same at every worker; `complete` takes them from a second exchange, as
    `sumwire.average` does.

    Examples
    --------
    >>> import numpy as np
    >>> codec = Sketch(workers=2)
    >>> xs = [np.array([0, 1, 0, 2e-20], np.float32), np.array([0, 1e10, 0, 0], np.float32)]
    >>> terms = codec.propose(xs[0]) | codec.propose(xs[1])
    >>> total = codec.encode(xs[0], terms, rank=0) + codec.encode(xs[1], terms, rank=1)
    >>> codec.decode(total).tolist() == [0, 5e9, 0, float(np.float32(1e-20))]
    True
    """

    lossless = True
    follows_up = True

    workers: int
    rows_per_nonzero: float = field(default=1.30, kw_only=True)
    block: int | None = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        workers = whole_number("workers", self.workers, 1, MAX_WORKERS)
        seed = whole_number("seed", self.seed, 0, MAX_SEED)
        rows = real_number("rows_per_nonzero", self.rows_per_nonzero, 0.01, 64)
        block = None if self.block is None else whole_number("block", self.block)
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
        """The largest exponent, and room for as many non-zeros as all workers may have together. One pass over x."""
        values, shape = read_tensor(x)
        at, words = kernels.nonzeros(values)
        capacity = min(values.size, self.workers * len(at))
        return SketchTerms(self, shape, largest_exponent(words), capacity)

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> SketchPayload:
        """This worker's sketch.

        Parameters
        ----------
        x : array or tensor
            float32, float16 or bfloat16, of the shape of the terms.
        terms : SketchTerms
            All workers' terms, joined. If they do not cover x, more of it travels as escapes or gets stuck; no value is
            lost.
        rank : int
            This worker, in 0..workers-1: each rank adds once.
        round_id : int
            Which round of the job: another round hashes differently.
        out : ndarray of uint8, optional
            At least 8 * terms.cells long, used for the cells instead of fresh memory.

        Raises
        ------
        InputError
            x is float64, or has more than 2**32 - 1 coordinates.
        MismatchError
            The terms are another family's or of another shape.
        """
        rank, round_id = self.check_rank(rank, round_id)
        return coding.encode(self, x, own_terms(self, terms), rank, round_id, out)

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> Any:
        return slices.add(parts) if isinstance(parts[0], SketchSlice) else coding.add_parts(self, parts, out)

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean: the exact sum, rounded to float32, divided by the count.

        Parameters
        ----------
        total : Sum or Payload
            What all workers' payloads added up to.
        out : ndarray of float32, optional
            As many elements as the tensor has, contiguous, used instead of fresh memory.
        missing : {"raise", "zero"}
            Changes nothing: a sketch arrives whole or not at all.
        divide_by : {"count", "workers"}
            The payloads in the sum, or all workers.

        Raises
        ------
        RoundError
            Some values could not be peeled, so that a second exchange is needed; or the sum is corrupt.
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

    # Decoding in steps

    def peel(self, total: Sum | Payload) -> Peeled:
        """Take a sum apart as far as possible. Cached with the sum."""
        return self._sum(total).peeled

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
        """The mean of a peel, with the values of its leftovers from a second exchange.

        Parameters
        ----------
        peeled : Peeled
            What `peel` gave.
        exact : ndarray of float32 or SketchSum, optional
            What the ranks of the sum have at the leftovers: a row per rank, or the sum of these rows under
            `second_terms`. Needed if there are leftovers.
        divisor : int, optional
            What to divide the sum by. Default: the count of payloads.
        out : ndarray of float32, optional
            As for `decode`.

        Raises
        ------
        RoundError
            Checksum or cells do not prove every value; nothing was decoded.
        """
        return coding.complete(peeled, exact, divisor or peeled.total.count, out)

    def predict(self, peeled: Peeled, *, margin: float = 0.1) -> SketchTerms:
        """Terms for the next round from this one's union and exponents, so that the join can be skipped."""
        terms = peeled.total.sketch_terms
        room = min(terms.size, int(len(peeled.at) * (1 + margin)) + 1)
        return SketchTerms(self, terms.shape, min(peeled.total.exponent + 1, MAX_EXPONENT), room)

    # What aggregators ask; units are 8-byte words: those of the index, then the cells

    def accepts(self, x: Tensor) -> bool:
        """float64 has no sum in float32 without loss."""
        return not str(x.dtype).endswith("float64")

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        return 8 * own_terms(self, terms).cells

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        words = own_terms(self, terms).index_words + own_terms(self, terms).cells
        return tuple(words * shard // shards for shard in range(shards + 1))

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> SketchSlice:
        return SketchSlice.read(self, own_terms(self, terms), data, round_id, 1, (lo, hi))

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> SketchSum:
        mine = own_terms(self, terms)
        return slices.join([SketchSlice.read(self, mine, data, round_id, count, span) for span, data in parts])

    def read_streams(
        self, terms: Terms, merged: Sequence[Merged], *, rank: int, round_id: int, ranks: Sequence[int] | None = None
    ) -> SketchSum | None:
        return network.read(self, own_terms(self, terms), merged, round_id, ranks)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        return [(0, 0)] if shard == 0 else []  # over a server a sketch is never split

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return size

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return 0  # a sum is as long as a payload

    def _sum(self, total: Sum | Payload) -> SketchSum:
        if not isinstance(total, Sum | Payload):
            raise InputError(f"a {type(total).__name__} cannot be decoded: pass a sum or a payload")
        same_family(self, total.codec, "decode")
        return total if isinstance(total, SketchSum) else self._add([total], None)

"""Sparse tensors summed without loss: every worker's own non-zeros, added by the owner of their shard in rank order.

docs/sparse.md has the idea and the bytes; `segment.py` what a shard looks like.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import (
    MAX_WORKERS,
    Bytes,
    DivideBy,
    Floats,
    Missing,
    Payload,
    Shape,
    Span,
    Sum,
    Terms,
    runs_of,
)
from sumwire.codec.base import Codec
from sumwire.codec.options import MAX_SEED, one_of, same, same_family, whole_number
from sumwire.codec.sparse import segment
from sumwire.codec.sparse.parts import SparsePayload, SparseSum, SparseTerms, decode
from sumwire.codec.sparse.sharding import LARGEST_BLOCK, MAX_SHARDS, SMALLEST_BLOCK, Shards, deal, default_shards
from sumwire.codec.tensors import Tensor, buffer, flatten, is_float64, is_on_device
from sumwire.errors import ConfigError, InputError
from sumwire.kernels.arrays import on_device, thread_buffers

SPARSE_LAYOUTS = tuple(f"torch.sparse_{layout}" for layout in ("coo", "csr", "csc", "bsr", "bsc"))
MAX_PARTS = 8
"""Frames of a tensor that go to one of a server's shards, at most."""


@dataclass(frozen=True)
class Sparse(Codec):
    """Lossless sums of mostly-zero tensors: only non-zeros travel, with an index in the shortest of six codings.

    Parameters
    ----------
    workers : int
        Payloads that a sum may hold.
    block : int, optional
        Coordinates that stay together in a shard, a power of two in 64..4096. Default: by the tensor's size.
    seed : int, default 0
        Decides which shard gets which block.
    shards : int, default 0
        Shards of a tensor, each added by one owner; 0 means one per worker, 64 at most.

    Notes
    -----
    All workers need the same options.

    Law: `sum_of` a sum is bit-equal to the float32 sum from left to right in rank order, whatever the inputs (NaN, Inf,
    -0.0, denormals) and whatever the order of `+`; `decode` divides it by float32(count). Bits: 32 per non-zero and its
    index, never more than 8 bytes per shard above dense. No bias. Headroom: `workers` payloads, each rank once.

    Examples
    --------
    >>> codec = Sparse(workers=2)
    >>> a, b = np.zeros((2, 1000), np.float32)
    >>> a[3], b[3], b[700] = 1, 2, 5
    >>> total = codec.encode(a, codec.propose(a), rank=0) + codec.encode(b, codec.propose(b), rank=1)
    >>> codec.sum_of(total)[[3, 700]], total.nbytes < 50
    (array([3., 5.], dtype=float32), True)
    """

    lossless = True
    agrees = False
    payloads_on_host = True  # where indices are coded
    adds_at_once = False  # floats are added in rank order, so not before all payloads are there

    workers: int
    block: int | None = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    shards: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        workers = whole_number("workers", self.workers, 1, MAX_WORKERS)
        seed = whole_number("seed", self.seed, 0, MAX_SEED)
        block = None if self.block is None else whole_number("block", self.block)
        shards = whole_number("shards", self.shards)
        if not 0 <= shards <= MAX_SHARDS:
            raise ConfigError(f"shards={shards} is not in 1..{MAX_SHARDS}, nor 0 for one per worker, 64 at most")
        if block is not None and not (SMALLEST_BLOCK <= block <= LARGEST_BLOCK and block.bit_count() == 1):
            raise ConfigError(f"block={block} is not a power of two in {SMALLEST_BLOCK}..{LARGEST_BLOCK}")
        shards = shards or default_shards(workers)
        for name, value in (("workers", workers), ("block", block), ("seed", seed), ("shards", shards)):
            object.__setattr__(self, name, value)

    @cached_property
    def family(self) -> str:
        name = f"{self.workers} {self.block} {self.seed}"
        if self.shards != self.workers:
            name += f" {self.shards}"
        return "sparse-" + hashlib.blake2b(name.encode(), digest_size=8, person=b"sumwire sparse").hexdigest()

    def options(self) -> dict[str, Any]:
        options = super().options()
        if self.shards == default_shards(self.workers):
            del options["shards"]  # the default, which a reader computes
        return options

    @property
    def headroom(self) -> int:
        return self.workers

    def deal(self, size: int) -> Shards:
        """Which shard owns which coordinates of a tensor of this size."""
        return deal(size, self.shards, self.block, self.seed)

    # The four verbs

    def propose(self, x: Tensor) -> SparseTerms:
        """Nothing to agree on but the shape: any round may begin with its payloads."""
        return SparseTerms(self, _flat(x)[1])

    def empty_terms(self, shape: Shape) -> SparseTerms:
        return SparseTerms(self, tuple(shape))

    def accepts(self, x: Tensor) -> bool:
        """float64 has no sum in float32 without loss."""
        return not str(x.dtype).endswith("float64")

    def stays_on_device(self, x: Tensor) -> bool:
        return is_on_device(x) and str(x.layout) == "torch.strided"

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        return sum(segment.room(bits, itemsize) for bits in self.deal(terms.size).bits)

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> SparsePayload:
        """This worker's non-zeros, shard by shard.

        Parameters
        ----------
        x : array or tensor
            float32, float16 or bfloat16, whose values travel as they are; torch's sparse layouts too.
        terms : SparseTerms
            Any worker's terms: there is nothing to join.
        rank : int
            This worker, in 0..workers-1: each rank adds once, in rank order.
        round_id : int
            Which round of the job.
        out : ndarray of uint8, optional
            At least `payload_room` long, used instead of fresh memory.

        Raises
        ------
        InputError
            x is float64, which has no sum in float32 without loss.
        MismatchError
            The terms are another family's or of another shape.

        Notes
        -----
        Cost: one pass over x.
        """
        flat, shape = _flat(x)
        same_family(self, terms.codec, "encode under these terms")
        same("shape", shape, terms.shape, "encode under these terms")
        rank, round_id = self.check_rank(rank, round_id)
        shards, scratch = self.deal(len(flat)), thread_buffers()
        inputs = [] if on_device(flat) else [flat]  # whose payload is in other memory in any case
        # Pages that are not written cost nothing.
        data = buffer(out, self.payload_room(terms, flat.itemsize), np.uint8, *inputs)
        edges = [0]
        for shard in range(self.shards):
            edges.append(edges[-1] + segment.write(flat, shards, shard, data[edges[-1] :], scratch))
        data = data[: edges[-1]] if out is not None else data[: edges[-1]].copy()
        sizes = tuple(b - a for a, b in pairwise(edges))
        kind = segment.kind_of(flat)
        return SparsePayload(self, SparseTerms(self, shape), round_id, rank, kind, data, sizes, 0, self.shards)

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean: `sum_of`, each shard divided by float32 of the count of payloads in it.

        Parameters
        ----------
        total : Sum or Payload
            What all workers' payloads added up to.
        out : ndarray of float32, optional
            As many elements as the tensor has, contiguous, used instead of fresh memory.
        missing : {"raise", "zero"}
            What to do about shards of which nothing arrived: raise, or take them as zero.
        divide_by : {"count", "workers"}
            Each shard's own count of payloads, or all workers.

        Raises
        ------
        RoundError
            Nothing arrived of some shard, with missing="raise".
        """
        one_of("divide_by", divide_by, ("count", "workers"))
        return decode(self, total, out, missing, float(self.workers) if divide_by == "workers" else None)

    def sum_of(self, total: Sum | Payload, *, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The sum itself, bit-equal to the dense float32 sum in rank order."""
        return decode(self, total, out, "raise", 1.0)

    def _add(self, parts: Sequence[SparsePayload | SparseSum], out: Bytes | None) -> SparseSum:
        if out is not None:
            raise ConfigError("a Sparse sum has no lanes to write into out: omit it")
        return SparseSum.of(parts)

    def side_by_side(self, parts: Sequence[Any]) -> SparseSum:
        return SparseSum.side_by_side(parts)

    # What aggregators ask; units are shards

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        return tuple(self.shards * shard // shards for shard in range(shards + 1))

    def for_owners(self, count: int) -> Sparse:
        return replace(self, shards=count)

    def for_plain_sums(self) -> Codec:
        from sumwire.codec.sparse.compact import Compact  # which is made of this

        return Compact(self.workers)

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> SparsePayload:
        sizes = segment.sizes(data, kind, self.deal(terms.size).bits[lo:hi])
        return SparsePayload(self, terms, round_id, rank, kind, data, sizes, lo, hi)

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> SparseSum:
        return SparseSum.side_by_side([self._read_closed(terms, span, data, count, round_id) for span, data in parts])

    def _read_closed(self, terms: Terms, span: Span, data: Bytes, count: int, round_id: int) -> SparseSum:
        (lo, hi), bits = span, self.deal(terms.size).bits
        sizes = segment.sizes(data, 0, bits[lo:hi])
        return SparseSum(self, terms, round_id, count, None, data, sizes, (count,) * (hi - lo), lo, hi)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        lo, hi = self.shards * shard // shards, self.shards * (shard + 1) // shards
        return runs_of(lo, hi, -(-(hi - lo) // MAX_PARTS) or 1)

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return size * hi // self.shards - size * lo // self.shards

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return 0  # sums are as long as their payloads


def _flat(x: Tensor) -> tuple[NDArray[np.generic], tuple[int, ...]]:
    """As `flatten`; torch's sparse tensors are made dense."""
    if str(getattr(x, "layout", "")) in SPARSE_LAYOUTS:
        x = x.to_dense()
    flat, shape = flatten(x, on_device=True)
    if is_float64(flat):
        raise InputError("float64 cannot be summed without loss: Sparse adds in float32; cast the tensor first")
    return flat, shape

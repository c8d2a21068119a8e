"""THC and better: workers round onto one shared lattice, so that their payloads add.

docs/lattice.md explains the maths; `kernels/lattice/reference.py` defines every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Addend, Bytes, DivideBy, Floats, Missing, Payload, Shape, Span, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice import adding, decoding, sharding
from sumwire.codec.lattice import family as families
from sumwire.codec.lattice import table as tables
from sumwire.codec.lattice.decoding import own_terms
from sumwire.codec.lattice.options import MIN_BLOCK, refuse_block, refuse_values, resolve_options
from sumwire.codec.lattice.parts import LARGEST_SCALE, LatticePayload, LatticeSum, LatticeTerms, PackedLatticeSum
from sumwire.codec.lattice.rotation import log2_block
from sumwire.codec.options import same, whole_number
from sumwire.codec.tensors import Tensor, buffer, flatten
from sumwire.errors import ConfigError, InputError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.arrays import to_float32
from sumwire.kernels.lattice.scheme import MAX_BITS, LatticeSpec, Scheme

Widths = Literal["energy", "fixed"] | tuple[int, ...]


@dataclass(frozen=True)
class Lattice(Codec):
    """Lossy sums of any tensors at 1 to 8 bits a coordinate: rotate, clamp, round by chance, add.

    Law: in lattice integers, decode(a + b) is exactly the mean of decode(a) and decode(b); each
    payload is an unbiased estimate of its tensor but for what is clamped. Bits: `bits` a coordinate
    up on average, `sum_bits` down, and 32 / block each way for the terms. Headroom: at least
    `workers` payloads; one more than lanes hold is an error, never a wrap.

    >>> codec = Lattice(workers=2, bits=4)
    >>> xs = [np.ones(1000, np.float32), np.full(1000, 3, np.float32)]
    >>> terms = codec.propose(xs[0]) | codec.propose(xs[1])
    >>> total = codec.encode(xs[0], terms, rank=0) + codec.encode(xs[1], terms, rank=1)
    >>> bool(abs(codec.decode(total).mean() - 2) < 0.1)
    True

    Options, all the same at every worker:

    workers      payloads that a sum must have room for
    bits         index bits a coordinate, on average (default 4)
    total_bits   instead of bits: index and lane bits together; the solver splits them
    granularity  lattice steps g for blocks of `bits` bits (other widths scale with it)
    clip         share p of coordinates outside the range (default: best for `workers`)
    table        "optimal" solves for the least error, "uniform" spaces values evenly
    rounding     "stratified": workers' errors cancel; "independent": as in the paper
    rotate       False quantizes coordinates as they are, over the range of the largest
    block        coordinates with one rotation and one scale, a power of two
    seed         of signs and noise; with round_id it decides every random bit
    lane_bits    width of a sum lane for blocks of `bits` bits (default: see `sum_bits`)
    widths       "energy": bits follow the energy of blocks; "fixed": one width; or the
                 widths allowed, e.g. (0, 2, 4, 8)
    energy       exponent of that: 1 is least squared error, 0 the same width for all
    feedback     every worker keeps a `Residual`, so quiet blocks may go unsent (0 bits)
    """

    workers: int
    bits: int = None  # type: ignore[assignment]  # 4, unless total_bits says otherwise
    total_bits: int | None = field(default=None, kw_only=True)
    granularity: int | None = field(default=None, kw_only=True)
    clip: float | None = field(default=None, kw_only=True)
    table: Literal["optimal", "uniform"] = field(default="optimal", kw_only=True)
    rounding: Literal["stratified", "independent"] = field(default="stratified", kw_only=True)
    rotate: bool = field(default=True, kw_only=True)
    block: int = field(default=512, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    lane_bits: int | None = field(default=None, kw_only=True)
    widths: Widths = field(default="energy", kw_only=True)
    energy: float = field(default=1.0, kw_only=True)
    feedback: bool = field(default=False, kw_only=True)
    family_bits: int = field(default=None, kw_only=True, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, value in resolve_options(self).items():
            object.__setattr__(self, name, value)
        if self.headroom < self.workers or self.lane_bits not in (None, self.sum_bits):
            raise ConfigError(
                f"lane_bits={self.lane_bits} is too narrow: {self.workers} workers with bits={self.family_bits} "
                f"need {self.sum_bits}; use wider lanes or fewer bits"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, ({f.name: getattr(self, f.name) for f in fields(self)},)

    @classmethod
    def thc(cls, workers: int, bits: int = 4, **options: Any) -> Lattice:
        """The THC paper's setting: b=4, g=30, p=1/32, independent rounding, 2**20-coordinate blocks.

        With other bits, the granularity scales along.
        """
        workers, bits = _plain(workers, bits)
        setting: dict[str, Any] = {
            "granularity": max((1 << bits) - 1, (30 << bits) >> 4),
            "clip": 1 / 32,
            "rounding": "independent",
            "block": 1 << 20,
            "widths": "fixed",
        }
        setting |= options
        # The paper sends bytes down.
        steps = whole_number("granularity", setting["granularity"])
        setting.setdefault("lane_bits", max(8, (steps * workers).bit_length()))
        return cls(workers, bits, **setting)

    @classmethod
    def uniform(cls, workers: int, bits: int = 4, **options: Any) -> Lattice:
        """The paper's uniform homomorphic compression: as `thc`, evenly spaced values, lanes no wider than needed."""
        workers, bits = _plain(workers, bits)
        setting: dict[str, Any] = {"granularity": (1 << bits) - 1, "table": "uniform", "lane_bits": None}
        return cls.thc(workers, bits, **(setting | options))

    def with_bits(self, bits: int) -> Lattice:
        """A codec that spends fewer bits and whose payloads still add with this one's.

        >>> Lattice(4, 4).with_bits(2).family == Lattice(4, 4).family
        True
        """
        least = self._least if isinstance(self.widths, tuple) else 1
        if not least <= whole_number("bits", bits) <= self.family_bits:
            raise ConfigError(
                f"with_bits({bits}) is not in {least}..{self.family_bits}: build the codec that all share with "
                f"bits={bits} and give the others fewer"
            )
        return replace(self, bits=bits)

    # Identity

    @cached_property
    def _family(self) -> families.Family:
        options = families.FamilyOptions(
            workers=self.workers,
            budget=self.family_bits,
            bits=self._nominal(self.family_bits),
            lane_bits=self.lane_bits,
            granularity=self.granularity,
            clip=self.clip,
            even=self.table == "uniform" or not self.rotate,
            stratified=self.rounding == "stratified",
            rotate=self.rotate,
            log_block=log2_block(self.block, MIN_BLOCK),
            seed=self.seed,
            ladder=self._ladder,
            restricted=isinstance(self.widths, tuple),
            energy=round(self.energy * 256),
            floor=0 if self.feedback else 1,
        )
        return families.build(options)

    @property
    def _ladder(self) -> tuple[int, ...]:
        if self.widths == "energy":
            return tuple(range(MAX_BITS + 1))
        if self.widths == "fixed":
            return (0, self.family_bits)
        return tuple(sorted({0, *self.widths}))

    def _nominal(self, bits: int) -> int:
        """The width that blocks of average energy get."""
        return max(w for w in self._ladder if w <= bits) if isinstance(self.widths, tuple) else bits

    @property
    def _least(self) -> int:
        """The smallest width that sends anything."""
        return min(width for width in self._ladder if width)

    @property
    def family(self) -> str:
        return self._family.name

    @property
    def scheme(self) -> Scheme:
        """Lattices and tables as the kernels see them."""
        return self.scheme_of_family(self.bits == self.family_bits)

    def scheme_of_family(self, equal: bool) -> Scheme:
        """The scheme of members that all spend `family_bits`; or, if they are not equal, of any members."""
        return self._family.scheme if equal else self._family.scheme_for_all

    @property
    def member(self) -> int:
        return self.bits

    def with_member(self, member: int) -> Lattice:
        return self if member == self.bits else self.with_bits(member)

    @property
    def headroom(self) -> int:
        return self._family.headroom

    @property
    def sum_bits(self) -> int:
        """Width of a sum lane, in blocks of `bits` bits."""
        return self._typical.lane_bits

    @property
    def _typical(self) -> LatticeSpec:
        """The lattice of blocks of average energy."""
        lattice = self._family.scheme.lattices[self._nominal(self.family_bits)]
        assert lattice is not None
        return lattice

    def predicted_nmse(self, *, correlation: float = 0.0) -> float:
        """Expected squared error of the mean over its power, for Gaussian blocks of equal energy.

        `correlation` is that between two workers' coordinates. Cost: microseconds.

        >>> 0.012 < Lattice(4, 4).predicted_nmse() < 0.014
        True
        """
        if not 0.0 <= correlation <= 1.0:
            raise ConfigError(f"correlation={correlation} is not in 0..1")
        if not self.rotate:
            raise ConfigError("without rotation the error depends on the tensor: nothing can be predicted")
        cls, width = self._nominal(self.family_bits), self._nominal(self.bits)
        error = tables.mean_error(
            tuple(self.scheme.tables[cls, width].values.tolist()),
            self._typical.clip,
            self.workers,
            correlation=correlation,
            stratified=self.rounding == "stratified",
        )
        error += families.dither_error(self.scheme, cls) / self.workers
        return error / tables.mean_power(self.workers, correlation)

    def blocks(self, size: int) -> int:
        """How many blocks, and so terms, a tensor of `size` coordinates has.

        >>> Lattice(4, block=512).blocks(1025)     # the tail is cut into powers of two
        3
        """
        whole, rest = divmod(size, 1 << self.scheme.log_block)
        return whole + rest.bit_count()

    # The four verbs

    def propose(self, x: Tensor) -> LatticeTerms:
        """One float32 per block: its rms. One pass over x, about half the time of copying it.

        Raises `NonFiniteError` for NaN or Inf, `RangeError` beyond 2**115.
        """
        flat, shape = flatten(x)
        scales = np.empty(self.blocks(flat.size), np.float32)
        kernels.measure(flat, self.scheme, scales)
        if not bool((scales <= LARGEST_SCALE).all()):  # NaN compares false
            refuse_values(flat, scales, self.block)
        return LatticeTerms(self, shape, scales)

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        return own_terms(self, terms).payload_bytes(self)

    def refuse(self, shape: Shape) -> LatticeTerms:
        size = int(np.prod(shape, dtype=np.int64))
        # One NaN for all blocks: a few bytes from anybody must not cost a tensor's worth of memory.
        return LatticeTerms(self, tuple(shape), np.broadcast_to(np.float32(np.nan), self.blocks(size)))

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> LatticePayload:
        """This worker's payload under the joined terms. One pass over x.

        `out` (uint8, at least `terms.payload_bytes(codec)` long) is used instead of fresh memory.
        """
        if own_terms(self, terms).capped:
            x = self.fit(x, terms)
        return self._encode(x, terms, rank, round_id, out, None)

    def fit(self, x: Tensor, terms: Terms) -> Floats:
        """x in float32, its blocks that are larger than the terms scaled down to them: where terms were capped.

        >>> codec, x = Lattice(workers=2, bits=4), np.ones(512, np.float32)
        >>> bool(np.allclose(codec.fit(x, codec.propose(x / 4)), 0.25))
        True
        """
        mine, own = own_terms(self, terms), self.propose(x)
        flat, shape = flatten(x)
        over = own.scales > mine.scales
        if not over.any():
            return to_float32(flat).reshape(shape)
        # A little less than the ratio, whose product may be rounded upwards.
        shrink = np.where(over, mine.scales / np.maximum(own.scales, np.finfo(np.float32).tiny) * (1 - 2**-20), 1)
        return (to_float32(flat) * np.repeat(shrink.astype(np.float32), mine.sizes)).reshape(shape)

    def encode_in_place(
        self, x: Floats, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> LatticePayload:
        """As `encode`, and leaves in x what the payload does not hold: x - decode(payload).

        Terms that do not cover x raise as in `encode`, but x may have been overwritten in part by then.
        """
        if not (isinstance(x, np.ndarray) and x.dtype == np.float32 and x.flags.c_contiguous and x.flags.writeable):
            raise InputError("encode_in_place needs a contiguous, writeable float32 array")
        return self._encode(x, terms, rank, round_id, out, x.reshape(-1))

    def _encode(
        self, x: Tensor, terms: Terms, rank: int, round_id: int, out: Bytes | None, residual: Floats | None
    ) -> LatticePayload:
        flat, shape = flatten(x)
        mine = own_terms(self, terms)
        same("shape", shape, mine.shape, "encode under these terms")
        rank, round_id = self.check_rank(rank, round_id)
        plan = mine.plan(self)
        data = buffer(out, plan.payload_bytes, np.uint8, flat)
        keys = decoding.keys(self.seed, round_id, rank, self.workers, self.rounding == "stratified")
        bad = kernels.encode(self.scheme, flat, mine.scales, plan.classes, plan.widths, keys, data, residual)
        if bad >= 0:
            refuse_block(flat, mine, bad)
        return LatticePayload(self, mine, round_id, rank, data, plan.widths, 0, len(plan.widths))

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean of the tensors in the sum. One pass over the lanes.

        Each block is divided by its own count: the unbiased choice where what is missing is gone. Where workers keep
        it in a `Residual`, it comes later with weight 1/workers, so blocks must be divided by `workers` now, with
        divide_by="workers": by the count, it would be counted twice. A block of which nothing arrived is then 0; else
        it raises `RoundError`, or decodes to 0 with missing="zero". `out` (float32, the tensor's size) avoids fresh
        memory.
        """
        return decoding.decode(self, total, out, missing, divide_by)

    def add(self, parts: Iterable[Addend], *, out: Bytes | None = None) -> LatticeSum:
        """Payloads and sums added at once, in one pass over the lanes; into `out`, if given."""
        total = super().add(parts, out=out)
        assert isinstance(total, LatticeSum)
        return total

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> LatticeSum:
        return adding.add(self, parts, out)

    # What aggregators ask

    work_per_byte = 1 / 256  # lanes are added at the memory's speed

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        return sharding.edges(self, own_terms(self, terms), shards)

    def payload_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...]:
        return sharding.bytes_between(own_terms(self, terms).plan(self).bits_at, edges)

    def sum_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...]:
        return sharding.bytes_between(own_terms(self, terms).plan(self).packed_at, edges)

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> LatticePayload:
        widths = own_terms(self, terms).plan(self).widths[lo:hi]
        return LatticePayload(self, terms, round_id, rank, data, widths, lo, hi)

    def read_sum(
        self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int
    ) -> PackedLatticeSum:
        return PackedLatticeSum(self, terms, round_id, count, tuple(parts))

    def read_summands(self, terms: Terms, values: NDArray[Any], *, count: int, round_id: int) -> LatticeSum:
        mine = own_terms(self, terms)
        plan = mine.plan(self)
        blocks, lanes = len(plan.classes), np.empty(int(plan.lanes_at[-1]), np.uint8)
        kernels.unpack_words(self.scheme, mine.size, plan.classes, values, count, lanes, 0, blocks)
        return LatticeSum(self, mine, round_id, count, lanes, np.full(blocks, count, np.int32), 0, blocks)

    @property
    def alignment(self) -> int:
        return self.block

    def residual(self) -> Any:
        from sumwire.codec.lattice.residual import Residual  # which is made of this

        return Residual(self) if self.feedback else None

    def expected_bits(self, size: int) -> tuple[float, float, float]:
        return self.bits * size, self.sum_bits * size, 32 * -(-size // self.block)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        return sharding.parts(self, size, shard, shards)

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return sharding.coordinates(self, size, lo, hi)

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return sharding.lanes_in_memory(self, size, None if terms is None else own_terms(self, terms), lo, hi)


def _plain(workers: int, bits: int) -> tuple[int, int]:
    """Both as plain integers: other options are computed from them before the codec checks all."""
    width = whole_number("bits", bits)
    if not 1 <= width <= MAX_BITS:
        raise ConfigError(f"bits={width} is not in 1..{MAX_BITS}")
    return whole_number("workers", workers), width


def _rebuild(options: dict[str, Any]) -> Lattice:
    """A codec from its options: what pickle and copy call."""
    return Lattice(**options)

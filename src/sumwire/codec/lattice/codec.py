"""THC and better: workers round onto one shared lattice, so that their payloads add.

docs/lattice.md explains the math; `kernels/lattice/reference.py` defines every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Addend, Bytes, DivideBy, Floats, Missing, Payload, Shape, Span, Sum, Terms
from sumwire.codec.lattice import coding, narrow, network, sharding
from sumwire.codec.lattice.definition import LatticeDefinition
from sumwire.codec.lattice.narrow import NarrowSum
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum, PackedLatticeSum, add_parts
from sumwire.codec.lattice.terms import LatticeTerms, own_terms
from sumwire.codec.options import same
from sumwire.codec.streams import Merged
from sumwire.codec.tensors import Tensor, float32_view, is_on_device
from sumwire.errors import InputError
from sumwire.kernels import lattice as kernels


@dataclass(frozen=True)
class Lattice(LatticeDefinition):
    """Lossy sums of any tensors at 1 to 8 bits per coordinate: rotate, clamp, round at random, add.

    Parameters
    ----------
    workers : int
        Payloads that a sum must have room for.
    bits : int, default 4
        Index bits per coordinate, on average.
    total_bits : int, optional
        Instead of `bits`: bits per coordinate of payloads and sums together, which the solver splits, without terms
        and scales.
    granularity : int, optional
        Lattice steps g for blocks of `bits` bits; other widths scale with it. Default: as fine as lanes allow.
    clip : float, optional
        Share p of coordinates outside the range. Default: best for `workers`.
    table : {"optimal", "uniform"}
        Solve for the least error, or space values evenly.
    rounding : {"stratified", "independent"}
        Let the workers' errors cancel, or round as in the paper.
    rotate : bool, default True
        False quantizes coordinates as they are, over the range of the largest.
    block : int, default 512
        Coordinates with one rotation and one scale, a power of two.
    seed : int, default 0
        Of signs and noise; with `round_id` it decides every random bit.
    lane_bits : int, optional
        Width of a sum lane for blocks of `bits` bits. Default: see `sum_bits`.
    widths : {"energy", "fixed"} or tuple of int
        Let the width of a block follow its energy, give all blocks one width, or allow only some, e.g. (0, 2, 4, 8).
    energy : float, default 1.0
        Exponent of that energy: 1 gives the least squared error, 0 the same width to all blocks.
    feedback : bool, default False
        Every worker keeps a `Residual`, so quiet blocks may go unsent (0 bits).
    unbiased : bool, default True
        Make up for what clamping takes from a block. No effect with `feedback`, which does so itself, or without
        rotation; `thc` and `uniform` set False, as in the paper.
    down_bits : float or "exact", optional
        Bits per value of sums that are sent down, 1 to 32 on average: a complete sum is quantized again, whatever
        `workers` is. "exact" sends its lanes, as the paper does. Default: `bits` + 1.125; "exact" with
        `feedback`, which loses nothing that narrowing would, if `lane_bits` is given, without rotation, and for one
        worker.

    terms : {"byte", "exact"}
        Send the scale of a block as a byte, rounded up to an eighth of an octave, or as a float32. Default: "byte";
        "exact" without rotation, and in `thc` and `uniform`.

    Notes
    -----
    All workers need the same options, except that `with_bits` may differ.

    Law: in lattice integers, decode(a + b) is exactly the mean of decode(a) and decode(b); over the random rotation,
    each payload is an unbiased estimate of its tensor, up to 0.2 % of blocks whose rotation is nearly Gaussian (with
    unbiased=False: except for what is clamped). Bits: `bits` per coordinate up on average, `sum_bits` down (or
    `down_bits` and 16 / block), and 8 / block up and down for the terms (exact ones: 32 / block). Headroom: at least
    `workers` payloads; one more than lanes hold is an error, never a wrap.

    Examples
    --------
    >>> codec = Lattice(workers=2, bits=4)
    >>> xs = [np.ones(1000, np.float32), np.full(1000, 3, np.float32)]
    >>> terms = codec.propose(xs[0]) | codec.propose(xs[1])
    >>> total = codec.encode(xs[0], terms, rank=0) + codec.encode(xs[1], terms, rank=1)
    >>> bool(abs(codec.decode(total).mean() - 2) < 0.1)
    True
    """

    work_per_byte = 1 / 256  # lanes are added at the memory's speed

    # The four verbs

    def propose(self, x: Tensor) -> LatticeTerms:
        """The scale of each block: its root mean square, rounded up.

        Raises
        ------
        NonFiniteError
            x holds NaN or Inf, or float64 values beyond float32.
        RangeError
            A block's root mean square is above 2**115, so that its mean could overflow float32.

        Notes
        -----
        Cost: one pass over x, about half the time of copying it.
        """
        return coding.measure(self, x)

    def encode(
        self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> LatticePayload:
        """This worker's payload under the joined terms.

        Parameters
        ----------
        x : array or tensor
            float32, float16, bfloat16 or float64, of the shape of the terms.
        terms : LatticeTerms
            All workers' terms, joined. Where they were capped, blocks above them are scaled down as `fit` does.
        rank : int
            This worker, in 0..workers-1: no two workers of a round may share it.
        round_id : int
            Which round of the job; with `seed` it decides all randomness.
        out : ndarray of uint8, optional
            At least `terms.payload_bytes(codec)` long, used instead of fresh memory.

        Raises
        ------
        MismatchError
            The terms are another family's, of another shape, or do not cover x.
        NonFiniteError
            x holds NaN or Inf.

        Notes
        -----
        Cost: one pass over x.
        """
        if own_terms(self, terms).capped:
            x = self.fit(x, terms)
        return coding.encode(self, x, terms, rank, round_id, out, None)

    def encode_in_place(
        self, x: Floats, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None
    ) -> LatticePayload:
        """As `encode`, and leaves in x what the payload does not hold: x - decode(payload).

        Terms that do not cover x raise as in `encode`, but x may have been overwritten in part by then.
        """
        flat = float32_view(x) if isinstance(x, np.ndarray) or is_on_device(x) else None
        if flat is None:
            raise InputError("encode_in_place needs a contiguous, writeable float32 array")
        return coding.encode(self, x, terms, rank, round_id, out, flat)

    def fit(self, x: Tensor, terms: Terms) -> Floats:
        """x in float32, with blocks that are larger than capped terms allow scaled down to them.

        >>> codec, x = Lattice(workers=2, bits=4), np.ones(512, np.float32)
        >>> bool(np.allclose(codec.fit(x, codec.propose(x / 4)), 0.25))
        True
        """
        return coding.fit(self, x, terms)

    def add(self, parts: Iterable[Addend], *, out: Bytes | None = None) -> LatticeSum:
        """Payloads and sums added at once, in one pass over the lanes; see `Codec.add`."""
        total = super().add(parts, out=out)
        assert isinstance(total, LatticeSum)
        return total

    def _add(self, parts: Sequence[Any], out: Bytes | None) -> LatticeSum:
        return add_parts(self, parts, out)

    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean of the tensors in the sum.

        Parameters
        ----------
        total : Sum or Payload
            What all workers' payloads added up to.
        out : ndarray of float32, optional
            As many elements as the tensor has, contiguous, used instead of fresh memory.
        missing : {"raise", "zero"}
            What to do about blocks of which nothing arrived: raise, or take them as zero.
        divide_by : {"count", "workers"}
            "count" divides each block by the payloads in it, which is unbiased if what is missing is gone. Where
            workers keep it in a `Residual`, it arrives later with weight 1/workers: divide by "workers", or it would be
            counted twice. A block of which nothing arrived is then zero.

        Raises
        ------
        RoundError
            Nothing arrived of some block, with missing="raise" and divide_by="count".

        Notes
        -----
        Cost: one pass over the lanes.
        """
        return coding.decode(self, total, out, missing, divide_by)

    # Around the verbs

    def refuse(self, shape: Shape) -> LatticeTerms:
        size = int(np.prod(shape, dtype=np.int64))
        # One NaN for all blocks: a few bytes from anybody must not cost a tensor's worth of memory.
        return LatticeTerms(self, tuple(shape), np.broadcast_to(np.float32(np.nan), self.blocks(size)))

    def stays_on_device(self, x: Tensor) -> bool:
        return is_on_device(x)

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        return own_terms(self, terms).payload_bytes(self)

    def residual(self) -> Any:
        from sumwire.codec.lattice.residual import Residual  # which is made of this

        return Residual(self) if self.feedback else None

    def side_by_side(self, parts: Sequence[Any]) -> Sum:
        kinds = {isinstance(part, NarrowSum) for part in parts}
        same("form of sums", min(kinds), max(kinds), "put sums side by side")
        if True in kinds:
            return narrow.side_by_side(parts)
        whole: Sum = parts[0] if not parts[0].terms.size else self.add(parts)
        return whole

    def for_plain_sums(self) -> Lattice:
        return replace(self, down_bits="exact")

    # What aggregators ask; units are blocks

    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        return sharding.edges(self, own_terms(self, terms), shards)

    def payload_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...]:
        return sharding.bytes_between(own_terms(self, terms).layout(self).bits_at, edges)

    def sum_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...]:
        mine = own_terms(self, terms)
        if self.narrow_bits is not None:
            return narrow.sizes(self, mine, edges)
        return sharding.bytes_between(mine.layout(self).packed_at, edges)

    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> LatticePayload:
        widths = own_terms(self, terms).layout(self).widths[lo:hi]
        return LatticePayload(self, terms, round_id, rank, data, widths, lo, hi)

    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> Sum:
        if self.narrow_bits is not None:
            return narrow.read(self, own_terms(self, terms), parts, count, round_id)
        return PackedLatticeSum(self, terms, round_id, count, tuple(parts))

    def read_summands(self, terms: Terms, values: NDArray[Any], *, count: int, round_id: int) -> LatticeSum:
        mine = own_terms(self, terms)
        layout = mine.layout(self)
        blocks, lanes = len(layout.classes), np.empty(int(layout.lanes_at[-1]), np.uint8)
        kernels.unpack_words(self.scheme, mine.size, layout.classes, values, count, lanes, 0, blocks)
        return LatticeSum(self, mine, round_id, count, lanes, np.full(blocks, count, np.int32), 0, blocks)

    def for_network(self, unit_bytes: int | None = None) -> Lattice:
        return network.carried(self, unit_bytes)

    def read_streams(
        self, terms: Terms, merged: Sequence[Merged], *, rank: int, round_id: int, ranks: Sequence[int] | None = None
    ) -> LatticeSum:
        return network.read(self, own_terms(self, terms), merged, rank, round_id, ranks)

    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        return sharding.parts(self, size, shard, shards)

    def coordinates(self, size: int, lo: int, hi: int) -> int:
        return sharding.coordinates(self, size, lo, hi)

    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        return sharding.lanes_in_memory(self, size, None if terms is None else own_terms(self, terms), lo, hi)

    def expected_bits(self, size: int) -> tuple[float, float, float]:
        blocks = -(-size // self.block)
        down = self.sum_bits * size
        if self.narrow_bits is not None:
            down = math.ceil(self.narrow_bits * size) + 8 * narrow.BESIDE * blocks
        return self.bits * size, down, 8 * blocks + 16 if self.byte_terms else 32 * blocks

    @property
    def alignment(self) -> int:
        return self.block

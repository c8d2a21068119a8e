"""A scheme in the manner of DynamiQ: widths that follow the energy, and a ring that quantizes at every hop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.options import real_number, switch
from sumwire.lab.peers.base import Outcome, Parts, Peer, Vector, bits_of
from sumwire.lab.peers.hops import ring
from sumwire.lab.peers.quantizer import (
    Draw,
    Layout,
    Quantizer,
    divide,
    from_bf16,
    in_blocks,
    pack,
    round_up_bf16,
    unpack,
)

SUPERGROUP, GROUP = 256, 16
WIDTHS, ANY_WIDTHS = (2, 4, 8), tuple(range(2, 9))
_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
OVERHEAD = 8 / GROUP + 2 * 16 / SUPERGROUP
"""Bits per value besides codes: scales of groups and supergroups, and the energies that are agreed first."""


@cache
def levels(width: int) -> NDArray[np.float32]:
    """Values from -1 to 1 that codes of a width stand for; steps grow from the middle outwards.

    >>> [round(float(value), 3) for value in levels(2)]
    [-1.0, -0.279, 0.279, 1.0]
    """
    half = 1 << width - 1
    # Within 1 % of the least error, for any width, of Gaussian values in units of the largest of 16.
    growth = 1 + 0.8 / half
    outward = growth ** (np.arange(half) + 0.5) - 1
    return np.concatenate([-outward[::-1], outward]).astype(np.float32) / np.float32(outward[-1])


class GroupQuantizer(Quantizer):
    """Supergroups of 256 values, each with a width of its own, in groups of 16 with a scale in a byte.

    Law: scales are rounded up, so no value is clamped, and rounding is stochastic: unbiased. Bits: the average width,
    8 / 16 for groups and 16 / 256 for supergroups.
    """

    block = SUPERGROUP
    unbiased = True

    def __init__(self, widths: NDArray[np.integer]) -> None:
        self.widths = widths

    def encode(self, x: Vector, draw: Draw) -> Parts:
        rows = in_blocks(x, SUPERGROUP)
        peaks = np.abs(rows).reshape(len(rows), -1, GROUP).max(axis=2)
        tops = round_up_bf16(peaks.max(axis=1))
        groups = np.ceil(255 * divide(peaks, from_bf16(tops)[:, None])).clip(0, 255).astype(np.uint8)
        unit = np.clip(divide(rows, self._scales(tops, groups)), -1, 1)
        noise = in_blocks(draw(x.size), SUPERGROUP)
        packed = []
        for width, which, count in self._classes(x.size):
            table = levels(width)
            low = np.clip(np.searchsorted(table, unit[which], side="right") - 1, 0, len(table) - 2)
            above = (unit[which] - table[low]) / (table[low + 1] - table[low])
            packed.append(pack((low + (noise[which] < above)).reshape(-1)[:count], width))
        return tops, groups.reshape(-1)[: -(-x.size // GROUP)], *packed

    def decode(self, parts: Parts, size: int) -> Vector:
        tops, groups, *packed = parts
        unit = np.zeros((len(tops), SUPERGROUP), np.float32)
        for (width, which, count), codes in zip(self._classes(size), packed, strict=True):
            unit[which] = in_blocks(levels(width)[unpack(codes, width, count)], SUPERGROUP)
        all_groups = np.zeros(len(tops) * (SUPERGROUP // GROUP), np.uint8)
        all_groups[: len(groups)] = groups
        values = unit * self._scales(tops, all_groups.reshape(len(tops), -1))
        return np.asarray(values.reshape(-1)[:size], np.float32)

    def layout(self, size: int) -> Layout:
        # Without encoding: widths, and so layouts, are others in each round.
        head: Layout = [(np.dtype(np.uint16), len(self.widths)), (np.dtype(np.uint8), -(-size // GROUP))]
        packed = [-(-count * width // 8) for width, _, count in self._classes(size)]
        return [*head, *((np.dtype(np.uint8), nbytes) for nbytes in packed)]

    def _scales(self, tops: NDArray[np.uint16], groups: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = groups.astype(np.float32) / np.float32(255) * from_bf16(tops)[:, None]
        return scale.repeat(GROUP, axis=1)

    def _classes(self, size: int) -> list[tuple[int, NDArray[np.intp], int]]:
        """Every width with its supergroups, and how many values they have: only the last may have fewer than 256."""
        found = []
        for width in np.unique(self.widths).tolist():
            which = np.flatnonzero(self.widths == width)
            missing = -size % SUPERGROUP if which[-1] == len(self.widths) - 1 else 0
            found.append((width, which, len(which) * SUPERGROUP - missing))
        return found


def allot(
    norms: NDArray[np.float32], lengths: NDArray[np.integer], bits: float, choices: Sequence[int] = WIDTHS
) -> NDArray[np.int64]:
    """Widths of supergroups whose average is at most `bits`, with the least expected squared error.

    Every supergroup starts with the smallest width; the budget then goes, bit for bit, where it reduces the error most.

    >>> allot(np.array([1, 100], np.float32), np.array([256, 256]), 5.0).tolist()
    [2, 8]
    """
    energy = np.square(norms.astype(np.float64))
    error = [1 / ((1 << width) - 1) ** 2 for width in choices]
    gain, cost = [], []
    for k in range(1, len(choices)):
        cost.append((choices[k] - choices[k - 1]) * lengths)
        gain.append(energy * (error[k - 1] - error[k]) / cost[-1])
    order = np.argsort(-np.concatenate(gain), kind="stable")
    spent = np.cumsum(np.concatenate(cost)[order])
    taken = order[spent <= (bits - choices[0]) * lengths.sum()]
    steps = np.bincount(taken % len(norms), minlength=len(norms))
    return np.asarray(choices)[steps]


class DynamiQ(Peer):
    """Variable widths, scales in two levels, correlated rounding, and a ring that quantizes at each of n - 1 hops.

    Published setting: 5 bits on average; statistics per supergroup are agreed in a light all-reduce and give widths;
    hierarchical scales; non-uniform levels; correlated rounding; decompress, add and recompress at every hop. This is
    in the manner of the paper, not the paper: sizes of groups (16) and supergroups (256) and the widths 2, 4 and 8 are
    from memory of it; levels grow geometrically, by ratios that we chose; correlated rounding is stratified: a random
    order of workers and a random offset per value, shared by all, decide which n-th of [0, 1) a worker's number lies
    in; norms travel as bfloat16 and are added. Means are not subtracted first, which the paper may do.

    any_width=True allows all widths from 2 to 8, which suits budgets between those of 2, 4 and 8 better;
    correlated=False draws independent numbers. Bits: `bits` up, and as many down, all scales and norms included.

    >>> tensors = list(np.random.default_rng(0).standard_normal((4, 4096), dtype=np.float32))
    >>> outcome = DynamiQ(4, 4096).average(tensors)
    >>> bool(4.8 < outcome.up_bits <= 5), bool(4.8 < outcome.down_bits <= 5)
    (True, True)
    """

    paper = (
        "Han et al., DynamiQ: accelerating gradient synchronization using compressed multi-hop all-reduce, 2602.08923"
    )

    def __init__(
        self,
        workers: int,
        size: int,
        *,
        bits: float = 5.0,
        any_width: bool = False,
        correlated: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(workers, size, seed=seed)
        self.correlated = switch("correlated", correlated)
        self.widths = ANY_WIDTHS if switch("any_width", any_width) else WIDTHS
        self.bits = real_number("bits", bits, WIDTHS[0] + OVERHEAD, WIDTHS[-1] + OVERHEAD)
        self.unbiased = True
        self.name = f"dynamiq-any-{self.bits:g}" if any_width else f"dynamiq-{self.bits:g}"

    def _average(self, tensors: Sequence[Vector]) -> Outcome:
        norms = [self.norms(x) for x in tensors]
        quantizer_of, draw_of = self.plan(norms)
        mean, up, down = ring(tensors, SUPERGROUP, quantizer_of, draw_of)
        agreed = bits_of((norms[0],))
        return Outcome(mean, self._per_value(up + agreed), self._per_value(down + agreed))

    def plan(
        self, norms: Iterable[NDArray[np.uint16]]
    ) -> tuple[Callable[[slice], Quantizer], Callable[[int, slice], Draw]]:
        """How all workers quantize in the next round, by the norms of all: by shard, and with which random numbers."""
        total = sum(from_bf16(words).astype(np.float64) for words in norms)
        lengths = np.full(-(-self.size // SUPERGROUP), SUPERGROUP)
        lengths[-1] -= -self.size % SUPERGROUP
        widths = allot(np.asarray(total, np.float32), lengths, self.bits - OVERHEAD, self.widths)
        strata = self.workers if self.correlated else 1
        order = self.rng.permutation(self.workers)
        offset = self.rng.integers(strata, size=self.size, dtype=np.int32)

        def quantizer_of(shard: slice) -> Quantizer:
            return GroupQuantizer(widths[shard.start // SUPERGROUP : -(-shard.stop // SUPERGROUP)])

        def draw_of(rank: int, shard: slice) -> Draw:
            stratum = (order[rank] + offset[shard]) % strata
            return lambda size: np.minimum((stratum + self.uniform(size)) / strata, _BELOW_ONE, dtype=np.float32)

        return quantizer_of, draw_of

    def norms(self, x: Vector) -> NDArray[np.uint16]:
        """Of supergroups, as bfloat16: the energies that are agreed first."""
        squares = np.square(in_blocks(x, SUPERGROUP), dtype=np.float64)
        return round_up_bf16(np.sqrt(squares.sum(axis=1)).astype(np.float32))

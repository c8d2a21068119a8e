"""A Lattice where packets are added on their way: which options it then has, and its payloads as streams.

Whoever adds looks up the indices of whole bytes and adds lanes, of which 64-bit words hold as many as fit; it knows
neither blocks nor scales. So the whole blocks of each width class are lined up to one stream of indices. The smaller
blocks behind them, which share bytes, travel as lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Span
from sumwire.codec.lattice.family import MAX_LANE_BITS
from sumwire.codec.lattice.options import MIN_BLOCK
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.codec.streams import IndexTable, Merged, Stream
from sumwire.errors import MismatchError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.blocks import unpack_planes
from sumwire.kernels.lattice.scheme import PLANE_GROUP, LatticeSpec
from sumwire.kernels.lattice.streams import lanes_per_word

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice

WIDTHS = (1, 2, 4, 8)
"""Of which a byte holds whole indices."""


def carried(codec: Lattice, unit_bytes: int | None) -> Lattice:
    """See `Codec.for_network`: allowed widths, exact sums, lanes as narrow as the indices of all workers allow."""
    fixed = codec.widths == "fixed"
    widths = codec.widths if fixed and codec.family_bits in WIDTHS else (0, *WIDTHS)
    if isinstance(codec.widths, tuple) and set(codec.widths) <= {0, *WIDTHS}:
        widths = codec.widths
    found = replace(codec, widths=widths, energy=0.0 if fixed else codec.energy, down_bits="exact", total_bits=None)
    free = codec.lane_bits is None and codec.granularity is None
    if free:  # finer lattices would cost bits of what comes down
        found = replace(found, lane_bits=_lane_bits(codec, packed=unit_bytes is None and widths != "fixed"))
    if unit_bytes is not None:
        most = max(each.lane_bytes for each in found.scheme_of_family(True).lattices if each is not None)
        while found.block > MIN_BLOCK and found.block * most > unit_bytes:
            found = replace(found, block=found.block // 2)
    return found


def _lane_bits(codec: Lattice, packed: bool) -> int | None:
    """Of the codec's lanes: the widest that cost no more than the narrowest, in the width class of most blocks."""
    width = next(each for each in WIDTHS if each >= codec.family_bits)
    least = (codec.workers * ((1 << width) - 1)).bit_length()
    if not packed:
        return 8 - width + codec.family_bits if least <= 8 else None
    most = lanes_per_word(width, least)
    bits = max(each for each in range(least, MAX_LANE_BITS + 1) if lanes_per_word(width, each) == most)
    return bits - width + codec.family_bits


def _sent_bits(codec: Lattice, lattice: LatticeSpec, by_unit: bool) -> int:
    """Of a lane that comes back. Where budgets may differ, bytes of different workers must give the same lanes."""
    return 8 * lattice.lane_bytes if by_unit or codec.widths == "fixed" else lattice.lane_bits


def _classes(codec: Lattice, terms: LatticeTerms) -> Iterator[tuple[int, NDArray[np.int64], LatticeSpec]]:
    """Of the whole blocks: each width class in use, its blocks, and its lattice."""
    classes = terms.layout(codec).classes[: terms.size // codec.block]
    for width_class in np.unique(classes[classes > 0]).tolist():
        lattice = codec.scheme_of_family(True).lattices[width_class]
        assert lattice is not None
        yield width_class, np.flatnonzero(classes == width_class), lattice


def _tail(codec: Lattice, terms: LatticeTerms) -> Span:
    """The blocks behind the whole ones."""
    return terms.size // codec.block, len(terms.sizes)


def streams(payload: LatticePayload, by_unit: bool) -> list[Stream]:
    """See `LatticePayload.streams`."""
    codec, terms, scheme = payload.codec, payload.lattice_terms, payload.codec.scheme_of_family(False)
    layout, out = terms.layout(codec), []
    for width_class, which, lattice in _classes(codec, terms):
        widths = set(payload.widths[which].tolist())
        if len(widths) > 1 or not widths <= set(WIDTHS) or width_class not in WIDTHS:
            raise MismatchError(
                f"blocks of {sorted(widths)} bits in a width class of {width_class} cannot be added by packets: pass "
                'what prepare gives, and with_bits only of a codec with widths="fixed"'
            )
        [width] = widths
        nbytes = codec.block * width // 8
        data = np.empty(len(which) * nbytes, np.uint8)
        kernels.gather_blocks(payload.data, layout.bits_at[which] // 8, nbytes, data)
        if width != width_class:
            data = _in_order_of(width_class, data, codec.block, width)
        name = f"{codec.family}/{width_class}/{width}"
        table = IndexTable(name, width, tuple(scheme.tables[width_class, width].values.tolist()))
        unit = codec.block * lattice.lane_bytes if by_unit else 0
        out.append(Stream("lookup", data, _sent_bits(codec, lattice, by_unit), unit, table, partial=True))
    lanes, lane = _tail_lanes(codec, terms, codec.add([payload.part(*_tail(codec, terms))]).lanes)
    if len(lanes):
        data = np.concatenate(lanes).astype(f"<u{lane}").view(np.uint8)
        out.append(Stream("add", data, 8 * lane, len(data), partial=True))
    return out


def _tail_lanes(codec: Lattice, terms: LatticeTerms, lanes: Bytes) -> tuple[list[NDArray[Any]], int]:
    """The lanes of each block behind the whole ones, and the bytes of the widest.

    They travel as one stream, since several might come back without different workers.
    """
    (lo, hi), layout = _tail(codec, terms), terms.layout(codec)
    at, found, widest = layout.lanes_at - layout.lanes_at[lo], [], 1
    for block in range(lo, hi):
        lattice = codec.scheme_of_family(True).lattices[int(layout.classes[block])]
        if lattice is not None and layout.classes[block]:
            found.append(lanes[at[block] : at[block + 1]].view(f"<u{lattice.lane_bytes}"))
            widest = max(widest, lattice.lane_bytes)
    return found, widest


def _in_order_of(width_class: int, data: Bytes, block: int, width: int) -> Bytes:
    """Indices of fewer bits than their class, in the order that those of the class have: all workers' must agree."""
    bits = np.unpackbits(data, bitorder="little").reshape(-1, block * width)
    group = min(block, PLANE_GROUP)
    indices = unpack_planes(bits, block, width).reshape(-1, 8 // width_class, group * width_class // 8)
    ordered = indices.transpose(0, 2, 1).reshape(-1, 1)
    return np.packbits((ordered >> np.arange(width) & 1).astype(np.uint8).reshape(-1), bitorder="little")


def read(
    codec: Lattice,
    terms: LatticeTerms,
    merged: Sequence[Merged],
    rank: int,
    round_id: int,
    ranks: Sequence[int] | None,
) -> LatticeSum:
    """See `Codec.read_streams`: every block has its own count, and `late` are those without this worker."""
    layout, blocks = terms.layout(codec), len(terms.sizes)
    lanes = np.zeros(int(layout.lanes_at[-1]), np.uint8)
    everyone = codec.workers if ranks is None else len(ranks)
    counts = np.full(blocks, everyone, np.int32)  # of blocks without bits, too, of which nothing travels
    late = np.zeros(blocks, bool)
    rest = list(merged)
    for width_class, which, lattice in _classes(codec, terms):
        found, starts = rest.pop(0), layout.lanes_at[which]
        kernels.spread_lanes(found.data, codec.block, width_class, found.lane_bits, lattice.lane_bytes, starts, lanes)
        counts[which] = found.counts
        late[which] = found.members >> np.uint64(rank) & np.uint64(1) == 0
    lo, hi = _tail(codec, terms)
    if rest:  # one count for all of them
        own, lane = _tail_lanes(codec, terms, lanes[layout.lanes_at[lo] :])
        pieces = np.split(rest[0].data.view(f"<u{lane}"), np.cumsum([len(each) for each in own])[:-1])
        for each, piece in zip(own, pieces, strict=True):
            each[:] = piece
        counts[lo:hi], late[lo:hi] = rest[0].counts[0], not int(rest[0].members[0]) >> rank & 1
    if ranks is not None:
        counts[:], late[:] = everyone, rank not in ranks
    for block in np.flatnonzero(counts == 0).tolist():
        lanes[layout.lanes_at[block] : layout.lanes_at[block + 1]] = 0
    count = int(counts.max()) if blocks else everyone
    edges = np.flatnonzero(np.diff(np.concatenate([[False], late, [False]]).astype(np.int8))).tolist()
    spans = tuple(pairwise(edges))[::2]
    return LatticeSum(codec, terms, round_id, count, lanes, counts, 0, blocks, late=spans)

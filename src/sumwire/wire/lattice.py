"""Frames of the Lattice codec: scales, packed indices, packed lanes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Floats, Payload, Shape
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.narrow import NarrowSum
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.errors import ConfigError, FrameError
from sumwire.kernels import lattice as kernels
from sumwire.kernels.lattice.scales import CODES, LARGEST_SCALE, MOST_STEP
from sumwire.wire import body as rules
from sumwire.wire.body import Bytes
from sumwire.wire.header import Header
from sumwire.wire.limits import Kind

CODEC = Lattice


def write_terms(terms: LatticeTerms, round_id: int) -> tuple[Header, list[Bytes]]:
    """The header, and the arrays that are the body."""
    family, size, blocks, body = terms.codec.family, terms.size, len(terms.scales), terms.body
    header = Header(kind=Kind.TERMS, family=family, size=size, hi=blocks, length=len(body), round_id=round_id)
    return header, [body]


def write(item: LatticePayload | LatticeSum | NarrowSum) -> tuple[Header, list[Bytes]]:
    """The header, and the arrays that are the body. Only sums of odd lanes are packed afresh."""
    if isinstance(item, NarrowSum):
        kind, bits, rank = Kind.NARROW, 0, 0
        count, flags, front = rules.write_counts(item.counts, item.count)
        body = [*front, *(run.coarse for run in item.runs), *(run.fine for run in item.runs)]
        body += [run.data for run in item.runs]
    elif isinstance(item, Payload):
        kind, bits, rank, flags, count = Kind.PAYLOAD, item.codec.bits, item.rank, 0, item.count
        body = [item.data]
    else:
        kind, bits, rank = Kind.SUM, 0, 0
        count, flags, front = rules.write_counts(item.counts, item.count)
        body = [*front, _wire_lanes(item)]
    header = Header(
        kind=kind,
        family=item.codec.family,
        size=item.lattice_terms.size,
        lo=item.lo,
        hi=item.hi,
        length=rules.nbytes(body),
        round_id=item.round_id,
        bits=bits,
        rank=rank,
        count=count,
        digest=item.terms.digest,
        flags=flags,
    )
    return header, body


def terms(header: Header, data: Bytes, codec: Lattice, shape: Shape) -> LatticeTerms:
    """Copied: terms outlive a receiver's buffer."""
    blocks = rules.block_count(header.size, codec.block)
    if header.hi != blocks:
        raise FrameError(f"block range of terms ends at hi={header.hi}, but size {header.size} has {blocks} blocks")
    need = 2 + blocks if codec.byte_terms else 4 * blocks
    if len(data) != need:
        raise FrameError(f"body length {len(data)} of terms is not {need}, that of terms={codec.terms!r}")
    scales = _read_bytes(data) if codec.byte_terms else _read_floats(data)
    return LatticeTerms(codec, tuple(shape), scales)


def _read_floats(data: Bytes) -> Floats:
    words = data.copy().view(np.uint32)
    # As integers, so that NaN, infinity and every negative (-0 too) is larger than the limit.
    bad = np.flatnonzero(words > LARGEST_SCALE.view(np.uint32))
    scales = words.view(np.float32)
    if len(bad):
        raise FrameError(f"scale {scales[bad[0]]} of block {bad[0]} is not in 0..{LARGEST_SCALE} (2**115)")
    return scales


def _read_bytes(data: Bytes) -> Floats:
    """Checked that the largest scale has the largest code: every terms have exactly one frame."""
    base, codes = int.from_bytes(data[:2].tobytes(), "little"), data[2:]
    if base > MOST_STEP:
        raise FrameError(f"base {base} of the scales is not in 0..{MOST_STEP}")
    top = int(codes.max(initial=0))
    if top != CODES and (top or base):
        raise FrameError(f"the largest code is {top} over base {base}: it must be {CODES}, or 0 over base 0")
    low = np.flatnonzero((codes > 0) & (codes < CODES - base))
    if len(low):
        raise FrameError(f"code {codes[low[0]]} of block {low[0]} is below the smallest scale, over base {base}")
    return kernels.scales_of(codes, base)


def payload(header: Header, data: Bytes, codec: Lattice, terms: LatticeTerms) -> LatticePayload:
    """A view of the data, of whichever member of the family sent it."""
    blocks_of(header, terms)
    if header.bits > codec.family_bits:
        raise FrameError(f"bits {header.bits} is over the {codec.family_bits} of the family: no such member")
    try:
        member = codec if codec.bits == header.bits else codec.with_bits(header.bits)
    except ConfigError as error:
        raise FrameError(f"bits {header.bits} is wrong: {error}") from None
    rules.check_rank(header, codec.workers)
    plan = terms.layout(member)
    widths = plan.widths[header.lo : header.hi]
    rules.check(data, int(plan.bits_at[header.hi] - plan.bits_at[header.lo]), "index")
    return LatticePayload(member, terms, header.round_id, header.rank, data, widths, header.lo, header.hi)


def total(header: Header, data: Bytes, codec: Lattice, terms: LatticeTerms) -> LatticeSum:
    """Checked that no lane holds more than its count of payloads can give; a view of lanes of 8, 16 or 32 bits."""
    sizes = blocks_of(header, terms)
    counts, data = rules.read_counts(header, data, codec.headroom)
    scheme, plan = codec.scheme, terms.layout(codec)
    classes = plan.classes[header.lo : header.hi]
    rules.check(data, int(sizes @ plan.lane_bits[header.lo : header.hi].astype(np.int64)), "lane")
    per_block = kernels.lane_bytes(scheme, sizes, classes)
    lanes = data
    if plan.lanes_need_packing:
        lanes = np.empty(int(per_block.sum()), np.uint8)
        kernels.unpack_lanes(scheme, terms.size, classes, data, lanes, header.lo, header.hi)
        lanes.flags.writeable = False
    granularity = np.array([0 if spec is None else spec.granularity for spec in scheme.lattices], np.int64)
    limits = counts * granularity[classes]
    over = np.flatnonzero(rules.peaks(lanes, sizes, per_block) > limits)
    if len(over):
        block, count, limit = header.lo + over[0], counts[over[0]], limits[over[0]]
        raise FrameError(f"a lane of block {block} is over {limit}, the most that {count} payloads add up to")
    return LatticeSum(codec, terms, header.round_id, header.count, lanes, counts, header.lo, header.hi)


def blocks_of(header: Header, terms: LatticeTerms) -> NDArray[np.int64]:
    """Sizes of the blocks that the frame covers, if the terms have them."""
    sizes, lo, hi = terms.sizes, header.lo, header.hi
    if hi > len(sizes):
        raise FrameError(f"block range ends at hi={hi}, but the terms have {len(sizes)} blocks")
    if any(0 < edge < len(sizes) and sizes[edge - 1] < 8 for edge in (lo, hi)):
        raise FrameError(f"block range {lo}..{hi} has an edge between blocks that share a byte: send both")
    return sizes[lo:hi]


def _wire_lanes(total: LatticeSum) -> Bytes:
    """The lanes as they are, if they may go like that, else packed."""
    return total.packed() if total.lattice_terms.layout(total.codec).lanes_need_packing else total.lanes

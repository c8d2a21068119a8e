"""Lattice payloads and sums, added: small integers into lanes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sumwire.codec.algebra import Bytes, Span
from sumwire.codec.lattice.parts import LatticePayload, LatticeSum, PackedLatticeSum
from sumwire.codec.tensors import buffer
from sumwire.errors import HeadroomError
from sumwire.kernels import lattice as kernels

if TYPE_CHECKING:
    from sumwire.codec.lattice.codec import Lattice

Part = LatticePayload | LatticeSum


def add(codec: Lattice, addends: Sequence[Part | PackedLatticeSum], out: Bytes | None) -> LatticeSum:
    """One pass over the lanes of all blocks that any of them covers."""
    parts = [part.unpacked() if isinstance(part, PackedLatticeSum) else part for part in addends]
    terms = parts[0].lattice_terms
    lo, hi = min(p.lo for p in parts), max(p.hi for p in parts)
    counts = np.zeros(hi - lo, np.int32)
    for part in parts:
        counts[part.lo - lo : part.hi - lo] += part.counts if isinstance(part, LatticeSum) else 1
    most = int(counts.max()) if len(counts) else sum(part.count for part in parts)
    if most > codec.headroom:
        raise HeadroomError(
            f"cannot add payload {codec.headroom + 1}: {codec.sum_bits}-bit lanes hold {codec.headroom}; "
            f"build the codec with workers>={most}"
        )
    equal = all(part.codec.bits == codec.family_bits for part in parts)
    scheme = codec.scheme_of_family(equal)
    layout = terms.layout(codec)
    classes, lanes_at = layout.classes, layout.lanes_at
    inputs = (part.lanes if isinstance(part, LatticeSum) else part.data for part in parts)
    lanes = buffer(out, int(lanes_at[hi] - lanes_at[lo]), np.uint8, *inputs)
    spans = _by_span(parts)
    fresh = all(before[1] == after[0] for before, after in pairwise(sorted(spans)))  # side by side, without holes
    if not fresh:
        lanes[:] = 0
    for (a, b), group in spans.items():
        here = lanes[lanes_at[a] - lanes_at[lo] : lanes_at[b] - lanes_at[lo]]
        payloads = [(p.data, p.widths) for p in group if isinstance(p, LatticePayload)]
        sums = [p.lanes for p in group if isinstance(p, LatticeSum)]
        if payloads:
            kernels.add(scheme, terms.size, classes[a:b], here, payloads, fresh, a, b)
        elif fresh:
            here[:] = sums.pop()
        for summed in sums:
            kernels.add_lanes(scheme, terms.size, classes[a:b], here, summed, a, b)
    return LatticeSum(codec, terms, parts[0].round_id, most, lanes, counts, lo, hi)


def _by_span(parts: Sequence[Part]) -> dict[Span, list[Part]]:
    groups: dict[Span, list[Part]] = {}
    for part in parts:
        groups.setdefault((part.lo, part.hi), []).append(part)
    return groups

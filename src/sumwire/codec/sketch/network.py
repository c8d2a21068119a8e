"""A Sketch where packets are merged on their way: its words join by OR, its cells add modulo 2**64.

Escapes have no such form: if any worker has some, whole payloads are exchanged instead. The same if packets of a sketch
have different workers, since its parts are of no use without each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sumwire.codec.sketch.parts import ESCAPE, SketchPayload, SketchSum, SketchTerms
from sumwire.codec.streams import Merged, Stream

if TYPE_CHECKING:
    from sumwire.codec.sketch.codec import Sketch


def streams(payload: SketchPayload) -> list[Stream]:
    """See `SketchPayload.streams`."""
    head = np.array([payload.exponent, len(payload.escapes)], np.uint64).view(np.uint8)
    cells = np.append(payload.cells.view(np.uint64), np.uint64(payload.checksum)).view(np.uint8)
    index = payload.index.view(np.uint8)
    found = [Stream("max", head, 64, len(head)), Stream("add", cells, 64, len(cells))]
    return [*found, Stream("or", index, 64, len(index))] if len(index) else found


def read(
    codec: Sketch, terms: SketchTerms, merged: Sequence[Merged], round_id: int, ranks: Sequence[int] | None
) -> SketchSum | None:
    """See `Codec.read_streams`."""
    exponent, escapes = merged[0].data.view(np.uint64).tolist()
    members = {int(found.members[0]) for found in merged}
    if escapes or (ranks is None and (len(members) > 1 or 0 in members)):
        return None
    if ranks is None:
        [bits] = members
        ranks = [rank for rank in range(codec.workers) if bits >> rank & 1]
    cells = merged[1].data.view(np.uint64)
    index = merged[2].data.view(np.uint64) if len(merged) > 2 else np.empty(0, np.uint64)
    return SketchSum(
        codec,
        terms,
        round_id,
        len(ranks),
        tuple(ranks),
        index,
        cells[:-1].view(np.int64),
        int(cells[-1]),
        exponent,
        np.zeros(0, ESCAPE),
    )

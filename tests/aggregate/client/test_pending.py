"""A worker's side of a round: which sums it believes."""

from __future__ import annotations

import asyncio

import numpy as np

from sumwire import Lattice
from sumwire.aggregate.client.pending import Pending
from sumwire.wire import control, frame


def test_a_sum_is_believed_only_with_a_note_of_its_own() -> None:
    async def main() -> None:
        codec, x = Lattice(3), np.ones(1024, np.float32)
        terms = codec.propose(x)
        total = codec.add([codec.encode(x, terms, rank=rank) for rank in (0, 1)])
        received = frame.parse(frame.to_bytes(total))
        span = (received.lo, received.hi)
        pending = Pending.of(codec, x.shape, 0, 0, 1)
        pending.agree(terms)

        def miss(*ranks: int) -> None:
            pending.miss(control.Expired(0, *span, control.write_ranks(set(ranks), 3)))

        pending.receive(received)
        assert not pending.sums, "nobody has said who is missing"
        miss(1)
        pending.forget_notes(0)  # the shard that wrote it is no more
        pending.receive(received)
        assert not pending.sums, "the note was of another server's sum"
        miss(1, 2)
        pending.receive(received)
        assert not pending.sums, "a sum of two payloads misses one"
        miss(2)
        pending.receive(received)
        assert span in pending.sums
        assert pending.late == []
        miss(0)
        assert pending.late == [], "what has come is not changed by notes that come later"

    asyncio.run(main())

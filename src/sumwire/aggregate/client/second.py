"""The second exchange of a round, over the server: what a Sketch could not peel, in lanes of its own.

All workers of a round have the same sum, so they find the same leftovers, and each begins the exchange by itself. Its
id is the round's with the bit `SECOND`, whatever other rounds a worker has begun meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Any

from numpy.typing import NDArray

from sumwire.aggregate.client.rounds import Rounds
from sumwire.aggregate.server.rules import SECOND
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sketch.parts import SketchSum
from sumwire.errors import RoundError


async def settle(rounds: Rounds, codec: Sketch, total: SketchSum, values: NDArray[Any]) -> NDArray[Any]:
    """The mean of a sum, with a second exchange if values are stuck. Only those in the sum have a say in it."""
    peeled = await asyncio.to_thread(codec.peel, total)
    if not len(peeled.leftovers):
        return await asyncio.to_thread(codec.complete, peeled)
    terms, round_id = codec.second_terms(peeled), total.round_id | SECOND
    pending = await rounds.open(terms.codec, terms.shape, round_id)
    pending.agree(terms)
    try:
        if rounds.rank in total.ranks:
            mine = await asyncio.to_thread(lambda: codec.pick(values, peeled.leftovers))
            keys = {"rank": rounds.rank, "round_id": round_id}
            rounds.upload(pending, await asyncio.to_thread(lambda: terms.codec.encode(mine, terms, **keys)))
        else:
            rounds.abstain(pending, f"round {total.round_id} was summed without it")
        await rounds.result(pending)
        second = pending.reply().total
        return await asyncio.to_thread(lambda: codec.complete(peeled, second))
    except BaseException as error:
        if not pending.parts and not isinstance(error, RoundError):
            rounds.abstain(pending, f"{type(error).__name__}: {error}")
        raise
    finally:
        rounds.close(pending)

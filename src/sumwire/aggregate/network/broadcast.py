"""What one worker of a rack knows, at all of them: by packets of a job that has a quorum of 1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sumwire.aggregate.network.link import PacketLink
from sumwire.aggregate.network.transport import RELIABLE, Delivery
from sumwire.codec.algebra import Bytes
from sumwire.codec.streams import Merged, Stream
from sumwire.errors import RoundError, SumwireError

FIRST = 1
"""Members of what may be believed: the first worker alone."""


class Broadcast:
    """Bytes of any length, of the first worker.

    A job with a quorum of 1 waits for nobody, so the first worker could reuse a slot whose result another one has
    missed. So no more than a window of chunks is sent before all have met in the other job, `meeting`.
    """

    def __init__(self, meeting: PacketLink, job: PacketLink) -> None:
        self._meeting, self._job = meeting, job

    def run(self, channel: int, make: Callable[[], bytes] | None, about: str) -> bytes:
        """What `make` gives at the first worker, which alone has one; or its error.

        An exchange in the other job, on the same channel, must have come before.
        """
        data, failed = b"", False
        if make is not None:
            try:
                data = make()
            except SumwireError as error:  # the others must not wait for what does not come
                data, failed = str(error).encode(), True
        head = np.array([len(data), failed, 0, 0, 0, 0, 0, 0], np.uint64)
        length, wrong = self._spread(channel, head.view(np.uint8), make is not None, about).view(np.uint64)[:2].tolist()
        body = np.zeros(-(-length // 8) * 8, np.uint8)
        body[: len(data)] = np.frombuffer(data, np.uint8)
        greeting = self._job.greeting
        segment = greeting.body // 64 * 64 * max(1, greeting.window - 1)
        for at in range(0, len(body), segment):
            if at:
                self._meet(channel, about)
            where = slice(at, at + segment)
            body[where] = self._spread(channel, body[where], make is not None, f"{about} from byte {at}")
        found = body[:length].tobytes()
        if wrong:
            raise RoundError(f"the rack's first worker: {found.decode(errors='replace')}")
        return found

    def _spread(self, channel: int, data: Bytes, sends: bool, about: str) -> Bytes:
        stream = Stream("or", data, 64, len(data))
        found: list[Merged] = self._job.exchange(channel, [stream], about, Delivery(absent=not sends))
        if int(found[0].members[0]) != FIRST:
            raise RoundError(
                f"{about} came from another worker than the rack's first: do all have a rank of their own?"
            )
        return found[0].data

    def _meet(self, channel: int, about: str) -> None:
        nothing = Stream("or", np.zeros(64, np.uint8), 64, 64)
        self._meeting.exchange(channel, [nothing], f"middle of {about}", RELIABLE)

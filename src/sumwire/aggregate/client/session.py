"""A worker's session with the server: sends what rounds in flight need, and sends it again where it got lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sumwire.aggregate.base import Workspace
from sumwire.aggregate.client.contribution import Contribution, Pieces
from sumwire.aggregate.client.history import PastRounds, RoundNumbers
from sumwire.aggregate.client.pending import Pending
from sumwire.aggregate.client.shards import Shards
from sumwire.aggregate.protocol import HISTORY, name, place
from sumwire.aggregate.protocol.connection import SILENCE
from sumwire.aggregate.round import Request
from sumwire.codec.algebra import FOLLOW_UP, Payload, Shape, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.errors import BehindError, MismatchError, RoundError, SumwireError
from sumwire.wire import control, frame
from sumwire.wire.frame import Frame, describe
from sumwire.wire.limits import Kind

T = TypeVar("T")


class Session:
    """What a link has in flight, at all shards."""

    def __init__(self, workers: int, rank: int, timeout: float, retry: float) -> None:
        self.rank, self.workers = rank, workers
        self._timeout, self._retry = timeout, retry
        self.shards = Shards()
        self.error: SumwireError | None = None
        """Why nothing more can be done."""
        self.numbers = RoundNumbers()
        self._pending: dict[int, Pending] = {}
        self._past = PastRounds()
        self.server_timeout = 0.0
        """Seconds after which the server gives up a round in which nothing happens."""
        self.capped = False
        """Whether the server holds scales down to their median: what is larger is made to fit."""
        self._codecs: dict[str, Codec] = {}
        self._space = asyncio.Event()

    @property
    def position(self) -> int:
        """The oldest round in flight, or one after all that were; 0 if there were none."""
        return self.numbers.oldest(self._pending)

    # Beginning and end

    async def open(self, codec: Codec, shape: Shape, round_id: int, workspace: Workspace | None = None) -> Pending:
        """Begin a round, once it is not too far ahead of the oldest one."""
        if codec.workers != self.workers:
            raise MismatchError(
                f"the codec is built for {codec.workers} workers, the link has {self.workers}: build it with "
                f"workers={self.workers}"
            )
        self._check(round_id)
        if not round_id & FOLLOW_UP or place(round_id) not in self._pending:
            # It counts while it waits: it must not be left behind by one that comes after it and wakes up earlier.
            round_id = self.numbers.take(round_id)
            try:
                await self._room(round_id)
            finally:
                self.numbers.expected.discard(round_id)
                self._space.set()
        pending = self._pending[round_id] = Pending.of(codec, shape, round_id, self.rank, len(self.shards))
        if workspace is not None:
            pending.statistics = workspace.statistics
        if codec.family not in self._codecs:
            self._codecs[codec.family] = codec
            for shard in range(len(self.shards)):
                self.shards.send(shard, [[control.to_bytes(describe(codec))]])
        return pending

    async def _room(self, round_id: int) -> None:
        """Wait until the oldest round is near enough."""
        loop = asyncio.get_running_loop()
        before, since = self.position, loop.time()
        while place(round_id) >= self.position + HISTORY:
            self._space.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry):
                    await self._space.wait()
            self._check(round_id)
            if self.position != before:
                before, since = self.position, loop.time()
            elif loop.time() - since > 2 * self._patience:
                raise RoundError(
                    f"round {round_id} waits for round {self.position}, which does not end: only {HISTORY} rounds may "
                    "be in flight; use the numbers of next_round in order, and call end_round for those given up"
                )

    @property
    def _patience(self) -> float:
        """Seconds without any progress after which the server would have given up, and has not said so."""
        return max(self._timeout, self.server_timeout) + SILENCE * self._retry

    def _check(self, round_id: int) -> None:
        if self.error is not None:
            raise self.error
        if not self.shards:
            raise RoundError("the link is not open: use it in an async with statement")
        if round_id in self._pending:
            raise RoundError(f"{name(round_id)} is in flight already: every average needs a round of its own")

    def get(self, round_id: int) -> Pending | None:
        return self._pending.get(round_id)

    def end(self, round_id: int, error: BaseException | None = None) -> None:
        """Nothing more of this round, nor of its second exchange; if it was given up, others need not wait for it."""
        here = place(round_id)
        mine = [pending for r, pending in self._pending.items() if place(r) == here]
        if error is not None and not isinstance(error, RoundError) and self.error is None:
            reason = f"{type(error).__name__}: {error}"
            for pending in mine:
                if not pending.parts and not pending.done.done():
                    self.abstain(pending, reason)
            if not mine and round_id == here and here not in self._past.finished:  # it never began
                self._abstain(here, reason)
        for pending in mine:
            self.close(pending)
        self.numbers.expected.discard(here)
        self._space.set()

    def close(self, pending: Pending) -> None:
        """A round has ended, with a result or without."""
        self._pending.pop(pending.round_id, None)
        self._space.set()
        if pending.done.done() and pending.done.exception() is None:
            pending.parts.clear()
            self._past.finish(pending)

    def fail_all(self, error: SumwireError) -> None:
        """Nothing more can be done."""
        self.error = self.error or error
        for pending in self._pending.values():
            pending.fail(error)
        self._space.set()

    # What is sent

    async def join(self, terms: Terms, round_id: int, workspace: Workspace | None = None) -> Terms:
        """The terms of all workers, joined."""
        pending = await self.open(terms.codec, terms.shape, round_id, workspace)
        try:
            pending.proposal = frame.buffers(terms, round_id=pending.round_id)
            self._send_for(pending, 0, [pending.proposal])
            return await self._wait(pending, pending.agreed)
        except RoundError:
            self.close(pending)
            raise

    async def add(
        self,
        request: Request,
        result: Callable[[Pending], T],
        *,
        contribution: Contribution | None = None,
        workspace: Workspace | None = None,
    ) -> T:
        """What `result` makes of the sum of all workers' payloads; of the others', if there is nothing to add."""
        upload = contribution or request.payload
        pending, terms = self._pending.get(request.round_id), request.terms
        if pending is None:
            pending = await self.open(terms.codec, terms.shape, request.round_id, workspace)
            pending.agree(terms)
        try:
            if upload is None:
                self.abstain(pending, request.reason)
            else:
                self._upload(pending, upload)
            await self._wait(pending, pending.done)
            found = await asyncio.to_thread(result, pending)
        except RoundError:
            self.close(pending)
            await self.shards.drain(self._patience)
            raise
        if pending.resent or pending.late:  # what nobody needs any more is queued, and its memory is the caller's
            await self.shards.drain(self._patience)
        if not pending.stays_open:
            self.close(pending)
        return found

    async def listen(self, codec: Codec, shape: Shape, round_id: int, reason: str) -> Sum:
        """The sum of the others' payloads, under terms that they join: this worker takes no part."""
        pending = await self.open(codec, shape, round_id)
        try:
            self.abstain(pending, reason)
            await self._wait(pending, pending.agreed)
            await self._wait(pending, pending.done)
            return await asyncio.to_thread(pending.total)
        finally:
            self.close(pending)

    def _upload(self, pending: Pending, upload: Payload | Contribution) -> None:
        pending.upload(upload)
        if pending.overruled:
            self.abstain(pending, "its payload is under other terms than the others'")
            return
        for shard in range(len(self.shards)):
            self._send_for(pending, shard, pending.messages(shard))

    def abstain(self, pending: Pending, reason: str) -> None:
        """Send nothing of this round any more."""
        pending.abstained = self._abstain(pending.round_id, reason)

    def _abstain(self, round_id: int, reason: str) -> control.Abstain:
        message = control.Abstain(round_id, reason[: control.MAX_REASON])
        self._past.give_up(message)
        for shard in self.shards:
            shard.send([control.to_bytes(message)])
        return message

    async def _wait(self, pending: Pending, future: asyncio.Future[T]) -> T:
        """Wait for an answer, and ask for it now and then; not for longer than the server itself would wait."""
        loop = asyncio.get_running_loop()
        seen, since = pending.progress, loop.time()
        while not future.done():
            await asyncio.wait([future], timeout=self._retry)
            if future.done():
                break
            now = loop.time()
            if pending.progress != seen:
                seen, since = pending.progress, now
            if now - since > self._patience:
                pending.fail(
                    RoundError(
                        f"{name(pending.round_id)} got no usable answer from the server for {self._patience:g} s, "
                        "although it gives rounds up before that: see its log; do all workers run this release?"
                    )
                )
                break
            for number, shard in enumerate(self.shards):
                if pending.concerns(number):
                    shard.ask(pending.round_id)
        return future.result()

    # What arrives

    def welcomed(self, shard: int, welcome: control.Welcome, again: bool) -> None:
        """A connection stands, perhaps again: the shard is told all that it may not know."""
        self.server_timeout, self.capped = welcome.timeout, welcome.scale_cap > 0
        if len(self.shards) <= shard:
            return
        self.shards.send(shard, [[control.to_bytes(describe(codec))] for codec in self._codecs.values()])
        if again:  # the shard was started afresh: those who wait for older rounds get their results from us
            for old in self._past.finished:
                self.shards.send(shard, self._past.results(old, shard))
            for pending in self._pending.values():
                pending.forget_notes(shard)
        for pending in self._pending.values():
            self._send_again(shard, pending)

    def told(self, shard: int, message: control.Control) -> None:
        if isinstance(message, control.Which):
            if message.family in self._codecs:
                self.shards.send(shard, [[control.to_bytes(describe(self._codecs[message.family]))]])
            return
        round_id = getattr(message, "round_id", -1)
        pending = self._pending.get(round_id)
        if isinstance(message, control.Ask):
            self.shards.send(
                shard, self._past.answer(shard, round_id, self.numbers.first, in_flight=pending is not None)
            )
        elif pending is None:
            return
        elif isinstance(message, control.Failed):
            kind = RoundError
            if message.next_round:
                kind = BehindError if message.next_round > place(message.round_id) else RoundError
                self.numbers.move(message.next_round, back=not self._past.finished)
            pending.fail(kind(f"{name(message.round_id)} failed: {message.reason}"))
        elif isinstance(message, control.Expired):
            pending.miss(message)
        elif isinstance(message, control.Status):
            pending.heard(shard, message)
            if pending.terms is not None or not message.proposed:
                self._send_again(shard, pending, frozenset(message.arrived))

    def got(self, shard: int, received: Frame) -> None:
        pending = self._pending.get(received.round_id)
        if pending is None:
            return
        try:
            if received.kind is Kind.TERMS:
                terms = received.terms(pending.codec, pending.shape)
                pending.agree(terms.as_capped() if self.capped else terms)
            elif received.kind.is_sum:
                pending.receive(received)
        except SumwireError as error:
            pending.fail(RoundError(f"{name(received.round_id)}: the server's answer is invalid: {error}"))

    def _send_again(self, shard: int, pending: Pending, arrived: frozenset[int] = frozenset()) -> None:
        pending.resent = pending.resent or bool(pending.parts)
        self._send_for(pending, shard, pending.messages(shard, arrived))

    def _send_for(self, pending: Pending, shard: int, messages: list[Pieces]) -> None:
        pending.statistics.add_sent(self.shards.send(shard, messages))

"""Averages over the parameter server, in asyncio. `link` has the form for everybody else."""

from __future__ import annotations

import asyncio
import math
import secrets
import ssl
from typing import Self, cast

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.client.contribution import Contribution
from sumwire.aggregate.client.pending import Pending
from sumwire.aggregate.client.session import Session
from sumwire.aggregate.client.shards import Shards
from sumwire.aggregate.protocol.connection import Address, ShardConnection, parse_address
from sumwire.aggregate.round import Request, Round
from sumwire.codec.algebra import MAX_WORKERS, ErrorFeedback, Payload, Shape, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.options import whole_number
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.tensors import Tensor, as_tensor, check_out, float32_pairs, give_back, is_float64, join_pairs
from sumwire.errors import ConfigError, RoundError
from sumwire.wire import control


def measured(nmse: float) -> control.Measured:
    """The message of a normalized squared error."""
    if not 0 <= nmse < math.inf:
        raise ConfigError(f"nmse={nmse} is not a finite number of at least 0")
    return control.Measured(float(nmse))


class AsyncLink:
    """A worker's link to the server, for asyncio. Use `async with`.

    Law: `average` gives every worker the same bits, those of `sumwire.average` over the tensors of the workers in the
    sum. Lost connections are made again and lost messages sent again; nothing is added twice. A round that cannot
    complete raises `RoundError` that names the round and the missing workers. Rounds are numbered upwards, and no more
    than eight are in flight at once: later ones wait. A round is in flight from `join` or `add` until its sum is there;
    where a second exchange may follow, until `end_round`.
    """

    lossy = False
    """As of any `Aggregator`: a server fails a round of which something is missing."""

    def __init__(
        self,
        address: str,
        *,
        rank: int,
        workers: int,
        job: str = "default",
        token: str = "",
        tls: ssl.SSLContext | None = None,
        codec: Codec | None = None,
        timeout: float = 60.0,
        retry: float = 1.0,
        span: int = 1,
    ) -> None:
        self.workers, self.rank = whole_number("workers", workers), whole_number("rank", rank)
        if not 1 <= self.workers <= MAX_WORKERS or not 0 <= self.rank < self.workers:
            raise ConfigError(
                f"rank {rank} of {workers} workers is impossible: workers is in 1..{MAX_WORKERS}, and ranks are "
                "0..workers-1"
            )
        if not timeout > 0 or not retry > 0:
            raise ConfigError(f"timeout={timeout} and retry={retry} are invalid: both are seconds, above 0")
        self._span = whole_number("span", span, 1, self.workers - self.rank)
        """Ranks that this link speaks for, from its own on: more than 1 of a rack."""
        host, port = parse_address(address)
        self._address = Address(host, port, tls)
        self._job, self._token = job, token
        self._process = ""
        """Tells the server this link from others that claim its rank."""
        self.codec: Codec = codec if codec is not None else Lattice(self.workers)
        self._timeout, self._retry = timeout, retry
        self.first_round = 0
        """The round with which the job began."""
        self._session = Session(self.workers, self.rank, timeout, retry)

    @property
    def upcoming(self) -> int:
        """The number that `next_round` will give."""
        return self._session.numbers.upcoming

    async def __aenter__(self) -> Self:
        # Not before it connects: processes that were forked from one link are different workers to the server.
        self._process = secrets.token_hex(8)
        shards = self._session.shards
        try:
            shards.append(self._connect(0))
            first = await self._welcome(shards[0])
            shards += [self._connect(shard) for shard in range(1, first.shards)]
            welcomes = [await self._welcome(shard) for shard in shards]
        except BaseException:
            await self.close()
            raise
        self.first_round = first.first_round
        self._session.numbers.begin_at(first.first_round, [welcome.next_round for welcome in welcomes])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections. Rounds in flight raise `RoundError`."""
        self._session.fail_all(RoundError("the link is closed: open another one to go on"))
        shards, self._session.shards = self._session.shards, Shards()
        for shard in shards:
            await shard.close()

    def _connect(self, shard: int) -> ShardConnection:
        return ShardConnection(self._session, self._address, shard, self._hello, self._timeout, self._retry)

    def _hello(self, known: str) -> control.Hello:
        position = self._session.position if known else 0
        return control.Hello(
            self._job, self._token, self.rank, self._process, self.workers, position, known, span=self._span
        )

    async def _welcome(self, shard: ShardConnection) -> control.Welcome:
        while not shard.ready.done():
            if self._session.error is not None:
                raise self._session.error
            await asyncio.wait([shard.ready], timeout=0.05)
        return shard.ready.result()

    # The operators

    async def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        """The terms of all workers, joined."""
        return await self._session.join(terms, round_id, workspace)

    async def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        """The sum of all workers' payloads, made under terms that `join` gave, or that all know in another way.

        Its `late` says which parts of it this worker was too late for.
        """
        request = Request(payload.terms, payload.round_id, payload)
        return await self._session.add(request, Pending.total, workspace=workspace)

    async def contribute(self, request: Request, contribution: Contribution | None) -> bytes:
        """The total, for a rack that has added its workers' payloads: messages that `read_total` reads."""
        return await self._session.add(request, Pending.everything, contribution=contribution)

    async def skip(self, terms: Terms, *, round_id: int, reason: str) -> Sum:
        """The sum of the others' payloads: this worker takes no part."""
        return await self._session.add(Request(terms, round_id, None, reason), Pending.total)

    async def listen(self, codec: Codec, shape: Shape, *, round_id: int, reason: str) -> Sum:
        """The sum of the others' payloads, under terms that they join: this worker takes no part."""
        return await self._session.listen(codec, shape, round_id, reason)

    def next_round(self) -> int:
        """The number of the next round. It counts as in flight until `end_round`, or until it is averaged."""
        return self._session.numbers.take()

    def end_round(self, round_id: int, error: BaseException | None = None) -> None:
        """Nothing more comes from this worker; if an `error` made it give up, the others need not wait for it."""
        self._session.end(round_id, error)

    def prepare(self, codec: Codec) -> Codec:
        """The codec as it is."""
        return codec

    def check_residual(self, codec: Codec, residual: ErrorFeedback | None) -> None:
        """Feedback is part of a family: so no round mixes workers that divide by the count with others."""
        if (residual is not None) != codec.feedback:
            raise ConfigError(
                "a codec with feedback=True needs a residual at every worker, and a residual such a codec: build it "
                f"with feedback={residual is not None}, or {'pass a' if residual is None else 'omit the'} residual"
            )

    # A whole round

    async def average(
        self,
        x: Tensor,
        *,
        codec: Codec | None = None,
        residual: ErrorFeedback | None = None,
        out: Tensor | None = None,
        round_id: int | None = None,
    ) -> Tensor:
        """The mean of all workers' tensors: see `Aggregator.average`. Workers call it in the same order."""
        if out is not None:
            check_out(out, as_tensor(x))
        codec = codec or (residual.codec if residual is not None else self.codec)
        round_ = Round(cast(Aggregator, self), x, codec, round_id=round_id, residual=residual, out=out)
        self._session.numbers.take(round_.round_id)
        try:
            await self._exchange(round_)
        except BaseException as error:
            self.end_round(round_.round_id, error)
            raise
        self.end_round(round_.round_id)
        return await asyncio.to_thread(round_.decode)

    async def _exchange(self, round_: Round) -> None:
        """`Round.agree` and `Round.add`, whose steps wait here without a thread."""
        try:
            if not round_.exact:
                terms = await asyncio.to_thread(round_.propose)
                if round_.codec.agrees:
                    terms = await self.join(terms, round_id=round_.round_id)
                await asyncio.to_thread(round_.encode, terms)
            if round_.exact:
                round_.settle(await self._average_exactly(round_))
                return
            request: Request | None = round_.request()
            while request is not None:
                total = await self._session.add(request, Pending.total)
                request = await asyncio.to_thread(round_.accept, total)
        except RoundError:
            round_.failed()
            raise

    async def _average_exactly(self, round_: Round) -> Tensor:
        """As `Aggregator.average_exactly`."""
        x, pairs = round_.x, is_float64(round_.x)
        exact = Round(
            cast(Aggregator, self),
            float32_pairs(x) if pairs else x,
            Sparse(self.workers),
            round_id=round_.round_id,
            out=None if pairs else round_.out,
        )
        await self._exchange(exact)
        mean = await asyncio.to_thread(exact.decode)
        return give_back(join_pairs(mean), x, round_.out) if pairs else mean

    # What the server is told

    async def report(self, *, nmse: float) -> None:
        """Tell the server the normalized squared error of a round, for its page and metrics."""
        self.tell(measured(nmse))

    def tell(self, message: control.Measured) -> None:
        """Send a message that nobody answers."""
        for first in self._session.shards[:1]:
            first.send([control.to_bytes(message)])

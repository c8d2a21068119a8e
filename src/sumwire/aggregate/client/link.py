"""Averages over the parameter server, in asyncio. `sync` has the form for everybody else."""

from __future__ import annotations

import asyncio
import math
import secrets
import ssl
from collections.abc import Sequence
from typing import Any, Self

from numpy.typing import NDArray

from sumwire.aggregate.client.connection import Address, ShardConnection
from sumwire.aggregate.client.pending import Pending, Reply
from sumwire.aggregate.client.rounds import Rounds
from sumwire.aggregate.client.second import settle
from sumwire.codec.base import MAX_WORKERS, Payload, Sum, Terms, same, whole_number
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sparse.codec import Sparse
from sumwire.codec.sparse.parts import SparseTerms
from sumwire.codec.tensors import Tensor, flatten, give_back
from sumwire.errors import ConfigError, MismatchError, RoundError
from sumwire.kernels.arrays import to_float32
from sumwire.wire import control
from sumwire.wire.codecs import AnyCodec

DEFAULT_PORT = 4650


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port", "host", "[::1]:port".

    >>> parse_address("10.0.0.7:4700"), parse_address("server"), parse_address("[::1]:80")
    (('10.0.0.7', 4700), ('server', 4650), ('::1', 80))
    """
    host, colon, port = address.rpartition(":")
    if not colon or (address.startswith("[") and address.endswith("]")):
        host, port = address, str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536 or not host:
        raise ConfigError(f"address {address!r} is not host:port")
    return host.strip("[]"), int(port)


def measured(nmse: float) -> control.Measured:
    """The message of a normalised squared error."""
    if not 0 <= nmse < math.inf:
        raise ConfigError(f"nmse={nmse} is not a finite number of at least 0")
    return control.Measured(float(nmse))


class AsyncLink:
    """A worker's link to the server, for asyncio. Use `async with`.

    Law: `average` gives every worker the same bits, those of `sumwire.average` over the tensors of the workers in the
    sum. Lost connections are made again and lost messages sent again; nothing is added twice. A round that cannot
    complete raises `RoundError` that names the round and the missing workers. Rounds are numbered upwards, and no more
    than eight are under way at once: later ones wait.
    """

    def __init__(
        self,
        address: str,
        *,
        rank: int,
        workers: int,
        job: str = "default",
        token: str = "",
        tls: ssl.SSLContext | None = None,
        codec: AnyCodec | None = None,
        timeout: float = 60.0,
        retry: float = 1.0,
    ) -> None:
        self.workers, self.rank = whole_number("workers", workers), whole_number("rank", rank)
        if not 1 <= self.workers <= MAX_WORKERS or not 0 <= self.rank < self.workers:
            raise ConfigError(
                f"rank {rank} of {workers} workers: ranks are 0..workers-1, workers at most {MAX_WORKERS}"
            )
        if not timeout > 0 or not retry > 0:
            raise ConfigError(f"timeout={timeout} and retry={retry} are seconds, above 0")
        host, port = parse_address(address)
        self._address = Address(host, port, tls)
        self._job, self._token = job, token
        self._process = secrets.token_hex(8)
        """Tells the server this link from others that claim its rank."""
        self.codec = codec if codec is not None else Lattice(self.workers)
        self._timeout, self._retry = timeout, retry
        self._rounds = Rounds(self.rank, self.workers, timeout, retry)

    @property
    def next_round(self) -> int:
        """The round that the next `average` takes part in, unless it is told another."""
        return self._rounds.next_round

    async def __aenter__(self) -> Self:
        shards = self._rounds.shards
        try:
            shards.append(self._connect(0))
            first = await self._welcome(shards[0])
            shards += [self._connect(shard) for shard in range(1, first.shards)]
            welcomes = [await self._welcome(shard) for shard in shards]
        except BaseException:
            await self.close()
            raise
        self._rounds.begin_at(first.first_round, [welcome.next_round for welcome in welcomes])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections. Rounds under way raise `RoundError`."""
        self._rounds.fail_all(RoundError("the link is closed: open another one to go on"))
        shards, self._rounds.shards = self._rounds.shards, []
        for shard in shards:
            await shard.close()

    def _connect(self, shard: int) -> ShardConnection:
        return ShardConnection(self._rounds, self._address, shard, self._hello, self._timeout, self._retry)

    def _hello(self, known: str) -> control.Hello:
        position = self._rounds.position if known else 0
        return control.Hello(self._job, self._token, self.rank, self._process, self.workers, position, known)

    async def _welcome(self, shard: ShardConnection) -> control.Welcome:
        while not shard.ready.done():
            if self._rounds.error is not None:
                raise self._rounds.error
            await asyncio.wait([shard.ready], timeout=0.05)
        return shard.ready.result()

    # What users call

    async def average(
        self,
        x: Tensor,
        *,
        codec: AnyCodec | None = None,
        round_id: int | None = None,
        residual: Residual | None = None,
    ) -> Tensor:
        """The mean of all workers' tensors, in x's kind, dtype and shape. Workers call it in the same order.

        The sum is divided by the count of workers in it. With a `residual` the tensor is corrected first, what came
        too late to be counted goes back into it, and the sum is divided by `workers`: what is missing comes later. When
        a round fails with `RoundError`, all of the tensor goes back: do not average it again. A codec
        with feedback=True goes with a residual, and no other does: all workers of a round pass one, or none.
        """
        codec = (residual.codec if residual is not None else self.codec) if codec is None else codec
        if residual is not None:
            same("codec family", codec.family, residual.codec.family, "average with this residual")
        # Feedback is part of a family: so no round mixes workers that divide by the count with others.
        if (residual is not None) != bool(getattr(codec, "feedback", False)):
            raise ConfigError(
                "a codec with feedback=True needs a residual at every worker, and a residual such a codec: build it "
                f"with feedback={residual is not None}, or {'pass a' if residual is None else 'omit the'} residual"
            )
        round_id = self._rounds.number(round_id)
        flat, shape = flatten(x)
        values = to_float32(flat) if not isinstance(codec, Sparse) else flat
        corrected = values if residual is None else residual.correct(values.reshape(shape))
        try:
            pending = await self._rounds.open(codec, (flat.size,), round_id)
        except RoundError:
            if residual is not None:
                _take_back(residual, values, None)
            raise
        mine: Any = None
        try:
            try:
                mine = await self._encode(pending, corrected.reshape(-1), residual)
            except MismatchError as error:  # late, and larger than what the others agreed on
                self._rounds.abstain(pending, str(error))
            else:
                self._rounds.upload(pending, mine)
            await self._rounds.result(pending)
            reply = pending.reply()
            # Before the round is closed: until then no other may leave it behind.
            settled = await settle(self._rounds, codec, reply.total, values) if isinstance(codec, Sketch) else None
        except BaseException as error:
            if not pending.parts and not isinstance(error, RoundError):
                self._rounds.abstain(pending, f"{type(error).__name__}: {error}")
            if residual is not None and isinstance(error, RoundError):
                _take_back(residual, values, mine)
            raise
        finally:
            self._rounds.close(pending)
        if residual is not None and reply.late:
            _take_back(residual, values, mine, reply.late)
        if settled is not None:
            mean = settled
        elif residual is not None:  # which sends what is missing from the sum later, as one of all workers
            mean = await asyncio.to_thread(lambda: residual.codec.decode(reply.total, divide_by="workers"))
        else:
            mean = await asyncio.to_thread(codec.decode, reply.total)
        return give_back(mean.reshape(shape), x)

    async def join(self, terms: Terms, *, round_id: int) -> Any:
        """The terms of all workers, joined. The round is under way until its payload is added."""
        number = self._rounds.number(round_id)
        pending = await self._rounds.open(terms.codec, terms.shape, number)  # type: ignore[arg-type]
        try:
            return await self._rounds.join(pending, terms)
        except BaseException:
            self._rounds.close(pending)
            raise

    async def add(self, payload: Payload) -> Sum:
        """The sum of all workers' payloads, made under terms that `join` gave."""
        if self._rounds.get(payload.round_id) is None:
            raise RoundError(f"round {payload.round_id} has no terms yet: join them before adding payloads")
        total: Sum = (await self.exchange(payload)).total
        return total

    async def exchange(self, payload: Payload) -> Reply:
        """The sum of all workers' payloads, and the parts of it that came too late.

        Their terms are those that `join` gave, or that workers have agreed on in another way.
        """
        pending = self._rounds.get(payload.round_id)
        if pending is None:
            number = self._rounds.number(payload.round_id)
            pending = await self._rounds.open(payload.codec, payload.shape, number)  # type: ignore[arg-type]
            pending.agree(payload.terms)
        try:
            self._rounds.upload(pending, payload)
            await self._rounds.result(pending)
            return pending.reply()
        finally:
            self._rounds.close(pending)

    async def report(self, *, nmse: float) -> None:
        """Tell the server the normalised squared error of a round, for its page and metrics."""
        self.tell(measured(nmse))

    def tell(self, message: control.Measured) -> None:
        """Send a message that nobody answers."""
        for first in self._rounds.shards[:1]:
            first.send([control.to_bytes(message)])

    async def _encode(self, pending: Pending, flat: NDArray[Any], residual: Residual | None) -> Any:
        codec, rank, round_id = pending.codec, self.rank, pending.round_id
        if isinstance(codec, Sparse):
            terms: Any = SparseTerms(codec, pending.shape)
            pending.agree(terms)
        else:
            terms = await self._rounds.join(pending, await asyncio.to_thread(codec.propose, flat))
        fit = self._rounds.capped and isinstance(codec, Lattice)
        if residual is not None:
            shaped = type(terms)(terms.codec, residual.value.shape, terms.scales)
            return await asyncio.to_thread(lambda: residual.encode(shaped, rank=rank, round_id=round_id, fit=fit))
        if isinstance(codec, Lattice) and fit:
            flat = await asyncio.to_thread(codec.fit, flat, terms)
        return await asyncio.to_thread(lambda: codec.encode(flat, terms, rank=rank, round_id=round_id))


def _take_back(
    residual: Residual, values: NDArray[Any], mine: Any, late: Sequence[tuple[int, int]] | None = None
) -> None:
    """Keep in the residual what was not counted: parts of the payload, or all; or the tensor, if there is none."""
    if mine is None:
        residual.value.reshape(-1)[:] += values
    elif late is None:
        residual.lost(mine)
    else:
        for lo, hi in late:
            residual.lost(mine.part(lo, hi))

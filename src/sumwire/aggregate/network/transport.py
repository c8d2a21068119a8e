"""Streams of bytes merged with those of the other workers, by packets: what `docs/in-network.md` asks of a worker."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.network.greeting import WAIT, Greeting, PacketAddress, check_mtu, request, stale
from sumwire.aggregate.network.native import LinkCounts, Outcome, Status, StreamRecord, functions
from sumwire.aggregate.protocol.packet import GRAIN, Operation, PacketKind
from sumwire.codec.algebra import Bytes
from sumwire.codec.streams import IndexTable, Merged, Stream
from sumwire.errors import BehindError, ConfigError, RoundError

_CLOSED = "the link is closed: open another one to go on"

_PAUSE = 0.02
"""Seconds between questions whether all workers are there."""

_OPERATIONS = {
    ("add", 8): Operation.ADD8,
    ("add", 16): Operation.ADD16,
    ("add", 32): Operation.ADD32,
    ("add", 64): Operation.ADD64,
    ("max", 32): Operation.MAX32,
    ("max", 64): Operation.MAX64,
}


@dataclass(frozen=True)
class Delivery:
    """How a transfer treats what is missing."""

    absent: bool = False
    """This worker has nothing to send, and only wants the result."""
    once: bool = False
    """Bodies are not sent again: what is lost is missing."""
    tolerant: bool = False
    """A result that is gone counts as one of nobody."""


RELIABLE = Delivery()


class Transport:
    """One worker's place in a session. Each channel is used by one thread at a time."""

    def __init__(
        self, address: PacketAddress, *, rank: int, workers: int, secret: str, timeout: float, rate: float
    ) -> None:
        self.address, self.rank, self.workers, self._timeout = address, rank, workers, timeout
        self.error: RoundError | None = None
        """Why nothing more can be exchanged."""
        self._functions = functions()
        self._options = address.options(rank, secret, timeout, rate)
        self._handle = self._functions.link_open(self._options)
        if not self._handle:
            code = ctypes.get_errno()
            raise ConfigError(f"cannot open a UDP socket: {os.strerror(code) if code else 'out of descriptors?'}")
        self._locks: list[threading.Lock] = []
        self._freeing = threading.Lock()
        try:
            self.greeting = self._join()
        except BaseException:
            self.close()
            raise
        self._next = [0] * self.greeting.channels
        self._locks = [threading.Lock() for _ in self._next]
        self._tables: dict[str, int] = {}

    # Control

    def _join(self) -> Greeting:
        """Say HELLO until all workers are there."""
        nonce = secrets.randbelow((1 << 63) - 1) + 1
        body = {"nonce": nonce}
        greeting = Greeting.read(self._ask(PacketKind.HELLO, body, "HELLO"), self.workers)
        until = monotonic() + self._timeout
        while len(greeting.joined) < greeting.workers:
            if monotonic() > until:
                missing = sorted(set(range(self.workers)) - set(greeting.joined))
                raise RoundError(
                    f"workers {missing[:8]} did not say HELLO within {self._timeout:g} s: start them, or check their "
                    "addresses in the aggregator's job"
                )
            sleep(_PAUSE)
            # The same nonce: if the session changes, a worker was restarted meanwhile, and this one follows it.
            greeting = Greeting.read(self._ask(PacketKind.HELLO, body, "HELLO"), self.workers)
        check_mtu(self.address, greeting.body)
        options = self._options
        options.session, options.window, options.body = greeting.session, greeting.window, greeting.body
        options.padded, options.deadline_ns = greeting.padded, round((greeting.deadline or 0) * 1e9)
        self._functions.link_welcome(self._handle, options)
        return greeting

    def _ask(self, kind: PacketKind, body: Mapping[str, object], what: str) -> dict[str, object]:
        return request(self._functions, self._handle, self._options, kind, body, what, self.address, self._timeout)

    def _table(self, table: IndexTable, lane_bits: int) -> int:
        """The number that the session has for a table."""
        name = f"{table.name}/{lane_bits}"
        if name not in self._tables:
            body = {"name": name, "bits": table.bits, "lane": lane_bits, "values": list(table.values)}
            answer = self._ask(PacketKind.TABLE, body, f"table {name}")
            self._tables[name] = int(str(answer["table"]))
        return self._tables[name]

    # Exchange

    def exchange(
        self, channel: int, streams: Sequence[Stream], about: str, delivery: Delivery = RELIABLE
    ) -> list[Merged]:
        """All workers' streams, merged; `about` is the same at all workers, and names what they are."""
        if channel >= len(self._next):
            raise ConfigError(
                f"the job has {len(self._next)} channels, this needs {channel + 1}: configure channels={channel + 1}"
            )
        with self._locks[channel]:
            if self.error is not None:
                raise self.error
            records, results, chunks = self._records(streams, about, delivery)
            members, counts = np.zeros(sum(chunks), np.uint64), np.zeros(sum(chunks), np.uint16)
            self._transfer(channel, records, members, counts, about)
        out, at = [], 0
        for record, stream, result, count in zip(records, streams, results, chunks, strict=True):
            where = slice(at, at + count)
            out.append(_by_unit(stream, result, int(record.chunk_bytes), members[where], counts[where]))
            at += count
        return out

    def _records(
        self, streams: Sequence[Stream], about: str, delivery: Delivery
    ) -> tuple[list[StreamRecord], list[Bytes], list[int]]:
        records, results, chunks = [], [], []
        for number, stream in enumerate(streams):
            result = np.empty(stream.result_bytes, np.uint8)
            size = self.greeting.body // GRAIN * GRAIN
            whole_units = stream.partial and self.greeting.leaves_out
            if whole_units and 0 < stream.unit_bytes <= size and stream.unit_bytes % GRAIN == 0:
                size -= size % stream.unit_bytes  # packets hold whole units, each with a count of its own
            if stream.table is None:
                op = Operation.OR if stream.merge == "or" else _OPERATIONS[stream.merge, stream.lane_bits]
                table = 0
            else:
                op, table = Operation.LOOKUP, self._table(stream.table, stream.lane_bits)
            tag = crc32(f"{about}/{number}/{stream.merge}/{stream.lane_bits}/{len(result)}/{size}".encode())
            records.append(
                StreamRecord(
                    stream.data.ctypes.data, result.ctypes.data, len(stream.data), len(result), size, tag, op, table,
                    *stream.packing, delivery.absent, delivery.once and stream.partial,
                    delivery.tolerant and stream.partial,
                )
            )  # fmt: skip
            results.append(result)
            chunks.append(-(-len(result) // size))
        return records, results, chunks

    def _transfer(
        self,
        channel: int,
        records: list[StreamRecord],
        members: NDArray[np.uint64],
        counts: NDArray[np.uint16],
        about: str,
    ) -> None:
        array, outcome = (StreamRecord * len(records))(*records), Outcome()
        native, first = self._functions, self._next[channel]
        self._next[channel] = first + len(members) & 0xFFFFFFFF
        status = Status.BUSY
        try:
            native.link_start(self._handle, channel, first, array, len(records), members, counts)
            while status is Status.BUSY:
                status = Status(native.link_wait(self._handle, channel, WAIT, outcome))
        finally:
            if status is Status.BUSY:  # an interrupt: its memory must not be written to any more
                native.link_abort(self._handle, channel)
                self.error = RoundError("a round was interrupted, and others cannot follow it: open another link")
        if status is not Status.DONE:
            self.error = self._explained(status, outcome, about)
            raise self.error

    def _explained(self, status: Status, outcome: Outcome, about: str) -> RoundError:
        here, waited = f"chunk {outcome.chunk} ({about})", f"{self._timeout:g} s"
        if status is Status.SILENT:
            return RoundError(
                f"no answer from the aggregator at {self.address} for {waited}: is it running, and does its job have "
                f"this worker's address and secret? It was {here}"
            )
        if status is Status.WAITING:
            missing = [rank for rank in range(self.workers) if not outcome.members >> rank & 1]
            return RoundError(f"workers {missing[:8]} sent nothing of {here} for {waited}: do they run?")
        if status is Status.REFUSED:
            return RoundError(
                f"the aggregator at {self.address} does not take this worker's packets: {self._refusal()}. "
                f"It was {here}"
            )
        if status is Status.EXPIRED:
            return BehindError(
                f"{here} is over: the others are at chunk {outcome.tag}; configure a larger window or quorum, or pass "
                'loss="lossy"'
            )
        if status is Status.MISMATCH:
            return RoundError(
                f"others sent something else in place of {here}: all workers must average the same tensors, in the "
                "same order, with the same codec"
            )
        if status is Status.STALE:
            return stale(outcome.session)
        if status is Status.CLOSED:
            return RoundError(_CLOSED)
        return RoundError(f"cannot send packets to {self.address}: {os.strerror(outcome.error)}")

    def _refusal(self) -> str:
        """Why the aggregator does not take packets, in its own words."""
        out = np.empty(1 << 14, np.uint8)
        length = self._functions.link_refusal(self._handle, out, len(out))
        try:
            return str(json.loads(out[:length].tobytes())["error"])
        except (ValueError, KeyError, TypeError):
            return "it does not say why; run the same release everywhere"

    @property
    def counts(self) -> dict[str, int]:
        """What was sent so far, and how often again."""
        found = LinkCounts()
        with self._freeing:
            if self._handle:
                self._functions.link_counts(self._handle, found)
        return {name: int(getattr(found, name)) for name in LinkCounts.names}

    def close(self) -> None:
        """End the thread and the socket; what waits for results fails."""
        with self._freeing:
            if not self._handle:
                return
            self.error = self.error or RoundError(_CLOSED)
            self._functions.link_stop(self._handle)
            for lock in self._locks:  # whoever waits is told, and then gone
                lock.acquire()
            self._functions.link_close(self._handle)
            self._handle = None
            for lock in self._locks:
                lock.release()


def _by_unit(
    stream: Stream, result: Bytes, size: int, members: NDArray[np.uint64], counts: NDArray[np.uint16]
) -> Merged:
    """Members and counts of each unit: those of its chunks, if they are the same; else it counts as lost."""
    unit = stream.unit_bytes or len(result)
    begin = np.arange(0, len(result), max(unit, 1))
    first = begin // size
    last = (np.minimum(begin + unit, len(result)) - 1) // size
    who, many = members[first], counts[first].astype(np.int32)
    for unit in np.flatnonzero(last > first).tolist():
        if (members[first[unit] : last[unit] + 1] != who[unit]).any():
            who[unit], many[unit] = 0, 0
    return Merged(result, stream.lane_bits, who, many)

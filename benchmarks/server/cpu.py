"""CPU time of a shard without its sockets, beside one that decompresses.

The bytes of whole rounds go through real connections in pieces as a socket gives them; only the copy out of the
kernel and the calls that send are left out, which cost both the same.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import or_
from statistics import median
from typing import Any

import numpy as np

import sumwire
from benchmarks.server.common import BITS, span, tensor, verdict
from benchmarks.server.decompressing import DecompressingPart, install
from sumwire.aggregate.protocol import HISTORY
from sumwire.aggregate.server import job
from sumwire.aggregate.server.connection import Connection
from sumwire.aggregate.server.options import Options, Rules
from sumwire.aggregate.server.part import Part
from sumwire.aggregate.server.shard import Shard
from sumwire.codec.lattice.parts import LatticePayload
from sumwire.kernels import threads
from sumwire.lab.record import Record, spread
from sumwire.wire import control, frame
from sumwire.wire.frame import describe

ROUNDS = 8
"""Of a run: a server's caches have its own data, not those of whoever else is measured."""
PIECE = 1 << 19
"""Bytes that a socket hands over at once, about."""


class Nowhere(asyncio.Transport):
    """Takes all that is sent, at once."""

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class MeasuredShard:
    """A shard that takes one round after the other, and tells the CPU seconds of each."""

    def __init__(self, codec: sumwire.Lattice, proposals: list[Any], payloads: list[LatticePayload], kind: Any) -> None:
        self._codec, self._kind = codec, kind
        self._proposals, self._payloads = proposals, payloads
        self._shard = Shard(Options(Rules(codec.workers)))
        self._connections = [Connection(self._shard) for _ in range(codec.workers)]
        self._round = 0
        for rank, connection in enumerate(self._connections):
            connection.connection_made(Nowhere())
            hello = control.Hello("default", "", rank, str(rank), codec.workers, position=0, known="")
            self._receive(rank, [control.to_bytes(hello), control.to_bytes(describe(codec))])

    def all_but_sockets(self) -> float:
        """Streams, CRCs, checks, rounds, sums, frames."""
        install(self._kind)
        self._round += 1
        seconds = 0.0
        for rank, item in enumerate(self._proposals):
            seconds += self._receive(rank, frame.buffers(item, round_id=self._round))
        for payload in self._payloads:
            seconds += self._receive(payload.rank, frame.buffers(replace(payload, round_id=self._round)))
        if self._shard.jobs["default"].aggregator.finished != self._round:
            raise RuntimeError("the round is not complete")
        return seconds

    def _receive(self, rank: int, pieces: list[Any]) -> float:
        connection, seconds = self._connections[rank], 0.0
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                start = time.process_time()
                room = connection.get_buffer(-1)
                seconds += time.process_time() - start
                taken = min(len(room), len(rest), PIECE)
                room[:taken] = rest[:taken]
                start = time.process_time()
                connection.buffer_updated(taken)
                seconds += time.process_time() - start
                rest = rest[taken:]
        return seconds

    def sums_alone(self) -> float:
        """Only what is done with numbers."""
        seconds = 0.0
        for _, same in groupby(self._payloads, lambda payload: payload.lo):
            payloads = [replace(payload, data=np.array(payload.data)) for payload in same]
            part = self._kind(self._codec, payloads[0].lo, payloads[0].hi, 0)
            start = time.process_time()
            for payload in payloads:
                part.add(payload, [payload.rank])
            part.recompressed() if isinstance(part, DecompressingPart) else part._fold()
            seconds += time.process_time() - start
        return seconds


async def cpu(given: argparse.Namespace) -> None:
    workers, size = given.ranks, given.size
    threads.set_num_threads(1)  # as in a shard's process
    job.HEAVY = 1 << 62  # all in this thread, whose CPU is counted
    codec = sumwire.Lattice(workers, BITS)
    xs = [tensor(rank, size) for rank in range(workers)]
    proposals = [codec.propose(x) for x in xs]
    terms = reduce(or_, proposals)
    whole = [codec.encode(x, terms, rank=rank) for rank, x in enumerate(xs)]
    payloads = [payload.part(lo, hi) for lo, hi in codec.parts(size, 0, 1) for payload in whole]
    shards = [MeasuredShard(codec, proposals, payloads, kind) for kind in (Part, DecompressingPart)]
    print(f"\n### CPU without sockets: {workers} workers, {size:,} coordinates, {BITS} bits\n")
    print(f"`python -m benchmarks.server {' '.join(sys.argv[1:])}`: ns a coordinate of a payload, median [lowest -")
    print(f"highest] of {given.runs} runs of {ROUNDS} rounds in turns, one thread\n")
    print("| | ours | decompress, add, recompress | ratio |")
    print("|---|---|---|---|")
    ratios = {}
    for name, work in {
        "all but the sockets: streams, CRCs, checks, rounds, sums, frames": MeasuredShard.all_but_sockets,
        "the sums alone": MeasuredShard.sums_alone,
    }.items():
        # As many rounds first as a aggregator keeps: memory grows.
        for shard in shards:
            for _ in range(HISTORY):
                work(shard)
        pairs = [[sum(work(shard) for _ in range(ROUNDS)) / ROUNDS for shard in shards] for _ in range(given.runs)]
        each = 1e9 / (workers * size)
        ours, theirs = ([each * pair[index] for pair in pairs] for index in (0, 1))
        ratios[name] = [b / a for a, b in zip(ours, theirs, strict=True)]
        print(f"| {name} | {span(ours, '.3f')} | {span(theirs, '.3f')} | {span(ratios[name], '.1f')} |")
        Record(given.json, seed=0).add(
            coordinates=size,
            workers=workers,
            bits=BITS,
            runs=given.runs,
            series=1,
            what=name,
            ours_ns=spread(ours),
            decompressing_ns=spread(theirs),
            ratio=spread(ratios[name]),
        )
    print()
    for name, found in ratios.items():
        print(f"- {name}: {median(found):.1f} times less CPU than the yardstick; {verdict(median(found))}.")

"""The yardstick: a parameter server that decompresses every payload, adds floats and compresses the sum again.

It is Sumwire's own server, sockets, framing, checks and all, with another `Part`. What it does is done well: native
kernels, one pass each, scratch memory that is used again. Its sum goes down as a payload of the codec with terms of
its own, so at `bits` per coordinate, and rounded twice.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.server import round
from sumwire.aggregate.server.options import Options, Rules
from sumwire.aggregate.server.part import Part, Pieces
from sumwire.aggregate.server.shard import Shard
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.coding import keys
from sumwire.codec.lattice.parts import LatticePayload
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.kernels import lattice as kernels
from sumwire.kernels.threads import set_num_threads
from sumwire.wire import control, frame

Floats = NDArray[np.float32]


class Scratch:
    """Memory for tensors of one size. A fresh array would have its pages cleared by the kernel first."""

    def __init__(self, size: int) -> None:
        self.one, self.total = np.empty(size, np.float32), np.empty(size, np.float32)
        self.lanes = np.empty(4 * size, np.uint8)


class DecompressingPart(Part):
    """Adds the tensors of blocks lo..hi as floats, when all are there: nothing but payloads is kept until then."""

    _scratch: dict[int, Scratch] = {}  # noqa: RUF012

    def add(self, addend: LatticePayload, ranks: Iterable[int]) -> None:
        self.arrived.update(ranks)
        self._waiting.append(addend)
        self.held += addend.nbytes

    def complete(self) -> Pieces:
        if self.result is None:
            terms, payload = self.recompressed()
            agreed = control.Agreed(frame.to_bytes(terms, round_id=payload.round_id))
            self.result = [control.to_bytes(agreed), *frame.buffers(payload)]
            self.held = sum(len(piece) for piece in self.result)
            self._waiting = []
        return self.result

    def recompressed(self) -> tuple[LatticeTerms, LatticePayload]:
        """Terms and payload of the tensors' sum."""
        codec, payloads = self._codec, self._waiting
        assert isinstance(codec, Lattice)
        terms = payloads[0].lattice_terms
        start = self.lo * codec.block
        stop = min(self.hi * codec.block, terms.size)
        scratch = self._scratch.setdefault(terms.size, Scratch(terms.size))
        total = scratch.total[start:stop]
        for index, payload in enumerate(payloads):
            decode(codec, payload, scratch.lanes, scratch.one if index else scratch.total)
            if index:
                np.add(total, scratch.one[start:stop], out=total)
        own = codec.propose(total)
        return own, codec.encode(total, own, rank=0, round_id=payloads[0].round_id)


def decode(codec: Lattice, payload: LatticePayload, lanes: NDArray[np.uint8], out: Floats) -> None:
    """A payload's tensor, at its place in `out`."""
    terms = payload.lattice_terms
    counts = np.ones(len(terms.sizes), np.int32)
    key = keys(codec.seed, payload.round_id, 0, codec.workers, True).sign
    one = codec.add([payload], out=lanes)
    classes = terms.layout(codec).classes
    kernels.decode(codec.scheme, one.lanes, counts, terms.scales, classes, key, out, payload.lo, payload.hi)


def install(kind: type[Part] = DecompressingPart) -> None:
    """From now on, rounds of this process have such parts."""
    round.Part = kind  # type: ignore[attr-defined]


class DecompressServer:
    """As `sumwire.Server`, with one shard."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.address = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.server.decompressing", str(self._workers)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)


async def serve(workers: int) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    serving = Shard(Options(Rules(workers)))
    await serving.start(listening)
    print(listening.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started us goes away
    await serving.stop()


if __name__ == "__main__":
    install()
    set_num_threads(1)  # as in a shard's process
    asyncio.run(serve(int(sys.argv[1])))

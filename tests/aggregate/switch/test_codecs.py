"""Sums that the kernel makes are the reference codec's, bit for bit."""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sumwire
from sumwire.aggregate.protocol.packet import GRAIN, Operation
from sumwire.kernels.lattice.blocks import unpack_planes
from tests.aggregate.switch.packets import REASON, Bench, job

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

WORKERS, BLOCK = 3, 256
JOB = job(WORKERS, window=64)
BODY = 1408


class Wire:
    """Sends streams of bytes through the bench, chunk by chunk, as workers do."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.chunk = bench, 0

    def exchange(self, streams, tables=None, expansions=(1,) * WORKERS, **fields):
        """`expansions`: how many times as long results are as each worker's stream."""
        size = len(streams[0]) * expansions[0]
        out = []
        for start in range(0, size, BODY):
            stop = min(start + BODY, size)
            result = -(-(stop - start) // GRAIN) * GRAIN
            for worker, (stream, expansion) in enumerate(zip(streams, expansions, strict=True)):
                body = stream[start // expansion : stop // expansion].ljust(result // expansion, b"\0")
                own = {} if tables is None else {"table": tables[worker]}
                reply = self.bench.merge(JOB, worker, body, chunk=self.chunk, result=result, **own, **fields)
            self.chunk += 1
            out.append(reply.body[: stop - start])
        return b"".join(out)


@pytest.fixture(scope="module")
def wire():
    with Bench(JOB) as bench:
        yield Wire(bench)


def in_order_of_lanes(lanes: np.ndarray, width: int) -> np.ndarray:
    """From the order of indices in bytes to that of coordinates: docs/format.md, packing."""
    return lanes.reshape(-1, BLOCK * width // 8, 8 // width).transpose(0, 2, 1).reshape(-1)


def in_order_of_bytes(indices: np.ndarray, width: int) -> np.ndarray:
    """The inverse."""
    return indices.reshape(-1, 8 // width, BLOCK * width // 8).transpose(0, 2, 1).reshape(-1)


def stream(payload, which: np.ndarray, width_class: int) -> tuple[bytes, int]:
    """A payload's indices of some blocks of one class, in the order that payloads of all bits have; and their width."""
    data = b"".join(payload.part(block, block + 1).data.tobytes() for block in which)
    (width,) = set(payload.widths[which].tolist())
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").reshape(len(which), -1)
    indices = in_order_of_bytes(unpack_planes(bits, BLOCK, width).reshape(-1), width_class)
    packed = np.packbits((indices[:, None] >> np.arange(width) & 1).astype(np.uint8).reshape(-1), bitorder="little")
    assert width != width_class or packed.tobytes() == data
    return packed.tobytes(), width


def join_by_maximum(wire, terms):
    """Terms joined in the kernel, which compares unsigned words."""
    top = np.uint32(1 << 31)
    words = [(each.words.view(np.uint32) ^ top).tobytes() for each in terms]
    joined = np.frombuffer(wire.exchange(words, op=Operation.MAX32), np.uint32) ^ top
    return terms[0].with_words(joined.view(np.int32))


@settings(max_examples=12)
@given(st.integers(1, 12), st.sampled_from([WORKERS, 300]), st.booleans(), st.integers(0, 2**32 - 1))
def test_lattice_sums(wire, blocks, headroom, unequal, seed):
    random = np.random.default_rng(seed)
    widths = "fixed" if unequal else (0, 1, 2, 4, 8)  # where budgets differ, all blocks of a worker have one width
    codec = sumwire.Lattice(headroom, 4, widths=widths, down_bits="exact", block=BLOCK)
    members = [codec, *(codec.with_bits(bits) if unequal else codec for bits in (2, 1))]
    scale = np.repeat(10.0 ** random.integers(-3, 3, blocks), BLOCK)
    xs = [(random.standard_normal(blocks * BLOCK) * scale).astype(np.float32) for _ in range(WORKERS)]
    terms = join_by_maximum(wire, [codec.propose(x) for x in xs])
    assert terms == reduce(or_, [codec.propose(x) for x in xs])

    payloads = [m.encode(x, terms, rank=k, round_id=seed) for k, (m, x) in enumerate(zip(members, xs, strict=True))]
    total, classes, scheme = codec.add(payloads), terms.layout(codec).classes, codec.scheme_of_family(False)
    for width_class in sorted(set(classes.tolist()) - {0}):
        which, lane = np.flatnonzero(classes == width_class), scheme.lattices[width_class].lane_bytes
        streams, widths = zip(*(stream(payload, which, width_class) for payload in payloads), strict=True)
        for number, width in enumerate(widths):
            wire.bench.install(JOB, number, width, 8 * lane, scheme.tables[width_class, width].values.tolist())
        expansions = [8 * lane // width for width in widths]
        found = wire.exchange(streams, range(WORKERS), expansions, op=Operation.LOOKUP)
        lanes = in_order_of_lanes(np.frombuffer(found, f"<u{lane}"), width_class)
        want = np.concatenate([total.part(block, block + 1).lanes for block in which])
        assert np.array_equal(lanes.view(np.uint8), want)


def test_sketch_sums(wire):
    random, codec = np.random.default_rng(3), sumwire.Sketch(WORKERS)
    xs = [
        np.where(random.random(20_000) < 0.02, random.standard_normal(20_000), 0).astype(np.float32) for _ in range(3)
    ]
    terms = reduce(or_, [codec.propose(x) for x in xs])
    payloads = [codec.encode(x, terms, rank=rank, round_id=9) for rank, x in enumerate(xs)]
    total = codec.add(payloads)
    index = wire.exchange([p.index.tobytes() for p in payloads], op=Operation.OR)
    cells = wire.exchange([p.cells.tobytes() for p in payloads], op=Operation.ADD64)
    assert (index, cells) == (total.index.tobytes(), total.cells.tobytes())

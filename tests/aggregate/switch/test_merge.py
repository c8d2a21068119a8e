"""Whatever hypothesis sends, slots hold what a plain oracle computes, bit for bit."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sumwire.aggregate.protocol.packet import GRAIN, Operation
from sumwire.aggregate.protocol.table import LookupTable
from tests.aggregate.switch.packets import REASON, Bench, job
from tests.kernels.lanes import packed_lanes

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

WORKERS = 3
JOB = job(WORKERS)
MOST = 53  # grains: BPF_PROG_RUN takes packets of one page
DTYPES = {
    Operation.ADD8: "<u1",
    Operation.ADD16: "<u2",
    Operation.ADD32: "<u4",
    Operation.ADD64: "<u8",
    Operation.MAX32: "<u4",
    Operation.MAX64: "<u8",
    Operation.OR: "<u8",
}


@pytest.fixture(scope="module", params=["tc", "xdp"])
def bench(request):
    with Bench(JOB, mode=request.param) as bench:
        bench.next = 0
        yield bench


def exchange(bench, bodies, **fields):
    """All workers' bodies in the next chunk; the result."""
    bench.next += 1
    order = np.random.default_rng(bench.next).permutation(WORKERS)
    replies = [bench.merge(JOB, int(w), bodies[w], chunk=bench.next, **fields) for w in order]
    assert replies[:-1] == ["taken"] * (WORKERS - 1)
    reply = replies[-1]
    assert (reply.header.count, reply.header.members, reply.header.worker) == (WORKERS, (1 << WORKERS) - 1, 255)
    return reply.body


def merged(op, bodies):
    values = [np.frombuffer(body, DTYPES[op]) for body in bodies]
    merge = {"ADD": np.add, "MAX": np.maximum, "OR": np.bitwise_or}[op.name.rstrip("0123456789")]
    return reduce(merge, values).tobytes()


@given(st.sampled_from(list(DTYPES)), st.integers(1, MOST), st.integers(0, 2**32 - 1))
def test_words_merge_as_in_numpy(bench, op, grains, seed):
    size = grains * GRAIN
    random = np.random.default_rng(seed)
    bodies = [random.bytes(size) for _ in range(WORKERS)]
    assert exchange(bench, bodies, op=op) == merged(op, bodies)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@given(lane=st.integers(2, 32), grains=st.integers(1, MOST), seed=st.integers(0, 2**32 - 1))
@example(lane=6, grains=3, seed=1)
@example(lane=8, grains=22, seed=2)
@example(lane=10, grains=22, seed=3)
@example(lane=16, grains=22, seed=4)
@example(lane=32, grains=22, seed=5)
def test_indices_are_looked_up_and_added(bench, bits, lane, grains, seed):
    random = np.random.default_rng(seed)
    largest = ((1 << lane) - 1) // WORKERS
    values = [*sorted(random.integers(0, largest, (1 << bits) - 1, endpoint=True).tolist()), largest]
    table = bench.install(JOB, 5, bits, lane, values)
    result = grains * GRAIN
    bodies = [random.bytes(body_bytes(table, result)) for _ in range(WORKERS)]
    bodies[0] = b"\xff" * len(bodies[0])  # so that lanes get full
    found = exchange(bench, bodies, op=Operation.LOOKUP, table=5, result=result)
    assert found == looked_up(table, bodies)


def body_bytes(table: LookupTable, result: int) -> int:
    return result // 8 * table.bytes_per_word // table.words_per_byte


def looked_up(table: LookupTable, bodies: list[bytes]) -> bytes:
    """Lanes added one by one, and then packed: as many to a word as whole bytes of indices give and fit."""
    total = 0
    for body in bodies:
        bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little").reshape(-1, table.bits)
        index = bits @ (1 << np.arange(table.bits))
        total = total + table.values[index].astype(np.int64)
    assert total.max() < 1 << table.lane
    return packed_lanes(total, table.bits, table.lane).tobytes()


def test_workers_may_use_tables_of_different_widths_for_one_chunk(bench):
    tables = [bench.install(JOB, n, bits, 16, list(range(0, 40 << bits, 40))) for n, bits in enumerate((2, 4, 8))]
    random, result, total = np.random.default_rng(5), 512, 0
    bench.next += 1
    for worker, table in enumerate(tables):
        body = random.bytes(body_bytes(table, result))
        fields = {"op": Operation.LOOKUP, "table": worker, "result": result, "chunk": bench.next}
        reply = bench.merge(JOB, worker, body, **fields)
        total = total + np.frombuffer(looked_up(table, [body]), "<u2")
    assert reply.body == total.tobytes()


def test_a_reply_goes_where_hello_came_from(bench):
    body = bytes(64)
    bench.next += 1
    for worker in (0, 1):
        bench.merge(JOB, worker, body, chunk=bench.next)
    again = bench.merge(JOB, 1, body, chunk=bench.next)  # not complete, so to worker 1 alone
    assert again.frame[:6] == bytes([2, 0, 0, 0, 0, 2])
    assert again.frame[30:34] == JOB.addresses[1].packed
    assert int.from_bytes(again.frame[36:38], "big") == 4661
    assert again.header.key == JOB.keys[1] != JOB.keys[0]

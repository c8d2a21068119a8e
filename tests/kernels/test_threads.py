"""Threads change nothing but the time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sumwire
from sumwire.codec.lattice.coding import decode_part
from sumwire.kernels import backend, threads


@pytest.fixture(autouse=True)
def default_threads() -> Iterator[None]:
    yield
    sumwire.set_num_threads(None)


def test_any_number_of_threads_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1 << 10)
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(20_003) * np.repeat(np.exp(2 * rng.standard_normal(11)), 1900)[:20_003]).astype("f4")
    codec = sumwire.Lattice(2, 4, block=256)
    results = set()
    for count in (1, 2, 3, 7, 64):
        sumwire.set_num_threads(count)
        terms = codec.propose(x)
        data = codec.encode(x, terms, rank=1, round_id=5)
        rest = x.copy()
        codec.encode_in_place(rest, terms, rank=1, round_id=5)
        total = data + data
        narrow = total.narrow()
        arrays = (
            terms.scales,
            data.data,
            rest,
            total.lanes,
            codec.decode(total),
            narrow.packed(),
            codec.decode(narrow),
        )
        results.add(tuple(array.tobytes() for array in arrays))
        for each, form in ((narrow, codec), (total, codec.for_plain_sums())):
            straight, whole = np.empty_like(x), ((0, len(total.counts)), each.packed())
            form.decode(form.read_sum(terms, [whole], count=2, round_id=5), out=straight)
            assert np.array_equal(straight, codec.decode(each))
    assert len(results) == 1


def test_errors_on_any_thread_name_the_first_bad_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1 << 10)
    sumwire.set_num_threads(4)
    codec = sumwire.Lattice(1, 4, block=256)
    x = np.ones(10_000, np.float32)
    terms = codec.propose(x)
    x[9000] = 1e6
    x[5000] = 1e6
    with pytest.raises(sumwire.MismatchError, match=f"block {5000 // 256} "):
        codec.encode(x, terms, rank=0)


def test_parts_of_a_tensor_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1 << 8)
    sumwire.set_num_threads(3)
    codec = sumwire.Lattice(2, 4, block=64)
    x = np.random.default_rng(0).standard_normal(64 * 50 + 60).astype("f4")
    payload = codec.encode(x, codec.propose(x), rank=0)
    whole = codec.decode(payload)
    blocks = len(payload.widths)
    edges = payload.lattice_terms.sizes.cumsum().tolist()
    for lo, hi in ((0, 0), (10, 10), (0, 7), (3, 50), (40, blocks), (50, blocks), (51, blocks), (blocks, blocks)):
        part = codec.decode(payload.part(lo, hi), missing="zero")
        start, stop = ([0, *edges][k] for k in (lo, hi))
        assert np.array_equal(part[start:stop], whole[start:stop])
        assert not part[:start].any()
        assert not part[stop:].any()
        where, values = decode_part(codec, payload.part(lo, hi))
        assert (where.start, where.stop) == (start, stop)
        assert np.array_equal(values, whole[where])


@pytest.mark.skipif(backend.name() != "native", reason="there is nothing to share")
def test_all_threads_see_one_view_of_a_scheme() -> None:
    from sumwire.kernels.lattice import native

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for seed in range(20):
            scheme = sumwire.Lattice(2, 4, seed=10_000 + seed).scheme
            gate = threading.Barrier(4)
            with ThreadPoolExecutor(4) as pool:
                seen = list(pool.map(lambda _, s=scheme, g=gate: (g.wait(), native._view(s))[1], range(4)))
            assert set(seen) == {native._view(scheme)}
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("count", [0, -1, 10_000, 2.0])
def test_silly_counts_are_refused(count: int) -> None:
    with pytest.raises(sumwire.ConfigError, match="threads="):
        sumwire.set_num_threads(count)


def test_default_follows_the_environment_and_torch() -> None:
    code = (
        "import sumwire; print(sumwire.get_num_threads());"
        "import torch; torch.set_num_threads(5); print(sumwire.get_num_threads())"
    )
    env = os.environ | {"OMP_NUM_THREADS": "3"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert result.stdout.split() == ["3", "5"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    code = """
import os, numpy as np, sumwire
from sumwire.codec.lattice.coding import decode_part
from sumwire.kernels import threads
threads.WORTH_A_THREAD = 1024
sumwire.set_num_threads(2)
codec, x = sumwire.Lattice(1, 4), np.ones(9999, np.float32)
before = codec.decode(codec.encode(x, codec.propose(x), rank=0)).tobytes()
child = os.fork()
after = codec.decode(codec.encode(x, codec.propose(x), rank=0)).tobytes()
if child == 0:
    os._exit(0 if before == after else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), before == after)
"""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split() == ["0", "True"]

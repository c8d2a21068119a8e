"""Real processes that are killed: the job goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sumwire
from tests.aggregate.server.serving import RETRY, tensors

WORKER = """
import sys
import numpy as np
import sumwire
from tests.aggregate.server.serving import tensors

address, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with sumwire.connect(address, rank=rank, workers=2, retry=0.1) as link:
    print("at", link.upcoming, flush=True)
    while link.upcoming < int(sys.argv[4]):
        r = link.upcoming
        link.average(tensors(2, r, size)[rank], round_id=r)
        print("done", r, flush=True)
    sys.stdin.read()
"""


def _worker(address: str, rank: int, size: int, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, address, str(rank), str(size), str(rounds)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[3])


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _average(link: sumwire.Link, size: int, rounds: range) -> list[Any]:
    """This process is rank 0."""
    return [link.average(tensors(2, r, size)[0], round_id=r) for r in rounds]


def test_a_killed_worker_rejoins() -> None:
    size, rounds = 1_500_000, 4  # large enough to be killed in the middle of a frame
    with (
        sumwire.Server(2, shards=2, timeout=30, first_round=0) as server,
        sumwire.connect(server.address, rank=0, workers=2, retry=RETRY) as link,
    ):
        means: list[Any] = []
        ours = threading.Thread(target=lambda: means.extend(_average(link, size, range(rounds))))
        other = _worker(server.address, 1, size, rounds)
        ours.start()
        try:
            assert other.stdout is not None
            while "done" not in other.stdout.readline():
                pass
            time.sleep(0.02)
            _end(other)
            other = _worker(server.address, 1, size, rounds)
            ours.join(200)
            assert not ours.is_alive()
        finally:
            _end(other)
        codec = sumwire.Lattice(2)
        assert len(means) == rounds
        for r, mean in enumerate(means):
            assert np.array_equal(mean, sumwire.average(codec, tensors(2, r, size), round_id=r))


def test_killed_shards_are_restarted_at_the_same_port() -> None:
    size, rounds = 100_000, 30
    server = sumwire.Server(2, shards=2, timeout=30, first_round=0).start()
    other = _worker(server.address, 1, size, rounds)
    try:
        with sumwire.connect(server.address, rank=0, workers=2, retry=RETRY) as link:
            means: list[Any] = []
            ours = threading.Thread(target=lambda: means.extend(_average(link, size, range(rounds))))
            ours.start()
            for _ in range(2):
                time.sleep(0.4)
                for shard in server._shards:
                    shard.kill()
                server.stop()
                server = sumwire.Server(2, shards=2, timeout=30, first_round=0, port=server.port).start()
            ours.join(200)
            assert not ours.is_alive()
    finally:
        _end(other)
        server.stop()
    for r, mean in enumerate(means):
        assert np.array_equal(mean, sumwire.average(sumwire.Lattice(2), tensors(2, r, size), round_id=r))
    assert len(means) == rounds


def test_a_shard_that_dies_is_noticed() -> None:
    with sumwire.Server(2, shards=2) as server:
        server._shards[1].kill()
        with pytest.raises(sumwire.RoundError, match="shard 1 .* ended with -9"):
            server.wait()


def test_shards_end_with_the_process_that_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.aggregate.server.server._ATTEMPTS", 1000)  # a busy machine takes long to end them
    code = "import sumwire, time; s = sumwire.Server(1).start(); print(s.port, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    _end(parent)
    with sumwire.Server(1, port=port) as server:  # whose port is free again, soon
        assert server.port == port


def test_ports_that_are_taken_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.aggregate.server.server._PAUSE", 0.001)
    with (
        sumwire.Server(1) as server,
        pytest.raises(sumwire.ConfigError, match=f"cannot listen on 127.0.0.1, ports {server.port}"),
    ):
        sumwire.Server(1, port=server.port).start()

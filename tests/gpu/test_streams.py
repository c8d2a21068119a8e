"""Rounds on a GPU run in one stream beside the model's, whose end the future tells. Streams are fakes here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from sumwire import Lattice
from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.statistics import Statistics
from sumwire.kernels import backend
from sumwire.train import rounds

CUDA = torch.device("cuda", 0)


class FakeStream:
    """Notes what happens to it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_event(self, event: object) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        return f"an event of {self.name}"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to streams, in order."""
    found: list[str] = []
    current = [FakeStream(found, "default")]

    @contextmanager
    def entered(stream: FakeStream) -> Iterator[None]:
        current.append(stream)
        found.append(f"enter {stream.name}")
        yield
        found.append(f"leave {current.pop().name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(found, f"side of {device}"))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(rounds, "_streams", {})
    return found


def test_a_device_has_one_stream(log: list[str]) -> None:
    for _ in range(2):
        with rounds.side_stream(CUDA):
            pass
    assert len(rounds._streams) == 1
    assert log == ["enter side of cuda:0", "leave side of cuda:0"] * 2
    with rounds.side_stream(torch.device("cpu")):
        assert len(log) == 4


def test_whoever_runs_a_round_itself_goes_on_after_the_stream(log: list[str]) -> None:
    rounds.follow_side_stream(CUDA)
    assert log == []  # no round has used it
    with rounds.side_stream(CUDA):
        pass
    rounds.follow_side_stream(CUDA)
    assert log[2:] == ["default waits for an event of side of cuda:0"]


def test_a_future_is_completed_in_the_stream(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeFuture:
        def __init__(self, devices: Any) -> None:
            log.append(f"future of {devices}")

        def set_result(self, result: str) -> None:
            log.append(f"set {result}")

    monkeypatch.setattr(torch.futures, "Future", FakeFuture)
    done: Future[None] = Future()
    rounds.settled([done], lambda: "mean", CUDA, instead=torch.zeros(1), failed=lambda error: None)
    done.set_result(None)
    assert log == [f"future of {[CUDA]}", "enter side of cuda:0", "set mean", "leave side of cuda:0"]


class _Alone(Aggregator):
    rank, workers = 0, 1
    carries_tensors = True

    def join(self, terms: Any, *, round_id: int, workspace: Any = None) -> Any:
        return terms

    def add(self, payload: Any, *, workspace: Any = None) -> Any:
        assert isinstance(payload.data, torch.Tensor)
        return payload.codec.add([payload])

    def close(self) -> None:
        pass


def test_a_round_waits_for_the_gradients_and_not_on_the_host(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "takes", lambda tensor: True)
    monkeypatch.setattr(rounds, "side_stream", lambda _, plain=rounds.side_stream: plain(CUDA))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(64, dtype=np.float32))
    before, place = x.clone(), x.data_ptr()
    job = rounds.TensorRound(_Alone(), x, Lattice(1, 8, block=64), round_id=1, statistics=Statistics())
    job._ready = "ready"
    assert job.run() is x
    assert x.data_ptr() == place
    assert float((x - before).square().mean()) < 0.01
    assert [line for line in log if "waits" in line] == ["side of cuda:0 waits for ready"]
    assert log[0] == "enter side of cuda:0"

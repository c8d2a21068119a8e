"""DDP over the parameter server between real processes: the same bits as without it."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from sumwire import ConfigError, RoundError, Server, Sparse, connect
from sumwire.train import DDPState, attach
from tests import ranks
from tests.train.ddp_models import build, train

Weights = list[np.ndarray[Any, Any]]


def trained(rank: int, world: int, server: str | None, options: dict[str, Any]) -> Weights:
    model = build()
    state = attach(model, warmup=1, fallback=False, exact_below=100, server=server, seed=0, **options)
    train(rank, model, range(6))
    state.close()
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def test_the_server_gives_the_bits_of_the_process_group() -> None:
    choices: list[dict[str, Any]] = [{"bits": 4}, {"bits": 2, "feedback": True}, {"codec": "sparse"}]
    with Server(workers=2, shards=2) as server:
        over_server = [(server.address, options) for options in choices]
        # Explicitly: small rounds would be sent exactly.
        alone = [(None, options | {"algorithm": "sharded"}) for options in choices]
        results = ranks.run_cases(2, trained, over_server + alone)
    for options, served, (expected, _) in zip(choices, results[:3], results[3:], strict=True):
        for parameters in zip(*served, expected, strict=True):
            for mine in parameters[:-1]:
                np.testing.assert_array_equal(mine, parameters[-1], err_msg=str(options))


def given_and_got(rank: int, world: int, server: str) -> tuple[Any, Any, Any]:
    """Gradients that went in, their means, and what the residual has at last."""
    size = 5000
    model = DistributedDataParallel(Weighted(size))
    state = attach(model, bits=2, feedback=True, warmup=0, fallback=False, exact_below=0, server=server)
    rng, went_in, means = np.random.default_rng(rank), np.zeros(size), np.zeros(size)
    for _ in range(8):
        model.zero_grad()
        gradient = rng.standard_normal(size).astype(np.float32)
        went_in += gradient
        model(torch.from_numpy(gradient)).backward()
        means += model.module.weight.grad.numpy()
    residuals = [kept["value"] for bucket in state.state_dict()["buckets"] for kept in bucket["residuals"]]
    state.close()
    return went_in, means, torch.cat(residuals).numpy()


class Weighted(torch.nn.Module):
    """The gradient of its weight is whatever it is called with."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def test_payloads_that_come_too_late_are_counted_once() -> None:
    """A sum is complete with its first payload: every step one of two ranks is late."""
    with Server(workers=2, quorum=1) as server:
        (mine, means, kept), (others, their_means, their_kept) = ranks.run(2, given_and_got, server.address)
    np.testing.assert_array_equal(means, their_means)
    off = 2 * means + kept + their_kept - (mine + others)
    assert np.square(off).sum() < 1e-8 * np.square(mine + others).sum()


def over_a_link(rank: int, world: int, server: str) -> tuple[Weights, float]:
    with connect(server, rank=rank, workers=world, token="secret") as link:
        model = build()
        state = attach(model, warmup=1, fallback=False, exact_below=100, server=link)
        train(rank, model, range(6))
        state.close()
        after = link.average(np.full(5, rank, np.float32), codec=Sparse(world))  # it is still open
        return [parameter.detach().numpy().copy() for parameter in model.parameters()], float(after[0])


def test_a_link_of_ones_own_is_used_and_left_open() -> None:
    with Server(workers=2, token="secret") as server:
        (mine, after), (other, _) = ranks.run(2, over_a_link, server.address)
    assert after == 0.5
    for one, two in zip(mine, other, strict=True):
        np.testing.assert_array_equal(one, two)


def generator_and_discriminator(rank: int, world: int, server: str, options: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Gradients of two models of one process over one server, and the gradients that went in."""
    sizes, out = (4000, 6000), []
    models = [DistributedDataParallel(Weighted(size)) for size in sizes]
    states = [attach(m, bits=8, warmup=0, fallback=False, exact_below=0, server=server, **options) for m in models]
    rng = np.random.default_rng(rank)
    for _ in range(3):
        for model, size in zip(models, sizes, strict=True):
            model.zero_grad()
            gradient = rng.standard_normal(size).astype(np.float32)
            model(torch.from_numpy(gradient)).backward()
            out.append((gradient, model.module.weight.grad.numpy().copy()))
    states.pop(0).close()
    # Another one, while the second lives: it must not get the second's name.
    states.append(attach(DistributedDataParallel(Weighted(100)), server=server, **options))
    for state in states:
        state.close()
    return out


@pytest.mark.parametrize("options", [{}, {"job": "gan"}], ids=str)
def test_two_models_of_one_process_have_rounds_of_their_own(options: dict[str, Any]) -> None:
    """A GAN. Each model's gradient is the mean of what the ranks had for it, not of the other's. Twice: a second
    training on the same server is not bothered by the first."""
    with Server(workers=2) as server:
        for _ in range(2):
            mine, others = ranks.run(2, generator_and_discriminator, server.address, options)
            for (one, mean), (other, their_mean) in zip(mine, others, strict=True):
                truth = (one.astype(np.float64) + other) / 2
                np.testing.assert_array_equal(mean, their_mean)
                assert np.square(mean - truth).sum() < 0.001 * np.square(truth).sum()


def one_link_for_two_models(rank: int, world: int, server: str) -> str:
    with connect(server, rank=rank, workers=world) as link:
        model = DistributedDataParallel(Weighted(100))  # with which its state would be closed
        first = attach(model, server=link)
        try:
            attach(DistributedDataParallel(Weighted(100)), server=link)
        except ConfigError as error:
            said = str(error)
        first.close()
        attach(DistributedDataParallel(Weighted(100)), server=link).close()
        return said


def test_a_link_carries_one_model() -> None:
    with Server(workers=2) as server:
        for said in ranks.run(2, one_link_for_two_models, server.address):
            assert "carries another model already" in said


def with_a_token(rank: int, world: int, server: str) -> list[str]:
    said = []
    for options in ({"token": "wrong", "job": "x"}, {"token": "right", "job": "x"}):
        try:
            attach(DistributedDataParallel(Weighted(100)), server=server, **options).close()
            said.append("")
        except RoundError as error:
            said.append(str(error))
    return said


def test_a_token_and_a_job_can_be_given() -> None:
    with Server(workers=1, token="right") as server:
        ((wrong, right),) = ranks.run(1, with_a_token, server.address)
    assert "the token is wrong" in wrong
    assert right == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [({"job": "x"}, 'job=... goes with server="host:port"'), ({"token": "x"}, "there is no server"),
     ({"server": 4650}, "server=4650 is neither")],
)  # fmt: skip
def test_options_of_a_server_need_one(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        DDPState(**options)


def not_a_number(rank: int, world: int, server: str) -> list[bool]:
    model = build()
    attach(model, warmup=0, fallback=False, server=server).start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    out = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 20)).square().mean()
        (loss * (float("nan") if rank == 1 and step == 1 else 1.0)).backward()
        out.append(any(bool(p.grad.isnan().any()) for p in model.parameters() if p.grad is not None))
    return out


def test_nan_is_seen_by_all_ranks_and_harms_no_later_step() -> None:
    with Server(workers=2) as server:
        assert ranks.run(2, not_a_number, server.address) == [[False, True, False]] * 2


def sampled(rank: int, world: int, server: str) -> list[float]:
    model, told = build(), []
    log = lambda name, value, _: told.append(value) if name == "sumwire/nmse" else None  # noqa: E731
    state = attach(model, warmup=0, fallback=False, exact_below=0, sample_every=2, log=log, server=server, job="page")
    train(rank, model, range(5))
    state.close()
    return told


def test_the_page_shows_the_error_of_sampled_steps() -> None:
    with Server(workers=2, http_port=0) as server:
        told, _ = ranks.run(2, sampled, server.address)
        assert len(told) == 3
        assert server.status_pages is not None
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with urllib.request.urlopen(f"{server.status_pages.url}stats") as answer:
                jobs = json.load(answer)["jobs"]
            if jobs and jobs["page"]["nmse"] == pytest.approx(np.mean(told)):
                return
            time.sleep(0.1)
        pytest.fail(f"steps had errors {told}, the page has {jobs}")


def resynced(rank: int, world: int) -> list[float]:
    model = build()
    attach(model, resync=2, warmup=1, fallback=False)
    train(rank, model, range(3))
    with torch.no_grad():
        model.module.head.bias += rank  # as if a rank had missed an update
    train(rank, model, range(3, 5))
    return model.module.head.bias.detach().tolist()


def test_resync_makes_ranks_equal_again() -> None:
    first, second = ranks.run(2, resynced)
    assert first == second


@pytest.mark.parametrize("options", [{"algorithm": "packed"}, {"codec": "auto"}], ids=str)
def test_options_that_decide_the_same_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="server"):
        DDPState(server="127.0.0.1:1", **options)

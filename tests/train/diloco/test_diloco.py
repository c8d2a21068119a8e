"""DiLoCo's law, against its definition: what is exchanged, what the outer optimizer does, what all workers share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sumwire.errors import ConfigError, MismatchError, RoundError
from sumwire.train import DiLoCo
from sumwire.train.diloco.options import make_settings
from sumwire.train.diloco.outer import split
from tests.train.diloco.workers import build, in_threads, train, trained, values


def reference(workers: int, steps: int, every: int, outer: Any) -> torch.Tensor:
    """DiLoCo as the paper has it, in one loop."""
    models = [build() for _ in range(workers)]
    inner = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5) for model in models]
    shared = [nn.Parameter(parameter.detach().clone()) for parameter in build().parameters()]
    optimizer = outer(shared)
    for begin in range(0, steps, every):
        for rank, (model, own) in enumerate(zip(models, inner, strict=True)):
            train(model, own, range(begin, begin + every), rank)
        for k, parameter in enumerate(shared):
            moved = [parameter.detach() - list(model.parameters())[k].detach() for model in models]
            parameter.grad = torch.stack(moved).mean(0)
        optimizer.step()
        with torch.no_grad():
            for model in models:
                for mine, theirs in zip(model.parameters(), shared, strict=True):
                    mine.copy_(theirs)
    return torch.cat([parameter.detach().reshape(-1) for parameter in shared])


def nesterov(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("outer", [nesterov, adam])
def test_without_compression_it_is_the_papers_algorithm(outer: Any) -> None:
    results = in_threads(3, lambda worker: trained(worker, 12, every=4, outer=outer, bits=32))
    expected = reference(3, 12, 4, outer)
    for parameters, digest, _ in results:
        assert torch.equal(parameters, results[0][0])
        assert digest == results[0][1]
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{"bits": 4}, {"bits": 2, "feedback": True}, {"codec": "sparse"}], ids=str)
def test_compressed_it_comes_close_and_workers_stay_equal(options: dict[str, Any]) -> None:
    results = in_threads(3, lambda worker: trained(worker, 16, every=4, seed=1, **options))
    expected = reference(3, 16, 4, nesterov)
    start = values(build())
    for parameters, digest, _ in results:
        assert torch.equal(parameters, results[0][0])
        assert digest == results[0][1]
    error = (results[0][0] - expected).square().sum() / (expected - start).square().sum()
    assert error < 0.1


def test_local_sgd_goes_to_the_mean() -> None:
    def work(worker: Any) -> tuple[torch.Tensor, torch.Tensor]:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        diloco = DiLoCo.local_sgd(model, optimizer, worker, every=3, bits=32)
        alone = build()
        own = torch.optim.SGD(alone.parameters(), lr=0.05)
        train(alone, own, range(3), worker.rank)
        train(model, optimizer, range(3), worker.rank)
        diloco.close()
        return values(model), values(alone)

    results = in_threads(4, work)
    mean = torch.stack([alone for _, alone in results]).mean(0)
    for together, _ in results:
        torch.testing.assert_close(together, mean, rtol=1e-5, atol=1e-6)
        assert torch.equal(together, results[0][0])


def test_workers_that_begin_with_other_weights_take_those_of_one() -> None:
    def work(worker: Any) -> torch.Tensor:
        model = build(seed=worker.rank)
        DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), worker).close()
        return values(model)

    results = in_threads(3, work)
    assert all(torch.equal(each, results[0]) for each in results)
    assert any(torch.equal(results[0], values(build(seed=rank))) for rank in range(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("bits", [4, 32])
def test_what_is_not_finite_shows_at_all_workers(bad: float, bits: int) -> None:
    def work(worker: Any) -> tuple[torch.Tensor, str]:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        diloco = DiLoCo(model, optimizer, worker, every=1, bits=bits)
        if worker.rank == 1:
            with torch.no_grad():
                model[0].weight[3, 5] = bad
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        digest = diloco.digest()
        diloco.close()
        return model[0].weight.detach(), digest

    results = in_threads(2, work)
    assert results[0][1] == results[1][1]
    for weight, _ in results:
        assert not torch.isfinite(weight[3, 5])
        others = torch.ones_like(weight, dtype=torch.bool)
        others[3, 5] = False
        torch.testing.assert_close(weight[others], build()[0].weight.detach()[others])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_every_dtype_that_trains(dtype: torch.dtype) -> None:
    def work(worker: Any) -> tuple[torch.Tensor, torch.dtype, str]:
        weight = nn.Parameter(torch.linspace(-1, 1, 3000).to(dtype))
        model = nn.ParameterDict({"weight": weight, "scalar": nn.Parameter(torch.tensor(1.0, dtype=dtype))})
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        diloco = DiLoCo.local_sgd(model, optimizer, worker, every=1, bits=8, exact_below=4)
        weight.grad = torch.full_like(weight, 0.25 * (worker.rank + 1))
        before = weight.detach().clone()
        optimizer.step()
        outer, digest = diloco.outer_parameters()["weight"], diloco.digest()
        diloco.close()
        return (before - weight.detach()), outer.dtype, digest

    results = in_threads(2, work)
    assert results[0][2] == results[1][2]
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(dtype, dtype)
    for moved, outer, _ in results:
        assert outer == wide
        assert torch.equal(moved, results[0][0])
        assert abs(moved.mean() - 0.375) < 0.02


def test_buffers_are_averaged_or_stay_local() -> None:
    def work(worker: Any, policy: Any) -> tuple[torch.Tensor, int]:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diloco = DiLoCo(model, optimizer, worker, every=2, buffers=policy)
        for _ in range(2):
            model(torch.randn(16, 8) + worker.rank).square().mean().backward()
            optimizer.step()
        diloco.close()
        return model[1].running_mean.clone(), int(model[1].num_batches_tracked)

    averaged, kept = (in_threads(2, lambda worker, policy=p: work(worker, policy)) for p in ("average", "local"))
    assert torch.equal(averaged[0][0], averaged[1][0])
    assert not torch.equal(kept[0][0], kept[1][0])
    torch.testing.assert_close(averaged[0][0], (kept[0][0] + kept[1][0]) / 2, rtol=0.5, atol=0.2)
    assert averaged[0][1] == 2  # an integer: every worker's own


def test_frozen_parameters_are_left_alone() -> None:
    def work(worker: Any) -> torch.Tensor:
        model = build(seed=worker.rank)
        model[0].weight.requires_grad_(False)
        trained_ = [parameter for parameter in model.parameters() if parameter.requires_grad]
        DiLoCo(model, torch.optim.SGD(trained_, lr=0.1), worker).close()
        return model[0].weight.detach()

    for rank, weight in enumerate(in_threads(2, work)):
        assert torch.equal(weight, build(seed=rank)[0].weight.detach())


def test_workers_with_other_options_are_told() -> None:
    with pytest.raises((MismatchError, RoundError)):
        in_threads(2, lambda worker: trained(worker, 4, every=2 + worker.rank))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": 0}, "every=0"),
        ({"every": 2.5}, "every=2.5"),
        ({"every": 4, "fragments": 5}, "fragments=5"),
        ({"every": 10, "fragments": 2, "delay": 5}, r"delay=5 is not in 0\.\.4"),
        ({"mix": 1.0}, "mix=1.0"),
        ({"bits": 9}, "bits=9"),
        ({"bits": 32, "feedback": True}, "bits=32 sends values as they are"),
        ({"buffers": "mean"}, "buffers='mean'"),
        ({"codec": "auto"}, "auto"),
        ({"patience": 0}, "patience=0"),
        ({"outer": lambda parameters: None}, "not an optimizer"),
        ({"outer": lambda parameters: torch.optim.SGD([torch.zeros(1)], lr=1)}, "does not have the outer parameters"),
        ({"fragments": 50}, "fragments=50, but the model trains 4 parameters"),
        ({"over": "host:1"}, "there is no process group"),
        ({"over": "host:1", "rank": 3, "workers": 2, "job": "x"}, r"rank=3 is not in 0\.\.1"),
        ({"log": 3}, "log=3"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    model = build()
    over = options.pop("over", None)

    def work(worker: Any) -> None:
        DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), over or worker, **options)

    with pytest.raises((ConfigError, MismatchError), match=says):
        in_threads(1, work)


def test_bad_models_and_optimizers_are_refused() -> None:
    optimizer = torch.optim.SGD(build().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"trains no parameter of the model"):
        DiLoCo(build(), optimizer)
    with pytest.raises(ConfigError, match=r"not a torch optimizer"):
        DiLoCo(build(), "adam")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"takes a torch\.nn\.Module"):
        DiLoCo([], optimizer)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nothing to exchange"):
        DiLoCo(build().requires_grad_(False), optimizer)


def test_exchanges_are_spread_over_the_steps() -> None:
    settings = make_settings(None, None, 12, {"fragments": 3, "delay": 2})
    assert [(step, settings.begins(step)) for step in range(1, 25) if settings.begins(step) is not None] == [
        (4, 0), (8, 1), (12, 2), (16, 0), (20, 1), (24, 2),
    ]  # fmt: skip
    assert [(step, settings.ends(step)) for step in range(1, 25) if settings.ends(step) is not None] == [
        (6, 0), (10, 1), (14, 2), (18, 0), (22, 1),
    ]  # fmt: skip


def test_fragments_have_about_the_same_size() -> None:
    named = {str(k): torch.zeros(size) for k, size in enumerate([100, 10, 10, 90, 50, 50, 1, 1])}
    parts = split(named, 3)
    assert [name for part in parts for name in part] == list(named)
    assert all(60 <= sum(map(len, part.values())) <= 150 for part in parts)
    assert [len(part) for part in split(named, 8)] == [1] * 8

"""Fragments whose exchanges are spread over the steps and run in the background, and checkpoints at any step."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from sumwire.errors import ConfigError, MismatchError
from sumwire.train import DiLoCo
from tests.train.diloco.workers import build, in_threads, train, trained, values

STREAMING = {"every": 6, "fragments": 3, "delay": 1, "bits": 4, "seed": 1}


def test_a_fragment_is_mixed_in_where_it_arrives() -> None:
    """Against a loop that does the same by hand, one worker after another."""
    every, delay, mix, workers = 4, 2, 0.25, 2
    models = [build() for _ in range(workers)]
    inner = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5) for model in models]
    outer = [parameter.detach().clone() for parameter in build().parameters()]
    mean: list[torch.Tensor] = []
    for step in range(11):
        for rank, (model, own) in enumerate(zip(models, inner, strict=True)):
            train(model, own, range(step, step + 1), rank)
        with torch.no_grad():
            if (step + 1) % every == 0:
                each = zip(outer, *(model.parameters() for model in models), strict=True)
                mean = [shared - torch.stack(theirs).mean(0) for shared, *theirs in each]
            if step >= delay and (step + 1 - delay) % every == 0:
                outer = [shared - moved for shared, moved in zip(outer, mean, strict=True)]
                for model in models:
                    for mine, shared in zip(model.parameters(), outer, strict=True):
                        mine.copy_(mix * mine + (1 - mix) * shared)

    def work(worker: Any) -> torch.Tensor:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        diloco = DiLoCo.local_sgd(model, optimizer, worker, every=every, delay=delay, mix=mix, bits=32)
        train(model, optimizer, range(11), worker.rank)
        diloco.close()
        return values(model)

    for rank, found in enumerate(in_threads(workers, work)):
        torch.testing.assert_close(found, values(models[rank]), rtol=1e-4, atol=1e-6)


def test_outer_parameters_stay_equal_while_models_differ() -> None:
    results = in_threads(3, lambda worker: trained(worker, 25, **STREAMING))
    assert len({digest for _, digest, _ in results}) == 1
    assert not torch.equal(results[0][0], results[1][0])
    start = torch.cat([outer.reshape(-1) for outer in build().state_dict().values()])
    moved = torch.cat([outer.reshape(-1) for outer in results[0][2].outer_parameters().values()])
    assert (start.sort().values - moved.sort().values).abs().max() > 0.01


def resumed(worker: Any, at: int, steps: int, **options: Any) -> tuple[torch.Tensor, str]:
    """Saved after some steps and continued in other objects; or, `at` 0, in one go."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    diloco = DiLoCo(model, optimizer, worker, **options)
    train(model, optimizer, range(at), worker.rank)
    if at:
        file = io.BytesIO()
        torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "d": diloco.state_dict()}, file)
        diloco.close()
        file.seek(0)
        saved = torch.load(file)
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        diloco = DiLoCo(model, optimizer, worker, **options)
        model.load_state_dict(saved["m"])
        optimizer.load_state_dict(saved["o"])
        diloco.load_state_dict(saved["d"])
        assert diloco.steps == at
    train(model, optimizer, range(at, steps), worker.rank)
    digest = diloco.digest()
    diloco.close()
    return values(model), digest


@pytest.mark.parametrize("at", [3, 6, 7])
@pytest.mark.parametrize(
    "options",
    [
        {"every": 3, "bits": 2, "feedback": True},
        {**STREAMING, "bits": 2, "feedback": True},
        {"every": 6, "delay": 4, "bits": 32},
    ],
    ids=["feedback", "streaming", "delayed"],
)
def test_a_resumed_run_has_the_same_bits(at: int, options: dict[str, Any]) -> None:
    whole = in_threads(2, lambda worker: resumed(worker, 0, 13, **options))
    again = in_threads(2, lambda worker: resumed(worker, at, 13, **options))
    for (one, digest), (other, other_digest) in zip(whole, again, strict=True):
        assert torch.equal(one, other)
        assert digest == other_digest


def test_a_state_of_something_else_is_refused() -> None:
    def work(worker: Any) -> None:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diloco = DiLoCo(model, optimizer, worker, every=2, bits=2, feedback=True)
        state = diloco.state_dict()
        with pytest.raises(ConfigError, match="not the state of a DiLoCo model"):
            diloco.load_state_dict({"step": 3})
        with pytest.raises(ConfigError, match="format 99"):
            diloco.load_state_dict(state | {"format": 99})
        with pytest.raises(MismatchError, match=r"trains parameter '2\.bias', which the state does not have"):
            diloco.load_state_dict(state | {"outer": {k: v for k, v in state["outer"].items() if k != "2.bias"}})
        with pytest.raises(MismatchError, match="shape of '0.bias'"):
            diloco.load_state_dict(state | {"outer": state["outer"] | {"0.bias": torch.zeros(3)}})
        other = DiLoCo(model, optimizer, worker, every=2, bits=4)
        with pytest.raises(MismatchError, match="another codec"):
            other.load_state_dict(state)
        other.load_state_dict(state, strict=False)
        train(model, optimizer, range(1), 0)
        with pytest.raises(ConfigError, match="after 1 steps"):
            other.load_state_dict(state)
        other.close()
        diloco.close()

    in_threads(1, work)


def test_figures_and_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    logged: list[tuple[str, float, int]] = []

    def work(worker: Any) -> str:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        log = (lambda *figure: logged.append(figure)) if worker.rank == 0 else None
        diloco = DiLoCo(model, optimizer, worker, every=2, log=log)
        assert diloco.plan is None
        train(model, optimizer, range(6), worker.rank)
        diloco.close()
        assert diloco.plan is not None
        return diloco.plan.sentence()

    with caplog.at_level("INFO", logger="sumwire"):
        plans = in_threads(2, work)
    assert "a round takes" in plans[0]
    assert "% of the time (2 steps take" in plans[0]
    assert sum("a round takes" in record.getMessage() for record in caplog.records) == 1
    assert {step for _, _, step in logged} == {2, 4, 6}
    assert {"sumwire/round_seconds", "sumwire/sent_bytes"} <= {name for name, _, _ in logged}

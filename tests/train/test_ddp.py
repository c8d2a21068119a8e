"""The DDP hook between real processes."""

from __future__ import annotations

import contextlib
import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sumwire import ConfigError, Lattice
from sumwire.train import DDPState, attach, hook
from tests import ranks

Result = dict[str, Any]


class Net(nn.Module):
    """Two towers of different depth, so that gradients arrive in another order than parameters were made."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Linear(width, width)
        self.side = nn.Linear(20, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, *, use_side: bool = True) -> torch.Tensor:
        h = torch.relu(self.body(torch.relu(self.norm(self.stem(x)))))
        if use_side:
            h = h + self.side(x)
        out: torch.Tensor = self.head(h)
        return out


def batch(rank: int, step: int, rows: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 20, generator=generator)


def build(seed: int = 0, **ddp: Any) -> DistributedDataParallel:
    torch.manual_seed(seed)
    return DistributedDataParallel(Net(), **{"bucket_cap_mb": 0.02, **ddp})


def train(
    rank: int, model: DistributedDataParallel, steps: range, optimizer: torch.optim.Optimizer | None = None
) -> torch.optim.Optimizer:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        x = batch(rank, step)
        (model(x) - x[:, :5]).square().mean().backward()
        optimizer.step()
    return optimizer


def weights(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def same(results: list[np.ndarray]) -> None:
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def run_plain(rank: int, n: int, steps: int) -> np.ndarray:
    model = build()
    train(rank, model, range(steps))
    return weights(model)


def run_attached(rank: int, n: int, steps: int, options: dict[str, Any], ddp: dict[str, Any]) -> np.ndarray:
    model = build(**ddp)
    attach(model, **{"fallback": False, "algorithm": "sharded", "warmup": 1, **options})
    train(rank, model, range(steps))
    return weights(model)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("feedback", [False, True])
def test_all_ranks_end_with_the_same_bits_near_plain_ddp(n: int, feedback: bool) -> None:
    steps = 8
    coded = ranks.run(n, run_attached, steps, {"bits": 6, "feedback": feedback}, {})
    same(coded)
    plain = ranks.run(n, run_plain, steps)[0]
    distance = np.linalg.norm(coded[0] - plain) / np.linalg.norm(plain)
    assert 0 < distance < 0.02 if n > 1 else distance == 0


def test_warm_up_has_the_bits_of_plain_ddp() -> None:
    coded = ranks.run(3, run_attached, 4, {"warmup": 4}, {})
    np.testing.assert_array_equal(coded[0], ranks.run(3, run_plain, 4)[0])


@pytest.mark.parametrize(
    "ddp",
    [
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 25},
        {"bucket_cap_mb": 0.001},
    ],
)
def test_ddp_options(ddp: dict[str, Any]) -> None:
    coded = ranks.run(2, run_attached, 5, {"bits": 6, "feedback": True}, ddp)
    same(coded)
    plain = ranks.run(2, run_plain, 5)[0]
    assert 0 < np.linalg.norm(coded[0] - plain) / np.linalg.norm(plain) < 0.02


def run_pieces(rank: int, n: int, split: int, options: dict[str, Any]) -> np.ndarray:
    """Six steps, saved and restored through torch.save after `split` of them."""
    options = {"fallback": False, "algorithm": "sharded", **options}
    model, file = build(), io.BytesIO()
    state = attach(model, **options)
    optimizer = train(rank, model, range(split))
    torch.save({"model": model.module.state_dict(), "o": optimizer.state_dict(), "s": state.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()))
    resumed = build(seed=5)
    resumed.module.load_state_dict(saved["model"])
    state = attach(resumed, **options)
    state.load_state_dict(saved["s"])
    optimizer = torch.optim.SGD(resumed.parameters(), lr=0.05, momentum=0.9)
    optimizer.load_state_dict(saved["o"])
    train(rank, resumed, range(split, 6), optimizer)
    assert state.step == 6
    return weights(resumed)


def run_twice(rank: int, n: int) -> list[np.ndarray]:
    """Random numbers are another run's every time, but not those of a run that is resumed."""
    options = {"fallback": False, "algorithm": "sharded", "bits": 3, "feedback": True, "warmup": 0}
    model, found = build(), []
    state = attach(model, **options)
    optimizer = train(rank, model, range(3))
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), state.state_dict()))
    train(rank, model, range(3, 6), optimizer)
    found.append(weights(model))
    for resume in (True, False):
        again = build(seed=5)
        again.module.load_state_dict(saved[0])
        state = attach(again, **options)
        if resume:
            state.load_state_dict(saved[2])
        optimizer = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
        optimizer.load_state_dict(copy.deepcopy(saved[1]))
        train(rank, again, range(3, 6), optimizer)
        found.append(weights(again))
    return found


def test_random_numbers_are_kept_in_checkpoints() -> None:
    first, second = ranks.run(2, run_twice)
    for mine, others in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, others)
    whole, resumed, another = first
    np.testing.assert_array_equal(whole, resumed)
    assert (whole != another).any()


@pytest.mark.parametrize(
    ("warmup", "split", "feedback"),
    [(0, 1, False), (0, 3, True), (1, 2, True), (2, 1, False), (2, 2, True), (1, 4, False)],
)
def test_a_restored_state_continues_bit_for_bit(warmup: int, split: int, feedback: bool) -> None:
    # Two ranks: with more, DDP's own exact sums depend on how it cuts its buckets.
    options = {"warmup": warmup, "bits": 3, "feedback": feedback, "seed": 0}
    whole = ranks.run(2, run_attached, 6, options, {})
    resumed = ranks.run(2, run_pieces, split, options)
    same(whole + resumed)


def run_accumulating(rank: int, n: int, attached: bool) -> np.ndarray:
    model = build()
    if attached:
        attach(model, bits=8, fallback=False, warmup=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                model(batch(rank, 10 * step + micro)).square().mean().backward()
        optimizer.step()
    return weights(model)


def test_gradient_accumulation() -> None:
    coded = ranks.run(2, run_accumulating, True)
    same(coded)
    plain = ranks.run(2, run_accumulating, False)[0]
    assert 0 < np.linalg.norm(coded[0] - plain) / np.linalg.norm(plain) < 0.01


def run_unused(rank: int, n: int) -> Result:
    model = build(find_unused_parameters=True)
    attach(model, bits=4, fallback=False, warmup=0, feedback=True, algorithm="sharded")
    for step in range(3):
        model.zero_grad()
        model(batch(rank, step), use_side=False).square().mean().backward()
    partly = build(find_unused_parameters=True)
    attach(partly, bits=4, fallback=False, warmup=0, algorithm="sharded")
    partly(batch(rank, 0), use_side=rank == 0).square().mean().backward()
    grad = partly.module.side.weight.grad
    return {"unused": model.module.side.weight.grad, "partly": None if grad is None else grad.numpy()}


def test_unused_parameters_keep_no_gradient_and_partly_used_ones_are_averaged() -> None:
    results = ranks.run(2, run_unused)
    assert all(result["unused"] is None for result in results)
    same([result["partly"] for result in results])
    assert np.any(results[0]["partly"])


def run_join(rank: int, n: int) -> np.ndarray:
    model = build()
    state = attach(model, bits=6, fallback=False, warmup=1, feedback=True, algorithm="sharded")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(batch(rank, step)).square().mean().backward()
            optimizer.step()
            mine = weights(model)
    assert state.step == 7  # those that had joined took part
    return mine if rank == 2 else weights(model)  # rank 2's own, before join hands out the final model


def test_uneven_inputs_under_join() -> None:
    same(ranks.run(3, run_join))


def run_two_models(rank: int, n: int) -> list[np.ndarray]:
    first, second = build(1), build(2)
    attach(first, bits=4, fallback=False, warmup=0, algorithm="sharded")
    attach(second, bits=2, fallback=False, warmup=0, feedback=True, algorithm="sharded")
    for step in range(3):
        x = batch(rank, step)
        (first(x) + second(x)).square().mean().backward()
    return [p.grad.numpy() for model in (first, second) for p in model.parameters() if p.grad is not None]


def test_several_models_in_one_process() -> None:
    results = ranks.run(2, run_two_models)
    for pair in zip(*results, strict=True):
        same(list(pair))


class Gains(nn.Module):
    """Elementwise only: some CPUs' matrix units crash torch in bfloat16."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(2000 + 37 * k, dtype=dtype)) for k in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(gain * x[: len(gain)]).square().mean() for gain in self.gains]).sum()


def run_dtype(rank: int, n: int, dtype: torch.dtype, attached: bool) -> np.ndarray:
    model = DistributedDataParallel(Gains(dtype), bucket_cap_mb=0.01)
    if attached:
        attach(model, bits=8, fallback=False, warmup=1, algorithm="sharded")
    for step in range(3):
        model.zero_grad()
        model(batch(rank, step, rows=200).reshape(-1).to(dtype)).backward()
    return torch.cat([p.grad.double().reshape(-1) for p in model.parameters() if p.grad is not None]).numpy()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    coded = ranks.run(2, run_dtype, dtype, True)
    same(coded)
    plain = ranks.run(2, run_dtype, dtype, False)[0]
    assert np.linalg.norm(coded[0] - plain) / np.linalg.norm(plain) < 0.03


def run_poisoned(rank: int, n: int, value: float, feedback: bool) -> Result:
    model = build(bucket_cap_mb=25)
    state = attach(model, bits=4, fallback=False, warmup=1, feedback=feedback)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gradients = []
    for step in range(4):
        optimizer.zero_grad()
        x = batch(rank, step)
        if step == 2 and rank == 1:
            x[0, 0] = value
        before = weights(model)
        scaler.scale(model(x).square().mean()).backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).numpy())
        scaler.step(optimizer)
        scaler.update()
        skipped = bool(np.array_equal(before, weights(model)))
        assert skipped == (step == 2)
    residuals = [span.residual.value for bucket in state._buckets for span in bucket.spans if span.residual]
    assert bool(residuals) == feedback
    assert all(np.isfinite(residual).all() for residual in residuals)
    return {"weights": weights(model), "gradients": gradients}


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_at_one_rank_is_seen_by_all_and_poisons_nothing(value: float, feedback: bool) -> None:
    results = ranks.run(3, run_poisoned, value, feedback)
    same([result["weights"] for result in results])
    assert np.isfinite(results[0]["weights"]).all()
    for result in results:
        assert [bool(np.isfinite(g).all()) for g in result["gradients"]] == [True, True, False, True]


def run_subgroup(rank: int, n: int) -> np.ndarray:
    import torch.distributed as dist

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = build(process_group=pairs[rank // 2])
    attach(model, bits=4, fallback=False, warmup=0, algorithm="sharded")
    train(rank, model, range(2))
    return weights(model)


def test_subgroups_average_apart() -> None:
    a, b, c, d = ranks.run(4, run_subgroup)
    same([a, b])
    same([c, d])
    assert not np.array_equal(a, c)


def run_exact(rank: int, n: int) -> Result:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 600), nn.LayerNorm(600), nn.Linear(600, 600))
    model, plain = DistributedDataParallel(net), DistributedDataParallel(net)
    state = attach(model, bits=4, fallback=False, warmup=0, algorithm="sharded", feedback=True)
    found: Result = {}
    for name, wrapped in (("coded", model), ("plain", plain)):
        net.zero_grad()
        wrapped(batch(rank, 0)).square().mean().backward()
        found[name] = {key: p.grad.numpy().copy() for key, p in net.named_parameters() if p.grad is not None}
    residual = state._buckets[0].spans[0].residual
    exact = state._buckets[0].spans[0].exact
    assert residual is not None
    assert exact is not None
    assert not residual.value[exact.numpy()].any()
    return found


def test_small_tensors_are_exact() -> None:
    # Two ranks, so that the order of addition does not matter.
    for result in ranks.run(2, run_exact):
        for name in ("0.bias", "1.weight", "1.bias", "2.bias"):
            np.testing.assert_allclose(result["coded"][name], result["plain"][name], rtol=1e-6)
        assert not np.allclose(result["coded"]["2.weight"], result["plain"]["2.weight"], rtol=1e-3)


def run_waiting(rank: int, n: int) -> bool:
    """Rank 1 starts its backward only when rank 0's hooks have all returned: blocking there would hang."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    model = build()
    state = DDPState(
        bits=4, fallback=False, warmup=0, algorithm="sharded", names={p: k for k, p in model.module.named_parameters()}
    )
    state.start()

    def watched(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        future = hook(state, bucket)
        if rank == 0 and bucket.is_last():
            store.set("rank 0 came through", "yes")
        return future

    model.register_comm_hook(state, watched)
    loss = model(batch(rank, 0)).square().mean()
    if rank == 1:
        store.wait(["rank 0 came through"])
    loss.backward()
    return True


def test_the_hook_never_waits_for_the_network() -> None:
    assert ranks.run(2, run_waiting) == [True, True]


def run_mismatched(rank: int, n: int, options: list[dict[str, Any]]) -> str:
    try:
        attach(build(), **options[rank])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([{"bits": 4}, {"bits": 3}], ["bits is 4 at rank 0 and 3 at rank 1"]),
        ([{"warmup": 4}, {"warmup": 3}], ["warmup is 4 at rank 0 and 3 at rank 1"]),
        ([{"algorithm": "packed"}, {}], ["algorithm is packed at rank 0 and auto at rank 1"]),
        ([{"feedback": True}, {"feedback": False}], ["feedback is True at rank 0 and False at rank 1"]),
    ],
)
def test_ranks_that_were_set_up_differently_are_told_at_once(options: list[dict[str, Any]], words: list[str]) -> None:
    for said in ranks.run(2, run_mismatched, options):
        assert said.startswith("MismatchError")
        for word in words:
            assert word in said


def run_dying(rank: int, n: int) -> str:
    import os

    model = build()
    attach(model, bits=4, fallback=False, warmup=1, algorithm="sharded")
    train(rank, model, range(2))
    loss = model(batch(rank, 2)).square().mean()
    if rank == 1:
        os._exit(7)
    try:
        loss.backward()
    except Exception as error:
        first = str(error)
        try:
            model(batch(rank, 3)).square().mean().backward()
        except Exception as error:
            raise RuntimeError(f"FIRST {first} THEN {error}") from None
    return "no error"


def test_a_worker_that_dies_makes_the_others_fail_with_a_clear_error() -> None:
    outcomes = ranks.outcomes_of(3, run_dying, timeout=30, group=10)
    assert "died" in outcomes[1][1]
    for rank in (0, 2):
        said = str(outcomes[rank])
        assert "FIRST" in said, said
        assert "another rank has died" in said, said
        assert "THEN" in said
        assert "unusable since an earlier error" in said


def run_verdict(rank: int, n: int, options: dict[str, Any]) -> Result:
    import logging

    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("sumwire").addHandler(handler)
    logging.getLogger("sumwire").setLevel(logging.INFO)
    from sumwire.train.ddp import trial

    trial.Trial.figures = lambda self: [1e-3, 2e-3 + rank * 1e-3, 5e-4]  # type: ignore[method-assign]
    model = build()
    state = attach(model, bits=2, algorithm="sharded", feedback=True, **options)
    compressing = []
    optimizer = None
    for step in range(10):
        compressing.append(state.compressing)
        optimizer = train(rank, model, range(step, step + 1), optimizer)
    return {"weights": weights(model), "compressing": compressing, "said": records, "saved": state.state_dict()["pays"]}


def test_where_compressing_does_not_pay_all_ranks_fall_back_and_say_so() -> None:
    results = ranks.run(2, run_verdict, {})
    same([result["weights"] for result in results])
    for result in results:
        assert result["compressing"] == [False] * 2 + [True] * 5 + [False] * 3
        assert result["saved"] is False
    assert len(results[0]["said"]) == 1
    assert results[0]["said"][0].startswith(
        "WARNING compression does not pay here: gradients take 2.5 ms per step, 1.0 ms"
    )
    assert "Gbit/s" in results[0]["said"][0]
    assert "plain all-reduce" in results[0]["said"][0]
    assert results[1]["said"] == []


def test_falling_back_can_be_declined() -> None:
    result = ranks.run(2, run_verdict, {"fallback": False})[0]
    assert result["compressing"] == [False] * 2 + [True] * 8
    assert result["said"][0].startswith("WARNING compression does not pay here")


def run_logged(rank: int, n: int) -> list[tuple[str, float, int]]:
    said: list[tuple[str, float, int]] = []
    model = build()
    attach(model, bits=4, warmup=1, fallback=False, sample_every=2, algorithm="sharded",
           log=lambda *entry: said.append(entry) if rank == 0 else None)  # fmt: skip
    train(rank, model, range(4))
    return said


def test_scalars() -> None:
    said = ranks.run(2, run_logged)[0]
    by_step = [{name: value for name, value, step in said if step == k} for k in range(3)]
    assert by_step[0]["sumwire/bits_per_value"] == pytest.approx(32)
    assert by_step[0]["sumwire/saved_bytes"] == 0
    assert 4 < by_step[1]["sumwire/bits_per_value"] < 6
    assert by_step[1]["sumwire/saved_bytes"] > by_step[1]["sumwire/sent_bytes"]
    assert by_step[2]["sumwire/sent_bytes"] > by_step[1]["sumwire/sent_bytes"]  # what a sample costs is counted
    for step in (1, 2):
        for kind in ("encode", "exchange", "add", "decode"):
            assert by_step[step][f"sumwire/{kind}_seconds"] > 0
    assert 1e-4 < by_step[2]["sumwire/nmse"] < 0.1
    assert "sumwire/nmse" not in by_step[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 9}, "bits"),
        ({"bits": 4, "total_bits": 12}, "total_bits"),
        ({"codec": Lattice(2), "bits": 4}, "codec"),
        ({"warmup": -1}, "warmup=-1"),
        ({"span": 10}, "span=10"),
        ({"log": 3}, "log=3"),
        ({"energy": 7.0}, "energy"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DDPState(**options)


def test_attach_wants_a_ddp_model() -> None:
    with pytest.raises(ConfigError, match="DistributedDataParallel"):
        attach(Net())


def run_hanging(rank: int, n: int, failed: Path) -> str:
    import time

    model = build()
    attach(model, bits=4, fallback=False, warmup=0)
    loss = model(batch(rank, 0)).square().mean()
    if rank == 1:
        while not failed.exists():
            time.sleep(0.01)
        raise RuntimeError("woke up")
    try:
        loss.backward()
    finally:
        failed.touch()
    return "no error"


def test_a_worker_that_hangs_fails_the_others_within_the_timeout(tmp_path: Path) -> None:
    """It hangs until the other has failed: without a timeout, both would wait forever."""
    outcomes = ranks.outcomes_of(2, run_hanging, tmp_path / "failed", group=4)
    assert "another rank has died or hangs" in outcomes[0][1]
    assert "woke up" in outcomes[1][1]


def run_fallen_back(rank: int, n: int) -> np.ndarray:
    from sumwire.train.ddp import trial

    trial.Trial.figures = lambda self: [1e-3, 2e-3, 5e-4]  # type: ignore[method-assign]
    model = build()
    attach(model, bits=2, feedback=True, warmup=3)  # and its small buckets go plain by the cost rule
    train(rank, model, range(12))
    return weights(model)


def test_feedback_outlives_the_warm_up_and_the_fall_back() -> None:
    same(ranks.run(2, run_fallen_back))


def run_leftovers(rank: int, n: int) -> float:
    """Everything that residuals held at the fall-back reaches the gradients of the next step."""
    from sumwire.train.ddp import trial

    trial.Trial.figures = lambda self: [1e-3, 2e-3, 5e-4]  # type: ignore[method-assign]
    model = DistributedDataParallel(Gains(torch.float32))
    state = attach(model, bits=2, feedback=True, warmup=1, algorithm="sharded", exact_below=0)
    sent = np.zeros(sum(p.numel() for p in model.parameters()))
    wanted = np.zeros_like(sent)
    for step in range(9):
        for r in range(n):
            model.module.zero_grad()
            model.module(batch(r, step, rows=200).reshape(-1)).backward()
            wanted += np.concatenate([p.grad.numpy() for p in model.parameters()]) / n
        model.zero_grad()
        model(batch(rank, step, rows=200).reshape(-1)).backward()
        sent += np.concatenate([p.grad.numpy() for p in model.parameters()])
    assert not state.compressing
    return float(np.linalg.norm(sent - wanted) / np.linalg.norm(wanted))


def test_what_residuals_hold_is_sent_when_compression_stops() -> None:
    assert max(ranks.run(2, run_leftovers)) < 1e-5


def run_torn(rank: int, n: int) -> str:
    model = build()
    state = attach(model, fallback=False, warmup=0, algorithm="sharded")
    saved = []
    for step in range(3):
        train(rank, model, range(step, step + 1))
        saved.append(state.state_dict())
    resumed = build()
    attach(resumed, fallback=False, warmup=0, algorithm="sharded").load_state_dict(saved[1 + rank])
    try:
        train(rank, resumed, range(1))
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_states_of_different_steps_are_refused_by_all() -> None:
    for said in ranks.run(2, run_torn):
        assert "step is 2 at rank 0 and 3 at rank 1" in said


class WithNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(5000))
        self.nothing = nn.Parameter(torch.empty(0, dtype=torch.float64))  # alone in a bucket of its dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gain * x).square().mean() + self.nothing.sum()


def run_empty(rank: int, n: int) -> np.ndarray:
    model = DistributedDataParallel(WithNothing())
    attach(model, fallback=False, warmup=0, algorithm="sharded")
    for step in range(2):
        model.zero_grad()
        model(batch(rank, step, rows=250).reshape(-1)).backward()
    return model.module.gain.grad.numpy()


def test_a_bucket_without_values() -> None:
    same(ranks.run(2, run_empty))


def run_uneven_groups(rank: int, n: int) -> list[str]:
    import torch.distributed as dist

    dist.new_group([0, 1])  # of which rank 2 is not
    said = []
    model = build()
    attach(model, fallback=False, warmup=0, algorithm="sharded")
    train(rank, model, range(2))
    trio = dist.new_group([0, 1, 2])
    try:
        attach(build(process_group=trio))
    except ConfigError as error:
        said.append(str(error))
    return [str(weights(model).sum()), *said]


def test_ranks_may_belong_to_other_groups_too() -> None:
    results = ranks.run(3, run_uneven_groups)
    assert len({result[0] for result in results}) == 1
    for result in results:
        assert "equally many" in result[1]


def run_closed(rank: int, n: int) -> str:
    model = build()
    said: list[tuple[str, float, int]] = []
    state = attach(model, fallback=False, warmup=0, log=lambda *entry: said.append(entry))
    train(rank, model, range(1))
    state.close()
    assert {step for _, _, step in said} == {0}  # the last step was logged
    try:
        train(rank, model, range(1, 2))
    except Exception as error:
        return str(error)
    return "no error"


def test_a_closed_state_says_so() -> None:
    for said in ranks.run(2, run_closed):
        assert "closed" in said

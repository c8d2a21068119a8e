"""The compressed reduce-scatter of FSDP2 between real processes."""

from __future__ import annotations

import copy
import importlib
import io
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import sumwire
from sumwire import ConfigError, Lattice
from sumwire.aggregate.group.cost import shard_pays as pays
from sumwire.train import attach
from sumwire.train.fsdp import FSDPState, reduce_scatter
from sumwire.train.fsdp.reduce_scatter import round_id
from tests import ranks

Result = dict[str, Any]


class Net(nn.Module):
    """Odd sizes, so that shards are padded; some units large enough to be compressed, one not."""

    def __init__(self, width: int = 181) -> None:
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.first = nn.Linear(width, width)
        self.second = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.stem(x))
        h = h + torch.relu(self.first(h))
        out: torch.Tensor = self.head(h + self.second(h))
        return out


class Gains(nn.Module):
    """Elementwise only, so that one can tell what its gradients are."""

    def __init__(self, sizes: tuple[int, ...] = (40_003, 1, 5_000)) -> None:
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.linspace(-1, 1, size)) for size in sizes)

    def forward(self, x: torch.Tensor, used: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
        return torch.stack([(self.gains[k] * x[: len(self.gains[k])]).square().mean() for k in used]).sum()


def batch(rank: int, step: int, rows: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 20, generator=generator)


def noise(rank: int, step: int, size: int = 40_003) -> torch.Tensor:
    return batch(rank, step, rows=-(-size // 20)).reshape(-1)[:size]


def build(seed: int = 0, **options: Any) -> Any:
    """Three units: two of modules, the rest in the root."""
    torch.manual_seed(seed)
    net = Net()
    for module in (net.first, net.second, net):
        fully_shard(module, **options)
    return net


def train(rank: int, model: nn.Module, steps: range, optimizer: Any = None) -> tuple[Any, list[float]]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        x = batch(rank, step)
        loss = (model(x) - x[:, :5]).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return optimizer, losses


def full(tensors: Any) -> np.ndarray:
    return torch.cat([tensor.full_tensor().detach().reshape(-1).double() for tensor in tensors]).numpy()


def weights(model: nn.Module) -> np.ndarray:
    return full(model.parameters())


def gradients(model: nn.Module) -> np.ndarray:
    return full(p.grad for p in model.parameters() if p.grad is not None)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def run_training(rank: int, n: int, steps: int, options: list[dict[str, Any] | None]) -> list[Result]:
    """One training run for each set of options; None is plain FSDP2."""
    results = []
    for each in options:
        model = build()
        state = None if each is None else attach(model, **each)
        _, losses = train(rank, model, range(steps))
        results.append({"weights": weights(model), "losses": losses, "step": state.step if state else steps})
    return results


@pytest.mark.parametrize("n", [2, 3, 4])
def test_trains_as_plain_fsdp_does(n: int) -> None:
    steps = 8
    options = [None, {"bits": 8}, {"bits": 4, "feedback": True}, {"bits": 4}, {"bits": 1, "warmup": steps}]
    results = ranks.run(n, run_training, steps, options)
    for plain, fine, fed, coarse, warm in results:
        assert 0 < distance(fine["weights"], plain["weights"]) < 2e-3
        assert 0 < distance(fed["weights"], plain["weights"]) < 2e-2
        assert 0 < distance(coarse["weights"], plain["weights"]) < 2e-2
        np.testing.assert_array_equal(warm["weights"], plain["weights"])
        np.testing.assert_allclose(fed["losses"], plain["losses"], rtol=0.05)
        assert {each["step"] for each in (fine, fed, coarse, warm)} == {steps}


def run_shards(rank: int, n: int, feedback: bool) -> Result:
    model, plain = Gains(), Gains()
    fully_shard(model)
    attach(model, bits=3, seed=7, energy=1.0, feedback=feedback)
    found: Result = {"rows": [], "gradients": []}
    for step in range(2):
        for each in (model, plain):
            each.zero_grad()
            each(noise(rank, step)).backward()
        # As FSDP2 lays out its input: every parameter cut into n chunks, padded with zeros.
        found["rows"].append(torch._chunk_cat([p.grad for p in plain.parameters()], dim=0, num_chunks=n).numpy())
        found["gradients"].append([p.grad.full_tensor().numpy() for p in model.parameters()])  # type: ignore[union-attr]
    return found


def unsharded(rows: list[np.ndarray], sizes: list[int]) -> list[np.ndarray]:
    """Whole tensors from the rows of all ranks."""
    whole, start = [], 0
    for size in sizes:
        chunk = -(-size // len(rows))
        whole.append(np.concatenate([row[start : start + chunk] for row in rows])[:size])
        start += chunk
    return whole


@pytest.mark.parametrize("n", [2, 3, 4])
def test_shards_have_the_bits_of_an_average_of_rows(n: int) -> None:
    results = ranks.run(n, run_shards, False)
    codec = Lattice(n, 3, seed=7)
    for step in range(2):
        rows = [result["rows"][step] for result in results]
        means = [sumwire.average(codec, [own[r] for own in rows], round_id=round_id(step, 0, r)) for r in range(n)]
        for result in results:
            for mine, expected in zip(result["gradients"][step], unsharded(means, [40_003, 1, 5_000]), strict=True):
                np.testing.assert_array_equal(mine, expected)


def test_feedback_sends_later_what_it_kept() -> None:
    results = ranks.run(2, run_shards, True)
    codec = Lattice(2, 3, seed=7, feedback=True)
    for row in range(2):
        memories = [sumwire.Residual(codec) for _ in range(2)]
        for step in range(2):
            proposed = [codec.propose(m.correct(r["rows"][step][row])) for m, r in zip(memories, results, strict=True)]
            terms = proposed[0] | proposed[1]
            key = round_id(step, 0, row)
            total = sum(memory.encode(terms, rank=k, round_id=key) for k, memory in enumerate(memories))
            mean = codec.decode(total)  # type: ignore[arg-type]
            whole = results[0]["gradients"][step][0]
            np.testing.assert_array_equal(
                whole[20_002 * row : 20_002 * (row + 1)], mean[:20_002][: len(whole) - 20_002 * row]
            )


def run_metered(rank: int, n: int) -> Result:
    said: list[tuple[str, float, int]] = []
    model = fully_shard(Gains((200_000,)))
    state = attach(model, bits=4, log=lambda *entry: said.append(entry))
    for step in range(3):
        model(noise(rank, step, 200_000), used=(0,)).backward()
    mixed = build()
    meters = []
    for bits in (2, 8):
        sizes = attach(mixed, bits=bits)
        train(rank, mixed, range(1))
        meters.append(sizes.statistics)
    return {"meter": (state.statistics.sent, state.statistics.plain_sent, dict(state.statistics.seconds)), "said": said,
            "mixed": [(each.sent, each.plain_sent, each.values) for each in meters]}  # fmt: skip


def test_bytes_sent() -> None:
    for result in ranks.run(2, run_metered):
        sent, plain, seconds = result["meter"]
        assert plain == 200_000 * 4 // 2
        # And one float32 for each block of 512, twice over.
        assert sent == pytest.approx(plain * (4 / 32 + 2 / 512), rel=0.02)
        assert min(seconds.values()) > 0
        assert [(name, step) for name, _, step in result["said"] if name == "sumwire/sent_bytes"] == [
            ("sumwire/sent_bytes", 0), ("sumwire/sent_bytes", 1)
        ]  # fmt: skip
        # Stem and head are too small to be worth it: they are sent as they are, and counted so.
        least = 4 * (21 * 181 + 182 * 5) // 2
        for (sent, whole, values), bits in zip(result["mixed"], (2, 8), strict=True):
            assert whole == 2 * values
            assert sent == pytest.approx(least + (whole - least) * (bits / 32 + 2 / 512), rel=0.03)


def run_poisoned(rank: int, n: int) -> Result:
    found: Result = {}
    for name in ("plain", "coded", "fed"):
        model = fully_shard(Gains())
        state = attach(model, bits=8, feedback=name == "fed") if name != "plain" else None
        before = None
        found[name] = []
        for step, value in enumerate((0.0, float("nan"), float("inf"), 1e38, 0.0)):
            model.zero_grad()
            x = noise(rank, step)
            if rank == 1 and value:
                x[3] = value
            if state is not None and step == 1:
                before = str(state.state_dict()["units"]["(root)"]["residual"])
            model(x).backward()
            found[name].append(gradients(model))
            if state is not None and step == 3:
                assert before == str(state.state_dict()["units"]["(root)"]["residual"])
    return found


def test_nan_at_one_rank_is_what_plain_fsdp_gives_and_poisons_nothing() -> None:
    for result in ranks.run(2, run_poisoned):
        for name in ("coded", "fed"):
            for step, (coded, plain) in enumerate(zip(result[name], result["plain"], strict=True)):
                if step in (0, 4):
                    assert 0 < distance(coded, plain) < 0.04
                else:
                    assert not np.isfinite(plain).all()
                    np.testing.assert_array_equal(coded, plain)


def run_reductions(rank: int, n: int) -> Result:
    """Gradients by name of the setting: plain, then coded."""
    found: Result = {}

    def compare(name: str, configure: Any = lambda model: None, sizes: Any = (120_000, 77), **options: Any) -> None:
        found[name] = []
        for coded in (False, True):
            model = fully_shard(Gains(sizes), **options)
            configure(model)
            state = attach(model, bits=8) if coded else None
            model(noise(rank, 0, 120_000), used=(0, 1)).backward()
            found[name].append(gradients(model))
            assert state is None or state.statistics.sent < state.statistics.plain_sent

    compare("mean")
    compare("sum", lambda model: model.set_force_sum_reduction_for_comms(True))
    compare("bf16", mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    compare("fp16", mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    compare("fp16 throughout", mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
    # gloo has no such reduction, but Sumwire does; in the small unit, too, which goes plain.
    for name, sizes in (("factor", (120_000, 77)), ("small factor", (50, 7))):
        model = fully_shard(Gains(sizes))
        model.set_gradient_divide_factor(4.0)
        attach(model, bits=8)
        model(noise(rank, 0, 120_000), used=(0, 1)).backward()
        plain = fully_shard(Gains(sizes))
        plain(noise(rank, 0, 120_000), used=(0, 1)).backward()
        found[name] = [gradients(plain) * n / 4.0, gradients(model)]
    return found


def test_reductions_and_dtypes() -> None:
    for result in ranks.run(2, run_reductions):
        assert set(result) == {"mean", "sum", "bf16", "fp16", "fp16 throughout", "factor", "small factor"}
        for name, (plain, coded) in result.items():
            if name == "small factor":
                np.testing.assert_allclose(coded, plain, rtol=1e-6)
            else:
                assert 0 < distance(coded, plain) < 0.02, name


def test_other_reductions_are_refused() -> None:
    assert reduce_scatter._factor(dist.ReduceOp.PREMUL_SUM(torch.tensor([0.25]))) == 0.25
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PREMUL_SUM):
        with pytest.raises(ConfigError, match="set_gradient_divide_factor"):
            reduce_scatter._factor(op)


def run_accumulating(rank: int, n: int) -> list[np.ndarray]:
    found = []
    for coded in (False, True):
        model = build()
        state = attach(model, bits=8, feedback=True) if coded else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            for micro in range(3):
                model.set_requires_gradient_sync(micro == 2)
                model(batch(rank, 10 * step + micro)).square().mean().backward()
            optimizer.step()
        assert state is None or state.step == 3
        found.append(weights(model))
    return found


def test_gradient_accumulation() -> None:
    for plain, coded in ranks.run(2, run_accumulating):
        assert 0 < distance(coded, plain) < 1e-2


def run_pieces(rank: int, n: int, options: list[dict[str, Any]]) -> list[list[np.ndarray]]:
    return [pieces(rank, each) for each in options]


def pieces(rank: int, options: dict[str, Any]) -> list[np.ndarray]:
    """Six steps without a break, and saved and restored through torch.save after one and three of them."""
    found = []
    for split in (6, 1, 3):
        model, file = build(), io.BytesIO()
        state = attach(model, **options)
        optimizer, _ = train(rank, model, range(split))
        torch.save(state.state_dict(), file)
        saved = {"m": model.state_dict(), "o": optimizer.state_dict()}
        resumed = build(seed=5)
        resumed.load_state_dict(saved["m"])
        state = attach(resumed, **options)
        state.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
        optimizer = torch.optim.SGD(resumed.parameters(), lr=0.02, momentum=0.9)
        optimizer.load_state_dict(saved["o"])
        train(rank, resumed, range(split, 6), optimizer)
        assert state.step == 6
        found.append(weights(resumed))
    return found


def test_a_restored_state_continues_bit_for_bit() -> None:
    for result in ranks.run(
        2, run_pieces, [{"bits": 3, "feedback": True, "seed": 1}, {"bits": 3, "warmup": 2, "seed": 1}]
    ):
        for whole, *resumed in result:
            for each in resumed:
                np.testing.assert_array_equal(each, whole)


def run_replicas(rank: int, n: int) -> Result:
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found: Result = {"weights": [], "errors": []}
    for options in (None, {"bits": 8}, {"bits": 4, "feedback": True}):
        model = build(mesh=mesh)
        if options is not None:
            attach(model, **options)
        train(rank, model, range(3))
        found["weights"].append(weights(model))
    plain = Gains()
    plain(noise(0, 0)).backward()
    exact = torch.cat([p.grad for p in plain.parameters() if p.grad is not None]).double().numpy()
    for where in (mesh, mesh["shard"]):
        gains = fully_shard(Gains(), mesh=where)
        attach(gains, bits=3)
        gains(noise(0, 0)).backward()
        found["errors"].append(distance(gradients(gains), exact))
    return found


def test_hybrid_sharding() -> None:
    results = ranks.run(4, run_replicas)
    for result in results:
        plain, fine, fed = result["weights"]
        assert 0 < distance(fine, plain) < 2e-3
        assert 0 < distance(fed, plain) < 2e-2
        np.testing.assert_array_equal(result["weights"], results[0]["weights"])
    # Replicas with the same gradients do not round alike, so their errors average out.
    both, one = results[0]["errors"]
    assert both**2 / one**2 == pytest.approx(0.5, abs=0.1)


def run_partial(rank: int, n: int) -> Result:
    """Parameters without gradients are left out by FSDP2, so that two equal ones could be taken for each other."""
    import logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sumwire").addHandler(handler)
    found: Result = {"said": said}
    for name, feedback, filled in (("no feedback", False, False), ("left out", True, False), ("filled in", True, True)):
        model, plain = fully_shard(Gains((50_000, 50_000))), fully_shard(Gains((50_000, 50_000)))
        model.set_reduce_scatter_unused_params(filled)
        plain.set_reduce_scatter_unused_params(filled)
        attach(model, bits=8, feedback=feedback)
        found[name] = []
        for step, used in enumerate([(0,), (1,), (0, 1), (1,)]):
            for each in (model, plain):
                each.zero_grad()
                each(noise(rank, step, 50_000), used=used).backward()
            found[name].append(distance(gradients(model), gradients(plain)))
    return found


def test_parameters_without_gradients() -> None:
    results = ranks.run(2, run_partial)
    for result in results:
        assert all(0 < each < 0.02 for each in result["no feedback"])
        assert [each == 0 for each in result["left out"]] == [True, True, False, True]
        assert all(0 < each < 0.03 for each in result["filled in"])
    [said] = results[0]["said"]
    assert "50000 of its 100000" in said
    assert "set_reduce_scatter_unused_params" in said
    assert results[1]["said"] == []


def run_shared(rank: int, n: int) -> Result:
    """A unit that is used twice, one of two modules, and one whose parameters are frozen for a while."""
    found: Result = {}
    for coded in (False, True):
        torch.manual_seed(0)
        pair, frozen = ([nn.Linear(150, 150) for _ in range(2)] for _ in range(2))
        twice = nn.Linear(150, 150)
        model = nn.Sequential(*pair, twice, twice, nn.Sequential(*frozen))
        for each in (pair, twice, model[-1], model):
            fully_shard(each)
        state = attach(model, bits=8, feedback=True) if coded else None
        grads = []
        for step in range(3):
            frozen[0].requires_grad_(step != 1)
            model.zero_grad()
            model(noise(rank, step, 3_000).reshape(20, 150)).square().mean().backward()
            grads.append(gradients(model))
        found["coded" if coded else "plain"] = grads
        if state is not None:
            found["calls"] = {name: unit.calls for name, unit in state.units.items()}
    return found


def test_units_of_several_modules_used_twice_or_frozen() -> None:
    for result in ranks.run(2, run_shared):
        for coded, plain in zip(result["coded"], result["plain"], strict=True):
            assert 0 < distance(coded, plain) < 0.03
        assert result["calls"] == {"0": 3, "2": 3, "4": 3}


def run_attach(rank: int, n: int, cases: list[list[dict[str, Any]]]) -> list[str]:
    said = []
    for options in cases:
        with pytest.raises(sumwire.SumwireError) as caught:
            attach(build(), **options[rank])
        said.append(f"{type(caught.value).__name__}: {caught.value}")
    return said


def test_ranks_that_were_set_up_wrongly_are_told_at_once() -> None:
    cases = {
        "MismatchError.* bits is 4 at rank 0 and 3 at rank 1": [{"bits": 4}, {"bits": 3}],
        "MismatchError.* warmup is 4 at rank 0 and 0 at rank 1": [{"warmup": 4}, {}],
        "ConfigError.* workers=3, .* has 2 ranks: build it with workers=2": [{"codec": Lattice(3)}] * 2,
    }
    for said in ranks.run(2, run_attach, list(cases.values())):
        for pattern, message in zip(cases, said, strict=True):
            assert re.search(pattern, message), message


def run_random_resume(rank: int, n: int) -> list[np.ndarray]:
    """A step after a checkpoint, without a break and resumed: random numbers are the run's own."""
    model = build()
    state = attach(model, bits=3, feedback=True)
    optimizer, _ = train(rank, model, range(2))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), state.state_dict()))
    train(rank, model, range(2, 3), optimizer)
    resumed = build(seed=5)
    resumed.load_state_dict(saved[0])
    attach(resumed, bits=3, feedback=True).load_state_dict(saved[2])
    optimizer = torch.optim.SGD(resumed.parameters(), lr=0.02, momentum=0.9)
    optimizer.load_state_dict(saved[1])
    train(rank, resumed, range(2, 3), optimizer)
    return [weights(model), weights(resumed)]


def test_random_numbers_are_kept_in_checkpoints() -> None:
    for whole, resumed in ranks.run(2, run_random_resume):
        np.testing.assert_array_equal(whole, resumed)


def run_foreign_states(rank: int, n: int) -> list[str]:
    state = attach(build(), bits=4, feedback=True)
    mine = state.state_dict()
    unit = mine["units"]["first"]
    said = []
    for wrong in (
        {"format": 1, "units": mine["units"]},
        {"format": 3, "units": {"first": unit}},
        {"format": 3, "units": mine["units"] | {"first": unit | {"rank": 1 - rank}}},
        attach(build(), bits=3).state_dict(),
    ):
        with pytest.raises(sumwire.SumwireError) as caught:
            state.load_state_dict(wrong)
        said.append(str(caught.value))
    return said


def test_states_of_something_else_are_refused() -> None:
    for said in ranks.run(2, run_foreign_states):
        for words, message in zip(["format 3", "FSDP units", "rank differs", "family differs"], said, strict=True):
            assert words in message


def run_torn(rank: int, n: int) -> str:
    model = build()
    state = attach(model, bits=4)
    states = []
    for step in range(2):
        train(rank, model, range(step, step + 1))
        states.append(state.state_dict())
    resumed = build()
    attach(resumed, bits=4).load_state_dict(states[rank])
    with pytest.raises(sumwire.MismatchError) as caught:
        train(rank, resumed, range(1))
    return str(caught.value)


def test_states_of_different_steps_are_refused_by_all() -> None:
    for said in ranks.run(2, run_torn):
        assert "calls of FSDP units" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 9}, "bits"),
        ({"warmup": -1}, "warmup=-1"),
        ({"log": 3}, "log=3"),
        ({"codec": Lattice(2), "bits": 4}, "codec"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FSDPState(Net(), **options)


def test_attach_wants_a_sharded_model() -> None:
    with pytest.raises(ConfigError, match="fully_shard"):
        attach(Net())


def test_round_ids_differ() -> None:
    assert len({round_id(c, u, p) for c in range(5) for u in (0, 1, 16383) for p in (0, 1, 1048575)}) == 45
    for unit, place in ((16384, 0), (0, 1048576)):
        with pytest.raises(ConfigError, match="16384 units"):
            round_id(0, unit, place)


def test_the_rule_counts_bits_of_values() -> None:
    assert pays(Lattice(2), 2, 10_000, 32)
    assert not pays(Lattice(2), 2, 10_000, 16)


def test_torch_without_the_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp._fully_shard._fsdp_api", None)
    monkeypatch.delitem(sys.modules, "sumwire.train.fsdp.reduce_scatter")
    with pytest.raises(ConfigError, match="torch 2.9 or later"):
        importlib.import_module("sumwire.train.fsdp.reduce_scatter")

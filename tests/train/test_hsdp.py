"""HSDP between real processes: the reduce-scatter within a replica and the all-reduce between replicas, compressed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import sumwire
from sumwire import ConfigError, Lattice, Sparse
from sumwire.train import attach
from sumwire.train.fsdp.all_reduce import ReplicaGroup
from sumwire.train.fsdp.collective import Mesh, round_id
from sumwire.train.fsdp.state import _choose_between_replicas
from tests import ranks
from tests.train.fsdp_models import (
    Gains,
    Result,
    batch,
    build,
    distance,
    gradients,
    noise,
    rows,
    train,
    unsharded,
    weights,
)

SIZES = [40_003, 1, 5_000]


def mesh_of(replicas: int, shards: int) -> Any:
    return dist.init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


def averaged(codec: Lattice, memories: list[Any], inputs: list[np.ndarray], key: int) -> np.ndarray:
    """What workers decode whose residuals are these, where they have any."""
    if not codec.feedback:
        return np.asarray(sumwire.average(codec, inputs, round_id=key))
    proposed = [codec.propose(memory.correct(x)) for memory, x in zip(memories, inputs, strict=True)]
    terms = proposed[0]
    for each in proposed[1:]:
        terms = terms | each
    payloads = [memory.encode(terms, rank=rank, round_id=key) for rank, memory in enumerate(memories)]
    return codec.decode(codec.add(payloads))


# The law, bit for bit, and how far it is from the true mean


def run_law(rank: int, n: int, replicas: int) -> list[Result]:
    """Without feedback, and with it."""
    mesh = mesh_of(replicas, n // replicas)
    return [law(rank, n // replicas, mesh, feedback) for feedback in (False, True)]


def law(rank: int, shards: int, mesh: Any, feedback: bool) -> Result:
    model, plain = fully_shard(Gains(), mesh=mesh), Gains()
    state = attach(model, bits=3, seed=7, energy=1.0, feedback=feedback)
    found: Result = {"rows": [], "gradients": []}
    for step in range(2):
        for each in (model, plain):
            each.zero_grad()
            each(noise(rank, step)).backward()
        found["rows"].append(rows(plain, shards))
        found["gradients"].append(gradients(model))
    found["step"] = state.step
    return found


@pytest.mark.parametrize(("replicas", "shards"), [(2, 2), (2, 1), (1, 2)])
def test_gradients_have_the_bits_of_averages_of_averages(replicas: int, shards: int) -> None:
    for feedback, results in enumerate(zip(*ranks.run(replicas * shards, run_law, replicas), strict=True)):
        check_law(results, replicas, shards, feedback=bool(feedback))


def check_law(results: Sequence[Result], replicas: int, shards: int, *, feedback: bool) -> None:
    within = Lattice(shards, 3, seed=7, feedback=feedback, down_bits="exact")
    between = Lattice(replicas, 3, seed=7, feedback=feedback)  # with narrow sums, but for feedback
    kept = [[[within.residual() for _ in range(shards)] for _ in range(shards)] for _ in range(replicas)]
    kept_between = [[between.residual() for _ in range(replicas)] for _ in range(shards)]
    for step in range(2):
        means = []
        for shard in range(shards):
            reduced = []
            for replica in range(replicas):
                own = [results[replica * shards + k]["rows"][step][shard] for k in range(shards)]
                key = round_id(step, 0, replica * shards + shard)
                row = averaged(within, kept[replica][shard], own, key) if shards > 1 else own[0]
                reduced.append(row)
            key = round_id(step, 0, replicas * shards + shard)
            means.append(averaged(between, kept_between[shard], reduced, key) if replicas > 1 else reduced[0])
        exact = unsharded(np.mean([result["rows"][step] for result in results], axis=0, dtype=np.float64), SIZES)
        for result in results:
            assert result["step"] == 2
            np.testing.assert_array_equal(result["gradients"][step], unsharded(means, SIZES))
            assert 0 < distance(result["gradients"][step], exact) < (0.7 if feedback and step else 0.4)


def test_no_two_tensors_share_random_numbers() -> None:
    for replicas, shards in ((1, 4), (4, 1), (2, 3)):
        mesh = [Mesh(replicas, shards, replica, shard) for replica in range(replicas) for shard in range(shards)]
        scattered = {(m.replica, row): m.first_row + row for m in mesh for row in range(shards)}
        reduced = {m.shard: m.reduced_shard for m in mesh}
        places = [*scattered.values(), *reduced.values()]
        assert len(set(places)) == len(places) == replicas * shards + shards
        assert sorted(m.rank for m in mesh) == list(range(replicas * shards))


# What both stages send


def run_metered(rank: int, n: int, replicas: int) -> tuple[int, int, int]:
    size = 200_000
    model = fully_shard(Gains((size,)), mesh=mesh_of(replicas, n // replicas))
    state = attach(model, bits=4)
    for step in range(2):
        model(noise(rank, step, size), used=(0,)).backward()
    return state.statistics.values, state.statistics.plain_sent, state.statistics.sent


@pytest.mark.parametrize(("replicas", "shards"), [(2, 2), (2, 1)])
def test_bytes_of_both_stages_are_counted(replicas: int, shards: int) -> None:
    for values, plain, sent in ranks.run(replicas * shards, run_metered, replicas):
        size, shard = 200_000, 200_000 // shards
        assert values == size
        assert plain == 4 * (size - shard) + 4 * shard * 2 * (replicas - 1) // replicas
        # One byte for each block of 512 goes to the other rank; sums are of 5.125 bits, and 16 per block.
        scattered = (size - shard) * 4 + (size * 8 / 512 if shards > 1 else 0)
        reduced = shard * (4 + 5.125 + 16 / 512) / 2 + shard * 8 / 512
        assert 8 * sent == pytest.approx(scattered + reduced, rel=0.02)


# Everything that FSDP2 does between the two stages


def run_reductions(rank: int, n: int) -> Result:
    """Gradients by name of the setting: plain, then coded; and the true mean."""
    mesh = mesh_of(2, 2)
    found: Result = {}

    def one(configure: Any, coded: dict[str, Any] | None, **options: Any) -> np.ndarray:
        model = fully_shard(Gains((120_000, 77)), mesh=mesh, **options)
        configure(model)
        if coded is not None:
            attach(model, **coded)
        model(noise(rank, 0, 120_000), used=(0, 1)).backward()
        return gradients(model)

    def compare(name: str, configure: Any = lambda model: None, **options: Any) -> None:
        found[name] = [one(configure, coded, **options) for coded in (None, {"bits": 8}, {"bits": 8, "warmup": 1})]

    compare("mean")
    compare("sum", lambda model: model.set_force_sum_reduction_for_comms(True))
    compare("bf16", mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    compare("fp16", mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    # gloo has no such reduction for a plain reduce-scatter.
    found["factor"] = one(lambda model: model.set_gradient_divide_factor(8.0), {"bits": 8})
    found["lossless"] = one(lambda model: None, {"codec": "sparse"})
    plain = Gains((120_000, 77))
    plain(noise(rank, 0, 120_000), used=(0, 1)).backward()
    found["own"] = torch.cat([p.grad for p in plain.parameters() if p.grad is not None]).numpy()
    return found


def test_reductions_and_dtypes() -> None:
    results = ranks.run(4, run_reductions)
    own = [result["own"] for result in results]
    exact = np.mean(own, axis=0, dtype=np.float64)
    in_order = ((own[0] + own[1]) / np.float32(2) + (own[2] + own[3]) / np.float32(2)) / np.float32(2)
    for result in results:
        for name in ("mean", "sum", "bf16", "fp16"):
            plain, coded, warm = result[name]
            assert 0 < distance(coded, exact) < 0.02, name
            np.testing.assert_array_equal(warm, plain)
            np.testing.assert_array_equal(coded, results[0][name][1])
        assert 0 < distance(result["factor"], exact * 4 / 8) < 0.02
        np.testing.assert_array_equal(result["lossless"], in_order)


def accumulate(rank: int, model: Any, step: int, *, backwards: int = 3) -> None:
    """As users do who all-reduce once, and keep partial sums of shards until then."""
    for micro in range(backwards):
        model.set_requires_all_reduce(micro == backwards - 1)
        model(batch(rank, 10 * step + micro)).square().mean().backward()
        assert micro == backwards - 1 or model.first.weight.grad is None


def run_accumulating(rank: int, n: int) -> Result:
    mesh, found = mesh_of(2, 2), {}
    for name, options in {"plain": None, "coded": {"bits": 8}, "fed": {"bits": 8, "feedback": True}}.items():
        model = build(mesh=mesh)
        state = None if options is None else attach(model, **options)
        found[name] = []
        for step in range(2):
            model.zero_grad()
            accumulate(rank, model, step)
            found[name].append(gradients(model))
        if state is not None:
            saved = state.state_dict()["units"]["first"]
            found["calls"] = saved["reduce_scatter"]["calls"], saved["all_reduce"]["calls"]
    return found


def test_partial_sums_of_accumulated_gradients() -> None:
    results = ranks.run(4, run_accumulating)
    for result in results:
        assert result["calls"] == (6, 2)
        for name in ("coded", "fed"):
            for step, (mine, plain) in enumerate(zip(result[name], result["plain"], strict=True)):
                assert 0 < distance(mine, plain) < 0.03
                np.testing.assert_array_equal(mine, results[0][name][step])


# NaN and Inf


def run_poisoned(rank: int, n: int) -> Result:
    mesh = mesh_of(2, 2)
    found: Result = {"kept": []}
    for name in ("plain", "coded", "fed"):
        model = fully_shard(Gains(), mesh=mesh)
        state = attach(model, bits=8, feedback=name == "fed") if name != "plain" else None
        found[name] = []
        for step, value in enumerate((0.0, float("nan"), float("inf"), 1e38, 0.0)):
            model.zero_grad()
            x = noise(rank, step)
            if rank == 1 and value:
                x[3] = value
            model(x).backward()
            found[name].append(gradients(model))
            if name == "fed" and state is not None:
                residual = state.state_dict()["units"]["(root)"]["all_reduce"]["residual"]
                found["kept"].append(residual["value"].numpy())
    return found


def test_nan_at_one_rank_of_one_replica_is_seen_alike_by_all() -> None:
    results = ranks.run(4, run_poisoned)
    for rank, result in enumerate(results):
        for name in ("coded", "fed"):
            for step, (coded, plain) in enumerate(zip(result[name], result["plain"], strict=True)):
                np.testing.assert_array_equal(coded, results[0][name][step])
                np.testing.assert_array_equal(np.isnan(coded), np.isnan(plain))
                np.testing.assert_array_equal(np.isinf(coded), np.isinf(plain))
                assert np.isfinite(plain).all() == (step in (0, 4))
                fine = np.isfinite(plain)
                assert 0 < distance(coded[fine], plain[fine]) < 0.04
        # Coordinate 3 is in the first shard, whose residual nothing has touched meanwhile.
        kept = result["kept"]
        if rank % 2 == 0:
            np.testing.assert_array_equal(kept[0], kept[3])
        assert all(np.isfinite(each).all() and np.any(each) for each in kept)
        assert np.any(kept[3] != kept[4])


# Training, checkpoints, errors


def run_training(rank: int, n: int, replicas: int) -> Result:
    mesh = mesh_of(replicas, n // replicas)
    found: Result = {"weights": [], "resumed": []}
    for options in (None, {"bits": 8}, {"bits": 4, "feedback": True}, {"bits": 3, "warmup": 1}):
        model, file = build(mesh=mesh), io.BytesIO()
        state = None if options is None else attach(model, **options)
        optimizer, _ = train(rank, model, range(2))
        if state is not None:
            torch.save([state.state_dict(), model.state_dict(), optimizer.state_dict()], file)
        train(rank, model, range(2, 4), optimizer)
        found["weights"].append(weights(model))
        if options is None:
            continue
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        resumed = build(seed=5, mesh=mesh)
        resumed.load_state_dict(saved[1])
        again = attach(resumed, **options)
        again.load_state_dict(saved[0])
        optimizer = torch.optim.SGD(resumed.parameters(), lr=0.02, momentum=0.9)
        optimizer.load_state_dict(saved[2])
        train(rank, resumed, range(2, 4), optimizer)
        assert again.step == 4
        found["resumed"].append(weights(resumed))
    return found


@pytest.mark.parametrize(("replicas", "shards"), [(2, 2), (2, 1)])
def test_trains_as_plain_hsdp_does_and_resumes_bit_for_bit(replicas: int, shards: int) -> None:
    results = ranks.run(replicas * shards, run_training, replicas)
    for result in results:
        plain, fine, fed, coarse = result["weights"]
        assert 0 < distance(fine, plain) < 2e-3
        assert 0 < distance(fed, plain) < 2e-2
        assert 0 < distance(coarse, plain) < 4e-2
        np.testing.assert_array_equal(result["weights"], results[0]["weights"])
        np.testing.assert_array_equal(result["resumed"], result["weights"][1:])


def run_errors(rank: int, n: int) -> list[str]:
    said = []

    def refused(act: Any) -> None:
        with pytest.raises(sumwire.SumwireError) as caught:
            act()
        said.append(f"{type(caught.value).__name__}: {caught.value}")

    apart = mesh_of(2, 1)
    refused(lambda: attach(build(mesh=apart), bits=4 + rank))  # replicas do not agree
    model = build(mesh=apart)
    state = attach(model, bits=4, feedback=True)
    states = []
    for step in range(2):
        train(rank, model, range(step, step + 1))
        states.append(state.state_dict())
    torn = build(mesh=apart)
    attach(torn, bits=4, feedback=True).load_state_dict(states[rank])
    refused(lambda: train(rank, torn, range(1)))
    refused(lambda: attach(build(), bits=4, feedback=True).load_state_dict(states[0]))
    alone = attach(build(mesh=mesh_of(1, 2)), bits=4, feedback=True).state_dict()
    refused(lambda: attach(build(mesh=apart), bits=4, feedback=True).load_state_dict(alone))
    # Attached again, it is the plain group that is replaced anew, and the former state is closed.
    before = model._get_fsdp_state()._fsdp_param_group.mesh_info.replicate_process_group
    second = attach(model, bits=4)
    after = model._get_fsdp_state()._fsdp_param_group.mesh_info.replicate_process_group
    assert isinstance(after, ReplicaGroup)
    assert after.plain is before.plain is apart.get_group("replicate")
    train(rank, model, range(1))
    second.close()
    refused(lambda: train(rank, model, range(1)))
    return said


def test_errors_are_told_at_every_rank() -> None:
    for said in ranks.run(2, run_errors):
        assert [message.partition(":")[0] for message in said] == ["MismatchError"] * 4 + ["RoundError"]
        for words, message in zip(
            [
                "bits is 4 at rank 0 and 5 at rank 1",
                "calls of FSDP units",
                "saved on a mesh with several replicas, and this mesh has one",
                "saved on a mesh with one replica, and this mesh has several",
                "this state is closed",
            ],
            said,
            strict=True,
        ):
            assert words in message


def test_a_codec_of_the_users_own_is_built_anew_for_the_replicas() -> None:
    for own in (Lattice(4, bits=3, seed=5), Lattice(4, feedback=True), Sparse(4, seed=2)):
        between = _choose_between_replicas(3, bits=None, options={"codec": own})
        assert between.workers == 3
        assert {k: v for k, v in own.options().items() if k != "workers"}.items() <= between.options().items()
        assert _choose_between_replicas(4, bits=None, options={"codec": own}) is own
    with pytest.raises(ConfigError, match="bits"):
        _choose_between_replicas(2, bits=9, options={})

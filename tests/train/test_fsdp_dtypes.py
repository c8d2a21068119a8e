"""Every dtype and layout that FSDP2 takes: averaged as the true mean, or refused by name before the first step."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from sumwire import ConfigError, InputError
from sumwire.train import attach
from tests import ranks
from tests.train.parameters import Kind, Model, bits, error, true_mean
from tests.train.test_dtypes import COMPLEX, FROZEN, REAL, ROUNDING, Rows

LARGE = (300, 90)
"""Too much to be sent as it is."""

UNITS = {
    **{str(dtype): [Kind(dtype, LARGE), Kind(dtype, (33,)), Kind(dtype, (1,))] for dtype in (*REAL, *COMPLEX)},
    "frozen": [Kind(shape=LARGE), Kind(torch.int16, trained=False), *FROZEN],
    "small": [Kind(torch.complex64, (5,))],
}
STEPS = 4


class Net(nn.Module):
    """One unit for each of these; all in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Model(kinds, tied=True) for kinds in UNITS.values())

    def forward(self, rank: int, step: int) -> torch.Tensor:
        losses: list[torch.Tensor] = [unit(rank, step) for unit in self.units]
        return torch.stack(losses).sum()


def build(mesh: tuple[int, ...]) -> Any:
    net = Net()
    where = torch.distributed.init_device_mesh("cpu", mesh, mesh_dim_names=("replicate", "shard")[-len(mesh) :])
    for name, unit in zip(UNITS, net.units, strict=True):
        # torch cannot divide complex32.
        reduced = torch.complex64 if name == str(torch.complex32) else None
        fully_shard(unit, mesh=where, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduced))
    return fully_shard(net, mesh=where)


def step_once(model: Any, rank: int, step: int) -> list[list[Any]]:
    """By unit, the whole gradient of every parameter that has one."""
    model.zero_grad()
    model(rank, step).backward()
    return [[whole(p.grad) for p in unit.each if p.grad is not None] for unit in model.units]


def whole(gradient: Any) -> torch.Tensor:
    if gradient.dtype != torch.complex32:
        full: torch.Tensor = gradient.full_tensor()
        return full
    # DTensor cannot gather those.
    group = gradient.device_mesh.get_group(-1)
    shards: list[Any] = [None] * group.size()
    torch.distributed.all_gather_object(shards, torch.view_as_real(gradient.to_local()).numpy(), group)
    return torch.view_as_complex(torch.cat([torch.from_numpy(shard) for shard in shards]))


def run_units(rank: int, n: int, mesh: tuple[int, ...], options: dict[str, Any]) -> dict[str, Any]:
    model, resumed, file = build(mesh), build(mesh), io.BytesIO()
    state = attach(model, bits=8, warmup=1, **options)
    found: dict[str, Any] = {"errors": [], "bits": []}
    for step in range(STEPS):
        if step == STEPS - 1:
            torch.save(state.state_dict(), file)
        gradients = step_once(model, rank, step)
        found["errors"].append(
            [
                [
                    error(g, true_mean(kind, n, step, index))
                    for index, (kind, g) in enumerate(zip(kinds, its, strict=False))
                ]
                for kinds, its in zip(UNITS.values(), gradients, strict=True)
            ]
        )
        found["bits"].append([bits(g) for its in gradients for g in its])
    found["sent"] = state.statistics.sent / state.statistics.plain_sent
    again = attach(resumed, bits=8, warmup=1, **options)
    again.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    found["resumed"] = [bits(g) for its in step_once(resumed, rank, STEPS - 1) for g in its]
    return found


@pytest.mark.parametrize(
    ("mesh", "feedback"), [((2,), False), ((2,), True), ((2, 1), True)], ids=["sharded", "fed", "replicas, fed"]
)
def test_every_dtype_has_the_true_mean(mesh: tuple[int, ...], feedback: bool) -> None:
    first, second = ranks.run(2, run_units, mesh, {"feedback": feedback})
    assert first["bits"] == second["bits"]
    assert first["resumed"] == second["resumed"] == first["bits"][-1]
    assert first["sent"] < 0.3  # of 32, 64 and 16 bits a value
    for step, units in enumerate(first["errors"]):
        for (name, kinds), errors in zip(UNITS.items(), units, strict=True):
            assert len(errors) == sum(kind.trained for kind in kinds)
            for kind, its in zip(kinds, errors, strict=False):
                lossy = 0.04 if step and kind.shape == LARGE else 0.4 if step and name != "small" else 0
                assert its <= ROUNDING[kind.dtype] + lossy, f"{name}, step {step}: {kind}"


def refused() -> dict[str, tuple[Any, dict[str, Any], str]]:
    """By name a module, how to shard it, and what attach must say."""
    reduce8, reduce16 = (
        {"mp_policy": MixedPrecisionPolicy(reduce_dtype=d)} for d in (torch.float8_e5m2, torch.bfloat16)
    )
    return {
        "float8": (
            Model([Kind(torch.float8_e4m3fn)]),
            {},
            r"'each.0' has dtype float8_e4m3fn, .* requires_grad_\(False\)",
        ),
        "mixed": (Model([Kind(), Kind(torch.complex64)]), {}, r"'each.0' in float32 and 'each.1' in complex64, .* too"),
        "empty": (Model([Kind(), Kind(shape=(0, 3))]), {}, r"'each.1' .* shape \(0, 3\) .*ignored_params"),
        "sparse": (Rows(), {}, r"'table.weight' .* sparse_coo.* sparse=False"),
        "complex32": (
            Model([Kind(torch.complex32)]),
            {},
            r"'each.0' has dtype complex32, .*reduce_dtype=torch.complex64",
        ),
        "reduced in float8": (Model([Kind()]), reduce8, r"'each.0' .* float8_e5m2, .*reduce_dtype=torch.float32"),
        "reduced as reals": (
            Model([Kind(torch.complex64)]),
            reduce16,
            r"'each.0' .* complex64.* bfloat16, .*reduce_dtype=torch.complex64",
        ),
    }


def run_refusals(rank: int, n: int) -> None:
    for name, (module, options, words) in refused().items():
        with pytest.raises(InputError) as caught:
            attach(fully_shard(module, **options))
        assert re.search(words, str(caught.value)), f"{name}: {caught.value}"
    for codec in ("sketch", "auto"):
        with pytest.raises(ConfigError, match=f"codec='{codec}'"):
            attach(fully_shard(Model([Kind()])), codec=codec)


def test_what_cannot_be_averaged_is_refused_by_name() -> None:
    ranks.run(2, run_refusals)

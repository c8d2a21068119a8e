"""Every dtype and layout that DDP takes: averaged as the true mean, or refused by name before the first step."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sumwire import InputError
from sumwire.train import attach
from tests import ranks
from tests.train.parameters import Case, Kind, Model, bits, error, true_mean, wide
from tests.train.test_ddp_fallback import DOES_NOT_PAY

REAL = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
COMPLEX = (torch.complex64, torch.complex128, torch.complex32)
ROUNDING = {
    torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-14,
    torch.complex64: 1e-6, torch.complex128: 1e-14, torch.complex32: 2e-3,
}  # fmt: skip
"""What a mean of two may lose in its dtype."""

SHAPES = [
    Kind(),
    Kind(shape=(0, 3)),
    Kind(shape=(1,)),
    Kind(shape=()),
    Kind(shape=(16, 12, 5, 3), layout="channels_last"),
    Kind(shape=(40, 61), layout="transposed"),
    Kind(shape=(40, 61), layout="strided"),
]
FROZEN = [Kind(dtype, trained=False) for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)]

CASES = {
    "complex alone": Case([Kind(torch.complex64), Kind(torch.complex64, (33,))]),
    # DDP makes buckets of one dtype each, so that every one of these has its own.
    "mixed": Case([Kind(dtype) for dtype in (*REAL, *COMPLEX)] + SHAPES + FROZEN),
    "complex layouts": Case([Kind(torch.complex64, kind.shape, kind.layout) for kind in SHAPES]),
    "bucket views": Case([Kind(dtype) for dtype in (*REAL, *COMPLEX)], {"gradient_as_bucket_view": True}),
    "nothing but empty": Case([Kind(torch.complex64, (0,)), Kind(shape=(0, 3))]),
}

STEPS = 4


def wrap(case: Case, **ddp: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Model(case.kinds), **{"bucket_cap_mb": 0.02, **case.ddp, **ddp})


def step_once(model: DistributedDataParallel, rank: int, step: int, density: float) -> list[Any]:
    """The gradient of every parameter, None for those that have none."""
    model.zero_grad()
    model(rank, step, density).backward()
    return [None if p.grad is None else p.grad.clone() for p in model.module.each]


def run_case(rank: int, n: int, case: Case, options: dict[str, Any], density: float) -> dict[str, Any]:
    """Errors against the true mean by step and parameter, all bits, and whether the warm-up is plain DDP's."""
    plain, model = wrap(case), wrap(case)
    state = attach(model, **options)
    found: dict[str, Any] = {"errors": [], "bits": [], "nmse": []}
    for step in range(STEPS):
        gradients = step_once(model, rank, step, density)
        if step == 0:
            found["plain"] = same_values(gradients, step_once(plain, rank, step, density))
        found["errors"].append(errors_of(case, gradients, n, step, density))
        found["bits"].append([bits(g) for g in gradients if g is not None])
        found["nmse"].append(state.statistics.nmse)
    found["resumed"] = resumed(rank, case, options, density)
    state.close()
    return found


def same_values(left: list[Any], right: list[Any]) -> bool:
    """Not bits: plain DDP multiplies complex numbers, which turns some 0 into -0."""
    pairs = list(zip(left, right, strict=True))
    return all(a is b is None or torch.equal(wide(a), wide(b)) for a, b in pairs)


def errors_of(case: Case, gradients: list[Any], n: int, step: int, density: float) -> list[float]:
    errors = []
    for index, (kind, found) in enumerate(zip(case.kinds, gradients, strict=True)):
        assert (found is not None) == kind.trained
        if found is not None:
            assert found.dtype == kind.dtype
            errors.append(error(found, true_mean(kind, n, step, index, density)))
    return errors


def resumed(rank: int, case: Case, options: dict[str, Any], density: float) -> list[bytes]:
    """The last step again, after a checkpoint, in buckets of another size: gradients are staged into the old ones."""
    model, file = wrap(case), io.BytesIO()
    state = attach(model, **options)
    for step in range(STEPS - 1):
        step_once(model, rank, step, density)
    torch.save(state.state_dict(), file)
    state.close()
    model = wrap(case, bucket_cap_mb=0.2)
    state = attach(model, **options)
    state.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    gradients = step_once(model, rank, STEPS - 1, density)
    state.close()
    return [bits(g) for g in gradients if g is not None]


def run_cases(rank: int, n: int, options: dict[str, Any], density: float) -> dict[str, dict[str, Any]]:
    return {name: run_case(rank, n, case, options, density) for name, case in CASES.items()}


LATTICE = {"bits": 8, "algorithm": "sharded", "exact_below": 40}


@pytest.mark.parametrize(
    ("options", "density"),
    [
        (LATTICE, 1.0),
        (LATTICE | {"feedback": True}, 1.0),
        ({"codec": "sparse"}, 0.1),
        ({"codec": "auto", "bits": 8}, 0.1),
    ],
    ids=["lattice", "feedback", "sparse", "auto"],
)
def test_every_dtype_and_layout_has_the_true_mean(options: dict[str, Any], density: float) -> None:
    common = {"warmup": 1, "fallback": False, "sample_every": 1, "seed": 0}
    first, second = ranks.run(2, run_cases, options | common, density)
    for name, case in CASES.items():
        trained = [kind for kind in case.kinds if kind.trained]
        for mine, other in zip(first[name]["bits"], second[name]["bits"], strict=True):
            assert mine == other, f"{name}: ranks differ"
        assert first[name]["plain"], f"{name}: the warm-up differs from plain DDP"
        assert first[name]["resumed"] == second[name]["resumed"] == first[name]["bits"][-1], name
        for step, errors in enumerate(first[name]["errors"]):
            exact = step == 0 or options.get("codec") == "sparse"
            for kind, its in zip(trained, errors, strict=True):
                assert its <= ROUNDING[kind.dtype] + (0 if exact else 0.04), f"{name}, step {step}: {kind}"
        if "algorithm" in options and name != "nothing but empty":
            assert all(0 < nmse < 2e-3 for nmse in first[name]["nmse"][1:]), name


def run_leftovers(rank: int, n: int) -> list[float]:
    """Everything residuals hold when compression stops reaches the next gradients: errors of sums over all steps."""
    case = Case([Kind(), Kind(torch.complex64), Kind(torch.complex128, (700,))])
    options: dict[str, Any] = {"bits": 2, "feedback": True, "algorithm": "sharded", "warmup": 0, "exact_below": 0}
    model = wrap(case)
    state = attach(model, **options)
    sent = [torch.zeros(kind.shape, dtype=torch.complex128) for kind in case.kinds]
    wanted = [each.clone() for each in sent]
    for step in range(STEPS):
        if step == STEPS - 1:
            saved = state.state_dict()
            model = wrap(case, bucket_cap_mb=0.2)
            state = attach(model, **options)
            state.load_state_dict(saved)
            state._verdict.judge(DOES_NOT_PAY, step, say=False)
            assert not state.compressing
        for index, g in enumerate(step_once(model, rank, step, 1.0)):
            sent[index] += g
            wanted[index] += true_mean(case.kinds[index], n, step, index)
    return [error(found, truth) for found, truth in zip(sent, wanted, strict=True)]


def test_residuals_of_complex_gradients_are_sent_when_compression_stops() -> None:
    for errors in ranks.run(2, run_leftovers):
        assert max(errors) < 1e-5


def run_tied(rank: int, n: int) -> tuple[list[float], list[bytes]]:
    case = Case([Kind(torch.complex64), Kind()])
    model = DistributedDataParallel(Model(case.kinds, tied=True), bucket_cap_mb=0.02)
    attach(model, bits=8, warmup=0, fallback=False, algorithm="sharded")
    gradients = step_once(model, rank, 0, 1.0)
    return errors_of(case, gradients, n, 0, 1.0), [bits(g) for g in gradients]


def test_tied_parameters() -> None:
    (errors, mine), (_, other) = ranks.run(2, run_tied)
    assert max(errors) < 0.04
    assert mine == other


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4, sparse=True)


def run_refusals(rank: int, n: int) -> list[str]:
    """What attach says of every float8, trained, and of sparse rows; float8 without gradients is nobody's business."""
    said = []
    eights = [dtype for name, dtype in sorted(vars(torch).items()) if name.startswith("float8_")]
    for dtype in eights:
        with pytest.raises(InputError) as caught:
            attach(DistributedDataParallel(Model([Kind(), Kind(dtype)]), init_sync=False))
        assert f"parameter 'each.1' has dtype {str(dtype)[6:]}, " in str(caught.value)
        said.append(str(caught.value))
    with pytest.raises(InputError) as caught:
        attach(DistributedDataParallel(Rows()))
    said.append(str(caught.value))
    frozen = Case([Kind(), *(Kind(dtype, trained=False) for dtype in eights)])
    model = wrap(frozen, init_sync=False)  # which gloo could not do
    attach(model, warmup=0, fallback=False, bits=8, algorithm="sharded")
    assert max(errors_of(frozen, step_once(model, rank, 0, 1.0), n, 0, 1.0)) < 0.04
    return said


def test_what_cannot_be_averaged_is_refused_by_name() -> None:
    for *eights, rows in ranks.run(2, run_refusals):
        assert len(eights) >= 4
        assert all("float32, float16, bfloat16, " in said and "requires_grad_(False)" in said for said in eights)
        assert re.search(r"parameter 'table.weight' .*sparse_coo.*codec=\"sparse\" or \"auto\"", rows)

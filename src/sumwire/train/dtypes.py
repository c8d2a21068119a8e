"""Which gradients can be averaged, and complex ones as pairs of reals.

What cannot be averaged is refused by the name of its parameter before the first step: torch would fail in a
backward pass with an error that names neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch

from sumwire.errors import InputError

AVERAGED = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.complex32,
)
"""Gradients of these dtypes can be averaged."""

Names: TypeAlias = Mapping[Any, str]
"""Parameters, by identity, and what they are called."""

_NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in AVERAGED)


def as_reals(flat: torch.Tensor) -> torch.Tensor:
    """A flat view of the same memory, in which a complex number is two reals; real tensors as they are."""
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def reals(parameter: torch.Tensor) -> int:
    """Real numbers in a parameter's gradient."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def check_dtypes(parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise `InputError` for the first parameter that has gradients of a dtype which cannot be averaged."""
    for name, parameter in parameters:
        if parameter.requires_grad and parameter.dtype not in AVERAGED:
            raise InputError(
                f"parameter {name!r} has dtype {_short(parameter.dtype)}, whose gradients cannot be averaged; "
                f"{_NAMES} can: keep the trained copy in one of these, or freeze it with requires_grad_(False)"
            )


def _sparse_parameters(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Embeddings whose gradients are sparse, and the kind of each."""
    return {
        module.weight: type(module).__name__
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }


def trained_sizes(names: Names, model: torch.nn.Module | None) -> dict[str, int]:
    """By name, how many real numbers each parameter has whose gradients are dense."""
    sparse = [] if model is None else list(_sparse_parameters(model))
    dense = {p: name for p, name in names.items() if not any(p is each for each in sparse)}
    return {name: reals(p) for p, name in dense.items() if p.requires_grad}


def check_dense(model: torch.nn.Module, names: Names, remedy: str) -> None:
    """Raise `InputError` for the first of these parameters that is an embedding whose gradients are sparse."""
    for weight, kind in _sparse_parameters(model).items():
        if weight.requires_grad and weight in names:
            raise InputError(
                f"parameter {names[weight]!r} has gradients of layout sparse_coo, because its {kind} was made with "
                f"sparse=True: {remedy}, or use sparse=False"
            )


def check_unit(unit: str, parameters: Any, names: Names) -> None:
    """Raise `InputError` unless FSDP2 can reduce what this unit trains, and without loss of imaginary parts."""
    trained = [p.sharded_param for p in parameters.fsdp_params if p.sharded_param.requires_grad]
    named = [(names[parameter], parameter) for parameter in trained]
    check_dtypes(named)
    for name, parameter in named:
        if parameter.numel() == 0:
            raise InputError(
                f"parameter {name!r} of FSDP unit {unit} has shape {tuple(parameter.shape)} and so no values, for "
                "which FSDP2 has no reduce-scatter: freeze it with requires_grad_(False), or pass it to "
                "fully_shard(ignored_params=...)"
            )
        first, dtype = named[0][0], named[0][1].dtype
        if parameter.dtype != dtype:
            raise InputError(
                f"FSDP unit {unit} has parameters of several dtypes, {first!r} in {_short(dtype)} and {name!r} in "
                f"{_short(parameter.dtype)}, which FSDP2 cannot reduce together: apply fully_shard to the module of "
                "one of them, too"
            )
        policy = parameters.mp_policy
        computed = policy.param_dtype if parameter.dtype.is_floating_point else None
        _check_reduced(name, parameter.dtype, policy.reduce_dtype or computed or parameter.dtype)


def _check_reduced(name: str, dtype: torch.dtype, reduced: torch.dtype) -> None:
    """FSDP2 divides gradients in the dtype in which it reduces them, and torch has no division of complex32."""
    loses = dtype.is_complex and not reduced.is_complex
    if loses or reduced not in AVERAGED or reduced == torch.complex32:
        better = "complex64" if dtype.is_complex else "float32"
        raise InputError(
            f"parameter {name!r} has dtype {_short(dtype)}, and FSDP2 would reduce its gradients in {_short(reduced)}, "
            f"which cannot hold or divide them: use MixedPrecisionPolicy(reduce_dtype=torch.{better})"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

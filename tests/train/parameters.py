"""A model of parameters in any dtype and layout, whose gradients are known without training it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Kind:
    """What a parameter is like."""

    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = (90, 50)
    layout: str = "contiguous"
    trained: bool = True


@dataclass(eq=False)
class Case:
    kinds: list[Kind]
    ddp: dict[str, Any] = field(default_factory=dict)


def parameter(kind: Kind) -> nn.Parameter:
    values = torch.ones(kind.shape).to(kind.dtype)
    if kind.layout == "channels_last":
        values = values.to(memory_format=torch.channels_last)
    elif kind.layout == "transposed":
        values = torch.ones(kind.shape[::-1]).to(kind.dtype).t()
    elif kind.layout == "strided":
        values = torch.ones(*kind.shape[:-1], 2 * kind.shape[-1]).to(kind.dtype)[..., ::2]
    return nn.Parameter(values, requires_grad=kind.trained)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """As complex128 or float64, which hold every value of the other dtypes."""
    if tensor.dtype == torch.complex32:
        return torch.view_as_complex(torch.view_as_real(tensor).double())
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


class Model(nn.Module):
    """Its gradients are `gradient(rank, step, ...)`: the loss is their product with the parameters."""

    def __init__(self, kinds: list[Kind], *, tied: bool = False) -> None:
        super().__init__()
        self.kinds = kinds
        self.each = nn.ParameterList(parameter(kind) for kind in kinds)
        self.copy = self.each[0] if tied else None

    def forward(self, rank: int, step: int, density: float = 1.0) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for index, (kind, p) in enumerate(zip(self.kinds, self.each, strict=True)):
            if kind.trained:
                total = total + _product(p, gradient(kind, rank, step, index, density))
            else:
                total = total + 0 * wide(p).real.sum()
        return total if self.copy is None else total + 0 * _product(self.copy, gradient(self.kinds[0], 0, 0, 0))


def _product(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Real, and its derivative by p is g, in complex numbers, too."""
    pair = torch.view_as_real(p) if p.is_complex() else p
    weights = torch.view_as_real(g) if g.is_complex() else g
    return (pair * weights.to(pair.dtype)).double().sum()


def gradient(kind: Kind, rank: int, step: int, index: int, density: float = 1.0) -> torch.Tensor:
    """Of one parameter at one rank, in its dtype; so much of it is not 0."""
    generator = torch.Generator().manual_seed(10_000 * rank + 100 * step + index)
    shape = (*kind.shape, 2) if kind.dtype.is_complex else kind.shape
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    # Imaginary parts differ in size, so that taking them for real ones shows.
    values = values * torch.tensor([1.0, 3.0]) if kind.dtype.is_complex else values
    values = values * (torch.rand(shape, generator=generator) < density)
    return (torch.view_as_complex(values) if kind.dtype.is_complex else values).to(kind.dtype)


def true_mean(kind: Kind, ranks: int, step: int, index: int, density: float = 1.0) -> torch.Tensor:
    return sum(wide(gradient(kind, rank, step, index, density)) for rank in range(ranks)) / ranks  # type: ignore[return-value]


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative, of one tensor; absolute, where the truth is 0."""
    size = float(torch.linalg.vector_norm(truth)) if truth.numel() else 0.0
    return float(torch.linalg.vector_norm(wide(found) - truth)) / (size or 1.0) if truth.numel() else 0.0


def bits(tensor: torch.Tensor) -> bytes:
    """Every bit of it, in row-major order."""
    flat = tensor.detach().contiguous().reshape(-1)
    return np.asarray((torch.view_as_real(flat) if flat.is_complex() else flat).view(torch.uint8)).tobytes()

"""Packages that compress gradients, found at run time and measured through their own code where they are installed.

A package is imported only when it is measured. What keeps one from being measured is said instead of figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import MappingProxyType
from typing import TypeAlias

from sumwire.errors import SumwireError
from sumwire.lab.peers.base import Vector


@dataclass(frozen=True)
class Received:
    """What one round gave: here workers may end with different means."""

    means: Sequence[Vector]
    up_bits: float
    """Bits per value that one worker sends and receives, by the convention of base.py."""
    down_bits: float


Average: TypeAlias = Callable[[Sequence[Vector]], Received]


class UnavailableError(SumwireError):
    """A package is there, and cannot be measured here."""


@dataclass(frozen=True)
class Package:
    """Where a package is found, and what measures it."""

    module: str
    distributions: tuple[str, ...]
    """What may install it; the first is what to ask pip for."""
    adapter: str = ""
    """Module with `schemes()`, which gives averages by name; it imports the package."""
    reason: str = ""
    """Why there is no adapter."""

    @property
    def installed(self) -> bool:
        """Whether it could be imported, which is not tried."""
        return find_spec(self.module) is not None

    @property
    def version(self) -> str:
        """Empty if it is not known."""
        for name in self.distributions:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return ""

    def averages(self, xs: Sequence[Vector]) -> Iterator[tuple[str, Received | str]]:
        """A round of each of its schemes, by name; or why there is none."""
        if not self.installed:
            yield "", f"absent: not installed (pip install {self.distributions[0]})"
            return
        if not self.adapter:
            yield "", f"not measured: {self.reason}"
            return
        try:
            schemes: Mapping[str, Average] = import_module(self.adapter).schemes()
        except Exception as error:  # of any kind: a package runs what it likes when it is imported
            yield "", f"not measured: {_first_line(error)}"
            return
        for name, average in schemes.items():
            found: Received | str
            try:
                found = average(xs)
            except Exception as error:  # its versions may not go with those of its dependencies
                found = f"not measured: {_first_line(error)}"
            yield name, found


PACKAGES: Mapping[str, Package] = MappingProxyType(
    {
        "hivemind": Package("hivemind", ("hivemind",), "sumwire.lab.peers.from_hivemind"),
        "DeepSpeed": Package(
            "deepspeed",
            ("deepspeed",),
            reason="its quantized reductions are CUDA kernels, between ranks of a group; PEERS simulate qgZ",
        ),
        "torchft": Package("torchft", ("torchft-nightly", "torchft"), "sumwire.lab.peers.from_torchft"),
    }
)
"""Packages by the names that tables show."""


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, UnavailableError) else f"{type(error).__name__}: {text}"

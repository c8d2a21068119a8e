"""What a table shows: lines of a results file, and a heading and a template for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """Templates are those of `str.format` on a line; a cell stays empty where the line lacks one of its fields."""

    file: str
    """Of benchmarks/results, without .jsonl."""
    columns: Mapping[str, str]
    where: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a line must have; a tuple stands for any of its values."""
    pivot: tuple[str, str] | None = None
    """Fields, joined by +, that make a row, and field by whose values its lines are found: {at[value][field]}."""
    over: str | None = None
    """Field whose lines are shown together: numbers are means, {lowest[field]} and {highest[field]} their spread."""


def spread(name: str, spec: str = ".2f") -> str:
    """Median [lowest - highest]."""
    return f"{{{name}[median]:{spec}}} [{{{name}[lowest]:{spec}}} - {{{name}[highest]:{spec}}}]"


RUNS = {
    "bar": "{bar}",
    "median of 3 runs": "{value[median]:auto}",
    "lowest": "{value[lowest]:auto}",
    "highest": "{value[highest]:auto}",
}
"""Columns of the kernels' tables."""

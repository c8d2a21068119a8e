"""The table of an experiment, for terminals and for pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from sumwire.lab.display import plain_table
from sumwire.lab.experiments.base import Shown


def cells(experiment: Shown, lines: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row of text for each line; a cell is empty where the line lacks one of its fields."""
    return [[_cell(template, line) for template in experiment.columns.values()] for line in lines]


def shown(experiment: Shown, lines: Sequence[dict[str, Any]]) -> Table:
    first, *others = experiment.columns
    table = plain_table(f"{experiment.title}: {experiment.question}", first, *others, caption=experiment.notes)
    for row in cells(experiment, lines):
        table.add_row(*row)
    return table


def _cell(template: str, line: dict[str, Any]) -> str:
    try:
        return template.format(**line)
    except KeyError:
        return ""

"""Results to Markdown: the tables of `TABLES`, and the pages that show them."""

from __future__ import annotations

import json
import math
import re
import string
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.tables import TABLES
from benchmarks.tables.table import Table
from sumwire.lab.experiments import find_summary, results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", flags=re.S)
"""A table in a page."""


IDENTITY: dict[str, tuple[str, ...]] = {
    "accuracy": (
        "section", "workers", "correlation", "total_bits", "data", "bits", "codec", "model", "part", "improvement",
        "measured_on",
    ),
    "chaos": ("quorum",),
    "dme": ("section", "bits", "scheme"),
    "estimators": ("partitions", "scheme"),
    "exchange": ("section", "link", "ranks", "contender"),
    "kernels": ("section", "level", "what"),
    "lab/accuracy": ("workload", "part", "workers", "seed", "name"),
    "lab/ablation": ("workload", "workers", "seed", "method"),
    "lab/drift": ("workload", "workers", "steps", "loss", "resync", "seed", "step", "quantity"),
    "lab/hops": ("workers", "correlation", "seed", "method"),
    "lab/sketch": ("support", "nonzeros", "seed", "load"),
    "lab/sparse": ("workload", "mbit", "ranks", "seed", "method"),
    "lab/sparse_bytes": ("source", "density", "workers", "seed", "method"),
    "lab/loss": ("workload", "workers", "seed", "method", "loss_percent"),
    "lab/bits": ("workload", "workers", "bits", "seed", "choice", "granularity", "clip"),
    "lab/bits_training": ("workload", "workers", "bits", "seed", "choice", "granularity", "clip"),
    "lab/hops_training": ("workload", "workers", "seed", "method"),
    "lab/installed": ("workload", "workers", "seed", "package", "scheme"),
    "lab/scale": ("workers", "correlation", "seed", "scheme"),
    "lab/scale_training": ("workload", "workers", "seed", "method"),
    "lab/stages": ("transport", "workers", "width", "rounds", "seed", "stage"),
    "lab/stragglers": ("workload", "workers", "seed", "late", "quorum_percent", "feedback"),
    "lab/throughput": ("workload", "rate", "workers", "method"),
    "lab/training": ("workload", "workers", "seed", "method"),
    "lab_dme": ("data", "clients", "scheme"),
    "lab_kmeans": ("data", "clients", "scheme", "variant"),
    "lab_pca": ("data", "clients", "scheme", "variant"),
    "plan": ("section", "source", "link", "contender"),
    "server_cpu": ("series", "what"),
    "server_latency": ("workers", "how"),
    "server_throughput": ("section", "what"),
    "sites": ("section", "workers", "every", "steps", "parameters", "batch", "method", "seed"),
    "sites_chaos": ("calm", "seed"),
    "sketch": ("section", "support", "cells_per_nonzero", "step"),
    "sparse_bytes": ("section", "law", "size", "workers", "density_percent", "density"),
    "sparse_kernels": ("section", "what"),
    "sparse_scale": ("step", "workers"),
    "sparse_training": ("section", "workload", "link", "method", "run"),
    "switch": ("section", "aggregator", "workers", "quorum"),
    "time_to_target": ("task", "link", "method"),
    "training": ("section", "task", "workers", "setting", "energy", "feedback", "option"),
}  # fmt: skip
"""Fields of each file that say which measurement a line is: the last line of a measurement supersedes the others."""

CALCULATED: dict[str, tuple[str, ...]] = {
    "lab/equal_bits": ("name", "workload"),
    "lab/sweep": ("measured", "workload", "workers", "bits", "seed"),
    "lab/time_to_target": ("workload", "rate", "workers", "seed", "method"),
}
"""The same of tables that have no file: `sumwire.lab.experiments` calculates their lines from those of others."""


def files_of(table: Table) -> list[str]:
    """The results files that it is made of."""
    if table.file not in CALCULATED:
        return [table.file]
    return [f"lab/{name}" for name in find_summary(Path(table.file).name).sources]


class _Cells(string.Formatter):
    """`str.format`, plus the few kinds of field that tables need."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, list):
            return ", ".join(self.format_field(item, spec) for item in value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if spec == "auto":  # counts as they are, anything else to two decimals
            return f"{value:d}" if isinstance(value, int) else f"{value:.2f}"
        if spec == "sig":  # three significant digits, but never fewer than one decimal
            return f"{value:.{max(1, 2 - math.floor(math.log10(value)))}f}"
        return str(super().format_field(value, spec))


def cell(template: str, line: dict[str, Any]) -> str:
    """The template filled in, or nothing where the line lacks one of its fields."""
    try:
        return _Cells().vformat(template, (), line)
    except KeyError:
        return ""


def lines_of(table: Table) -> list[dict[str, Any]]:
    """The lines that the table shows; with a pivot, those of one row together under "at"."""
    shown = [
        line
        for line in newest(table.file)
        if all(_matches(line.get(key), wanted) for key, wanted in table.where.items())
    ]
    if table.over is not None:
        shown = together(shown, [field for field in (IDENTITY | CALCULATED)[table.file] if field != table.over])
    if table.pivot is None:
        return shown
    rows: dict[str, dict[str, Any]] = {}
    for line in shown:
        row, column = ("+".join(str(line[key]) for key in keys.split("+")) for keys in table.pivot)
        rows.setdefault(row, {**line, "at": {}})["at"][column] = line
    return list(rows.values())


def together(lines: list[dict[str, Any]], identity: list[str]) -> list[dict[str, Any]]:
    """A line for all that differ in nothing else: means of their numbers, and the spread."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(tuple(line.get(field) for field in identity), []).append(line)
    merged = []
    for group in groups.values():
        found = dict(group[0]) | {"lowest": {}, "highest": {}, "lines": len(group)}
        for field in group[0].keys() - set(identity):
            values = [line.get(field) for line in group]
            numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
            if len(numbers) == len(values):
                found |= {field: fmean(numbers)}
                found["lowest"][field], found["highest"][field] = min(numbers), max(numbers)
            elif None in values:
                found.pop(field)  # not all were measured: no mean of some of them
        merged.append(found)
    return merged


def newest(file: str, *, transcribed: bool = False) -> list[dict[str, Any]]:
    """The last line of every measurement, in the order of their first ones; or of those that were transcribed."""
    if file in CALCULATED:
        return results.lines_of(find_summary(Path(file).name), RESULTS / "lab")
    lines = [json.loads(line) for line in (RESULTS / f"{file}.jsonl").read_text().splitlines()]
    if transcribed:
        lines = [line for line in lines if "published" in line]
    return list({tuple(line.get(field) for field in IDENTITY[file]): line for line in lines}.values())


def _matches(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)


def render(name: str) -> str:
    """A table of `TABLES` in Markdown."""
    if name not in TABLES:
        raise KeyError(f"no table {name!r} in benchmarks/tables: choose from {', '.join(TABLES)}")
    table = TABLES[name]
    rows = [[cell(template, line) for template in table.columns.values()] for line in lines_of(table)]
    if not rows:
        raise ValueError(f"table {name!r} is empty: {table.file}.jsonl has no lines with {dict(table.where)}")
    head = [list(table.columns), ["---"] * len(table.columns)]
    return "".join("| " + " | ".join(row) + " |\n" for row in head + rows)


def rendered(page: str) -> str:
    """The page with every marked table written anew."""
    return MARKED.sub(lambda found: f"{found[1]}{render(found[2])}{found[3]}", page)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

"""Results of experiments: a file each, one JSON line per row, with what it was measured on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from sumwire import __version__
from sumwire.errors import ConfigError
from sumwire.lab.experiments.base import Point, Row, Shown, Summary
from sumwire.lab.record import Record


class Results:
    """The lines of one experiment.

    Law: lines of a point are all there or do not count, however a run was stopped.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.jsonl"

    def lines(self) -> list[dict[str, Any]]:
        """All whole points, each as it was measured last."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self._parsed():
            point = found.setdefault(key_of(line["point"]), [])
            if line["row"] == 0:
                point.clear()
            point.append(line)
        return [line for point in found.values() if len(point) == point[0]["rows"] for line in point]

    def done(self) -> set[str]:
        """Points that this version has measured."""
        return {key_of(line["point"]) for line in self.lines() if line["version"] == __version__}

    def append(self, point: Point, rows: Sequence[Row]) -> None:
        """All rows of a point at once."""
        self._drop_rest()
        seed = point.get("seed", 0)
        Record(self.path, seed=int(seed)).add_all(
            {"point": dict(point), "row": k, "rows": len(rows), "versions": versions()} | dict(point) | row
            for k, row in enumerate(rows)
        )

    def _parsed(self) -> Iterable[dict[str, Any]]:
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                found = json.loads(line)
                found["point"], found["row"], found["rows"], found["version"]
            except (ValueError, TypeError, KeyError):
                raise ConfigError(
                    f"line {number} of {self.path} is not a result: repair it, or move the file away"
                ) from None
            yield found

    def _drop_rest(self) -> None:
        """Of a line whose writer was killed: the next one must begin where it began."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            with self.path.open("r+b") as file:
                file.truncate(end)


def lines_of(shown: Shown, folder: Path) -> list[dict[str, Any]]:
    """Results of an experiment; of a summary, what is calculated from those of its sources, once all have some."""
    if not isinstance(shown, Summary):
        return Results(folder, shown.name).lines()
    sources = {name: Results(folder, name).lines() for name in shown.sources}
    return list(shown.calculate(sources)) if all(sources.values()) else []


def key_of(point: Point) -> str:
    """The same for equal points."""
    return json.dumps(dict(point), sort_keys=True)


def versions() -> dict[str, str]:
    """Of the packages that results depend on, beside Sumwire."""
    found = {"python": python_version()}
    for name in ("numpy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def count_points(lines: Iterable[dict[str, Any]]) -> int:
    """How many points lines belong to."""
    return len({key_of(line["point"]) for line in lines})

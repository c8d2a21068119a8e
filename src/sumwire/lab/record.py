"""Measurements as JSON lines: what was measured, by which command, on which machine.

Benchmarks and `sumwire lab` share this, so that every results file has the same fields.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from sumwire import __version__
from sumwire.kernels import backend
from sumwire.kernels.threads import get_num_cores

OPTION = "--json"
HELP = "file to append one JSON line per measurement to"


class Record:
    """Appends a line per measurement to a file; without a path, it does nothing.

    >>> Record(None, seed=0).add(codec="Lattice(4)", ms=spread([3.0, 1.0, 2.0]))
    """

    def __init__(self, path: Path | None, *, seed: int) -> None:
        self._path, self._seed = path, seed

    def add(self, **fields: Any) -> None:
        """Append a line: `fields`, and where they come from. A field that is None is left out."""
        self.add_all([fields])

    def add_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append a line for each, all in one piece."""
        if self._path is None:
            return
        about = {
            "command": command(),
            "date": datetime.now(UTC).date().isoformat(),
            "version": __version__,
            "machine": machine(),
            "seed": self._seed,
        }
        known = [{name: value for name, value in row.items() if value is not None} for row in rows]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(about | row, ensure_ascii=False) + "\n" for row in known))


def add_option(parser: ArgumentParser) -> None:
    """Add the option for the file, which is then found as `json`."""
    parser.add_argument(OPTION, type=Path, metavar="PATH", help=HELP)


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """A figure over several runs, all of which are kept.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'lowest': 1.0, 'highest': 3.0, 'samples': [3.0, 1.0, 2.0]}
    """
    return {"median": median(samples), "lowest": min(samples), "highest": max(samples), "samples": list(samples)}


def command() -> str:
    """The command that runs now, as a user would type it, without the option for the file."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    name = f"python -m {module.name.removesuffix('.__main__')}" if module else Path(sys.argv[0]).name
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    add_option(parser)
    _, others = parser.parse_known_args(sys.argv[1:])
    threads = os.environ.get("OMP_NUM_THREADS")
    return " ".join([*([f"OMP_NUM_THREADS={threads}"] if threads else []), name, *map(shlex.quote, others)])


def machine() -> str:
    """Model and cores of the CPU that this process may use, and the kernels with their instruction set."""
    return f"{_cpu()}, {get_num_cores()} cores, {backend.describe()} kernels"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

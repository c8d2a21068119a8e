"""What exchanges cost a machine, as `sumwire plan --calibrate` measured it: kept in the user's cache."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path

from sumwire import __version__
from sumwire.aggregate.cost_model import Machine
from sumwire.errors import ConfigError
from sumwire.lab.record import machine as machine_name

DEFAULT = Machine(
    name="AMD EPYC, 2 cores, native (avx2) kernels",
    propose=0.27, encode=0.9, add=0.06, narrow=0.39, decode=0.58, residual=0.9, copy=0.47, cast=0.8,
    bf16=0.0, fp16=0.0, all_reduce=0.8, exchange=1.0, message=0.1e6, round=1.1e6, step=0.6e6,
)  # fmt: skip
"""The machine that Sumwire was developed on: rounded from several runs of `calibrate` while others used it, too.
`message`, `round` and `step` are from an AMD EPYC with AVX-512, since older runs did not measure them.
`exchange` is from all-to-alls of 0.5 to 1 MiB between 2 and 4 ranks, which took 0.8 to 1.6."""


def cache_path() -> Path:
    """Where a calibration is kept: $XDG_CACHE_HOME/sumwire/calibration.json, or the same in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification has relative paths ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "sumwire" / "calibration.json"


def load(path: Path | None = None) -> Machine | None:
    """The saved calibration; None if there is none. Raises `ConfigError` for one that is damaged or not from here."""
    path = path or cache_path()
    if not path.exists():
        return None
    remedy = "measure again with `sumwire plan --calibrate`, or delete the file"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        version, costs = saved["version"], saved["costs"]
        unknown = costs.keys() ^ {each.name for each in fields(Machine)}
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))} missing or unknown")
        found = Machine(**costs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"the calibration in {path} is damaged ({why}): {remedy}") from error
    if (version, found.name) != (__version__, machine_name()):
        raise ConfigError(
            f"the calibration in {path} is of version {version} on {found.name}, and this is version {__version__} on "
            f"{machine_name()}: {remedy}"
        )
    return found


def save(machine: Machine, path: Path | None = None) -> Path:
    """Write it where `load` finds it; a reader never sees half of it."""
    path = path or cache_path()
    content = {"version": __version__, "date": datetime.now(UTC).date().isoformat(), "costs": asdict(machine)}
    part = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot save the calibration to {path} ({error}): set XDG_CACHE_HOME to a folder") from error
    return path

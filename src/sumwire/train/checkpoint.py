"""What the checkpoints of DDP and FSDP2 have in common: which codec they were made with, and whether it fits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sumwire.codec.base import Codec
from sumwire.codec.options import differences
from sumwire.errors import ConfigError, MismatchError

_log = logging.getLogger(__name__)


def mismatch(saved: Mapping[str, Any], codec: Codec) -> str | None:
    """Which options a state was saved with that this codec has otherwise; None if it has none.

    A member of the family that spends other bits (`with_bits`) fits.
    """
    found = differences(saved, codec.description(), names=("the state", "this codec"))
    return f"the state was saved with another codec ({found})" if found else None


def check_fits(problem: str | None) -> None:
    """Raise `MismatchError` if there is a problem that only `strict=False` may pass over."""
    if problem is not None:
        raise MismatchError(
            f"{problem}: attach with what it was saved with, or load_state_dict(state, strict=False), which drops "
            "its residuals"
        )


def keeps_residuals(problem: str | None, saved_by: int, rank: int, *, strict: bool, has_any: bool) -> bool:
    """Whether a state's residuals can be used. Raises if `strict` and there is a problem, or warns of what is lost."""
    if strict:
        check_fits(problem)
    if problem is None and (saved_by == rank or not has_any):
        return True
    why = problem or f"the state was saved by rank {saved_by}, this is rank {rank}"
    lost = "Its residuals are dropped, and what they held is lost" if has_any else "It held no residuals"
    _log.warning("Sumwire: %s. %s; the step is resumed", why, lost)
    return False


def check_format(state: Mapping[str, Any], keys: frozenset[str], version: int, kind: str) -> None:
    """Raise `ConfigError` unless this is a state of the format that this version of Sumwire writes."""
    if "format" in state and state["format"] != version:
        raise ConfigError(
            f"the state has format {state['format']}, and this version of Sumwire reads format {version}: start with a "
            "new state (only what residuals held is lost), or use the version of Sumwire that saved it"
        )
    if set(state) != keys:
        raise ConfigError(f"not the state of a {kind} model: it has keys {sorted(state)}, not {sorted(keys)}")

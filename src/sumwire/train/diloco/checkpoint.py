"""What belongs in a checkpoint, at every worker."""

from __future__ import annotations

from typing import Any

import torch

from sumwire.aggregate.statistics import Statistics
from sumwire.codec.options import same
from sumwire.errors import MismatchError, RoundError
from sumwire.train.checkpoint import check_format, keeps_residuals, mismatch
from sumwire.train.diloco.exchange import Exchange, InFlight, Outcome
from sumwire.train.diloco.outer import Outer

_FORMAT = 1
_KEYS = frozenset(
    {"format", "codec", "rank", "step", "exchanges", "first_step", "outer", "optimizer", "residuals", "in_flight"}
)


def save(outer: Outer, exchange: Exchange | None, flight: InFlight | None, steps: int) -> dict[str, Any]:
    """Copies of everything, after the exchange in flight."""
    if flight is not None and flight.wait() is not Outcome.DONE:
        raise RoundError("the exchange in flight has failed, or the others have gone on: save after the next one")
    named = [zip(fragment.names, fragment.outer, strict=True) for fragment in outer.fragments]
    codec = None if exchange is None else exchange.codec
    return {
        "format": _FORMAT,
        "codec": None if codec is None else codec.description(),
        "rank": None if exchange is None else exchange.aggregator.rank,
        "step": steps,
        "exchanges": outer.exchanges,
        "first_step": None if exchange is None else exchange.ids.first_step,
        "outer": {name: values.detach().clone() for pairs in named for name, values in pairs},
        "optimizer": _cloned(outer.optimizer.state_dict()),
        "residuals": [
            span.residual.state_dict() if span.residual is not None else None
            for fragment in outer.fragments
            for span in fragment.spans
        ],
        "in_flight": None if flight is None else _saved_flight(outer, flight),
    }


def _saved_flight(outer: Outer, flight: InFlight) -> dict[str, Any]:
    """Its result, which is not applied yet."""
    means = outer.fragments[flight.fragment].flat.clone(), outer.buffer_flat.clone()
    return {"fragment": flight.fragment, "means": means[0], "buffers": means[1]}


def load(
    state: dict[str, Any], outer: Outer, exchange: Exchange | None, *, strict: bool
) -> tuple[InFlight | None, int]:
    """Restore everything: the exchange that was in flight, and the steps done."""
    check_format(state, _KEYS, _FORMAT, "DiLoCo")
    _check_parameters(state["outer"], outer)
    with torch.no_grad():
        for fragment in outer.fragments:
            for name, values in zip(fragment.names, fragment.outer, strict=True):
                values.copy_(state["outer"][name])
    outer.optimizer.load_state_dict(_cloned(state["optimizer"]))
    outer.exchanges = int(state["exchanges"])
    flight = None
    if exchange is not None:
        if state["first_step"] is not None:
            exchange.ids.first_step = int(state["first_step"])
        _load_residuals(state, outer, exchange, strict=strict)
        flight = _loaded_flight(state["in_flight"], outer)
    return flight, int(state["step"])


def _load_residuals(state: dict[str, Any], outer: Outer, exchange: Exchange, *, strict: bool) -> None:
    saved = state["residuals"]
    has_any = any(each is not None and each["value"] is not None for each in saved)
    codec = exchange.codec
    problem = None
    if (state["codec"] is None) != (codec is None):
        problem = "the state was saved with compression" if codec is None else "the state was saved without compression"
    elif codec is not None:
        problem = mismatch(state["codec"], codec)
    if not keeps_residuals(problem, state["rank"], exchange.aggregator.rank, strict=strict, has_any=has_any):
        return
    spans = [span for fragment in outer.fragments for span in fragment.spans]
    same("number of rounds", len(spans), len(saved), "load this state")
    for span, residual in zip(spans, saved, strict=True):
        if span.residual is not None and residual is not None:
            span.residual.load_state_dict(residual)


def _loaded_flight(saved: dict[str, Any] | None, outer: Outer) -> InFlight | None:
    if saved is None:
        return None
    outer.fragments[saved["fragment"]].flat.copy_(saved["means"])
    outer.buffer_flat.copy_(saved["buffers"])
    return InFlight(saved["fragment"], [], [], Statistics())


def _check_parameters(saved: dict[str, torch.Tensor], outer: Outer) -> None:
    mine = {
        name: values
        for fragment in outer.fragments
        for name, values in zip(fragment.names, fragment.outer, strict=True)
    }
    for name in sorted(saved.keys() | mine.keys()):
        if name not in mine:
            raise MismatchError(f"the state has parameter {name!r}, which this model does not train")
        if name not in saved:
            raise MismatchError(f"this model trains parameter {name!r}, which the state does not have")
        same(f"shape of {name!r}", tuple(saved[name].shape), tuple(mine[name].shape), "load this state")


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _cloned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cloned(each) for each in value]
    return value

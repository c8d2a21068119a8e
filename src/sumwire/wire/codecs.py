"""Codecs by name: how a worker tells an aggregator, in JSON, which codec its frames are of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sumwire.codec.base import Codec
from sumwire.errors import MismatchError, SumwireError
from sumwire.wire.control import Describe
from sumwire.wire.frame import MODULES
from sumwire.wire.limits import Tag

_KINDS: dict[str, type[Any]] = {tag.name.lower(): module.CODEC for tag, module in MODULES.items()}


def describe(codec: Codec) -> Describe:
    """The message that lets an aggregator build the codec.

    >>> from sumwire import Lattice
    >>> build(describe(Lattice(workers=4, bits=3))) == Lattice(workers=4, bits=3)
    True
    """
    kind = Tag.of(codec.family).name.lower()
    return Describe(codec.family, kind, {name: _plain(value) for name, value in codec.options().items()})


def build(description: Describe) -> Codec:
    """The codec, if this release makes the same of its options."""
    cls = _KINDS.get(description.kind)
    if cls is None:
        raise MismatchError(f"codec {description.kind!r} is unknown here: use one of {', '.join(_KINDS)}")
    known = {f.name for f in fields(cls)}
    if set(description.options) - known:
        raise MismatchError(
            f"options {sorted(set(description.options) - known)} of {description.kind} are unknown here: run "
            "the same release everywhere"
        )
    try:
        codec: Codec = cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in description.options.items()})
        family = codec.family
    except (SumwireError, TypeError, ValueError) as error:
        raise MismatchError(f"codec {description.kind} cannot be built: {error}") from None
    if family != description.family:
        raise MismatchError(
            f"the same options of codec {description.kind} give {family} here and {description.family} at the worker: "
            "run the same release everywhere"
        )
    return codec


def _plain(value: Any) -> Any:
    """What JSON can hold: tuples of widths go as lists."""
    return list(value) if isinstance(value, tuple) else value

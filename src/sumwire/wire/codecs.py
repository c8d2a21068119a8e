"""Codecs by name: how a worker tells an aggregator, in JSON, which codec its frames are of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sparse.codec import Sparse, default_shards
from sumwire.errors import InputError, MismatchError, SumwireError
from sumwire.wire.control import Describe

AnyCodec: TypeAlias = Lattice | Sparse | Sketch
_KINDS: dict[str, type[Any]] = {"lattice": Lattice, "sparse": Sparse, "sketch": Sketch}


def describe(codec: AnyCodec) -> Describe:
    """The message that lets an aggregator build the codec.

    >>> build(describe(Lattice(workers=4, bits=3))) == Lattice(workers=4, bits=3)
    True
    """
    for kind, cls in _KINDS.items():
        if isinstance(codec, cls):
            options = {f.name: getattr(codec, f.name) for f in fields(cls)}
            if isinstance(codec, Sparse) and codec.shards == default_shards(codec.workers):
                del options["shards"]  # which a reader finds by itself
            return Describe(codec.family, kind, {name: _plain(value) for name, value in options.items()})
    raise InputError(f"an aggregator cannot build a {type(codec).__name__}: only {', '.join(_KINDS)}")


def build(description: Describe) -> AnyCodec:
    """The codec, if this release makes the same of its options."""
    cls = _KINDS.get(description.kind)
    if cls is None:
        raise MismatchError(f"codec {description.kind!r} is unknown here: only {', '.join(_KINDS)} are")
    known = {f.name for f in fields(cls)}
    if set(description.options) - known:
        raise MismatchError(
            f"options {sorted(set(description.options) - known)} of {description.kind} are unknown here"
        )
    try:
        codec: AnyCodec = cls(
            **{name: tuple(v) if isinstance(v, list) else v for name, v in description.options.items()}
        )
        family = codec.family
    except (SumwireError, TypeError, ValueError) as error:
        raise MismatchError(f"codec {description.kind} cannot be built: {error}") from None
    if family != description.family:
        raise MismatchError(
            f"codec {description.kind} is {family} here, not {description.family}: run the same release everywhere"
        )
    return codec


def _plain(value: Any) -> Any:
    """What JSON can hold: tuples of widths go as lists."""
    return list(value) if isinstance(value, tuple) else value

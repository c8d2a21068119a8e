"""What a server learns of codecs: under their own names only, and nothing that spoils them for others."""

from __future__ import annotations

from typing import Any

import pytest

from sumwire import Codec, Lattice, MismatchError, Sketch, Sparse
from sumwire.aggregate.server.job_aggregator import JobAggregator
from sumwire.aggregate.server.options import Rules
from sumwire.codec.lattice import family as families
from sumwire.wire import control
from sumwire.wire.frame import describe

CODECS: list[Codec] = [Lattice(4, seed=81), Sparse(4, seed=82), Sketch(4, seed=83)]
ODD: list[tuple[Codec, dict[str, Any]]] = [
    (CODECS[0], {"rotate": 1}),
    (CODECS[0], {"feedback": 0}),
    (CODECS[0], {"bits": 4.0}),
    (CODECS[0], {"workers": 4.0}),
    (CODECS[0], {"energy": 1}),
    (CODECS[0], {"energy": 10**400}),
    (CODECS[0], {"seed": 81.0, "rotate": 1}),
    (CODECS[0], {"rotate": 1.0}),
    (CODECS[0], {"block": None}),
    (CODECS[0], {"widths": None}),
    (CODECS[1], {"workers": 4.0}),
    (CODECS[1], {"block": 64.0}),
    (CODECS[1], {"block": False}),
    (CODECS[2], {"rows_per_nonzero": 2}),
    (CODECS[2], {"block": True}),
]


def said(codec: Codec, family: str, **options: Any) -> control.Describe:
    """The message as a server reads it off the wire."""
    described = describe(codec)
    message = control.read(control.to_bytes(control.Describe(family, described.kind, described.options | options)))
    assert isinstance(message, control.Describe)
    return message


@pytest.mark.parametrize(("codec", "options"), ODD, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("family", ["its own", "made up"])
def test_odd_options_neither_rename_a_codec_nor_spoil_it_for_new_jobs(
    codec: Codec, options: dict[str, Any], family: str
) -> None:
    names = [known.family for known in CODECS]
    claimed = f"{describe(codec).kind}-{0:016x}" if family == "made up" else codec.family
    attacked, innocent = JobAggregator(Rules(4)), JobAggregator(Rules(4))
    families.build.cache_clear()  # as in a server that has just begun
    try:
        attacked.learn(said(codec, claimed, **options))
    except MismatchError:
        learned = []
    else:
        learned = list(attacked._codecs.items())
    assert all(name == built.family == type(built)(**_options(built)).family for name, built in learned)
    assert claimed in names or not learned
    for known, name in zip(CODECS, names, strict=True):
        for aggregator in (attacked, innocent):
            fresh = type(known)(**_options(known))
            assert fresh.family == name
            aggregator.learn(describe(fresh))


def _options(codec: Codec) -> dict[str, Any]:
    options = describe(codec).options
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}

"""Descriptions of codecs: plain values that name what differs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sumwire import Lattice, MismatchError, Rows, Sketch, Sparse
from sumwire.codec.adaptive import Adaptive
from sumwire.codec.base import Codec
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.options import differences, same_family
from sumwire.codec.snapshot import Snapshot
from sumwire.codec.sparse.compact import Compact
from sumwire.codec.stacked import Stacked

CODECS: list[Codec] = [
    Lattice(4),
    Lattice(4, 3),
    Lattice(4, total_bits=12),
    Lattice(4, widths=(2, 4)),
    Lattice.thc(4),
    Lattice(4, seed=7, feedback=True),
    Lattice(5),
    Sparse(4),
    Sparse(4, seed=1),
    Sparse(4, shards=2),
    Sketch(4),
    Sketch(4, block=64),
    Rows(4),
    Snapshot(4),
    Compact(4),
    Stacked(Lattice(4), 3),
    Stacked(Sparse(4), 3),
    Adaptive(Lattice(4), Sparse(4)),
    Adaptive(Lattice(4, 3), Sparse(4)),
]


def test_equal_descriptions_mean_equal_families() -> None:
    for one in CODECS:
        for other in CODECS:
            assert (differences(one.description(), other.description()) == "") == (one.family == other.family)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.family)
def test_descriptions_can_be_saved(codec: Codec) -> None:
    assert json.loads(json.dumps(codec.description())) == codec.description()


def test_members_of_a_family_have_one_description() -> None:
    assert Lattice(4, 4).with_bits(2).description() == Lattice(4, 4).description()
    assert Lattice(4, 4).description()["bits"] == 4


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (Lattice(4, 4), Lattice(4, 3), "bits: one has 4, the other has 3"),
        (Lattice(4, 4), Lattice(4, 3, seed=9), "bits: one has 4, the other has 3; seed: one has 0, the other has 9"),
        (Lattice(4), Sparse(4), "codec: one has Lattice, the other has Sparse"),
        (Lattice(4), Sparse(5), "codec: .*; workers: one has 4, the other has 5"),
        (Sparse(4), Sparse(4, block=64), "block: one has None, the other has 64"),
        (Stacked(Lattice(4), 2), Stacked(Lattice(4, 3), 2), "bits: one has 4, the other has 3"),
        (Stacked(Lattice(4), 2), Lattice(4), "rows: one has 2, the other has none"),
        (
            Adaptive(Lattice(4), Sparse(4)),
            Adaptive(Lattice(4, 3), Sparse(4)),
            "lattice.bits: one has 4, the other has 3",
        ),
    ],
)
def test_errors_name_the_option(one: Any, other: Any, says: str) -> None:
    with pytest.raises(MismatchError, match=rf"cannot add: codec family differs \({says}\); all workers must use"):
        same_family(one, other, "add")


def test_payloads_terms_and_residuals_name_the_option() -> None:
    x = np.ones(64, np.float32)
    four, three = Lattice(2, 4), Lattice(2, 3)
    with pytest.raises(MismatchError, match="cannot join terms: .*bits: one has 4, the other has 3"):
        four.propose(x) | three.propose(x)
    with pytest.raises(MismatchError, match="cannot encode under these terms: .*bits: one has 4, the other has 3"):
        four.encode(x, three.propose(x), rank=0)
    state = Residual(Lattice(2, 3, feedback=True)).state_dict()
    with pytest.raises(MismatchError, match="bits: this residual has 4, the state has 3.*; use the codec of"):
        Residual(Lattice(2, 4, feedback=True)).load_state_dict(state)

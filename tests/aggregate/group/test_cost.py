"""The cost rule: what is worth compressing, the same at every rank."""

from __future__ import annotations

import numpy as np
import pytest

from sumwire import Lattice, Sketch, Sparse
from sumwire.aggregate.group import cost
from sumwire.aggregate.group.group import Group
from sumwire.codec.rows.codec import Rows
from tests import ranks
from tests.aggregate.group.inputs import register_sum_only


def test_large_tensors_pay_and_small_ones_do_not() -> None:
    codec = Lattice(4, 4)
    assert cost.pays(codec, 4, 10_000_000)
    assert not cost.pays(codec, 4, 1000)
    # A reduce-scatter moves half of it, so there is less to save; of halves, a quarter.
    assert cost.shard_pays(codec, 4, 10_000_000)
    assert not cost.shard_pays(codec, 4, 1000)
    least = next(size for size in range(0, 10**6, 1000) if cost.shard_pays(codec, 4, size))
    assert not cost.shard_pays(codec, 4, least, 16)
    assert cost.shard_pays(codec, 4, 3 * least, 16)


@pytest.mark.parametrize("codec", [Lattice(4, 8), Lattice(4, 2), Lattice(4, total_bits=12)])
def test_from_some_size_on_it_pays(codec: Lattice) -> None:
    sizes = [1 << k for k in range(1, 30)]
    for rule in (cost.pays, cost.shard_pays):
        answers = [rule(codec, 4, size) for size in sizes]
        assert answers == sorted(answers)
        assert answers[-1]


def test_more_ranks_need_larger_tensors() -> None:
    """Messages grow with their number, bytes do not."""

    def least(n: int) -> int:
        codec = Lattice(n, 4)
        return next(size for size in range(0, 10**7, 5000) if cost.pays(codec, n, size))

    assert least(2) < least(8) < least(64)


def test_what_depends_on_the_tensor_is_tried() -> None:
    for codec in (Sparse(4), Rows(4), Sketch(4)):
        assert cost.pays(codec, 4, 10)
        assert cost.shard_pays(codec, 4, 10)


def test_the_bits_that_the_rule_counts_are_those_sent() -> None:
    for codec, each in ((Lattice(4, 4), 8), (Lattice(4, 4, terms="exact"), 32)):
        up, down, terms = codec.expected_bits(1 << 20)
        assert terms == 8 * codec.propose(np.ones(1 << 20, np.float32)).nbytes
        assert (up + down + 2 * terms) / (1 << 20) == pytest.approx(
            codec.bits + (codec.narrow_bits or 0) + (16 + 2 * each) / codec.block, abs=1e-4
        )


def choices(rank: int, n: int) -> list[bool]:
    found = []
    for algorithm, backend in (("auto", None), ("sharded", None), ("packed", None), ("auto", register_sum_only())):
        with Group(Lattice(n, 4), algorithm=algorithm, backend=backend) as group:  # type: ignore[arg-type]
            found += [group.pays(group.codec, 100), group.pays(group.codec, 10_000_000)]
    return found


def test_what_was_chosen_explicitly_is_done() -> None:
    for found in ranks.run(2, choices):
        assert found == [False, True, True, True, True, True, False, True]
    assert ranks.run(1, choices) == [[False] * 8]  # alone, there is nobody to send to

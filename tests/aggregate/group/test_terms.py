"""Terms that are joined between real processes are those that `|` gives, and travel as bytes where they can."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sumwire import Lattice, MismatchError, Sparse
from sumwire.aggregate.group import communicator
from sumwire.aggregate.group.agreement import join
from sumwire.aggregate.group.duplicate import duplicate
from sumwire.codec.adaptive import Adaptive
from sumwire.codec.algebra import Terms
from sumwire.codec.base import Codec
from sumwire.codec.stacked import Stacked
from tests import ranks
from tests.aggregate.group.inputs import register_sum_only

RANKS, BLOCKS = 3, 3000
BYTE, EXACT = Lattice(RANKS, 4, block=64), Lattice(RANKS, 4, block=64, terms="exact")
CODECS: dict[str, tuple[Codec, tuple[int, ...]]] = {
    "byte": (BYTE, (64 * BLOCKS,)),
    "exact": (EXACT, (64 * BLOCKS,)),
    "few": (BYTE, (64 * 5,)),
    "empty": (BYTE, (0,)),
    "adaptive": (Adaptive(BYTE, Sparse(RANKS)), (64 * BLOCKS,)),
    "stacked": (Stacked(BYTE, 3), (3, 64 * BLOCKS // 3)),
    "sparse": (Sparse(RANKS), (64 * BLOCKS,)),
}
HEAD = 16
KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WAYS = {"few ranks": (8, 1 << 16), "few, long": (8, 1 << 10), "many": (1, 1 << 16)}
"""How many ranks are few, and what they send at once."""


def tensor(rank: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Blocks of scales that are too far apart for a byte, some of them 0."""
    rng = np.random.default_rng((rank, *shape))
    size = int(np.prod(shape))
    loud = rng.choice([0, 1e-30, 1e-9, 1.0, 3e4], size // 64 + 1).repeat(64)[:size] * 4.0**rank
    return (rng.standard_normal(size) * loud).astype(np.float32).reshape(shape)


def proposed(rank: int, name: str, refusing: int) -> Terms:
    codec, shape = CODECS[name]
    return codec.refuse(shape) if rank == refusing else codec.propose(tensor(rank, shape))


def joined(rank: int, n: int, refusing: int, backend: str | None) -> dict[tuple[str, str], tuple[Any, int]]:
    found: dict[tuple[str, str], tuple[Any, int]] = {}
    for way, limits in WAYS.items():
        communicator.FEW_RANKS, communicator.EAGER_BYTES = limits
        (group,) = duplicate(None, 1, register_sum_only() if backend else None)
        for name in CODECS:
            if refusing < 0 or name not in ("sparse", "empty"):
                terms, sent = join(group, proposed(rank, name, refusing), 7)
                found[way, name] = terms.words if terms.encodable else "refused", sent
        group.close()
    return found


@pytest.mark.parametrize("backend", [None, "sums alone"])
@pytest.mark.parametrize("refusing", [-1, 1])
def test_joined_terms_are_those_of_one_process(refusing: int, backend: str | None) -> None:
    results = ranks.run(RANKS, joined, refusing, backend)
    for result in results:
        for (_, name), (words, _) in result.items():
            expected = reduce(or_, [proposed(rank, name, refusing) for rank in range(RANKS)])
            assert expected.encodable == (refusing < 0 or name == "sparse")
            np.testing.assert_array_equal(words, expected.words if expected.encodable else "refused")


def test_a_byte_per_block_is_sent() -> None:
    for result in ranks.run(RANKS, joined, -1, None):
        sent = {key: sent for key, (_, sent) in result.items()}
        assert sent["few ranks", "byte"] == 2 * (HEAD + 4 + BLOCKS)
        assert sent["few ranks", "adaptive"] == 2 * (HEAD + 12 + BLOCKS)
        assert sent["few ranks", "stacked"] == 2 * (HEAD + 12 + BLOCKS)
        assert sent["few, long", "byte"] == 2 * (HEAD + 4 + BLOCKS)
        assert sent["few ranks", "exact"] == 2 * (HEAD + 4 * BLOCKS)
        first = 4 * HEAD // 3 + 4 * 4 * communicator.EAGER_WORDS // 3
        assert sent["many", "byte"] == pytest.approx(first + 4 * BLOCKS // 3, abs=2)
        assert sent["many", "exact"] == pytest.approx(first + 4 * 4 * (BLOCKS - communicator.EAGER_WORDS) // 3, abs=2)


def values(rank: int, kind: torch.dtype) -> torch.Tensor:
    """Whose sum depends on the order; with NaN and Inf at some rank."""
    drawn = torch.randn(37, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    drawn *= torch.logspace(-6, 6, 37, dtype=torch.float64).roll(5 * rank)
    if rank == 1:
        drawn[:2] = torch.tensor([torch.nan, torch.inf])
    return drawn.to(kind)


def joined_along(rank: int, n: int, backend: str | None) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for way, limits in WAYS.items():
        communicator.FEW_RANKS, communicator.EAGER_BYTES = limits
        (group,) = duplicate(None, 1, register_sum_only() if backend else None)
        for name in CODECS:
            for kind in KINDS if group.has_all_to_all else KINDS[:1]:  # sums alone: of float32
                beside = values(rank, kind)
                terms, sent = join(group, proposed(rank, name, -1), 7, beside)
                found[way, name, str(kind)] = terms.words, sent, beside.double().numpy()
        group.close()
    return found


@pytest.mark.parametrize("backend", [None, "sums alone"])
def test_values_beside_terms_are_summed_exactly(backend: str | None) -> None:
    results = ranks.run(RANKS, joined_along, backend)
    plain = ranks.run(RANKS, joined, -1, backend)
    for (way, name, kind), (words, sent, summed) in results[0].items():
        np.testing.assert_array_equal(words, reduce(or_, [proposed(rank, name, -1) for rank in range(RANKS)]).words)
        first, *others = own = [values(rank, getattr(torch, kind.removeprefix("torch."))) for rank in range(RANKS)]
        most = sum(each.double().abs() for each in own).numpy()
        first = first.clone()
        for each in others:
            first += each
        for result in results:
            np.testing.assert_array_equal(result[way, name, kind][2], summed)
        if backend is None and way != "many":  # in the order of ranks
            np.testing.assert_array_equal(summed, first.double().numpy())
            assert sent == plain[0][way, name][1] + 2 * first.nbytes
        else:
            exact = first.double().numpy()
            np.testing.assert_array_equal(np.isfinite(summed), np.isfinite(exact))
            known = np.isfinite(exact)
            off = np.abs(summed[known] - exact[known])
            assert (off <= RANKS * torch.finfo(first.dtype).eps * most[known]).all()


def joined_with_others_values(rank: int, n: int) -> str:
    (group,) = duplicate(None, 1, None)
    try:
        join(group, proposed(rank, "few", -1), 7, values(rank, torch.float32)[: 5 + rank])
    except MismatchError as error:
        return str(error)
    finally:
        group.close()
    return ""


def test_ranks_with_other_values_beside_the_same_tensor_are_told() -> None:
    for said in ranks.run(RANKS, joined_with_others_values):
        assert "values beside the tensor differs; it is 5 of torch.float32 at rank 0 and 6 of torch.float32 at" in said

"""The collectives between real processes, on whatever backend: the same values, and bytes as they are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sumwire import ConfigError
from sumwire.aggregate.group.communicator import FEW_RANKS, ONE_HOP_BYTES, Communicator, as_bytes, rows_of, split
from sumwire.aggregate.group.duplicate import duplicate
from tests import ranks
from tests.aggregate.group.inputs import register_sum_only


def lengths(n: int) -> list[int]:
    """Of pieces, from none upwards."""
    return [5 * rank for rank in range(n)]


def piece(sender: int, receiver: int) -> NDArray[np.uint8]:
    return np.random.default_rng((sender, receiver)).integers(0, 256, 3 * sender + receiver, np.uint8)


def words(rank: int, size: int, kind: Any) -> NDArray[Any]:
    limits = np.iinfo(kind)
    return np.random.default_rng((rank, size)).integers(limits.min, limits.max, size, kind, endpoint=True)


def collectives(rank: int, n: int) -> None:
    for backend in (None, register_sum_only()):
        (group,) = duplicate(None, 1, backend)
        assert (group.rank, group.ranks, group.has_all_to_all) == (rank, n, backend is None)
        check_collectives(group)
        group.close()


def check_collectives(group: Communicator) -> None:
    rank, n = group.rank, group.ranks
    for size in (0, 1, 7, 500):
        for kind in (np.int32, np.int64):
            check_words(group, size, kind)
        flags: NDArray[np.int64] = words(rank, size, np.int64)
        group.bit_or(flags)
        np.testing.assert_array_equal(flags, np.bitwise_or.reduce([words(r, size, np.int64) for r in range(n)]))
        check_gather(group, size)
    check_varied(group)
    check_exchange(group)
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for nbytes in (0, 8, ONE_HOP_BYTES - 8, ONE_HOP_BYTES, ONE_HOP_BYTES + 8):
            if group.has_all_to_all:  # others take int32 and float32 only
                check_all_reduce(group, nbytes // kind.itemsize, kind)


def check_words(group: Communicator, size: int, kind: Any) -> None:
    everyone = [words(rank, size, kind) for rank in range(group.ranks)]
    largest = everyone[group.rank].copy()
    group.max(largest)
    np.testing.assert_array_equal(largest, np.max(everyone, axis=0))
    if kind == np.int32:
        total = everyone[group.rank] // group.ranks
        group.sum(total)
        np.testing.assert_array_equal(total, np.sum([each // group.ranks for each in everyone], axis=0))


def check_all_reduce(group: Communicator, size: int, kind: torch.dtype) -> None:
    """Small tensors travel in one hop, and are added in the order of ranks, whatever the values."""
    rng = [torch.Generator().manual_seed(rank) for rank in range(group.ranks)]
    everyone = [torch.randn(size, generator=each).to(kind) for each in rng]
    if size > 2:
        everyone[-1][0], everyone[0][1], everyone[-1][1] = torch.nan, torch.inf, -torch.inf
    total, tall = everyone[0].clone(), everyone[group.rank].clone().view(-1, 1).t()
    for theirs in everyone[1:]:
        total += theirs
    for mine in (everyone[group.rank].clone(), tall):
        sent = group.sum_small(mine)
        if 0 < total.nbytes <= ONE_HOP_BYTES and group.ranks <= FEW_RANKS:
            torch.testing.assert_close(mine.reshape(-1), total, rtol=0, atol=0, equal_nan=True)
            assert sent == total.nbytes * (group.ranks - 1)
        else:
            near = 1e-2 * group.ranks if kind in (torch.float16, torch.bfloat16) else 1e-5
            torch.testing.assert_close(mine.reshape(-1), total, rtol=near, atol=near, equal_nan=True)
            assert sent == 2 * total.nbytes * (group.ranks - 1) // group.ranks


def check_gather(group: Communicator, size: int) -> None:
    mine = words(group.rank, size, np.uint8)
    everyone = np.empty(group.ranks * size, np.uint8)
    sent = group.all_gather(mine, everyone)
    np.testing.assert_array_equal(everyone, np.concatenate([words(r, size, np.uint8) for r in range(group.ranks)]))
    if group.has_all_to_all:
        assert sent == size * (group.ranks - 1)


def check_varied(group: Communicator) -> None:
    for sizes in (lengths(group.ranks), [0] * group.ranks):
        rows = [words(rank, size, np.uint8) for rank, size in enumerate(sizes)]
        for in_place in (False, True):
            everyone = np.empty(group.ranks * max(sizes), np.uint8)
            mine = rows_of(everyone, sizes)[group.rank] if in_place else rows[group.rank]
            mine[:] = rows[group.rank]
            group.all_gather_varied(mine, sizes, everyone)
            for found, row in zip(rows_of(everyone, sizes), rows, strict=True):
                np.testing.assert_array_equal(found, row)


def check_exchange(group: Communicator) -> None:
    given = [piece(group.rank, other) for other in range(group.ranks)]
    taken = [piece(other, group.rank) for other in range(group.ranks)]
    inbox = np.empty(sum(map(len, taken)), np.uint8)
    sent = group.all_to_all(np.concatenate(given), [*map(len, given)], inbox, [*map(len, taken)])
    np.testing.assert_array_equal(inbox, np.concatenate(taken))
    if group.has_all_to_all:
        assert sent == sum(map(len, given)) - len(given[group.rank])


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])  # from 9 on, gloo's own collectives
def test_collectives(n: int) -> None:
    ranks.run(n, collectives)


def part_of_the_world(rank: int, n: int) -> tuple[int, int, int]:
    group = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises(ConfigError, match="on a rank of the group"):
            duplicate(group, 1, None)
        return -1, -1, -1
    (mine,) = duplicate(group, 1, None)
    value = np.array([rank], np.int32)
    mine.max(value)
    mine.close()
    return mine.rank, mine.ranks, int(value[0])


def test_ranks_of_a_group_are_its_own() -> None:
    assert ranks.run(3, part_of_the_world) == [(0, 2, 2), (-1, -1, -1), (1, 2, 2)]


def closed_often(rank: int, n: int) -> int:
    names = len(dist.distributed_c10d._world.pg_map)
    for _ in range(20):
        made = duplicate(None, 2, None)
        dist.barrier()  # whoever closed one at once could fail a rank that still connects
        for each in made:
            each.close()
            each.close()
    return len(dist.distributed_c10d._world.pg_map) - names


def test_closed_communicators_leave_nothing_behind() -> None:
    assert ranks.run(2, closed_often) == [0, 0]


def test_pieces() -> None:
    data = np.arange(6, dtype=np.uint8)
    assert [each.tolist() for each in split(data, [2, 0, 4])] == [[0, 1], [], [2, 3, 4, 5]]
    assert split(data, [6])[0].base is not None  # a view
    assert as_bytes(np.array([[1, 2]], "<i4")).tolist() == [1, 0, 0, 0, 2, 0, 0, 0]

"""Finds, by name, what ranks were set up with differently."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from sumwire.aggregate.group.communicator import Communicator
from sumwire.errors import MismatchError

LONGEST = 1 << 20
"""Bytes of settings that a rank may send."""


def random_number(communicator: Communicator) -> int:
    """One of 62 bits, the same at all ranks: rank 0 draws it."""
    words = np.zeros(2, np.int32)
    if communicator.rank == 0:
        words[:] = [secrets.randbits(31), secrets.randbits(31)]
    communicator.max(words)
    return int(words[0]) << 31 | int(words[1])


def agree(communicator: Communicator, settings: Mapping[str, object]) -> None:
    """Raise `MismatchError` at every rank unless all have the same settings."""
    found = first_difference(communicator, settings)
    if found is not None:
        key, rank, first, other = found
        raise MismatchError(
            f"ranks 0 and {rank} were set up differently: {key} is {first} at rank 0 and {other} at rank {rank}; all "
            "must use the same"
        )


def first_difference(communicator: Communicator, settings: Mapping[str, object]) -> tuple[str, int, Any, Any] | None:
    """What differs between two ranks' settings, if anything: its key, the other rank, rank 0's value and the other's.

    All ranks must come here together, and get the same answer.
    """
    mine = np.frombuffer(json.dumps({key: str(value) for key, value in settings.items()}).encode(), np.uint8)
    length = np.array([len(mine)], np.int32)
    communicator.max(length)
    if not 0 < length[0] <= LONGEST:
        raise MismatchError(f"settings of {length[0]} bytes; the limit is {LONGEST}: pass fewer, or a digest of them")
    # Everyone's row by a maximum, which even a group has that can only sum and compare.
    everyone = np.zeros((communicator.ranks, length[0]), np.int32)
    everyone[communicator.rank, : len(mine)] = mine
    communicator.max(everyone.reshape(-1))
    rows = [json.loads(bytes(row[row > 0].astype(np.uint8))) for row in everyone]
    for rank, row in enumerate(rows):
        for key in dict.fromkeys([*rows[0], *row]):
            if rows[0].get(key) != row.get(key):
                return key, rank, rows[0].get(key), row.get(key)
    return None

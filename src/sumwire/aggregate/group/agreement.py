"""What ranks must agree on: their settings, and in every round the terms. Finds, by name, what differs."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Communicator, add_rows, as_bytes
from sumwire.codec.algebra import Terms
from sumwire.errors import MismatchError, RoundError, SumwireError

LONGEST = 1 << 20
"""Bytes of settings that a rank may send."""


@contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Turn what a collective raises, when a peer is gone say, into a `RoundError` that says what happened."""
    try:
        yield
    except SumwireError:
        raise
    except RuntimeError as error:
        raise RoundError(f"{what}: {error}. {remedy}") from error


def random_number(communicator: Communicator) -> int:
    """One of 62 bits, the same at all ranks: rank 0 draws it."""
    words = np.zeros(2, np.int32)
    if communicator.rank == 0:
        words[:] = [secrets.randbits(31), secrets.randbits(31)]
    communicator.max(words)
    return int(words[0]) << 31 | int(words[1])


def agree(communicator: Communicator, settings: Mapping[str, object]) -> None:
    """Raise `MismatchError` at every rank unless all have the same settings."""
    identity = _digest({key: str(value) for key, value in settings.items()})
    head = np.concatenate([identity, -identity])
    communicator.max(head)
    if (head[:2] == -head[2:]).all():
        return  # without sending everyone all settings, which may be long
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


def join(
    communicator: Communicator, terms: Terms, round_id: int, along: torch.Tensor | None = None
) -> tuple[Terms, int]:
    """Everyone's terms, joined, and the bytes that this rank sent; along = its sum over the ranks, by the same
    messages if there is room in them, otherwise in one hop right after them.

    How long terms are follows from the codec and the tensor's size, and a collective of ranks that have different
    lengths ends the process or hangs. So a head, as long at all ranks, tells what each one averages. Most terms
    travel in the same message: the check takes no collective of its own. (Ranks cannot remember which sizes were
    checked before: two that average known tensors in different order would both skip the check.)

    Raises
    ------
    MismatchError
        At every rank, if they do not average the same tensor. Nothing else is on its way: the next round may follow.
    """
    common: dict[str, object] = {"size": terms.size, "shape": terms.shape, "round": round_id}
    common |= {"codec family": terms.codec.family, "form of sums": terms.codec.sum_form}
    if along is not None:
        common["values beside the tensor"] = f"{along.numel()} of {along.dtype}"
    identity = _digest(common)
    head = np.concatenate([identity, -identity])
    bases = terms.bases
    beside = np.empty(0, np.uint8) if along is None else along.view(torch.uint8).numpy()
    room = communicator.eager(beside.dtype)
    if bases is not None and communicator.has_byte_maxima and bases.nbytes + len(beside) <= room:
        codes = terms.codes(bases)
        own = np.concatenate([as_bytes(bases), codes, beside])
        if len(own) <= room:
            cut, end = bases.nbytes, bases.nbytes + len(codes)
            rows, sent = communicator.gather_eagerly(head, own)
            _check_head(communicator, head, common)
            if along is not None:
                add_rows(torch.from_numpy(rows[:, end:].copy()).view(along.dtype), along)
            return terms.join_codes(rows[:, :cut].copy().view(np.int32), rows[:, cut:end]), sent
    joined, sent = _join_long(communicator, terms, head, common)
    return joined, sent if along is None else sent + communicator.sum_small(along)


def _join_long(
    communicator: Communicator, terms: Terms, head: NDArray[np.int32], common: dict[str, object]
) -> tuple[Terms, int]:
    """Terms of which as much as fits travels with the head, and what is left by itself."""
    words, bases = terms.words.copy(), terms.bases
    eager = communicator.eager(words.dtype) if terms.joined_by == "max" else 0
    if bases is not None and communicator.has_byte_maxima and len(bases) <= eager < len(words):
        # Codes count from the joined bases, which travel with the head.
        sent = communicator.max_eagerly(head, bases)
        _check_head(communicator, head, common)
        codes = terms.codes(bases)
        sent += communicator.max(codes)
        return terms.with_codes(bases, codes), sent
    sent = communicator.max_eagerly(head, words[:eager])
    _check_head(communicator, head, common)
    if len(words) > eager:
        merge = communicator.max if terms.joined_by == "max" else communicator.bit_or
        sent += merge(words[eager:])
    return terms.with_words(words), sent


def _check_head(communicator: Communicator, head: NDArray[np.int32], common: dict[str, object]) -> None:
    """Raise, at every rank, unless all ranks have the same in common."""
    if (head[:2] == -head[2:]).all():
        return
    found = first_difference(communicator, common)  # the largest is not the smallest, as all ranks see
    assert found is not None  # of equal things, digests are equal
    what, rank, first, other = found
    raise MismatchError(
        f"cannot average: {what} differs; it is {first} at rank 0 and {other} at rank {rank}; all ranks must "
        "average the same tensors in the same order"
    )


def _digest(common: dict[str, object]) -> NDArray[np.int32]:
    """62 bits of what all ranks must have in common."""
    digest = hashlib.blake2b(repr(common).encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.int32) & 0x7FFFFFFF

"""How ranks join terms, and find out before any length depends on it that they average the same tensor."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Communicator
from sumwire.aggregate.group.consistency import first_difference
from sumwire.codec.algebra import Terms
from sumwire.errors import MismatchError


def join(communicator: Communicator, terms: Terms, round_id: int) -> tuple[Terms, int]:
    """Everyone's terms, joined, and the bytes that this rank sent.

    The terms' words follow from the codec and the tensor's size, and a collective of ranks that have different numbers
    of words ends the process or hangs. So a head, as long at all ranks, tells what each one averages. Most terms
    travel in the same message: the check takes no collective of its own. (Ranks cannot remember which sizes were
    checked before: two that average known tensors in different order would both skip the check.)

    Raises
    ------
    MismatchError
        At every rank, if they do not average the same tensor. Nothing else was exchanged: the next round may follow.
    """
    common = {"size": terms.size, "shape": terms.shape, "round": round_id, "codec family": terms.codec.family}
    words, identity = terms.words.copy(), _digest(common)
    head = np.concatenate([identity, -identity])
    eager = communicator.eager(words.dtype) if terms.joined_by == "max" else 0
    sent = communicator.max_eagerly(head, words[:eager])
    if (head[:2] != -head[2:]).any():  # the largest is not the smallest, as all ranks see
        found = first_difference(communicator, common)
        assert found is not None  # of equal things, digests are equal
        what, rank, first, other = found
        raise MismatchError(
            f"cannot average: {what} differs; it is {first} at rank 0 and {other} at rank {rank}; all ranks must "
            "average the same tensors in the same order"
        )
    if len(words) > eager:
        merge = communicator.max if terms.joined_by == "max" else communicator.bit_or
        sent += merge(words[eager:])
    return terms.with_words(words), sent


def _digest(common: dict[str, object]) -> NDArray[np.int32]:
    """62 bits of what all ranks must have in common."""
    digest = hashlib.blake2b(repr(common).encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.int32) & 0x7FFFFFFF

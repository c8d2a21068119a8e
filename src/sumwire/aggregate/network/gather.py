"""Payloads that nobody on the path can add: every worker gets everyone's bytes, and adds for itself.

Each worker writes its bytes at a place of its own, zeros elsewhere, and the aggregator joins by OR. So any codec works
over packets; what it costs is everybody's payload to everybody, and as many zeros up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Payload, Sum
from sumwire.codec.streams import Merged, Stream
from sumwire.errors import ConfigError, MismatchError, RoundError

LIMIT = 512 << 20
"""Bytes of all workers' payloads together."""

_WORDS = 4
"""Of what a worker says of its payload: bytes and 1, kind of values, member of the codec family, what it belongs to."""

Exchange = Callable[[list[Stream], str, bool], list[Merged]]


def add(payload: Payload, workers: int, exchange: Exchange) -> Sum:
    """Everyone's payloads, added; `exchange` merges streams with the other workers', unless this one is absent."""
    codec, terms, rank = payload.codec, payload.terms, payload.rank
    lo, hi = codec.edges(terms, 1)
    data, _ = payload.cut((lo, hi))
    found = collect(payload, data, rank, workers, exchange)
    parts = [
        codec.with_member(member).read_payload(
            terms, piece, rank=who, round_id=payload.round_id, lo=lo, hi=hi, kind=kind
        )
        for who, (kind, member, piece) in sorted(found.items())
    ]
    packed = codec.add(parts).narrow_packed()  # of slices of payloads, from which only `read_sum` makes a whole sum
    summed = codec.read_sum(terms, [((lo, hi), packed)], count=len(parts), round_id=payload.round_id)
    return summed if rank in found else replace(summed, late=((lo, hi),))


def collect(
    payload: Payload, data: Bytes | None, place: int, workers: int, exchange: Exchange
) -> dict[int, tuple[int, int, Bytes]]:
    """Kind, member and bytes of each worker's payload, by its place among the workers; None: this one has none."""
    codec, terms = payload.codec, payload.terms
    identity = crc32(repr((codec.family, terms.shape, terms.digest)).encode())
    told = np.zeros((workers, _WORDS), np.uint64)
    if data is not None:
        told[place] = (len(data) + 1, payload.value_kind, codec.member, identity)
    [said] = exchange([Stream("or", told.view(np.uint8).reshape(-1), 64, 8 * _WORDS)], "lengths", False)
    everyone = said.data.view(np.uint64).reshape(workers, _WORDS)
    present = _check(everyone, said, identity, place)
    starts = np.zeros(workers + 1, np.int64)
    sizes = [-(-(int(words[0]) - 1) // 8) * 8 if who in present else 0 for who, words in enumerate(everyone)]
    starts[1:] = np.cumsum(sizes)
    total = int(starts[-1])
    if total > LIMIT:
        raise ConfigError(
            f"payloads of a {type(codec).__name__} cannot be added by packets, and those of {workers} workers have "
            f"{total} bytes together, which is over the limit of {LIMIT} for exchanging them whole: use a Lattice or a "
            'Sketch, or a server ("host:port")'
        )
    pieces: dict[int, Bytes] = {who: np.empty(0, np.uint8) for who in present}
    if total:
        body = np.zeros(total, np.uint8)
        if data is not None and place in present:
            body[starts[place] : starts[place] + len(data)] = data
        [found] = exchange([Stream("or", body, 64, 8)], "payloads", place not in present)
        for who in present:
            units = slice(int(starts[who]) // 8, int(starts[who + 1]) // 8)
            if (found.members[units] >> np.uint64(who) & np.uint64(1)).all():
                pieces[who] = found.data[starts[who] : starts[who] + int(everyone[who, 0]) - 1]
            else:
                del pieces[who]
    if not pieces:
        raise RoundError(f"no worker's payload of round {payload.round_id} arrived whole: use reliable delivery")
    return {who: (int(everyone[who, 1]), int(everyone[who, 2]), piece) for who, piece in pieces.items()}


def _check(everyone: NDArray[np.uint64], said: Merged, identity: int, rank: int) -> list[int]:
    """The workers that told what they have; all of it must belong together."""
    present = []
    for who, words in enumerate(everyone.tolist()):
        if not int(said.members[who]) >> who & 1 or not words[0]:
            continue
        if words[3] != identity:
            raise MismatchError(
                f"cannot average: worker {who} has another tensor or codec than worker {rank}; all must use the same"
            )
        present.append(who)
    return present

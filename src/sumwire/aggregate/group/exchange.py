"""How ranks add: payloads without decompressing them (shards to their owners and sums back, or plain sums), and plain
tensors by one all-reduce, where a codec cannot or should not take them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.communicator import GATHER, Communicator, as_bytes, rows_of, split
from sumwire.codec.algebra import Payload, Sum
from sumwire.codec.base import Codec
from sumwire.codec.options import same
from sumwire.codec.tensors import (
    TORCH_DTYPES,
    Tensor,
    check_torch,
    flatten,
    float32_pairs,
    give_back,
    join_pairs,
    refuse_dtype,
)
from sumwire.errors import ConfigError, MismatchError

Ints = NDArray[np.int64]


class Exchange:
    """Adds payloads over one communicator; called by one thread at a time, in the same order on all ranks.

    Gathering may have a thread of its own, if the communicator `gathers_apart`.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._members: dict[str, list[Codec]] = {}

    def add(self, payload: Payload, work: Workspace) -> Sum:
        """Everyone's payloads, added, at every rank."""
        return self.begin_add(payload, work)()

    def begin_add(self, payload: Payload, work: Workspace) -> Callable[[], Sum]:
        """See `Aggregator.begin_add`: what is left is gathering, if that may be done apart."""
        whole = self._share_whole(payload, work) if payload.codec.may_share_whole_payloads else None
        if whole is None:
            shard = self.add_shard(payload, work)
            if self._communicator.gathers_apart:
                return partial(self._gather, shard, work)
            whole = self._gather(shard, work)
        total: Sum = whole
        return lambda: total

    def _share_whole(self, payload: Payload, work: Workspace) -> Sum | None:
        """Everyone's payload to everyone, who add for themselves; None if shards to their owners are less."""
        communicator, codec, terms = self._communicator, payload.codec, payload.terms
        edges = (0, codec.edges(terms, communicator.ranks)[-1])
        data, (length,) = payload.cut(edges)
        told = np.array([length, *_identity(payload)], np.int64)
        everyone = np.empty((communicator.ranks, len(told)), np.int64)
        with work.statistics.time("exchange"):
            work.statistics.add_sent(communicator.all_gather(as_bytes(told), as_bytes(everyone)))
        _check(payload, everyone[:, 1:])
        lengths = everyone[:, 0].tolist()
        if not codec.shares_whole_payloads(terms, lengths):
            return None
        with work.statistics.time("exchange"):
            inbox = work.take("inbox", communicator.ranks * max(lengths))
            work.statistics.add_sent(communicator.all_gather_varied(data, lengths, inbox))
        with work.statistics.time("add"):
            parts = [
                codec.read_payload(
                    terms, piece, rank=rank, round_id=payload.round_id, lo=0, hi=edges[1], kind=payload.value_kind
                )
                for rank, piece in enumerate(rows_of(inbox, lengths))
            ]
            return codec.add(parts)

    def add_shard(self, payload: Payload, work: Workspace) -> Sum:
        """All-to-all: shard r of everyone's payload goes to rank r, which adds."""
        communicator, codec, terms = self._communicator, payload.codec, payload.terms
        n, me, statistics = communicator.ranks, communicator.rank, work.statistics
        edges = codec.edges(terms, n)
        lo, hi = edges[me], edges[me + 1]
        outbox, sent = payload.cut(edges)
        members = self._members_of(codec)
        sizes = {number: each.payload_sizes(terms, edges) for number, each in {m.member: m for m in members}.items()}
        with statistics.time("exchange"):
            received = [size[me] for member in members if (size := sizes[member.member]) is not None]
            received = received or self._announce(payload, sent, work)
            inbox = work.take("inbox", sum(received), like=outbox)
            statistics.add_sent(communicator.all_to_all(outbox, sent, inbox, received))
        with statistics.time("add"):
            parts = [
                member.read_payload(
                    terms, data, rank=rank, round_id=payload.round_id, lo=lo, hi=hi, kind=payload.value_kind
                )
                for rank, (member, data) in enumerate(zip(members, split(inbox, received), strict=True))
            ]
            room = codec.memory(terms.size, terms, lo, hi)
            return codec.add(parts, out=work.take("lanes", room, like=inbox) if room else None)

    def _gather(self, shard: Sum, work: Workspace) -> Sum:
        """All-gather: everyone gets every rank's shard of the sum, narrowed by its owner."""
        communicator, codec, terms = self._communicator, shard.codec, shard.terms
        n, statistics = communicator.ranks, work.statistics
        edges = codec.edges(terms, n)
        sizes = codec.sum_sizes(terms, edges)
        with statistics.time("add"):
            room = None
            if sizes is not None:
                room = rows_of(work.take("everyone", n * max(sizes), like=shard.storage), sizes)[communicator.rank]
            mine = shard.narrow_packed(room)
        with statistics.time("exchange"):
            sizes = _lengths(communicator, len(mine), work) if sizes is None else sizes
            everyone = work.take("everyone", n * max(sizes), like=mine)
            statistics.add_sent(communicator.all_gather_varied(mine, sizes, everyone, tag=GATHER))
        parts = list(zip(pairwise(edges), rows_of(everyone, sizes), strict=True))
        return codec.read_sum(terms, parts, count=n, round_id=shard.round_id)

    def add_summands(self, payload: Payload, work: Workspace) -> Sum | None:
        """A plain SUM of int32 words or float32 values; None if the codec has no such form."""
        with work.statistics.time("add"):
            values = payload.summands()
        if values is None:
            return None
        if len(values):
            with work.statistics.time("exchange"):
                work.statistics.add_sent(self._communicator.sum(values))
        return payload.codec.read_summands(
            payload.terms, values, count=self._communicator.ranks, round_id=payload.round_id
        )

    def _members_of(self, codec: Codec) -> list[Codec]:
        """Every rank's member of the family: they may spend different numbers of bits."""
        known = self._members.get(codec.family)
        if known is None:
            mine, everyone = np.array([codec.member], np.int32), np.empty(self._communicator.ranks, np.int32)
            self._communicator.all_gather(as_bytes(mine), as_bytes(everyone))
            known = self._members[codec.family] = [codec.with_member(int(member)) for member in everyone]
        mine_then = known[self._communicator.rank].member
        if codec.member != mine_then:
            raise ConfigError(
                f"this rank has averaged with bits={mine_then} before, now with bits={codec.member}: the other ranks "
                f"expect {mine_then} bits; keep to them, or build another Group"
            )
        return known

    def _announce(self, payload: Payload, sent: tuple[int, ...], work: Workspace) -> list[int]:
        """How many bytes come from each rank; all must have tensors of the same size, kind and shape."""
        mine = np.array([[size, *_identity(payload)] for size in sent], np.int64)
        theirs, each = np.empty_like(mine), [mine[0].nbytes] * self._communicator.ranks
        work.statistics.add_sent(self._communicator.all_to_all(as_bytes(mine), each, as_bytes(theirs), each))
        _check(payload, theirs[:, 1:])
        return [int(size) for size in theirs[:, 0]]


def _lengths(communicator: Communicator, mine: int, work: Workspace) -> tuple[int, ...]:
    """Everyone's number of bytes."""
    lengths: Ints = np.empty(communicator.ranks, np.int64)
    sent = communicator.all_gather(as_bytes(np.array([mine], np.int64)), as_bytes(lengths), tag=GATHER)
    work.statistics.add_sent(sent)
    return tuple(lengths.tolist())


def _identity(payload: Payload) -> tuple[int, int, int]:
    """What all ranks' payloads must have in common: coordinates, kind of values, and 32 bits of the shape."""
    terms = payload.terms
    return terms.size, payload.value_kind, crc32(repr((terms.shape, terms.digest)).encode())


def _check(payload: Payload, everyone: Ints) -> None:
    mine = _identity(payload)
    for rank, theirs in enumerate(everyone.tolist()):
        same("size and kind of values", list(mine[:2]), theirs[:2], "average")
        if theirs[2] != mine[2]:
            raise MismatchError(
                f"cannot average: shape differs; it is {payload.shape} here and another at rank {rank}; all workers "
                "must use the same"
            )


def all_reduce_mean(communicator: Communicator, x: Tensor, out: Tensor | None) -> tuple[Tensor, int]:
    """The mean over the ranks, in x's kind, dtype and shape or in `out`; and the bytes that this rank sent.

    Tensors are scaled, then summed in their own dtype, which gives the bits of DDP's own all-reduce. A group that can
    only sum takes float32: halves are summed in that, and float64 as pairs of it.
    """
    in_place = out is x and isinstance(x, torch.Tensor) and x.is_contiguous() and communicator.has_all_to_all
    in_place = in_place and not x.is_neg()
    mean = _dense(x, copy=not in_place)
    if communicator.has_all_to_all:
        sent = communicator.all_reduce(mean.mul_(1.0 / communicator.ranks))
        return (out if in_place else _give_back(mean, x, out)), sent
    if mean.dtype == torch.float64:
        pairs = torch.from_numpy(float32_pairs(mean))
        sent = communicator.all_reduce(pairs.mul_(1.0 / communicator.ranks))
        return give_back(join_pairs(pairs.numpy()), x, out), sent
    mean = mean.float()
    sent = communicator.all_reduce(mean.mul_(1.0 / communicator.ranks))
    return _give_back(mean, x, out), sent


def _dense(x: Tensor, *, copy: bool) -> torch.Tensor:
    """x as a contiguous torch tensor."""
    if isinstance(x, torch.Tensor):
        check_torch(x, anywhere=True)
        if str(x.dtype) not in TORCH_DTYPES:
            refuse_dtype(str(x.dtype), torch=True)
        plain: torch.Tensor = x.detach().resolve_neg()
        return plain.clone(memory_format=torch.contiguous_format) if copy else plain
    flat, shape = flatten(x)
    tensor = torch.from_numpy(flat.copy())
    return (tensor.view(torch.bfloat16) if flat.dtype == np.uint16 else tensor).view(shape)


def _give_back(mean: torch.Tensor, x: Tensor, out: Tensor | None) -> Tensor:
    if out is None and isinstance(x, torch.Tensor):
        return mean.to(x.dtype)
    if mean.device.type != "cpu":
        held: Any = mean
        return give_back(held, x, out)
    # NumPy has no bfloat16, and float32 holds all of its values.
    return give_back((mean.float() if mean.dtype == torch.bfloat16 else mean).numpy(), x, out)

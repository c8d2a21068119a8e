"""NumPy buffers through a torch process group: the collectives that Sumwire needs. Bytes may be tensors of a GPU, too.

Joining and adding each have a communicator of their own (`duplicate`), so their messages never wait for, nor get mixed
up with, one another's, DDP's or the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sumwire.errors import RoundError
from sumwire.kernels.arrays import Buffers

Bytes = NDArray[np.uint8]

FEW_RANKS = 8
"""Up to this many ranks gather by sending to all others at once: one hop, where a ring has n-1 that each may have
to wait behind other traffic. Terms then cost ranks / 2 times a ring's bytes."""

ONE_HOP_BYTES = 1 << 14
"""Up to this many bytes, few ranks send a tensor to all others, who sum: one hop, where a ring has 2 (n-1). That is
n / 2 times a ring's bytes; at 1 Gbit/s those beyond it cost less than the hops."""

MAIN, GATHER = 0, 1
"""Tags of messages: those of sums that a thread of its own gathers travel beside all others between the same ranks."""

EAGER_BYTES = 1 << 16
"""What `max_eagerly` takes at most from few ranks: with blocks of 512, the exact terms of 8 M coordinates, as many as
DDP's longest rounds have by default."""
EAGER_WORDS = 1 << 11
"""The same for more ranks, in int32: they always send as much, since their collectives need equal lengths."""

# Renamed in torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

ALL_TO_ALL = frozenset({"gloo", "nccl", "mpi", "ucc", "xccl"})
"""Backends that are known to have an all-to-all of bytes; others get by with sums."""

BYTE_MAXIMA = frozenset({"gloo", "nccl"})
"""Backends that are known to take the maximum of bytes; MPI does not."""

OWN = "sumwire"
"""The backend that `sumwire.torch` registers."""


class Communicator:
    """Calls block until the collective is done, and return the bytes that this rank sent."""

    def __init__(self, group: dist.ProcessGroup, backend: str, device: torch.device) -> None:
        self._group: dist.ProcessGroup | None = group
        self.device = device
        self.has_all_to_all = backend in ALL_TO_ALL
        self.has_byte_maxima = backend in BYTE_MAXIMA
        self.rank: int = group.rank()
        self.ranks: int = group.size()
        self._scratch = Buffers()
        self._point_to_point = backend == "gloo"
        self._few = self._point_to_point and self.ranks <= FEW_RANKS
        self.gathers_apart = self._few
        """Whether a thread of its own may gather sums, by the tag GATHER."""

    @property
    def group(self) -> dist.ProcessGroup:
        if self._group is None:
            raise RoundError("closed: this group cannot average any more; build another Group")
        if self._group not in dist.distributed_c10d._world.pg_map:
            raise RoundError("destroyed: all process groups have ended; close a Group before destroy_process_group")
        return self._group

    def close(self) -> None:
        """Give the communicator back, unless the user has destroyed all groups already. Needs no other rank."""
        group, self._group = self._group, None  # torch ends its threads when nobody refers to it any more
        if group is None:
            return
        names = dist.distributed_c10d._world.pg_names
        name = names.get(group)
        with suppress(ValueError, AssertionError, RuntimeError):
            dist.destroy_process_group(group)
            # torch names groups of a subgroup by how many names there are. One that is given back, at a time that
            # differs between ranks, or that comes again while the store still knows it, would make them wait forever.
            if name is not None:
                empty: Any = dist.ProcessGroup  # whose stubs do not know that it needs no store
                names[empty(0, 1)] = name

    def max(self, values: NDArray[Any]) -> int:
        """values = the largest over the ranks, in place."""
        if not self._few and (self.has_all_to_all or values.dtype == np.int32):
            return self._all_reduce(values, dist.ReduceOp.MAX)
        everyone = self._scratch.take("max", self.ranks * len(values), values.dtype)
        sent = self.all_gather(as_bytes(values), as_bytes(everyone))
        np.max(everyone.reshape(self.ranks, -1), axis=0, out=values)
        return sent

    def eager(self, dtype: np.dtype[Any]) -> int:
        """How many values of this type `max_eagerly` takes at most; `gather_eagerly` takes as many bytes."""
        if self._few:
            return EAGER_BYTES // dtype.itemsize
        return EAGER_WORDS if dtype == np.int32 else 0

    def max_eagerly(self, head: NDArray[np.int32], words: NDArray[Any]) -> int:
        """Both = the largest over the ranks, in place; all heads are as long, but words need not be.

        Where ranks have different numbers of words, these are meaningless afterwards: the head must show it.
        """
        if self._few:
            rows, sent = self.gather_eagerly(head, as_bytes(words))
            np.max(rows.view(words.dtype), axis=0, out=words)
            return sent
        padded = np.zeros(len(head) + EAGER_WORDS, np.int32)
        padded[: len(head)], padded[len(head) : len(head) + len(words)] = head, words
        sent = self.max(padded)
        head[:], words[:] = padded[: len(head)], padded[len(head) : len(head) + len(words)]
        return sent

    def gather_eagerly(self, head: NDArray[np.int32], message: Bytes) -> tuple[Bytes, int]:
        """Everyone's messages, which need not be as long, and the bytes sent; head = the largest. Few ranks only."""
        mine = np.concatenate([as_bytes(head), message])
        rows = self._scratch.take("eager", self.ranks * (head.nbytes + EAGER_BYTES)).reshape(self.ranks, -1)
        rows[self.rank, : len(mine)] = mine
        # gloo lets a message be shorter than the memory that waits for it.
        sent = self._swap([mine] * self.ranks, list(rows))
        np.max(rows[:, : head.nbytes].view(head.dtype), axis=0, out=head)
        return rows[:, head.nbytes : len(mine)], sent

    def sum(self, values: NDArray[Any]) -> int:
        """values = their sum over the ranks, in place."""
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def all_to_all(self, outbox: Bytes, sent: Sequence[int], inbox: Bytes, received: Sequence[int]) -> int:
        """Piece r of the outbox (sent[r] bytes) goes to rank r; the inbox holds pieces in rank order."""
        if self._is_elsewhere(inbox):
            host = np.empty(len(inbox), np.uint8)
            traffic = self.all_to_all(_host_of(outbox), sent, host, received)
            _tensor_of(inbox).copy_(torch.from_numpy(host))
            return traffic
        if self._point_to_point:
            given, taken = split(outbox, sent), split(inbox, received)
            taken[self.rank][:] = given[self.rank]
            return self._swap(given, taken)
        if not self.has_all_to_all:
            return self._all_to_all_by_sums(outbox, sent, inbox)
        there, here = self._to_device(inbox), self._to_device(outbox)
        dist.all_to_all_single(there, here, list(received), list(sent), group=self.group)
        self._from_device(inbox, there)
        return sum(sent) - sent[self.rank]

    def all_gather(self, mine: Bytes, everyone: Bytes, *, tag: int = MAIN) -> int:
        """everyone = the ranks' equally long pieces in rank order."""
        if self._few:
            rows = everyone.reshape(self.ranks, -1)
            rows[self.rank] = mine
            return self._swap([mine] * self.ranks, list(rows), tag)
        if not self.has_all_to_all:
            return self._all_gather_by_sums(mine, everyone)
        there, here = self._to_device(everyone), self._to_device(mine)
        self._gather(there, here)
        self._from_device(everyone, there)
        return len(mine) * (self.ranks - 1)

    def all_gather_varied(self, mine: Bytes, lengths: Sequence[int], everyone: Bytes, *, tag: int = MAIN) -> int:
        """everyone = a row for each rank, as long as the longest, which begins with its piece of this length.

        `mine` may lie there already.
        """
        if self._is_elsewhere(everyone):
            host = np.empty(len(everyone), np.uint8)
            traffic = self.all_gather_varied(_host_of(mine), lengths, host, tag=tag)
            _tensor_of(everyone).copy_(torch.from_numpy(host))
            return traffic
        pieces = rows_of(everyone, lengths)
        if not _overlap(mine, everyone):
            pieces[self.rank][:] = mine
        if self._few:
            return self._swap(pieces[self.rank : self.rank + 1] * self.ranks, pieces, tag)
        if not len(everyone):
            return 0
        # Not every backend takes input that is a part of its output.
        row: Any = self._scratch.take("row", max(lengths))
        if isinstance(mine, torch.Tensor):
            row = self._scratch.take_tensor("row", max(lengths), np.uint8, mine)
        row[: len(mine)] = mine
        return self.all_gather(row, everyone)

    def bit_or(self, words: NDArray[np.int64]) -> int:
        """words = the ranks' words, joined bit by bit, in place."""
        if self._point_to_point:
            return self._all_reduce(words, dist.ReduceOp.BOR)
        # Where int32 can only be summed, each word takes as many bits as their counts leave room for.
        width = self.ranks.bit_length()
        each = 31 // width
        flags = np.unpackbits(words.view(np.uint8), bitorder="little")
        lanes = np.zeros(-(-len(flags) // each) * each, np.int32)
        lanes[: len(flags)] = flags
        shifts = np.arange(each, dtype=np.int32) * width
        counts = (lanes.reshape(-1, each) << shifts).sum(axis=1, dtype=np.int32)
        sent = self.sum(counts)
        joined = (counts[:, None] >> shifts & (1 << width) - 1) > 0
        words[:] = np.packbits(joined.reshape(-1)[: len(flags)], bitorder="little").view(np.int64)
        return sent

    def all_reduce(self, tensor: torch.Tensor) -> int:
        """tensor = its sum over the ranks, in place and in its own dtype, with the bits of torch's own all-reduce."""
        there = tensor.to(self.device)
        self._reduce(there, dist.ReduceOp.SUM)
        if there is not tensor:
            tensor.copy_(there)
        return 2 * tensor.nbytes * (self.ranks - 1) // self.ranks

    def sums_in_one_hop(self, nbytes: int) -> bool:
        """Whether all ranks get this many bytes of everyone at once to sum them."""
        return self._few and 0 < nbytes <= ONE_HOP_BYTES

    def sum_small(self, tensor: torch.Tensor) -> int:
        """As `all_reduce`; small CPU tensors in one hop, added in the order of ranks."""
        if tensor.device.type != "cpu" or not self.sums_in_one_hop(tensor.nbytes):
            return self.all_reduce(tensor)
        total = tensor.detach()
        everyone = total.new_empty((self.ranks, *total.shape))
        everyone[self.rank] = total
        rows = everyone.view(self.ranks, -1).view(torch.uint8).numpy()
        sent = self._swap([rows[self.rank]] * self.ranks, list(rows))
        add_rows(everyone, total)
        return sent

    def _swap(self, given: Sequence[NDArray[Any]], taken: Sequence[NDArray[Any]], tag: int = MAIN) -> int:
        """Piece r goes to rank r, and one comes from there, all at once.

        gloo announces a receiver on the connection that carries its own data. So all receivers are announced
        before anything is sent, or the two directions would take turns, as they do in gloo's own all-to-all.
        """
        group, peers = self.group, [(self.rank + shift) % self.ranks for shift in range(1, self.ranks)]
        works = [group.recv([_tensor_of(taken[peer])], peer, tag) for peer in peers if len(taken[peer])]
        works += [group.send([_tensor_of(given[peer])], peer, tag) for peer in peers if len(given[peer])]
        for work in works:
            work.wait()
        return sum(given[peer].nbytes for peer in peers)

    def _all_gather_by_sums(self, mine: Bytes, everyone: Bytes) -> int:
        """Where a plain SUM is all there is: each rank adds its bytes to zeros, for `ranks` times the traffic."""
        words = -(-len(mine) // 4)
        rows = np.zeros((self.ranks, 4 * words), np.uint8)
        rows[self.rank, : len(mine)] = mine
        sent = self.sum(rows.reshape(-1).view(np.int32))
        everyone.reshape(self.ranks, -1)[:] = rows[:, : len(mine)]
        return sent

    def _all_to_all_by_sums(self, outbox: Bytes, sent: Sequence[int], inbox: Bytes) -> int:
        sizes = np.zeros((self.ranks, self.ranks), np.int32)
        sizes[self.rank] = sent
        traffic = self.sum(sizes.reshape(-1))
        lengths = sizes.sum(axis=1).tolist()
        everyone = np.empty(self.ranks * max(lengths), np.uint8)
        traffic += self.all_gather_varied(outbox, lengths, everyone)
        theirs = zip(rows_of(everyone, lengths), sizes.tolist(), strict=True)
        np.concatenate([split(whole, row)[self.rank] for whole, row in theirs], out=inbox)
        return traffic

    def _all_reduce(self, values: NDArray[Any], op: dist.ReduceOp.RedOpType) -> int:
        tensor = self._to_device(values)
        self._reduce(tensor, op)
        self._from_device(values, tensor)
        return 2 * values.nbytes * (self.ranks - 1) // self.ranks

    def _reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        dist.all_reduce(tensor, op=op, group=self.group)

    def _gather(self, everyone: torch.Tensor, mine: torch.Tensor) -> None:
        _all_gather(everyone, mine, group=self.group)

    def _is_elsewhere(self, data: Any) -> bool:
        """Whether this is in a GPU's memory, where the group's backend cannot reach it."""
        return isinstance(data, torch.Tensor) and data.device.type != self.device.type

    def _to_device(self, array: NDArray[Any]) -> torch.Tensor:
        return _tensor_of(array).to(self.device)  # no copy where the group works on the memory that it is in

    def _from_device(self, array: NDArray[Any], tensor: torch.Tensor) -> None:
        own = _tensor_of(array)
        if own.data_ptr() != tensor.data_ptr():
            own.copy_(tensor)


def _tensor_of(data: Any) -> torch.Tensor:
    return data if isinstance(data, torch.Tensor) else torch.from_numpy(data)


def _host_of(data: Any) -> Bytes:
    held: Bytes = data.cpu().numpy() if isinstance(data, torch.Tensor) else data
    return held


def _overlap(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return np.may_share_memory(a, b)
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


def as_bytes(array: NDArray[Any]) -> Bytes:
    """The array's memory."""
    return array.reshape(-1).view(np.uint8)


def split(data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
    """Pieces of these lengths, one after another."""
    ends = list(accumulate(lengths))
    return [data[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def add_rows(everyone: torch.Tensor, total: torch.Tensor) -> None:
    """total = the sum of everyone's values, in the order of ranks and so with the same bits at all of them."""
    total.copy_(everyone[0])
    for theirs in everyone[1:]:
        total += theirs


def rows_of(everyone: Bytes, lengths: Sequence[int]) -> list[Bytes]:
    """Pieces of these lengths, each at the beginning of a row as long as the longest."""
    return [row[:length] for row, length in zip(everyone.reshape(len(lengths), -1), lengths, strict=True)]

"""The route of gradients that name their rows, as those of nn.Embedding(sparse=True) do: nothing is made dense.

Every rank sends its rows to their owners, who add them and send the union to all; or, where the union has hardly fewer
rows than the ranks together, straight to all, who add for themselves. Both give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Wire, as_bytes
from sumwire.aggregate.round import Round, Route
from sumwire.codec.base import same
from sumwire.codec.rows import rows as coding
from sumwire.codec.rows.rows import Rows
from sumwire.codec.sparse.segment import KINDS
from sumwire.codec.tensors import flatten
from sumwire.kernels import sparse as kernels

Bytes = NDArray[np.uint8]


@dataclass(eq=False)
class _Luggage:
    table: int
    width: int
    dtype: np.dtype[np.generic]
    data: Bytes
    """This rank's rows: to all, or owner by owner."""
    sent_rows: NDArray[np.int64]
    """Of these, for each owner."""
    received: NDArray[np.int64]
    """Rows of every rank for this one: all, if they come straight."""
    straight: bool
    """To all at once."""
    sent: int
    plain: int
    """Bytes that torch's own way, everyone's rows to everyone with 8-byte numbers, would send."""
    sums: list[Rows] = field(default_factory=list)

    def read(self, data: Bytes, edges: NDArray[np.int64]) -> list[Rows]:
        """What so many rows behind one another are."""
        each = coding.row_bytes(self.table, self.width, self.dtype)
        return [coding.read(part, self.table, self.width, self.dtype) for part in np.split(data, edges * each)]


class RowsRoute(Route):
    """Law: every rank gets the bits of the dense float32 sum in rank order over float32(ranks), in sparse layout."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def join(self, job: Round, wire: Wire) -> None:
        with job.meter.time("encode"):
            rows, table = _rows_of(job.host)
            # What all must have alike, and how many rows there are.
            shape = [table, rows.values.shape[1], KINDS.index(rows.values.dtype)]
            mine = np.array([*shape, len(rows.numbers)], np.int64)
        with job.meter.time("exchange"):
            everyone = np.empty((wire.ranks, len(mine)), np.int64)
            sent = wire.all_gather(as_bytes(mine), as_bytes(everyone))
        for other in everyone:
            same("rows, values of each and their kind", shape, other[: len(shape)].tolist(), "average")
        received = np.ascontiguousarray(everyone[:, -1])
        straight = _straight(received, table)
        with job.meter.time("encode"):
            owner = coding.owners(rows.numbers, wire.ranks)
            parts = [rows] if straight else coding.split(rows, owner, wire.ranks)
            data = np.concatenate([coding.write(part, table) for part in parts])
            counts = np.array([len(part.numbers) for part in parts], np.int64)
        if not straight:
            with job.meter.time("exchange"):
                each = [counts.itemsize] * wire.ranks
                sent += wire.all_to_all(as_bytes(counts), each, as_bytes(received), each)
        plain = (wire.ranks - 1) * (rows.values.nbytes + rows.numbers.nbytes)
        width, dtype = rows.values.shape[1], rows.values.dtype
        job.luggage = _Luggage(table, width, dtype, data, counts, received, straight, sent, plain)

    def exchange(self, job: Round, wire: Wire) -> None:
        bag: _Luggage = job.luggage
        each = coding.row_bytes(bag.table, bag.width, bag.dtype)
        received = (each * bag.received).tolist()
        inbox = job.take("inbox", sum(received))
        with job.meter.time("exchange"):
            if bag.straight:
                bag.sent += wire.all_gather_varied(bag.data, received, inbox)
            else:
                bag.sent += wire.all_to_all(bag.data, (each * bag.sent_rows).tolist(), inbox, received)
        with job.meter.time("add"):
            bag.sums = [coding.add(bag.read(inbox, np.cumsum(bag.received)[:-1]))]

    def share(self, job: Round, wire: Wire) -> None:
        bag: _Luggage = job.luggage
        if bag.straight:
            return
        with job.meter.time("exchange"):
            mine, counts = coding.write(bag.sums[0], bag.table), np.empty(wire.ranks, np.int64)
            bag.sent += wire.all_gather(as_bytes(np.array([len(bag.sums[0].numbers)], np.int64)), as_bytes(counts))
            bag.dtype = np.dtype(np.float32)  # whatever the rows were, their sums are
            lengths = (coding.row_bytes(bag.table, bag.width, bag.dtype) * counts).tolist()
            everyone = job.take("everyone", sum(lengths))
            bag.sent += wire.all_gather_varied(mine, lengths, everyone)
        bag.sums = bag.read(everyone, np.cumsum(counts)[:-1])

    def decode(self, job: Round) -> None:
        bag: _Luggage = job.luggage
        with job.meter.time("decode"):
            total = coding.merge(bag.sums)
            mean = kernels.divide(np.asarray(total.values, np.float32), self._ranks)
            if job.keep is not None:
                job.keep(_like(job.tensor, total.numbers, torch.from_numpy(mean)))
        job.meter.add(job.tensor.numel(), bag.sent, bag.plain)


def takes(tensor: torch.Tensor) -> bool:
    """Whether this is rows of values that can be summed in float32 without loss."""
    return tensor.layout == torch.sparse_coo and tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)


def _rows_of(tensor: torch.Tensor) -> tuple[Rows, int]:
    """Its rows, each once, and how many there could be."""
    tensor = tensor.coalesce()
    shape, dims = tuple(tensor.shape), tensor.sparse_dim()
    numbers = np.ravel_multi_index(tuple(tensor.indices().numpy()), shape[:dims])
    values, _ = flatten(tensor.values())
    table = int(np.prod(shape[:dims], dtype=np.int64))
    width = int(np.prod(shape[dims:], dtype=np.int64))
    return Rows(np.asarray(numbers, np.int64), values.reshape(len(numbers), width)), table


def _like(tensor: torch.Tensor, numbers: NDArray[np.int64], values: torch.Tensor) -> torch.Tensor:
    """Rows in the shape, dtype and place of the tensor."""
    shape, dims = tuple(tensor.shape), tensor.sparse_dim()
    indices = torch.from_numpy(np.stack(np.unravel_index(numbers, shape[:dims])).astype(np.int64))
    values = values.reshape(len(numbers), *shape[dims:]).to(tensor.dtype)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False).to(tensor.device)


def _straight(own: NDArray[np.int64], table: int) -> bool:
    """Whether rows straight to all are fewer, if ranks choose theirs independently; all ranks say the same.

    Of its own c rows, a rank sends n-1 copies; or all but those that it owns, and its share of the union to all others.
    """
    union = table * (1 - np.prod(1 - own / max(1, table)))
    return bool(len(own) * own.mean() <= own.mean() + union)

"""A torch process group (gloo, NCCL, MPI) as an aggregator: nobody decompresses on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal

import torch
import torch.distributed as dist

from sumwire.aggregate.base import Aggregator, Workspace
from sumwire.aggregate.group import cost
from sumwire.aggregate.group.agreement import agree, explained, join, random_number
from sumwire.aggregate.group.communicator import Communicator
from sumwire.aggregate.group.duplicate import device_backend, duplicate
from sumwire.aggregate.group.exchange import Exchange, all_reduce_mean
from sumwire.codec.algebra import Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.tensors import Tensor, size_of
from sumwire.errors import ConfigError

Algorithm = Literal["auto", "sharded", "packed"]
ALGORITHMS: tuple[Algorithm, ...] = ("auto", "sharded", "packed")

FIRST_ROUNDS = 1 << 32
"""First rounds are below: enough that nobody can prepare tensors for one's random numbers."""


class Group(Aggregator):
    """Averages over the ranks of a process group. All ranks must build it together.

    Cost per rank for N coordinates: sharded, N (b + w) / 8 bytes times (n-1)/n for an all-to-all of b-bit payloads and
    an all-gather of w-bit sums; packed, one int32 all-reduce of words that hold several lanes each.

    Parameters
    ----------
    codec
        What `average` uses by default, built for as many workers as the group has ranks.
    group
        The process group; default: the whole world.
    algorithm
        "sharded": each rank adds its shard and all gather the sums. "packed": a plain SUM of int32 words, for whatever
        can do only that. "auto": sharded where the backend has an all-to-all; and `pays` says no for tensors so small
        that an all-reduce is faster.
    backend
        Of the communicators; default: the group's own for CPU tensors, else gloo.
    device
        Where tensors will be. If that is a GPU and Triton is installed, payloads stay there and travel by the group's
        own backend for it. Terms, of a few bytes per block, go through the host, unless rounds are `in_order`.
    in_order
        Each round ends before the next begins, and their order is the same on all ranks. Then terms are joined by the
        backend of payloads. Otherwise they have a communicator of their own, so that the terms of a round may travel
        beside the payloads of another one: NCCL would deadlock if ranks began the two in different orders.
    settings
        Further things that must agree between the ranks, which is checked by name before anything else is sent.

    Examples
    --------
    >>> import torch.distributed as dist                                    # doctest: +SKIP
    >>> dist.init_process_group("gloo")                                     # doctest: +SKIP
    >>> with Group(sumwire.Lattice(dist.get_world_size())) as group:        # doctest: +SKIP
    ...     mean = group.average(gradient)
    """

    def __init__(
        self,
        codec: Codec,
        group: dist.ProcessGroup | None = None,
        *,
        algorithm: Algorithm = "auto",
        backend: str | None = None,
        device: torch.device | None = None,
        in_order: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        if algorithm not in ALGORITHMS:
            raise ConfigError(f"algorithm={algorithm!r} is not one of {', '.join(ALGORITHMS)}")
        self.codec = codec
        self._joining = self._communicator("joining", group, backend)
        self._adding = self._joining  # until all agree by which backend payloads travel
        self.rank, self.workers = self._joining.rank, self._joining.ranks
        try:
            adding = backend or device_backend(group, device)
            mine = {"workers": codec.workers, "algorithm": algorithm, "backend": backend, **(settings or {})}
            mine |= {"backend of payloads": adding}
            # Options first: the name of a family, which follows from them, says little to a reader.
            named = codec.description() | {"form of sums": codec.sum_form, "codec family": codec.family}
            agree(self._joining, mine | named)
            if codec.workers != self.workers:
                raise ConfigError(
                    f"the codec was built for workers={codec.workers}, the group has {self.workers} ranks: build it "
                    f"with workers={self.workers}"
                )
            self._adding = self._communicator("adding", group, adding)
            # Last, because all wait for all in it: a rank that closed its communicators while another one still
            # connects to them would fail that one.
            self.session = random_number(self._joining)
            """A random number that all ranks share."""
            self._terms = self._adding if in_order and adding is not None else self._joining
        except BaseException:
            self.close()
            raise
        self._chosen = algorithm != "auto"
        self._sharded = algorithm == "sharded" or (algorithm == "auto" and self._adding.has_all_to_all)
        self.carries_tensors = self._sharded
        self._exchange = Exchange(self._adding)
        self._next = self.session % FIRST_ROUNDS

    def _communicator(self, purpose: str, group: dist.ProcessGroup | None, backend: str | None) -> Communicator:
        """Of the group's ranks: one is for terms, another one for payloads and sums."""
        return duplicate(group, 1, backend)[0]

    def next_round(self) -> int:
        self._next += 1
        return self._next - 1

    def prepare(self, codec: Codec) -> Codec:
        return codec.for_owners(self.workers) if self._sharded else codec.for_plain_sums()

    def pays(self, codec: Codec, size: int) -> bool:
        return self.workers > 1 and (self._chosen or cost.pays(codec, self.workers, size))

    def join(self, terms: Terms, *, round_id: int, workspace: Workspace | None = None) -> Terms:
        return self._join(terms, None, round_id, workspace)

    def takes_along(self, nbytes: int) -> bool:
        return self._terms.sums_in_one_hop(nbytes)

    def join_along(
        self, terms: Terms, values: torch.Tensor, *, round_id: int, workspace: Workspace | None = None
    ) -> Terms:
        return self._join(terms, values.mul_(1.0 / self.workers), round_id, workspace)

    def _join(self, terms: Terms, along: torch.Tensor | None, round_id: int, workspace: Workspace | None) -> Terms:
        statistics = (workspace or Workspace()).statistics
        with self._explained(round_id, terms.size), statistics.time("exchange"):
            joined, sent = join(self._terms, terms, round_id, along)
            statistics.add_sent(sent)
        return joined

    def add(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        work = workspace or Workspace()
        with self._explained(payload.round_id, payload.terms.size):
            if not self._sharded:
                total = self._exchange.add_summands(payload, work)
                if total is not None:
                    return total
            return self._exchange.add(payload, work)

    def begin_add(self, payload: Payload, *, workspace: Workspace | None = None) -> Callable[[], Sum]:
        work = workspace or Workspace()
        if not self._sharded:
            return super().begin_add(payload, workspace=work)
        with self._explained(payload.round_id, payload.terms.size):
            rest = self._exchange.begin_add(payload, work)

        def finish() -> Sum:
            with self._explained(payload.round_id, payload.terms.size):
                return rest()

        return finish

    def add_shard(self, payload: Payload, *, workspace: Workspace | None = None) -> Sum:
        with self._explained(payload.round_id, payload.terms.size):
            return self._exchange.add_shard(payload, workspace or Workspace())

    def average_exactly(
        self, x: Tensor, *, round_id: int, out: Tensor | None = None, workspace: Workspace | None = None
    ) -> Tensor:
        """By a plain all-reduce, with the bits of DDP's own."""
        return self._all_reduce(self._adding, x, round_id, out, workspace)

    def sums_on(self, device: torch.device) -> bool:
        return device.type != "cpu" and self._adding.device.type == device.type

    def average_ahead(
        self, x: Tensor, *, round_id: int, out: Tensor | None = None, workspace: Workspace | None = None
    ) -> Tensor | None:
        if isinstance(x, torch.Tensor) and self.sums_on(x.device):
            return None  # by the backend of payloads, and so in their order
        # By the communicator that joins: small tensors would otherwise wait for large payloads, and these for them.
        return self._all_reduce(self._joining, x, round_id, out, workspace)

    def _all_reduce(
        self, communicator: Communicator, x: Tensor, round_id: int, out: Tensor | None, workspace: Workspace | None
    ) -> Tensor:
        statistics = (workspace or Workspace()).statistics
        with self._explained(round_id, size_of(x)), statistics.time("exchange"):
            mean, sent = all_reduce_mean(communicator, x, out)
            statistics.add_sent(sent)
        return mean

    def check_settings(self, settings: Mapping[str, object]) -> None:
        with self._explained(0, 0):
            agree(self._joining, settings)

    def close(self) -> None:
        for communicator in {self._joining, self._adding}:
            communicator.close()

    def _explained(self, round_id: int, size: int) -> AbstractContextManager[None]:
        return explained(
            f"round {round_id} of {size} values failed at rank {self.rank}",
            "Probably another rank has died or hangs; no parameter was changed: restart from the last checkpoint",
        )

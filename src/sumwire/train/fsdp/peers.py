"""The ranks between which a collective runs: those of a replica, or those that have the same shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.agreement import explained
from sumwire.aggregate.group.group import FIRST_ROUNDS, Algorithm, Group
from sumwire.codec.base import Codec
from sumwire.train.connection import ALL_ATTACH


@dataclass(eq=False)
class Peers:
    """The ranks of a collective, and what all units have in common that use it between the same ranks."""

    group: Group
    codec: Codec
    first_call: int
    """Where calls begin to count for random numbers: the same at all ranks."""
    workspace: Workspace = field(default_factory=Workspace)


class PeersByRanks:
    """One `Peers` for each set of ranks, built when first asked for: by all of these ranks together."""

    def __init__(
        self, choose: Callable[[int], Codec], settings: Mapping[str, object], algorithm: Algorithm, seed: int | None
    ) -> None:
        self._choose, self._settings, self._algorithm = choose, settings, algorithm
        self._repeatable = seed is not None
        self._by_ranks: dict[tuple[int, ...], Peers] = {}

    @property
    def made(self) -> Iterable[Peers]:
        return self._by_ranks.values()

    def of(self, group: dist.ProcessGroup, device: torch.device) -> Peers:
        """Those of this process group, whose gradients are on this device."""
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._by_ranks:
            codec = self._choose(len(ranks))
            with explained(*ALL_ATTACH):
                made = Group(
                    codec, group, algorithm=self._algorithm, device=device, in_order=True, settings=self._settings
                )
            first = 0 if self._repeatable else made.session % FIRST_ROUNDS >> 4
            self._by_ranks[ranks] = Peers(made, codec, first)
        return self._by_ranks[ranks]

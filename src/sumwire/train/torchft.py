"""torchft over Sumwire: a process group that its `Manager` makes anew whenever replicas come and go.

torchft's own quantization needs CUDA and Triton, and silently sends uncompressed without them; this runs on CPUs.
It needs torchft, a dependency of no extra: `pip install torchft-nightly`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from sumwire.train.process_group.group import SumwireGroup
from sumwire.train.process_group.options import make_options

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError:
    raise ImportError("sumwire.train.torchft needs torchft: pip install torchft-nightly") from None

_QUORUM_BITS, _RANK_BITS, _ROUND_BITS = 23, 14, 26
"""Of a seeded round's number: they leave the highest one, which marks a second exchange."""


class ProcessGroupSumwire(ProcessGroupWrapper):  # type: ignore[misc]  # torchft may not be installed
    """For torchft's `Manager`, `LocalSGD` and `DiLoCo`: large sums of floats between replicas are compressed.

    Law: as of backend "sumwire" (docs/process-group.md), between the replicas of a quorum. A replica that does not
    participate, because it is a spare or still heals, sends zeros, and the manager divides by those that do: so means
    are those of the participants. A replica that dies fails its rounds at all others; the manager does not commit the
    step, and calls `reconfigure`, which ends all threads and makes another group. Rounds of different quorums have
    different random numbers. Cost: as of the backend; a change of quorum connects three gloo groups instead of one.

    Parameters
    ----------
    timeout
        That a collective, or meeting the other replicas, may take.
    options
        Those of `GroupOptions`.

    Examples
    --------
    >>> group = ProcessGroupSumwire(timedelta(seconds=30), bits=4)                     # doctest: +SKIP
    >>> manager = torchft.Manager(pg=group, min_replica_size=2, ...)                   # doctest: +SKIP
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), **options: Any) -> None:
        self._options = make_options(**options)
        super().__init__(timeout)

    def _create_pg(self, store: Store, rank: int, world_size: int) -> SumwireGroup:
        first = None if self._options.seed is None else self._first_round()
        return SumwireGroup(store, rank, world_size, self._timeout, self._options, first_round=first)

    def _first_round(self) -> int:
        """One for each quorum and rank of a replica, so that no random numbers come twice."""
        quorum = (self._uuid or 0) % (1 << _QUORUM_BITS)
        return (quorum << _RANK_BITS | (self._group_rank or 0) % (1 << _RANK_BITS)) << _ROUND_BITS

    def errored(self) -> BaseException | None:
        """What ended the rounds of this quorum, if anything did."""
        return None if self._pg is None else self._pg.error

    def shutdown(self) -> None:
        if self._pg is not None:
            self._pg.shutdown()
        super().shutdown()

    def getBackendName(self) -> str:
        return "torchft-sumwire"

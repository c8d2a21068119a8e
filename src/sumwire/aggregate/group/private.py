"""A `Group` of ranks that meet in a store, for whoever is a process group itself: torch does not know its groups."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from sumwire.aggregate.base import Workspace
from sumwire.aggregate.group.communicator import Communicator
from sumwire.aggregate.group.group import Group
from sumwire.codec.base import Codec
from sumwire.errors import RoundError


class PrivateCommunicator(Communicator):
    """Over a gloo backend of its own. It calls that directly: torch's functions want groups that torch has made."""

    def __init__(self, store: Store, rank: int, ranks: int, timeout: timedelta) -> None:
        backend: Any = dist.ProcessGroupGloo(store, rank, ranks, timeout=timeout)  # has what is asked of a group
        super().__init__(backend, "gloo", torch.device("cpu"))

    @property
    def group(self) -> Any:
        if self._group is None:
            raise RoundError("closed: this process group has been destroyed or aborted; make another one")
        return self._group

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on, a collective may take so long."""
        self.group._set_default_timeout(timeout)

    def close(self) -> None:
        """Fail whoever still waits for another rank, and end the threads."""
        backend: Any = self._group
        self._group = None
        with suppress(RuntimeError, AttributeError):  # older torch cannot: they wait until their timeout
            backend.abort()

    def _reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
        options: Any = dist.AllreduceOptions()
        options.reduceOp = op
        self.group.allreduce([tensor], options).wait()

    def _gather(self, everyone: torch.Tensor, mine: torch.Tensor) -> None:
        self.group._allgather_base(everyone, mine).wait()


class PrivateGroup(Group):
    """Averages over ranks that meet in a store. All of them must build it together.

    Parameters
    ----------
    codec
        Built for as many workers as there are ranks.
    store
        That of a process group, say; where nobody else uses the keys "joining" and "adding".
    rank, timeout
        Of this process; and how long a collective may take.
    settings
        Further things that must agree between the ranks.
    """

    def __init__(
        self,
        codec: Codec,
        store: Store,
        *,
        rank: int,
        timeout: timedelta,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._meeting = store, rank, timeout
        self._timeout = timeout
        super().__init__(codec, settings=settings)

    def _communicator(self, purpose: str, group: dist.ProcessGroup | None, backend: str | None) -> Communicator:
        store, rank, timeout = self._meeting
        return PrivateCommunicator(PrefixStore(purpose, store), rank, self.codec.workers, timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on, a collective may take so long."""
        if timeout == self._timeout:
            return
        self._timeout = timeout
        for each in (self._joining, self._adding):
            assert isinstance(each, PrivateCommunicator)
            each.set_timeout(timeout)

    def sum_exactly(self, tensor: torch.Tensor, *, round_id: int, workspace: Workspace) -> None:
        """tensor = its sum over the ranks, in place and in its own dtype, with the bits of gloo's all-reduce."""
        with self._explained(round_id, tensor.numel()), workspace.statistics.time("exchange"):
            workspace.statistics.add_sent(self._joining.all_reduce(tensor))

"""Which aggregator averages a model's gradients: its process group, or a parameter server.

At a server every model has a job of its own: no two models, of one training or of several, share rounds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.connect import connect
from sumwire.aggregate.group.agreement import agree, explained, random_number
from sumwire.aggregate.group.communicator import Communicator
from sumwire.aggregate.group.duplicate import duplicate
from sumwire.aggregate.group.group import FIRST_ROUNDS, Group
from sumwire.aggregate.rounds import RoundsInFlight
from sumwire.codec.base import Codec
from sumwire.errors import ConfigError
from sumwire.train.options import Settings

_models: dict[tuple[str, str], int] = {}
"""How many this process has had, by server and job."""
_lent: weakref.WeakSet[Aggregator] = weakref.WeakSet()
"""Links of users that a model is attached to."""

ALL_ATTACH = (
    "not every rank took part in attach",
    "All ranks of the process group must attach the same models in the same order; did one skip it, or die before?",
)
"""What probably went wrong where torch only names a missing key of its store, and the remedy."""

_NOT_SHARED = ("log", "token", "tls", "server", "codec", "algorithm", "job", "rank", "workers")
"""Settings that ranks may have different, or that are compared in another way."""


@dataclass(frozen=True)
class Connection:
    """The aggregator of one model."""

    rounds: RoundsInFlight
    codec: Codec
    first_step: int
    """A random number that all ranks share."""
    next_round: int = 0
    """Where an aggregator wants rounds in ascending order."""
    behind: bool = False
    """Whether the job is in progress already."""
    give_back: Callable[[], None] | None = None
    """Returns a link that the user lent."""

    def end(self, patience: float | None) -> None:
        """Finish the rounds in flight, or give up on them after `patience` seconds; then close what was opened."""
        self.rounds.end(patience)
        if self.give_back is not None:
            self.give_back()


def connect_model(
    settings: Settings, group: dist.ProcessGroup | None, device: torch.device | None = None
) -> Connection:
    """The aggregator for a model, on this device, and its codec.

    All ranks come here together, unless they were given their ranks.
    """
    if settings.rank is not None and settings.workers is not None:
        return _over_link(settings, settings.choose(settings.workers), settings.rank, settings.workers, settings.job)
    parent = group if group is not None else dist.group.WORLD
    codec = settings.choose(dist.get_world_size(parent))
    shared: dict[str, object] = {
        name: getattr(settings, name) for name in settings.__dataclass_fields__ if name not in _NOT_SHARED
    }
    shared |= {"server": settings.server is not None, "feedback": codec.feedback}
    if settings.server is None:
        with explained(*ALL_ATTACH):
            process_group = Group(codec, parent, algorithm=settings.algorithm, device=device, settings=shared)
        return Connection(RoundsInFlight(process_group), codec, process_group.session % FIRST_ROUNDS)
    with explained(*ALL_ATTACH):
        [communicator] = duplicate(parent, 1, None)
    try:
        agree(communicator, shared | codec.description() | {"codec family": codec.family})
        job = _job_name(settings, communicator, random_number(communicator))
        return _over_link(settings, codec, communicator.rank, communicator.ranks, job)
    finally:
        communicator.close()


def _over_link(settings: Settings, codec: Codec, rank: int, workers: int, job: str | None) -> Connection:
    link, give_back = settings.server, None
    if isinstance(link, Aggregator):
        if link in _lent:
            raise ConfigError(
                "this link carries another model already, and rounds of two models would meet: give each a link of "
                "its own, with a job=... of its own, or the server's address"
            )
        give_back = partial(_lent.discard, link)
    else:
        assert link is not None
        named = {} if settings.by_packets else {"job": job, "tls": settings.tls}
        link = connect(link, rank=rank, workers=workers, token=settings.token, codec=codec, **named).open()
    first, upcoming = link.first_round, link.upcoming  # which fail where the server is gone
    if give_back is not None:
        _lent.add(link)
    return Connection(
        RoundsInFlight(link, lent=give_back is not None),
        link.prepare(codec),
        first % FIRST_ROUNDS,
        upcoming,
        upcoming > first and give_back is None,
        give_back,
    )


def _job_name(settings: Settings, communicator: Communicator, session: int) -> str:
    server, job = settings.server, settings.job
    if job is None or not isinstance(server, str):
        return f"train-{session:x}"  # nobody else's, wherever they train
    # Never used again: at other ranks a model that was closed here may still be there.
    number = np.array([_models.get((server, job), 0)], np.int32)
    communicator.max(number)
    _models[server, job] = int(number[0]) + 1
    return f"{job}#{number[0] + 1}" if number[0] else job

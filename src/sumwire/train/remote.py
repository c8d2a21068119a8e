"""A model's own job at a parameter server: no two models, of one training or of several, share rounds."""

from __future__ import annotations

import ssl
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from sumwire.aggregate.client import Link, connect
from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.group.consistency import largest
from sumwire.errors import ConfigError

_models: dict[tuple[str, str], int] = {}
"""How many this process has had, by server and job."""
_lent: weakref.WeakSet[Link] = weakref.WeakSet()
"""Links of users that a model is attached to."""


@dataclass(frozen=True)
class Remote:
    """Which parameter server adds a model's payloads: an address, and the options of `connect`; or an open link."""

    server: str | Link | None
    job: str | None
    token: str = field(repr=False)
    tls: ssl.SSLContext | None

    def __post_init__(self) -> None:
        if not isinstance(self.server, str | Link | None):
            raise ConfigError(f'server={self.server!r} is neither "host:port" nor an open Link')
        given = [name for name in ("job", "token", "tls") if getattr(self, name)]
        if given and not isinstance(self.server, str):
            what = "an open Link, which has its own" if self.server is not None else "no server"
            raise ConfigError(f'{given[0]}=... goes with server="host:port", and there is {what}')

    def link(self, stack: ExitStack) -> Link | Callable[[Wire, int], Link] | None:
        """What `Collective` takes; the stack closes what is opened, or gives back what was lent."""
        if not isinstance(self.server, Link):
            return None if self.server is None else lambda wire, session: self._open(stack, wire, session)
        if self.server in _lent:
            raise ConfigError(
                "this link carries another model already, and rounds of two models would meet: give each a link of its "
                "own, with a job=... of its own, or the server's address"
            )
        _lent.add(self.server)
        stack.callback(_lent.discard, self.server)
        return self.server

    def _open(self, stack: ExitStack, wire: Wire, session: int) -> Link:
        assert isinstance(self.server, str)
        job = self.job
        if job is None:
            job = f"train-{session:x}"  # nobody else's, wherever they train
        else:
            mine = (self.server, job)
            # Never used again: at other ranks a model that was closed here may still be there.
            number = largest(wire, _models.get(mine, 0))
            _models[mine] = number + 1
            job = f"{job}#{number + 1}" if number else job
        link = connect(self.server, rank=wire.rank, workers=wire.ranks, job=job, token=self.token, tls=self.tls)
        return stack.enter_context(link)

"""A worker's side of the parameter server."""

from __future__ import annotations

from typing import Any

from sumwire.aggregate.client.async_link import AsyncLink
from sumwire.aggregate.client.link import Link

__all__ = ["AsyncLink", "Link", "connect"]


def connect(address: str, *, rank: int, workers: int, **options: Any) -> Link:
    """A worker's link to the server at "host:port". It connects when it is first used; close it, or use `with`.

    >>> import numpy as np, sumwire
    >>> with sumwire.Server(workers=1) as server, connect(server.address, rank=0, workers=1) as link:
    ...     link.average(np.full(4, 2.5, np.float32), codec=sumwire.Sparse(1))
    array([2.5, 2.5, 2.5, 2.5], dtype=float32)

    rank       of this worker, 0..workers-1
    workers    of the job, the same as the server's
    job        name of the job (default "default"): rounds of different jobs never meet
    token      the server's
    tls        an ssl.SSLContext, e.g. of `sumwire.aggregate.protocol.tls.worker_context`
    codec      of `average` (default `Lattice(workers)`)
    timeout    seconds to wait for a server that is not there
    retry      seconds after which the server is asked what is missing
    """
    return Link(address, rank=rank, workers=workers, **options)

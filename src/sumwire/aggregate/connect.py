"""`connect`: a worker's link to whatever aggregator is at an address."""

from __future__ import annotations

from typing import Any

from sumwire.aggregate.client.link import Link
from sumwire.aggregate.network.greeting import SCHEME
from sumwire.aggregate.network.link import PacketLink
from sumwire.aggregate.network.rack import RackLink


def connect(address: str, *, rank: int, workers: int, **options: Any) -> Link | PacketLink | RackLink:
    """A worker's link to the server at "host:port", or to an aggregator in the network at "udp://host:port/job".

    It connects when it is first used; close it, or use `with`.

    >>> import numpy as np, sumwire
    >>> with sumwire.Server(workers=1) as server, connect(server.address, rank=0, workers=1) as link:
    ...     link.average(np.full(4, 2.5, np.float32), codec=sumwire.Sparse(1))
    array([2.5, 2.5, 2.5, 2.5], dtype=float32)

    rank       of this worker, 0..workers-1
    workers    of the job, the same as the server's
    token      the server's; of a job in the network, its secret
    codec      of `average` (default `Lattice(workers)`)
    timeout    seconds to wait for a server, or for other workers, that are not there

    To a server only:

    job        name of the job (default "default"): rounds of different jobs never meet
    tls        an ssl.SSLContext, e.g. of `sumwire.aggregate.protocol.tls.worker_context`
    retry      seconds after which the server is asked what is missing

    By packets only:

    loss       "reliable" (default): what is lost is sent again, and sums are exact; "lossy": what of a Lattice is
               missing at the aggregator's deadline counts as not arrived
    rate       bits per second to send at most (default: as fast as windows allow)

    By packets within a rack, below a server (see docs/in-network.md):

    ranks             first and last rank of this worker's rack; `workers` counts those of all racks
    upstream          "host:port" of the server that adds the racks
    upstream_token    the server's
    upstream_options  more of what a link to a server takes: job, tls
    """
    if address.startswith(SCHEME) and "upstream" in options:
        return RackLink(address, rank=rank, workers=workers, **options)
    if address.startswith(SCHEME):
        return PacketLink(address, rank=rank, workers=workers, **options)
    return Link(address, rank=rank, workers=workers, **options)

"""Worker hosts joined through a switch that adds their packets on the way."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.switch.switch import Switch
from sumwire.lab.links import Network, format_rate
from sumwire.lab.namespaces import inside
from sumwire.lab.testbed import Impairment, switched_network

JOB = 1
_PLACES = {
    "tc": "the kernel (TC)",
    "xdp": "the kernel (XDP)",
    "generic": "the kernel (generic XDP)",
    "user": "a process",
}


@contextmanager
def switched_links(
    workers: int,
    rate: float | None,
    *,
    mode: Literal["tc", "xdp", "generic", "user"] = "tc",
    impairment: Impairment | None = None,
    deadline: float | None = None,
) -> Iterator[Network]:
    """Hosts as `links` gives them, and an aggregator between them, for the duration of the context.

    Raises `SwitchError` where this machine does not permit that; the message says what is missing.

    Parameters
    ----------
    workers, rate
        As in `links`.
    mode
        Where the switch adds. By XDP, packets to workers pass by the filters that limit rates.
    impairment
        What links do to packets, in each direction.
    deadline
        Seconds after which the switch completes a chunk without those missing: what a lossy link needs.
    """
    with switched_network(workers, rate=rate, impairment=impairment) as bed:
        peers = tuple(host.address for host in bed.hosts)
        job = JobOptions(number=JOB, secret=secrets.token_hex(16), peers=peers, deadline=deadline)
        switch = Switch(bed.ports, [job], address=bed.switch.address, mode=mode)
        try:
            inside(bed.switch_pid, switch.start)
            limit = "unshaped links" if rate is None else f"links limited to {format_rate(rate)} by tbf"
            bad = ", ".join(f"{share:.1%} {what}" for what, share in vars(impairment).items()) if impairment else ""
            note = f"{workers} hosts in network namespaces, {limit}{', with ' + bad if bad else ''}, joined through a "
            note += f"switch that adds in {_PLACES[mode]}"
            yield Network(bed.hosts, rate is not None, note, f"udp://{bed.switch.address}/{JOB}", job.secret)
        finally:
            switch.stop()

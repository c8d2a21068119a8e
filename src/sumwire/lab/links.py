"""Hosts for the lab: worker processes in network namespaces, connected by links limited to a chosen rate.

Every host has one link to a common bridge, and a token bucket filter (tbf) limits each direction of the link,
as if each worker had its own switch port: `namespaces.py` builds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sumwire.errors import ConfigError
from sumwire.lab.namespaces import MAX_WORKERS, Host, RefusedError, build, burst

__all__ = ["MAX_WORKERS", "Host", "Network", "burst", "format_rate", "links", "parse_rate"]

MIN_RATE, MAX_RATE = 1e6, 100e9
"""In bit/s. A lower rate is most likely a missing unit; no CPU fills a faster link."""

_UNITS = {"m": 1e6, "g": 1e9}


@dataclass(frozen=True)
class Network:
    """One host per worker, and a sentence about how their links are limited."""

    hosts: tuple[Host, ...]
    shaped: bool
    note: str
    aggregator: str = ""
    """Address of an aggregator in the network, if there is one, as `sumwire.connect` takes it."""
    token: str = ""
    """Of its job."""

    @property
    def apart(self) -> bool:
        """Whether every host has a namespace of its own; else they are all this machine."""
        return bool(self.hosts[0].enter)


@contextmanager
def links(workers: int, rate: float | None) -> Iterator[Network]:
    """Hosts whose links carry `rate` bit/s in each direction, for the duration of the context.

    If `rate` is None, or the machine does not permit namespaces, every host is this machine and links are
    unshaped; `Network.note` gives the reason and the remedy.

    >>> with links(workers=2, rate=None) as network:
    ...     network.hosts[1].address, network.shaped
    ('127.0.0.1', False)
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers={workers}: the lab has 1 to {MAX_WORKERS} hosts, one per worker")
    if rate is None:
        yield _loopback(workers, "no rate was requested")
        return
    if not MIN_RATE <= rate <= MAX_RATE:
        raise ConfigError(
            f"rate={rate:g}: links carry {MIN_RATE:g} to {MAX_RATE:g} bit/s (100 Mbit/s is rate=100e6); "
            "rate=None leaves them unshaped"
        )
    # Capabilities, sysctls, seccomp and security modules decide whether namespaces are permitted: just try.
    for new_user in (False, True):
        with ExitStack() as holders:
            try:
                hosts = build(holders, workers, rate, new_user=new_user).hosts
            except RefusedError as refused:
                reason = str(refused)
                continue
            whose = "network namespaces of an unprivileged user" if new_user else "network namespaces"
            plural = "s" if workers > 1 else ""
            note = f"{workers} host{plural} in {whose}, links limited to {format_rate(rate)} by tbf"
            yield Network(hosts, True, note)
            return
    yield _loopback(workers, reason)


def parse_rate(text: str) -> float | None:
    """The rate in bit/s; None for unshaped links.

    >>> parse_rate("100Mbit"), parse_rate("2.5Gbit"), parse_rate("unshaped")
    (100000000.0, 2500000000.0, None)
    """
    if text == "unshaped":
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([mg])bit(?:/s)?", text.lower())
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        limits = f"from {format_rate(MIN_RATE)} to {format_rate(MAX_RATE)}"
        raise ConfigError(f"{text!r} is not a rate: write 100Mbit, 1Gbit, 10Gbit ({limits}) or unshaped")
    return rate


def format_rate(rate: float) -> str:
    """
    >>> format_rate(2.5e9), format_rate(100e6)
    ('2.5 Gbit/s', '100 Mbit/s')
    """
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"


def _loopback(workers: int, reason: str) -> Network:
    return Network((Host("127.0.0.1", "lo", ()),) * workers, False, f"links are unshaped: {reason}")

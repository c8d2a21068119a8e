"""A testbed for aggregation in the network: hosts joined through a switch, over links that may be slow and bad."""

from __future__ import annotations

import fcntl
import socket
import struct
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from sumwire.aggregate.switch.privileges import SwitchError, missing
from sumwire.aggregate.switch.program import Descriptors, load_impairment
from sumwire.aggregate.switch.records import IMPAIRMENT
from sumwire.errors import ConfigError
from sumwire.lab.namespaces import INTERFACE, MAX_WORKERS, Host, RefusedError, Star, build, inside

_SIOCETHTOOL = 0x8946
_GRO, _GSO, _TSO = 0x2C, 0x24, 0x1F
"""ethtool commands that set these."""


@dataclass(frozen=True, kw_only=True)
class Impairment:
    """What each direction of each link does to packets; shares of all packets, 0..1."""

    loss: float = 0.0
    duplicates: float = 0.0
    reordering: float = 0.0

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0.0 <= share <= 1.0:
                raise ConfigError(f"{name}={share} is not in 0..1: it is a share of packets")

    def __bool__(self) -> bool:
        return any(vars(self).values())


class SwitchedNetwork:
    """Hosts 10.77.0.1, 10.77.0.2, ..., and the namespace of the switch between them, 10.77.0.254."""

    def __init__(self, star: Star, impaired: list[Descriptors]) -> None:
        self.hosts: tuple[Host, ...] = star.hosts
        self.switch: Host = star.switch
        self.ports: tuple[str, ...] = star.ports
        self.pids, self.switch_pid = star.pids, star.switch_pid
        self._impaired = impaired

    def impaired(self) -> dict[str, int]:
        """How many packets were lost, doubled and reordered so far."""
        found = [each.read("impairments", 0, np.zeros(1, IMPAIRMENT))[0] for each in self._impaired]
        return {name: sum(int(each[name]) for each in found) for name in ("lost", "doubled", "reordered")}


@contextmanager
def switched_network(
    workers: int, *, rate: float | None = None, mtu: int = 1500, impairment: Impairment | None = None
) -> Iterator[SwitchedNetwork]:
    """Hosts, switch and links for the duration of the context. Everything is gone after it, however it ends.

    Raises `SwitchError` where this machine does not permit that; the message says what is missing.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers={workers}: a testbed has 1 to {MAX_WORKERS} hosts, one per worker")
    lacking = missing()
    if lacking:
        raise SwitchError("no testbed here: " + "; ".join(lacking))
    with ExitStack() as holders:
        try:
            star = build(holders, workers, rate, mtu=mtu, routed=True)
            for port in star.ports:
                inside(star.switch_pid, lambda port=port: _offload(port))  # type: ignore[misc]
            impaired = []
            for pid in star.pids:
                inside(pid, lambda: _offload(INTERFACE))
                if impairment:
                    impaired.append(_impair(holders, pid, impairment))
        except RefusedError as refused:
            raise SwitchError(f"no testbed here: {refused}") from None
        yield SwitchedNetwork(star, impaired)


def _offload(device: str) -> None:
    """Packets one by one, so that each is lost alone; and polled receipt (GRO), which XDP redirection needs on veth."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command, on in ((_GRO, 1), (_GSO, 0), (_TSO, 0)):
            value = array("I", [command, on])
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            fcntl.ioctl(sock, _SIOCETHTOOL, request.ljust(40, b"\0"))


def _impair(holders: ExitStack, pid: int, how: Impairment) -> Descriptors:
    """Bad links are bad in both directions, at the host's end: behind all that the switch does."""
    programs = holders.enter_context(load_impairment())

    def attach() -> None:
        record = np.zeros(1, IMPAIRMENT)
        for name, share in (("loss", how.loss), ("duplicate", how.duplicates), ("reorder", how.reordering)):
            record[name] = round(share * 0xFFFFFFFF)
        programs.write("impairments", 0, record)
        device = socket.if_nametoindex(INTERFACE)
        programs.attach_tc("inward", device)
        programs.attach_tc("outward", device, outward=True)

    inside(pid, attach)
    return programs

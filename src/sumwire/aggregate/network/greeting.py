"""How a worker gets into a session: the aggregator's address, HELLO and WELCOME, and what a packet may hold."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import IPv4Address
from time import monotonic
from typing import Any

import numpy as np

from sumwire.aggregate.network.native import LinkOptions
from sumwire.aggregate.protocol import packet
from sumwire.aggregate.protocol.packet import PacketHeader, PacketKind, keys_of
from sumwire.errors import ConfigError, FrameError, RoundError

SCHEME = "udp://"
WAIT = 200
"""Milliseconds after which whoever waits for the native link looks for an interrupt."""
_IP_MTU = 14


@dataclass(frozen=True)
class PacketAddress:
    """Where an aggregator is, and which job.

    >>> str(PacketAddress.of("udp://127.0.0.1/3"))
    'udp://127.0.0.1:4660/3'
    """

    host: IPv4Address
    port: int
    job: int

    @classmethod
    def of(cls, address: str) -> PacketAddress:
        """Of "udp://host", "udp://host:port" or "udp://host:port/job"."""
        place, slash, job = address.removeprefix(SCHEME).partition("/")
        host, colon, port = place.partition(":")
        numbers = (port or str(packet.PORT), job or "0")
        good = (
            host
            and all(text.isdecimal() for text in numbers)
            and bool(port) == bool(colon)
            and bool(job) == bool(slash)
        )
        if not good or not 0 < int(numbers[0]) < 65536 or int(numbers[1]) >= packet.MAX_JOBS:
            raise ConfigError(
                f"address {address!r} is not udp://host:port/job, with a job in 0..{packet.MAX_JOBS - 1}: pass "
                '"udp://10.0.0.7" or "udp://10.0.0.7:4660/2", say'
            )
        try:
            found = IPv4Address(socket.gethostbyname(host))
        except OSError as error:
            raise ConfigError(f"host {host!r} has no IPv4 address ({error})") from None
        return cls(found, int(numbers[0]), int(numbers[1]))

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}:{self.port}/{self.job}"

    def options(self, rank: int, secret: str, timeout: float, rate: float) -> LinkOptions:
        """For the native link, before WELCOME."""
        key, reply_key = keys_of(secret)
        return LinkOptions(
            address=int.from_bytes(self.host.packed, "little"), port=self.port, job=self.job, key=key,
            reply_key=reply_key, rate=round(rate / 8), timeout_ns=round(timeout * 1e9), worker=rank,
        )  # fmt: skip


@dataclass(frozen=True)
class Greeting:
    """What WELCOME says of a session."""

    session: int
    joined: list[int]
    workers: int
    quorum: int
    deadline: float | None
    headroom: int
    window: int
    channels: int
    body: int
    padded: bool

    @property
    def leaves_out(self) -> bool:
        """Whether chunks may be complete without some workers."""
        return self.quorum < self.workers or self.deadline is not None

    @classmethod
    def read(cls, answer: dict[str, Any], workers: int) -> Greeting:
        try:
            found = cls(**{field.name: answer[field.name] for field in fields(cls)})
        except KeyError as error:
            raise FrameError(f"WELCOME has no {error}: run the same release everywhere") from None
        if found.workers != workers:
            raise ConfigError(
                f"the aggregator's job has {found.workers} workers, this worker was given workers={workers}: give both "
                "the same number"
            )
        return found


def request(
    functions: Any, handle: Any, options: LinkOptions, kind: PacketKind, body: Mapping[str, object], what: str,
    address: PacketAddress, timeout: float,
) -> dict[str, Any]:  # fmt: skip
    """The answer to a control packet, which is sent until one comes."""
    text = json.dumps(body, separators=(",", ":")).encode()
    header = PacketHeader(
        kind=kind, job=options.job, worker=options.worker, length=len(text), key=options.key, session=options.session,
        members=secrets.randbits(63) + 1,
    )  # fmt: skip
    data, out = np.frombuffer(header.pack() + text, np.uint8), np.empty(1 << 14, np.uint8)
    until, length = monotonic() + timeout, 0
    while length <= 0:
        left = until - monotonic()
        if left <= 0 or length == -errno.EMSGSIZE:
            why = f" ({os.strerror(-length)})" if length < 0 else ""
            raise RoundError(
                f"no aggregator answers at {address} for {timeout:g} s{why}: is it running, and does its job "
                f"{address.job} have this worker's address and secret? (Strangers get no answer.)"
            )
        wait = max(1, min(WAIT, round(left * 1000)))
        length = functions.link_control(handle, data, len(data), out, len(out), wait)
    raw = out[:length].tobytes()
    found = PacketHeader.unpack(raw)
    answer: dict[str, Any] = json.loads(raw[packet.HEADER : packet.HEADER + found.length])
    if options.session and found.session != options.session:
        raise stale(found.session)
    if found.kind == PacketKind.REFUSED:
        raise ConfigError(f"the aggregator at {address} refuses {what}: {answer.get('error')}")
    return answer


def stale(session: int) -> RoundError:
    """Of a worker whose session is over."""
    return RoundError(f"the job is in session {session} now: a worker was restarted, so start all of them again")


def check_mtu(address: PacketAddress, body: int) -> None:
    """Raise if this machine's packets to the aggregator cannot be as long as the others'."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((str(address.host), address.port))
        mtu = probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    need = packet.OUTER + packet.HEADER + body
    if mtu < need:
        raise ConfigError(
            f"the MTU towards {address.host} is {mtu}, and the aggregator's packets have {need} bytes: raise the MTU, "
            "or start the aggregator with a smaller one"
        )

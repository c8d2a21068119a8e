"""What an aggregator in the network is told about a job before it begins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from sumwire.aggregate.protocol import packet
from sumwire.aggregate.protocol.packet import keys_of
from sumwire.codec.options import real_number, whole_number
from sumwire.errors import ConfigError

LEAST_SECRET = 8


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """One job: who takes part, and what its chunks wait for.

    Attributes
    ----------
    number : int
        What packets name the job by, 0..63.
    secret : str
        Shared by the aggregator and the workers; the job's keys are made of it.
    peers : tuple of str
        IPv4 address of each worker, in rank order; "address@port" accepts it from that network port only.
    quorum : int, optional
        Workers that complete a chunk. Default: all.
    deadline : float, optional
        Seconds from the first arrival until a chunk is complete without those missing. Default: never.
    window : int
        Chunks that a worker may have in flight on a channel.
    channels : int
        Sequences of chunks that do not wait for each other.
    headroom : int, optional
        Payloads that lanes must have room for: more than workers where workers are aggregators. Default: workers.
    """

    number: int
    secret: str
    peers: tuple[str, ...]
    name: str = ""
    quorum: int | None = None
    deadline: float | None = None
    window: int = 128
    channels: int = 3
    headroom: int | None = None

    def __post_init__(self) -> None:
        whole_number("number", self.number, 0, packet.MAX_JOBS - 1)
        if not isinstance(self.secret, str) or len(self.secret) < LEAST_SECRET:
            raise ConfigError(f"the secret of job {self.number} must be text of {LEAST_SECRET} characters or more")
        object.__setattr__(self, "peers", tuple(self.peers))
        whole_number("workers (addresses in peers)", self.workers, 1, packet.MAX_WORKERS)
        whole_number("quorum", self.needed, 1, self.workers)
        if self.deadline is not None:
            real_number("deadline", self.deadline, 1e-6, 3600.0)
        whole_number("window", self.window, 1, packet.MAX_SLOTS // 2)
        whole_number("channels", self.channels, 1, packet.MAX_CHANNELS)
        whole_number("headroom", self.room, self.workers, packet.MAX_COUNT)
        if len(set(self.addresses)) < self.workers and any("@" in peer for peer in self.peers):
            raise ConfigError(f"peers of job {self.number}: workers that share an address cannot name network ports")

    @property
    def workers(self) -> int:
        return len(self.peers)

    @property
    def needed(self) -> int:
        """Workers that complete a chunk."""
        return self.workers if self.quorum is None else self.quorum

    @property
    def room(self) -> int:
        """Payloads that lanes have room for."""
        return self.workers if self.headroom is None else self.headroom

    @property
    def slots(self) -> int:
        """Per channel: a power of two, at least twice the window."""
        return 1 << (2 * self.window - 1).bit_length()

    @cached_property
    def addresses(self) -> tuple[IPv4Address, ...]:
        found = []
        for peer in self.peers:
            try:
                found.append(IPv4Address(peer.partition("@")[0]))
            except ValueError:
                raise ConfigError(f"peer {peer!r} of job {self.number} is not an IPv4 address") from None
        return tuple(found)

    @property
    def ports(self) -> tuple[str | None, ...]:
        """The network port that each worker must be at, where that is configured."""
        return tuple(peer.partition("@")[2] or None for peer in self.peers)

    @cached_property
    def keys(self) -> tuple[int, int]:
        """For requests and for replies."""
        return keys_of(self.secret)


def job_of(options: Mapping[str, Any]) -> JobOptions:
    """A job from plain values; raises `ConfigError` that names what is unknown or missing."""
    known = {field.name for field in fields(JobOptions)}
    unknown, missing = sorted(set(options) - known), sorted({"number", "secret", "peers"} - set(options))
    if unknown:
        raise ConfigError(f"job option {unknown[0]!r} is unknown: there are {', '.join(sorted(known))}")
    if missing:
        raise ConfigError(f"a job needs {', '.join(missing)}")
    return JobOptions(**options)


def read_jobs(path: Path) -> tuple[JobOptions, ...]:
    """The jobs of a TOML file: a table `[[job]]` for each."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read jobs from {path}: {error}") from None
    entries = found.get("job")
    if set(found) != {"job"} or not isinstance(entries, list):
        raise ConfigError(f"{path} must have a table [[job]] for each job, and nothing else")
    return check_jobs(tuple(job_of(entry) for entry in entries))


def check_jobs(jobs: tuple[JobOptions, ...]) -> tuple[JobOptions, ...]:
    """The jobs, if each has a number of its own."""
    numbers = [job.number for job in jobs]
    if not jobs or len(set(numbers)) < len(numbers):
        raise ConfigError(f"jobs are numbered {numbers}: there must be one at least, each with a number of its own")
    return jobs

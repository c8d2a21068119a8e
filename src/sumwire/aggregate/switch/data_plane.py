"""Jobs, sessions, tables and counters in the maps of the BPF programs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.protocol import packet
from sumwire.aggregate.protocol.job import JobOptions, check_jobs
from sumwire.aggregate.protocol.table import LookupTable
from sumwire.aggregate.switch.program import load_aggregator
from sumwire.aggregate.switch.records import JOB, PADDED, PEER, TABLE, Counter, Refusal, table_record
from sumwire.errors import ConfigError


def body_for(mtu: int, mode: str) -> int:
    """The longest result that packets of this MTU can carry.

    >>> body_for(1500, "tc"), body_for(9000, "tc"), body_for(9000, "xdp")
    (1408, 8896, 3392)
    """
    most = packet.BODY_9000 if mode == "tc" else packet.BODY_XDP
    body = min(most, mtu - packet.OUTER - packet.HEADER) // packet.GRAIN * packet.GRAIN
    if body < packet.GRAIN:
        raise ConfigError(f"an MTU of {mtu} is too small: packets need {packet.OUTER + packet.HEADER + packet.GRAIN}")
    return body


@dataclass(frozen=True)
class Placed:
    """A job, and where its memory is."""

    options: JobOptions
    index: int
    first_slot: int


class BpfDataPlane:
    """Joins and adds in the kernel, on up to `ports` network devices; see `control_plane.DataPlane`."""

    def __init__(
        self,
        jobs: Sequence[JobOptions],
        *,
        mode: str = "tc",
        address: str,
        port: int = packet.PORT,
        mtu: int = 1500,
        ports: int = 1,
    ) -> None:
        check_jobs(tuple(jobs))
        self.mode, self.address, self.port = mode, IPv4Address(address), port
        self.body = body_for(mtu, mode)
        self.padded = mode != "tc"
        self._placed: dict[int, Placed] = {}
        slots = 0
        for index, job in enumerate(jobs):
            self._placed[job.number] = Placed(job, index, slots)
            slots += job.slots * job.channels
        self.descriptors = load_aggregator(mode, jobs=len(jobs), slots=slots, ports=ports)
        self.slots = slots
        self._cpus = _possible_cpus()
        try:
            for placed in self._placed.values():
                self._write_peers(placed)
        except BaseException:
            self.close()
            raise

    def attach(self, ports: Sequence[str]) -> None:
        """To network devices of this namespace. Whatever ends this process ends that too."""
        for name in ports:
            index = _device(name)
            if self.mode == "tc":
                self.descriptors.attach_tc("program", index)
                continue
            where = np.array([index, self.descriptors["egress"]], np.uint32)
            self.descriptors.write("ports", index, where)
            self.descriptors.attach_xdp("program", index, generic=self.mode == "generic")

    # What the control plane asks

    def begin_session(self, job: JobOptions, session: int) -> None:
        placed = self._placed[job.number]
        # No job until all is there: packets of the former session must not meet tables that are half gone.
        self.descriptors.write("jobs", job.number, np.zeros(1, JOB))
        for table in range(packet.MAX_TABLES):
            self.descriptors.write("tables", placed.index * packet.MAX_TABLES + table, np.zeros(1, TABLE))
        record = np.zeros(1, JOB)[0]
        record["key"], record["reply_key"] = job.keys
        record["deadline"] = round((job.deadline or 0) * 1e9)
        record["session"] = session
        record["address"], record["port"] = self.address.packed, self.port
        record["headroom"], record["workers"], record["quorum"] = job.room, job.workers, job.needed
        record["channels"], record["flags"] = job.channels, PADDED if self.padded else 0
        record["first_slot"], record["slots"] = placed.first_slot, job.slots
        record["body"], record["index"] = self.body, placed.index
        self.descriptors.write("jobs", job.number, np.array([record]))

    def install_table(self, job: JobOptions, number: int, table: LookupTable) -> None:
        self.descriptors.write(
            "tables", self._placed[job.number].index * packet.MAX_TABLES + number, table_record(table)
        )

    def takes_from(self, job: JobOptions, worker: int, port: int) -> bool:
        found = self.descriptors.read(
            "peers", self._placed[job.number].index * packet.MAX_WORKERS + worker, np.zeros(1, PEER)
        )[0]
        return bool(found["ifindex"]) and int(found["port"]) == port

    # What is counted

    def counters(self, job: JobOptions) -> NDArray[np.int64]:
        """A row for each worker, a column for each `Counter`."""
        first = self._placed[job.number].index * packet.MAX_WORKERS
        rows = [self._over_cpus("traffic", first + worker, len(Counter)) for worker in range(job.workers)]
        return np.stack(rows)

    def refusals(self) -> dict[str, int]:
        """Packets that passed untouched, by reason."""
        return {reason.name.lower(): int(self._over_cpus("refusals", reason, 1)[0]) for reason in Refusal}

    def peers(self, job: JobOptions) -> NDArray[Any]:
        """Where workers are, as far as that is known."""
        first = self._placed[job.number].index * packet.MAX_WORKERS
        found = [self.descriptors.read("peers", first + worker, np.zeros(1, PEER)) for worker in range(job.workers)]
        return np.concatenate(found)

    def close(self) -> None:
        """Detach from all devices, and give the memory back."""
        self.descriptors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_peers(self, placed: Placed) -> None:
        for worker, (address, port) in enumerate(zip(placed.options.addresses, placed.options.ports, strict=True)):
            record = np.zeros(1, PEER)
            record["address"] = np.void(address.packed)
            record["fixed_ifindex"] = _device(port) if port else 0
            self.descriptors.write("peers", placed.index * packet.MAX_WORKERS + worker, record)

    def _over_cpus(self, name: str, key: int, size: int) -> NDArray[np.int64]:
        values = np.zeros((self._cpus, size), np.int64)
        total: NDArray[np.int64] = self.descriptors.read(name, key, values).sum(axis=0)
        return total


def _device(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        known = ", ".join(found for _, found in socket.if_nameindex())
        raise ConfigError(f"there is no network device {name!r} here: there are {known}") from None


def _possible_cpus() -> int:
    """How many values a per-CPU map has for each key."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip() if os.path.isdir("/sys") else "0"
    return int(text.replace(",", "-").split("-")[-1]) + 1

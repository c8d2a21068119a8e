"""Packets as workers send them, byte by byte, and an aggregator that has no network: BPF_PROG_RUN."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np

from sumwire.aggregate.protocol.control_plane import ControlPlane
from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.protocol.packet import HEADER, PORT, Operation, PacketHeader, PacketKind
from sumwire.aggregate.protocol.table import LookupTable
from sumwire.aggregate.switch import privileges
from sumwire.aggregate.switch.data_plane import BpfDataPlane

ADDRESS = "10.9.0.254"
SESSION = 1_700_000_000
OUTER = 42
"""Bytes of Ethernet, IPv4 and UDP headers."""

REASON = "; ".join(privileges.missing())
"""Why BPF programs cannot be loaded here; empty if they can."""

# What programs return for packets that pass to the stack, are taken, and are answered.
PASS = {"tc": -1, "xdp": 2, "generic": 2}
TAKEN = {"tc": 2, "xdp": 1, "generic": 1}
ANSWERED = {"tc": 7, "xdp": 4, "generic": 4}


def mac(worker: int) -> bytes:
    return bytes([2, 0, 0, 0, 0, worker + 1])


def frame(payload: bytes, *, source: str, port: int, worker: int, to: str = ADDRESS, to_port: int = PORT) -> bytes:
    """An Ethernet frame with a UDP datagram."""
    ethernet = bytes([2, 0, 0, 0, 9, 9]) + mac(worker) + b"\x08\x00"
    addresses = IPv4Address(source).packed + IPv4Address(to).packed
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), 1, 0, 64, 17, 0) + addresses
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return ethernet + ip + struct.pack(">HHHH", port, to_port, 8 + len(payload), 0) + payload


def checksum(header: bytes) -> int:
    """Of an IPv4 header: 0 over one that has its checksum in it."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def job(workers: int, number: int = 3, **options: object) -> JobOptions:
    settings = {"secret": f"secret of job {number}", "window": 4, "channels": 2} | options
    return JobOptions(number=number, peers=tuple(f"10.9.{number}.{w + 1}" for w in range(workers)), **settings)


@dataclass(frozen=True)
class Reply:
    """What came back."""

    header: PacketHeader
    body: bytes
    frame: bytes


class Bench:
    """The programs on a bench: give them packets, look at what they make of each."""

    def __init__(self, *jobs: JobOptions, mode: str = "tc", mtu: int = 9000, met: bool = True) -> None:
        self.mode, self.jobs = mode, {job.number: job for job in jobs}
        self.plane = BpfDataPlane(jobs, mode=mode, address=ADDRESS, mtu=mtu)
        if mode != "tc":  # where packets come from without a network: the loopback device
            self.plane.descriptors.write("ports", 1, np.array([1, self.plane.descriptors["egress"]], np.uint32))
        self.control = ControlPlane(jobs, self.plane, started=SESSION)
        for each in jobs if met else ():
            for worker in range(each.workers):
                self.run(self.request(each, worker, kind=PacketKind.HELLO, count=0, tag=0))

    def request(
        self,
        job: JobOptions,
        worker: int,
        body: bytes = b"",
        /,
        *,
        source: str | None = None,
        port: int | None = None,
        padding: int = 0,
        **fields: int,
    ) -> bytes:
        """A worker's packet, with whatever differs from what it should be."""
        known = {"kind": PacketKind.MERGE, "op": Operation.OR, "length": len(body), "result": len(body), "count": 1}
        known |= {"job": job.number, "worker": worker, "key": job.keys[0], "tag": 7}
        header = PacketHeader(**(known | {"session": self.control.session(job.number)} | fields))
        if self.plane.padded:
            padding = max(padding, header.result - len(body))
        source = source or str(job.addresses[worker])
        port = PORT + worker if port is None else port
        return frame(header.pack() + body + bytes(padding), source=source, port=port, worker=worker)

    def run(self, packet: bytes) -> Reply | str:
        """The reply, "taken" if there is none, or "passed"; a packet that passes must be unchanged."""
        ran = self.plane.descriptors.run("program", packet)
        if ran.verdict == ANSWERED[self.mode]:
            return read_reply(ran.packet)
        if ran.verdict == TAKEN[self.mode]:
            return "taken"
        assert ran.verdict == PASS[self.mode]
        assert ran.packet == packet
        return "passed"

    def merge(self, job: JobOptions, worker: int, body: bytes, /, **fields: int) -> Reply | str:
        return self.run(self.request(job, worker, body, **fields))

    def poll(self, job: JobOptions, worker: int, /, **fields: int) -> Reply | str:
        return self.run(self.request(job, worker, kind=PacketKind.POLL, **fields))

    def install(self, job: JobOptions, number: int, bits: int, lane: int, values: list[int]) -> LookupTable:
        table = LookupTable.of(bits, lane, values, headroom=job.room)
        self.plane.install_table(job, number, table)
        return table

    def close(self) -> None:
        self.plane.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_reply(packet: bytes) -> Reply:
    """A reply, whose outer headers must be right."""
    ip, udp, data = packet[14:34], packet[34:42], packet[42:]
    assert checksum(ip) == 0
    assert struct.unpack(">H", ip[2:4])[0] == len(packet) - 14
    assert struct.unpack(">H", udp[4:6])[0] == 8 + len(data)
    assert udp[6:] == b"\0\0"
    header = PacketHeader.unpack(data)
    assert len(data) == HEADER + header.length
    return Reply(header, data[HEADER:], packet)

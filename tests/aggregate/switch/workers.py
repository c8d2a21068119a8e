"""Workers on the hosts of a testbed, packet by packet."""

from __future__ import annotations

import json
import socket

from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.protocol.packet import HEADER, PORT, Operation, PacketHeader, PacketKind
from sumwire.lab.namespaces import inside

SECRET = "a-long-random-word"


class Worker:
    """One worker's socket on its host."""

    def __init__(self, bed, job: JobOptions, rank: int, port: int = PORT, *, host: int | None = None) -> None:
        self.job, self.rank, self.to = job, rank, (bed.switch.address, PORT)
        pid = bed.pids[rank if host is None else host]
        self.socket = inside(pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.socket.bind(("0.0.0.0", port))
        self.socket.settimeout(60.0)

    def send(self, kind: PacketKind, body: bytes = b"", **fields: int) -> None:
        known = {"job": self.job.number, "worker": self.rank, "key": self.job.keys[0], "length": len(body)}
        self.socket.sendto(PacketHeader(kind=kind, **(known | fields)).pack() + body, self.to)

    def receive(self) -> tuple[PacketHeader, bytes]:
        data = self.socket.recv(1 << 16)
        return PacketHeader.unpack(data), data[HEADER:]

    def hello(self, nonce: int = 1, **more: object) -> dict:
        self.send(PacketKind.HELLO, json.dumps({"nonce": nonce} | more).encode(), members=nonce)
        header, body = self.receive()
        assert (header.kind, header.key, header.members) == (PacketKind.WELCOME, self.job.keys[1], nonce)
        return json.loads(body)

    def merge(self, session: int, body: bytes, **fields: int) -> None:
        known = {"op": Operation.OR, "session": session, "count": 1, "tag": 5, "result": len(body)}
        self.send(PacketKind.MERGE, body, **(known | fields))


def job_on(bed, *hosts: int, number: int = 2, **options: object) -> JobOptions:
    peers = tuple(bed.hosts[host].address for host in hosts)
    return JobOptions(number=number, secret=SECRET, peers=peers, **options)

"""HELLO and TABLE: who takes part in a session, and which tables its chunks are looked up in.

Pure decisions, without sockets and clocks. The aggregator that adds is a `DataPlane`: BPF maps, or a process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, Protocol

import numpy as np

from sumwire.aggregate.protocol import packet
from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.protocol.packet import Operation, PacketHeader, PacketKind
from sumwire.aggregate.protocol.table import LookupTable
from sumwire.errors import FrameError, SumwireError

MAX_NONCE = (1 << 63) - 1
MAX_NAME = 256


class DataPlane(Protocol):
    """What joins and adds, as the control plane sees it."""

    body: int
    """Bytes of the longest result."""
    padded: bool
    """Whether requests must be as long as results."""

    def begin_session(self, job: JobOptions, session: int) -> None:
        """From now on packets of this session count, and none of any other."""

    def install_table(self, job: JobOptions, number: int, table: LookupTable) -> None:
        """Packets may name this table from now on."""

    def takes_from(self, job: JobOptions, worker: int, port: int) -> bool:
        """Whether packets of a worker that has said HELLO from this UDP port are merged, and results sent there."""


class _RefusedError(SumwireError):
    """A request cannot be accepted; the message is sent back."""


@dataclass(eq=False)
class _Session:
    number: int
    nonces: dict[int, int] = field(default_factory=dict)
    former: dict[int, int] = field(default_factory=dict)
    """Of workers that were restarted: the nonce before, of which packets may still be on their way."""
    tables: dict[str, tuple[int, LookupTable]] = field(default_factory=dict)


class ControlPlane:
    """Answers the control packets of all jobs."""

    def __init__(self, jobs: Sequence[JobOptions], data: DataPlane, *, started: int) -> None:
        """`started`: where sessions are numbered from; the time in seconds, so that no number comes twice."""
        self._data = data
        self._jobs = {job.number: job for job in jobs}
        self._sessions = {job.number: _Session(max(1, started & 0xFFFFFFFF)) for job in jobs}
        for job in jobs:
            data.begin_session(job, self._sessions[job.number].number)

    def joined(self, number: int) -> list[int]:
        """Workers of a job's session."""
        return sorted(self._sessions[number].nonces)

    def session(self, number: int) -> int:
        return self._sessions[number].number

    def answer(self, datagram: bytes, address: str, port: int) -> bytes | None:
        """The reply to a datagram; None where strangers would only learn that we are here.

        None, too, where the data plane has not seen a HELLO that came here, because it was just beginning a session:
        the worker says it again, rather than being welcome to send packets that nobody takes.
        """
        try:
            header = PacketHeader.unpack(datagram)
        except FrameError:
            return None
        job = self._jobs.get(header.job)
        if job is None or header.key != job.keys[0] or header.worker >= job.workers:
            return None
        if job.addresses[header.worker] != IPv4Address(address):
            return None
        if header.kind == PacketKind.HELLO and not self._data.takes_from(job, header.worker, port):
            return None
        try:
            kind, reply = PacketKind.WELCOME, self._reply(job, header, datagram)
        except _RefusedError as error:
            kind, reply = PacketKind.REFUSED, {"error": str(error)}
        body = json.dumps(reply, separators=(",", ":")).encode()
        session = self._sessions[job.number].number
        answer = PacketHeader(
            kind=kind,
            job=job.number,
            worker=header.worker,
            length=len(body),
            key=job.keys[1],
            session=session,
            members=header.members,
        )
        return answer.pack() + body

    def _reply(self, job: JobOptions, header: PacketHeader, datagram: bytes) -> dict[str, Any]:
        if header.kind not in (PacketKind.HELLO, PacketKind.TABLE):
            raise _RefusedError(self._why_not_merged(job, header, len(datagram) - packet.HEADER))
        body = _parse(datagram[packet.HEADER : packet.HEADER + header.length])
        if header.kind == PacketKind.HELLO:
            return self._hello(job, header.worker, body)
        return self._table(job, header, body)

    def _why_not_merged(self, job: JobOptions, header: PacketHeader, held: int) -> str:
        """Of a worker's packet that came here because the data plane did not take it."""
        session, limit = self._sessions[job.number], self._data.body
        if header.kind not in (PacketKind.MERGE, PacketKind.POLL):
            return f"kind {header.kind} is no request: run the same release everywhere"
        if header.worker not in session.nonces:
            return (
                f"worker {header.worker} has not said HELLO in session {session.number}, because the aggregator was "
                "restarted: start all workers again"
            )
        if header.channel >= job.channels:
            return f"channel {header.channel} is not one of the job's {job.channels}: configure channels"
        if header.op == Operation.LOOKUP and header.table >= len(session.tables):
            return f"table {header.table} is not one of the session's {len(session.tables)}: start all workers again"
        if header.count > job.room:
            return f"{header.count} payloads are more than lanes have room for, {job.room}: configure headroom"
        if header.result > limit or (self._data.padded and held < header.result):
            return f"a result of {header.result} bytes in a packet of {held} does not fit: results have {limit} at most"
        return (
            f"worker {header.worker} sends from another UDP port or network device than it said HELLO from, or lengths "
            "that cannot be: check that no NAT and no second path lies between, and run the same release everywhere"
        )

    def _hello(self, job: JobOptions, worker: int, body: dict[str, Any]) -> dict[str, Any]:
        nonce = body.get("nonce")
        if not isinstance(nonce, int) or not 1 <= nonce <= MAX_NONCE:
            raise _RefusedError(f"HELLO needs a nonce in 1..{MAX_NONCE}")
        session = self._sessions[job.number]
        if session.former.get(worker) == nonce:
            raise _RefusedError(f"session {session.number} has begun since: a worker was restarted, so start all again")
        known = session.nonces.get(worker)
        if known is not None and known != nonce:
            # It was restarted: what its former self has in slots must not be mixed with what comes now.
            session = _Session(session.number % 0xFFFFFFFF + 1, former=session.former | {worker: known})
            self._sessions[job.number] = session
            self._data.begin_session(job, session.number)
        session.nonces[worker] = nonce
        return {
            "session": session.number,
            "joined": sorted(session.nonces),
            "workers": job.workers,
            "quorum": job.needed,
            "deadline": job.deadline,
            "headroom": job.room,
            "window": job.window,
            "channels": job.channels,
            "body": self._data.body,
            "padded": self._data.padded,
        }

    def _table(self, job: JobOptions, header: PacketHeader, body: dict[str, Any]) -> dict[str, Any]:
        session = self._sessions[job.number]
        if header.session != session.number or header.worker not in session.nonces:
            raise _RefusedError(f"session {header.session} is over: say HELLO first")
        name = body.get("name")
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
            raise _RefusedError(f"a table needs a name of 1 to {MAX_NAME} characters")
        try:
            table = LookupTable.of(body.get("bits"), body.get("lane"), body.get("values"), headroom=job.room)
        except SumwireError as error:
            raise _RefusedError(f"table {name!r}: {error}") from None
        known = session.tables.get(name)
        if known is None:
            number = len(session.tables)
            if number == packet.MAX_TABLES:
                raise _RefusedError(f"table {name!r} is one too many: a session has {packet.MAX_TABLES} at most")
            self._data.install_table(job, number, table)
            session.tables[name] = known = (number, table)
        if known[1].lane != table.lane or not np.array_equal(known[1].values, table.values):
            raise _RefusedError(f"table {name!r} has other values at another worker: give all the same codec")
        return {"table": known[0]}


def _parse(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise _RefusedError("the body is not JSON") from None
    if not isinstance(found, dict):
        raise _RefusedError("the body is not a JSON object")
    return found

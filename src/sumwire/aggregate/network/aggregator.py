"""A process that takes the place of a switch: it speaks the same packets, and merges them in user space."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sumwire.aggregate.network.native import Sender, functions
from sumwire.aggregate.protocol import packet
from sumwire.aggregate.protocol.control_plane import ControlPlane
from sumwire.aggregate.protocol.job import JobOptions, check_jobs
from sumwire.aggregate.protocol.table import LookupTable
from sumwire.aggregate.switch.data_plane import body_for
from sumwire.aggregate.switch.records import JOB, Counter, Refusal, table_record
from sumwire.errors import ConfigError

_log = logging.getLogger(__name__)

_TURN = 100
"""Milliseconds after which the thread looks whether it should end."""


class PacketAggregator:
    """Joins and adds for the workers of some jobs, by packets. Use `with`, or `start` and `close`.

    Law: each worker's part of a chunk is in its result at most once, and all workers get the same bytes, whatever is
    lost, doubled or late. Cost: one core, and one copy of a window of chunks per job and channel.
    """

    padded = False

    def __init__(
        self, jobs: Sequence[JobOptions], *, host: str = "127.0.0.1", port: int = packet.PORT, mtu: int = 1500
    ) -> None:
        self.jobs = check_jobs(tuple(jobs))
        self.body = body_for(mtu, "tc")
        self._functions = functions()
        self._host = IPv4Address(socket.gethostbyname(host))
        self._handle = self._functions.open(int.from_bytes(self._host.packed, "little"), port)
        if not self._handle:
            raise ConfigError(f"cannot listen on {host}, UDP port {port}: is it in use?")
        self.port = int(self._functions.port(self._handle))
        for job in jobs:
            for worker, address in enumerate(job.addresses):
                self._functions.peer(self._handle, job.number, worker, int.from_bytes(address.packed, "little"))
        self.control = ControlPlane(jobs, self, started=int(time.time()))
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._last = {job.number: self._read_counters(job.number) for job in jobs}

    @property
    def address(self) -> str:
        """What `connect` takes, for job 0."""
        return f"udp://{self._host}:{self.port}"

    # What the control plane asks

    def begin_session(self, job: JobOptions, session: int) -> None:
        record = np.zeros(1, JOB)
        record["key"], record["reply_key"] = job.keys
        record["deadline"] = round((job.deadline or 0) * 1e9)
        record["session"], record["port"] = session, self.port
        record["headroom"], record["workers"], record["quorum"] = job.room, job.workers, job.needed
        record["channels"], record["slots"], record["body"] = job.channels, job.slots, self.body
        self._functions.begin(self._handle, job.number, record)

    def install_table(self, job: JobOptions, number: int, table: LookupTable) -> None:
        self._functions.table(self._handle, job.number, number, table_record(table))

    def takes_from(self, job: JobOptions, worker: int, port: int) -> bool:
        return True  # HELLO and all that follows go through the same socket

    # Beginning and end

    def start(self) -> Self:
        """Serve, in a thread."""
        self._thread = threading.Thread(target=self._serve, name="sumwire-packets", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """End the thread and the socket."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            handle, self._handle = self._handle, None
            if handle:
                self._functions.close(handle)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        data, sender = np.empty(1 << 14, np.uint8), Sender()
        while not self._stopping.is_set():
            length = self._functions.serve(self._handle, _TURN, data, len(data), sender)
            if length < 0:
                _log.error("receiving packets failed: %s", os.strerror(-length))
                return
            if length:
                self._answer(data[:length].tobytes(), sender)
            for job in self.jobs:
                self._last[job.number] = self._read_counters(job.number)

    def _answer(self, datagram: bytes, sender: Sender) -> None:
        address = IPv4Address(int(sender.address).to_bytes(4, "little"))
        try:
            reply = self.control.answer(datagram, str(address), int(sender.port))
        except Exception:  # all other workers depend on this thread
            _log.exception("a control packet of %s cannot be answered", address)
            return
        if reply is not None:
            data = np.frombuffer(reply, np.uint8)
            with suppress(OSError):  # it asks again
                self._functions.reply(self._handle, data, len(data), sender)

    # What is counted

    def counters(self, job: JobOptions) -> NDArray[np.int64]:
        """A row for each worker, a column for each `Counter`; as of a moment ago."""
        return self._last[job.number][: job.workers]

    def refusals(self) -> dict[str, int]:
        """Packets that were not for us, by reason."""
        out = np.zeros(len(Refusal), np.uint64)
        with self._lock:
            if self._handle:
                self._functions.refusals(self._handle, out)
        return {reason.name.lower(): int(out[reason]) for reason in Refusal}

    def _read_counters(self, number: int) -> NDArray[Any]:
        out = np.zeros((packet.MAX_WORKERS, len(Counter)), np.int64)
        self._functions.counters(self._handle, number, out)
        return out

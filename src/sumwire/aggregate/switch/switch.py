"""The in-network aggregator of this machine: programs on its ports, a socket for control packets, live counters."""

from __future__ import annotations

import fcntl
import logging
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from sumwire.aggregate.network.aggregator import PacketAggregator
from sumwire.aggregate.protocol import packet
from sumwire.aggregate.protocol.control_plane import ControlPlane
from sumwire.aggregate.protocol.job import JobOptions, check_jobs, read_jobs
from sumwire.aggregate.server.http import StatusPages
from sumwire.aggregate.server.options import Options, Rules
from sumwire.aggregate.server.process import configure_log
from sumwire.aggregate.switch import statistics
from sumwire.aggregate.switch.data_plane import BpfDataPlane, body_for
from sumwire.aggregate.switch.program import MODES
from sumwire.codec.options import one_of
from sumwire.errors import ConfigError

_log = logging.getLogger(__name__)

_SIOCGIFMTU = 0x8921
_SO_NO_CHECK = 11
_PERIOD = 1.0
"""Seconds between reports."""
_PATIENCE = 0.2
"""Seconds in which a thread notices that it should end."""


class Switch:
    """Adds workers' packets in the kernel, on their way through the network devices `ports`.

    Law: a chunk's result holds each worker's packet at most once, whatever is lost, doubled or late; results of a
    chunk are the same bytes for all workers. docs/in-network.md has the protocol and the proof.

    ports      network devices that workers' packets come in by
    jobs       who may take part, and what chunks wait for
    address    IPv4 address of this machine to which workers send
    port       UDP port of it
    mode       "tc": any device and MTU, respects queues; "xdp": in the driver, fastest; "generic": XDP without a
               driver; "user": this process adds, without privileges and BPF, and `ports` only tell the MTU
    http_port  of /metrics, /healthz, /stats and the live page; 0 picks a free one (default: none)
    http_host  to show them on
    http_names further names by which browsers may call the page
    """

    def __init__(
        self,
        ports: Sequence[str],
        jobs: Sequence[JobOptions],
        *,
        address: str,
        port: int = packet.PORT,
        mode: str = "tc",
        http_port: int | None = None,
        http_host: str = "127.0.0.1",
        http_names: Sequence[str] = (),
    ) -> None:
        self.jobs = check_jobs(tuple(jobs))
        self.mode = one_of("mode", mode, (*MODES, "user"))
        self.ports, self.address, self.port = tuple(ports), address, port
        if not self.ports:
            raise ConfigError("no ports: name the network devices that workers' packets come in by")
        first = self.jobs[0]
        workers = max(job.workers for job in self.jobs)
        self.options = Options(Rules(workers, min(first.needed, workers), first.deadline))
        self.reports: dict[int, dict[str, Any]] = {}
        self.earlier: dict[int, dict[str, Any]] = {}
        self.heard: dict[int, float] = {}
        self.status_pages = None if http_port is None else StatusPages(self, http_host, http_port, http_names)
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self._plane: BpfDataPlane | PacketAggregator | None = None
        self._control: ControlPlane | None = None
        self._socket: socket.socket | None = None
        self._began = 0.0

    @property
    def plane(self) -> BpfDataPlane | PacketAggregator:
        """What adds: programs in the kernel, or a thread."""
        if self._plane is None:
            raise ConfigError("the switch has not been started")
        return self._plane

    def start(self) -> Self:
        """Load the programs, attach them, and answer control packets."""
        mtu = min(map(mtu_of, self.ports))
        try:
            if self.mode == "user":
                self._start_in_user_space(mtu)
            else:
                self._start_in_kernel(mtu)
            if self.status_pages is not None:
                self.status_pages.start()
        except BaseException:
            self.stop()
            raise
        self._began = time.monotonic()
        self._report()
        threads = {"reports": self._report_on} | ({"control": self._answer} if self._socket is not None else {})
        for name, work in threads.items():
            thread = threading.Thread(target=work, name=f"sumwire-switch-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def _start_in_kernel(self, mtu: int) -> None:
        body_for(mtu, self.mode)
        plane = self._plane = BpfDataPlane(
            self.jobs, mode=self.mode, address=self.address, port=self.port, mtu=mtu, ports=len(self.ports)
        )
        self._control = ControlPlane(self.jobs, plane, started=int(time.time()))
        self._socket = _listen(self.address, self.port)
        plane.attach(self.ports)

    def _start_in_user_space(self, mtu: int) -> None:
        aggregator = self._plane = PacketAggregator(self.jobs, host=self.address, port=self.port, mtu=mtu)
        self._control = aggregator.control
        aggregator.start()

    def stop(self) -> None:
        """Detach from all ports, and end."""
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        if self.status_pages is not None:
            self.status_pages.stop()
        if self._socket is not None:
            self._socket.close()
        if self._plane is not None:
            self._plane.close()

    def wait(self, watch: Callable[[], bool]) -> None:
        """Until `watch` is true."""
        while not watch():
            time.sleep(_PATIENCE)

    def _answer(self) -> None:
        assert self._socket is not None
        assert self._control is not None
        while not self._end.is_set():
            try:
                datagram, sender = self._socket.recvfrom(1 << 16)
            except TimeoutError:
                continue
            before = {job.number: self._control.session(job.number) for job in self.jobs}
            try:
                reply = self._control.answer(datagram, *sender)
            except Exception:  # all other workers depend on this thread
                _log.exception("a control packet of %s cannot be answered", sender[0])
                continue
            for number, session in before.items():
                if self._control.session(number) != session:
                    _log.info("job %d begins session %d: a worker at %s was restarted", number, session + 1, sender[0])
            if reply is not None:
                try:
                    self._socket.sendto(reply, sender)
                except OSError as error:
                    _log.warning("cannot answer %s: %s", sender[0], error)

    def _report_on(self) -> None:
        while not self._end.wait(_PERIOD):
            self._report()

    def _report(self) -> None:
        assert self._control is not None
        found = statistics.report(self.plane, self._control, self.jobs, time.monotonic() - self._began)
        self.earlier[0] = self.reports.get(0, found)
        self.reports[0], self.heard[0] = found, time.monotonic()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def mtu_of(device: str) -> int:
    """Of a network device of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("16si20x", device.encode()[:15], 0))
        except OSError:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigError(f"there is no network device {device!r} here: there are {known}") from None
    return int(struct.unpack("16si20x", answer)[1])


def _listen(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {address}, UDP port {port}: {error}; the address must be one of this machine"
        ) from None
    sock.settimeout(_PATIENCE)
    return sock


def run(
    *, jobs: Path, log_format: str, log_level: str, show: Callable[[Switch, Callable[[], bool]], None], **options: Any
) -> None:
    """Aggregate until SIGINT or SIGTERM; `show` displays the switch until then."""
    configure_log(log_format, log_level)
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, _: told.append(signum))
    with Switch(jobs=read_jobs(jobs), **options) as switch:
        count = len(switch.jobs)
        print(
            f"sumwire switch: {', '.join(switch.ports)} by {switch.mode}, UDP {switch.address}:{switch.port}, "
            f"{count} job{'s' if count > 1 else ''}, results of up to {switch.plane.body} bytes",
            flush=True,
        )
        if switch.status_pages is not None:
            print(f"sumwire switch: {switch.status_pages.url} shows it live", flush=True)
        show(switch, lambda: bool(told))
    print("sumwire switch: ended", flush=True)

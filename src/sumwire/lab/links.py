"""Hosts for the lab: workers as processes in network namespaces, over links held to a chosen rate.

Every host has one link to a common bridge, and both directions of the link pass a token bucket (tbf),
as if each worker hung on its own switch port. The bridge lives in a namespace too: the machine's own
network is never touched.

A namespace has no name. It lives as long as a holder, a `cat` on a pipe from us; when we end, however we
end, the pipe closes, the holder ends and the kernel takes namespace, links and buckets away.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sumwire.errors import ConfigError

MAX_WORKERS = 250
"""Hosts share one /24 of addresses."""

MIN_RATE, MAX_RATE = 1e6, 100e9
"""Bit/s. Below, someone meant Mbit/s; above, no CPU fills the link."""

_BURST_SECONDS = 1e-3
_MIN_BURST = 32 << 10
_QUEUE_SECONDS = 0.05

_PREFIX = "10.77.0"
_INTERFACE = "eth0"


@dataclass(frozen=True)
class Host:
    """Where one worker runs."""

    address: str
    """IPv4, reachable from all hosts of the same network."""
    interface: str
    """The network interface that has the address, for GLOO_SOCKET_IFNAME."""
    enter: tuple[str, ...]
    """Put before a command to run it on this host; empty when this is the machine itself."""


@dataclass(frozen=True)
class Network:
    """Hosts, one for each worker, and a sentence on what holds their links."""

    hosts: tuple[Host, ...]
    shaped: bool
    note: str


@contextmanager
def links(workers: int, rate: float | None) -> Iterator[Network]:
    """Hosts whose links carry `rate` bit/s each way, for as long as the context lasts.

    Where namespaces are refused, and where `rate` is None, all hosts are this machine and nothing is
    shaped; `Network.note` says why, and what to do about it.

    >>> with links(workers=2, rate=None) as network:
    ...     network.hosts[1].address, network.shaped
    ('127.0.0.1', False)
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers={workers}: the lab has 1 to {MAX_WORKERS} hosts")
    if rate is None:
        yield _loopback(workers, "no rate was asked for")
        return
    if not MIN_RATE <= rate <= MAX_RATE:
        raise ConfigError(
            f"rate={rate:g}: links carry {MIN_RATE:g} to {MAX_RATE:g} bit/s (100 Mbit/s is rate=100e6); "
            "rate=None leaves them unshaped"
        )
    # Whether namespaces are allowed depends on capabilities, sysctls, seccomp and security modules: try.
    for new_user in (False, True):
        with ExitStack() as holders:
            try:
                hosts = _build(holders, workers, rate, new_user=new_user)
            except _RefusedError as refused:
                reason = str(refused)
                continue
            whose = "network namespaces of an unprivileged user" if new_user else "network namespaces"
            plural = "s" if workers > 1 else ""
            yield Network(hosts, True, f"{workers} host{plural} in {whose}, links held to {format_rate(rate)} by tbf")
            return
    yield _loopback(workers, reason)


def format_rate(rate: float) -> str:
    """
    >>> format_rate(2.5e9), format_rate(100e6)
    ('2.5 Gbit/s', '100 Mbit/s')
    """
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"


def burst(rate: float) -> int:
    """Bytes a bucket holds: what passes in a millisecond, since the kernel does not always wake sooner."""
    return max(_MIN_BURST, math.ceil(rate / 8 * _BURST_SECONDS))


class _RefusedError(Exception):
    """This machine does not let us have shaped links; the message says why and what would help."""


def _loopback(workers: int, reason: str) -> Network:
    return Network((Host("127.0.0.1", "lo", ()),) * workers, False, f"links are unshaped: {reason}")


def _build(holders: ExitStack, workers: int, rate: float, *, new_user: bool) -> tuple[Host, ...]:
    ip, tc = _tool("ip", "iproute2"), _tool("tc", "iproute2")
    unshare, nsenter = _tool("unshare", "util-linux"), _tool("nsenter", "util-linux")

    def enter(holder: int) -> tuple[str, ...]:
        user = ("--user", "--preserve-credentials") if new_user else ()
        return (nsenter, f"--target={holder}", "--net", *user)

    user = ("--user", "--map-root-user") if new_user else ()
    switch = enter(_hold(holders, [unshare, *user, "--net"]))
    # Started inside the switch's namespaces, so that one user namespace owns all the others.
    pids = [_hold(holders, [*switch, unshare, "--net"]) for _ in range(workers)]
    hosts = tuple(Host(f"{_PREFIX}.{rank + 1}", _INTERFACE, enter(pid)) for rank, pid in enumerate(pids))

    ports = [f"port{rank}" for rank in range(workers)]
    wiring = ["link add name switch type bridge", "link set dev switch up"]
    for port, pid in zip(ports, pids, strict=True):
        wiring += [
            f"link add name {port} type veth peer name {_INTERFACE} netns {pid}",
            f"link set dev {port} master switch up",
        ]
    _run([*switch, ip, "-batch", "-"], wiring)
    _run([*switch, tc, "-batch", "-"], [_shape(port, rate) for port in ports])
    for host in hosts:
        setup = [
            "link set dev lo up",
            f"address add {host.address}/24 dev {_INTERFACE}",
            f"link set dev {_INTERFACE} up",
            # Linux's own default, whatever this machine was set to: figures should not depend on that.
            f"route replace {_PREFIX}.0/24 dev {_INTERFACE} src {host.address} congctl cubic",
        ]
        _run([*host.enter, ip, "-batch", "-"], setup)
        _run([*host.enter, tc, "-batch", "-"], [_shape(_INTERFACE, rate)])
    return hosts


def _shape(device: str, rate: float) -> str:
    queue = math.ceil(rate / 8 * _QUEUE_SECONDS)
    return f"qdisc add dev {device} root tbf rate {rate:.0f}bit burst {burst(rate)} limit {burst(rate) + queue}"


def _tool(name: str, package: str) -> str:
    # Users' PATH often lacks the directories where distributions keep network tools.
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if found is None:
        raise _RefusedError(f"`{name}` was not found; on Debian and Ubuntu, install the package {package}")
    return found


def _hold(holders: ExitStack, unshare: Sequence[str]) -> int:
    """Keep what `unshare` makes alive until `holders` closes; the process that does."""
    # Its own session: Ctrl-C must not take the network away under workers that are about to be stopped.
    holder = subprocess.Popen(
        [*unshare, "sh", "-c", "echo && exec cat >/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"LC_ALL": "C"},
    )
    holders.enter_context(holder)
    holders.callback(holder.kill)
    assert holder.stdout is not None
    assert holder.stderr is not None
    if not holder.stdout.readline():
        raise _refusal(holder.stderr.read().decode(errors="replace"))
    return holder.pid


def _run(command: Sequence[str], lines: Sequence[str]) -> None:
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
    )
    if done.returncode != 0:
        raise _refusal(done.stderr)


def _refusal(stderr: str) -> _RefusedError:
    words = " ".join(stderr.split()) or "no reason given"
    return _RefusedError(
        f"this machine refuses network namespaces or tbf ({words}); run as root, in a container with --privileged, or "
        "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
    )

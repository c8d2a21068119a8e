"""Hosts for the lab: worker processes in network namespaces, connected by links limited to a chosen rate.

Every host has one link to a common bridge, and a token bucket filter (tbf) limits each direction of the link,
as if each worker had its own switch port. The bridge lives in a namespace too: the network of this machine
is never touched.

Namespaces are unnamed. Each lives as long as its holder process, a `cat` that reads a pipe from this process.
When this process exits, for whatever reason, the pipe closes, the holder exits, and the kernel removes the
namespace with its links and filters.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sumwire.errors import ConfigError

MAX_WORKERS = 250
"""Hosts share one /24 of addresses."""

MIN_RATE, MAX_RATE = 1e6, 100e9
"""In bit/s. A lower rate is most likely a missing unit; no CPU fills a faster link."""

_BURST_SECONDS = 1e-3
_MIN_BURST = 32 << 10
_QUEUE_SECONDS = 0.05

_PREFIX = "10.77.0"
_INTERFACE = "eth0"
_UNITS = {"m": 1e6, "g": 1e9}


@dataclass(frozen=True)
class Host:
    """Where one worker runs."""

    address: str
    """IPv4, reachable from all hosts of the same network."""
    interface: str
    """The network interface that has the address, for GLOO_SOCKET_IFNAME."""
    enter: tuple[str, ...]
    """Command prefix that runs a command on this host; empty for this machine itself."""


@dataclass(frozen=True)
class Network:
    """One host per worker, and a sentence about how their links are limited."""

    hosts: tuple[Host, ...]
    shaped: bool
    note: str


@contextmanager
def links(workers: int, rate: float | None) -> Iterator[Network]:
    """Hosts whose links carry `rate` bit/s in each direction, for the duration of the context.

    If `rate` is None, or the machine does not permit namespaces, every host is this machine and links are
    unshaped; `Network.note` gives the reason and the remedy.

    >>> with links(workers=2, rate=None) as network:
    ...     network.hosts[1].address, network.shaped
    ('127.0.0.1', False)
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers={workers}: the lab has 1 to {MAX_WORKERS} hosts, one per worker")
    if rate is None:
        yield _loopback(workers, "no rate was requested")
        return
    if not MIN_RATE <= rate <= MAX_RATE:
        raise ConfigError(
            f"rate={rate:g}: links carry {MIN_RATE:g} to {MAX_RATE:g} bit/s (100 Mbit/s is rate=100e6); "
            "rate=None leaves them unshaped"
        )
    # Capabilities, sysctls, seccomp and security modules decide whether namespaces are permitted: just try.
    for new_user in (False, True):
        with ExitStack() as holders:
            try:
                hosts = _build(holders, workers, rate, new_user=new_user)
            except _RefusedError as refused:
                reason = str(refused)
                continue
            whose = "network namespaces of an unprivileged user" if new_user else "network namespaces"
            plural = "s" if workers > 1 else ""
            note = f"{workers} host{plural} in {whose}, links limited to {format_rate(rate)} by tbf"
            yield Network(hosts, True, note)
            return
    yield _loopback(workers, reason)


def parse_rate(text: str) -> float | None:
    """The rate in bit/s; None for unshaped links.

    >>> parse_rate("100Mbit"), parse_rate("2.5Gbit"), parse_rate("unshaped")
    (100000000.0, 2500000000.0, None)
    """
    if text == "unshaped":
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([mg])bit(?:/s)?", text.lower())
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        limits = f"from {format_rate(MIN_RATE)} to {format_rate(MAX_RATE)}"
        raise ConfigError(f"{text!r} is not a rate: write 100Mbit, 1Gbit, 10Gbit ({limits}) or unshaped")
    return rate


def format_rate(rate: float) -> str:
    """
    >>> format_rate(2.5e9), format_rate(100e6)
    ('2.5 Gbit/s', '100 Mbit/s')
    """
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"


def burst(rate: float) -> int:
    """Bucket size in bytes: one millisecond of traffic, as the kernel timer may not fire sooner."""
    return max(_MIN_BURST, math.ceil(rate / 8 * _BURST_SECONDS))


class _RefusedError(Exception):
    """This machine does not permit shaped links; the message gives the reason and the remedy."""


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
            # The Linux default: results should not depend on how this machine is configured.
            f"route replace {_PREFIX}.0/24 dev {_INTERFACE} src {host.address} congctl cubic",
        ]
        _run([*host.enter, ip, "-batch", "-"], setup)
        _run([*host.enter, tc, "-batch", "-"], [_shape(_INTERFACE, rate)])
    return hosts


def _shape(device: str, rate: float) -> str:
    queue = math.ceil(rate / 8 * _QUEUE_SECONDS)
    return f"qdisc add dev {device} root tbf rate {rate:.0f}bit burst {burst(rate)} limit {burst(rate) + queue}"


def _tool(name: str, package: str) -> str:
    # PATH often lacks the directories where distributions install network tools.
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if found is None:
        raise _RefusedError(f"`{name}` was not found; on Debian and Ubuntu, install the package {package}")
    return found


def _hold(holders: ExitStack, unshare: Sequence[str]) -> int:
    """Keep the namespace that `unshare` creates alive until `holders` closes; return the PID of its holder."""
    # In a new session: Ctrl-C must not tear down the network before the workers have been stopped.
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
    reason = " ".join(stderr.split()) or "no reason given"
    return _RefusedError(
        f"this machine does not permit network namespaces or tbf ({reason}); run as root, in a container with "
        "--privileged, or allow user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns)"
    )

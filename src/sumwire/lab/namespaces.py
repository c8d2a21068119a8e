"""Network namespaces for the lab: hosts that are each linked to a bridge, in a namespace of its own.

The network of this machine is never touched. Namespaces are unnamed. Each lives as long as its holder process, a `cat`
that reads a pipe from this process. When this process exits, for whatever reason, the pipe closes, the holder exits,
and the kernel removes the namespace with its links and filters.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

MAX_WORKERS = 250
"""Hosts share one /24 of addresses."""

PREFIX = "10.77.0"
SWITCH = f"{PREFIX}.254"
"""Address of the bridge, where it has one."""
INTERFACE = "eth0"
BRIDGE = "switch"

_BURST_SECONDS = 1e-3
_MIN_BURST = 32 << 10
_QUEUE_SECONDS = 0.05
_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


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
class Star:
    """Hosts around a bridge."""

    hosts: tuple[Host, ...]
    pids: tuple[int, ...]
    """Of the holders of the hosts' namespaces."""
    switch: Host
    """Where the bridge is."""
    switch_pid: int
    ports: tuple[str, ...]
    """Of the bridge, by host."""


class RefusedError(Exception):
    """This machine does not permit namespaces, or what they need; the message gives the reason and the remedy."""


def build(
    holders: ExitStack,
    workers: int,
    rate: float | None,
    *,
    new_user: bool = False,
    mtu: int = 1500,
    routed: bool = False,
) -> Star:
    """Hosts that live until `holders` closes; links carry `rate` bit/s, if given, in each direction.

    `routed` gives the bridge an address, `SWITCH`.
    """
    ip, tc = _tool("ip", "iproute2"), _tool("tc", "iproute2")
    unshare, nsenter = _tool("unshare", "util-linux"), _tool("nsenter", "util-linux")

    def enter(holder: int) -> tuple[str, ...]:
        user = ("--user", "--preserve-credentials") if new_user else ()
        return (nsenter, f"--target={holder}", "--net", *user)

    user = ("--user", "--map-root-user") if new_user else ()
    switch_pid = _hold(holders, [unshare, *user, "--net"])
    switch = enter(switch_pid)
    # Started inside the switch's namespaces, so that one user namespace owns all the others.
    pids = tuple(_hold(holders, [*switch, unshare, "--net"]) for _ in range(workers))
    hosts = tuple(Host(f"{PREFIX}.{rank + 1}", INTERFACE, enter(pid)) for rank, pid in enumerate(pids))

    ports = tuple(f"port{rank}" for rank in range(workers))
    wiring = [f"link add name {BRIDGE} mtu {mtu} type bridge", f"link set dev {BRIDGE} up"]
    for port, pid in zip(ports, pids, strict=True):
        wiring += [
            f"link add name {port} mtu {mtu} type veth peer name {INTERFACE} mtu {mtu} netns {pid}",
            f"link set dev {port} master {BRIDGE} up",
        ]
    if routed:
        wiring += ["link set dev lo up", f"address add {SWITCH}/24 dev {BRIDGE}"]
    run([*switch, ip, "-batch", "-"], wiring)
    if rate is not None:
        run([*switch, tc, "-batch", "-"], [_shape(port, rate) for port in ports])
    for host in hosts:
        setup = [
            "link set dev lo up",
            f"address add {host.address}/24 dev {INTERFACE}",
            f"link set dev {INTERFACE} up",
            # The Linux default: results should not depend on how this machine is configured.
            f"route replace {PREFIX}.0/24 dev {INTERFACE} src {host.address} congctl cubic",
        ]
        run([*host.enter, ip, "-batch", "-"], setup)
        if rate is not None:
            run([*host.enter, tc, "-batch", "-"], [_shape(INTERFACE, rate)])
    return Star(hosts, pids, Host(SWITCH, BRIDGE, switch), switch_pid, ports)


def inside(pid: int, call: Callable[[], T]) -> T:
    """`call()` in the network namespace of another process, in a thread that ends with it."""
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with open(f"/proc/{pid}/ns/net") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                    raise RefusedError(
                        f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}; run as root"
                    )
            done.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="sumwire-namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def burst(rate: float) -> int:
    """Bucket size in bytes: one millisecond of traffic, as the kernel timer may not fire sooner."""
    return max(_MIN_BURST, math.ceil(rate / 8 * _BURST_SECONDS))


def _shape(device: str, rate: float) -> str:
    queue = math.ceil(rate / 8 * _QUEUE_SECONDS)
    return f"qdisc add dev {device} root tbf rate {rate:.0f}bit burst {burst(rate)} limit {burst(rate) + queue}"


def _tool(name: str, package: str) -> str:
    # PATH often lacks the directories where distributions install network tools.
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if found is None:
        raise RefusedError(f"`{name}` was not found; on Debian and Ubuntu, install the package {package}")
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


def run(command: Sequence[str], lines: Sequence[str]) -> None:
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
    )
    if done.returncode != 0:
        raise _refusal(done.stderr)


def _refusal(stderr: str) -> RefusedError:
    reason = " ".join(stderr.split()) or "no reason given"
    return RefusedError(
        f"this machine does not permit network namespaces or tbf ({reason}); run as root, in a container with "
        "--privileged, or allow user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns)"
    )

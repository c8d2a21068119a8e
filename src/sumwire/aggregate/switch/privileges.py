"""Why this process may not load BPF programs, told by name: the kernel only says EPERM or EINVAL."""

from __future__ import annotations

import errno
import os
import platform
import re
from pathlib import Path

from sumwire.errors import ConfigError

CAPABILITIES = {12: "CAP_NET_ADMIN", 38: "CAP_PERFMON", 39: "CAP_BPF"}
"""By bit of CapEff in /proc/self/status."""

LEAST_KERNEL = (6, 9)
"""The first with `may_goto` in BPF programs. (tcx links came with 6.6.)"""

_ALL_USERS = (0, 0, (1 << 32) - 1)


class SwitchError(ConfigError):
    """This machine, or this process, cannot run the in-network aggregator; the message says what is missing."""


def missing(proc: Path = Path("/proc/self"), release: str | None = None) -> list[str]:
    """Everything that is missing, each with its remedy; empty if programs can be loaded."""
    if platform.system() != "Linux":
        return [f"the in-network aggregator runs on Linux, not on {platform.system()}"]
    return [*_kernel(platform.release() if release is None else release), *_capabilities(proc), *_user_namespace(proc)]


def check() -> None:
    """Raise `SwitchError` that names all that is missing."""
    found = missing()
    if found:
        raise SwitchError("cannot load BPF programs: " + "; ".join(found))


def failure(what: str, code: int) -> SwitchError:
    """The error for a system call that failed with `code`, though nothing seems to be missing."""
    found = missing()
    name = errno.errorcode.get(code, str(code))
    reason = "; ".join(found) if found else f"{os.strerror(code)} ({name})"
    return SwitchError(f"cannot {what}: {reason}")


def _kernel(release: str) -> list[str]:
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None or (int(match[1]), int(match[2])) < LEAST_KERNEL:
        return [f"Linux {release} is too old: {LEAST_KERNEL[0]}.{LEAST_KERNEL[1]} or later is needed"]
    return []


def _capabilities(proc: Path) -> list[str]:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", (proc / "status").read_text(), re.MULTILINE)
    effective = int(match[1], 16) if match else 0
    lacking = [f"{name} (bit {bit})" for bit, name in CAPABILITIES.items() if not effective >> bit & 1]
    if not lacking:
        return []
    return [f"this process lacks {', '.join(lacking)} in CapEff={effective:#x}: run as root, or grant them by setcap"]


def _user_namespace(proc: Path) -> list[str]:
    lines = (proc / "uid_map").read_text().split("\n")
    if len(lines) > 0 and tuple(map(int, lines[0].split())) == _ALL_USERS:
        return []
    return [
        f"this process is in a user namespace (uid_map: {' '.join(lines[0].split())}), where BPF programs cannot be "
        "loaded whatever CapEff says: run it in the initial one, such as a container with --privileged"
    ]

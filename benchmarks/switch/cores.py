"""What one packet costs the switch: CPU time of everything that works for it, kept apart from the workers' own.

Polling of every device runs in a kernel thread of its own (threaded NAPI). Those of the switch's ports are pinned to
one core, together with the user-space aggregator, if there is one; those of the hosts to another, together with the
workers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sumwire.lab.namespaces import INTERFACE, Host
from sumwire.lab.testbed import SwitchedNetwork

SWITCH_CORE, WORKER_CORE = 1, 0


def pin(bed: SwitchedNetwork, process: int | None) -> list[int]:
    """Give every device a thread; returns those of the switch, with its process, if it has one."""
    mine = [*_threaded(bed.switch, bed.ports), *(() if process is None else (process,))]
    others = [thread for host in bed.hosts for thread in _threaded(host, [INTERFACE])]
    for threads, core in ((mine, SWITCH_CORE), (others, WORKER_CORE)):
        for thread in threads:
            os.sched_setaffinity(thread, {core})
    return mine


def cpu_seconds(threads: Sequence[int]) -> float:
    """What these threads have used so far."""
    return sum(int(Path(f"/proc/{thread}/schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _threaded(host: Host, devices: Sequence[str]) -> list[int]:
    before = _polling()
    # A mount namespace of its own, because /sys shows the devices of the network namespace that mounted it.
    script = "mount -t sysfs sysfs /sys && for device; do echo 1 > /sys/class/net/$device/threaded; done"
    subprocess.run([*host.enter, "unshare", "--mount", "sh", "-c", script, "sh", *devices], check=True)
    return sorted(_polling() - before)


def _polling() -> set[int]:
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                name = (process / "comm").read_text()
            except OSError:  # it has ended
                continue
            if name.startswith("napi/"):
                found.add(int(process.name))
    return found

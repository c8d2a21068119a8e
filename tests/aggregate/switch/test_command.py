"""`sumwire switch`, as a process."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from sumwire.aggregate.protocol.packet import PacketKind
from sumwire.lab.namespaces import inside
from sumwire.lab.testbed import switched_network
from tests.aggregate.switch.packets import REASON
from tests.aggregate.switch.workers import SECRET, Worker, job_on

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture(scope="module")
def bed():
    with switched_network(1) as bed:
        yield bed


def command(bed, path: Path, *more: str) -> subprocess.Popen[str]:
    path.write_text(f'[[job]]\nnumber = 2\nname = "digits"\nsecret = "{SECRET}"\npeers = ["{bed.hosts[0].address}"]\n')
    options = ["--ports", ",".join(bed.ports), "--address", bed.switch.address, "--jobs", str(path), *more]
    return subprocess.Popen(
        [*bed.switch.enter, sys.executable, "-m", "sumwire", "switch", *options], stdout=subprocess.PIPE, text=True
    )


def test_the_command_shows_counters_and_detaches_however_it_ends(bed, tmp_path):
    job = job_on(bed, 0)
    with command(bed, tmp_path / "jobs.toml", "--http-port", "0") as process:
        assert "results of up to" in process.stdout.readline()
        url = process.stdout.readline().split()[2]
        mine = Worker(bed, job, 0)
        mine.merge(mine.hello()["session"], bytes(64))
        assert mine.receive()[0].kind == PacketKind.RESULT
        mine.socket.close()
        for _ in range(600):
            stats = json.loads(inside(bed.switch_pid, lambda: urllib.request.urlopen(url + "stats").read()))
            if stats["jobs"]["digits"]["finished"]:
                break
            time.sleep(0.1)
        assert stats["jobs"]["digits"]["workers"][0]["merged"] == 1
        metrics = inside(bed.switch_pid, lambda: urllib.request.urlopen(url + "metrics").read()).decode()
        assert 'sumwire_refused_packets_total{reason="control",shard="0"} 1.0' in metrics
        process.send_signal(signal.SIGTERM)
        assert "digits" in process.stdout.read()
        assert process.wait() == 0
    with command(bed, tmp_path / "jobs.toml") as process:
        process.stdout.readline()
        assert attached(bed) == len(bed.ports)
        os.kill(process.pid, signal.SIGKILL)
    for _ in range(600):
        if not attached(bed):
            break
        time.sleep(0.05)
    assert attached(bed) == 0


def attached(bed) -> int:
    """How many programs the ports have at tcx ingress: BPF_PROG_QUERY."""

    def ask() -> int:
        found = 0
        for port in bed.ports:
            # Target, attach type, flags; of the answer, the sixth word is the number of programs.
            attr = (ctypes.c_uint32 * 18)(socket.if_nametoindex(port), 46)
            call = {"x86_64": 321, "aarch64": 280}[platform.machine()]
            assert ctypes.CDLL(None).syscall(call, 16, attr, ctypes.sizeof(attr)) == 0
            found += attr[6]
        return found

    return inside(bed.switch_pid, ask)

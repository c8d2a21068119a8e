"""The testbed: hosts that reach each other, bad links, and nothing left behind."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise

import pytest

from sumwire.errors import ConfigError
from sumwire.lab import testbed
from sumwire.lab.namespaces import RefusedError, inside
from sumwire.lab.testbed import Impairment, switched_network
from tests.aggregate.switch.packets import REASON

needs_bpf = pytest.mark.skipif(bool(REASON), reason=REASON)


def wait_for_links(sender: socket.socket, receiver: socket.socket, to: tuple[str, int]) -> None:
    """Devices that have just come up may drop what they send, for as long as the kernel takes to notice."""
    for _ in range(200):
        sender.sendto(b"probe", to)
        try:
            assert receiver.recv(2000) == b"probe"
            break
        except TimeoutError:
            pass
    time.sleep(0.1)
    receiver.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            receiver.recv(2000)
    receiver.settimeout(0.05)


def received(bed, count: int, enough: float = math.inf) -> list[int]:
    """What arrives of `count` numbered datagrams of different lengths, whose bytes must be right."""
    got = []
    with (
        inside(bed.pids[1], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as receiver,
        inside(bed.pids[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
    ):
        receiver.bind(("0.0.0.0", 5000))
        receiver.settimeout(0.05)
        wait_for_links(sender, receiver, (bed.hosts[1].address, 5000))
        for number in range(count):
            body = bytes([number % 251] * (100 + number % 1000))
            sender.sendto(number.to_bytes(4, "big") + body, (bed.hosts[1].address, 5000))
            if number % 100 == 99:
                if number == count - 1:
                    receiver.settimeout(2.0)  # what is still on its way, on a machine that has much else to do
                with suppress(TimeoutError):
                    while len(got) < enough:
                        data = receiver.recv(2000)
                        if data == b"probe":  # that a bad link held back
                            continue
                        got.append(int.from_bytes(data[:4], "big"))
                        assert data[4:] == bytes([got[-1] % 251] * (100 + got[-1] % 1000))
    return got


@needs_bpf
def test_good_links_lose_nothing():
    with switched_network(2) as bed:
        assert received(bed, 500, enough=500) == list(range(500))
        assert bed.impaired() == {"lost": 0, "doubled": 0, "reordered": 0}


@needs_bpf
def test_bad_links_lose_double_and_reorder():
    with switched_network(2, impairment=Impairment(loss=0.1, duplicates=0.1, reordering=0.1)) as bed:
        got, counted = received(bed, 2000), bed.impaired()
    assert 1200 < len(set(got)) < 1900
    assert 250 < counted["lost"] < 550  # one of two copies, sometimes
    assert sum(after < before for before, after in pairwise(got)) > 50
    assert len(got) - len(set(got)) > 100
    assert all(counted.values())


@needs_bpf
def test_nothing_is_left_behind_when_it_is_killed():
    program = (
        "import time\n"
        "from sumwire.lab.testbed import Impairment, switched_network\n"
        "with switched_network(2, impairment=Impairment(loss=0.1)) as bed:\n"
        "    print(bed.switch_pid, *bed.pids, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        holders = [int(pid) for pid in process.stdout.readline().split()]
        assert len(holders) == 3
        assert all(os.path.exists(f"/proc/{pid}") for pid in holders)
        process.send_signal(signal.SIGKILL)
    for _ in range(1200):
        if not any(os.path.exists(f"/proc/{pid}") for pid in holders):
            break
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in holders)


@needs_bpf
def test_nothing_is_left_behind_when_building_fails(monkeypatch):
    seen = []

    def refuse(holders, pid, how):
        seen.append(pid)
        raise RefusedError("no bad links today")

    monkeypatch.setattr(testbed, "_impair", refuse)
    with pytest.raises(ConfigError, match="no bad links today"), switched_network(2, impairment=Impairment(loss=1.0)):
        pass
    assert seen
    assert not os.path.exists(f"/proc/{seen[0]}")


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(testbed, "missing", lambda: ["CAP_BPF is missing"])
    with pytest.raises(ConfigError, match="no testbed here: CAP_BPF is missing"), switched_network(2):
        pass


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_shares_are_shares(share):
    with pytest.raises(ConfigError, match=r"not in 0\.\.1"):
        Impairment(loss=share)


def test_limits_of_workers():
    with pytest.raises(ConfigError, match="1 to 250"), switched_network(0):
        pass

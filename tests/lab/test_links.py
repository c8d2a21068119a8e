import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from sumwire.errors import ConfigError
from sumwire.lab.links import Host, Network, burst, links

RATE = 100e6
PORT = 5001

RECEIVE = """
import socket, sys, time
server = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
peer, _ = server.accept()
total, start = len(peer.recv(1)), time.perf_counter()
while data := peer.recv(1 << 18):
    total += len(data)
print(total, start, time.perf_counter())
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as peer:
    peer.sendall(bytes(int(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with links(workers=3, rate=RATE) as network:
        if not network.shaped:
            pytest.skip(network.note)
        yield network


def measured(pairs: list[tuple[Host, Host]], nbytes: int) -> float:
    """Bit/s of all pairs together, each sending `nbytes` from the first host to the second."""
    receivers, senders = [], []
    try:
        for port, (_, receiver) in enumerate(pairs, PORT):
            command = [*receiver.enter, sys.executable, "-c", RECEIVE, str(port)]
            receivers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert receivers[-1].stdout is not None
            assert receivers[-1].stdout.readline() == "listening\n"
        for port, (sender, receiver) in enumerate(pairs, PORT):
            command = [*sender.enter, sys.executable, "-c", SEND, receiver.address, str(port), str(nbytes)]
            senders.append(subprocess.Popen(command))
        results = [process.communicate(timeout=60)[0].split() for process in receivers]
        assert [process.wait() for process in senders] == [0] * len(pairs)
    finally:
        for process in receivers + senders:
            process.kill()
            process.communicate()
    totals, starts, ends = zip(*(map(float, result) for result in results), strict=True)
    assert totals == (nbytes,) * len(pairs)
    return 8 * sum(totals) / (max(ends) - min(starts))


def check_rate(pairs: list[tuple[Host, Host]], nbytes: int, low: float, high: float) -> None:
    """A link of the wrong rate never carries the right one; one of the right rate may seem slower, or after a pause
    of the receiver faster, when the machine is busy. So one good measurement of several is enough."""
    rates: list[float] = []
    while not (rates and low * RATE < rates[-1] < high * RATE):
        rates.append(measured(pairs, nbytes))
        assert len(rates) < 20, rates


def holders(network: Network) -> list[Path]:
    return [Path("/proc") / word.split("=")[1] for host in network.hosts for word in host.enter if "--target=" in word]


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = monotonic() + seconds
    while not condition() and monotonic() < deadline:
        sleep(0.01)
    return condition()


@pytest.mark.parametrize(
    "pairs", [[(0, 1)], [(0, 2), (1, 2)], [(0, 1), (0, 2)]], ids=["one to one", "into one port", "out of one host"]
)
def test_a_link_carries_its_rate_and_no_more(network: Network, pairs: list[tuple[int, int]]) -> None:
    hosts = network.hosts
    check_rate([(hosts[a], hosts[b]) for a, b in pairs], 6_000_000 // len(pairs), 0.7, 1.05)


def test_directions_do_not_share_the_rate(network: Network) -> None:
    a, b, _ = network.hosts
    check_rate([(a, b), (b, a)], 8_000_000, 1.2, 2.1)


def test_hosts_have_their_addresses_and_only_their_links(network: Network) -> None:
    assert len({host.address for host in network.hosts}) == 3
    for host in network.hosts:
        shown = subprocess.check_output([*host.enter, "cat", "/proc/net/dev"], text=True)
        assert [line.split(":")[0].strip() for line in shown.splitlines()[2:]] == ["lo", host.interface]
        bind = f"import socket; socket.create_server(({host.address!r}, 0)).close()"
        subprocess.run([*host.enter, sys.executable, "-c", bind], check=True)


def test_the_machine_sees_nothing_of_it(network: Network) -> None:
    before = Path("/proc/net/dev").read_text().count(":")
    with links(workers=2, rate=RATE) as second:
        assert second.shaped
        assert Path("/proc/net/dev").read_text().count(":") == before
        # Networks are isolated: same addresses, no route between them.
        assert second.hosts[0].address == network.hosts[0].address
        assert measured([(second.hosts[0], second.hosts[1])], nbytes=100_000) > 0


def test_note_names_number_and_rate(network: Network) -> None:
    assert network.note.startswith("3 hosts in network namespaces")
    assert network.note.endswith("links limited to 100 Mbit/s by tbf")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(network: Network, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with links(workers=2, rate=RATE) as second:
            held.extend(holders(second))
            assert all(path.exists() for path in held)
            raise error

    held: list[Path] = []
    with pytest.raises(error):
        interrupted()
    assert len(held) == 2
    assert not any(path.exists() for path in held)


def test_nothing_is_left_after_a_killed_run(network: Network) -> None:
    script = (
        "from sumwire.lab.links import links\n"
        "with links(workers=2, rate=1e9) as network:\n"
        "    print(*(host.enter[1].split('=')[1] for host in network.hosts), flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        held = [Path("/proc") / pid for pid in run.stdout.readline().decode().split()]
        assert len(held) == 2
        run.send_signal(signal.SIGKILL)
    assert eventually(lambda: not any(path.exists() for path in held))


def fake_unshare(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake = directory / "unshare"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)


def test_users_without_privileges_get_shaped_links_too(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As root, simulate that plain namespaces are not permitted: a user namespace must be used.
    outside = "[ \"$1\" != --user ] && grep -q 4294967295 /proc/self/uid_map && { echo 'not you' >&2; exit 1; }"
    fake_unshare(tmp_path, monkeypatch, f'{outside}\nexec {shutil.which("unshare")} "$@"')
    tmp_path.chmod(0o755)
    with links(workers=2, rate=RATE) as second:
        if not second.shaped:
            pytest.skip(second.note)
        assert "unprivileged" in second.note
        a, b = second.hosts
        check_rate([(a, b)], 4_000_000, 0.7, 1.05)


def check_loopback(network: Network, workers: int) -> None:
    assert not network.shaped
    assert network.hosts == (Host("127.0.0.1", "lo", ()),) * workers
    assert measured([(network.hosts[0], network.hosts[1])], nbytes=1_000_000) > 0


def test_without_a_rate_hosts_are_this_machine() -> None:
    with links(workers=2, rate=None) as network:
        check_loopback(network, 2)
        assert network.note == "links are unshaped: no rate was requested"


def test_refused_namespaces_leave_links_unshaped_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_unshare(tmp_path, monkeypatch, "echo 'unshare failed: Operation not permitted' >&2; exit 1")
    with links(workers=2, rate=RATE) as network:
        check_loopback(network, 2)
        assert network.note.startswith("links are unshaped: ")
        assert "(unshare failed: Operation not permitted); run as root" in network.note


@pytest.mark.parametrize(("tool", "package"), [("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")])
def test_missing_tools_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch, tool: str, package: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == tool else f"/bin/{name}")
    with links(workers=2, rate=RATE) as network:
        assert network.note == (
            f"links are unshaped: `{tool}` was not found; on Debian and Ubuntu, install the package {package}"
        )


@pytest.mark.parametrize(
    ("workers", "rate", "message"),
    [
        (0, RATE, "workers=0: the lab has 1 to 250 hosts"),
        (251, None, "1 to 250 hosts"),
        (2, 0, r"1e\+06 to 1e\+11 bit/s"),
        (2, -1e9, "rate=None leaves them unshaped"),
        (2, 100, r"100 Mbit/s is rate=100e6"),
        (2, float("nan"), "rate=nan"),
        (2, float("inf"), "rate=inf"),
    ],
)
def test_impossible_networks_are_refused(workers: int, rate: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message), links(workers=workers, rate=rate):
        pass


def test_buckets_hold_a_millisecond_but_never_less_than_some_packets() -> None:
    assert [burst(rate) for rate in (1e6, 100e6, 1e9, 10e9)] == [32768, 32768, 125_000, 1_250_000]

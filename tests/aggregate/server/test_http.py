"""What a server shows over HTTP: real servers, real requests, a real browser."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire.aggregate.server import http
from tests.aggregate.server import browser

WORKERS = 3
CHROMIUM = browser.find()


@pytest.fixture(scope="module")
def server() -> Iterator[sumwire.Server]:
    with sumwire.Server(workers=WORKERS, shards=2, http_port=0) as server, averaging(server):
        wait(lambda: "default" in stats(server)["jobs"] and stats(server)["jobs"]["default"]["rates"]["rounds"] > 0)
        yield server


@contextmanager
def averaging(server: sumwire.Server) -> Iterator[None]:
    """Workers that average tensors all the time, the last of them late."""
    end = threading.Event()

    def work(rank: int) -> None:
        x = np.full(20_000, rank, np.float32)
        with sumwire.connect(server.address, rank=rank, workers=WORKERS) as link:
            for step in range(100_000):
                time.sleep(0.03 if rank == WORKERS - 1 else 0.01)
                # All must stop at the same round: the first worker's last one is all others' last one.
                last = rank == 0 and end.is_set()
                x[0] = last
                if link.average(x, codec=sumwire.Sparse(WORKERS))[0] or step == 99_999:
                    return
                link.report(nmse=0.25)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def wait(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def get(server: sumwire.Server, path: str) -> tuple[int, dict[str, str], bytes]:
    assert server.status_pages is not None
    try:
        with urllib.request.urlopen(server.status_pages.url + path, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def stats(server: sumwire.Server) -> Any:
    return json.loads(get(server, "stats")[2])


def http_port(server: sumwire.Server) -> int:
    assert server.status_pages is not None
    return server.status_pages.port


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(request)
        out = b""
        try:
            while data := sock.recv(1 << 16):
                out += data
        except ConnectionResetError:  # what was not read is in the way of a quiet end
            pass
        return out


def test_stats_tell_what_workers_did(server: sumwire.Server) -> None:
    before = stats(server)["jobs"]["default"]["finished"]
    wait(lambda: stats(server)["jobs"]["default"]["finished"] > before)
    told = stats(server)
    job = told["jobs"]["default"]
    assert (told["healthy"], told["workers"], told["quorum"], told["shards"]) == (True, WORKERS, WORKERS, 2)
    assert job["connected"] == [0, 1, 2]
    assert (job["headroom"], job["largest"], job["nmse"], job["failed"]) == (WORKERS, WORKERS, 0.25, 0)
    assert 0 < job["p50"] <= job["p99"] < 5
    assert job["rates"]["bytes_in"] > 0
    assert job["saved"] == job["fp32"] - job["bytes_in"] - job["bytes_out"]


def test_the_slow_worker_is_the_straggler(server: sumwire.Server) -> None:
    workers = stats(server)["jobs"]["default"]["workers"]
    assert {worker["rank"] for worker in workers} == {0, 1, 2}
    assert workers[0]["rank"] == WORKERS - 1
    assert workers[0]["add_max"] >= workers[0]["add"] > 0.005


def test_healthz_is_well_while_shards_report(server: sumwire.Server) -> None:
    status, _, body = get(server, "healthz")
    assert (status, json.loads(body)) == (200, {"healthy": True, "problems": []})


def test_healthz_names_a_silent_shard(server: sumwire.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumwire.aggregate.server.statistics.SILENCE", 1.5)
    shard = server._shards[1]
    shard.send_signal(signal.SIGSTOP)
    try:
        wait(lambda: get(server, "healthz")[0] == 503)
        assert json.loads(get(server, "healthz")[2])["problems"] == ["shard 1 has not reported for 2 s"]
        assert stats(server)["healthy"] is False
    finally:
        shard.send_signal(signal.SIGCONT)
    wait(lambda: get(server, "healthz")[0] == 200)


def test_metrics_without_the_package_tell_how_to_get_it(
    server: sumwire.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "sumwire.aggregate.server.exposition", raising=False)
    monkeypatch.delattr("sumwire.aggregate.server.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, _, body = get(server, "metrics")
    hint = b'pip install ".[server]" in the source tree of Sumwire'
    assert (status, body) == (501, b"/metrics needs prometheus-client: " + hint + b"\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /stats HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET stats HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /stats HTTP/2.0\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 3 * http.MAX_REQUEST, b"431"),
        (b"GET /stats?x=1 HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_each_bad_request_has_its_answer(server: sumwire.Server, request_: bytes, status: bytes) -> None:
    # A client that is cut off while it still sends may not get to read why.
    assert raw(http_port(server), request_)[:12] in (b"HTTP/1.1 " + status, *([b""] if status == b"431" else []))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"Host: localhost:80", b"200"),
        (b"host:127.0.0.1", b"200"),
        (b"Host: [::1]:80", b"200"),
        (b"Host: page.example", b"200"),
        (b"X: y", b"200"),
        (b"Host: evil.example:4700", b"421"),
        (b"hOST: evil.example", b"421"),
    ],
)
@pytest.mark.parametrize("path", [b"/stats", b"/"])
def test_no_other_sites_page_can_read_ours(path: bytes, host: bytes, status: bytes, server: sumwire.Server) -> None:
    """A name that somebody else owns, and lets point here, is not ours."""
    shown = http.StatusPages(server, names=["page.example"])
    shown.start()
    try:
        answer = raw(shown.port, b"GET " + path + b" HTTP/1.1\r\n" + host + b"\r\n\r\n")
    finally:
        shown.stop()
    assert answer.split(b" ")[1] == status


def test_head_has_headers_alone(server: sumwire.Server) -> None:
    head, _, body = raw(http_port(server), b"HEAD / HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Content-Length: " in head
    assert body == b""


def test_idle_clients_are_cut_off_and_stall_nobody(server: sumwire.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 600.0)  # so that nobody is cut off before the answer but to make room
    address = ("127.0.0.1", http_port(server))
    idle = [socket.create_connection(address, timeout=60) for _ in range(3 * http.MAX_CONNECTIONS)]
    try:
        idle[-1].sendall(b"GET /stats HTTP/1.1\r\n")
        assert get(server, "healthz")[0] == 200
        assert idle[0].recv(1) == b""  # the first had to make room
        monkeypatch.setattr(http, "PATIENCE", 0.1)
        idle.append(socket.create_connection(address, timeout=60))
        idle[-1].sendall(b"GET /stats HTTP/1.1\r\n")
        assert idle[-1].recv(1) == b""  # the last had its time
    finally:
        for sock in idle:
            sock.close()


def test_the_page_allows_nothing_from_elsewhere(server: sumwire.Server) -> None:
    status, headers, body = get(server, "")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    text = body.decode().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert "http://" not in text
    assert "https://" not in text
    assert " src=" not in text


def test_shards_log_as_they_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    with sumwire.Server(workers=1, log_format="json") as server:
        raw(server.port, b"GET / HTTP/1.1\r\n\r\n")
    (line,) = capfd.readouterr().err.splitlines()
    logged = json.loads(line)
    assert (logged["level"], logged["shard"]) == ("warning", 0)
    assert re.match(r"a stranger at 127\.0\.0\.1:\d+ is refused", logged["message"])


def test_the_log_tells_who_comes_and_goes_and_which_rounds_fail(capfd: pytest.CaptureFixture[str]) -> None:
    with sumwire.Server(workers=2, timeout=0.3, log_format="json", log_level="info") as server:
        link = sumwire.connect(server.address, rank=1, workers=2, job="night")
        with link, pytest.raises(sumwire.RoundError, match="workers 0 sent nothing"):
            link.average(np.ones(5, np.float32))
        server.wait(lambda: server.reports.get(0, {"jobs": {}})["jobs"].get("night", {}).get("connected") == [])
    messages = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    assert re.fullmatch(r"job night: worker 1 at 127\.0\.0\.1:\d+ is here", messages[0])
    assert re.fullmatch(r"job night: round \d+ failed: workers 0 sent nothing for 0.3 s", messages[1])
    assert "job night: worker 1 is gone" in messages


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = sumwire.Server(workers=1, http_port=port)
        with pytest.raises(sumwire.ConfigError, match=f"http_port={port}"):
            server.start()
        assert server._shards == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_page_lives_in_a_browser_and_says_when_the_server_is_gone(server: sumwire.Server) -> None:
    assert CHROMIUM is not None
    shown = http.StatusPages(server)
    shown.start()
    with browser.Browser(CHROMIUM) as tab:
        tab.ask("Page.navigate", url=shown.url)
        tab.until("document.querySelector('#state')?.textContent === 'live'")
        tab.until("document.querySelectorAll('#bars .name').length === 3")
        assert tab.evaluate("document.querySelector('#connected').textContent") == "3 of 3"
        before = tab.evaluate("document.querySelector('#rounds-note').textContent")
        tab.until(f"document.querySelector('#rounds-note').textContent !== {json.dumps(before)}")
        tab.until("(document.querySelector('#rounds-chart .curve')?.getAttribute('d') ?? '').includes('L')")
        tab.resize(390, 844, phone=True)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.errors == []
        shown.stop()
        tab.until("document.querySelector('#state').textContent === 'gone'")
        assert "does not answer since" in tab.evaluate("document.querySelector('#banner').textContent")
        assert all("Failed to load resource" in error for error in tab.errors)

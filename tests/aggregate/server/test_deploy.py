"""What is in deploy/, on the real thing where it is installed: systemd's own checks, and a Prometheus that scrapes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sumwire
from sumwire.aggregate.server.server import _listen

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = DEPLOY / "sumwire.service"


def needs(program: str) -> Any:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def answer(url: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=60) as response:
        return json.load(response)


# systemd


def verified(text: str, folder: Path) -> str:
    """What systemd has to say about a unit."""
    unit = folder / UNIT.name
    unit.write_text(text.replace("/opt/sumwire/bin/sumwire", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@needs("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    assert verified(UNIT.read_text(), tmp_path) == ""
    assert "Unknown key" in verified(UNIT.read_text().replace("ProtectHome", "ProtectHom"), tmp_path)


# Prometheus


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[str]:
    """One that scrapes four times a second; gives its address."""
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"
        f"scrape_configs: [{{job_name: sumwire, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    subprocess.run(["promtool", "check", "config", config], check=True, capture_output=True)
    (sock,) = _listen("127.0.0.1", 0, 1)
    address = f"127.0.0.1:{sock.getsockname()[1]}"
    sock.close()
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield f"http://{address}/api/v1"
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def busy(server: sumwire.Server) -> Iterator[None]:
    """Two workers that average until the end, and report errors."""
    end = threading.Event()

    def work(link: sumwire.Link) -> None:
        with suppress(sumwire.RoundError):  # when the other has ended before it
            while not end.wait(0.02):
                link.average(np.ones(10_000, np.float32))
                link.report(nmse=0.01)

    with ExitStack() as links:
        threads = [
            threading.Thread(
                target=work, args=[links.enter_context(sumwire.connect(server.address, rank=rank, workers=2))]
            )
            for rank in range(2)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
    for thread in threads:
        thread.join(10)


def expressions() -> dict[str, str]:
    """Those of the dashboard's panels, with its variables filled in."""
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$job", "default")
        .replace("$__rate_interval", "5s")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }


def alerts() -> list[str]:
    """Those that the README recommends."""
    text = (DEPLOY / "README.md").read_text().partition("Worth an alert:")[2]
    return re.findall(r"\| `(.+)` \|", text)


@needs("prometheus")
@needs("promtool")
def test_a_real_prometheus_answers_every_panel_of_the_dashboard(tmp_path: Path) -> None:
    with sumwire.Server(2, shards=2, http_port=0) as server, busy(server):
        assert server.status_pages is not None
        target = server.status_pages.url.removeprefix("http://").rstrip("/")
        with prometheus(target, tmp_path) as api:
            empty = expressions()
            assert len(empty) > 15
            until = time.monotonic() + 200
            while empty and time.monotonic() < until:
                time.sleep(0.5)
                with suppress(OSError):  # until it listens
                    for name, expression in list(empty.items()):
                        found = answer(f"{api}/query", query=expression)["data"]["result"]
                        if found and all(np.isfinite(float(series["value"][1])) for series in found):
                            del empty[name]
            assert not empty, f"no answer to {empty}: {(tmp_path / 'log').read_text()[-2000:]}"
            jobs = answer(f"{api}/label/job_name/values", **{"match[]": "sumwire_rounds_total"})
            assert jobs["data"] == ["default"]
            assert len(alerts()) >= 4
            for expression in alerts():  # none is due, but what they compare is there
                assert answer(f"{api}/query", query=expression)["data"]["result"] == []
                compared = re.split(" (?:==|<|>) ", expression)[0]
                assert answer(f"{api}/query", query=compared)["data"]["result"], compared


@needs("promtool")
def test_promtool_has_nothing_to_say_about_the_metrics() -> None:
    with sumwire.Server(2, shards=2, http_port=0) as server, busy(server):
        assert server.status_pages is not None
        until = time.monotonic() + 120
        text = b""
        while b"sumwire_nmse{" not in text and time.monotonic() < until:
            time.sleep(0.2)
            with urllib.request.urlopen(f"{server.status_pages.url}metrics", timeout=60) as response:
                text = response.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")

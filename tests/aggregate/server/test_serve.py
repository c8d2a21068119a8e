"""`sumwire serve`: every option of `Server`, from the command line."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sumwire
from sumwire.aggregate.server import server as server_module
from sumwire.cli import main, serve

TLS = {"tls_cert", "tls_key", "tls_ca"}
TOKENS = {"token_file", "require_token", "upstream_token_file"}
UPSTREAM_TLS = {"upstream_ca", "upstream_cert", "upstream_key"}


@contextmanager
def running(*options: str) -> Iterator[str]:
    """The address of a server that was started by the command, and is ended as systemd does."""
    command = [sys.executable, "-m", "sumwire", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        found = re.search(r"ports? (\d+)", process.stdout.readline())
        assert found is not None
        yield f"127.0.0.1:{found[1]}"
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.endswith("sumwire serve: ended\n")


def test_every_option_of_the_server_can_be_given() -> None:
    options = {parameter.name for parameter in serve.params}
    parameters = set(inspect.signature(sumwire.Server.__init__).parameters) - {"self", "tls", "upstream_tls"}
    assert options == parameters | TLS | TOKENS | UPSTREAM_TLS
    text = CliRunner().invoke(main, ["serve", "--help"]).output
    assert all(parameter.opts[0] in text and parameter.help for parameter in serve.params)  # type: ignore[attr-defined]


def test_sizes_are_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(server_module, "run", lambda **options: given.update(options))
    result = CliRunner().invoke(main, ["serve", "--workers", "2", "--memory", "3", "--max-frame", "5"])
    assert result.exit_code == 0, result.output
    assert (given["memory"], given["max_frame"]) == (3 << 20, 5 << 20)


def test_a_token_comes_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(server_module, "run", lambda **options: given.update(options))
    file, empty = tmp_path / "token", tmp_path / "empty"
    file.write_text("from a file\n")
    empty.write_text("\n")
    serving = ["serve", "--workers", "2"]

    def invoke(*options: str, **env: str) -> Any:
        return CliRunner().invoke(main, [*serving, *options], env=env)

    assert invoke(SUMWIRE_TOKEN="from outside").output == ""
    assert given["token"] == "from outside"
    assert invoke("--token-file", str(file)).output == ""
    assert given["token"] == "from a file"
    told = invoke("--token", "secret").output
    assert "--token can be read in the list of processes" in told
    assert "secret" not in told
    assert "both given" in invoke("--token", "x", "--token-file", str(file)).output
    assert "no token in its first line" in invoke("--token-file", str(empty)).output
    assert "set SUMWIRE_TOKEN" in invoke("--require-token").output
    assert invoke("--require-token", SUMWIRE_TOKEN="x").exit_code == 0


def test_the_image_does_not_listen_to_everybody_without_a_token() -> None:
    image = (Path(__file__).parents[3] / "deploy" / "Containerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)
    command, *options = json.loads(entry)
    assert command == "sumwire"
    result = CliRunner().invoke(main, [*options, "--workers", "4"], env={"SUMWIRE_TOKEN": ""})
    assert result.exit_code == 2
    assert "--require-token" in result.output


@pytest.mark.parametrize(
    ("host", "token", "warns"), [("0.0.0.0", "", True), ("0.0.0.0", "x", False), ("127.0.0.1", "", False)]
)
def test_listening_to_everybody_without_a_token_is_warned_of(
    host: str, token: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with sumwire.Server(workers=1, host=host, token=token):
        pass
    assert ("without a token" in caplog.text) == warns


def test_shards_run_nothing_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module there that is called like one of the library's would be imported instead of it."""
    (tmp_path / "hmac.py").write_text("def compare_digest(a, b):\n    return True\n")
    (tmp_path / "json.py").write_text("raise SystemExit('this is not json')\n")
    monkeypatch.chdir(tmp_path)
    with sumwire.Server(workers=1, token="right") as server:
        link = sumwire.connect(server.address, rank=0, workers=1, token="wrong")
        with pytest.raises(sumwire.RoundError, match="the token is wrong"), link:
            pass


@pytest.mark.parametrize("size", ["0", "4097", "1.5", "many"])
def test_frames_that_no_header_can_announce_are_refused(size: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--workers", "2", "--max-frame", size])
    assert result.exit_code == 2
    assert "--max-frame" in result.output


def test_a_frame_over_the_limit_is_refused_and_says_so() -> None:
    x, codec = np.ones(200_000, np.float32), sumwire.Sketch(1)  # 8 bytes a value, which is over a MiB
    with (
        running("--workers", "1", "--max-frame", "1") as address,
        sumwire.connect(address, rank=0, workers=1, retry=0.1) as link,
    ):
        assert np.array_equal(link.average(x[:100_000], codec=codec), x[:100_000])
        with pytest.raises(sumwire.RoundError, match=r"body length 1600016 is over .* limit of 1048576"):
            link.average(x, codec=codec)


def test_racks_and_a_root_are_three_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUMWIRE_TOKEN", "of the root")
    codec, xs = sumwire.Lattice(4), [np.full(3000, rank, np.float32) for rank in range(4)]
    with running("--workers", "4") as root, ExitStack() as stack:
        monkeypatch.setenv("SUMWIRE_UPSTREAM_TOKEN", "of the root")
        monkeypatch.setenv("SUMWIRE_TOKEN", "of the racks")
        racks = [
            stack.enter_context(running("--workers", "4", "--upstream", root, "--ranks", ranks))
            for ranks in ("0-1", "2-3")
        ]

        def work(rank: int) -> Any:
            with sumwire.connect(racks[rank // 2], rank=rank, workers=4, token="of the racks") as link:
                return link.upcoming, link.average(xs[rank])

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(work, range(4)))
    for first, mean in results:
        assert np.array_equal(mean, sumwire.average(codec, xs, round_id=first))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ranks", "3-0", "--upstream", "a"), "--ranks 3-0 is not FIRST-LAST"),
        (("--ranks", "0-1"), "upstream and ranks belong together"),
        (("--upstream-cert", __file__, "--upstream-key", __file__), "need --upstream-ca"),
    ],
)
def test_impossible_racks_are_refused(options: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--workers", "4", *options])
    assert result.exit_code != 0
    assert said in result.output

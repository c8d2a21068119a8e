"""`sumwire serve`: every option of `Server`, from the command line."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sumwire
from sumwire.aggregate.server import run
from sumwire.cli import main, serve

TLS = {"tls_cert", "tls_key", "tls_ca"}


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
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said.endswith("sumwire serve: ended\n")


def test_every_option_of_the_server_can_be_given() -> None:
    options = {parameter.name for parameter in serve.params}
    expected = set(inspect.signature(sumwire.Server.__init__).parameters) - {"self", "tls"} | TLS
    assert options == expected
    text = CliRunner().invoke(main, ["serve", "--help"]).output
    assert all(parameter.opts[0] in text and parameter.help for parameter in serve.params)  # type: ignore[attr-defined]


def test_sizes_are_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(run, "run", lambda **options: given.update(options))
    result = CliRunner().invoke(main, ["serve", "--workers", "2", "--memory", "3", "--max-frame", "5"])
    assert result.exit_code == 0, result.output
    assert (given["memory"], given["max_frame"]) == (3 << 20, 5 << 20)


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

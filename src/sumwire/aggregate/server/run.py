"""`sumwire serve`: a server in the foreground, until it is told to end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from sumwire.aggregate.server import logs
from sumwire.aggregate.server.server import Server
from sumwire.errors import ConfigError


def read_token(path: str) -> str:
    """The token in a file: its first line, so that an editor's newline does not matter."""
    token = Path(path).read_text("utf-8").partition("\n")[0].strip()
    if not token:
        raise ConfigError(f"{path} has no token in its first line: write it there, and nothing else")
    return token


def run(*, log_format: str, log_level: str, **options: Any) -> None:
    """Serve until SIGINT or SIGTERM."""
    logs.configure(log_format, log_level)
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, _: told.append(signum))
    with Server(log_format=log_format, log_level=log_level, **options) as server:
        shards = server.options.shards
        ports = f"port {server.port}" if shards == 1 else f"ports {server.port}..{server.port + shards - 1}"
        rules = server.options.rules
        print(f"sumwire serve: {ports}, {rules.workers} workers, a round waits for {rules.needed}", flush=True)
        if server.status_pages is not None:
            print(f"sumwire serve: {server.status_pages.url} shows it live", flush=True)
        server.wait(lambda: bool(told))
    print("sumwire serve: ended", flush=True)

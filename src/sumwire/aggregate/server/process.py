"""A server's processes: how they write their logs, and what a shard's does.

The parent writes one line of JSON to a shard's standard input, and closes it to end the process. Every second the
shard writes a line of JSON to its standard output: what it has done so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sumwire.aggregate.protocol.tls import server_context
from sumwire.aggregate.server.options import Options, Rules, Upstream
from sumwire.aggregate.server.shard import Shard
from sumwire.errors import ConfigError
from sumwire.kernels.threads import set_num_threads

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

FORMATS = ("text", "json")
LEVELS = ("info", "warning", "error")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

REPORT = 1.0
"""Seconds between reports."""


def check_log(log_format: str, log_level: str) -> dict[str, str]:
    """What `configure_log` takes, if both are known."""
    for name, value, known in (("log_format", log_format, FORMATS), ("log_level", log_level, LEVELS)):
        if value not in known:
            raise ConfigError(f"{name}={value!r} is not one of {', '.join(known)}")
    return {"log_format": log_format, "log_level": log_level}


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and what all lines of a process have in common.

    >>> record = logging.LogRecord("sumwire", logging.INFO, "x.py", 1, "round %d", (7,), None)
    >>> json.loads(JsonFormatter(shard=1).format(record))["message"]
    'round 7'
    """

    def __init__(self, **common: object) -> None:
        super().__init__()
        self._common = common

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._common,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


def configure_log(log_format: str, log_level: str, **common: object) -> None:
    """Write this process's log to standard error. For programs, not for libraries: it sets up the root logger."""
    check_log(log_format, log_level)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(**common) if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])


def settings(options: Options, shard: int, descriptor: int, tls: list[str | None] | None, log: dict[str, str]) -> str:
    """What a shard is told at its start."""
    told = {"options": asdict(options), "shard": shard, "socket": descriptor, "tls": tls, "log": log}
    return json.dumps(told)


async def serve(told: dict[str, Any]) -> None:
    """Run one shard until standard input ends."""
    values = told["options"]
    ranks, upstream = values["rules"]["ranks"], values["upstream"]
    rules = Rules(**{**values["rules"], "ranks": None if ranks is None else tuple(ranks)})
    upstream = None if upstream is None else Upstream(**upstream)
    options = Options(**{**values, "rules": rules, "upstream": upstream})
    shard = Shard(options, told["shard"])
    tls = None if told["tls"] is None else server_context(*told["tls"])
    await shard.start(socket.socket(fileno=told["socket"]), tls)
    reporting = asyncio.create_task(_report(shard))
    await _end_of_input()
    reporting.cancel()
    await shard.stop()


async def _report(shard: Shard) -> None:
    while True:
        print(json.dumps(shard.report()), flush=True)
        await asyncio.sleep(REPORT)


async def _end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


def main() -> None:
    """What a shard's process does. Only `Server` starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it too, and ends us in order
    set_num_threads(1)  # a shard is a core; who has more of them starts more shards
    if resource is not None:  # every worker is an open file
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    told = json.loads(sys.stdin.readline())
    configure_log(**told["log"], shard=told["shard"])
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(serve(told))

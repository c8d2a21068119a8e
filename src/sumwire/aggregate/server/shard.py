"""A shard's process: listens on a socket that it inherits, until its parent goes away.

The parent writes one line of JSON to its standard input, and closes it to end the process. Every second the shard
writes a line of JSON to its standard output: what it has done so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any

from sumwire.aggregate.protocol.tls import server_context
from sumwire.aggregate.server import logs
from sumwire.aggregate.server.rules import Rules
from sumwire.aggregate.server.service import Options, Service
from sumwire.kernels.threads import set_num_threads

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

REPORT = 1.0
"""Seconds between reports."""


def settings(options: Options, shard: int, descriptor: int, tls: list[str | None] | None, log: dict[str, str]) -> str:
    """What a shard is told at its start."""
    told = {"options": asdict(options), "shard": shard, "socket": descriptor, "tls": tls, "log": log}
    return json.dumps(told)


async def serve(told: dict[str, Any]) -> None:
    """Run one shard until standard input ends."""
    values = told["options"]
    options = Options(**{**values, "rules": Rules(**values["rules"])})
    service = Service(options, told["shard"])
    tls = None if told["tls"] is None else server_context(*told["tls"])
    await service.start(socket.socket(fileno=told["socket"]), tls)
    reporting = asyncio.create_task(_report(service))
    await _end_of_input()
    reporting.cancel()
    await service.stop()


async def _report(service: Service) -> None:
    while True:
        print(json.dumps(service.report()), flush=True)
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
    logs.configure(**told["log"], shard=told["shard"])
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(serve(told))

"""How a server's processes write their logs: text for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from sumwire.errors import ConfigError

FORMATS = ("text", "json")
LEVELS = ("info", "warning", "error")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def check(log_format: str, log_level: str) -> dict[str, str]:
    """What `configure` takes, if both are known."""
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


def configure(log_format: str, log_level: str, **common: object) -> None:
    """Write this process's log to standard error. For programs, not for libraries: it sets up the root logger."""
    check(log_format, log_level)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(**common) if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])

"""Logs of commands that serve, on standard error: lines for people, or a JSON object a line.

No token is ever logged: headers and bodies, which carry them, are not handed to a logger anywhere.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Final

FORMATS: Final = ("plain", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON: time, level, logger, message, and the caller's other fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=_plain)


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


class PlainFormatter(logging.Formatter):
    """Formats a record as a line for people. Names in it that a stranger chose cannot begin a new line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        escaped = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
        tenant, request = getattr(record, "tenant", None), getattr(record, "request", None)
        return escaped + (f" [{tenant or '-'} {request}]" if request else "")


def log_to_stderr(form: str, level: str) -> None:
    """Sends the logs of `switchagg`, and warnings of other packages, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("switchagg").setLevel(level.upper())

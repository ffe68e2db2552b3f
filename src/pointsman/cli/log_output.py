"""Where the log of the library goes: to stderr, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from pointsman.cli.output import echo

LEVELS = ("debug", "info", "warning", "error")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogHandler(logging.Handler):
    """Writes each record as one line; a live display can take the lines over."""

    def __init__(self) -> None:
        super().__init__()
        self.write: Callable[[str], None] = lambda line: echo(line, err=True)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write(self.format(record))
        except Exception:  # noqa: BLE001 - a log that cannot be written must not stop the program
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """`2026-11-17T20:15:00Z warning pointsman.engine.duties: duty timers failed: …  duty=timers failures=3`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f"  {name}={value}" for name, value in _fields(record).items())
        line = f"{_instant(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}{fields}"
        shows_trace = record.exc_info and logging.getLogger("pointsman").isEnabledFor(logging.DEBUG)
        return f"{line}\n{self.formatException(record.exc_info)}" if shows_trace and record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object per line, with the fields of the record beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_handler = LogHandler()


def configure_logging(level: str | None, *, as_json: bool) -> None:
    """From flags, or from POINTSMAN_LOG: a level, followed by `:json` for JSON lines."""
    variable = os.environ.get("POINTSMAN_LOG", "")
    from_environment, _, form = variable.lower().partition(":")
    wanted = level or from_environment or "warning"
    if wanted not in LEVELS or form not in ("", "json"):
        choices = ", ".join(LEVELS)
        raise click.UsageError(f"POINTSMAN_LOG is '{variable}'. Use one of {choices}; add ':json' for JSON lines.")
    _handler.setFormatter(JsonFormatter() if as_json or form == "json" else TextFormatter())
    logger = logging.getLogger("pointsman")
    logger.handlers[:] = [_handler]
    logger.propagate = False
    logger.setLevel(wanted.upper())
    logging.raiseExceptions = sys.flags.dev_mode


@contextmanager
def divert_logs(write: Callable[[str], None]) -> Iterator[None]:
    """Hand the lines to a live display for a while."""
    before, _handler.write = _handler.write, write
    try:
        yield
    finally:
        _handler.write = before


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The structured fields of the record: run, task, attempt, worker, tenant, operation, duty …"""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}


def _instant(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

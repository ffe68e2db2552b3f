"""Rows as JSON objects, and the log files that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from pointsman.cli.output import count, near
from pointsman.store.rows import Attempt, Transition
from pointsman.views.values import TaskView, read_error
from pointsman.worker.log import log_path

MOST_LINES = 10
"""Of the output of a task."""


def show_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def describe_attempt(attempt: Attempt, task: TaskView, directory: Path) -> dict[str, Any]:
    has_ended = attempt.ended_at is not None
    return {
        "attempt": attempt.epoch,
        "worker_id": attempt.worker_id,
        "started_at": show_instant(attempt.started_at),
        "ended_at": show_instant(attempt.ended_at),
        "took_seconds": task.attempt_seconds.get(attempt.epoch),
        "ended_by": attempt.ended_by,
        "exit_code": attempt.exit_code,
        "error": read_error(attempt.error),
        "log_path": attempt.log_path if has_ended else log_path(directory, task.run_id, task.name, attempt.epoch),
        "cost_usd": str(attempt.cost_usd),
        "cost_is_estimated": attempt.cost_is_estimated,
        "tokens_in": attempt.tokens_in,
        "tokens_out": attempt.tokens_out,
        "session_id": attempt.session_id,
    }


def describe_move(move: Transition, name: str | None = None) -> dict[str, Any]:
    return {
        "at": show_instant(move.at),
        "kind": move.kind,
        "id": move.entity_id,
        "name": name,
        "run_id": move.run_id,
        "from": move.from_state,
        "to": move.to_state,
        "trigger": move.trigger,
        "severity": move.severity,
        "actor": move.actor,
        "reason": move.reason,
        "metadata": move.details,
        "position": move.position,
    }


def list_results(outputs: Any, tail: str | None, diff: str | None, log: Path | None) -> Iterator[str]:
    """What a person has to see of a result to accept or reject it."""
    if outputs is None and not tail and not log and not diff:
        yield "It wrote nothing, and there are no outputs."
    if outputs is not None:
        yield f"outputs: {msgspec.json.encode(outputs).decode()}"
    lines = (tail or "").splitlines()
    if len(lines) > MOST_LINES:
        yield f"… {count(len(lines) - MOST_LINES, 'line')} before"
    yield from (f"| {line}" for line in lines[-MOST_LINES:])
    if log:
        yield f"log: {near(log)}"
    if diff:
        yield "changes:"
        yield from (f"  {line}" for line in diff.splitlines())


def read_tail(error: str | None) -> str | None:
    """The last output of a failed attempt, where the engine has stored it."""
    try:
        value = msgspec.json.decode(error or "null")
    except msgspec.DecodeError:
        return None
    tail = value.get("tail") if isinstance(value, dict) else None
    return tail if isinstance(tail, str) else None


def show_instant(at: datetime | None) -> str | None:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None

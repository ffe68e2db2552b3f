"""Rows as programs get them, and the few words of them that people do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from pointsman.kernel.machine import Phase
from pointsman.store.rows import Attempt, Entity, Run, Task, Transition


def describe_run(run: Run) -> dict[str, Any]:
    return {
        **_describe_entity(run),
        "name": run.name,
        "lifecycle": run.lifecycle,
        "error": read_error(run.error),
        "retry_count": run.retry_count,
        "budget_usd": str(run.budget_usd) if run.budget_usd is not None else None,
        "spent_usd": str(run.spent_usd),
    }


def describe_task(task: Task) -> dict[str, Any]:
    return {
        **_describe_entity(task),
        "run_id": task.run_id,
        "name": task.name,
        "critical": task.critical,
        "attempts": task.epoch,
        "retry_count": task.retry_count,
        "max_retries": task.max_retries,
        "worker_id": task.worker_id,
        "exit_code": task.attempt_exit_code,
        "log_path": task.attempt_log_path,
        "error": read_error(task.error),
        "outputs": read_output(task).get("outputs"),
        "cost_usd": str(task.cost_usd),
    }


def describe_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.epoch,
        "worker_id": attempt.worker_id,
        "started_at": show_instant(attempt.started_at),
        "ended_at": show_instant(attempt.ended_at),
        "ended_by": attempt.ended_by,
        "exit_code": attempt.exit_code,
        "error": read_error(attempt.error),
        "log_path": attempt.log_path,
        "cost_usd": str(attempt.cost_usd),
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
        "position": move.position,
    }


def read_error(error: str | None) -> str | None:
    """The sentence of an error that the engine keeps as an object."""
    if error is None:
        return None
    try:
        value = msgspec.json.decode(error)
    except msgspec.DecodeError:
        return error
    return str(value["message"]) if isinstance(value, dict) and "message" in value else error


def read_output(task: Task) -> dict[str, Any]:
    """What its worker has stored of a task: `outputs`, `tail`, `skipped`."""
    value = msgspec.json.decode(task.output) if isinstance(task.output, str) else None
    return value if isinstance(value, dict) else {}


def first_line(text: str | None) -> str:
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def elapsed_seconds(entity: Entity, now: datetime) -> float | None:
    """How long it has taken, or has been going on; None before it has begun."""
    if entity.started_at is None:
        return None
    ended = entity.completed_at or (entity.entered_at if entity.phase == Phase.DONE else now)
    return (ended - entity.started_at).total_seconds()


def show_instant(at: datetime | None) -> str | None:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


def _describe_entity(entity: Entity) -> dict[str, Any]:
    return {
        "id": entity.id,
        "state": entity.state,
        "phase": entity.phase,
        "outcome": entity.outcome,
        "reason": entity.reason,
        "created_at": show_instant(entity.created_at),
        "started_at": show_instant(entity.started_at),
        "completed_at": show_instant(entity.completed_at),
    }

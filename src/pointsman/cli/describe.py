"""Rows as programs get them, and the few words of them that people do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from pointsman.cli.output import show_seconds
from pointsman.engine.limits import is_full
from pointsman.engine.policy import read_policy
from pointsman.errors import CircuitOpen
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Machine, Outcome, Phase
from pointsman.store.rows import Attempt, Breaker, Entity, Run, Task, Transition, Worker
from pointsman.worker.log import log_parts, log_path

OVERSPEND = "overspend"
Needs = tuple[str | None, tuple[str, ...]]
"""The tool of a task, and what its worker must be able to do."""


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


def describe_worker(worker: Worker, holds: Sequence[Task], *, alive: bool) -> dict[str, Any]:
    return {
        **_describe_entity(worker),
        "name": worker.name,
        "alive": alive,
        "slots": worker.max_concurrent_tasks,
        "capabilities": read_capabilities(worker),
        "run_id": worker.run_id,
        "holds": [{"run_id": task.run_id, "task_id": task.id, "name": task.name} for task in holds],
        "heartbeat_at": show_instant(worker.heartbeat_at),
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


def read_tail(error: str | None) -> str | None:
    """The end of what a failed attempt wrote, where the engine has kept it."""
    try:
        value = msgspec.json.decode(error or "null")
    except msgspec.DecodeError:
        return None
    tail = value.get("tail") if isinstance(value, dict) else None
    return tail if isinstance(tail, str) else None


def read_output(task: Task) -> dict[str, Any]:
    """What its worker has stored of a task: `outputs`, `tail`, `skipped`."""
    value = msgspec.json.decode(task.output) if isinstance(task.output, str) else None
    return value if isinstance(value, dict) else {}


def read_needs(task: Task) -> Needs:
    """What a task asks of whoever does it; one that only spreads out asks for nothing."""
    payload = msgspec.json.decode(task.payload) if isinstance(task.payload, str) else None
    if not isinstance(payload, dict) or "foreach" in payload:
        return None, ()
    return payload.get("tool"), tuple(payload.get("needs_capabilities", ()))


def read_tool(task: Task) -> str | None:
    """What a task is done with, or the parts of one that spreads out."""
    payload = msgspec.json.decode(task.payload) if isinstance(task.payload, str) else None
    tool = payload.get("tool") if isinstance(payload, dict) else None
    return tool if isinstance(tool, str) else None


def read_lanes(tasks: Iterable[Task]) -> dict[int, Needs]:
    """By lane: tasks of one lane ask for the same tool and the same abilities."""
    lanes = {task.lane_id: task for task in tasks}
    return {lane: read_needs(task) for lane, task in lanes.items()}


def read_capabilities(worker: Worker) -> list[str]:
    return msgspec.json.decode(worker.capabilities, type=list[str])


def explain_capabilities(needed: Iterable[str], workers: Sequence[Worker]) -> str:
    """What of this no worker can do; empty where one of them can do it all."""
    needed = set(needed)
    abilities = [set(read_capabilities(worker)) for worker in workers]
    if any(needed <= able for able in abilities) or not needed:
        return ""
    if missing := needed.difference(*abilities):
        return f"no worker can do: {', '.join(sorted(missing))}"
    return f"no worker can do all of: {', '.join(sorted(needed))}"


def explain_breaker(breaker: Breaker, at_work: int, now: datetime) -> str:
    """Why a tool takes nothing more for now; empty where it does."""
    if breaker.phase == Phase.HELD:
        seconds = (breaker.retry_at - now).total_seconds() if breaker.retry_at else 0
        return str(CircuitOpen(breaker.tool, seconds))
    if breaker.phase == Phase.ACTIVE and breaker.probe_task_id:
        return f"{breaker.tool} circuit is half open, and one task tries it"
    return f"{breaker.tool} is at its limit" if is_full(breaker, at_work, now) else ""


def explain_delay(task: Task, now: datetime) -> str:
    """When a task is tried again that waits for an instant."""
    if task.available_at is None or task.available_at <= now:
        return ""
    return f"again in {show_seconds((task.available_at - now).total_seconds())}"


def find_lost(tasks: Iterable[Task], machines: Mapping[int, Machine]) -> list[Task]:
    """Those that their run cannot succeed without, and that nothing can bring to success any more."""
    return [
        task
        for task in tasks
        if task.critical and task.outcome in (Outcome.FAILURE, Outcome.CANCELED) and not _has_way_out(task, machines)
    ]


def _has_way_out(task: Task, machines: Mapping[int, Machine]) -> bool:
    """What has spent its money can be begun again, and has none."""
    ways = ("skip",) if task.trigger == OVERSPEND else ("retry", "resume", "reset", "skip")
    return any(machines[task.machine_id].moves(task.state, signal) for signal in ways)


def explain_loss(task: Task) -> str:
    """What is left to do when a run cannot succeed without a task that is lost."""
    if task.trigger == OVERSPEND:
        return f"{task.name} has no money left: raise `budget_usd` in the flow, and run it anew."
    return f"{task.name} is {task.state}, and nothing leads out of that: run the flow anew."


def explain_exhaustion(run: Run, now: datetime) -> str:
    """Why nothing can be done in a run any more, whatever is tried again: its time is over, or its money. Or nothing."""
    timeout = read_policy(run.policy).timeout_seconds
    if timeout is not None and now >= run.created_at + timedelta(seconds=timeout):
        return f"{run.name} has had {format_duration(timeout)}, its timeout: raise `timeout` in the flow, and run it anew."
    if run.budget_usd is not None and run.spent_usd >= run.budget_usd:
        return f"{run.name} has no money left: raise `budget_usd` in the flow, and run it anew."
    return ""


def find_log(directory: Path, task: Task, epoch: int, recorded: str | None) -> Path | None:
    """The log of an attempt, as it was recorded with its end. Before that, and when whoever wrote it was killed, it is looked
    for where the workers of this project write.
    """
    if recorded:
        return directory / recorded
    path = Path(log_path(directory, task.run_id, task.name, epoch))
    return path if log_parts(path) else None


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

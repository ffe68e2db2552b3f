"""Answers: rows as they are sent, each with what is allowed next.

The answer to a change is made of nothing but the row that the operation returned, and of its history up to then. So the stored
answer of an idempotency key always becomes the same response.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from pointsman.engine.engine import TenantEngine
from pointsman.engine.policy import find_workspace, name_workspace
from pointsman.engine.questions import Question, read_question
from pointsman.engine.workers import capabilities
from pointsman.store.rows import Attempt, Breaker, Entity, Run, Task, Transition, Worker
from pointsman.views.moves import Move, list_moves
from pointsman.views.runs import make_run_summary
from pointsman.views.tools import make_breaker_view
from pointsman.views.values import BreakerView, HeldTask, RunSummary, read_error


class Status(Struct, frozen=True):
    """How the server is."""

    status: str


class RunAnswer(RunSummary, frozen=True, kw_only=True):
    """A run."""

    parent_run_id: str | None
    depth: int
    worker_count: int
    allowed: tuple[Move, ...]
    """What people may do with the run as a whole."""


class TaskAnswer(Struct, frozen=True, kw_only=True):
    """A task."""

    id: str
    run_id: str
    name: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    parent_task_id: str | None
    is_gate: bool
    attempts: int
    worker_id: str | None
    session_id: str | None
    question: Question | None
    answer: str | None
    comment: str | None
    """Of the last rejection: the next attempt gets it."""
    output: Any
    error: str | None
    budget_usd: Decimal | None
    cost_usd: Decimal
    cost_is_estimated: bool
    available_at: datetime | None
    """A retry waits until then."""
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    allowed: tuple[Move, ...]


class AttemptAnswer(Struct, frozen=True, kw_only=True):
    """One execution of a task."""

    attempt: int
    worker_id: str | None
    started_at: datetime | None
    ended_at: datetime | None
    ended_by: str | None
    exit_code: int | None
    error: str | None
    session_id: str | None
    resumed: bool
    log_path: str | None
    cost_usd: Decimal
    cost_is_estimated: bool
    tokens_in: int
    tokens_out: int


class TransitionAnswer(Struct, frozen=True, kw_only=True):
    """One line of the audit trail."""

    position: str
    at: datetime
    kind: str
    id: str
    run_id: str | None
    from_state: str | None
    to_state: str
    trigger: str
    severity: str
    actor: str | None
    reason: str | None
    metadata: dict[str, Any]


class WorkerAnswer(Struct, frozen=True, kw_only=True):
    """A worker."""

    id: str
    name: str
    lifecycle: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    workspace_id: str | None
    capabilities: tuple[str, ...]
    slots: int
    metadata: dict[str, Any]
    run_id: str | None
    lease_seconds: float
    heartbeat_at: datetime
    drain_wanted: bool
    terminate_wanted: bool
    created_at: datetime
    allowed: tuple[Move, ...]


class WorkerDetail(WorkerAnswer, frozen=True, kw_only=True):
    """A worker, and what it does now."""

    alive: bool
    holds: tuple[HeldTask, ...]


class BreakerAnswer(BreakerView, frozen=True, kw_only=True):
    """A tool: its circuit and its limits."""

    allowed: tuple[Move, ...]


async def find_moves(engine: TenantEngine, entity: Entity) -> tuple[Move, ...]:
    return list_moves(await engine.get_machine(entity), entity)


async def make_run(engine: TenantEngine, run: Run) -> RunAnswer:
    return RunAnswer(
        **msgspec.structs.asdict(make_run_summary(run)),
        parent_run_id=run.parent_run_id,
        depth=run.depth,
        worker_count=run.worker_count,
        allowed=await find_moves(engine, run),
    )


async def make_task(engine: TenantEngine, task: Task) -> TaskAnswer:
    return TaskAnswer(
        id=task.id,
        run_id=task.run_id,
        name=task.name,
        state=task.state,
        phase=task.phase,
        outcome=task.outcome,
        reason=task.reason,
        parent_task_id=task.parent_task_id,
        is_gate=task.is_gate,
        attempts=task.epoch,
        worker_id=task.worker_id,
        session_id=task.session_id,
        question=None if task.question is None else read_question(task.question),
        answer=task.answer,
        comment=task.comment,
        output=read_result(task),
        error=read_error(task.error),
        budget_usd=task.budget_usd,
        cost_usd=task.cost_usd,
        cost_is_estimated=task.cost_is_estimated,
        available_at=task.available_at,
        created_at=task.created_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        allowed=await find_moves(engine, task),
    )


async def make_tasks(engine: TenantEngine, tasks: Sequence[Task]) -> tuple[TaskAnswer, ...]:
    return tuple([await make_task(engine, task) for task in sorted(tasks, key=lambda task: task.position)])


async def make_worker(engine: TenantEngine, worker: Worker) -> WorkerAnswer:
    return WorkerAnswer(**_worker_fields(worker), allowed=await find_moves(engine, worker))


async def make_worker_detail(engine: TenantEngine, worker: Worker, *, alive: bool, holds: tuple[HeldTask, ...]) -> WorkerDetail:
    return WorkerDetail(**_worker_fields(worker), allowed=await find_moves(engine, worker), alive=alive, holds=holds)


def _worker_fields(worker: Worker) -> dict[str, Any]:
    able = capabilities(worker)
    workspace = find_workspace(able)
    return {
        "id": worker.id,
        "name": worker.name,
        "lifecycle": worker.lifecycle,
        "state": worker.state,
        "phase": worker.phase,
        "outcome": worker.outcome,
        "reason": worker.reason,
        "workspace_id": workspace,
        "capabilities": tuple(sorted(set(able) - ({name_workspace(workspace)} if workspace else set()))),
        "slots": worker.max_concurrent_tasks,
        "metadata": msgspec.json.decode(worker.worker_metadata),
        "run_id": worker.run_id,
        "lease_seconds": worker.lease_seconds,
        "heartbeat_at": worker.heartbeat_at,
        "drain_wanted": worker.drain_wanted,
        "terminate_wanted": worker.terminate_wanted,
        "created_at": worker.created_at,
    }


async def make_breaker(engine: TenantEngine, breaker: Breaker) -> BreakerAnswer:
    return BreakerAnswer(**msgspec.structs.asdict(make_breaker_view(breaker)), allowed=await find_moves(engine, breaker))


def make_attempt(attempt: Attempt) -> AttemptAnswer:
    return AttemptAnswer(
        attempt=attempt.epoch,
        worker_id=attempt.worker_id,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        ended_by=attempt.ended_by,
        exit_code=attempt.exit_code,
        error=read_error(attempt.error),
        session_id=attempt.session_id,
        resumed=attempt.resumed,
        log_path=attempt.log_path,
        cost_usd=attempt.cost_usd,
        cost_is_estimated=attempt.cost_is_estimated,
        tokens_in=attempt.tokens_in,
        tokens_out=attempt.tokens_out,
    )


def make_transition(move: Transition) -> TransitionAnswer:
    return TransitionAnswer(
        position=move.position,
        at=move.at,
        kind=move.kind,
        id=move.entity_id,
        run_id=move.run_id,
        from_state=move.from_state,
        to_state=move.to_state,
        trigger=move.trigger,
        severity=move.severity,
        actor=move.actor,
        reason=move.reason,
        metadata=move.details,
    )


def read_result(task: Task) -> Any:
    """What a task produced: of a task of a flow its `outputs`, of others whatever its worker reported."""
    output = msgspec.json.decode(task.output) if isinstance(task.output, str) else None
    return output["outputs"] if isinstance(output, dict) and "outputs" in output else output

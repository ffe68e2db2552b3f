"""Answers: rows and views as they are sent, each with what is allowed next.

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
from pointsman.store.rows import Entity, Run, Task
from pointsman.views.moves import Move, list_moves
from pointsman.views.values import read_error


class Status(Struct, frozen=True):
    """How the server is."""

    status: str


class RunAnswer(Struct, frozen=True, kw_only=True):
    """A run of document 003."""

    id: str
    name: str
    lifecycle: str
    status: str
    reason: str | None
    error: str | None
    output: Any
    """The result of the run, if its lifecycle stores one."""
    budget_usd: Decimal | None
    spent_usd: Decimal
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    allowed: tuple[Move, ...]
    """What people may do with the run as a whole."""


class StepAnswer(Struct, frozen=True, kw_only=True):
    """A step of a run of document 003."""

    id: str
    name: str
    status: str
    reason: str | None
    is_approval: bool
    attempts: int
    next_run_at: datetime | None
    """A retry waits until then."""
    output: Any
    cost_usd: Decimal
    error: str | None
    started_at: datetime | None
    completed_at: datetime | None
    allowed: tuple[Move, ...]


class RunDetail(RunAnswer, frozen=True, kw_only=True):
    """A run of document 003 with its steps, in their order."""

    steps: tuple[StepAnswer, ...]


class RunPage(Struct, frozen=True, kw_only=True):
    """Runs, newest first."""

    runs: tuple[RunAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


async def find_moves(engine: TenantEngine, entity: Entity) -> tuple[Move, ...]:
    return list_moves(await engine.get_machine(entity), entity)


async def make_run(engine: TenantEngine, run: Run) -> RunAnswer:
    return RunAnswer(**_run_fields(run), allowed=await find_moves(engine, run))


async def make_run_detail(engine: TenantEngine, run: Run, tasks: Sequence[Task]) -> RunDetail:
    steps = [await make_step(engine, task) for task in sorted(tasks, key=lambda task: task.position)]
    return RunDetail(**_run_fields(run), allowed=await find_moves(engine, run), steps=tuple(steps))


async def make_step(engine: TenantEngine, task: Task) -> StepAnswer:
    return StepAnswer(
        id=task.id,
        name=task.name,
        status=task.state,
        reason=task.reason,
        is_approval=task.is_gate,
        attempts=task.epoch,
        next_run_at=task.available_at,
        output=read_result(task),
        cost_usd=task.cost_usd,
        error=read_error(task.error),
        started_at=task.started_at,
        completed_at=task.completed_at,
        allowed=await find_moves(engine, task),
    )


def _run_fields(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "lifecycle": run.lifecycle,
        "status": run.state,
        "reason": run.reason,
        "error": read_error(run.error),
        "output": None if run.output is None else msgspec.json.decode(run.output),
        "budget_usd": run.budget_usd,
        "spent_usd": run.spent_usd,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
    }


def read_result(task: Task) -> Any:
    """What a task produced: of a task of a flow its `outputs`, of others whatever its worker reported."""
    output = msgspec.json.decode(task.output) if isinstance(task.output, str) else None
    return output["outputs"] if isinstance(output, dict) and "outputs" in output else output

"""Routes of document 003: runs, their steps and approvals."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from pointsman.engine.engine import TenantEngine
from pointsman.engine.filters import RunFilter
from pointsman.engine.operations.runs import ApproveRun, SignalRun, SubmitRun
from pointsman.server.answers import find_moves, read_result
from pointsman.server.pages import paged, read_page
from pointsman.server.route import Call, Route, performs
from pointsman.server.submission import NewFlowRun, submit_flow
from pointsman.store.rows import Run, Task
from pointsman.views.moves import Move
from pointsman.views.runs import read_tags
from pointsman.views.values import read_error

TAG = "document 003"


class Run003(Struct, frozen=True, kw_only=True):
    """A run of document 003."""

    id: str
    name: str
    lifecycle: str
    tags: tuple[str, ...]
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


class Step003(Struct, frozen=True, kw_only=True):
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


class RunDetail003(Run003, frozen=True, kw_only=True):
    """A run of document 003 with its steps, in their order."""

    steps: tuple[Step003, ...]


class RunPage003(Struct, frozen=True, kw_only=True):
    """Runs, newest first."""

    runs: tuple[Run003, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


async def create_run(call: Call) -> Run003:
    run = await submit_flow(call, call.read_as(NewFlowRun))
    return await make_run(call.engine, run)


async def list_runs(call: Call) -> RunPage003:
    runs, behind = await read_page(call.query, call.engine.list_runs, call.query)
    return RunPage003(runs=tuple([await make_run(call.engine, run) for run in runs]), next=behind)


async def show_run(call: Call) -> RunDetail003:
    run = await call.engine.get_run(call.path["run_id"])
    tasks = sorted(await call.engine.list_tasks_in_brief(run.id), key=lambda task: task.position)
    steps = tuple([await make_step(call.engine, task) for task in tasks])
    return RunDetail003(**msgspec.structs.asdict(await make_run(call.engine, run)), steps=steps)


async def make_run(engine: TenantEngine, run: Run) -> Run003:
    return Run003(
        id=run.id,
        name=run.name,
        lifecycle=run.lifecycle,
        tags=read_tags(run),
        status=run.state,
        reason=run.reason,
        error=read_error(run.error),
        output=None if run.output is None else msgspec.json.decode(run.output),
        budget_usd=run.budget_usd,
        spent_usd=run.spent_usd,
        created_at=run.created_at,
        started_at=run.started_at,
        completed_at=run.completed_at,
        allowed=await find_moves(engine, run),
    )


async def make_step(engine: TenantEngine, task: Task) -> Step003:
    return Step003(
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


ROUTES = (
    Route(
        "POST",
        "/runs",
        "Submit a run. With an idempotency key, it is one durable run, however often and however late it is repeated.",
        create_run,
        Run003,
        scope="submit",
        reads=NewFlowRun,
        status=201,
        location="/runs/{id}",
        operation=SubmitRun,
        problems=("flow-invalid", "unknown-name"),
        tag=TAG,
    ),
    Route("GET", "/runs", "List runs, newest first.", list_runs, RunPage003, query=paged(RunFilter), tag=TAG),
    Route("GET", "/runs/{run_id}", "Show a run with its steps.", show_run, RunDetail003, problems=("not-found",), tag=TAG),
    performs(
        "POST",
        "/runs/{run_id}/approve",
        "Approve every open gate of a run; with none open, nothing happens.",
        ApproveRun,
        make_run,
        Run003,
        scope="approve",
        problems=("not-found", "not-allowed", "transition-refused"),
        tag=TAG,
    ),
    performs(
        "POST",
        "/runs/{run_id}/cancel",
        "Cancel a run with all its steps.",
        SignalRun,
        make_run,
        Run003,
        scope="operate",
        sets={"signal": "cancel"},
        left_out=("output",),
        problems=("not-found", "transition-refused"),
        tag=TAG,
    ),
)

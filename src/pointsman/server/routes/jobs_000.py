"""Routes of document 000: workers, their supervisor, and jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import JsonObject, Name, RunId, Seconds, Text, Words, whole
from pointsman.engine.operations.runs import SignalRun, SubmitRun
from pointsman.engine.operations.workers import RegisterWorker, SignalWorker
from pointsman.engine.policy import find_workspace, read_policy
from pointsman.engine.submit import MAX_DEPTH, MAX_WORKERS, NewRun, NewTask
from pointsman.errors import NotFound, Problem, RequestInvalid
from pointsman.flows.results import describe_job
from pointsman.server.answers import find_moves, make_worker
from pointsman.server.route import Call, Route, performs
from pointsman.server.submission import submit_text, write_flow
from pointsman.store.rows import Run, Transition, Worker
from pointsman.views.moves import Move
from pointsman.views.values import read_error

TAG = "document 000"
LIFECYCLE = "supervised"
SILENCE_SECONDS = 300.0
"""How long a worker that was registered here may send no heartbeat: longer than others, because people register it by hand."""
SUPERVISED = ("pause", "resume", "terminate")


class NewWorker(Struct, frozen=True, kw_only=True):
    """A worker of document 000."""

    workspace_id: Annotated[Name, "The workspace that it belongs to."]
    capabilities: Annotated[Words, "What it can do."] = ()
    metadata: Annotated[JsonObject | None, "What it says of itself; any JSON object."] = None
    name: Annotated[Name, "What people call it."] = "worker"
    lease_seconds: Annotated[Seconds, "It is terminated when it has been silent for so long."] = SILENCE_SECONDS
    request_id: Annotated[Name | None, "An idempotency key, like the header Idempotency-Key."] = None


class NewJob(Struct, frozen=True, kw_only=True):
    """A job of document 000."""

    task_description: Annotated[Text, "What it is to do."]
    name: Annotated[Name, "What people call it."] = "job"
    worker_count: Annotated[int, whole(1, MAX_WORKERS), "How many workers it gets for itself."] = 1
    workspace_id: Annotated[Name | None, "The workspace of these workers; any, if there is none."] = None
    parent_job_id: Annotated[RunId | None, "The job that this one belongs to."] = None
    depth: Annotated[int | None, whole(0, MAX_DEPTH), "One more than that of its parent; 0 without one."] = None
    tasks: Annotated[
        JsonObject | None,
        "Its tasks by name, as in a flow file. Without them, it has one task, whose payload is the description.",
    ] = None
    reason: Annotated[Text | None, "Why; kept in the audit trail."] = None
    request_id: Annotated[Name | None, "An idempotency key, like the header Idempotency-Key."] = None


class Worker000(Struct, frozen=True, kw_only=True):
    """A worker of document 000."""

    id: str
    name: str
    workspace_id: str | None
    status: str
    reason: str | None
    capabilities: tuple[str, ...]
    metadata: dict[str, Any]
    terminate_wanted: bool
    """It is terminated as soon as its processes have ended."""
    created_at: datetime
    updated_at: datetime
    allowed: tuple[Move, ...]


class Move000(Struct, frozen=True, kw_only=True):
    """One line of the history of a job."""

    from_state: str | None
    to_state: str
    reason: str | None
    timestamp: datetime


class Job000(Struct, frozen=True, kw_only=True):
    """A job of document 000."""

    id: str
    name: str
    status: str
    task_description: str | None
    depth: int
    parent_job_id: str | None
    worker_count: int
    workspace_id: str | None
    reason: str | None
    error: str | None
    result: Any
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    state_history: tuple[Move000, ...]
    allowed: tuple[Move, ...]


async def register_worker(call: Call) -> Worker000:
    new = call.read_as(NewWorker)
    worker = await call.engine.perform(RegisterWorker(lifecycle=LIFECYCLE, **msgspec.structs.asdict(new)))
    return await make_worker_000(call.engine, worker)


async def make_worker_000(engine: TenantEngine, worker: Worker) -> Worker000:
    answer = await make_worker(engine, worker)
    return Worker000(
        id=answer.id,
        name=answer.name,
        workspace_id=answer.workspace_id,
        status=answer.state,
        reason=answer.reason,
        capabilities=answer.capabilities,
        metadata=answer.metadata,
        terminate_wanted=answer.terminate_wanted,
        created_at=answer.created_at,
        updated_at=worker.entered_at,
        allowed=answer.allowed,
    )


async def create_job(call: Call) -> Job000:
    new = call.read_as(NewJob)
    await _check_depth(call.engine, new)
    if new.tasks is None:
        run = await call.engine.perform(SubmitRun(_build_plain(new), reason=new.reason, request_id=call.request_id))
    else:
        flow = write_flow(
            name=new.name,
            lifecycle=LIFECYCLE,
            task_description=new.task_description.replace("${{", "$${{"),
            worker_count=new.worker_count,
            workspace=new.workspace_id,
            tasks=new.tasks,
        )
        run = await submit_text(call, flow, {}, new.reason, new.parent_job_id)
    return await make_job(call.engine, run)


def _build_plain(new: NewJob) -> NewRun:
    payload = {"task_description": new.task_description}
    return NewRun(
        name=new.name,
        lifecycle=LIFECYCLE,
        tasks=(NewTask(name="job", payload=payload),),
        payload=payload,
        parent_run_id=new.parent_job_id,
        worker_count=new.worker_count,
        workspace=new.workspace_id,
    )


async def _check_depth(engine: TenantEngine, new: NewJob) -> None:
    parent = None if new.parent_job_id is None else await _find_job(engine, new.parent_job_id)
    depth = 0 if parent is None else parent.depth + 1
    if new.depth is not None and new.depth != depth:
        raise RequestInvalid([Problem("depth", f"It is {depth}: one more than that of its parent. Leave it out.")])


async def show_job(call: Call) -> Job000:
    return await make_job(call.engine, await _find_job(call.engine, call.path["job_id"]))


async def cancel_job(call: Call) -> Job000:
    operation = call.read(SignalRun, ("output",), signal="cancel", run_id=call.path["job_id"])
    await _find_job(call.engine, call.path["job_id"])
    return await make_job(call.engine, await call.engine.perform_valid(operation))


async def _find_job(engine: TenantEngine, job_id: str) -> Run:
    """A run that follows document 000; others are none of its jobs."""
    try:
        run = await engine.get_run(job_id)
    except NotFound as error:
        raise NotFound("job", error.name) from None
    if run.lifecycle != LIFECYCLE:
        raise NotFound("job", job_id)
    return run


async def make_job(engine: TenantEngine, run: Run) -> Job000:
    """With its history up to this revision, which no later move changes."""
    history = [move for move in await engine.list_history(run.id) if move.revision <= run.revision]
    return Job000(
        id=run.id,
        name=run.name,
        status=run.state,
        task_description=describe_job(msgspec.json.decode(run.payload)),
        depth=run.depth,
        parent_job_id=run.parent_run_id,
        worker_count=run.worker_count,
        workspace_id=find_workspace(read_policy(run.policy).capabilities),
        reason=run.reason,
        error=read_error(run.error),
        result=None if run.output is None else msgspec.json.decode(run.output),
        created_at=run.created_at,
        started_at=run.started_at,
        completed_at=run.completed_at,
        state_history=tuple(map(_make_move, history)),
        allowed=await find_moves(engine, run),
    )


def _make_move(move: Transition) -> Move000:
    return Move000(from_state=move.from_state, to_state=move.to_state, reason=move.reason, timestamp=move.at)


def _supervise(signal: str) -> Route:
    return performs(
        "POST",
        f"/api/supervisor/workers/{{worker_id}}/{signal}",
        f"{signal.capitalize()} a worker.",
        SignalWorker,
        make_worker_000,
        Worker000,
        scope="operate",
        sets={"signal": signal},
        left_out=("retryable", "suspend", "ended"),
        problems=("not-found", "transition-refused"),
        tag=TAG,
    )


ROUTES = (
    Route(
        "POST",
        "/api/workers",
        "Register a worker, which is idle at first.",
        register_worker,
        Worker000,
        scope="worker",
        reads=NewWorker,
        status=201,
        location="/api/v1/workers/{id}",
        operation=RegisterWorker,
        tag=TAG,
    ),
    performs(
        "POST",
        "/api/workers/{worker_id}/start",
        "Start a worker.",
        SignalWorker,
        make_worker_000,
        Worker000,
        scope="operate",
        sets={"signal": "assign"},
        left_out=("retryable", "suspend", "ended"),
        problems=("not-found", "transition-refused"),
        tag=TAG,
    ),
    *(_supervise(signal) for signal in SUPERVISED),
    Route(
        "POST",
        "/api/jobs",
        "Submit a job, which runs when all of its workers are free.",
        create_job,
        Job000,
        scope="submit",
        reads=NewJob,
        status=201,
        location="/api/jobs/{id}",
        operation=SubmitRun,
        problems=("not-found", "flow-invalid"),
        tag=TAG,
    ),
    Route(
        "GET",
        "/api/jobs/{job_id}",
        "Show a job with its whole history.",
        show_job,
        Job000,
        problems=("not-found",),
        tag=TAG,
    ),
    Route(
        "POST",
        "/api/jobs/{job_id}/cancel",
        "Cancel a job, and release its workers.",
        cancel_job,
        Job000,
        scope="operate",
        reads=SignalRun,
        fixed=("signal", "output", "run_id"),
        operation=SignalRun,
        problems=("not-found", "transition-refused"),
        tag=TAG,
    ),
)

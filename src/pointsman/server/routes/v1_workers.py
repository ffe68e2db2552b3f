"""/api/v1: what a worker without access to the database does: it claims tasks, sends heartbeats and reports.

Every report carries the epoch of the claim, and nothing of an older attempt counts. The workers of Pointsman itself do the same
through /api/v1/engine; these routes are for workers in other languages.
"""

from __future__ import annotations

from itertools import starmap
from typing import Annotated

from msgspec import Struct

from pointsman.engine.claims import Claim
from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import Count, Name, RunId, number
from pointsman.engine.operations.attempts import ReportAttempt
from pointsman.engine.operations.workers import ClaimTasks, HeartbeatReply, SendHeartbeat
from pointsman.server.answers import TaskAnswer, WorkerAnswer, make_task, make_worker
from pointsman.server.route import Call, Route, performs

LONGEST_WAIT_SECONDS = 30.0


class NewClaims(Struct, frozen=True, kw_only=True):
    """What to claim, and how long to wait for it."""

    limit: Annotated[Count, "How many tasks at most; never more than the worker has free slots."] = 1
    run_id: Annotated[RunId | None, "The only run to claim tasks of."] = None
    wait_seconds: Annotated[
        float, number(0, LONGEST_WAIT_SECONDS), "How long to wait if there is nothing to claim. To wait is a sign of life."
    ] = 0.0
    request_id: Annotated[Name | None, "Not used: an answer that gets lost is given back by the next heartbeat."] = None


class ClaimList(Struct, frozen=True, kw_only=True):
    """Tasks that the worker holds now; none if there was nothing to claim."""

    items: tuple[Claim, ...]


class HeldAttempt(Struct, frozen=True):
    """An attempt that a worker holds."""

    task_id: str
    epoch: int


class HeartbeatAnswer(Struct, frozen=True, kw_only=True):
    """The worker as it stands, and what to do with its attempts."""

    worker: WorkerAnswer
    lost: tuple[HeldAttempt, ...]
    """They no longer count: end their processes."""
    cancelled: tuple[HeldAttempt, ...]
    """They are to be canceled: end their processes, and report `cancel`."""
    paused: tuple[HeldAttempt, ...]
    """Their run is paused: they may go on, or be suspended."""
    suspended: bool
    """A person wants all processes of the worker suspended."""


async def claim_tasks(call: Call) -> ClaimList:
    asked = call.read_as(NewClaims)
    claims = await call.engine.claim_tasks(
        call.path["worker_id"],
        asked.limit,
        wait_seconds=asked.wait_seconds,
        run_id=asked.run_id,
        line=call.site.turns.line_of(call.holder.tenant),
    )
    return ClaimList(items=tuple(claims))


async def send_heartbeat(call: Call) -> HeartbeatAnswer:
    asked = call.read(SendHeartbeat)
    reply: HeartbeatReply = await call.engine.send_heartbeat(asked.worker_id, asked.attempts)
    return await make_heartbeat(call.engine, reply)


async def make_heartbeat(engine: TenantEngine, reply: HeartbeatReply) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        worker=await make_worker(engine, reply.worker),
        lost=tuple(starmap(HeldAttempt, reply.lost)),
        cancelled=tuple(starmap(HeldAttempt, reply.cancelled)),
        paused=tuple(starmap(HeldAttempt, reply.paused)),
        suspended=reply.suspended,
    )


ROUTES = (
    Route(
        "POST",
        "/api/v1/workers/{worker_id}/claims",
        "Claim tasks for a worker; if there are none, wait for some.",
        claim_tasks,
        ClaimList,
        scope="worker",
        reads=NewClaims,
        operation=ClaimTasks,
        problems=("not-found", "not-your-worker", "worker-unavailable"),
        waits=True,
    ),
    Route(
        "POST",
        "/api/v1/workers/{worker_id}/heartbeats",
        "Renew the lease of a worker, and learn which of its attempts to end.",
        send_heartbeat,
        HeartbeatAnswer,
        scope="worker",
        reads=SendHeartbeat,
        operation=SendHeartbeat,
        problems=("not-found", "not-your-worker"),
    ),
    performs(
        "POST",
        "/api/v1/tasks/{task_id}/reports",
        "Report what became of an attempt, or what it has cost while it goes on.",
        ReportAttempt,
        make_task,
        TaskAnswer,
        scope="worker",
        problems=("not-found", "lease-lost", "not-your-worker", "transition-refused"),
    ),
)

"""Routes of document 003: runs, their steps and approvals."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from pointsman.engine.fields import Name, Text, whole
from pointsman.engine.operations.runs import ApproveRun, SignalRun, SubmitRun
from pointsman.errors import Problem, RequestInvalid
from pointsman.server.answers import RunAnswer, RunDetail, RunPage, make_run, make_run_detail
from pointsman.server.route import Answer, Call, Route
from pointsman.server.submission import NewFlowRun, submit_flow


class Page(Struct, frozen=True, kw_only=True):
    """Which runs to list."""

    limit: Annotated[int, whole(1, 1000), "How many at most."] = 100
    after: Annotated[Name | None, "`next` of the page before."] = None
    phase: Annotated[Text | None, "Only runs in this phase: held, queued, active or done."] = None


async def create_run(call: Call) -> Answer:
    new = call.read_as(NewFlowRun)
    if new.flow is None:
        raise RequestInvalid([Problem("flow", "It is missing. Send the text of a flow.")])
    run = await submit_flow(call, new.flow, new.inputs or {}, new.reason)
    return Answer(await make_run(call.engine, run), {"Location": f"/runs/{run.id}"})


async def list_runs(call: Call) -> RunPage:
    page: Page = call.query
    found = await call.engine.list_runs(phase=page.phase, after=page.after, limit=page.limit + 1)
    shown = found[: page.limit]
    runs = tuple([await make_run(call.engine, run) for run in shown])
    return RunPage(runs=runs, next=shown[-1].id if len(found) > len(shown) else None)


async def show_run(call: Call) -> RunDetail:
    run = await call.engine.get_run(call.path["run_id"])
    return await make_run_detail(call.engine, run, await call.engine.list_tasks_in_brief(run.id))


async def approve_run(call: Call) -> RunAnswer:
    return await make_run(call.engine, await call.engine.perform(call.read(ApproveRun)))


async def cancel_run(call: Call) -> RunAnswer:
    return await make_run(call.engine, await call.engine.perform(call.read(SignalRun, signal="cancel")))


ROUTES = (
    Route(
        "POST",
        "/runs",
        "Submit a run. With an idempotency key, it is one durable run, however often and however late it is repeated.",
        create_run,
        RunAnswer,
        scope="submit",
        reads=NewFlowRun,
        status=201,
        operation=SubmitRun,
        problems=("flow-invalid", "unknown-name", "key-reused"),
        tag="document 003",
    ),
    Route(
        "GET",
        "/runs",
        "List runs, newest first.",
        list_runs,
        RunPage,
        query=Page,
        tag="document 003",
    ),
    Route(
        "GET",
        "/runs/{run_id}",
        "Show a run with its steps.",
        show_run,
        RunDetail,
        problems=("not-found",),
        tag="document 003",
    ),
    Route(
        "POST",
        "/runs/{run_id}/approve",
        "Approve every open gate of a run; with none open, nothing happens.",
        approve_run,
        RunAnswer,
        scope="approve",
        reads=ApproveRun,
        operation=ApproveRun,
        problems=("not-found", "not-allowed", "transition-refused", "key-reused"),
        tag="document 003",
    ),
    Route(
        "POST",
        "/runs/{run_id}/cancel",
        "Cancel a run with all its steps.",
        cancel_run,
        RunAnswer,
        scope="operate",
        reads=SignalRun,
        fixed=("signal", "output"),
        operation=SignalRun,
        problems=("not-found", "transition-refused", "key-reused"),
        tag="document 003",
    ),
)

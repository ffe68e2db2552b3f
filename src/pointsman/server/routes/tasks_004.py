"""Routes of document 004: tasks of agents, which people start, answer and review."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from pointsman.engine.fields import Instant, JsonObject, Name, Text
from pointsman.engine.filters import TaskFilter
from pointsman.engine.operations.runs import SubmitRun
from pointsman.engine.operations.tasks import DeleteTask, SignalTask
from pointsman.errors import NotFound
from pointsman.kernel.machine import Machine
from pointsman.server.answers import TaskAnswer, make_task
from pointsman.server.pages import paged, read_page
from pointsman.server.route import Call, Route, performs
from pointsman.server.submission import submit_text, write_flow
from pointsman.store.rows import Task, Transition

TAG = "document 004"
LIFECYCLE = "agent"
DECISIONS = {
    "run": "Queue a task that waits to be started, or that has failed.",
    "cancel": "Cancel a task. What runs ends first; then its state changes.",
    "accept": "Accept the result of a task.",
    "reject": "Reject the result of a task, with a comment for the next execution.",
    "resume": "Continue a task that timed out, in its session.",
    "answer": "Answer the question of a task, which continues in its session.",
}
SAID_WITH = {"reject": "comment", "answer": "answer"}


class NewAgentTask(Struct, frozen=True, kw_only=True):
    """A task of document 004, with a run of its own."""

    name: Annotated[Name, "What people call it."]
    task: Annotated[JsonObject, "What it does, as a task in a flow file: `agent`, `command`, `timeout`, `budget_usd` …"]
    reason: Annotated[Text | None, "Why; kept in the audit trail."] = None
    request_id: Annotated[Name | None, "An idempotency key, like the header Idempotency-Key."] = None


async def create_task(call: Call) -> TaskAnswer:
    new = call.read_as(NewAgentTask)
    flow = write_flow(name=new.name, lifecycle=LIFECYCLE, start="manual", tasks={new.name: new.task})
    run = await submit_text(call, flow, {}, new.reason)
    task = (await call.engine.list_tasks(run.id))[0]
    created = _as_created(task, await call.engine.list_history(task.id), await call.engine.get_machine(task))
    return await make_task(call.engine, created)


def _as_created(task: Task, history: Sequence[Transition], machine: Machine) -> Task:
    """The task as it was before anybody did anything with it: that is the answer, however late it is repeated."""
    state = machine.state(history[0].to_state)
    kept = ("id", "tenant", "machine_id", "created_at", "run_id", "name", "lane_id", "position", "budget_usd", "is_gate")
    fields = {name: getattr(task, name) for name in kept}
    return Task(**fields, state=state.name, phase=state.phase.value, entered_at=history[0].at, output=None, payload=None)


class TaskPage004(Struct, frozen=True, kw_only=True):
    """Tasks, newest first, without those that were deleted."""

    tasks: tuple[TaskAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class TaskFilter004(Struct, frozen=True, kw_only=True):
    """Which tasks to list: those that fulfill every condition."""

    state: Annotated[Name | None, "Only tasks in this state."] = None
    name: Annotated[Name | None, "Only tasks of this name."] = None
    text: Annotated[Name | None, "Only tasks with this text in their id, name, reason or error. Case matters."] = None
    created_after: Annotated[Instant | None, "Only tasks that were created at this time or later."] = None
    created_before: Annotated[Instant | None, "Only tasks that were created before this time."] = None


async def list_tasks(call: Call) -> TaskPage004:
    conditions = {name: getattr(call.query, name) for name in TaskFilter004.__struct_fields__}
    wanted = TaskFilter(lifecycle=LIFECYCLE, **conditions)
    tasks, behind = await read_page(call.query, call.engine.search_tasks, wanted)
    return TaskPage004(tasks=tuple([await make_task(call.engine, task) for task in tasks]), next=behind)


async def show_task(call: Call) -> TaskAnswer:
    return await make_task(call.engine, await find_task(call))


async def find_task(call: Call) -> Task:
    """A task that nobody has deleted."""
    task = await _find_any(call)
    if await call.engine.is_deleted(task.id):
        raise NotFound("task", task.id)
    return task


async def _find_any(call: Call) -> Task:
    """A task that follows document 004; others are none of its tasks."""
    task = await call.engine.get_task(call.path["task_id"])
    if (await call.engine.get_machine(task)).lifecycle != LIFECYCLE:
        raise NotFound("task", task.id)
    return task


async def check_task(call: Call) -> None:
    await find_task(call)


async def check_lifecycle(call: Call) -> None:
    """The operation itself knows what is deleted, and whether a request is repeated."""
    await _find_any(call)


def _decide(signal: str, summary: str) -> Route:
    said = SAID_WITH.get(signal)
    return performs(
        "POST",
        f"/api/tasks/{{task_id}}/{signal}",
        summary,
        SignalTask,
        make_task,
        TaskAnswer,
        scope="approve" if signal in ("accept", "reject", "answer") else "operate",
        sets={"signal": signal},
        left_out=tuple(name for name in ("answer", "comment") if name != said),
        check=check_task,
        problems=("not-found", "not-allowed", "transition-refused"),
        tag=TAG,
    )


ROUTES = (
    Route(
        "POST",
        "/api/tasks",
        "Create a task, which waits until somebody runs it.",
        create_task,
        TaskAnswer,
        scope="submit",
        reads=NewAgentTask,
        status=201,
        location="/api/tasks/{id}",
        operation=SubmitRun,
        problems=("flow-invalid", "unknown-name"),
        tag=TAG,
    ),
    Route("GET", "/api/tasks/{task_id}", "Show a task.", show_task, TaskAnswer, problems=("not-found",), tag=TAG),
    *(_decide(signal, summary) for signal, summary in DECISIONS.items()),
    Route("GET", "/api/tasks", "List tasks, newest first.", list_tasks, TaskPage004, query=paged(TaskFilter004), tag=TAG),
    performs(
        "DELETE",
        "/api/tasks/{task_id}",
        "Delete a task, unless it runs or waits for a worker. Its history stays; lists leave it out.",
        DeleteTask,
        make_task,
        TaskAnswer,
        scope="operate",
        check=check_lifecycle,
        problems=("not-found", "transition-refused"),
        tag=TAG,
    ),
)

"""The tools of `pointsman mcp` for a person's own agent: what the commands do, with the rights of that person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Struct

from pointsman.cli.detach import is_served
from pointsman.cli.hints import COMMANDS
from pointsman.cli.inbox import describe as describe_item
from pointsman.cli.inbox import find_items
from pointsman.cli.logs import Log, Shelf
from pointsman.cli.mcp import Tool, describe_tool, join_lines
from pointsman.cli.notifier import deliver_unattended
from pointsman.cli.project import Asked, open_project
from pointsman.cli.run import submit
from pointsman.cli.status import describe_run
from pointsman.cli.steer import Decision, decide, tell_what_follows
from pointsman.engine.fields import Count, Json, Name, Text, shape_of, whole
from pointsman.engine.operation import read_operation, schema_of
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.people import PEOPLE
from pointsman.errors import NothingYet, Problem, RequestInvalid, suggest
from pointsman.flows import build_run
from pointsman.flows.load import load_with_lifecycle
from pointsman.kernel.machine import Kind, Phase
from pointsman.store.rows import Task
from pointsman.views import runs
from pointsman.views.find import find_run, find_task, short

INSTRUCTIONS = (
    "Pointsman runs flows of tasks, durably. `submit` submits a run, `list` lists runs, `inspect` shows one with what can be "
    "done next, `logs` shows its output. `inbox` lists what waits for a person. `decide` decides in the name of that person: "
    "ask them first."
)
MAX_LOG_BYTES = 100_000
"""What a tool shows of the logs: the end of it."""
DECISIONS = tuple(COMMANDS.get(signal, signal) for signal in dict.fromkeys((*PEOPLE[Kind.TASK], *PEOPLE[Kind.RUN][:4])))
"""As the commands call them."""
SIGNALS = {COMMANDS[signal]: signal for signal in COMMANDS if signal in PEOPLE[Kind.TASK]}
Request = TypeVar("Request", bound=Struct)


class ListRuns(Struct, frozen=True):
    """List the latest runs, newest first."""

    limit: Annotated[int, whole(1, 1000), "How many."] = 20


class InspectRun(Struct, frozen=True):
    """Show a run: its tasks, why they wait, their outputs and errors, and what can be done next."""

    run: Annotated[Name, "Its id, the beginning or the end of it, or `latest`."]


class ReadLogs(Struct, frozen=True):
    """Show what the tasks of a run have written: the last lines of the last attempt of each."""

    run: Annotated[Name, "The id of the run, the beginning or the end of it, or `latest`."]
    task: Annotated[Name | None, "Only this task, by its name."] = None
    attempt: Annotated[Count | None, "This attempt of the task, instead of the last one."] = None
    lines: Annotated[int, whole(1, 10_000), "How many lines of each task, from the end."] = 100


class Inbox(Struct, frozen=True):
    """List everything that waits for a person, oldest first, with what is needed to decide."""


class SubmitFlow(Struct, frozen=True):
    """Submit a run of a flow. Workers run it; `served` says whether there are any."""

    path: Annotated[Text | None, "The flow file, relative to the folder of the project; or give `text`."] = None
    text: Annotated[Text | None, "The flow itself, as YAML."] = None
    inputs: Annotated[Json, "An object with the inputs of the flow."] = None
    reason: Annotated[Text | None, "Why; kept in the audit trail."] = None
    request_id: Annotated[Name | None, "Makes it safe to repeat: the same id submits one run."] = None


class Decide(Struct, frozen=True):
    """Decide something about a task, or about a whole run, in the name of the person. The result says what has changed."""

    run: Annotated[Name, "The id of the run, the beginning or the end of it, or `latest`."]
    task: Annotated[Name | None, "The name of the task; without it, the decision is about the whole run."] = None


def list_tools(asked: Asked, actor: str) -> dict[str, Tool]:
    def tool(declared: type[Request], act: Callable[[Asked, Request, str], Awaitable[dict[str, Any]]], *, reads: bool) -> Tool:
        async def call(arguments: dict[str, Any]) -> dict[str, Any]:
            return await act(asked, _read(declared, arguments), actor)

        return describe_tool(declared, call, reads=reads)

    return {
        "list": tool(ListRuns, list_runs, reads=True),
        "inspect": tool(InspectRun, inspect_run, reads=True),
        "logs": tool(ReadLogs, read_logs, reads=True),
        "inbox": tool(Inbox, list_inbox, reads=True),
        "submit": tool(SubmitFlow, submit_flow, reads=False),
        "decide": Tool(
            join_lines(Decide.__doc__ or ""),
            _describe_decision(),
            lambda arguments: make_decision(asked, arguments, actor),
        ),
    }


def _describe_decision() -> dict[str, Any]:
    """The schema of the operation, which names a task by its run and its name."""
    own, operation = shape_of(Decide).schema(), schema_of(SignalTask)["properties"]
    del operation["task_id"]
    signal = {"enum": list(DECISIONS), "description": "What is decided."}
    return {**own, "properties": {**own["properties"], **operation, "signal": signal}, "required": [*own["required"], "signal"]}


def _read(declared: type[Request], arguments: Mapping[str, Any]) -> Request:
    problems: list[Problem] = []
    found = shape_of(declared).read("", dict(arguments), problems)
    if problems:
        raise RequestInvalid(problems)
    assert isinstance(found, declared)
    return found


async def list_runs(asked: Asked, request: ListRuns, actor: str) -> dict[str, Any]:  # noqa: ARG001
    try:
        async with open_project(asked) as project:
            now = await project.engine.now()
            listed = await runs.list_runs(project.engine, request.limit, now, project.find_dead(), project.find_bound())
            return {"runs": listed}
    except NothingYet:
        return {"runs": []}


async def inspect_run(asked: Asked, request: InspectRun, actor: str) -> dict[str, Any]:
    async with open_project(asked) as project:
        run = await find_run(project.engine, request.run)
        return describe_run(replace(project, actor=actor), await project.view_run(run.id))


async def read_logs(asked: Asked, request: ReadLogs, actor: str) -> dict[str, Any]:  # noqa: ARG001
    if request.attempt is not None and request.task is None:
        raise RequestInvalid([Problem("attempt", "It needs a `task`.")])
    async with open_project(asked) as project:
        run = await find_run(project.engine, request.run)
        if request.task is not None:
            task = await find_task(project.engine, run, request.task)
            tasks = [task] if task.epoch else []
        else:
            tasks = [each for each in await project.engine.list_tasks_in_brief(run.id) if each.epoch]
        shelf = Shelf(project)
        logs = [await _find_log(shelf, each, request.attempt) for each in tasks]
    shown = [_show_log(log, request.lines, MAX_LOG_BYTES // len(logs)) for log in logs]
    return {"run_id": run.id, "logs": shown}


async def _find_log(shelf: Shelf, task: Task, attempt: int | None) -> Log:
    return await (shelf.find_last(task) if attempt is None else shelf.find_attempt(task, attempt))


def _show_log(log: Log, lines: int, most_bytes: int) -> dict[str, Any]:
    log.skip_to_tail(lines)
    text = b"\n".join(log.lines(to_the_end=True))
    is_cut = len(text) > most_bytes
    return {
        "task": log.task.name,
        "attempt": log.epoch,
        "path": str(log.path) if log.path and not log.mirror else None,
        "is_cut": is_cut,
        "text": text[-most_bytes:].decode("utf-8", "replace"),
    }


async def list_inbox(asked: Asked, request: Inbox, actor: str) -> dict[str, Any]:  # noqa: ARG001
    try:
        async with open_project(asked) as project:
            items, _ = await find_items(project)
            return {"items": [describe_item(replace(project, actor=actor), item) for item in items]}
    except NothingYet:
        return {"items": []}


async def submit_flow(asked: Asked, request: SubmitFlow, actor: str) -> dict[str, Any]:
    if (request.path is None) == (request.text is None):
        raise RequestInvalid([Problem("path", "Give either `path` or `text`.")])
    if request.inputs is not None and not isinstance(request.inputs, dict):
        raise RequestInvalid([Problem("inputs", "Must be an object.")])
    settings = asked.settings()
    source = Path(settings.directory, request.path) if request.path is not None else f"{request.text}\n"
    flow, lifecycle = load_with_lifecycle(source, tools=settings.all_tools)
    inputs = request.inputs or {}
    new = build_run(flow, inputs, directory=str(settings.directory), tools=settings.all_tools, lifecycle=lifecycle)
    async with open_project(asked, settings=settings, creates=True, keeps=True, lifecycles=[lifecycle]) as project:
        run = await submit(project, flow, new, Decision(actor, request.reason, request.request_id))
        await deliver_unattended(project, run)
        is_waited_for = run.phase != Phase.DONE and not await is_served(project, run)
        follow = [f"No worker takes its tasks: {project.hint('resume', short(run.id), '--detach')}"] if is_waited_for else []
        return {"run_id": run.id, "name": run.name, "state": run.state, "served": not is_waited_for, "next": follow}


async def make_decision(asked: Asked, arguments: dict[str, Any], actor: str) -> dict[str, Any]:
    known = _describe_decision()["properties"]
    if unknown := [name for name in arguments if name not in known]:
        raise RequestInvalid([Problem(name, f"There is no such field. {suggest(name, known)}") for name in unknown])
    own = {name: value for name, value in arguments.items() if name in Decide.__struct_fields__}
    body = {name: value for name, value in arguments.items() if name not in own}
    request = _read(Decide, own)
    if body.get("signal") not in DECISIONS:
        raise RequestInvalid([Problem("signal", f"Must be one of {', '.join(DECISIONS)}.")])
    signal = SIGNALS.get(body["signal"], body["signal"])
    said = read_operation(SignalTask, {**body, "signal": signal, "task_id": request.task or request.run})
    decision = Decision(actor, said.reason, said.request_id, said.answer, said.comment, said.epoch)
    async with open_project(asked) as project:
        project = replace(project, actor=actor)  # noqa: PLW2901 - the same one, as this person sees it
        decided = await decide(project, signal, request.run, request.task, decision)
        await deliver_unattended(project, decided.run)
        view = await project.view_run(decided.run.id)
        follow = list(tell_what_follows(project, view, decided.list_stopped(), continues=False))
        return {**decided.describe(), "next": follow}

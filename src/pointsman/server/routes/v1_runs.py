"""/api/v1: runs, their tasks, and flows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import Text
from pointsman.engine.filters import RunFilter, TaskFilter
from pointsman.engine.operations.keys import Scope
from pointsman.engine.operations.runs import (
    AddTasks,
    ApproveRun,
    SetBudget,
    SignaledRuns,
    SignalRun,
    SignalRuns,
    StartRun,
    SubmitRun,
)
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.templates import StoreTemplate
from pointsman.engine.operations.transition import RequestTransition, TransitionResult
from pointsman.engine.pages import TemplatePlace
from pointsman.errors import FlowInvalid, TransitionRefused
from pointsman.kernel.machine import Kind
from pointsman.server.answers import (
    AttemptAnswer,
    RunAnswer,
    TaskAnswer,
    TransitionAnswer,
    make_attempt,
    make_run,
    make_task,
    make_tasks,
    make_transition,
)
from pointsman.server.auth import check_scope
from pointsman.server.pages import Page, cut, paged, read_page
from pointsman.server.route import Call, Route, performs
from pointsman.server.submission import NewFlowRun, submit_flow
from pointsman.store.rows import Task, Template
from pointsman.views.budgets import view_budget
from pointsman.views.values import BudgetView, RunView

STEERING = ("cancel", "reset", "retry", "resume", "ready")
"""Signals about a task that decide nothing. To skip a gate passes it."""
OF_RUN = ("not-found", "transition-refused")


class RunPage(Page[RunAnswer], frozen=True, kw_only=True):
    """Runs, newest first."""


class RunTaskPage(Page[TaskAnswer], frozen=True, kw_only=True):
    """Tasks of a run, in their order."""


class TaskPage(Page[TaskAnswer], frozen=True, kw_only=True):
    """Tasks of all runs, of the newest run first, without those that were deleted."""


class TaskList(Struct, frozen=True, kw_only=True):
    """Tasks of a run, in their order."""

    items: tuple[TaskAnswer, ...]


class AttemptPage(Page[AttemptAnswer], frozen=True, kw_only=True):
    """The attempts of a task, the last of which may still wait for a worker."""


class HistoryPage(Page[TransitionAnswer], frozen=True, kw_only=True):
    """The transitions of an entity, in order."""


class TemplateAnswer(Struct, frozen=True, kw_only=True):
    """A flow that is stored by a name."""

    name: str
    text: str
    stored_at: datetime
    stored_by: str


class TemplatePage(Page[TemplateAnswer], frozen=True, kw_only=True):
    """Templates, by name."""


class FlowText(Struct, frozen=True, kw_only=True):
    """A flow to check."""

    flow: Annotated[Text, "The flow, as the text of a flow file (YAML or JSON)."]


class FindingAnswer(Struct, frozen=True, kw_only=True):
    """A rule that the flow breaks, and where."""

    rule: str
    line: int
    column: int
    message: str
    advice: str


class FlowCheckAnswer(Struct, frozen=True, kw_only=True):
    """Whether a flow is valid, and what is wrong with it."""

    valid: bool
    name: str | None
    lifecycle: str | None
    tasks: tuple[str, ...]
    findings: tuple[FindingAnswer, ...]


async def submit_run(call: Call) -> RunAnswer:
    run = await call.engine.perform_valid(call.read(SubmitRun))
    return await make_run(call.engine, run)


async def run_flow(call: Call) -> RunAnswer:
    run = await submit_flow(call, call.read_as(NewFlowRun))
    return await make_run(call.engine, run)


async def check_flow(call: Call) -> FlowCheckAnswer:
    text = call.read_as(FlowText).flow
    try:
        sent = await call.site.flows.load(text)
    except FlowInvalid as invalid:
        findings = tuple(
            FindingAnswer(
                rule=each.rule, line=each.place.line, column=each.place.column, message=each.message, advice=each.advice
            )
            for each in invalid.findings
        )
        return FlowCheckAnswer(valid=False, name=None, lifecycle=None, tasks=(), findings=findings)
    flow = sent.flow
    return FlowCheckAnswer(valid=True, name=flow.name, lifecycle=sent.lifecycle.name, tasks=tuple(flow.tasks), findings=())


async def store_template(call: Call) -> TemplateAnswer:
    """Only a valid flow is stored."""
    operation = call.read(StoreTemplate)
    await call.site.flows.load(operation.text)
    return make_template(await call.engine.perform_valid(operation))


async def get_template(call: Call) -> TemplateAnswer:
    return make_template(await call.engine.get_template(call.path["name"]))


async def list_templates(call: Call) -> TemplatePage:
    templates, behind = cut(call.query, TemplatePlace, await call.engine.list_templates())
    return TemplatePage(items=tuple(make_template(each) for each in templates), next=behind)


def make_template(template: Template) -> TemplateAnswer:
    return TemplateAnswer(name=template.name, text=template.text, stored_at=template.stored_at, stored_by=template.stored_by)


async def list_runs(call: Call) -> RunPage:
    runs, behind = await read_page(call.query, call.engine.list_runs, call.query)
    return RunPage(items=tuple([await make_run(call.engine, run) for run in runs]), next=behind)


async def search_tasks(call: Call) -> TaskPage:
    tasks, behind = await read_page(call.query, call.engine.search_tasks, call.query)
    return TaskPage(items=tuple([await make_task(call.engine, task) for task in tasks]), next=behind)


async def get_run(call: Call) -> RunAnswer:
    return await make_run(call.engine, await call.engine.get_run(call.path["run_id"]))


async def view_run(call: Call) -> RunView:
    return await call.site.view_run(call.engine, call.path["run_id"])


async def list_tasks(call: Call) -> RunTaskPage:
    tasks, behind = await read_page(call.query, call.engine.list_tasks_in_brief, call.path["run_id"])
    return RunTaskPage(items=await make_tasks(call.engine, tasks), next=behind)


async def get_budget(call: Call) -> BudgetView:
    return await view_budget(call.engine, call.path["run_id"])


async def get_task(call: Call) -> TaskAnswer:
    return await make_task(call.engine, await call.engine.get_task(call.path["task_id"]))


async def list_attempts(call: Call) -> AttemptPage:
    attempts, behind = await read_page(call.query, call.engine.list_attempts, call.path["task_id"])
    return AttemptPage(items=tuple(make_attempt(attempt) for attempt in attempts), next=behind)


async def list_history(call: Call) -> HistoryPage:
    moves, behind = await read_page(call.query, call.engine.list_history, *call.path.values())
    return HistoryPage(items=tuple(make_transition(move) for move in moves), next=behind)


async def request_transition(call: Call) -> TransitionResult:
    """A refusal is an answer of the operation, and stored with its key. Over HTTP it has the status 409, like any other one."""
    asked = call.read(RequestTransition)
    check_decision(call, asked)
    result = await call.engine.perform_valid(asked)
    if not result.success:
        machine = await call.engine.get_machine(await _find_entity(call.engine, asked))
        wanted = asked.to_state or asked.trigger or ""
        raise TransitionRefused(machine.refuse(result.from_state, wanted, already_there=wanted == result.from_state))
    return result


def check_decision(call: Call, asked: object) -> None:
    """To decide about a task needs another scope than to steer it. A transition to a state may be either."""
    match asked:
        case SignalTask():
            scope: Scope = "operate" if asked.signal in STEERING else "approve"
        case RequestTransition():
            scope = "approve" if asked.kind == Kind.TASK else "operate"
        case _:
            return
    check_scope(call.holder.actor, call.holder.scopes, scope)


async def signal_task(call: Call) -> TaskAnswer:
    asked = call.read(SignalTask)
    check_decision(call, asked)
    return await make_task(call.engine, await call.engine.perform_valid(asked))


async def _find_entity(engine: TenantEngine, asked: RequestTransition) -> Any:
    find = {"run": engine.get_run, "task": engine.get_task, "worker": engine.get_worker}[str(asked.kind)]
    return await find(asked.entity_id)


async def make_added(engine: TenantEngine, tasks: list[Task]) -> TaskList:
    return TaskList(items=await make_tasks(engine, tasks))


async def make_signaled(_: TenantEngine, signaled: SignaledRuns) -> SignaledRuns:
    return signaled


def _of_run(method: str, path: str, summary: str, operation: Any, scope: Any, problems: tuple[str, ...] = OF_RUN) -> Route:
    where = f"/api/v1/runs/{{run_id}}/{path}"
    return performs(method, where, summary, operation, make_run, RunAnswer, scope=scope, problems=problems)


ROUTES = (
    Route(
        "POST",
        "/api/v1/runs",
        "Submit a run with its tasks, whose payloads are for workers of your own; for flows, see /api/v1/flows/run.",
        submit_run,
        RunAnswer,
        scope="submit",
        reads=SubmitRun,
        status=201,
        location="/api/v1/runs/{id}",
        operation=SubmitRun,
        problems=("not-found", "unknown-name"),
    ),
    Route(
        "POST",
        "/api/v1/flows/run",
        "Submit a run of a flow.",
        run_flow,
        RunAnswer,
        scope="submit",
        reads=NewFlowRun,
        status=201,
        location="/api/v1/runs/{id}",
        operation=SubmitRun,
        problems=("flow-invalid", "unknown-name"),
    ),
    Route(
        "POST",
        "/api/v1/flows/check",
        "Check a flow: every finding with its line and column. It changes nothing.",
        check_flow,
        FlowCheckAnswer,
        reads=FlowText,
    ),
    Route("GET", "/api/v1/templates", "List the stored flows.", list_templates, TemplatePage, query=paged()),
    Route("GET", "/api/v1/templates/{name}", "Show a stored flow.", get_template, TemplateAnswer, problems=("not-found",)),
    Route(
        "PUT",
        "/api/v1/templates/{name}",
        "Store a flow by a name, which requests can give instead of the flow. Runs that were submitted keep theirs.",
        store_template,
        TemplateAnswer,
        scope="submit",
        reads=StoreTemplate,
        operation=StoreTemplate,
        problems=("flow-invalid", "unknown-name"),
    ),
    Route("GET", "/api/v1/runs", "List runs, newest first.", list_runs, RunPage, query=paged(RunFilter)),
    performs(
        "POST",
        "/api/v1/runs/bulk",
        "Cancel, pause, resume or retry all runs that fulfill a filter, or say what that would do.",
        SignalRuns,
        make_signaled,
        SignaledRuns,
        scope="operate",
    ),
    Route("GET", "/api/v1/runs/{run_id}", "Show a run.", get_run, RunAnswer, problems=("not-found",)),
    Route(
        "GET",
        "/api/v1/runs/{run_id}/status",
        "Show a run with its tasks, why they wait, and what a person can do next, with its effect.",
        view_run,
        RunView,
        problems=("not-found",),
    ),
    Route(
        "GET",
        "/api/v1/runs/{run_id}/tasks",
        "List the tasks of a run, in its order.",
        list_tasks,
        RunTaskPage,
        query=paged(),
        problems=("not-found",),
        named="list_run_tasks",
    ),
    performs(
        "POST",
        "/api/v1/runs/{run_id}/tasks",
        "Add tasks to a run that has not ended.",
        AddTasks,
        make_added,
        TaskList,
        scope="submit",
        status=201,
        problems=OF_RUN,
    ),
    _of_run("POST", "signals", "Send a run what a person decides: cancel, pause, resume, retry …", SignalRun, "operate"),
    _of_run(
        "POST",
        "approve",
        "Approve every open gate of a run; with none open, nothing happens.",
        ApproveRun,
        "approve",
        (*OF_RUN, "not-allowed"),
    ),
    _of_run("POST", "start", "Start every task of a run that waits to be started.", StartRun, "operate"),
    Route(
        "GET",
        "/api/v1/runs/{run_id}/budget",
        "Show what a run may spend, and what it has spent.",
        get_budget,
        BudgetView,
        problems=("not-found",),
    ),
    _of_run("PUT", "budget", "Set what a run may spend.", SetBudget, "operate", ("not-found",)),
    Route(
        "GET",
        "/api/v1/runs/{run_id}/history",
        "List the transitions of a run.",
        list_history,
        HistoryPage,
        query=paged(),
        problems=("not-found",),
        named="list_run_history",
    ),
    Route(
        "GET",
        "/api/v1/tasks",
        "List tasks of all runs, those of the newest run first, without deleted ones.",
        search_tasks,
        TaskPage,
        query=paged(TaskFilter),
    ),
    Route("GET", "/api/v1/tasks/{task_id}", "Show a task.", get_task, TaskAnswer, problems=("not-found",)),
    Route(
        "GET",
        "/api/v1/tasks/{task_id}/attempts",
        "List the attempts of a task.",
        list_attempts,
        AttemptPage,
        query=paged(),
        problems=("not-found",),
    ),
    Route(
        "GET",
        "/api/v1/tasks/{task_id}/history",
        "List the transitions of a task.",
        list_history,
        HistoryPage,
        query=paged(),
        problems=("not-found",),
        named="list_task_history",
    ),
    Route(
        "POST",
        "/api/v1/tasks/{task_id}/signals",
        "Send a task what a person decides: cancel, reset, retry, resume; with the scope `approve`: approve, accept, answer, "
        "reject, skip.",
        signal_task,
        TaskAnswer,
        scope="operate",
        or_scope="approve",
        reads=SignalTask,
        operation=SignalTask,
        problems=(*OF_RUN, "not-allowed"),
    ),
    Route(
        "POST",
        "/api/v1/transitions",
        "Move a run, a task or a worker by a trigger, or to a state, as document 000 asks for it. A task needs the scope "
        "`approve`.",
        request_transition,
        TransitionResult,
        scope="operate",
        or_scope="approve",
        reads=RequestTransition,
        operation=RequestTransition,
        problems=(*OF_RUN, "not-allowed", "unknown-name"),
        tag="document 000",
    ),
    Route(
        "GET",
        "/api/v1/history/{entity_id}",
        "List the transitions of a run, a task, a worker or a breaker.",
        list_history,
        HistoryPage,
        query=paged(),
        problems=("not-found",),
    ),
)

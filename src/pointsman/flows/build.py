"""From a flow to the run that the engine is asked to submit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import replace

from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.flows import model
from pointsman.flows.approval import ApprovalTask
from pointsman.flows.check import check_flow
from pointsman.flows.inputs import check_inputs
from pointsman.flows.model import FINAL_TASK, RUN_MERGE, Flow, FlowTask
from pointsman.flows.templates import render_text
from pointsman.kernel.machine import Kind, Lifecycle

EXTRA_SECONDS = 30.0
"""The worker ends an attempt at its timeout. The engine expires it this much later, in case the worker did not."""


MERGE_SECONDS = 1800.0
"""How long a merge may take: other merges of the repository, and the hooks of commits, take their time."""


class Tool(Protocol):
    """What the profile of a tool says about its tasks."""

    @property
    def retry_on_failure(self) -> bool: ...

    @property
    def expected_exit_codes(self) -> tuple[int, ...]: ...


NO_TOOLS: Mapping[str, Tool] = MappingProxyType({})
SUBTASK_OF = "subtask_of"
SETTLED: Mapping[str, Any] = MappingProxyType({"foreach": None, "when": None, "needs": (), "review": False})
"""What a task with subtasks has settled itself."""


def build_run(
    flow: Flow,
    inputs: Mapping[str, Any],
    *,
    directory: str,
    tools: Mapping[str, Tool] = NO_TOOLS,
    lifecycle: Lifecycle | None = None,
) -> NewRun:
    """Build the run of a flow with these inputs, in a project directory.

    The flow is checked first, unless it comes with the `lifecycle` that `load_with_lifecycle` checked it with.
    """
    lifecycle = lifecycle or check_flow(flow, tools)
    given = check_inputs(flow, inputs)
    payload: dict[str, Any] = {
        "flow": flow.name,
        "file": flow.file,
        "directory": directory,
        "inputs": given,
        "env": dict(flow.env),
        **_describe_job(flow, given),
        **({"worktree": flow.run_worktree.model_dump(mode="json")} if flow.run_worktree else {}),
    }
    asks = "ask" in lifecycle.of_kind(Kind.TASK).signals
    if flow.notify:
        payload["notify"] = [each.model_dump(mode="json", exclude_defaults=True) for each in flow.notify]
    return NewRun(
        name=flow.name,
        tasks=tuple(_build_tasks(flow, tools, asks=asks)),
        lifecycle=lifecycle.name,
        ordered=flow.ordered,
        autostart=flow.start == "automatic",
        worker_count=flow.worker_count,
        workspace=flow.workspace,
        payload=payload,
        final_task=None if _merges(flow) else _build_final_task(flow),
        last_tasks=_build_last_tasks(flow, asks=asks) if _merges(flow) else (),
        max_retries=flow.retries,
        backoff=_make_backoff(flow.backoff),
        timeout_seconds=flow.timeout,
        budget_usd=flow.budget_usd,
        tags=flow.tags,
    )


def _describe_job(flow: Flow, inputs: Mapping[str, Any]) -> dict[str, str]:
    return {"task_description": render_text(flow.task_description, {"inputs": inputs})} if flow.task_description else {}


def build_subtasks(
    task_name: str,
    task_id: str,
    task: FlowTask,
    items: Sequence[Any],
    *,
    tools: Mapping[str, Tool] = NO_TOOLS,
    is_reviewed: bool = False,
) -> list[NewTask]:
    """One subtask for each item of a `foreach`; with `is_reviewed`, a person has to see what each of them changes.

    The payload of a subtask has only its item: the rest is stored once, with the task itself.
    """
    subtask = task.model_copy(update=SETTLED)
    shared = {SUBTASK_OF: task_id} | ({"shows_changes": True} if is_reviewed else {})
    return [
        _describe_task(f"{task_name}[{index}]", subtask, {**shared, "item": item, "index": index}, tools, parent=task_name)
        for index, item in enumerate(items)
    ]


def parent_of(payload: Any) -> str | None:
    """The id of the task that a subtask takes the rest of its payload from."""
    return payload.get(SUBTASK_OF) if isinstance(payload, dict) else None


def complete_payload(payload: Mapping[str, Any], of_parent: Mapping[str, Any]) -> dict[str, Any]:
    """The whole payload of a subtask."""
    own = {name: value for name, value in payload.items() if name != SUBTASK_OF}
    return {name: value for name, value in of_parent.items() if name not in SETTLED} | own


def _merges(flow: Flow) -> bool:
    """Whether the run as a whole ends with a merge."""
    return flow.run_worktree is not None and flow.run_worktree.merges


def _build_last_tasks(flow: Flow, *, asks: bool) -> tuple[NewTask, ...]:
    """The checks of a run come before its merge. A merge may wait for a person as long as that takes, and checks may not."""
    checks = _build_final_task(flow)
    return (*([checks] if checks else []), _build_merge(RUN_MERGE, "", asks=asks))


def _build_tasks(flow: Flow, tools: Mapping[str, Tool], *, asks: bool) -> Iterator[NewTask]:
    """The tasks of a flow; one with a worktree is followed by its merge, and what needs the task needs the merge."""
    merges = {name: f"{name}[merge]" for name in flow.tasks if (own := flow.worktree_of(name)) and own.merges}
    for name in flow.tasks:
        task = flow.task(name)
        new = _build_task(name, task, tools)
        if merges:
            new = replace(new, depends_on=tuple(merges.get(need, need) for need in new.depends_on))
        yield new
        if name in merges:
            merge = _build_merge(merges[name], name, asks=asks)
            yield replace(merge, depends_on=(name,), critical=task.critical, priority=task.priority)


def _build_merge(name: str, task: str, *, asks: bool) -> NewTask:
    """The task that merges the worktree of a task, or that of the run; it is tried again only when a person says so."""
    merge = FlowTask(merges=task, asks=asks, timeout=MERGE_SECONDS)
    seconds = MERGE_SECONDS + EXTRA_SECONDS
    return NewTask(name=name, payload=merge.payload(), auxiliary=True, max_retries=0, timeout_seconds=seconds)


def _build_final_task(flow: Flow) -> NewTask | None:
    final = flow.final_task
    return NewTask(name=FINAL_TASK, payload=final.payload(), checks=True) if final else None


def build_subtask(name: str, task: FlowTask, parent: str, tools: Mapping[str, Tool]) -> NewTask:
    """A subtask that a running task has added."""
    return replace(_build_task(name, task, tools), parent=parent)


def _build_task(name: str, task: FlowTask, tools: Mapping[str, Tool]) -> NewTask:
    payload = task.payload()
    if task.foreach is not None:
        # It only adds its subtasks: tool, capabilities, budget and checks apply to those.
        return NewTask(
            name=name,
            payload=payload,
            depends_on=task.needs,
            priority=task.priority,
            critical=task.critical,
            review=task.review,
            max_retries=0,
        )
    if isinstance(task, ApprovalTask):
        return _build_gate(name, task, payload)
    return _describe_task(name, task, payload, tools)


def _build_gate(name: str, task: ApprovalTask, payload: dict[str, Any]) -> NewTask:
    approval = task.approval
    return NewTask(
        name=name,
        payload=payload,
        depends_on=task.needs,
        critical=task.critical,
        gate=True,
        approvers=tuple(dict.fromkeys(approval.by)),
        quorum=approval.quorum,
        self_approval=approval.self_approval,
        approval_seconds=approval.expires,
        on_expiry=approval.on_expire,
    )


def _describe_task(
    name: str, task: FlowTask, payload: dict[str, Any], tools: Mapping[str, Tool], parent: str | None = None
) -> NewTask:
    tool = tools.get(task.tool_name) if task.tool_name is not None else None
    own_codes = tool is None or "expected_exit_codes" in task.model_fields_set
    return NewTask(
        name=name,
        payload=payload,
        depends_on=task.needs,
        parent=parent,
        tool=task.tool_name,
        capabilities=task.needs_capabilities,
        priority=task.priority,
        critical=task.critical,
        review=task.review,
        checks=bool(task.checks),
        max_retries=task.retries if "retries" in task.model_fields_set else None,
        max_attempts=task.max_attempts,
        reclaim_after_seconds=task.reclaim_after,
        backoff=_make_backoff(task.backoff),
        on_open_circuit=task.on_open_circuit,
        retry_on_failure=tool.retry_on_failure if tool is not None else True,
        expected_exit_codes=task.expected_exit_codes if own_codes or tool is None else tool.expected_exit_codes,
        timeout_seconds=task.timeout + EXTRA_SECONDS if task.timeout is not None else None,
        budget_usd=task.budget_usd,
    )


def _make_backoff(given: model.Backoff) -> Backoff:
    return Backoff(given.base, given.factor, given.max, given.jitter)

"""From a flow to the run that the engine is asked to submit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.flows.check import check_flow
from pointsman.flows.inputs import check_inputs
from pointsman.flows.model import Flow, FlowTask
from pointsman.kernel.machine import Lifecycle

EXTRA_SECONDS = 30.0
"""The worker ends an attempt at its timeout. The engine expires it this much later, in case the worker did not."""


class Tool(Protocol):
    """What the profile of a tool says about its tasks."""

    @property
    def retry_on_failure(self) -> bool: ...


NO_TOOLS: Mapping[str, Tool] = MappingProxyType({})
SUBTASK_OF = "subtask_of"
SETTLED: Mapping[str, Any] = MappingProxyType({"foreach": None, "when": None, "needs": ()})
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
    payload = {
        "flow": flow.name,
        "file": flow.file,
        "directory": directory,
        "inputs": check_inputs(flow, inputs),
        "env": dict(flow.env),
    }
    return NewRun(
        name=flow.name,
        tasks=tuple(_build_task(name, flow.task(name), tools) for name in flow.tasks),
        lifecycle=lifecycle.name,
        ordered=flow.ordered,
        payload=payload,
        max_retries=flow.retries,
        timeout_seconds=flow.timeout,
        budget_usd=flow.budget_usd,
    )


def build_subtasks(
    task_name: str, task_id: str, task: FlowTask, items: Sequence[Any], *, tools: Mapping[str, Tool] = NO_TOOLS
) -> list[NewTask]:
    """One subtask for each item of a `foreach`.

    The payload of a subtask has only its item: the rest is stored once, with the task itself.
    """
    subtask = task.model_copy(update=SETTLED)
    return [
        _describe_task(
            f"{task_name}[{index}]", subtask, {SUBTASK_OF: task_id, "item": item, "index": index}, tools, parent=task_name
        )
        for index, item in enumerate(items)
    ]


def parent_of(payload: Any) -> str | None:
    """The id of the task that a subtask takes the rest of its payload from."""
    return payload.get(SUBTASK_OF) if isinstance(payload, dict) else None


def complete_payload(payload: Mapping[str, Any], of_parent: Mapping[str, Any]) -> dict[str, Any]:
    """The whole payload of a subtask."""
    own = {name: value for name, value in payload.items() if name != SUBTASK_OF}
    return {name: value for name, value in of_parent.items() if name not in SETTLED} | own


def _build_task(name: str, task: FlowTask, tools: Mapping[str, Tool]) -> NewTask:
    payload = task.payload()
    if task.foreach is not None:
        # It only adds its subtasks: tool, capabilities, budget and checks apply to those.
        return NewTask(name=name, payload=payload, depends_on=task.needs, priority=task.priority, critical=task.critical)
    return _describe_task(name, task, payload, tools)


def _describe_task(
    name: str, task: FlowTask, payload: dict[str, Any], tools: Mapping[str, Tool], parent: str | None = None
) -> NewTask:
    tool = tools.get(task.tool) if task.tool is not None else None
    return NewTask(
        name=name,
        payload=payload,
        depends_on=task.needs,
        parent=parent,
        tool=task.tool,
        capabilities=task.needs_capabilities,
        priority=task.priority,
        critical=task.critical,
        checks=bool(task.checks),
        max_retries=task.retries,
        backoff=Backoff(task.backoff.base, task.backoff.factor, task.backoff.max, task.backoff.jitter),
        retry_on_failure=tool.retry_on_failure if tool is not None else True,
        timeout_seconds=task.timeout + EXTRA_SECONDS if task.timeout is not None else None,
        budget_usd=task.budget_usd,
    )

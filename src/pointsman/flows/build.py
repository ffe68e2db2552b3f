"""From a flow to what the engine is asked to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import FlowInvalid, Problem, RequestInvalid
from pointsman.flows.check import check_flow, check_tools
from pointsman.flows.inputs import check_inputs
from pointsman.flows.lifecycle import find_lifecycle
from pointsman.flows.model import Flow, FlowTask
from pointsman.flows.remark import write_path

NET_SECONDS = 30.0
"""The worker ends an attempt at its timeout; the engine steps in so much later, where the worker did not."""


class Tool(Protocol):
    """What a tool's profile says about tasks that use it."""

    @property
    def retry_on_failure(self) -> bool: ...


NO_TOOLS: Mapping[str, Tool] = MappingProxyType({})


def build_run(flow: Flow, inputs: Mapping[str, Any], *, directory: str, tools: Mapping[str, Tool] = NO_TOOLS) -> NewRun:
    """The run of a flow with these inputs, in a project directory; refused with every problem at once."""
    if findings := check_flow(flow):
        raise FlowInvalid(findings)
    tasks = {name: flow.task(name) for name in flow.tasks}
    unknown = [Problem(write_path(each.path), f"{each.message} {each.advice}") for each in check_tools(flow, tools)]
    if unknown:
        raise RequestInvalid(unknown)
    payload = {
        "flow": flow.name,
        "file": flow.file,
        "directory": directory,
        "inputs": check_inputs(flow, inputs),
        "env": dict(flow.env),
        "timeout": flow.timeout,
    }
    return NewRun(
        name=flow.name,
        tasks=tuple(_build_task(name, task, tools) for name, task in tasks.items()),
        lifecycle=find_lifecycle(flow).name,
        ordered=flow.ordered,
        payload=payload,
        max_retries=flow.retries,
        timeout_seconds=flow.timeout,
        budget_usd=flow.budget_usd,
    )


def build_items(task_name: str, task: FlowTask, items: Sequence[Any], *, tools: Mapping[str, Tool] = NO_TOOLS) -> list[NewTask]:
    """One subtask for each item; when the task as a whole was to be done, and after what, is settled by then."""
    settled = {"foreach": None, "when": None, "needs": ()}
    part = task.model_copy(update=settled)
    payload = part.payload()
    return [
        _describe_task(f"{task_name}[{index}]", part, {**payload, "item": item, "index": index}, tools, parent=task_name)
        for index, item in enumerate(items)
    ]


def _build_task(name: str, task: FlowTask, tools: Mapping[str, Tool]) -> NewTask:
    payload = task.payload()
    if task.foreach is not None:
        # Its work is only to spread out: what its parts need, may spend and must pass is asked of them.
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
        timeout_seconds=task.timeout + NET_SECONDS if task.timeout is not None else None,
        budget_usd=task.budget_usd,
    )

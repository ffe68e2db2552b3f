"""The inbox: everything that waits for a person, with what is needed to decide."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from pydantic import ValidationError

from pointsman.engine.engine import TenantEngine
from pointsman.engine.gates import read_approvals
from pointsman.engine.pages import LARGEST_PAGE
from pointsman.engine.policy import read_policy
from pointsman.engine.questions import Question, read_question
from pointsman.errors import ExpressionFailed
from pointsman.flows.approval import ApprovalTask
from pointsman.flows.model import FlowTask, read_task
from pointsman.flows.results import describe_result, describe_run
from pointsman.flows.templates import refers_to, render_text
from pointsman.store.rows import Run, Task
from pointsman.views.changes import describe_changes, describe_output
from pointsman.views.runs import list_waiting
from pointsman.views.sources import Fleet, RunRecords, load_fleet, load_run
from pointsman.views.steps import steps_of_task
from pointsman.views.values import NEEDS_PERSON, NextStep, Waiting, read_output
from pointsman.views.waiting import explain_task


class InboxItem(Struct, frozen=True, kw_only=True):
    """A task that only a person can move on."""

    run_id: str
    run: str
    task_id: str
    task: str
    description: str
    """What the flow says that the task does."""
    waiting: Waiting
    text: str
    """What to decide: the prompt of an approval, or a question."""
    choices: tuple[str, ...] = ()
    default: str | None = None
    schema: dict[str, Any] | None = None
    """A question: what an answer has to be."""
    by: tuple[str, ...] = ()
    approved_by: tuple[str, ...] = ()
    quorum: int = 1
    attempts: int = 0
    outputs: Any = None
    tail: str = ""
    """A review: the end of what the task wrote."""
    diff: str = ""
    """A review: what it changed in its git work tree, shortened."""
    log_path: str | None = None
    steps: tuple[NextStep, ...]

    @property
    def since(self) -> datetime:
        return self.waiting.since


async def list_inbox(
    engine: TenantEngine, now: datetime, dead: Collection[str] = (), run_id: str | None = None
) -> list[InboxItem]:
    """Everything that waits for a person in runs that have not ended, or in one of them, oldest first."""
    waiting = await list_waiting(engine, now, dead, run_id=run_id, limit=LARGEST_PAGE)
    asking = [each.run_id for each in waiting if any(group.waiting.kind in NEEDS_PERSON for group in each.tasks)]
    if not asking:
        return []
    fleet = await load_fleet(engine, now, dead)
    items = []
    for run in await engine.find_runs(asking):
        items += await _list_items(engine, run, fleet)
    return sorted(items, key=lambda item: (item.waiting.since, item.task_id))


async def find_items(engine: TenantEngine, run: Run, task_ids: Collection[str], now: datetime) -> list[InboxItem]:
    """Those of these tasks of a run that wait for a person."""
    return await _list_items(engine, run, await load_fleet(engine, now), task_ids)


async def _list_items(engine: TenantEngine, run: Run, fleet: Fleet, task_ids: Collection[str] | None = None) -> list[InboxItem]:
    records = await load_run(engine, run)
    blockers = records.blockers()
    items = []
    for task in records.tasks:
        why = explain_task(task, records, fleet, blockers) if task_ids is None or task.id in task_ids else None
        if why and why.kind in NEEDS_PERSON:
            items.append(await _make_item(engine, records, task, why, fleet.now))
    return items


async def _make_item(engine: TenantEngine, records: RunRecords, task: Task, why: Waiting, now: datetime) -> InboxItem:
    run, policy, output = records.run, read_policy(task.policy), read_output(task)
    written = await _read_flow_task(engine, task)
    question = (
        read_question(task.question) if task.question is not None else Question(await _write_prompt(engine, run, written))
    )
    return InboxItem(
        run_id=run.id,
        run=run.name,
        task_id=task.id,
        task=task.name,
        description=written.description if written else "",
        waiting=why,
        text=question.text,
        choices=question.options,
        default=question.suggestion,
        schema=question.schema,
        by=policy.approvers,
        approved_by=read_approvals(task).approved_by,
        quorum=policy.quorum,
        attempts=task.epoch,
        outputs=output.get("outputs"),
        tail=describe_output(task, records),
        diff=describe_changes(task, records),
        log_path=task.attempt_log_path,
        steps=tuple(steps_of_task(task, records, now)),
    )


async def _read_flow_task(engine: TenantEngine, task: Task) -> FlowTask | None:
    """The task as its flow has it; None for one that was not submitted from a flow."""
    stored = (await engine.get_task(task.id)).payload
    try:
        return read_task(msgspec.json.decode(stored)) if isinstance(stored, str) else None
    except (ValidationError, msgspec.DecodeError):
        return None


async def _write_prompt(engine: TenantEngine, run: Run, task: FlowTask | None) -> str:
    """The prompt of an approval with the values of its expressions; one that has none is shown as it was written."""
    if not isinstance(task, ApprovalTask):
        return ""
    payload = msgspec.json.decode(run.payload)
    names = refers_to(task)
    results = await engine.list_results(run.id, sorted(names)) if names else []
    scope = {
        "inputs": payload.get("inputs", {}) if isinstance(payload, dict) else {},
        "run": describe_run(run.id, run.name, payload),
        "tasks": {name: describe_result(name, results) for name in names},
    }
    try:
        return render_text(task.approval.prompt, scope)
    except ExpressionFailed:
        return task.approval.prompt

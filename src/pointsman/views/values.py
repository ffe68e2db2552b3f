"""The answers: frozen values that can be encoded as JSON as they are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from pointsman.store.rows import ZERO_USD, Entity, Task

WaitingKind = Literal[
    "allocation",
    "answer",
    "approval",
    "budget",
    "cancel",
    "capability",
    "circuit_open",
    "claim",
    "dependency",
    "final_checks",
    "interrupted",
    "lost_worker",
    "missing_tasks",
    "no_worker",
    "rate_limit",
    "retry_delay",
    "review",
    "run_ended",
    "run_held",
    "run_paused",
    "slots_busy",
    "start",
    "subtasks",
    "suspended",
    "tool_limit",
]
PersonKind = Literal["answer", "approval", "review", "start"]
NEEDS_PERSON: tuple[WaitingKind, ...] = get_args(PersonKind)
"""What only a person ends."""


class Waiting(Struct, frozen=True):
    """Why something does not move, since when, and until when if that is known."""

    kind: WaitingKind
    reason: str
    since: datetime
    until: datetime | None = None


class NextStep(Struct, frozen=True, kw_only=True):
    """Something that a person can do now, and what follows from it."""

    operation: str
    """A signal, or `work`: start a worker for the run, or `serve`: start a worker for every run."""
    target: str
    """The id of a run or a task; empty for `serve`."""
    effect: str
    run_state: str
    """The state of the run right afterwards."""
    task_state: str | None = None
    """The state of the task right afterwards, for a step about a task."""
    capabilities: tuple[str, ...] = ()
    """For `work` and `serve`: what the worker must be able to do."""
    by: tuple[str, ...] = ()
    """Who may take it; anybody, if empty."""
    not_by: tuple[str, ...] = ()
    """Who may not take it: they have approved already, or submitted the run."""


class EntityView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None


class TaskView(EntityView, frozen=True, kw_only=True):
    run_id: str
    parent_task_id: str | None
    depth: int
    has_subtasks: bool
    critical: bool
    expired: bool
    """An approval that nobody decided in time: the engine did what the flow says for that case."""
    skipped: bool
    given_up: bool
    """It failed and is not critical, so the engine skipped it."""
    failed_with_subtask: bool
    """It failed because a subtask did, so the failure counts there."""
    attempts: int
    """How often its work was started; 0 where its worker only found that it need not run."""
    took_seconds: float | None
    """How long its attempts ran, all together, with their checks; not how long it waited before, between or after them."""
    attempt_seconds: Mapping[int, float]
    """The same for each attempt, by its number."""
    retry_count: int
    max_retries: int
    worker_id: str | None
    exit_code: int | None
    log_path: str | None
    error: str | None
    outputs: Any
    tail: str | None
    """While it waits for a review: the end of what it wrote."""
    diff: str | None
    """While it waits for a review: what it changed in its git work tree, shortened."""
    cost_usd: Decimal
    cost_is_estimated: bool
    """Some of the cost is an estimate."""
    tokens_in: int
    tokens_out: int
    waiting: Waiting | None

    @property
    def is_at_rest(self) -> bool:
        """It has ended, or waits for other tasks only."""
        return self.phase == "done" or (self.waiting is not None and self.waiting.kind == "dependency")


class RunSummary(EntityView, frozen=True, kw_only=True):
    """A run without its tasks."""

    lifecycle: str
    tags: tuple[str, ...]
    error: str | None
    output: Any
    """The result of a run whose lifecycle stores one: the outputs of its tasks, by name."""
    retry_count: int
    budget_usd: Decimal | None
    spent_usd: Decimal
    cost_is_estimated: bool
    """Some of `spent_usd` is an estimate."""
    tokens_in: int
    tokens_out: int

    def elapsed_seconds(self, now: datetime) -> float | None:
        """From its first start to its end, or until now, with all that it waited; None before its start."""
        if self.started_at is None:
            return None
        return ((self.completed_at or now) - self.started_at).total_seconds()


class CurrentRun(RunSummary, frozen=True, kw_only=True):
    """A run, and why it does not move."""

    waiting: Waiting | None

    @property
    def interrupted_at(self) -> datetime | None:
        """When its last worker was last heard of, where no worker runs it any more."""
        return self.waiting.since if self.waiting and self.waiting.kind == "interrupted" else None

    def elapsed_seconds(self, now: datetime) -> float | None:
        """No time passes for a run that is interrupted."""
        return RunSummary.elapsed_seconds(self, self.interrupted_at or now)


class RunListing(CurrentRun, frozen=True, kw_only=True):
    tasks: Mapping[str, int]
    """How many tasks there are: in `total`, by phase and by outcome."""


class TaskCounts(Struct, frozen=True, kw_only=True):
    """The tasks of a run, each counted once; those that are in none of these numbers but `total` have not ended."""

    total: int
    done: int
    """Succeeded or skipped."""
    skipped: int
    """Of those that are done, the ones that a person or a condition skipped."""
    given_up: int
    """Of those that are done, the ones that failed and are not critical."""
    failed: int
    """Without those that failed because a subtask did."""
    canceled: int


class RunView(CurrentRun, frozen=True, kw_only=True):
    tasks: tuple[TaskView, ...]
    task_description: str | None
    """Of a job: what it is to do."""
    attended: bool
    """A worker is alive that may run its tasks."""
    obstacle: str | None
    """Why the run cannot succeed any more, and what to do instead."""
    next_steps: tuple[NextStep, ...]
    as_of: datetime

    @property
    def is_stuck(self) -> bool:
        """It has not ended, cannot succeed, and no task of it can move any more: only a person can end it."""
        return bool(self.obstacle) and self.phase != "done" and all(task.is_at_rest for task in self.tasks)

    @property
    def failed_tasks(self) -> list[TaskView]:
        """Without those that failed because a subtask did."""
        return [task for task in self.tasks if task.outcome == "failure" and not task.failed_with_subtask]

    @property
    def counts(self) -> TaskCounts:
        return TaskCounts(
            total=len(self.tasks),
            done=sum(task.outcome == "success" for task in self.tasks),
            skipped=sum(task.skipped and not task.given_up for task in self.tasks),
            given_up=sum(task.given_up for task in self.tasks),
            failed=len(self.failed_tasks),
            canceled=sum(task.outcome == "canceled" for task in self.tasks),
        )

    def find_step(self, operation: str, target: str | None = None) -> NextStep | None:
        wanted = target or self.id
        return next((step for step in self.next_steps if (step.operation, step.target) == (operation, wanted)), None)


class WaitingTasks(Struct, frozen=True):
    """Tasks of a run that wait for the same reason."""

    name: str
    """The first of them."""
    count: int
    waiting: Waiting


class RunWaiting(Struct, frozen=True, kw_only=True):
    """What keeps a run, and tasks of it, from moving."""

    run_id: str
    name: str
    waiting: Waiting | None
    tasks: tuple[WaitingTasks, ...]
    next_steps: tuple[NextStep, ...] = ()


class HeldTask(Struct, frozen=True):
    run_id: str
    task_id: str
    name: str


class WorkerView(EntityView, frozen=True, kw_only=True):
    alive: bool
    wish: Literal["suspended", "draining", "terminating"] | None
    """What a person wants of it, where its state does not say so."""
    slots: int
    capabilities: tuple[str, ...]
    metadata: Mapping[str, Any]
    """What it said of itself when it was started."""
    run_id: str | None
    holds: tuple[HeldTask, ...]
    heartbeat_at: datetime
    protection: str | None
    """What ends its processes if it is killed: `cgroup`, `mark` or `none`; None for workers of other machines and projects."""


class BreakerView(EntityView, frozen=True, kw_only=True):
    """A tool: its circuit and its limits. The name is the one of the tool."""

    failure_count: int
    failure_threshold: int
    cooldown_seconds: float
    retry_at: datetime | None
    """When an open circuit lets a probe through."""
    limited_until: datetime | None
    """When the usage limit that the tool has reported ends."""
    probe_task_id: str | None
    max_concurrent: int | None
    rate_count: int | None
    rate_seconds: float | None


class NoticeView(Struct, frozen=True, kw_only=True):
    """An event that moved nothing."""

    at: datetime
    kind: str
    """run, task, worker, breaker, tenant or key"""
    id: str
    name: str
    run_id: str | None
    subject: str
    """overstayed, budget, repaired, added, key; or cancel, drain or terminate, where a worker has to end something first"""
    message: str


class TaskBudget(Struct, frozen=True, kw_only=True):
    task_id: str
    name: str
    budget_usd: Decimal | None
    spent_usd: Decimal
    reserved_usd: Decimal
    cost_is_estimated: bool
    tokens_in: int
    tokens_out: int


class TenantBudget(Struct, frozen=True, kw_only=True):
    """What all runs of a tenant may spend and have spent."""

    tenant: str
    budget_usd: Decimal | None
    spent_usd: Decimal
    left_usd: Decimal | None
    cost_is_estimated: bool
    tokens_in: int
    tokens_out: int


class BudgetView(Struct, frozen=True, kw_only=True):
    """What a run may spend, and what has become of it."""

    run_id: str
    name: str
    state: str
    budget_usd: Decimal | None
    """None: as much as it likes."""
    spent_usd: Decimal
    reserved_usd: Decimal
    left_usd: Decimal | None
    """Neither spent nor reserved."""
    cost_is_estimated: bool
    tokens_in: int
    tokens_out: int
    tasks: tuple[TaskBudget, ...]
    """Those that have a budget, or have spent or used anything."""
    tenant: TenantBudget


def entity_fields(entity: Entity, name: str) -> dict[str, Any]:
    """The fields that every view of an entity has. A state that ends work without saying when was entered then."""
    return {
        "id": entity.id,
        "name": name,
        "state": entity.state,
        "phase": entity.phase,
        "outcome": entity.outcome,
        "reason": entity.reason,
        "created_at": entity.created_at,
        "started_at": entity.started_at,
        "completed_at": entity.completed_at or (entity.entered_at if entity.phase == "done" else None),
    }


def read_error(error: str | None) -> str | None:
    """The message of an error, which the engine stores as a JSON object."""
    if error is None:
        return None
    try:
        value = msgspec.json.decode(error)
    except msgspec.DecodeError:
        return error
    return str(value["message"]) if isinstance(value, dict) and "message" in value else error


def read_output(task: Task) -> dict[str, Any]:
    """What the worker stored for a task: `outputs`, `tail`, `skipped`."""
    value = msgspec.json.decode(task.output) if isinstance(task.output, str) else None
    return value if isinstance(value, dict) else {}


def first_line(text: str | None) -> str:
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def show_usage(cost_usd: Decimal, tokens_in: int, tokens_out: int, *, is_estimated: bool) -> str:
    """What is known beside the amount itself: "estimated, 1,200 tokens in, 300 out"; empty if nothing is."""
    tokens = f"{tokens_in:,} tokens in, {tokens_out:,} out" if tokens_in or tokens_out else ""
    return ", ".join(part for part in ("estimated" if is_estimated and cost_usd else "", tokens) if part)


def show_usd(amount: Decimal) -> str:
    """Without trailing zeros: databases store six places."""
    return f"{(amount or ZERO_USD).normalize():f}"

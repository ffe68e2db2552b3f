"""The rows, as values: one struct a table, the same on both databases.

`Run`, `Task`, `Worker` and `Breaker` are the things that move. They share the columns of the law: which machine they follow,
where they stand, and who moved them there, why and when. A transaction changes them in place; whoever asks gets a copy.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType

ZERO_USD = Decimal(0)


class Entity(Struct, kw_only=True):
    """What moves: every change of `state` bumps `revision`, and the database writes the audit row from these columns."""

    CHANGING: ClassVar[tuple[str, ...]] = (
        "state",
        "phase",
        "outcome",
        "revision",
        "trigger",
        "reason",
        "actor",
        "metadata",
        "entered_at",
        "started_at",
        "completed_at",
    )
    """What may be written after the row was inserted; the rest stays, or is counted by queries of its own."""

    id: str
    tenant: str
    machine_id: int
    state: str
    phase: str
    outcome: str | None = None
    revision: int = 0
    trigger: str = "create"
    """What moved it to `state`."""
    reason: str | None = None
    actor: str | None = None
    metadata: str | None = None
    """JSON, kept with this move in the audit trail."""
    entered_at: datetime
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None


class Run(Entity, kw_only=True):
    CHANGING = (
        *Entity.CHANGING,
        "missing_tasks",
        "retry_count",
        "budget_usd",
        "spent_usd",
        "promised_usd",
        "reserved_usd",
        "error",
        "output",
    )
    name: str
    lifecycle: str
    parent_run_id: str | None = None
    depth: int = 0
    worker_count: int = 1
    allocates: bool = False
    """It begins only when it gets `worker_count` workers of its own."""
    missing_tasks: int = 0
    """How many tasks were announced and not created yet."""
    has_checks: bool = False
    retry_count: int = 0
    max_retries: int = 0
    policy: str = "{}"
    budget_usd: Decimal | None = None
    spent_usd: Decimal = ZERO_USD
    promised_usd: Decimal = ZERO_USD
    """What its tasks have reserved, all together."""
    reserved_usd: Decimal = ZERO_USD
    """As much of that as there is, when some task has cost more than it should."""
    error: str | None = None
    payload: str = "null"
    output: str | None = None


class Task(Entity, kw_only=True):
    CHANGING = (
        *Entity.CHANGING,
        "has_subtasks",
        "available_at",
        "epoch",
        "current_attempt",
        "worker_id",
        "lease_expired",
        "attempt_count",
        "retry_count",
        "reclaim_count",
        "budget_usd",
        "cost_usd",
        "reserved_usd",
        "session_id",
        "keep_session",
        "attempt_worker_id",
        "attempt_started_at",
        "attempt_resumed",
        "attempt_cost_usd",
        "attempt_error",
        "attempt_exit_code",
        "attempt_log_path",
        "question",
        "answer",
        "comment",
        "error",
        "cancel_requested_at",
        "output",
    )
    run_id: str
    parent_task_id: str | None = None
    depth: int = 0
    position: int = 0
    name: str
    lane_id: int
    priority: int = 0
    is_gate: bool = False
    critical: bool = True
    review_wanted: bool = False
    has_checks: bool = False
    has_subtasks: bool = False
    """It has subtasks."""
    allocated: bool = False
    """Only the workers that its run was given may claim it."""
    run_open: bool = False
    """Its run lets tasks begin."""
    open_dependencies: int = 0
    available_at: datetime | None = None
    """It waits for this instant; a timer clears it."""
    epoch: int = 0
    current_attempt: int | None = None
    """The epoch of the attempt that holds it."""
    worker_id: str | None = None
    """Who works on it, in states that need somebody."""
    lease_expired: bool = False
    """Its attempt is lost, and the next claim may take it over where it stands."""
    attempt_count: int = 0
    max_attempts: int | None = None
    retry_count: int = 0
    max_retries: int = 0
    reclaim_count: int = 0
    max_reclaims: int = 3
    policy: str = "{}"
    budget_usd: Decimal | None = None
    cost_usd: Decimal = ZERO_USD
    reserved_usd: Decimal = ZERO_USD
    session_id: str | None = None
    keep_session: bool = False
    """The next attempt continues `session_id`."""
    attempt_worker_id: str | None = None
    """Whose attempt it is, checks and all; this and what follows is said of the attempt that holds it, or of the last one."""
    attempt_started_at: datetime | None = None
    attempt_resumed: bool = False
    """It continued the session of the attempt before it."""
    attempt_cost_usd: Decimal = ZERO_USD
    attempt_error: str | None = None
    attempt_exit_code: int | None = None
    attempt_log_path: str | None = None
    question: str | None = None
    answer: str | None = None
    comment: str | None = None
    error: str | None = None
    cancel_requested_at: datetime | None = None
    payload: str | UnsetType = UNSET
    """What is to be done, as JSON; read only where it is needed."""
    output: str | UnsetType | None = UNSET


class TaskKey(Struct, frozen=True, kw_only=True):
    """As much of a task as it takes to tell whether it is like another one."""

    id: str
    tenant: str
    run_id: str
    machine_id: int
    state: str
    lane_id: int
    revision: int
    epoch: int
    current_attempt: int | None
    attempt_worker_id: str | None
    attempt_count: int
    started: bool
    max_retries: int
    max_reclaims: int
    policy: str
    entered_at: datetime
    plain: bool
    """It asks for nothing but to be done, and nothing has happened to it yet."""
    priority: int = 0
    name: str = ""
    payload: str = "null"
    """These three for whoever is to do it."""


class Worker(Entity, kw_only=True):
    CHANGING = (
        *Entity.CHANGING,
        "capabilities",
        "max_concurrent_tasks",
        "heartbeat_at",
        "missing",
        "run_id",
        "drain_wanted",
        "pause_wanted",
        "error",
    )
    name: str
    lifecycle: str
    capabilities: str = "[]"
    """A JSON list of words."""
    max_concurrent_tasks: int = 1
    lease_seconds: float = 30.0
    heartbeat_at: datetime
    missing: bool = False
    """Its lease is over, and that has been dealt with."""
    run_id: str | None = None
    """The run that it is allocated to."""
    drain_wanted: bool = False
    pause_wanted: bool = False
    error: str | None = None


class Breaker(Entity, kw_only=True):
    CHANGING = (
        *Entity.CHANGING,
        "failure_count",
        "failure_threshold",
        "success_count",
        "success_threshold",
        "cooldown_seconds",
        "retry_at",
        "probe_task_id",
        "max_concurrent",
        "rate_count",
        "rate_seconds",
        "begun",
    )
    tool: str
    failure_count: int = 0
    failure_threshold: int = 5
    success_count: int = 0
    success_threshold: int = 1
    cooldown_seconds: float = 60.0
    retry_at: datetime | None = None
    """When an open breaker lets its probe through."""
    probe_task_id: str | None = None
    max_concurrent: int | None = None
    """How many attempts of its tool may be at work at once."""
    rate_count: int | None = None
    """How many may begin in any `rate_seconds`."""
    rate_seconds: float | None = None
    begun: str = "[]"
    """A JSON list of instants, in microseconds, and how many began at each; only where there is a rate."""


class Attempt(Struct, kw_only=True):
    """One execution of a task; `epoch` is its fencing token."""

    task_id: str
    epoch: int
    tenant: str
    worker_id: str
    started_at: datetime
    ended_at: datetime | None = None
    ended_by: str | None = None
    """The trigger that ended it."""
    error: str | None = None
    exit_code: int | None = None
    cost_usd: Decimal = ZERO_USD
    session_id: str | None = None
    resumed: bool = False
    """It continued the session of the attempt before it."""
    log_path: str | None = None


class Result(Struct, frozen=True, kw_only=True):
    """What became of a task, for whoever goes on with it."""

    name: str
    parent: str | None
    """The name of the task that it is a part of."""
    position: int
    phase: str
    outcome: str | None
    trigger: str
    by_worker: bool
    """Whoever had it said so, and not a person."""
    output: str | None


class Dependency(Struct, frozen=True):
    task_id: str
    depends_on_id: str


class Lane(Struct, frozen=True, kw_only=True):
    """What a task asks of whoever claims it: tasks of one lane are interchangeable to a worker."""

    id: int
    tenant: str
    tool: str | None
    capabilities: str
    """A JSON list of words, sorted."""
    fails_fast: bool
    """While the breaker of its tool is open, its tasks fail instead of waiting."""


class Timer(Struct, frozen=True, kw_only=True):
    """Something that happens at an instant, unless what it waits for has moved on before."""

    entity_id: str
    purpose: str
    kind: str
    tenant: str
    run_id: str | None
    revision: int
    due_at: datetime


class Transition(Struct, frozen=True, kw_only=True):
    """One line of the audit trail, which is also the event stream."""

    position: str
    """Where it stands in the stream; hand it back to read on from here."""
    tenant: str
    kind: str
    entity_id: str
    revision: int
    """How many moves of its entity came before it."""
    run_id: str | None
    machine_id: int
    from_state: str | None
    to_state: str
    trigger: str
    severity: str
    reason: str | None
    actor: str | None
    metadata: str | None
    at: datetime
    seconds_in_state: float | None


class Notice(Struct, frozen=True, kw_only=True):
    """Something that happened without moving anything."""

    tenant: str
    kind: str
    entity_id: str
    run_id: str | None
    subject: str
    message: str
    at: datetime


class StoredResponse(Struct, frozen=True, kw_only=True):
    """What a request with an idempotency key was answered."""

    tenant: str
    endpoint: str
    key: str
    request_hash: str
    status: int
    body: str
    created_at: datetime
    expires_at: datetime


class MachineRow(Struct, frozen=True, kw_only=True):
    """One version of one machine, and the text of the lifecycle that declares it."""

    id: int
    name: str
    version: int
    kind: str
    fingerprint: str
    lifecycle: str
    definition: str


class Situation(Struct, frozen=True, kw_only=True):
    """How the tasks of a run stand, in as few words as its machine needs."""

    run_id: str
    failed_task: str | None
    """A critical task that has failed for good."""
    last_failure: str | None
    """A task that has failed for good, critical or not, when all have ended."""
    unfinished: bool
    """Some task has not succeeded."""
    moving: bool
    """Some task will go on without a person: claimable, running, or waiting for an instant."""


class Subtasks(Struct, frozen=True, kw_only=True):
    """How the subtasks of a task stand."""

    parent_task_id: str
    open: bool
    """Some have not ended."""
    failed: bool
    """A critical one has ended, and has not succeeded."""

    @property
    def is_done(self) -> bool:
        """Whether all have succeeded, those aside that are not critical and have failed."""
        return not self.open and not self.failed

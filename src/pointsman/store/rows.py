"""The rows: one struct for each table, the same on both databases.

This is the catalogue. Select lists, INSERT and UPDATE statements and row readers follow from these fields and their types
(`columns.py`), so a new column is a field here and a line in the migration of each database.

`Run`, `Task`, `Worker` and `Breaker` are the entities that move. They share the columns of the law: the machine, the state, and
who moved the entity there, why and when. A transaction changes rows in place; a reader returns copies.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

ZERO_USD = Decimal(0)


class Entity(Struct, kw_only=True):
    """A row that moves: each move increments `revision`, and the database writes the audit row from these columns."""

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
    """The columns that `move` and `update` may write: of a kind of entity, all but those in `FIXED`."""
    FIXED: ClassVar[tuple[str, ...]] = ()
    """The columns of a kind that stay as they were inserted, or have queries of their own."""

    id: str
    tenant: str
    machine_id: int
    state: str
    phase: str
    outcome: str | None = None
    revision: int = 0
    trigger: str = "create"
    """The trigger of the move that led to `state`."""
    reason: str | None = None
    actor: str | None = None
    metadata: str | None = None
    """JSON that the audit trail keeps with this move."""
    entered_at: datetime
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None

    def __init_subclass__(cls) -> None:
        cls.CHANGING = (*cls.CHANGING, *(name for name in cls.__annotations__ if name not in cls.FIXED))


class Run(Entity, kw_only=True):
    FIXED = (
        "name",
        "lifecycle",
        "parent_run_id",
        "depth",
        "worker_count",
        "allocates",
        "has_checks",
        "final_task",
        "max_retries",
        "policy",
        "payload",
        "tags",
    )
    name: str
    lifecycle: str
    parent_run_id: str | None = None
    depth: int = 0
    worker_count: int = 1
    allocates: bool = False
    """The run starts only when `worker_count` workers are allocated to it."""
    missing_tasks: int = 0
    """The number of tasks that were announced and are not created yet."""
    has_checks: bool = False
    final_task: str | None = None
    """The task that checks the run when all others have succeeded, as JSON; it is added then."""
    retry_count: int = 0
    max_retries: int = 0
    policy: str = "{}"
    budget_usd: Decimal | None = None
    spent_usd: Decimal = ZERO_USD
    promised_usd: Decimal = ZERO_USD
    """The sum of what its tasks have reserved."""
    reserved_usd: Decimal = ZERO_USD
    """The part of `promised_usd` that the budget still covers; less when a task has cost more than it reserved."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_is_estimated: bool = False
    """Some of `spent_usd` is an estimate."""
    error: str | None = None
    tags: str = "[]"
    """A sorted JSON list of words."""
    payload: str = "null"
    output: str | None = None


class RunTag(Struct, frozen=True, kw_only=True):
    """A tag of a run, for lists of the runs that have it."""

    TABLE: ClassVar = "run_tag"

    tenant: str
    tag: str
    created_at: datetime
    """When the run was created."""
    run_id: str


class Task(Entity, kw_only=True):
    """A task in two tables: `task_spec` has what was asked for, `task_state` where it stands. `task` is a view of both."""

    MOVING_TABLE = "task_state"
    SPEC = (
        *("id", "tenant", "run_id", "parent_task_id", "depth", "position", "name"),
        *("critical", "policy", "budget_usd", "payload"),
    )
    """The columns of `task_spec`."""
    FIXED = (
        *SPEC,
        "lane_id",
        "priority",
        "is_gate",
        "review_wanted",
        "has_checks",
        "allocated",
        "run_open",
        "open_dependencies",
        "max_attempts",
        "max_retries",
        "max_reclaims",
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
    allocated: bool = False
    """Only workers that are allocated to its run may claim it."""
    run_open: bool = False
    """Its run lets tasks start."""
    open_dependencies: int = 0
    available_at: datetime | None = None
    """The task waits until then; a timer clears this."""
    epoch: int = 0
    current_attempt: int | None = None
    """The epoch of the attempt that holds the task."""
    worker_id: str | None = None
    """The worker that runs it, in states that need a worker."""
    lease_expired: bool = False
    """Its attempt is lost, and the next claim may take it over in its present state."""
    attempt_count: int = 0
    max_attempts: int | None = None
    retry_count: int = 0
    max_retries: int = 0
    reclaim_count: int = 0
    max_reclaims: int = 3
    policy: str = "{}"
    budget_usd: Decimal | None = None
    cost_usd: Decimal = ZERO_USD
    tokens_in: int = 0
    tokens_out: int = 0
    cost_is_estimated: bool = False
    """Some of `cost_usd` is an estimate."""
    reserved_usd: Decimal = ZERO_USD
    session_id: str | None = None
    keep_session: bool = False
    """The next attempt continues the session `session_id`."""
    attempt_worker_id: str | None = None
    """The worker of the attempt, checks included. The `attempt_` columns describe the current attempt, or else the last one."""
    attempt_started_at: datetime | None = None
    attempt_resumed: bool = False
    """The attempt continued the session of the attempt before it."""
    attempt_cost_usd: Decimal = ZERO_USD
    attempt_tokens_in: int = 0
    attempt_tokens_out: int = 0
    attempt_cost_is_estimated: bool = False
    attempt_error: str | None = None
    attempt_exit_code: int | None = None
    attempt_log_path: str | None = None
    question: str | None = None
    answer: str | None = None
    comment: str | None = None
    error: str | None = None
    cancel_requested_at: datetime | None = None
    payload: str | UnsetType | None = UNSET
    """The work to do, as JSON. Payload and output may be large, so most queries leave them out; lists have None."""
    output: str | UnsetType | None = UNSET


class WaitingTask(Task, kw_only=True):
    """One task in place of all that wait for the same reason."""

    alike: int = 1
    """How many these are."""


class PlainMove(Struct, frozen=True, kw_only=True):
    """A move that every plain task makes alike: of its machine, from its state, on one signal."""

    machine_id: int
    from_state: str
    to_state: str
    trigger: str
    stores_output: bool
    needs_worker: bool


class PlainReport(Struct, frozen=True):
    """What the last report about an attempt of a plain task says."""

    task_id: str
    epoch: int
    output: str | None = None
    exit_code: int | None = None
    session_id: str | None = None
    log_path: str | None = None


class EndedTask(Struct, frozen=True, kw_only=True):
    """A plain task that has just succeeded, and what has to follow from that."""

    id: str
    run_id: str
    worker_id: str
    parent_task_id: str | None
    has_dependents: bool
    policy: str


class BegunTask(Struct, frozen=True, kw_only=True):
    """A plain task that a worker has just got, with what the worker needs to know about it."""

    id: str
    tenant: str
    run_id: str
    parent_task_id: str | None
    machine_id: int
    state: str
    revision: int
    name: str
    priority: int
    policy: str
    entered_at: datetime
    run_phase: str
    """Before this task began."""
    run_policy: str
    payload: str


class Worker(Entity, kw_only=True):
    FIXED = (
        *("name", "lifecycle", "serves", "max_concurrent_tasks", "lease_seconds", "only_run_id", "worker_metadata"),
        "key_id",
    )
    name: str
    lifecycle: str
    serves: str = "[]"
    """A JSON list of the tenants that it serves besides its own, or `"all"` in JSON."""
    last_tenant: str | None = None
    """The tenant whose task or run a shared worker got last: its next turn is the one of the tenant after that."""
    capabilities: str = "[]"
    """A JSON list of strings."""
    max_concurrent_tasks: int = 1
    lease_seconds: float = 30.0
    heartbeat_at: datetime
    missing: bool = False
    """Its lease has expired, and its attempts have been declared lost."""
    run_id: str | None = None
    """The run to which the worker is allocated."""
    only_run_id: str | None = None
    """The only run that it works for; it is allocated to no other one."""
    worker_metadata: str = "{}"
    """A JSON object: what the worker says of itself. `metadata` belongs to its last move."""
    key_id: str | None = None
    """The API key that has registered it, the only one that acts as it; None for a worker with access to the database."""
    drain_wanted: bool = False
    pause_wanted: bool = False
    terminate_wanted: bool = False
    """It ends its processes, and is terminated when they have ended or its lease has run out."""
    error: str | None = None

    @property
    def is_shared(self) -> bool:
        """It serves other tenants than its own."""
        return self.serves != "[]"

    def seen_by(self, tenant: str) -> Worker:
        """The worker as a tenant may see it: only its owner learns what it does for other tenants."""
        if self.tenant == tenant:
            return self
        hidden = dict.fromkeys(("reason", "actor", "metadata", "error", "run_id", "only_run_id", "last_tenant", "key_id"))
        return replace(self, serves=msgspec.json.encode([tenant]).decode(), worker_metadata="{}", **hidden)


class Breaker(Entity, kw_only=True):
    FIXED = ("tool",)
    tool: str
    failure_count: int = 0
    failure_threshold: int = 5
    success_count: int = 0
    success_threshold: int = 1
    cooldown_seconds: float = 60.0
    retry_at: datetime | None = None
    """When an open breaker lets a probe through."""
    probe_task_id: str | None = None
    max_concurrent: int | None = None
    """How many attempts may use the tool at once."""
    rate_count: int | None = None
    """How many attempts may start within `rate_seconds`."""
    rate_seconds: float | None = None
    begun: str = "[]"
    """A JSON list of instants in microseconds and how many attempts started at each; only for a breaker with a rate."""
    limited_until: datetime | None = None
    """The tool has reported a usage limit that ends then; the circuit is open at least until that instant."""


class Attempt(Struct, kw_only=True):
    """One execution of a task; `epoch` is its fencing token. Its record exists as soon as the task waits for a worker."""

    task_id: str
    epoch: int
    tenant: str
    worker_id: str | None = None
    started_at: datetime | None = None
    """None while it waits for a worker."""
    ended_at: datetime | None = None
    ended_by: str | None = None
    """The trigger of the move that ended it."""
    error: str | None = None
    exit_code: int | None = None
    cost_usd: Decimal = ZERO_USD
    session_id: str | None = None
    resumed: bool = False
    """It continued the session of the attempt before it."""
    log_path: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost_is_estimated: bool = False
    """Some of `cost_usd` is an estimate."""


class Account(Struct, kw_only=True):
    """What a tenant may spend, and what all its runs have spent and used."""

    tenant: str
    budget_usd: Decimal | None = None
    spent_usd: Decimal = ZERO_USD
    tokens_in: int = 0
    tokens_out: int = 0
    cost_is_estimated: bool = False
    """Some of `spent_usd` is an estimate."""


class Quota(Struct, frozen=True, kw_only=True):
    """How much unfinished work a tenant may have at once; None for no limit."""

    tenant: str
    max_runs: int | None = None
    max_tasks: int | None = None
    max_bytes: int | None = None
    """Of the payloads of its runs and tasks."""


class Use(Struct, frozen=True, kw_only=True):
    """The unfinished runs of a tenant, their unfinished tasks, and the payloads of both."""

    runs: int
    tasks: int
    payload_bytes: int


class AttemptTimes(Struct, frozen=True, kw_only=True):
    """When an attempt that has ended began and ended."""

    task_id: str
    epoch: int
    worker_id: str
    started_at: datetime
    ended_at: datetime
    """When the task moved on. If the worker was lost, that is later than the end of its process."""
    has_log: bool
    """Its worker reported its end."""


class Result(Struct, frozen=True, kw_only=True):
    """The result of a task, for the tasks that depend on it."""

    name: str
    parent: str | None
    """The name of its parent task."""
    position: int
    phase: str
    outcome: str | None
    trigger: str
    by_worker: bool
    """Its worker reported the result, not a person."""
    output: str | None


class Dependency(Struct, frozen=True):
    task_id: str
    depends_on_id: str


class Release(Struct, frozen=True):
    """How many of the dependencies of a task have just succeeded."""

    id: str
    released: int


class Lane(Struct, frozen=True, kw_only=True):
    """What a task needs from the worker that claims it: to a worker, tasks of one lane are interchangeable."""

    id: int
    tenant: str
    tool: str | None
    capabilities: str
    """A sorted JSON list of strings."""
    fails_fast: bool
    """Its tasks fail while the breaker of the tool is open, instead of waiting."""


class Timer(Struct, frozen=True, kw_only=True):
    """Fires at an instant, unless its entity has moved before."""

    entity_id: str
    purpose: str
    kind: str
    tenant: str
    run_id: str | None
    revision: int
    due_at: datetime


class Transition(Struct, frozen=True, kw_only=True):
    """One line of the audit trail, which is also the event stream."""

    COMPUTED: ClassVar = {"position": "CAST(transition.position AS TEXT)"}

    position: str
    """The position in the stream; a reader passes it back to continue from here."""
    tenant: str
    kind: str
    entity_id: str
    revision: int
    """The number of moves that its entity made before."""
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

    @property
    def details(self) -> dict[str, Any]:
        """The metadata. JSON that no reader can decode, which only a hand writes, does not stop the stream."""
        try:
            return msgspec.json.decode(self.metadata, type=dict[str, Any]) if self.metadata else {}
        except msgspec.MsgspecError:
            return {"unreadable": self.metadata}


SECONDS_BOUNDS = (0.1, 1, 10, 60, 300, 1800, 7200, 28_800, 86_400, 604_800)
"""The upper bounds of the buckets into which times in a state are counted."""


class TransitionTally(Struct, frozen=True, kw_only=True):
    """How often a move was made, counted by the time that the state before it had lasted."""

    tenant: str
    machine: str
    from_state: str | None
    to_state: str
    trigger: str
    bucket: int
    """The index of the first of `SECONDS_BOUNDS` that is not exceeded, or their number; -1 where no state was left."""
    count: int
    seconds: float
    """In the state that was left, by all of these together."""


class QueueFigures(Struct, frozen=True, kw_only=True):
    """The tasks of a tenant that a worker may claim now."""

    tenant: str
    depth: int
    oldest_at: datetime | None
    """When the oldest of them entered its state; None if all are to be taken over from a lost attempt."""


class WorkerFigures(Struct, frozen=True, kw_only=True):
    """The workers of a tenant in a state, without those that have ended."""

    tenant: str
    state: str
    workers: int
    slots: int
    """Of workers whose lease has not expired."""
    busy: int
    """Slots in which an attempt runs."""


class Seal(Struct, frozen=True, kw_only=True):
    """One link of the hash chain over the audit trail."""

    position: int
    """The last transition that it covers."""
    previous: int
    """The last transition that the seal before it covers, or 0."""
    digest: str
    """SHA-256 of the digest before it and the transitions that it covers."""
    sealed_at: datetime


class Notice(Struct, frozen=True, kw_only=True):
    """An event that moved nothing."""

    tenant: str
    kind: str
    entity_id: str
    run_id: str | None
    subject: str
    message: str
    at: datetime


class ListedNotice(Notice, frozen=True, kw_only=True):
    """A notice that is stored."""

    TABLE: ClassVar[str] = "notice"

    position: int
    """In the order in which they were stored."""


class DutyFailure(Struct, frozen=True, kw_only=True):
    """A duty that fails in a process, so that every process can say so; dropped when it goes well again."""

    TABLE: ClassVar[str] = "duty_failure"

    name: str
    process: str
    failures: int
    """In a row."""
    error: str
    failed_at: datetime


class OutboxEntry(Struct, frozen=True, kw_only=True):
    """One notification for one target: to be delivered, delivered, or dead because every try has failed."""

    TABLE: ClassVar = "outbox"

    id: str
    """The same at every try, so that a receiver can tell a repetition."""
    position: int
    """Of the transition that it is about."""
    origin: str
    """Whether its target is declared in the `settings`, or in the `flow` of its run."""
    target: str
    """The name of its target: neither address nor secret."""
    method: str
    tenant: str
    run_id: str | None
    event: str
    subject: str
    """What it is about, for lists."""
    body: str
    """What the target gets: the same at every try."""
    created_at: datetime
    due_at: datetime | None
    """When to try next; while a process delivers it, when another one may."""
    claimed_by: str | None = None
    tries: int = 0
    error: str | None = None
    """Of the last try."""
    delivered_at: datetime | None = None
    dead_at: datetime | None = None


class OutboxCursor(Struct, frozen=True, kw_only=True):
    """Up to which position of the event stream the outbox has everything for a target."""

    TABLE: ClassVar = "outbox_cursor"

    origin: str
    target: str
    position: int


class OutboxScope(Struct, frozen=True, kw_only=True):
    """Which notifications a process may deliver."""

    targets: tuple[str, ...] = ()
    """Those for targets of its settings."""
    flows_of: str | None = None
    """The tenant for whose flows it delivers."""
    commands_of: str = ""
    """The run whose flow may run commands here; `*` for every run, empty for none."""


class StoredResponse(Struct, frozen=True, kw_only=True):
    """The answer to a request with an idempotency key."""

    TABLE: ClassVar = "idempotency_key"

    tenant: str
    endpoint: str
    key: str
    request_hash: str
    status: int
    body: str
    created_at: datetime
    expires_at: datetime


class Tenant(Struct, frozen=True, kw_only=True):
    """An owner of runs, tasks, workers, tools and API keys."""

    id: str
    created_at: datetime


class Template(Struct, frozen=True, kw_only=True):
    """A flow as text, by whose name runs can be submitted."""

    tenant: str
    name: str
    text: str
    stored_at: datetime
    stored_by: str


class Tombstone(Struct, frozen=True, kw_only=True):
    """A task that a person has deleted: its row and its audit trail stay."""

    task_id: str
    tenant: str
    deleted_at: datetime
    deleted_by: str
    reason: str | None


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key by which a program proves who it is, as people may see it: without the hashes of its secrets."""

    TABLE: ClassVar = "api_key"

    id: str
    tenant: str
    name: str
    """No other key of the tenant has it, unless it is revoked."""
    scopes: str
    """A sorted JSON list: what the key allows."""
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""
    previous_expires_at: datetime | None = None
    """Until when the secret before the last rotation is valid as well."""


class StoredKey(ApiKey, frozen=True, kw_only=True):
    """An API key with the SHA-256 of its secrets, in hexadecimal."""

    secret_hash: str
    previous_hash: str | None = None


class MachineRow(Struct, frozen=True, kw_only=True):
    """One version of one machine, and the text of the lifecycle that declares it."""

    TABLE: ClassVar = "machine"

    id: int
    name: str
    version: int
    kind: str
    fingerprint: str
    lifecycle: str
    definition: str


class Situation(Struct, frozen=True, kw_only=True):
    """What the machine of a run needs to know about its tasks."""

    run_id: str
    failed_task: str | None
    """A critical task that has failed for good, if any."""
    last_failure: str | None
    """Any task that has failed for good, once all tasks have ended."""
    unfinished: bool
    """Some task has not succeeded."""
    moving: bool
    """Some task goes on without a person: it is claimable, running, or waiting for an instant."""


class Contradiction(Struct, frozen=True):
    """A task that has not succeeded although its run has, and what the audit trail of either ends with."""

    run_id: str
    run_state: str
    task_id: str
    task_name: str
    task_state: str
    run_trail: str | None
    run_trail_outcome: str | None
    task_trail: str | None
    task_trail_outcome: str | None


class Subtasks(Struct, frozen=True, kw_only=True):
    """What a task needs to know about its subtasks."""

    parent_task_id: str
    open: bool
    """At least one has not ended."""
    failed: bool
    """A critical one has ended without success."""

    @property
    def is_done(self) -> bool:
        """Whether all have ended and every critical one has succeeded."""
        return not self.open and not self.failed

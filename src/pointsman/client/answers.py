"""What the server answers. Written from the declarations of the routes by `make docs`."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec import Struct, field


class Move(Struct, frozen=True, kw_only=True):
    """A transition that leaves the present state. Its guards, if it has any, are checked when it is asked for."""

    trigger: str
    signal: str | None
    to_state: str
    guards: tuple[str, ...] = ()


class RunAnswer(Struct, frozen=True, kw_only=True):
    """A run."""

    id: str
    name: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
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
    parent_run_id: str | None
    depth: int
    worker_count: int
    allowed: tuple[Move, ...]
    """What people may do with the run as a whole."""


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


class TemplateAnswer(Struct, frozen=True, kw_only=True):
    """A flow that is stored by a name."""

    name: str
    text: str
    stored_at: datetime
    stored_by: str


class TemplatePage(Struct, frozen=True, kw_only=True):
    """Templates, by name."""

    items: tuple[TemplateAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class RunPage(Struct, frozen=True, kw_only=True):
    """Runs, newest first."""

    items: tuple[RunAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class SignaledRun(Struct, frozen=True, kw_only=True):
    """What an action on many runs did to one of them, or would do."""

    run_id: str
    name: str
    from_state: str
    to_state: str
    """The same as before if the action was refused."""
    success: bool
    error: str | None = None
    """Why it was refused."""


class SignaledRuns(Struct, frozen=True, kw_only=True):
    """What an action did to each run that fulfills a filter, newest first; of a dry run, what it would do."""

    dry_run: bool
    items: tuple[SignaledRun, ...]
    next: str | None
    """There are more runs: give it as `after` to go on; null if these were the last."""


class Waiting(Struct, frozen=True, kw_only=True):
    """Why something does not move, since when, and until when if that is known."""

    kind: str
    reason: str
    since: datetime
    until: datetime | None = None


class TaskView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
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
    attempt_seconds: dict[int, float]
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


class RunView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
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
    waiting: Waiting | None
    tasks: tuple[TaskView, ...]
    task_description: str | None
    """Of a job: what it is to do."""
    attended: bool
    """A worker is alive that may run its tasks."""
    obstacle: str | None
    """Why the run cannot succeed any more, and what to do instead."""
    next_steps: tuple[NextStep, ...]
    as_of: datetime


class Question(Struct, frozen=True, kw_only=True):
    text: str
    choices: tuple[Any, ...] | None = None
    """The allowed answers."""
    default: Any = None
    """The answer that is suggested."""
    schema: dict[str, Any] | None = None
    """The JSON Schema of the answer, which is then JSON."""


class TaskAnswer(Struct, frozen=True, kw_only=True):
    """A task."""

    id: str
    run_id: str
    name: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    parent_task_id: str | None
    is_gate: bool
    attempts: int
    worker_id: str | None
    session_id: str | None
    question: Question | None
    answer: str | None
    comment: str | None
    """Of the last rejection: the next attempt gets it."""
    output: Any
    error: str | None
    budget_usd: Decimal | None
    cost_usd: Decimal
    cost_is_estimated: bool
    available_at: datetime | None
    """A retry waits until then."""
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    allowed: tuple[Move, ...]


class RunTaskPage(Struct, frozen=True, kw_only=True):
    """Tasks of a run, in their order."""

    items: tuple[TaskAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class TaskList(Struct, frozen=True, kw_only=True):
    """Tasks of a run, in their order."""

    items: tuple[TaskAnswer, ...]


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


class TransitionAnswer(Struct, frozen=True, kw_only=True):
    """One line of the audit trail."""

    position: str
    at: datetime
    kind: str
    id: str
    run_id: str | None
    from_state: str | None
    to_state: str
    trigger: str
    severity: str
    actor: str | None
    reason: str | None
    metadata: dict[str, Any]


class HistoryPage(Struct, frozen=True, kw_only=True):
    """The transitions of an entity, in order."""

    items: tuple[TransitionAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class TaskPage(Struct, frozen=True, kw_only=True):
    """Tasks of all runs, of the newest run first, without those that were deleted."""

    items: tuple[TaskAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class AttemptAnswer(Struct, frozen=True, kw_only=True):
    """One execution of a task."""

    attempt: int
    worker_id: str | None
    started_at: datetime | None
    ended_at: datetime | None
    ended_by: str | None
    exit_code: int | None
    error: str | None
    session_id: str | None
    resumed: bool
    log_path: str | None
    cost_usd: Decimal
    cost_is_estimated: bool
    tokens_in: int
    tokens_out: int


class AttemptPage(Struct, frozen=True, kw_only=True):
    """The attempts of a task, the last of which may still wait for a worker."""

    items: tuple[AttemptAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class TransitionResult(Struct, frozen=True, kw_only=True):
    """What became of a request to move something (document 000)."""

    entity_id: str
    from_state: str
    to_state: str
    at: datetime
    success: bool
    error: str | None = None


class LogPartAnswer(Struct, frozen=True, kw_only=True):
    """How much of a part of a log the server has."""

    size: int
    """Send what comes next from here on. Bytes behind a gap are not stored."""


class Artifact(Struct, frozen=True, kw_only=True):
    """A file that an attempt has left."""

    name: str
    """Its path in the folder of the attempt, such as `report/index.html`."""
    size: int
    """In bytes."""


class TaskArtifacts(Struct, frozen=True, kw_only=True):
    """What the last attempt of a task has left."""

    items: tuple[Artifact, ...]
    """By name."""
    left_out: int
    """How many other entries there are: links, special files, names that are not printable, and files beyond the limits."""
    task_id: str
    attempt: int
    """The number of its last attempt; 0 before the first one."""


class RunArtifactPage(Struct, frozen=True, kw_only=True):
    """The tasks of a run, in its order, each with what its last attempt has left."""

    items: tuple[TaskArtifacts, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class ArtifactList(Struct, frozen=True, kw_only=True):
    """What an attempt has left."""

    items: tuple[Artifact, ...]
    """By name."""
    left_out: int
    """How many other entries there are: links, special files, names that are not printable, and files beyond the limits."""


class ArtifactPartAnswer(Struct, frozen=True, kw_only=True):
    """How much of an artifact the server has."""

    size: int
    """Send what comes next from here on. Bytes behind a gap are not stored."""


class HeldTask(Struct, frozen=True, kw_only=True):
    run_id: str
    task_id: str
    name: str


class WorkerDetail(Struct, frozen=True, kw_only=True):
    """A worker, and what it does now."""

    id: str
    name: str
    lifecycle: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    workspace_id: str | None
    capabilities: tuple[str, ...]
    slots: int
    metadata: dict[str, Any]
    run_id: str | None
    lease_seconds: float
    heartbeat_at: datetime
    drain_wanted: bool
    terminate_wanted: bool
    created_at: datetime
    allowed: tuple[Move, ...]
    alive: bool
    holds: tuple[HeldTask, ...]


class WorkerPage(Struct, frozen=True, kw_only=True):
    """Workers, those that have left included."""

    items: tuple[WorkerDetail, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class WorkerAnswer(Struct, frozen=True, kw_only=True):
    """A worker."""

    id: str
    name: str
    lifecycle: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    workspace_id: str | None
    capabilities: tuple[str, ...]
    slots: int
    metadata: dict[str, Any]
    run_id: str | None
    lease_seconds: float
    heartbeat_at: datetime
    drain_wanted: bool
    terminate_wanted: bool
    created_at: datetime
    allowed: tuple[Move, ...]


class BreakerAnswer(Struct, frozen=True, kw_only=True):
    """A tool: its circuit and its limits."""

    id: str
    name: str
    state: str
    phase: str
    outcome: str | None
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
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
    allowed: tuple[Move, ...]


class BreakerPage(Struct, frozen=True, kw_only=True):
    """Tools with their circuits."""

    items: tuple[BreakerAnswer, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class MachineSummary(Struct, frozen=True, kw_only=True):
    """A machine in a list."""

    name: str
    lifecycle: str
    kind: str
    version: int


class MachinePage(Struct, frozen=True, kw_only=True):
    """The last version of every machine."""

    items: tuple[MachineSummary, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class StateView(Struct, frozen=True, kw_only=True):
    """A state."""

    name: str
    phase: str
    outcome: str | None
    initial: bool
    terminal: bool
    sealed: bool
    needs: tuple[str, ...]
    longest_stay_seconds: float | None


class TransitionView(Struct, frozen=True, kw_only=True):
    """A declared transition."""

    from_state: str = field(name="from")
    to_state: str = field(name="to")
    trigger: str
    signal: str | None
    guards: tuple[str, ...]
    automatic: bool
    severity: str
    effects: tuple[str, ...]


class MachineView(Struct, frozen=True, kw_only=True):
    """A machine of a lifecycle."""

    name: str
    lifecycle: str
    kind: str
    version: int
    states: tuple[StateView, ...]
    transitions: tuple[TransitionView, ...]
    fallbacks: dict[str, str]
    """Signals that count as another one in states that do not handle them."""


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


class InboxPage(Struct, frozen=True, kw_only=True):
    """Everything that waits for a person, oldest first."""

    items: tuple[InboxItem, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class EventPage(Struct, frozen=True, kw_only=True):
    """Transitions in the order of the event stream."""

    items: tuple[TransitionAnswer, ...]
    next: str | None
    """Give it as `after` to continue here, now or later; null if there was nothing yet."""


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


class NoticePage(Struct, frozen=True, kw_only=True):
    """What happened without a move, newest first."""

    items: tuple[NoticeView, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class Account(Struct, frozen=True, kw_only=True):
    """What a tenant may spend, and what all its runs have spent and used."""

    tenant: str
    budget_usd: Decimal | None = None
    spent_usd: Decimal = Decimal(0)
    tokens_in: int = 0
    tokens_out: int = 0
    cost_is_estimated: bool = False
    """Some of `spent_usd` is an estimate."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One thing that does not go on as it should."""

    subject: str
    """overstayed, stalled, unretried, circuit, contradiction or disagreement"""
    kind: str
    entity_id: str
    finding: str
    advice: str
    repairable: bool = False
    """`repair` can fix it without a person."""


class DutyFailure(Struct, frozen=True, kw_only=True):
    """A duty that fails in a process, so that every process can say so; dropped when it goes well again."""

    name: str
    process: str
    failures: int
    """In a row."""
    error: str
    failed_at: datetime


class DoctorReport(Struct, frozen=True, kw_only=True):
    """What is stuck or wrong, and background work that fails."""

    diagnoses: tuple[Diagnosis, ...]
    failing_duties: tuple[DutyFailure, ...]


class KeyView(Struct, frozen=True, kw_only=True):
    """An API key, without any secret."""

    id: str
    tenant: str
    name: str
    state: str
    scopes: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    """To the minute."""
    previous_expires_at: datetime | None
    """Until when the secret before the last rotation is valid as well."""


class KeyPage(Struct, frozen=True, kw_only=True):
    """API keys, without their secrets, which are not stored."""

    items: tuple[KeyView, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class IssuedKeyAnswer(Struct, frozen=True, kw_only=True):
    """An API key with its text."""

    key: KeyView
    text: str | None
    """Shown once: null where a request is repeated, because the secret is not stored."""


class NotificationView(Struct, frozen=True, kw_only=True):
    """A notification for one target, without its text."""

    id: str
    target: str
    declared_in: str
    """`settings` or `flow`."""
    method: str
    event: str
    subject: str
    run_id: str | None
    delivery: str
    """Dead: it is not tried any more until a person retries it."""
    tries: int
    error: str | None
    """Of the last try."""
    created_at: datetime
    due_at: datetime | None
    """When it is tried next."""
    delivered_at: datetime | None
    dead_at: datetime | None


class NotificationPage(Struct, frozen=True, kw_only=True):
    """Notifications, newest first. Delivered ones are kept for 7 days."""

    items: tuple[NotificationView, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class RetriedNotifications(Struct, frozen=True, kw_only=True):
    """Which notifications are tried again."""

    ids: tuple[str, ...]
    """Without those that are being delivered at the moment, were delivered or do not exist."""


class TenantView(Struct, frozen=True, kw_only=True):
    """A tenant, its quotas and its budget, and what it uses of them. Null is no limit."""

    id: str
    created_at: datetime
    max_runs: int | None
    max_tasks: int | None
    max_bytes: int | None
    budget_usd: Decimal | None
    unfinished_runs: int
    unfinished_tasks: int
    payload_bytes: int
    """Of unfinished runs and tasks."""
    spent_usd: Decimal


class TenantPage(Struct, frozen=True, kw_only=True):
    """Tenants by name, with their quotas and what they use."""

    items: tuple[TenantView, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


class Tenant(Struct, frozen=True, kw_only=True):
    """An owner of runs, tasks, workers, tools and API keys."""

    id: str
    created_at: datetime


class Quota(Struct, frozen=True, kw_only=True):
    """How much unfinished work a tenant may have at once; None for no limit."""

    tenant: str
    max_runs: int | None = None
    max_tasks: int | None = None
    max_bytes: int | None = None
    """Of the payloads of its runs and tasks."""


class LifecycleAnswer(Struct, frozen=True, kw_only=True):
    """A lifecycle that runs and workers may follow."""

    name: str
    version: int
    machines: tuple[str, ...]
    """Those that its file declares."""


class Claim(Struct, frozen=True, kw_only=True):
    """A task that a worker holds. Every report about it carries `epoch`, which is also the fencing token of the work."""

    task_id: str
    epoch: int
    tenant: str
    """Whose task it is: a shared worker reports in this tenant."""
    run_id: str
    name: str
    payload: Any
    tool: str | None = None
    attempt_count: int
    has_checks: bool = False
    """Its checks have a state of their own: report `complete`, run them, and report `checks_passed` or `checks_failed`."""
    session_id: str | None = None
    """The session to continue; None for a new one."""
    question: str | None = None
    answer: str | None = None
    comment: str | None = None
    is_reviewed: bool = False
    """A person accepts or rejects its result."""
    deadline_at: datetime | None = None
    budget_usd: Decimal | None = None
    """How much the attempt may spend: what is left of the budgets of its task, its run and its tenant."""
    traceparent: str | None = None
    """The span that submitted the run."""


class ClaimList(Struct, frozen=True, kw_only=True):
    """Tasks that the worker holds now; none if there was nothing to claim."""

    items: tuple[Claim, ...]


class HeldAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that a worker holds."""

    task_id: str
    epoch: int


class HeartbeatAnswer(Struct, frozen=True, kw_only=True):
    """The worker as it stands, and what to do with its attempts."""

    worker: WorkerAnswer
    lost: tuple[HeldAttempt, ...]
    """They no longer count: end their processes."""
    cancelled: tuple[HeldAttempt, ...]
    """They are to be canceled: end their processes, and report `cancel`."""
    paused: tuple[HeldAttempt, ...]
    """Their run is paused: they may go on, or be suspended."""
    suspended: bool
    """A person wants all processes of the worker suspended."""


class TransitionEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="transition"):
    """A move of a run, a task, a worker or a circuit breaker."""

    position: str
    at: datetime
    kind: str
    id: str
    run_id: str | None
    from_state: str | None
    to_state: str
    trigger: str
    severity: str
    actor: str | None
    reason: str | None
    metadata: dict[str, Any]
    lifecycle: str


class TaskCompleted(Struct, frozen=True, kw_only=True, tag_field="type", tag="task_completed"):
    """A task has ended, or its execution has ended and a person decides what follows."""

    position: str
    at: datetime
    task_id: str
    run_id: str | None
    lifecycle: str
    state: str
    phase: str
    outcome: str | None
    """Null if a person decides what follows."""
    reason: str | None


class TaskQuestion(Struct, frozen=True, kw_only=True, tag_field="type", tag="task_question"):
    """A task asks a person."""

    position: str
    at: datetime
    task_id: str
    run_id: str | None
    lifecycle: str
    state: str
    question: Question | None
    """Null if it has been answered already."""


class EventFrame(Struct, frozen=True, kw_only=True):
    """What a client gets at once: a message of a WebSocket, or an event of Server-Sent Events."""

    cursor: str
    """Give it as `after` to continue behind this frame, on any server of the database."""
    events: tuple[TransitionEvent | TaskCompleted | TaskQuestion, ...]
    """Empty in a heartbeat."""


class TicketAnswer(Struct, frozen=True, kw_only=True):
    """A ticket for one stream of events."""

    ticket: str | None
    """Pass it as `ticket` in the query. Null while the server has no API keys: then no stream needs one."""
    ends_at: datetime | None


class WakeupAnswer(Struct, frozen=True, kw_only=True):
    """How many wake-ups of each kind the client has heard of by now, since the process started."""

    process: str
    tasks: int
    workers: int
    events: int

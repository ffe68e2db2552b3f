"""The tables of the documents, written down a second time and by hand; nothing here was taken from the shipped files."""

from __future__ import annotations

from dataclasses import dataclass

Row = tuple[str, str, str]
"""A state, the state it may move to, and the trigger."""


@dataclass(frozen=True, slots=True)
class Table:
    """What a document says of one machine; the first state is the initial one."""

    states: tuple[str, ...]
    rows: tuple[Row, ...]
    terminal: frozenset[str] = frozenset()
    sealed: frozenset[str] = frozenset()
    automatic: frozenset[str] = frozenset()
    """Triggers that nobody pulls."""

    @property
    def triggers(self) -> tuple[str, ...]:
        """Every trigger that somebody can pull."""
        return tuple(dict.fromkeys(trigger for _, _, trigger in self.rows if trigger not in self.automatic))


SUPERVISED_WORKER = Table(
    states=("IDLE", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "TERMINATED"),
    terminal=frozenset({"COMPLETED", "FAILED", "TERMINATED"}),
    sealed=frozenset({"TERMINATED"}),
    rows=(
        ("IDLE", "RUNNING", "start_task"),
        ("RUNNING", "PAUSED", "pause"),
        ("PAUSED", "RUNNING", "resume"),
        ("RUNNING", "COMPLETED", "complete_tasks"),
        ("RUNNING", "FAILED", "error_unrecoverable"),
        ("IDLE", "TERMINATED", "terminate"),
        ("RUNNING", "TERMINATED", "terminate"),
        ("PAUSED", "TERMINATED", "terminate"),
        ("COMPLETED", "TERMINATED", "terminate"),
        ("FAILED", "TERMINATED", "terminate"),
    ),
)

SUPERVISED_JOB = Table(
    states=("SUBMITTED", "PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELED"),
    terminal=frozenset({"COMPLETED", "FAILED", "CANCELED"}),
    sealed=frozenset({"COMPLETED", "FAILED", "CANCELED"}),
    rows=(
        ("SUBMITTED", "PENDING", "validate"),
        ("SUBMITTED", "CANCELED", "cancel"),
        ("PENDING", "CANCELED", "cancel"),
        ("PENDING", "RUNNING", "allocate_resources"),
        ("RUNNING", "COMPLETED", "success"),
        ("RUNNING", "FAILED", "error"),
        ("RUNNING", "CANCELED", "cancel"),
    ),
)

PIPELINE_WORKSTREAM = Table(
    states=("S_PENDING", "S_RUNNING", "S_SUCCESS", "S_FAILED", "S_RETRYING", "S_ABANDONED"),
    terminal=frozenset({"S_SUCCESS", "S_ABANDONED"}),
    sealed=frozenset({"S_SUCCESS", "S_ABANDONED"}),
    automatic=frozenset({"retry_eligible", "retries_exhausted"}),
    rows=(
        ("S_PENDING", "S_RUNNING", "start_execution"),
        ("S_RUNNING", "S_SUCCESS", "all_steps_succeed"),
        ("S_RUNNING", "S_FAILED", "step_fails"),
        ("S_RUNNING", "S_ABANDONED", "abandon"),
        ("S_FAILED", "S_RETRYING", "retry_eligible"),
        ("S_FAILED", "S_ABANDONED", "retries_exhausted"),
        ("S_RETRYING", "S_RUNNING", "retry_attempt"),
    ),
)

PIPELINE_STEP = Table(
    states=("S_PENDING", "S_RUNNING", "S_SUCCESS", "S_FAILED", "S_RETRYING"),
    terminal=frozenset({"S_SUCCESS"}),
    sealed=frozenset({"S_SUCCESS"}),
    automatic=frozenset({"retry_eligible"}),
    rows=(
        ("S_PENDING", "S_RUNNING", "dependencies_met"),
        ("S_RUNNING", "S_SUCCESS", "success"),
        ("S_RUNNING", "S_FAILED", "failure"),
        ("S_FAILED", "S_RETRYING", "retry_eligible"),
        ("S_RETRYING", "S_RUNNING", "retry_attempt"),
        ("S_FAILED", "S_PENDING", "reset"),
        ("S_FAILED", "S_SUCCESS", "skip"),
    ),
)

BREAKER = Table(
    states=("CLOSED", "OPEN", "HALF_OPEN"),
    rows=(
        ("CLOSED", "OPEN", "failure_threshold_exceeded"),
        ("OPEN", "HALF_OPEN", "cooldown_expires"),
        ("HALF_OPEN", "CLOSED", "success"),
        ("HALF_OPEN", "OPEN", "failure"),
        ("OPEN", "CLOSED", "reset"),
        ("HALF_OPEN", "CLOSED", "reset"),
    ),
)

ORCHESTRATED_TASK = Table(
    states=("pending", "queued", "running", "validating", "completed", "failed", "retrying", "cancelled"),
    terminal=frozenset({"completed", "failed", "cancelled"}),
    sealed=frozenset({"completed", "failed", "cancelled"}),
    rows=(
        ("pending", "queued", "scheduler_assigned"),
        ("queued", "running", "worker_started"),
        ("running", "validating", "execution_completed"),
        ("running", "retrying", "execution_failed"),
        ("running", "failed", "execution_failed"),
        ("running", "cancelled", "user_cancelled"),
        ("retrying", "queued", "retry_delay_elapsed"),
        ("validating", "completed", "validation_passed"),
        ("validating", "failed", "validation_failed"),
        ("pending", "cancelled", "user_cancelled"),
        ("queued", "cancelled", "user_cancelled"),
        ("retrying", "cancelled", "user_cancelled"),
        ("running", "queued", "worker_lost"),
    ),
)

ORCHESTRATED_WORKSTREAM = Table(
    states=("planned", "ready", "executing", "validating", "completed", "failed", "cancelled"),
    terminal=frozenset({"completed", "failed", "cancelled"}),
    sealed=frozenset({"completed", "failed", "cancelled"}),
    rows=(
        ("planned", "ready", "all_tasks_created"),
        ("ready", "executing", "first_task_started"),
        ("executing", "validating", "all_tasks_completed"),
        ("executing", "failed", "critical_task_failed"),
        ("validating", "completed", "validation_passed"),
        ("validating", "failed", "validation_failed"),
        ("planned", "cancelled", "user_cancelled"),
        ("ready", "cancelled", "user_cancelled"),
        ("executing", "cancelled", "user_cancelled"),
    ),
)

ORCHESTRATED_WORKER = Table(
    states=("initializing", "idle", "busy", "unresponsive", "shutdown"),
    terminal=frozenset({"shutdown"}),
    sealed=frozenset({"shutdown"}),
    rows=(
        ("initializing", "idle", "registration_complete"),
        ("idle", "busy", "task_assigned"),
        ("busy", "idle", "task_completed"),
        ("busy", "unresponsive", "health_check_timeout"),
        ("unresponsive", "idle", "health_check_recovered"),
        ("unresponsive", "shutdown", "max_timeout_exceeded"),
        ("idle", "shutdown", "shutdown_requested"),
        ("busy", "shutdown", "shutdown_requested"),
    ),
)

APPROVAL_RUN = Table(
    states=("PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED", "FAILED", "CANCELED"),
    terminal=frozenset({"SUCCEEDED", "FAILED", "CANCELED"}),
    sealed=frozenset({"SUCCEEDED", "FAILED", "CANCELED"}),
    rows=(
        ("PENDING", "RUNNING", "first_step_claimed"),
        ("RUNNING", "WAITING_APPROVAL", "gate_reached"),
        ("WAITING_APPROVAL", "RUNNING", "approve"),
        ("RUNNING", "SUCCEEDED", "all_steps_succeeded"),
        ("WAITING_APPROVAL", "SUCCEEDED", "all_steps_succeeded"),
        ("RUNNING", "FAILED", "step_exhausted"),
        ("WAITING_APPROVAL", "FAILED", "step_exhausted"),
        ("PENDING", "CANCELED", "cancel"),
        ("RUNNING", "CANCELED", "cancel"),
        ("WAITING_APPROVAL", "CANCELED", "cancel"),
    ),
)

APPROVAL_STEP = Table(
    states=("PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED", "FAILED", "CANCELED"),
    terminal=frozenset({"SUCCEEDED", "FAILED", "CANCELED"}),
    sealed=frozenset({"SUCCEEDED", "FAILED", "CANCELED"}),
    rows=(
        ("PENDING", "RUNNING", "claim"),
        ("RUNNING", "SUCCEEDED", "complete"),
        ("RUNNING", "PENDING", "fail"),
        ("RUNNING", "FAILED", "fail"),
        ("RUNNING", "RUNNING", "reclaim"),
        ("PENDING", "WAITING_APPROVAL", "open_gate"),
        ("WAITING_APPROVAL", "SUCCEEDED", "approve"),
        ("PENDING", "CANCELED", "cancel"),
        ("RUNNING", "CANCELED", "cancel"),
        ("WAITING_APPROVAL", "CANCELED", "cancel"),
    ),
)

AGENT_TASK = Table(
    states=(
        "PENDING",
        "QUEUED",
        "RUNNING",
        "READY",
        "COMPLETED",
        "FAILED",
        "TIMED_OUT",
        "CANCELLED",
        "BUDGET_EXCEEDED",
        "BLOCKED",
    ),
    terminal=frozenset({"COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED", "BUDGET_EXCEEDED"}),
    sealed=frozenset({"COMPLETED", "CANCELLED", "BUDGET_EXCEEDED"}),
    rows=(
        ("PENDING", "QUEUED", "run"),
        ("PENDING", "CANCELLED", "cancel"),
        ("QUEUED", "CANCELLED", "cancel"),
        ("RUNNING", "CANCELLED", "cancel"),
        ("QUEUED", "RUNNING", "claim"),
        ("QUEUED", "FAILED", "dependency_failed"),
        ("RUNNING", "READY", "exit_ok"),
        ("RUNNING", "BLOCKED", "exit_ok"),
        ("RUNNING", "COMPLETED", "exit_ok"),
        ("RUNNING", "BLOCKED", "ask"),
        ("RUNNING", "FAILED", "error"),
        ("RUNNING", "TIMED_OUT", "deadline"),
        ("RUNNING", "BUDGET_EXCEEDED", "overspend"),
        ("READY", "COMPLETED", "accept"),
        ("READY", "PENDING", "reject"),
        ("FAILED", "QUEUED", "run"),
        ("TIMED_OUT", "QUEUED", "resume"),
        ("BLOCKED", "QUEUED", "answer"),
        ("BLOCKED", "READY", "children_done"),
    ),
)

STANDARD_TASK = Table(
    states=(
        "PENDING",
        "QUEUED",
        "RUNNING",
        "VALIDATING",
        "RETRYING",
        "WAITING_APPROVAL",
        "BLOCKED",
        "READY",
        "SUCCEEDED",
        "SKIPPED",
        "FAILED",
        "TIMED_OUT",
        "BUDGET_EXCEEDED",
        "CANCELED",
    ),
    terminal=frozenset({"SUCCEEDED", "SKIPPED", "FAILED", "TIMED_OUT", "BUDGET_EXCEEDED", "CANCELED"}),
    sealed=frozenset({"SUCCEEDED", "SKIPPED", "CANCELED"}),
    rows=(
        ("PENDING", "QUEUED", "ready"),
        ("PENDING", "WAITING_APPROVAL", "ready"),
        ("QUEUED", "RUNNING", "claim"),
        ("RUNNING", "VALIDATING", "complete"),
        ("RUNNING", "BLOCKED", "complete"),
        ("RUNNING", "READY", "complete"),
        ("RUNNING", "SUCCEEDED", "complete"),
        ("VALIDATING", "BLOCKED", "checks_passed"),
        ("VALIDATING", "READY", "checks_passed"),
        ("VALIDATING", "SUCCEEDED", "checks_passed"),
        ("RUNNING", "BLOCKED", "ask"),
        ("RUNNING", "RETRYING", "fail"),
        ("RUNNING", "RETRYING", "expire"),
        ("VALIDATING", "RETRYING", "checks_failed"),
        ("RUNNING", "FAILED", "fail"),
        ("VALIDATING", "FAILED", "checks_failed"),
        ("RUNNING", "TIMED_OUT", "expire"),
        ("RUNNING", "BUDGET_EXCEEDED", "overspend"),
        ("RUNNING", "QUEUED", "lease_lost"),
        ("RUNNING", "FAILED", "lease_lost"),
        ("VALIDATING", "QUEUED", "lease_lost"),
        ("VALIDATING", "FAILED", "lease_lost"),
        ("RETRYING", "QUEUED", "delay_over"),
        ("WAITING_APPROVAL", "SUCCEEDED", "approve"),
        ("WAITING_APPROVAL", "WAITING_APPROVAL", "approve"),
        ("WAITING_APPROVAL", "FAILED", "reject"),
        ("BLOCKED", "QUEUED", "answer"),
        ("BLOCKED", "READY", "children_done"),
        ("BLOCKED", "SUCCEEDED", "children_done"),
        ("BLOCKED", "FAILED", "child_failed"),
        ("READY", "SUCCEEDED", "accept"),
        ("READY", "PENDING", "reject"),
        ("FAILED", "QUEUED", "retry"),
        ("FAILED", "QUEUED", "resume"),
        ("TIMED_OUT", "QUEUED", "retry"),
        ("TIMED_OUT", "QUEUED", "resume"),
        ("BUDGET_EXCEEDED", "QUEUED", "retry"),
        ("BUDGET_EXCEEDED", "QUEUED", "resume"),
        ("PENDING", "SKIPPED", "skip"),
        ("QUEUED", "SKIPPED", "skip"),
        ("RUNNING", "SKIPPED", "skip"),
        ("RETRYING", "SKIPPED", "skip"),
        ("WAITING_APPROVAL", "SKIPPED", "skip"),
        ("FAILED", "SKIPPED", "skip"),
        ("TIMED_OUT", "SKIPPED", "skip"),
        ("BUDGET_EXCEEDED", "SKIPPED", "skip"),
        ("PENDING", "CANCELED", "cancel"),
        ("QUEUED", "CANCELED", "cancel"),
        ("RUNNING", "CANCELED", "cancel"),
        ("VALIDATING", "CANCELED", "cancel"),
        ("RETRYING", "CANCELED", "cancel"),
        ("WAITING_APPROVAL", "CANCELED", "cancel"),
        ("BLOCKED", "CANCELED", "cancel"),
        ("READY", "CANCELED", "cancel"),
    ),
)

# The documents give the states of the next two and the principle (the union of what the five can do), but no table.

STANDARD_RUN = Table(
    states=("PENDING", "RUNNING", "WAITING", "PAUSED", "VALIDATING", "RETRYING", "SUCCEEDED", "FAILED", "CANCELED"),
    terminal=frozenset({"SUCCEEDED", "FAILED", "CANCELED"}),
    sealed=frozenset({"SUCCEEDED", "CANCELED"}),
    rows=(
        ("PENDING", "RUNNING", "start"),
        ("RUNNING", "WAITING", "wait"),
        ("WAITING", "RUNNING", "proceed"),
        ("PENDING", "PAUSED", "pause"),
        ("RUNNING", "PAUSED", "pause"),
        ("WAITING", "PAUSED", "pause"),
        ("PAUSED", "RUNNING", "resume"),
        ("RUNNING", "VALIDATING", "complete"),
        ("WAITING", "VALIDATING", "complete"),
        ("RUNNING", "SUCCEEDED", "complete"),
        ("WAITING", "SUCCEEDED", "complete"),
        ("RUNNING", "RETRYING", "fail"),
        ("WAITING", "RETRYING", "fail"),
        ("RUNNING", "FAILED", "fail"),
        ("WAITING", "FAILED", "fail"),
        ("VALIDATING", "SUCCEEDED", "checks_passed"),
        ("VALIDATING", "RETRYING", "checks_failed"),
        ("VALIDATING", "FAILED", "checks_failed"),
        ("RETRYING", "RUNNING", "delay_over"),
        ("FAILED", "RUNNING", "retry"),
        ("PENDING", "CANCELED", "cancel"),
        ("RUNNING", "CANCELED", "cancel"),
        ("WAITING", "CANCELED", "cancel"),
        ("PAUSED", "CANCELED", "cancel"),
        ("VALIDATING", "CANCELED", "cancel"),
        ("RETRYING", "CANCELED", "cancel"),
    ),
)

STANDARD_WORKER = Table(
    states=("INITIALIZING", "IDLE", "BUSY", "PAUSED", "UNRESPONSIVE", "DRAINING", "SHUTDOWN", "FAILED", "TERMINATED"),
    terminal=frozenset({"SHUTDOWN", "FAILED", "TERMINATED"}),
    sealed=frozenset({"TERMINATED"}),
    rows=(
        ("INITIALIZING", "IDLE", "register"),
        ("IDLE", "BUSY", "assign"),
        ("BUSY", "IDLE", "release"),
        ("IDLE", "PAUSED", "pause"),
        ("BUSY", "PAUSED", "pause"),
        ("PAUSED", "BUSY", "resume"),
        ("PAUSED", "IDLE", "resume"),
        ("IDLE", "UNRESPONSIVE", "suspect"),
        ("BUSY", "UNRESPONSIVE", "suspect"),
        ("PAUSED", "UNRESPONSIVE", "suspect"),
        ("DRAINING", "UNRESPONSIVE", "suspect"),
        ("UNRESPONSIVE", "SHUTDOWN", "recover"),
        ("UNRESPONSIVE", "PAUSED", "recover"),
        ("UNRESPONSIVE", "IDLE", "recover"),
        ("INITIALIZING", "SHUTDOWN", "expire"),
        ("UNRESPONSIVE", "SHUTDOWN", "expire"),
        ("INITIALIZING", "SHUTDOWN", "drain"),
        ("IDLE", "SHUTDOWN", "drain"),
        ("BUSY", "DRAINING", "drain"),
        ("PAUSED", "DRAINING", "drain"),
        ("BUSY", "SHUTDOWN", "drain"),
        ("PAUSED", "SHUTDOWN", "drain"),
        ("DRAINING", "SHUTDOWN", "release"),
        ("INITIALIZING", "FAILED", "fail"),
        ("IDLE", "FAILED", "fail"),
        ("BUSY", "FAILED", "fail"),
        ("PAUSED", "FAILED", "fail"),
        ("UNRESPONSIVE", "FAILED", "fail"),
        ("DRAINING", "FAILED", "fail"),
        ("INITIALIZING", "TERMINATED", "terminate"),
        ("IDLE", "TERMINATED", "terminate"),
        ("BUSY", "TERMINATED", "terminate"),
        ("PAUSED", "TERMINATED", "terminate"),
        ("UNRESPONSIVE", "TERMINATED", "terminate"),
        ("DRAINING", "TERMINATED", "terminate"),
        ("SHUTDOWN", "TERMINATED", "terminate"),
        ("FAILED", "TERMINATED", "terminate"),
    ),
)

TABLES: dict[str, Table] = {
    "supervised.worker": SUPERVISED_WORKER,
    "supervised.job": SUPERVISED_JOB,
    "pipeline.workstream": PIPELINE_WORKSTREAM,
    "pipeline.step": PIPELINE_STEP,
    "pipeline.breaker": BREAKER,
    "orchestrated.task": ORCHESTRATED_TASK,
    "orchestrated.workstream": ORCHESTRATED_WORKSTREAM,
    "orchestrated.worker": ORCHESTRATED_WORKER,
    "approval.run": APPROVAL_RUN,
    "approval.step": APPROVAL_STEP,
    "agent.task": AGENT_TASK,
    "standard.run": STANDARD_RUN,
    "standard.task": STANDARD_TASK,
    "standard.worker": STANDARD_WORKER,
    "standard.breaker": BREAKER,
}

"""For every row with a condition: facts that let it through, and facts that do not.

Written from the documents' condition columns and from the meaning of each fact, row by row.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.rooms.lifecycles.tables import Row

from pointsman.lifecycles.guards import Facts


class Needs(NamedTuple):
    """The move is refused, and the refusal names this condition."""

    condition: str


class Instead(NamedTuple):
    """Another row is taken, and leads here."""

    state: str


Otherwise = Needs | Instead

MET: dict[str, dict[Row, Facts]] = {
    "supervised.worker": {
        ("IDLE", "RUNNING", "start_task"): Facts(tasks_held=0, max_concurrent_tasks=1),
        ("RUNNING", "COMPLETED", "complete_tasks"): Facts(tasks_held=0),
        ("RUNNING", "FAILED", "error_unrecoverable"): Facts(retryable=False),
    },
    "supervised.job": {
        ("PENDING", "RUNNING", "allocate_resources"): Facts(wanted_workers=3, free_workers=3),
    },
    "pipeline.workstream": {
        ("S_RUNNING", "S_SUCCESS", "all_steps_succeed"): Facts(unfinished_tasks=0),
    },
    "pipeline.step": {
        ("S_PENDING", "S_RUNNING", "dependencies_met"): Facts(dependencies_met=True),
        ("S_RETRYING", "S_RUNNING", "retry_attempt"): Facts(due=True),
    },
    "pipeline.breaker": {
        ("CLOSED", "OPEN", "failure_threshold_exceeded"): Facts(failure_count=5, failure_threshold=5),
        ("HALF_OPEN", "CLOSED", "success"): Facts(success_count=1, success_threshold=1),
    },
    "orchestrated.task": {
        ("pending", "queued", "scheduler_assigned"): Facts(dependencies_met=True),
        ("running", "retrying", "execution_failed"): Facts(retry_count=2, max_retries=3),
        ("running", "failed", "execution_failed"): Facts(retry_count=3, max_retries=3),
    },
    "orchestrated.workstream": {
        ("planned", "ready", "all_tasks_created"): Facts(missing_tasks=0),
        ("executing", "validating", "all_tasks_completed"): Facts(unfinished_tasks=0),
        ("executing", "failed", "critical_task_failed"): Facts(critical_failures=1),
        ("validating", "completed", "validation_passed"): Facts(unfinished_tasks=0),
    },
    "orchestrated.worker": {
        ("idle", "busy", "task_assigned"): Facts(tasks_held=1, max_concurrent_tasks=2),
        ("busy", "idle", "task_completed"): Facts(tasks_held=0),
        ("busy", "shutdown", "shutdown_requested"): Facts(tasks_held=0),
    },
    "approval.run": {
        ("RUNNING", "SUCCEEDED", "all_steps_succeeded"): Facts(unfinished_tasks=0),
        ("WAITING_APPROVAL", "SUCCEEDED", "all_steps_succeeded"): Facts(unfinished_tasks=0),
    },
    "approval.step": {
        ("PENDING", "RUNNING", "claim"): Facts(is_gate=False, dependencies_met=True, due=True),
        ("RUNNING", "PENDING", "fail"): Facts(attempt_count=2, max_attempts=3),
        ("RUNNING", "FAILED", "fail"): Facts(attempt_count=3, max_attempts=3),
        ("RUNNING", "RUNNING", "reclaim"): Facts(lease_expired=True),
        ("PENDING", "WAITING_APPROVAL", "open_gate"): Facts(is_gate=True),
    },
    "agent.task": {
        ("RUNNING", "CANCELLED", "cancel"): Facts(process_ended=True),
        ("QUEUED", "RUNNING", "claim"): Facts(dependencies_met=True),
        ("RUNNING", "READY", "exit_ok"): Facts(top_level=True, open_subtasks=0),
        ("RUNNING", "BLOCKED", "exit_ok"): Facts(top_level=True, open_subtasks=2),
        ("RUNNING", "COMPLETED", "exit_ok"): Facts(top_level=False),
        ("RUNNING", "BLOCKED", "ask"): Facts(has_session=True),
        ("FAILED", "QUEUED", "run"): Facts(attempt_count=1, max_attempts=2),
        ("TIMED_OUT", "QUEUED", "resume"): Facts(has_session=True),
        ("BLOCKED", "READY", "children_done"): Facts(open_subtasks=0),
    },
    "standard.run": {
        ("RUNNING", "VALIDATING", "complete"): Facts(unfinished_tasks=0, has_checks=True),
        ("WAITING", "VALIDATING", "complete"): Facts(unfinished_tasks=0, has_checks=True),
        ("RUNNING", "SUCCEEDED", "complete"): Facts(unfinished_tasks=0, has_checks=False),
        ("WAITING", "SUCCEEDED", "complete"): Facts(unfinished_tasks=0, has_checks=False),
        ("RUNNING", "RETRYING", "fail"): Facts(retryable=True, retry_count=0, max_retries=1),
        ("WAITING", "RETRYING", "fail"): Facts(retryable=True, retry_count=0, max_retries=1),
        ("RUNNING", "FAILED", "fail"): Facts(retry_count=1, max_retries=1),
        ("WAITING", "FAILED", "fail"): Facts(retry_count=1, max_retries=1),
        ("VALIDATING", "SUCCEEDED", "checks_passed"): Facts(unfinished_tasks=0),
        ("VALIDATING", "RETRYING", "checks_failed"): Facts(retryable=True, retry_count=0, max_retries=1),
        ("VALIDATING", "FAILED", "checks_failed"): Facts(retry_count=1, max_retries=1),
    },
    "standard.task": {
        ("RUNNING", "SKIPPED", "skip"): Facts(process_ended=True),
        ("PENDING", "QUEUED", "ready"): Facts(is_gate=False),
        ("PENDING", "WAITING_APPROVAL", "ready"): Facts(is_gate=True),
        ("RUNNING", "VALIDATING", "complete"): Facts(has_checks=True, open_subtasks=1, review_wanted=True),
        ("RUNNING", "BLOCKED", "complete"): Facts(has_checks=False, open_subtasks=1, review_wanted=True),
        ("RUNNING", "READY", "complete"): Facts(has_checks=False, open_subtasks=0, review_wanted=True),
        ("RUNNING", "SUCCEEDED", "complete"): Facts(has_checks=False, open_subtasks=0, review_wanted=False),
        ("VALIDATING", "BLOCKED", "checks_passed"): Facts(open_subtasks=1, review_wanted=True),
        ("VALIDATING", "READY", "checks_passed"): Facts(open_subtasks=0, review_wanted=True),
        ("VALIDATING", "SUCCEEDED", "checks_passed"): Facts(open_subtasks=0, review_wanted=False),
        ("RUNNING", "RETRYING", "fail"): Facts(retryable=True, retry_count=0, max_retries=1),
        ("RUNNING", "FAILED", "fail"): Facts(retryable=True, retry_count=1, max_retries=1),
        ("RUNNING", "RETRYING", "expire"): Facts(retryable=True, retry_count=0, max_retries=1),
        ("RUNNING", "TIMED_OUT", "expire"): Facts(retryable=True, retry_count=1, max_retries=1),
        ("VALIDATING", "RETRYING", "checks_failed"): Facts(retryable=True, retry_count=0, max_retries=1),
        ("VALIDATING", "FAILED", "checks_failed"): Facts(retryable=True, retry_count=1, max_retries=1),
        ("RUNNING", "QUEUED", "lease_lost"): Facts(reclaim_count=2, max_reclaims=3),
        ("RUNNING", "FAILED", "lease_lost"): Facts(reclaim_count=3, max_reclaims=3),
        ("VALIDATING", "QUEUED", "lease_lost"): Facts(reclaim_count=2, max_reclaims=3),
        ("VALIDATING", "FAILED", "lease_lost"): Facts(reclaim_count=3, max_reclaims=3),
        ("BLOCKED", "READY", "children_done"): Facts(review_wanted=True),
        ("BLOCKED", "SUCCEEDED", "children_done"): Facts(review_wanted=False),
        ("FAILED", "QUEUED", "retry"): Facts(is_gate=False),
        ("FAILED", "QUEUED", "resume"): Facts(is_gate=False),
        ("TIMED_OUT", "QUEUED", "retry"): Facts(is_gate=False),
        ("TIMED_OUT", "QUEUED", "resume"): Facts(is_gate=False),
        ("BUDGET_EXCEEDED", "QUEUED", "retry"): Facts(is_gate=False),
        ("BUDGET_EXCEEDED", "QUEUED", "resume"): Facts(is_gate=False),
    },
    "standard.worker": {
        ("IDLE", "BUSY", "assign"): Facts(tasks_held=0, max_concurrent_tasks=1),
        ("BUSY", "IDLE", "release"): Facts(tasks_held=0),
        ("PAUSED", "BUSY", "resume"): Facts(tasks_held=1),
        ("PAUSED", "IDLE", "resume"): Facts(tasks_held=0),
        ("UNRESPONSIVE", "SHUTDOWN", "recover"): Facts(drain_wanted=True, pause_wanted=True),
        ("UNRESPONSIVE", "PAUSED", "recover"): Facts(pause_wanted=True),
        ("UNRESPONSIVE", "IDLE", "recover"): Facts(),
        ("BUSY", "DRAINING", "drain"): Facts(tasks_held=1),
        ("PAUSED", "DRAINING", "drain"): Facts(tasks_held=1),
        ("BUSY", "SHUTDOWN", "drain"): Facts(tasks_held=0),
        ("PAUSED", "SHUTDOWN", "drain"): Facts(tasks_held=0),
        ("DRAINING", "SHUTDOWN", "release"): Facts(tasks_held=0),
        ("INITIALIZING", "FAILED", "fail"): Facts(retryable=False),
        ("IDLE", "FAILED", "fail"): Facts(retryable=False),
        ("BUSY", "FAILED", "fail"): Facts(retryable=False),
        ("PAUSED", "FAILED", "fail"): Facts(retryable=False),
        ("UNRESPONSIVE", "FAILED", "fail"): Facts(retryable=False),
        ("DRAINING", "FAILED", "fail"): Facts(retryable=False),
    },
}
MET["standard.breaker"] = MET["pipeline.breaker"]

UNMET: dict[str, tuple[tuple[Row, Facts, Otherwise], ...]] = {
    "supervised.worker": (
        (("IDLE", "RUNNING", "start_task"), Facts(tasks_held=1, max_concurrent_tasks=1), Needs("has_capacity")),
        (("RUNNING", "COMPLETED", "complete_tasks"), Facts(tasks_held=1), Needs("not holds_tasks")),
        (("RUNNING", "FAILED", "error_unrecoverable"), Facts(retryable=True), Needs("not retryable")),
    ),
    "supervised.job": (
        (("PENDING", "RUNNING", "allocate_resources"), Facts(wanted_workers=3, free_workers=2), Needs("workers_available")),
    ),
    "pipeline.workstream": (
        (("S_RUNNING", "S_SUCCESS", "all_steps_succeed"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
    ),
    "pipeline.step": (
        (("S_PENDING", "S_RUNNING", "dependencies_met"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("S_RETRYING", "S_RUNNING", "retry_attempt"), Facts(due=False), Needs("due")),
    ),
    "pipeline.breaker": (
        (("CLOSED", "OPEN", "failure_threshold_exceeded"), Facts(failure_count=4), Needs("threshold_reached")),
        (("HALF_OPEN", "CLOSED", "success"), Facts(success_count=1, success_threshold=2), Needs("successes_reached")),
    ),
    "orchestrated.task": (
        (("pending", "queued", "scheduler_assigned"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("running", "retrying", "execution_failed"), Facts(retry_count=3, max_retries=3), Instead("failed")),
        (("running", "failed", "execution_failed"), Facts(retry_count=2, max_retries=3), Instead("retrying")),
    ),
    "orchestrated.workstream": (
        (("planned", "ready", "all_tasks_created"), Facts(missing_tasks=1), Needs("all_tasks_created")),
        (("executing", "validating", "all_tasks_completed"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
        (("executing", "failed", "critical_task_failed"), Facts(critical_failures=0), Needs("critical_failure")),
        (("validating", "completed", "validation_passed"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
    ),
    "orchestrated.worker": (
        (("idle", "busy", "task_assigned"), Facts(tasks_held=2, max_concurrent_tasks=2), Needs("has_capacity")),
        (("busy", "idle", "task_completed"), Facts(tasks_held=1), Needs("not holds_tasks")),
        (("busy", "shutdown", "shutdown_requested"), Facts(tasks_held=1), Needs("not holds_tasks")),
    ),
    "approval.run": (
        (("RUNNING", "SUCCEEDED", "all_steps_succeeded"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
        (("WAITING_APPROVAL", "SUCCEEDED", "all_steps_succeeded"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
    ),
    "approval.step": (
        (("PENDING", "RUNNING", "claim"), Facts(is_gate=True), Needs("not is_gate")),
        (("PENDING", "RUNNING", "claim"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("PENDING", "RUNNING", "claim"), Facts(due=False), Needs("due")),
        (("RUNNING", "PENDING", "fail"), Facts(attempt_count=3, max_attempts=3), Instead("FAILED")),
        (("RUNNING", "PENDING", "fail"), Facts(attempt_count=2, max_attempts=3, retryable=False), Instead("FAILED")),
        (("RUNNING", "FAILED", "fail"), Facts(attempt_count=2, max_attempts=3), Instead("PENDING")),
        (("RUNNING", "RUNNING", "reclaim"), Facts(lease_expired=False), Needs("lease_expired")),
        (("PENDING", "WAITING_APPROVAL", "open_gate"), Facts(is_gate=False), Needs("is_gate")),
    ),
    "agent.task": (
        (("RUNNING", "CANCELLED", "cancel"), Facts(process_ended=False), Needs("process_ended")),
        (("QUEUED", "RUNNING", "claim"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("RUNNING", "READY", "exit_ok"), Facts(top_level=True, open_subtasks=1), Instead("BLOCKED")),
        (("RUNNING", "READY", "exit_ok"), Facts(top_level=False, open_subtasks=0), Instead("COMPLETED")),
        (("RUNNING", "BLOCKED", "exit_ok"), Facts(top_level=True, open_subtasks=0), Instead("READY")),
        (("RUNNING", "BLOCKED", "exit_ok"), Facts(top_level=False, open_subtasks=1), Instead("COMPLETED")),
        (("RUNNING", "COMPLETED", "exit_ok"), Facts(top_level=True), Instead("READY")),
        (("RUNNING", "BLOCKED", "ask"), Facts(has_session=False), Needs("has_session")),
        (("FAILED", "QUEUED", "run"), Facts(attempt_count=2, max_attempts=2), Needs("attempts_left")),
        (("TIMED_OUT", "QUEUED", "resume"), Facts(has_session=False), Needs("has_session")),
        (("BLOCKED", "READY", "children_done"), Facts(open_subtasks=1), Needs("not open_subtasks")),
    ),
    "standard.run": (
        (("RUNNING", "VALIDATING", "complete"), Facts(has_checks=False), Instead("SUCCEEDED")),
        (("WAITING", "VALIDATING", "complete"), Facts(has_checks=False), Instead("SUCCEEDED")),
        (("RUNNING", "VALIDATING", "complete"), Facts(has_checks=True, unfinished_tasks=1), Needs("all_tasks_succeeded")),
        (("WAITING", "VALIDATING", "complete"), Facts(has_checks=True, unfinished_tasks=1), Needs("all_tasks_succeeded")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(has_checks=True), Instead("VALIDATING")),
        (("WAITING", "SUCCEEDED", "complete"), Facts(has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
        (("WAITING", "SUCCEEDED", "complete"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
        (("RUNNING", "RETRYING", "fail"), Facts(retry_count=1, max_retries=1), Instead("FAILED")),
        (("RUNNING", "RETRYING", "fail"), Facts(max_retries=1, retryable=False), Instead("FAILED")),
        (("WAITING", "RETRYING", "fail"), Facts(retry_count=1, max_retries=1), Instead("FAILED")),
        (("WAITING", "RETRYING", "fail"), Facts(max_retries=1, retryable=False), Instead("FAILED")),
        (("RUNNING", "FAILED", "fail"), Facts(max_retries=1), Instead("RETRYING")),
        (("WAITING", "FAILED", "fail"), Facts(max_retries=1), Instead("RETRYING")),
        (("VALIDATING", "SUCCEEDED", "checks_passed"), Facts(unfinished_tasks=1), Needs("all_tasks_succeeded")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(retry_count=1, max_retries=1), Instead("FAILED")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(max_retries=1, retryable=False), Instead("FAILED")),
        (("VALIDATING", "FAILED", "checks_failed"), Facts(max_retries=1), Instead("RETRYING")),
    ),
    "standard.task": (
        (("RUNNING", "SKIPPED", "skip"), Facts(process_ended=False), Needs("process_ended")),
        (("PENDING", "QUEUED", "ready"), Facts(is_gate=True), Instead("WAITING_APPROVAL")),
        (("PENDING", "WAITING_APPROVAL", "ready"), Facts(is_gate=False), Instead("QUEUED")),
        (("RUNNING", "VALIDATING", "complete"), Facts(has_checks=False), Instead("SUCCEEDED")),
        (("RUNNING", "BLOCKED", "complete"), Facts(open_subtasks=0), Instead("SUCCEEDED")),
        (("RUNNING", "BLOCKED", "complete"), Facts(open_subtasks=1, has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "READY", "complete"), Facts(review_wanted=False), Instead("SUCCEEDED")),
        (("RUNNING", "READY", "complete"), Facts(review_wanted=True, open_subtasks=1), Instead("BLOCKED")),
        (("RUNNING", "READY", "complete"), Facts(review_wanted=True, has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(open_subtasks=1), Instead("BLOCKED")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(review_wanted=True), Instead("READY")),
        (("VALIDATING", "BLOCKED", "checks_passed"), Facts(open_subtasks=0), Instead("SUCCEEDED")),
        (("VALIDATING", "READY", "checks_passed"), Facts(review_wanted=False), Instead("SUCCEEDED")),
        (("VALIDATING", "READY", "checks_passed"), Facts(review_wanted=True, open_subtasks=1), Instead("BLOCKED")),
        (("VALIDATING", "SUCCEEDED", "checks_passed"), Facts(open_subtasks=1), Instead("BLOCKED")),
        (("VALIDATING", "SUCCEEDED", "checks_passed"), Facts(review_wanted=True), Instead("READY")),
        (("RUNNING", "RETRYING", "fail"), Facts(retry_count=1, max_retries=1), Instead("FAILED")),
        (("RUNNING", "RETRYING", "fail"), Facts(max_retries=1, retryable=False), Instead("FAILED")),
        (("RUNNING", "FAILED", "fail"), Facts(max_retries=1), Instead("RETRYING")),
        (("RUNNING", "RETRYING", "expire"), Facts(retry_count=1, max_retries=1), Instead("TIMED_OUT")),
        (("RUNNING", "RETRYING", "expire"), Facts(max_retries=1, retryable=False), Instead("TIMED_OUT")),
        (("RUNNING", "TIMED_OUT", "expire"), Facts(max_retries=1), Instead("RETRYING")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(retry_count=1, max_retries=1), Instead("FAILED")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(max_retries=1, retryable=False), Instead("FAILED")),
        (("VALIDATING", "FAILED", "checks_failed"), Facts(max_retries=1), Instead("RETRYING")),
        (("RUNNING", "QUEUED", "lease_lost"), Facts(reclaim_count=3, max_reclaims=3), Instead("FAILED")),
        (("RUNNING", "FAILED", "lease_lost"), Facts(reclaim_count=2, max_reclaims=3), Instead("QUEUED")),
        (("VALIDATING", "QUEUED", "lease_lost"), Facts(reclaim_count=3, max_reclaims=3), Instead("FAILED")),
        (("VALIDATING", "FAILED", "lease_lost"), Facts(reclaim_count=2, max_reclaims=3), Instead("QUEUED")),
        (("BLOCKED", "READY", "children_done"), Facts(review_wanted=False), Instead("SUCCEEDED")),
        (("BLOCKED", "SUCCEEDED", "children_done"), Facts(review_wanted=True), Instead("READY")),
        (("FAILED", "QUEUED", "retry"), Facts(is_gate=True), Needs("not is_gate")),
        (("FAILED", "QUEUED", "resume"), Facts(is_gate=True), Needs("not is_gate")),
        (("TIMED_OUT", "QUEUED", "retry"), Facts(is_gate=True), Needs("not is_gate")),
        (("TIMED_OUT", "QUEUED", "resume"), Facts(is_gate=True), Needs("not is_gate")),
        (("BUDGET_EXCEEDED", "QUEUED", "retry"), Facts(is_gate=True), Needs("not is_gate")),
        (("BUDGET_EXCEEDED", "QUEUED", "resume"), Facts(is_gate=True), Needs("not is_gate")),
    ),
    "standard.worker": (
        (("IDLE", "BUSY", "assign"), Facts(tasks_held=1, max_concurrent_tasks=1), Needs("has_capacity")),
        (("BUSY", "IDLE", "release"), Facts(tasks_held=1), Needs("not holds_tasks")),
        (("PAUSED", "BUSY", "resume"), Facts(tasks_held=0), Instead("IDLE")),
        (("PAUSED", "IDLE", "resume"), Facts(tasks_held=1), Instead("BUSY")),
        (("UNRESPONSIVE", "SHUTDOWN", "recover"), Facts(drain_wanted=False), Instead("IDLE")),
        (("UNRESPONSIVE", "PAUSED", "recover"), Facts(pause_wanted=False), Instead("IDLE")),
        (("UNRESPONSIVE", "PAUSED", "recover"), Facts(pause_wanted=True, drain_wanted=True), Instead("SHUTDOWN")),
        (("UNRESPONSIVE", "IDLE", "recover"), Facts(drain_wanted=True), Instead("SHUTDOWN")),
        (("UNRESPONSIVE", "IDLE", "recover"), Facts(pause_wanted=True), Instead("PAUSED")),
        (("BUSY", "DRAINING", "drain"), Facts(tasks_held=0), Instead("SHUTDOWN")),
        (("PAUSED", "DRAINING", "drain"), Facts(tasks_held=0), Instead("SHUTDOWN")),
        (("BUSY", "SHUTDOWN", "drain"), Facts(tasks_held=1), Instead("DRAINING")),
        (("PAUSED", "SHUTDOWN", "drain"), Facts(tasks_held=1), Instead("DRAINING")),
        (("DRAINING", "SHUTDOWN", "release"), Facts(tasks_held=1), Needs("not holds_tasks")),
        (("INITIALIZING", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("IDLE", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("BUSY", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("PAUSED", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("UNRESPONSIVE", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("DRAINING", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
    ),
}
UNMET["standard.breaker"] = UNMET["pipeline.breaker"]

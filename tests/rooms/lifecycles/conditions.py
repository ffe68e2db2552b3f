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
        ("IDLE", "RUNNING", "start_task"): Facts(has_capacity=True),
        ("RUNNING", "COMPLETED", "complete_tasks"): Facts(holds_tasks=False),
        ("RUNNING", "FAILED", "error_unrecoverable"): Facts(retryable=False),
    },
    "supervised.job": {
        ("PENDING", "RUNNING", "allocate_resources"): Facts(workers_available=True),
    },
    "pipeline.workstream": {
        ("S_RUNNING", "S_SUCCESS", "all_steps_succeed"): Facts(all_tasks_succeeded=True),
    },
    "pipeline.step": {
        ("S_RUNNING", "S_SUCCESS", "success"): Facts(exit_code_expected=True),
        ("S_PENDING", "S_RUNNING", "dependencies_met"): Facts(dependencies_met=True),
        ("S_RETRYING", "S_RUNNING", "retry_attempt"): Facts(due=True),
    },
    "pipeline.breaker": {
        ("CLOSED", "OPEN", "failure_threshold_exceeded"): Facts(threshold_reached=True),
        ("HALF_OPEN", "CLOSED", "success"): Facts(successes_reached=True),
    },
    "orchestrated.task": {
        ("running", "validating", "execution_completed"): Facts(exit_code_expected=True),
        ("pending", "queued", "scheduler_assigned"): Facts(dependencies_met=True),
        ("running", "retrying", "execution_failed"): Facts(retries_left=True),
        ("running", "failed", "execution_failed"): Facts(retries_left=False),
    },
    "orchestrated.workstream": {
        ("planned", "ready", "all_tasks_created"): Facts(all_tasks_created=True),
        ("executing", "validating", "all_tasks_completed"): Facts(all_tasks_succeeded=True),
        ("executing", "failed", "critical_task_failed"): Facts(critical_failure=True),
        ("validating", "completed", "validation_passed"): Facts(all_tasks_succeeded=True),
    },
    "orchestrated.worker": {
        ("idle", "busy", "task_assigned"): Facts(has_capacity=True),
        ("busy", "idle", "task_completed"): Facts(holds_tasks=False),
        ("busy", "shutdown", "shutdown_requested"): Facts(holds_tasks=False),
    },
    "approval.run": {
        ("RUNNING", "SUCCEEDED", "all_steps_succeeded"): Facts(all_tasks_succeeded=True),
        ("WAITING_APPROVAL", "SUCCEEDED", "all_steps_succeeded"): Facts(all_tasks_succeeded=True),
    },
    "approval.step": {
        ("PENDING", "RUNNING", "claim"): Facts(is_gate=False, dependencies_met=True, due=True),
        ("RUNNING", "PENDING", "fail"): Facts(retries_left=True),
        ("RUNNING", "FAILED", "fail"): Facts(retries_left=False),
        ("RUNNING", "RUNNING", "reclaim"): Facts(lease_expired=True),
        ("PENDING", "WAITING_APPROVAL", "open_gate"): Facts(is_gate=True),
    },
    "agent.task": {
        ("RUNNING", "CANCELLED", "cancel"): Facts(process_ended=True),
        ("QUEUED", "RUNNING", "claim"): Facts(dependencies_met=True),
        ("RUNNING", "READY", "exit_ok"): Facts(top_level=True, open_subtasks=False),
        ("RUNNING", "BLOCKED", "exit_ok"): Facts(top_level=True, open_subtasks=True),
        ("RUNNING", "COMPLETED", "exit_ok"): Facts(top_level=False),
        ("RUNNING", "BLOCKED", "ask"): Facts(has_session=True),
        ("FAILED", "QUEUED", "run"): Facts(attempts_left=True),
        ("TIMED_OUT", "QUEUED", "resume"): Facts(has_session=True),
        ("BLOCKED", "READY", "children_done"): Facts(open_subtasks=False),
    },
    "standard.run": {
        ("RUNNING", "VALIDATING", "complete"): Facts(all_tasks_succeeded=True, has_checks=True),
        ("WAITING", "VALIDATING", "complete"): Facts(all_tasks_succeeded=True, has_checks=True),
        ("RUNNING", "SUCCEEDED", "complete"): Facts(all_tasks_succeeded=True, has_checks=False),
        ("WAITING", "SUCCEEDED", "complete"): Facts(all_tasks_succeeded=True, has_checks=False),
        ("RUNNING", "RETRYING", "fail"): Facts(retryable=True, retries_left=True),
        ("WAITING", "RETRYING", "fail"): Facts(retryable=True, retries_left=True),
        ("RUNNING", "FAILED", "fail"): Facts(retries_left=False),
        ("WAITING", "FAILED", "fail"): Facts(retries_left=False),
        ("VALIDATING", "SUCCEEDED", "checks_passed"): Facts(all_tasks_succeeded=True),
        ("VALIDATING", "RETRYING", "checks_failed"): Facts(retryable=True, retries_left=True),
        ("VALIDATING", "FAILED", "checks_failed"): Facts(retries_left=False),
    },
    "standard.task": {
        ("RUNNING", "SKIPPED", "skip"): Facts(process_ended=True),
        ("PENDING", "QUEUED", "ready"): Facts(is_gate=False),
        ("PENDING", "WAITING_APPROVAL", "ready"): Facts(is_gate=True),
        ("WAITING_APPROVAL", "SUCCEEDED", "approve"): Facts(quorum_reached=True),
        ("WAITING_APPROVAL", "WAITING_APPROVAL", "approve"): Facts(quorum_reached=False),
        ("RUNNING", "VALIDATING", "complete"): Facts(has_checks=True, open_subtasks=True, review_wanted=True),
        ("RUNNING", "BLOCKED", "complete"): Facts(has_checks=False, open_subtasks=True, review_wanted=True),
        ("RUNNING", "READY", "complete"): Facts(has_checks=False, open_subtasks=False, review_wanted=True),
        ("RUNNING", "SUCCEEDED", "complete"): Facts(has_checks=False, open_subtasks=False, review_wanted=False),
        ("VALIDATING", "BLOCKED", "checks_passed"): Facts(open_subtasks=True, review_wanted=True),
        ("VALIDATING", "READY", "checks_passed"): Facts(open_subtasks=False, review_wanted=True),
        ("VALIDATING", "SUCCEEDED", "checks_passed"): Facts(open_subtasks=False, review_wanted=False),
        ("RUNNING", "RETRYING", "fail"): Facts(retryable=True, retries_left=True),
        ("RUNNING", "FAILED", "fail"): Facts(retryable=True, retries_left=False),
        ("RUNNING", "RETRYING", "expire"): Facts(retryable=True, retries_left=True),
        ("RUNNING", "TIMED_OUT", "expire"): Facts(retryable=True, retries_left=False),
        ("VALIDATING", "RETRYING", "checks_failed"): Facts(retryable=True, retries_left=True),
        ("VALIDATING", "FAILED", "checks_failed"): Facts(retryable=True, retries_left=False),
        ("RUNNING", "QUEUED", "lease_lost"): Facts(reclaims_left=True),
        ("RUNNING", "FAILED", "lease_lost"): Facts(reclaims_left=False),
        ("VALIDATING", "QUEUED", "lease_lost"): Facts(reclaims_left=True),
        ("VALIDATING", "FAILED", "lease_lost"): Facts(reclaims_left=False),
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
        ("IDLE", "BUSY", "assign"): Facts(has_capacity=True),
        ("BUSY", "IDLE", "release"): Facts(holds_tasks=False),
        ("PAUSED", "BUSY", "resume"): Facts(holds_tasks=True),
        ("PAUSED", "IDLE", "resume"): Facts(holds_tasks=False),
        ("UNRESPONSIVE", "SHUTDOWN", "recover"): Facts(drain_wanted=True, pause_wanted=True),
        ("UNRESPONSIVE", "PAUSED", "recover"): Facts(pause_wanted=True),
        ("UNRESPONSIVE", "IDLE", "recover"): Facts(),
        ("BUSY", "DRAINING", "drain"): Facts(holds_tasks=True),
        ("PAUSED", "DRAINING", "drain"): Facts(holds_tasks=True),
        ("BUSY", "SHUTDOWN", "drain"): Facts(holds_tasks=False),
        ("PAUSED", "SHUTDOWN", "drain"): Facts(holds_tasks=False),
        ("DRAINING", "SHUTDOWN", "release"): Facts(holds_tasks=False),
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
        (("IDLE", "RUNNING", "start_task"), Facts(has_capacity=False), Needs("has_capacity")),
        (("RUNNING", "COMPLETED", "complete_tasks"), Facts(holds_tasks=True), Needs("not holds_tasks")),
        (("RUNNING", "FAILED", "error_unrecoverable"), Facts(retryable=True), Needs("not retryable")),
    ),
    "supervised.job": (
        (("PENDING", "RUNNING", "allocate_resources"), Facts(workers_available=False), Needs("workers_available")),
    ),
    "pipeline.workstream": (
        (("S_RUNNING", "S_SUCCESS", "all_steps_succeed"), Facts(all_tasks_succeeded=False), Needs("all_tasks_succeeded")),
    ),
    "pipeline.step": (
        (("S_PENDING", "S_RUNNING", "dependencies_met"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("S_RETRYING", "S_RUNNING", "retry_attempt"), Facts(due=False), Needs("due")),
        (("S_RUNNING", "S_SUCCESS", "success"), Facts(exit_code_expected=False), Needs("exit_code_expected")),
    ),
    "pipeline.breaker": (
        (("CLOSED", "OPEN", "failure_threshold_exceeded"), Facts(threshold_reached=False), Needs("threshold_reached")),
        (("HALF_OPEN", "CLOSED", "success"), Facts(successes_reached=False), Needs("successes_reached")),
    ),
    "orchestrated.task": (
        (("pending", "queued", "scheduler_assigned"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("running", "validating", "execution_completed"), Facts(exit_code_expected=False), Needs("exit_code_expected")),
        (("running", "retrying", "execution_failed"), Facts(retries_left=False), Instead("failed")),
        (("running", "failed", "execution_failed"), Facts(retries_left=True), Instead("retrying")),
    ),
    "orchestrated.workstream": (
        (("planned", "ready", "all_tasks_created"), Facts(all_tasks_created=False), Needs("all_tasks_created")),
        (("executing", "validating", "all_tasks_completed"), Facts(all_tasks_succeeded=False), Needs("all_tasks_succeeded")),
        (("executing", "failed", "critical_task_failed"), Facts(critical_failure=False), Needs("critical_failure")),
        (("validating", "completed", "validation_passed"), Facts(all_tasks_succeeded=False), Needs("all_tasks_succeeded")),
    ),
    "orchestrated.worker": (
        (("idle", "busy", "task_assigned"), Facts(has_capacity=False), Needs("has_capacity")),
        (("busy", "idle", "task_completed"), Facts(holds_tasks=True), Needs("not holds_tasks")),
        (("busy", "shutdown", "shutdown_requested"), Facts(holds_tasks=True), Needs("not holds_tasks")),
    ),
    "approval.run": (
        (("RUNNING", "SUCCEEDED", "all_steps_succeeded"), Facts(all_tasks_succeeded=False), Needs("all_tasks_succeeded")),
        (
            ("WAITING_APPROVAL", "SUCCEEDED", "all_steps_succeeded"),
            Facts(all_tasks_succeeded=False),
            Needs("all_tasks_succeeded"),
        ),
    ),
    "approval.step": (
        (("PENDING", "RUNNING", "claim"), Facts(is_gate=True), Needs("not is_gate")),
        (("PENDING", "RUNNING", "claim"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("PENDING", "RUNNING", "claim"), Facts(due=False), Needs("due")),
        (("RUNNING", "PENDING", "fail"), Facts(retries_left=False), Instead("FAILED")),
        (("RUNNING", "PENDING", "fail"), Facts(retries_left=True, retryable=False), Instead("FAILED")),
        (("RUNNING", "FAILED", "fail"), Facts(retries_left=True), Instead("PENDING")),
        (("RUNNING", "RUNNING", "reclaim"), Facts(lease_expired=False), Needs("lease_expired")),
        (("PENDING", "WAITING_APPROVAL", "open_gate"), Facts(is_gate=False), Needs("is_gate")),
    ),
    "agent.task": (
        (("RUNNING", "CANCELLED", "cancel"), Facts(process_ended=False), Needs("process_ended")),
        (("QUEUED", "RUNNING", "claim"), Facts(dependencies_met=False), Needs("dependencies_met")),
        (("RUNNING", "READY", "exit_ok"), Facts(top_level=True, open_subtasks=True), Instead("BLOCKED")),
        (("RUNNING", "READY", "exit_ok"), Facts(top_level=False, open_subtasks=False), Instead("COMPLETED")),
        (("RUNNING", "BLOCKED", "exit_ok"), Facts(top_level=True, open_subtasks=False), Instead("READY")),
        (("RUNNING", "BLOCKED", "exit_ok"), Facts(top_level=False, open_subtasks=True), Instead("COMPLETED")),
        (("RUNNING", "COMPLETED", "exit_ok"), Facts(top_level=True), Instead("READY")),
        (("RUNNING", "BLOCKED", "ask"), Facts(has_session=False), Needs("has_session")),
        (("FAILED", "QUEUED", "run"), Facts(attempts_left=False), Needs("attempts_left")),
        (("TIMED_OUT", "QUEUED", "resume"), Facts(has_session=False), Needs("has_session")),
        (("BLOCKED", "READY", "children_done"), Facts(open_subtasks=True), Needs("not open_subtasks")),
    ),
    "standard.run": (
        (("RUNNING", "VALIDATING", "complete"), Facts(has_checks=False), Instead("SUCCEEDED")),
        (("WAITING", "VALIDATING", "complete"), Facts(has_checks=False), Instead("SUCCEEDED")),
        (
            ("RUNNING", "VALIDATING", "complete"),
            Facts(has_checks=True, all_tasks_succeeded=False),
            Needs("all_tasks_succeeded"),
        ),
        (
            ("WAITING", "VALIDATING", "complete"),
            Facts(has_checks=True, all_tasks_succeeded=False),
            Needs("all_tasks_succeeded"),
        ),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(has_checks=True), Instead("VALIDATING")),
        (("WAITING", "SUCCEEDED", "complete"), Facts(has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(all_tasks_succeeded=False), Needs("all_tasks_succeeded")),
        (("WAITING", "SUCCEEDED", "complete"), Facts(all_tasks_succeeded=False), Needs("all_tasks_succeeded")),
        (("RUNNING", "RETRYING", "fail"), Facts(retries_left=False), Instead("FAILED")),
        (("RUNNING", "RETRYING", "fail"), Facts(retries_left=True, retryable=False), Instead("FAILED")),
        (("WAITING", "RETRYING", "fail"), Facts(retries_left=False), Instead("FAILED")),
        (("WAITING", "RETRYING", "fail"), Facts(retries_left=True, retryable=False), Instead("FAILED")),
        (("RUNNING", "FAILED", "fail"), Facts(retries_left=True), Instead("RETRYING")),
        (("WAITING", "FAILED", "fail"), Facts(retries_left=True), Instead("RETRYING")),
        (("VALIDATING", "SUCCEEDED", "checks_passed"), Facts(all_tasks_succeeded=False), Needs("all_tasks_succeeded")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(retries_left=False), Instead("FAILED")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(retries_left=True, retryable=False), Instead("FAILED")),
        (("VALIDATING", "FAILED", "checks_failed"), Facts(retries_left=True), Instead("RETRYING")),
    ),
    "standard.task": (
        (("RUNNING", "SKIPPED", "skip"), Facts(process_ended=False), Needs("process_ended")),
        (("PENDING", "QUEUED", "ready"), Facts(is_gate=True), Instead("WAITING_APPROVAL")),
        (("PENDING", "WAITING_APPROVAL", "ready"), Facts(is_gate=False), Instead("QUEUED")),
        (("WAITING_APPROVAL", "SUCCEEDED", "approve"), Facts(quorum_reached=False), Instead("WAITING_APPROVAL")),
        (("WAITING_APPROVAL", "WAITING_APPROVAL", "approve"), Facts(quorum_reached=True), Instead("SUCCEEDED")),
        (("RUNNING", "VALIDATING", "complete"), Facts(has_checks=False), Instead("SUCCEEDED")),
        (("RUNNING", "BLOCKED", "complete"), Facts(open_subtasks=False), Instead("SUCCEEDED")),
        (("RUNNING", "BLOCKED", "complete"), Facts(open_subtasks=True, has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "READY", "complete"), Facts(review_wanted=False), Instead("SUCCEEDED")),
        (("RUNNING", "READY", "complete"), Facts(review_wanted=True, open_subtasks=True), Instead("BLOCKED")),
        (("RUNNING", "READY", "complete"), Facts(review_wanted=True, has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(has_checks=True), Instead("VALIDATING")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(open_subtasks=True), Instead("BLOCKED")),
        (("RUNNING", "SUCCEEDED", "complete"), Facts(review_wanted=True), Instead("READY")),
        (("VALIDATING", "BLOCKED", "checks_passed"), Facts(open_subtasks=False), Instead("SUCCEEDED")),
        (("VALIDATING", "READY", "checks_passed"), Facts(review_wanted=False), Instead("SUCCEEDED")),
        (("VALIDATING", "READY", "checks_passed"), Facts(review_wanted=True, open_subtasks=True), Instead("BLOCKED")),
        (("VALIDATING", "SUCCEEDED", "checks_passed"), Facts(open_subtasks=True), Instead("BLOCKED")),
        (("VALIDATING", "SUCCEEDED", "checks_passed"), Facts(review_wanted=True), Instead("READY")),
        (("RUNNING", "RETRYING", "fail"), Facts(retries_left=False), Instead("FAILED")),
        (("RUNNING", "RETRYING", "fail"), Facts(retries_left=True, retryable=False), Instead("FAILED")),
        (("RUNNING", "FAILED", "fail"), Facts(retries_left=True), Instead("RETRYING")),
        (("RUNNING", "RETRYING", "expire"), Facts(retries_left=False), Instead("TIMED_OUT")),
        (("RUNNING", "RETRYING", "expire"), Facts(retries_left=True, retryable=False), Instead("TIMED_OUT")),
        (("RUNNING", "TIMED_OUT", "expire"), Facts(retries_left=True), Instead("RETRYING")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(retries_left=False), Instead("FAILED")),
        (("VALIDATING", "RETRYING", "checks_failed"), Facts(retries_left=True, retryable=False), Instead("FAILED")),
        (("VALIDATING", "FAILED", "checks_failed"), Facts(retries_left=True), Instead("RETRYING")),
        (("RUNNING", "QUEUED", "lease_lost"), Facts(reclaims_left=False), Instead("FAILED")),
        (("RUNNING", "FAILED", "lease_lost"), Facts(reclaims_left=True), Instead("QUEUED")),
        (("VALIDATING", "QUEUED", "lease_lost"), Facts(reclaims_left=False), Instead("FAILED")),
        (("VALIDATING", "FAILED", "lease_lost"), Facts(reclaims_left=True), Instead("QUEUED")),
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
        (("IDLE", "BUSY", "assign"), Facts(has_capacity=False), Needs("has_capacity")),
        (("BUSY", "IDLE", "release"), Facts(holds_tasks=True), Needs("not holds_tasks")),
        (("PAUSED", "BUSY", "resume"), Facts(holds_tasks=False), Instead("IDLE")),
        (("PAUSED", "IDLE", "resume"), Facts(holds_tasks=True), Instead("BUSY")),
        (("UNRESPONSIVE", "SHUTDOWN", "recover"), Facts(drain_wanted=False), Instead("IDLE")),
        (("UNRESPONSIVE", "PAUSED", "recover"), Facts(pause_wanted=False), Instead("IDLE")),
        (("UNRESPONSIVE", "PAUSED", "recover"), Facts(pause_wanted=True, drain_wanted=True), Instead("SHUTDOWN")),
        (("UNRESPONSIVE", "IDLE", "recover"), Facts(drain_wanted=True), Instead("SHUTDOWN")),
        (("UNRESPONSIVE", "IDLE", "recover"), Facts(pause_wanted=True), Instead("PAUSED")),
        (("BUSY", "DRAINING", "drain"), Facts(holds_tasks=False), Instead("SHUTDOWN")),
        (("PAUSED", "DRAINING", "drain"), Facts(holds_tasks=False), Instead("SHUTDOWN")),
        (("BUSY", "SHUTDOWN", "drain"), Facts(holds_tasks=True), Instead("DRAINING")),
        (("PAUSED", "SHUTDOWN", "drain"), Facts(holds_tasks=True), Instead("DRAINING")),
        (("DRAINING", "SHUTDOWN", "release"), Facts(holds_tasks=True), Needs("not holds_tasks")),
        (("INITIALIZING", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("IDLE", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("BUSY", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("PAUSED", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("UNRESPONSIVE", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
        (("DRAINING", "FAILED", "fail"), Facts(retryable=True), Needs("not retryable")),
    ),
}
UNMET["standard.breaker"] = UNMET["pipeline.breaker"]

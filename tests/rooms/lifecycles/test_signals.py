"""What each signal does in each state: the bindings and fallbacks that let one engine drive five systems."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.rooms.lifecycles.conditions import MET
from tests.rooms.lifecycles.tables import TABLES
from tests.rows import each_row

from pointsman import load_machine
from pointsman.kernel.machine import Refusal
from pointsman.kernel.step import Snapshot, Step, step
from pointsman.lifecycles.guards import Facts
from pointsman.lifecycles.vocabulary import SIGNALS

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)

Answer = tuple[str, str, str, str]
"""A signal, the state in which it arrives, the state it leads to, and the trigger that it pulls."""

# Where a trigger and a signal have the same name no binding is needed, and none is listed.
OTHER_NAMES: dict[str, tuple[Answer, ...]] = {
    "supervised.worker": (
        ("assign", "IDLE", "RUNNING", "start_task"),
        ("drain", "RUNNING", "COMPLETED", "complete_tasks"),
        ("fail", "RUNNING", "FAILED", "error_unrecoverable"),
        ("expire", "IDLE", "TERMINATED", "terminate"),
        ("expire", "RUNNING", "TERMINATED", "terminate"),
        ("expire", "PAUSED", "TERMINATED", "terminate"),
        ("expire", "COMPLETED", "TERMINATED", "terminate"),
        ("expire", "FAILED", "TERMINATED", "terminate"),
    ),
    "supervised.job": (
        ("ready", "SUBMITTED", "PENDING", "validate"),
        ("start", "PENDING", "RUNNING", "allocate_resources"),
        ("complete", "RUNNING", "COMPLETED", "success"),
        ("fail", "RUNNING", "FAILED", "error"),
        ("expire", "SUBMITTED", "CANCELED", "cancel"),
        ("expire", "PENDING", "CANCELED", "cancel"),
        ("expire", "RUNNING", "CANCELED", "cancel"),
    ),
    "pipeline.workstream": (
        ("start", "S_PENDING", "S_RUNNING", "start_execution"),
        ("complete", "S_RUNNING", "S_SUCCESS", "all_steps_succeed"),
        ("fail", "S_RUNNING", "S_FAILED", "step_fails"),
        ("expire", "S_RUNNING", "S_FAILED", "step_fails"),
        ("cancel", "S_RUNNING", "S_ABANDONED", "abandon"),
        ("delay_over", "S_RETRYING", "S_RUNNING", "retry_attempt"),
    ),
    "pipeline.step": (
        ("claim", "S_PENDING", "S_RUNNING", "dependencies_met"),
        ("claim", "S_RETRYING", "S_RUNNING", "retry_attempt"),
        ("complete", "S_RUNNING", "S_SUCCESS", "success"),
        ("fail", "S_RUNNING", "S_FAILED", "failure"),
        ("expire", "S_RUNNING", "S_FAILED", "failure"),
        ("lease_lost", "S_RUNNING", "S_FAILED", "failure"),
        ("cancel", "S_RUNNING", "S_FAILED", "failure"),
    ),
    "pipeline.breaker": (
        ("fail", "CLOSED", "OPEN", "failure_threshold_exceeded"),
        ("fail", "HALF_OPEN", "OPEN", "failure"),
        ("complete", "HALF_OPEN", "CLOSED", "success"),
        ("delay_over", "OPEN", "HALF_OPEN", "cooldown_expires"),
    ),
    "orchestrated.task": (
        ("ready", "pending", "queued", "scheduler_assigned"),
        ("claim", "queued", "running", "worker_started"),
        ("complete", "running", "validating", "execution_completed"),
        ("fail", "running", "retrying", "execution_failed"),
        ("fail", "running", "failed", "execution_failed"),
        ("expire", "running", "retrying", "execution_failed"),
        ("expire", "running", "failed", "execution_failed"),
        ("lease_lost", "running", "queued", "worker_lost"),
        ("delay_over", "retrying", "queued", "retry_delay_elapsed"),
        ("checks_passed", "validating", "completed", "validation_passed"),
        ("checks_failed", "validating", "failed", "validation_failed"),
        ("fail", "validating", "failed", "validation_failed"),
        ("expire", "validating", "failed", "validation_failed"),
        ("lease_lost", "validating", "failed", "validation_failed"),
        ("cancel", "pending", "cancelled", "user_cancelled"),
        ("cancel", "queued", "cancelled", "user_cancelled"),
        ("cancel", "running", "cancelled", "user_cancelled"),
        ("cancel", "retrying", "cancelled", "user_cancelled"),
        ("cancel", "validating", "failed", "validation_failed"),
    ),
    "orchestrated.workstream": (
        ("ready", "planned", "ready", "all_tasks_created"),
        ("start", "ready", "executing", "first_task_started"),
        ("complete", "executing", "validating", "all_tasks_completed"),
        ("fail", "executing", "failed", "critical_task_failed"),
        ("fail", "validating", "failed", "validation_failed"),
        ("checks_passed", "validating", "completed", "validation_passed"),
        ("checks_failed", "validating", "failed", "validation_failed"),
        ("cancel", "planned", "cancelled", "user_cancelled"),
        ("cancel", "ready", "cancelled", "user_cancelled"),
        ("cancel", "executing", "cancelled", "user_cancelled"),
        ("expire", "planned", "cancelled", "user_cancelled"),
        ("expire", "ready", "cancelled", "user_cancelled"),
        ("expire", "executing", "cancelled", "user_cancelled"),
        ("cancel", "validating", "failed", "validation_failed"),
        ("expire", "validating", "failed", "validation_failed"),
    ),
    "orchestrated.worker": (
        ("register", "initializing", "idle", "registration_complete"),
        ("assign", "idle", "busy", "task_assigned"),
        ("release", "busy", "idle", "task_completed"),
        ("suspect", "busy", "unresponsive", "health_check_timeout"),
        ("recover", "unresponsive", "idle", "health_check_recovered"),
        ("expire", "unresponsive", "shutdown", "max_timeout_exceeded"),
        ("drain", "idle", "shutdown", "shutdown_requested"),
        ("drain", "busy", "shutdown", "shutdown_requested"),
    ),
    "approval.run": (
        ("start", "PENDING", "RUNNING", "first_step_claimed"),
        ("wait", "RUNNING", "WAITING_APPROVAL", "gate_reached"),
        ("proceed", "WAITING_APPROVAL", "RUNNING", "approve"),
        ("complete", "RUNNING", "SUCCEEDED", "all_steps_succeeded"),
        ("complete", "WAITING_APPROVAL", "SUCCEEDED", "all_steps_succeeded"),
        ("fail", "RUNNING", "FAILED", "step_exhausted"),
        ("fail", "WAITING_APPROVAL", "FAILED", "step_exhausted"),
        ("expire", "PENDING", "CANCELED", "cancel"),
        ("expire", "RUNNING", "CANCELED", "cancel"),
        ("expire", "WAITING_APPROVAL", "CANCELED", "cancel"),
    ),
    # A lost lease moves nothing here: the step stays RUNNING, and the next claim takes it over.
    "approval.step": (
        ("ready", "PENDING", "WAITING_APPROVAL", "open_gate"),
        ("claim", "RUNNING", "RUNNING", "reclaim"),
        ("expire", "RUNNING", "PENDING", "fail"),
        ("expire", "RUNNING", "FAILED", "fail"),
    ),
    "agent.task": (
        ("ready", "PENDING", "QUEUED", "run"),
        ("retry", "FAILED", "QUEUED", "run"),
        ("complete", "RUNNING", "READY", "exit_ok"),
        ("complete", "RUNNING", "BLOCKED", "exit_ok"),
        ("complete", "RUNNING", "COMPLETED", "exit_ok"),
        ("fail", "RUNNING", "FAILED", "error"),
        ("expire", "RUNNING", "TIMED_OUT", "deadline"),
        ("lease_lost", "RUNNING", "FAILED", "error"),
    ),
    "standard.run": (
        ("expire", "RUNNING", "RETRYING", "fail"),
        ("expire", "RUNNING", "FAILED", "fail"),
        ("expire", "WAITING", "RETRYING", "fail"),
        ("expire", "WAITING", "FAILED", "fail"),
        ("fail", "VALIDATING", "RETRYING", "checks_failed"),
        ("fail", "VALIDATING", "FAILED", "checks_failed"),
        ("expire", "VALIDATING", "RETRYING", "checks_failed"),
        ("expire", "VALIDATING", "FAILED", "checks_failed"),
    ),
    "standard.task": (
        ("fail", "VALIDATING", "RETRYING", "checks_failed"),
        ("fail", "VALIDATING", "FAILED", "checks_failed"),
        ("expire", "VALIDATING", "RETRYING", "checks_failed"),
        ("expire", "VALIDATING", "FAILED", "checks_failed"),
    ),
    "standard.worker": (),
}
OTHER_NAMES["standard.breaker"] = OTHER_NAMES["pipeline.breaker"]


def signals_for(name: str) -> tuple[str, ...]:
    known = SIGNALS[load_machine(name).kind]
    return (*known.required, *known.optional)


def answers(name: str) -> set[Answer]:
    own_names = {(row[2], *row) for row in TABLES[name].rows if row[2] in signals_for(name)}
    return own_names | set(OTHER_NAMES[name])


@each_row("name", TABLES)
def test_every_signal_does_in_every_state_what_the_documents_demand_and_nothing_else(name: str) -> None:
    machine = load_machine(name)
    found = {
        (signal, state, move.to_state, move.trigger)
        for state in TABLES[name].states
        for signal in signals_for(name)
        for move in machine.moves(state, signal)
    }
    assert found == answers(name)


@each_row("name", TABLES)
def test_a_signal_leads_where_its_trigger_leads(name: str) -> None:
    machine, automatic = load_machine(name), TABLES[name].automatic
    for signal, state, target, trigger in sorted(answers(name)):
        facts = MET[name].get((state, target, trigger), Facts())
        result = step(machine, Snapshot(state, NOW), signal, facts, NOW)
        assert isinstance(result, Step), f"{name}: {signal} in {state} was refused: {result}"
        assert (result.taken[0].to_state, result.taken[0].trigger) == (target, trigger)
        assert all(move.trigger in automatic for move in result.taken[1:])


@each_row("name", TABLES)
def test_a_signal_that_a_state_cannot_take_is_refused(name: str) -> None:
    machine = load_machine(name)
    answered = {(signal, state) for signal, state, _, _ in answers(name)}
    for state in TABLES[name].states:
        for signal in signals_for(name):
            if (signal, state) not in answered:
                result = step(machine, Snapshot(state, NOW), signal, Facts(), NOW)
                assert isinstance(result, Refusal), f"{name}: {signal} moved {state} along {result.taken}"


@each_row("name", TABLES)
def test_every_required_signal_is_answered_somewhere(name: str) -> None:
    answered = {signal for signal, _, _, _ in answers(name)}
    missing = set(SIGNALS[load_machine(name).kind].required) - answered
    assert missing == set()


def test_a_lost_lease_starts_no_attempt_of_a_waiting_step() -> None:
    """A late report of a lost lease must not claim a step that went back to PENDING: no worker holds it."""
    machine = load_machine("approval.step")
    assert isinstance(step(machine, Snapshot("PENDING", NOW), "lease_lost", Facts(lease_expired=True), NOW), Refusal)


def test_a_lost_lease_begins_no_attempt_before_the_next_claim() -> None:
    """The step stays RUNNING and becomes claimable; only the claim takes the self-transition."""
    machine = load_machine("approval.step")
    lost = step(machine, Snapshot("RUNNING", NOW), "lease_lost", Facts(lease_expired=True), NOW)
    assert isinstance(lost, Refusal), lost.taken
    claimed = step(machine, Snapshot("RUNNING", NOW), "claim", Facts(lease_expired=True), NOW)
    assert isinstance(claimed, Step), claimed
    assert [move.trigger for move in claimed.taken] == ["reclaim"]

"""What the engine may know of a state and must do on a move: phases, severities and effects that the documents name."""

from __future__ import annotations

import pytest
from tests.rooms.lifecycles.tables import TABLES, Row
from tests.rows import each_row

from pointsman import load_machine
from pointsman.kernel.machine import Kind, Outcome, Phase, Severity

HELD, QUEUED, ACTIVE = Phase.HELD, Phase.QUEUED, Phase.ACTIVE
SUCCESS, FAILURE, CANCELED = Outcome.SUCCESS, Outcome.FAILURE, Outcome.CANCELED

# An outcome stands for the phase `done` with that outcome. For runs, workers and breakers `queued` may be given work, `active`
# is at work, `held` may not be given any.
PHASES: dict[str, dict[str, Phase | Outcome]] = {
    "pipeline.step": {
        "S_PENDING": QUEUED,
        "S_RUNNING": ACTIVE,
        "S_SUCCESS": SUCCESS,
        "S_FAILED": FAILURE,
        "S_RETRYING": QUEUED,
    },
    "orchestrated.task": {
        "pending": HELD,
        "queued": QUEUED,
        "running": ACTIVE,
        "validating": ACTIVE,
        "completed": SUCCESS,
        "failed": FAILURE,
        "retrying": HELD,
        "cancelled": CANCELED,
    },
    "approval.step": {
        "PENDING": QUEUED,
        "RUNNING": ACTIVE,
        "WAITING_APPROVAL": HELD,
        "SUCCEEDED": SUCCESS,
        "FAILED": FAILURE,
        "CANCELED": CANCELED,
    },
    "agent.task": {
        "PENDING": HELD,
        "QUEUED": QUEUED,
        "RUNNING": ACTIVE,
        "READY": HELD,
        "COMPLETED": SUCCESS,
        "FAILED": FAILURE,
        "TIMED_OUT": FAILURE,
        "CANCELLED": CANCELED,
        "BUDGET_EXCEEDED": FAILURE,
        "BLOCKED": HELD,
    },
    "standard.task": {
        "PENDING": HELD,
        "QUEUED": QUEUED,
        "RUNNING": ACTIVE,
        "VALIDATING": ACTIVE,
        "RETRYING": HELD,
        "WAITING_APPROVAL": HELD,
        "BLOCKED": HELD,
        "READY": HELD,
        "SUCCEEDED": SUCCESS,
        "SKIPPED": SUCCESS,
        "FAILED": FAILURE,
        "TIMED_OUT": FAILURE,
        "BUDGET_EXCEEDED": FAILURE,
        "CANCELED": CANCELED,
    },
    "supervised.job": {
        "SUBMITTED": HELD,
        "PENDING": QUEUED,
        "RUNNING": ACTIVE,
        "COMPLETED": SUCCESS,
        "FAILED": FAILURE,
        "CANCELED": CANCELED,
    },
    "pipeline.workstream": {
        "S_PENDING": QUEUED,
        "S_RUNNING": ACTIVE,
        "S_SUCCESS": SUCCESS,
        "S_FAILED": HELD,
        "S_RETRYING": HELD,
        "S_ABANDONED": FAILURE,
    },
    "orchestrated.workstream": {
        "planned": HELD,
        "ready": QUEUED,
        "executing": ACTIVE,
        "validating": ACTIVE,
        "completed": SUCCESS,
        "failed": FAILURE,
        "cancelled": CANCELED,
    },
    "approval.run": {
        "PENDING": QUEUED,
        "RUNNING": ACTIVE,
        "WAITING_APPROVAL": HELD,
        "SUCCEEDED": SUCCESS,
        "FAILED": FAILURE,
        "CANCELED": CANCELED,
    },
    "standard.run": {
        "PENDING": QUEUED,
        "RUNNING": ACTIVE,
        "WAITING": HELD,
        "PAUSED": HELD,
        "VALIDATING": ACTIVE,
        "RETRYING": HELD,
        "SUCCEEDED": SUCCESS,
        "FAILED": FAILURE,
        "CANCELED": CANCELED,
    },
    "supervised.worker": {
        "IDLE": QUEUED,
        "RUNNING": ACTIVE,
        "PAUSED": HELD,
        "COMPLETED": SUCCESS,
        "FAILED": FAILURE,
        "TERMINATED": CANCELED,
    },
    "orchestrated.worker": {
        "initializing": HELD,
        "idle": QUEUED,
        "busy": ACTIVE,
        "unresponsive": HELD,
        "shutdown": SUCCESS,
    },
    "standard.worker": {
        "INITIALIZING": HELD,
        "IDLE": QUEUED,
        "BUSY": ACTIVE,
        "PAUSED": HELD,
        "UNRESPONSIVE": HELD,
        "DRAINING": HELD,
        "SHUTDOWN": SUCCESS,
        "FAILED": FAILURE,
        "TERMINATED": CANCELED,
    },
    "pipeline.breaker": {"CLOSED": QUEUED, "OPEN": HELD, "HALF_OPEN": ACTIVE},
    "standard.breaker": {"CLOSED": QUEUED, "OPEN": HELD, "HALF_OPEN": ACTIVE},
}

SEVERITIES: tuple[tuple[str, Row, Severity], ...] = (
    ("orchestrated.task", ("running", "retrying", "execution_failed"), Severity.WARNING),
    ("orchestrated.task", ("running", "failed", "execution_failed"), Severity.ERROR),
    ("orchestrated.task", ("validating", "failed", "validation_failed"), Severity.ERROR),
    ("orchestrated.task", ("running", "queued", "worker_lost"), Severity.ERROR),
    ("orchestrated.task", ("queued", "running", "worker_started"), Severity.INFO),
    ("orchestrated.workstream", ("executing", "failed", "critical_task_failed"), Severity.CRITICAL),
    ("orchestrated.worker", ("busy", "unresponsive", "health_check_timeout"), Severity.ERROR),
)

# Each of these must be among the effects of the move; a machine may do more.
EFFECTS: tuple[tuple[str, Row, set[str]], ...] = (
    ("supervised.job", ("PENDING", "RUNNING", "allocate_resources"), {"allocate_workers"}),
    ("supervised.job", ("SUBMITTED", "CANCELED", "cancel"), {"release_workers"}),
    ("supervised.job", ("PENDING", "CANCELED", "cancel"), {"release_workers"}),
    ("supervised.job", ("RUNNING", "COMPLETED", "success"), {"release_workers", "store_output"}),
    ("supervised.job", ("RUNNING", "FAILED", "error"), {"release_workers", "record_error"}),
    ("supervised.job", ("RUNNING", "CANCELED", "cancel"), {"kill_processes", "release_workers"}),
    ("pipeline.step", ("S_FAILED", "S_RETRYING", "retry_eligible"), {"count_retry", "schedule_retry"}),
    ("pipeline.step", ("S_FAILED", "S_PENDING", "reset"), {"reset_retries"}),
    ("pipeline.workstream", ("S_FAILED", "S_RETRYING", "retry_eligible"), {"count_retry", "schedule_retry"}),
    ("orchestrated.task", ("running", "validating", "execution_completed"), {"run_checks"}),
    ("orchestrated.task", ("running", "retrying", "execution_failed"), {"count_retry", "schedule_retry"}),
    ("orchestrated.task", ("running", "failed", "execution_failed"), {"record_error"}),
    ("orchestrated.task", ("validating", "failed", "validation_failed"), {"record_error"}),
    ("orchestrated.workstream", ("planned", "ready", "all_tasks_created"), {"write_plan"}),
    ("orchestrated.workstream", ("executing", "validating", "all_tasks_completed"), {"run_checks"}),
    ("orchestrated.workstream", ("executing", "failed", "critical_task_failed"), {"cancel_tasks", "keep_worktree"}),
    ("orchestrated.workstream", ("validating", "failed", "validation_failed"), {"keep_worktree"}),
    ("orchestrated.worker", ("busy", "unresponsive", "health_check_timeout"), {"reassign_tasks"}),
    ("orchestrated.worker", ("initializing", "idle", "registration_complete"), {"start_health_checks"}),
    ("approval.step", ("RUNNING", "SUCCEEDED", "complete"), {"store_output"}),
    ("approval.step", ("RUNNING", "PENDING", "fail"), {"schedule_retry"}),
    ("agent.task", ("RUNNING", "BLOCKED", "ask"), {"store_question", "keep_session"}),
    ("agent.task", ("BLOCKED", "QUEUED", "answer"), {"clear_question", "keep_session"}),
    ("agent.task", ("TIMED_OUT", "QUEUED", "resume"), {"keep_session"}),
    ("agent.task", ("READY", "PENDING", "reject"), {"store_comment"}),
    ("standard.task", ("FAILED", "QUEUED", "resume"), {"keep_session"}),
    ("standard.task", ("TIMED_OUT", "QUEUED", "resume"), {"keep_session"}),
    ("standard.worker", ("BUSY", "TERMINATED", "terminate"), {"kill_processes"}),
)


def effects_of(name: str, row: Row) -> set[str]:
    return next(
        set(move.effects) for move in load_machine(name).transitions if (move.from_state, move.to_state, move.trigger) == row
    )


@each_row("name", TABLES)
def test_the_phase_of_each_state_is_what_the_words_demand(name: str) -> None:
    found = {state.name: state.outcome or state.phase for state in load_machine(name).states}
    assert found == PHASES[name]
    assert PHASES[name].keys() == set(TABLES[name].states)


@each_row("name", TABLES)
def test_only_a_done_state_has_an_outcome_and_only_a_done_state_is_terminal(name: str) -> None:
    for state in load_machine(name).states:
        assert (state.outcome is not None) == (state.phase == Phase.DONE)
        assert state.phase == Phase.DONE or not state.terminal


@each_row(("name", "row", "severity"), SEVERITIES)
def test_a_move_is_reported_as_loudly_as_the_document_says(name: str, row: Row, severity: Severity) -> None:
    moves = [move for move in load_machine(name).exits(row[0]) if (move.to_state, move.trigger) == row[1:]]
    assert [move.severity for move in moves] == [severity]


@each_row(("name", "row", "effects"), EFFECTS)
def test_a_move_does_what_its_document_says(name: str, row: Row, effects: set[str]) -> None:
    assert effects <= effects_of(name, row)


@pytest.mark.parametrize("name", [name for name in TABLES if load_machine(name).kind == Kind.TASK])
def test_an_attempt_that_runs_has_a_worker(name: str) -> None:
    """Invariant 3 of document 002, and what every lease relies on."""
    running = {"pipeline.step": "S_RUNNING", "orchestrated.task": "running"}.get(name, "RUNNING")
    assert "worker" in load_machine(name).state(running).needs


def test_only_running_tasks_of_document_002_have_a_worker() -> None:
    assert [state.name for state in load_machine("orchestrated.task").states if "worker" in state.needs] == ["running"]


def test_a_blocked_agent_has_a_session() -> None:
    assert load_machine("agent.task").state("BLOCKED").needs == ("session",)

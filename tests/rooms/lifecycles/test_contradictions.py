"""Where the documents contradict themselves, the machines follow the ruling: one test for each that they can show."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.rooms.lifecycles.tables import TABLES

from pointsman import load_machine
from pointsman.kernel.machine import Case, Outcome, Phase, Refusal, Severity
from pointsman.kernel.step import Snapshot, Step, step
from pointsman.lifecycles.guards import Facts

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
FRESH = Facts()


def pull(name: str, state: str, signal: str, facts: Facts = FRESH) -> Step | Refusal:
    return step(load_machine(name), Snapshot(state, NOW), signal, facts, NOW)


def ends_in(result: Step | Refusal) -> str:
    assert isinstance(result, Step), result.message
    return result.snapshot.state


def test_000_force_terminate_is_legal_from_every_state_but_terminated() -> None:
    worker = load_machine("supervised.worker")
    assert {state.name for state in worker.states if worker.may(state.name, "TERMINATED")} == (
        {"IDLE", "RUNNING", "PAUSED", "COMPLETED", "FAILED"}
    )


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_000_a_worker_that_ended_stays_terminal_but_for_force(state: str) -> None:
    worker = load_machine("supervised.worker")
    assert worker.is_terminal(state)
    assert worker.allowed(state) == ("TERMINATED",)


def test_000_a_submitted_job_can_be_canceled() -> None:
    assert ends_in(pull("supervised.job", "SUBMITTED", "cancel")) == "CANCELED"


def test_000_an_invalid_job_has_no_way_to_failed_for_it_is_never_stored() -> None:
    job = load_machine("supervised.job")
    assert not job.may("SUBMITTED", "FAILED")
    assert not job.may("PENDING", "FAILED")


def test_000_an_error_that_cannot_be_retried_fails_a_running_job_at_once() -> None:
    result = pull("supervised.job", "RUNNING", "fail", Facts(retryable=False, retries_left=True))
    assert ends_in(result) == "FAILED"
    assert isinstance(result, Step)
    assert len(result.taken) == 1


def test_000_the_twin_of_a_request_has_no_second_effect() -> None:
    first = pull("supervised.worker", "RUNNING", "pause")
    twin = pull("supervised.worker", ends_in(first), "pause")
    assert isinstance(twin, Refusal)
    assert twin.case == Case.ALREADY_THERE


def test_001_the_states_are_counted_from_the_tables() -> None:
    names = ("pipeline.workstream", "pipeline.step", "pipeline.breaker")
    assert sum(len(load_machine(name).states) for name in names) == 14


def test_001_a_failed_step_is_done_but_not_terminal() -> None:
    failed = load_machine("pipeline.step").state("S_FAILED")
    assert (failed.phase, failed.outcome) == (Phase.DONE, Outcome.FAILURE)
    assert not failed.terminal
    assert not failed.sealed


def test_001_a_failed_step_leaves_only_by_the_operators_reset_or_skip() -> None:
    exhausted = Facts(retries_left=False)
    assert ends_in(pull("pipeline.step", "S_RUNNING", "fail", exhausted)) == "S_FAILED"
    for trigger in TABLES["pipeline.step"].triggers:
        if trigger not in ("reset", "skip"):
            assert isinstance(pull("pipeline.step", "S_FAILED", trigger, exhausted), Refusal)
    assert ends_in(pull("pipeline.step", "S_FAILED", "reset", exhausted)) == "S_PENDING"
    assert ends_in(pull("pipeline.step", "S_FAILED", "skip", exhausted)) == "S_SUCCESS"


@pytest.mark.parametrize("state", ["pending", "queued", "running", "retrying"])
def test_002_the_remaining_tasks_of_a_workstream_can_be_cancelled(state: str) -> None:
    result = pull("orchestrated.task", state, "cancel")
    assert ends_in(result) == "cancelled"
    assert isinstance(result, Step)
    assert result.taken[0].trigger == "user_cancelled"


def test_002_any_failed_critical_task_fails_the_workstream() -> None:
    assert ends_in(pull("orchestrated.workstream", "executing", "fail", Facts(critical_failure=True))) == "failed"


def test_002_a_failed_task_that_is_not_critical_does_not_fail_the_workstream() -> None:
    assert isinstance(pull("orchestrated.workstream", "executing", "fail", Facts(critical_failure=False)), Refusal)


def test_002_the_task_of_an_unresponsive_worker_is_queued_again_and_reported_as_an_error() -> None:
    result = pull("orchestrated.task", "running", "lease_lost")
    assert ends_in(result) == "queued"
    assert isinstance(result, Step)
    assert (result.taken[0].trigger, result.taken[0].severity) == ("worker_lost", Severity.ERROR)


@pytest.mark.parametrize("name", ["approval.run", "approval.step"])
def test_003_nothing_leads_from_failed_to_succeeded(name: str) -> None:
    machine = load_machine(name)
    assert not machine.may("FAILED", "SUCCEEDED")
    assert machine.reachable("FAILED") == {"FAILED"}


def test_003_a_run_waits_when_nothing_but_a_gate_is_left_to_run() -> None:
    assert ends_in(pull("approval.run", "RUNNING", "wait")) == "WAITING_APPROVAL"
    assert load_machine("approval.run").state("WAITING_APPROVAL").phase == Phase.HELD
    assert ends_in(pull("approval.run", "WAITING_APPROVAL", "proceed")) == "RUNNING"


def test_003_approving_twice_changes_nothing() -> None:
    approved = pull("approval.step", "WAITING_APPROVAL", "approve")
    again = pull("approval.step", ends_in(approved), "approve")
    assert isinstance(again, Refusal)
    assert again.case == Case.ALREADY_THERE


def test_004_attempts_are_limited_when_a_limit_is_set() -> None:
    refused = pull("agent.task", "FAILED", "retry", Facts(attempts_left=False))
    assert isinstance(refused, Refusal)
    assert refused.unmet == ("attempts_left",)
    assert ends_in(pull("agent.task", "FAILED", "retry", Facts(attempts_left=True))) == "QUEUED"


def test_004_a_cancel_waits_for_the_process_so_that_a_completion_may_win() -> None:
    assert isinstance(pull("agent.task", "RUNNING", "cancel", Facts(process_ended=False)), Refusal)
    completed = ends_in(pull("agent.task", "RUNNING", "complete", Facts(top_level=False)))
    late = pull("agent.task", completed, "cancel")
    assert isinstance(late, Refusal)
    assert (completed, late.case) == ("COMPLETED", Case.TERMINAL)

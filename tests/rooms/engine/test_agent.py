"""Document 004 from end to end: agents that ask, are reviewed, time out, overspend, split their work and are called off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, pass_time, path_of, register, state_of, submit, task_of
from tests.rooms.engine.test_standard import (
    LEASE,
    case_of,
    claim_and_complete,
    claim_and_fail,
    claim_nothing,
    complete_all,
    message_of,
    proved_engine,
    read_stream,
    states_of,
    usd,
)

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask
from pointsman.errors import LeaseLost, TransitionRefused
from pointsman.kernel.machine import Case
from pointsman.store.rows import Run, Task, Worker


async def submit_agents(engine: Engine, *tasks: NewTask, **options: Any) -> Run:
    return await submit(engine, *(tasks or (NewTask(name="x"),)), lifecycle="agent", **options)


async def create_alone(engine: Engine, **options: Any) -> tuple[Run, Task]:
    """A task of its own, which waits for somebody to run it."""
    run = await submit_agents(engine, NewTask(name="x", **options), autostart=False)
    return run, await task_of(engine, run, "x")


async def bring_to(engine: Engine, clock: ManualClock, worker: Worker, state: str) -> tuple[Run, Task]:
    """A task in that state, with a session."""
    run, task = await create_alone(engine, timeout_seconds=60, budget_usd=usd(5))
    if state not in ("PENDING", "CANCELLED"):
        await engine.signal_task(task.id, "run")
    if state not in ("PENDING", "QUEUED", "CANCELLED"):
        claim = await claim_one(engine, worker)
        await engine.report_attempt(task.id, claim.epoch, report=AttemptReport(session_id="s-1"))
        match state:
            case "READY" | "COMPLETED":
                await engine.complete_task(task.id, claim.epoch, AttemptReport(exit_code=0))
            case "FAILED":
                await engine.fail_task(task.id, claim.epoch, AttemptReport(error="is_error: true", exit_code=1))
            case "TIMED_OUT":
                await pass_time(engine, clock, 60)
            case "BUDGET_EXCEEDED":
                await engine.report_attempt(task.id, claim.epoch, "overspend")
            case "BLOCKED":
                await engine.report_attempt(task.id, claim.epoch, "ask", AttemptReport(question="which one?"))
    if state in ("COMPLETED", "CANCELLED"):
        await engine.signal_task(task.id, {"COMPLETED": "accept", "CANCELLED": "cancel"}[state])
    task = await engine.get_task(task.id)
    assert task.state == state
    return run, task


# starting


async def test_a_task_created_alone_waits_until_somebody_runs_it(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await create_alone(engine)
        assert task.state == "PENDING"
        await claim_nothing(engine, worker)
        assert await state_of(engine, run) == "WAITING"
        assert (await engine.for_tenant(actor="ada").signal_task(task.id, "run")).state == "QUEUED"
        assert await state_of(engine, run) == "RUNNING"
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output="a patch"))
        assert await state_of(engine, run, "x") == "READY"
        await engine.signal_task(task.id, "accept")
        assert await path_of(engine, task.id) == ["PENDING", "QUEUED", "RUNNING", "READY", "COMPLETED"]
        assert await state_of(engine, run) == "SUCCEEDED"
        history = await engine.list_history(task.id)
        assert [event.trigger for event in history] == ["create", "run", "claim", "exit_ok", "accept"]


async def test_a_task_of_a_flow_starts_by_itself(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine)
        assert await state_of(engine, run, "x") == "QUEUED"
        assert (await claim_and_complete(engine, worker)).epoch == 1
        assert await state_of(engine, run, "x") == "READY"
        assert await state_of(engine, run) == "WAITING"


# reviews


async def test_a_rejected_task_created_alone_waits_to_be_run_again_with_the_comment(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, clock, worker, "READY")
        rejected = await engine.signal_task(task.id, "reject", comment="too long")
        assert (rejected.state, rejected.comment) == ("PENDING", "too long")
        await claim_nothing(engine, worker)
        await engine.signal_task(task.id, "run")
        claim = await claim_and_complete(engine, worker)
        assert (claim.comment, claim.epoch) == ("too long", 2)
        await engine.signal_task(task.id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_rejected_task_of_a_flow_goes_on_by_itself(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine)
        first = await claim_and_complete(engine, worker)
        await engine.signal_task(first.task_id, "reject")
        assert await path_of(engine, first.task_id) == ["PENDING", "QUEUED", "RUNNING", "READY", "PENDING", "QUEUED"]
        assert (await claim_and_complete(engine, worker)).comment is None
        await engine.signal_task(first.task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_review_uses_up_no_attempt(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine, NewTask(name="x", max_attempts=1))
        claim = await claim_and_complete(engine, worker)
        await engine.signal_task(claim.task_id, "reject", comment="again")
        await claim_and_complete(engine, worker)
        await engine.signal_task(claim.task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


# questions


async def test_an_answer_resumes_the_same_session_in_a_new_execution(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await create_alone(engine)
        await engine.signal_task(task.id, "run")
        first = await claim_one(engine, worker)
        await engine.report_attempt(
            task.id, first.epoch, report=AttemptReport(session_id="s-1", cost_usd=usd("0.10"), log_path="/logs/1")
        )
        clock.advance(5)
        asking = await engine.report_attempt(
            task.id, first.epoch, "ask", AttemptReport(question="tabs or spaces?", cost_usd=usd("0.20"))
        )
        assert (asking.state, asking.question, asking.session_id) == ("BLOCKED", "tabs or spaces?", "s-1")
        assert await state_of(engine, run) == "WAITING"
        answered = await engine.signal_task(task.id, "answer", answer="spaces")
        assert (answered.state, answered.question, answered.answer) == ("QUEUED", None, "spaces")
        *_, waiting = await engine.list_attempts(task.id)
        assert (waiting.epoch, waiting.session_id) == (2, "s-1"), "its record exists before a worker takes it"
        assert (waiting.worker_id, waiting.started_at, waiting.ended_at) == (None, None, None)
        second = await claim_one(engine, worker)
        assert (second.session_id, second.answer, second.epoch) == ("s-1", "spaces", 2)
        clock.advance(5)
        await engine.complete_task(task.id, second.epoch, AttemptReport(cost_usd=usd("0.30"), exit_code=0, log_path="/logs/2"))
        one, two = await engine.list_attempts(task.id)
        assert (one.session_id, one.cost_usd, one.log_path, one.ended_by) == ("s-1", usd("0.30"), "/logs/1", "ask")
        assert (two.session_id, two.cost_usd, two.log_path, two.ended_by) == ("s-1", usd("0.30"), "/logs/2", "exit_ok")
        assert (one.resumed, two.resumed, two.exit_code) == (False, True, 0)
        assert one.started_at
        assert one.ended_at == one.started_at + timedelta(seconds=5) == two.started_at
        assert (await engine.get_task(task.id)).cost_usd == usd("0.60")


async def test_a_question_without_a_session_is_refused_and_changes_nothing(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine)
        claim = await claim_one(engine, worker)
        before = await engine.get_task(claim.task_id)
        with pytest.raises(TransitionRefused, match="has_session"):
            await engine.report_attempt(claim.task_id, claim.epoch, "ask", AttemptReport(question="which one?"))
        assert await engine.get_task(claim.task_id) == before
        assert (
            await engine.report_attempt(
                claim.task_id, claim.epoch, "ask", AttemptReport(question="which one?", session_id="s-1")
            )
        ).state == "BLOCKED"
        assert await state_of(engine, run) == "WAITING"


async def test_a_question_uses_up_no_attempt(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine, NewTask(name="x", max_attempts=1))
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, "ask", AttemptReport(question="which one?", session_id="s-1"))
        await engine.signal_task(claim.task_id, "answer", answer="that one")
        assert (await claim_and_complete(engine, worker)).epoch == 2
        assert await state_of(engine, run, "x") == "READY"


# timeouts, failures, money


async def test_a_timed_out_task_is_resumed_in_the_same_session(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run, task = await bring_to(engine, clock, worker, "TIMED_OUT")
        assert await state_of(engine, run) == "FAILED"
        assert (await engine.list_attempts(task.id))[0].ended_by == "deadline"
        with pytest.raises(LeaseLost):
            await engine.complete_task(task.id, 1)
        with pytest.raises(TransitionRefused):
            await engine.signal_task(task.id, "run")
        assert (await engine.signal_task(task.id, "resume")).state == "QUEUED"
        assert await state_of(engine, run) == "RUNNING"
        claim = await claim_one(engine, worker)
        assert (claim.session_id, claim.epoch) == ("s-1", 2)
        assert claim.deadline_at == clock.now() + timedelta(seconds=60)
        await engine.complete_task(task.id, 2)
        assert (await engine.list_attempts(task.id))[1].resumed


async def test_a_timed_out_task_without_a_session_cannot_be_resumed(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit_agents(engine, NewTask(name="x", timeout_seconds=60))
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 60)
        with pytest.raises(TransitionRefused, match="has_session"):
            await engine.signal_task(claim.task_id, "resume")
        assert await state_of(engine, run, "x") == "TIMED_OUT"
        assert await state_of(engine, run) == "FAILED"


async def test_a_resume_uses_up_no_attempt(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit_agents(engine, NewTask(name="x", timeout_seconds=60, max_attempts=1))
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(session_id="s-1"))
        await pass_time(engine, clock, 60)
        await engine.signal_task(claim.task_id, "resume")
        assert (await claim_and_complete(engine, worker)).epoch == 2
        assert await state_of(engine, run, "x") == "READY"


async def test_a_failed_task_is_run_again_as_often_as_people_want(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await create_alone(engine, max_retries=3)
        for number in range(1, 7):
            assert (await engine.signal_task(task.id, "run")).state == "QUEUED"
            claim = await claim_and_fail(engine, worker, f"exit {number}", exit_code=number, session_id=f"s-{number}")
            assert (claim.epoch, claim.session_id) == (number, None)
            failed = await engine.get_task(task.id)
            assert (failed.state, message_of(failed)) == ("FAILED", f"exit {number}"), "nothing is retried by itself"
            assert await state_of(engine, run) == "FAILED"
        attempts = await engine.list_attempts(task.id)
        assert [attempt.exit_code for attempt in attempts] == [1, 2, 3, 4, 5, 6]
        assert [attempt.session_id for attempt in attempts] == [f"s-{number}" for number in range(1, 7)]


async def test_a_limit_on_attempts_holds_where_it_is_set(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await create_alone(engine, max_attempts=2)
        for _ in range(2):
            await engine.signal_task(task.id, "run")
            await claim_and_fail(engine, worker)
        events = await read_stream(engine)
        with pytest.raises(TransitionRefused, match="attempts_left"):
            await engine.signal_task(task.id, "run")
        assert await read_stream(engine) == events, "the run stays as it is, too"
        assert await state_of(engine, run) == "FAILED"


async def test_a_budget_that_is_spent_ends_the_task_for_good(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await create_alone(engine, budget_usd=usd(1))
        await engine.signal_task(task.id, "run")
        claim = await claim_one(engine, worker)
        assert claim.budget_usd == usd(1)
        stopped = await engine.report_attempt(
            task.id, claim.epoch, report=AttemptReport(cost_usd=usd("1.50"), session_id="s-1")
        )
        assert (stopped.state, stopped.cost_usd) == ("BUDGET_EXCEEDED", usd("1.50"))
        (attempt,) = await engine.list_attempts(task.id)
        assert (attempt.ended_by, attempt.cost_usd, attempt.session_id) == ("overspend", usd("1.50"), "s-1")
        assert await state_of(engine, run) == "FAILED"
        for signal in ("run", "resume", "retry", "cancel", "accept"):
            with pytest.raises(TransitionRefused) as refused:
                await engine.signal_task(task.id, signal)
            assert case_of(refused) is Case.TERMINAL
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "WAITING", "RUNNING", "FAILED"]


async def test_an_agent_whose_worker_dies_has_failed(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        run = await submit_agents(engine)
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, LEASE + 1)
        assert await state_of(engine, run, "x") == "FAILED"
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        await engine.send_heartbeat(worker.id)
        await engine.signal_task(claim.task_id, "run")
        assert (await claim_and_complete(engine, worker)).epoch == 2


# cancelling


@pytest.mark.parametrize("state", ["PENDING", "QUEUED"])
async def test_what_does_not_run_is_cancelled_at_once(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, clock, worker, state)
        assert (await engine.signal_task(task.id, "cancel")).state == "CANCELLED"
        assert await state_of(engine, run) == "FAILED"
        await claim_nothing(engine, worker)


@pytest.mark.parametrize("state", ["READY", "BLOCKED", "COMPLETED", "FAILED", "TIMED_OUT", "BUDGET_EXCEEDED", "CANCELLED"])
async def test_nothing_else_is_cancelled(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        _, task = await bring_to(engine, clock, worker, state)
        events = await read_stream(engine)
        with pytest.raises(TransitionRefused):
            await engine.signal_task(task.id, "cancel")
        assert await engine.get_task(task.id) == task
        assert await read_stream(engine) == events


async def request_cancel(engine: Engine, clock: ManualClock, worker: Worker) -> Claim:
    """A running task that somebody has called off; its process has not ended yet."""
    await submit_agents(engine)
    claim = await claim_one(engine, worker)
    clock.advance(1)
    asked = await engine.for_tenant(actor="ada").signal_task(claim.task_id, "cancel")
    assert (asked.state, asked.cancel_requested_at) == ("RUNNING", clock.now())
    return claim


async def test_a_running_task_is_cancelled_when_its_process_has_ended(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        claim = await request_cancel(engine, clock, worker)
        attempt = (claim.task_id, claim.epoch)
        beat = await engine.send_heartbeat(worker.id, [attempt])
        assert (beat.cancelled, beat.lost) == ((attempt,), ())
        assert (await engine.signal_task(claim.task_id, "cancel")).state == "RUNNING", "asking twice changes nothing"
        ended = await engine.report_attempt(*attempt, "cancel")
        assert (ended.state, ended.outcome, ended.worker_id) == ("CANCELLED", "canceled", None)
        assert (await engine.send_heartbeat(worker.id, [attempt])).lost == (attempt,)
        assert (await engine.list_attempts(claim.task_id))[0].ended_by == "cancel"
        assert (await engine.get_run(claim.run_id)).state == "FAILED"
        assert (await engine.get_worker(worker.id)).state == "IDLE"


@pytest.mark.parametrize(("how", "expected"), [("complete", "READY"), ("fail", "FAILED"), ("ask", "BLOCKED")])
async def test_what_really_happened_to_the_process_wins_over_a_cancel(
    database_url: str, clock: ManualClock, how: str, expected: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        claim = await request_cancel(engine, clock, worker)
        reports: dict[str, Awaitable[Task]] = {
            "complete": engine.complete_task(claim.task_id, claim.epoch),
            "fail": engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="exit 1")),
            "ask": engine.report_attempt(
                claim.task_id, claim.epoch, "ask", AttemptReport(question="really?", session_id="s-1")
            ),
        }
        assert (await reports.pop(how)).state == expected
        for late in reports.values():
            with pytest.raises(LeaseLost):
                await late
        with pytest.raises(LeaseLost):
            await engine.report_attempt(claim.task_id, claim.epoch, "cancel")
        assert (await engine.get_task(claim.task_id)).state == expected


@pytest.mark.parametrize("how", ["complete", "ask"])
async def test_a_canceled_run_keeps_no_task_for_a_person(database_url: str, clock: ManualClock, how: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        await submit_agents(engine)
        claim = await claim_one(engine, worker)
        assert (await engine.signal_run(claim.run_id, "cancel")).state == "CANCELED"
        report = AttemptReport(question="really?", session_id="s-1") if how == "ask" else AttemptReport()
        ended = await engine.report_attempt(claim.task_id, claim.epoch, how, report)
        assert (ended.state, ended.reason) == ("CANCELLED", "the run is CANCELED")


async def test_a_cancel_of_the_last_attempt_does_not_touch_the_next_one(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        first = await request_cancel(engine, clock, worker)
        await engine.fail_task(first.task_id, first.epoch, AttemptReport(error="exit 1"))
        await engine.signal_task(first.task_id, "run")
        second = await claim_one(engine, worker)
        beat = await engine.send_heartbeat(worker.id, [(second.task_id, second.epoch)])
        assert (beat.cancelled, beat.lost) == ((), ())


async def test_a_task_that_is_called_off_and_loses_its_worker_is_cancelled(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        claim = await request_cancel(engine, clock, worker)
        await pass_time(engine, clock, LEASE + 1)
        assert (await engine.get_task(claim.task_id)).state == "CANCELLED"


async def test_a_cancelled_run_waits_for_the_processes_of_its_tasks(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine, NewTask(name="runs"), NewTask(name="waits"))
        claim = await claim_one(engine, worker)
        assert (await engine.signal_run(run.id, "cancel")).state == "CANCELED"
        assert await states_of(engine, run) == {"runs": "RUNNING", "waits": "CANCELLED"}
        beat = await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])
        assert beat.cancelled == ((claim.task_id, claim.epoch),)
        await engine.report_attempt(claim.task_id, claim.epoch, "cancel")
        assert await states_of(engine, run) == {"runs": "CANCELLED", "waits": "CANCELLED"}


# subtasks


async def test_a_parent_is_blocked_until_its_subtasks_are_completed_and_then_ready(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=3)
        run = await submit_agents(engine)
        parent = await claim_one(engine, worker)
        await engine.add_tasks(run.id, [NewTask(name="one", parent="x"), NewTask(name="two", parent="x")])
        await engine.complete_task(parent.task_id, parent.epoch, AttemptReport(session_id="s-1"))
        assert await states_of(engine, run) == {"x": "BLOCKED", "one": "QUEUED", "two": "QUEUED"}
        assert await state_of(engine, run) == "RUNNING"
        await claim_and_complete(engine, worker)
        assert await states_of(engine, run) == {"x": "BLOCKED", "one": "COMPLETED", "two": "QUEUED"}
        await claim_and_complete(engine, worker)
        assert await states_of(engine, run) == {"x": "READY", "one": "COMPLETED", "two": "COMPLETED"}
        assert await state_of(engine, run) == "WAITING"
        await engine.signal_task(parent.task_id, "accept")
        assert await path_of(engine, parent.task_id) == ["PENDING", "QUEUED", "RUNNING", "BLOCKED", "READY", "COMPLETED"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_parent_without_a_session_cannot_wait_for_its_subtasks(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit_agents(engine, NewTask(name="x"), NewTask(name="one", parent="x", priority=-1))
        parent = await claim_one(engine, worker)
        with pytest.raises(TransitionRefused, match="session"):
            await engine.complete_task(parent.task_id, parent.epoch)
        assert await state_of(engine, run, "x") == "RUNNING"
        await engine.complete_task(parent.task_id, parent.epoch, AttemptReport(session_id="s-1"))
        assert await state_of(engine, run, "x") == "BLOCKED"


async def test_a_parent_whose_subtasks_are_done_first_is_ready_at_once(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit_agents(engine, NewTask(name="x"), NewTask(name="one", parent="x", priority=-1))
        parent, child = await engine.claim_tasks(worker.id, 2)
        await engine.complete_task(child.task_id, child.epoch)
        await engine.complete_task(parent.task_id, parent.epoch)
        assert await states_of(engine, run) == {"x": "READY", "one": "COMPLETED"}


async def test_the_last_subtask_and_its_parent_may_end_in_the_same_moment(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit_agents(engine, NewTask(name="x"), NewTask(name="one", parent="x", priority=-1))
        parent, child = await engine.claim_tasks(worker.id, 2)
        await asyncio.gather(
            engine.send_heartbeat(worker.id, [(parent.task_id, 1), (child.task_id, 1)]),
            engine.complete_task(parent.task_id, parent.epoch, AttemptReport(session_id="s-1")),
            engine.complete_task(child.task_id, child.epoch),
        )
        assert await states_of(engine, run) == {"x": "READY", "one": "COMPLETED"}


async def test_a_subtask_that_failed_is_run_again_and_its_parent_waits_that_long(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit_agents(engine, NewTask(name="x"), NewTask(name="one", parent="x", priority=-1))
        parent, child = await engine.claim_tasks(worker.id, 2)
        await engine.complete_task(parent.task_id, parent.epoch, AttemptReport(session_id="s-1"))
        await engine.fail_task(child.task_id, child.epoch, AttemptReport(error="exit 1"))
        assert await states_of(engine, run) == {"x": "BLOCKED", "one": "FAILED"}
        assert await state_of(engine, run) == "FAILED"
        await engine.signal_task(child.task_id, "run")
        await claim_and_complete(engine, worker)
        assert await states_of(engine, run) == {"x": "READY", "one": "COMPLETED"}
        await engine.signal_task(parent.task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_subtasks_of_subtasks_are_completed_without_a_reviewer(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(
            engine,
            NewTask(name="x", priority=9),
            NewTask(name="one", parent="x", priority=8),
            NewTask(name="deeper", parent="one"),
        )
        await claim_and_complete(engine, worker, session_id="s-1")
        assert await complete_all(engine, worker) == ["one", "deeper"]
        assert await states_of(engine, run) == {"x": "READY", "one": "COMPLETED", "deeper": "COMPLETED"}


# dependencies


async def test_who_depends_on_another_waits_in_the_queue_until_that_is_completed(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=3)
        run = await submit_agents(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        assert await states_of(engine, run) == {"a": "QUEUED", "b": "QUEUED"}
        (a,) = await engine.claim_tasks(worker.id, 3)
        assert a.name == "a"
        await engine.complete_task(a.task_id, a.epoch)
        await claim_nothing(engine, worker)
        assert await states_of(engine, run) == {"a": "READY", "b": "QUEUED"}
        assert await state_of(engine, run) == "WAITING", "READY is not COMPLETED: a person has to accept it first"
        await engine.signal_task(a.task_id, "accept")
        assert await state_of(engine, run) == "RUNNING"
        b = await claim_and_complete(engine, worker)
        await engine.signal_task(b.task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


@pytest.mark.parametrize("how", ["fail", "expire", "overspend", "cancel"])
async def test_a_failed_dependency_fails_whoever_waits_for_it_and_whoever_waits_for_them(
    database_url: str, clock: ManualClock, how: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(
            engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)), NewTask(name="c", depends_on=("b",))
        )
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, how, AttemptReport(error="it broke"))
        ended = {"fail": "FAILED", "expire": "TIMED_OUT", "overspend": "BUDGET_EXCEEDED", "cancel": "CANCELLED"}[how]
        assert await states_of(engine, run) == {"a": ended, "b": "FAILED", "c": "FAILED"}
        for name in ("b", "c"):
            task = await task_of(engine, run, name)
            assert await path_of(engine, task.id) == ["PENDING", "QUEUED", "FAILED"]
            assert (task.trigger, task.epoch, message_of(task)) == (
                "dependency_failed",
                0,
                "a dependency failed",
            )
        assert await state_of(engine, run) == "FAILED"


async def test_a_dependency_that_is_run_again_can_be_claimed_and_its_dependents_after_it(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        a = await claim_and_fail(engine, worker)
        await engine.signal_task(a.task_id, "run")
        assert (await claim_and_complete(engine, worker)).name == "a", "what is run again can be claimed"
        await engine.signal_task(a.task_id, "accept")
        b = await claim_and_complete(engine, worker)
        assert b.name == "b"
        await engine.signal_task(b.task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_another_try_of_the_run_tries_the_dependents_as_well(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine, NewTask(name="b", depends_on=("a",)), NewTask(name="a"))
        await claim_and_fail(engine, worker)
        await engine.signal_run(run.id, "retry")
        assert await states_of(engine, run) == {"a": "QUEUED", "b": "QUEUED"}
        for _ in range(2):
            claim = await claim_and_complete(engine, worker)
            await engine.signal_task(claim.task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_who_is_run_behind_a_dependency_that_has_failed_fails_and_does_not_wait_for_ever(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_agents(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        await claim_and_fail(engine, worker)
        b = await task_of(engine, run, "b")
        assert b.state == "FAILED"
        await engine.signal_task(b.id, "run")
        assert await path_of(engine, b.id) == ["PENDING", "QUEUED", "FAILED", "QUEUED", "FAILED"]
        assert await state_of(engine, run) == "FAILED"


# the table as a whole


async def test_whoever_watches_sees_each_move_once_and_in_order(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        start = await engine.last_position()
        run, task = await bring_to(engine, clock, worker, "BLOCKED")
        await engine.signal_task(task.id, "answer", answer="that one")
        claim = await claim_and_complete(engine, worker, output={"done": True})
        await engine.signal_task(claim.task_id, "accept")
        seen = []
        async for event in engine.watch(after=start, run_id=run.id):
            seen.append(event)
            if event.kind == "run" and event.to_state == "SUCCEEDED":
                break
        assert [event.to_state for event in seen if event.entity_id == task.id] == [
            *["PENDING", "QUEUED", "RUNNING", "BLOCKED", "QUEUED", "RUNNING", "READY", "COMPLETED"]
        ]
        assert [event.to_state for event in seen if event.kind == "run"] == [
            *["PENDING", "RUNNING", "WAITING", "RUNNING", "WAITING", "RUNNING", "WAITING", "SUCCEEDED"]
        ]
        assert len({event.position for event in seen}) == len(seen)
        assert msgspec.json.decode(str((await engine.get_task(task.id)).output)) == {"done": True}


async def test_a_canceled_run_leaves_nothing_that_waits_for_a_person(database_url: str, clock: ManualClock) -> None:
    """Document 004 lets nobody cancel a task that waits for a person, so it goes back first."""
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit_agents(engine, NewTask(name="asks"), NewTask(name="ready"))
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 2)}
        question = AttemptReport(question="which one?", session_id="s")
        await engine.report_attempt(claims["asks"].task_id, 1, "ask", question)
        await engine.complete_task(claims["ready"].task_id, 1)
        assert {task.state for task in await engine.list_tasks(run.id)} == {"BLOCKED", "READY"}
        await engine.signal_run(run.id, "cancel", reason="enough")
        assert {task.state for task in await engine.list_tasks(run.id)} == {"CANCELLED"}
        for name, signal in (("asks", "answer"), ("ready", "accept"), ("ready", "reject")):
            with pytest.raises(TransitionRefused):
                await engine.signal_task(claims[name].task_id, signal, answer="this one")

"""Document 002, end to end: tasks, workstreams and workers, every row of their tables, and the invariants between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.rooms.engine import test_supervised
from tests.rooms.engine.harness import (
    ManualClock,
    claim_one,
    open_engine,
    pass_time,
    path_of,
    register,
    state_of,
    submit,
    task_of,
)
from tests.rooms.engine.test_supervised import STEADY, last_move, moves_of

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import LeaseLost, RequestInvalid, TransitionRefused, WorkerUnavailable
from pointsman.events.validate import Validator
from pointsman.kernel.machine import Kind
from pointsman.lifecycles import load_lifecycle
from pointsman.store.rows import Run, Task, Worker

EVENT_TYPES = {
    "run": "workstream_state_transition",
    "task": "task_state_transition",
    "worker": "worker_state_transition",
}


async def submit_stream(engine: Engine, *tasks: NewTask, **options: Any) -> Run:
    """Its final validation is reported by the test."""
    return await submit(engine, *tasks, lifecycle="orchestrated", **{"checks": True, **options})


async def join(engine: Engine, **options: Any) -> Worker:
    return await register(engine, **{"lifecycle": "orchestrated", "lease_seconds": 30, **options})


async def pass_checks(engine: Engine, claim: Claim) -> None:
    await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(exit_code=0))
    await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")


async def do_one(engine: Engine, worker: Worker) -> Claim:
    claim = await claim_one(engine, worker)
    await pass_checks(engine, claim)
    return claim


async def fail_one(engine: Engine, worker: Worker, error: str = "exit code 1") -> Claim:
    claim = await claim_one(engine, worker)
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error=error))
    return claim


def error_of(entity: Run | Task) -> str:
    assert entity.error is not None
    message: str = msgspec.json.decode(entity.error)["message"]
    return message


def derive_state(tasks: Sequence[Task]) -> str:
    """The document's derivation; what has begun before does not count as ready when it is queued again."""
    states = {task.state for task in tasks}
    if "running" in states:
        return "executing"
    if states == {"completed"}:
        return "validating"
    if any(task.state == "failed" and task.critical for task in tasks):
        return "failed"
    if states <= {"pending", "queued"} and not any(task.started_at for task in tasks):
        return "ready"
    return "executing"


async def assert_promises_kept(engine: Engine) -> None:
    """What every lifecycle promises, and the fourteen invariants of this one, in the rows and in the log."""
    await test_supervised.assert_promises_kept(engine)
    for run in await engine.list_runs():
        await _assert_workstream_agrees(engine, run)
    tasks = [task for run in await engine.list_runs() for task in await engine.list_tasks(run.id)]
    attempts = [attempt for task in tasks for attempt in await engine.list_attempts(task.id) if attempt.ended_at is None]
    for worker in await engine.list_workers():
        held = [attempt for attempt in attempts if attempt.worker_id == worker.id]
        assert len(held) <= worker.max_concurrent_tasks
        assert (worker.state == "busy") == bool(held)
    await _assert_log_is_valid(engine)


async def _assert_workstream_agrees(engine: Engine, run: Run) -> None:
    tasks = await engine.list_tasks(run.id)
    by_id = {task.id: task for task in tasks}
    for task in tasks:
        assert (task.worker_id is not None) == (task.state == "running")
        assert task.attempt_worker_id or task.state != "validating", "whose attempt it is"
    for link in await engine.list_dependencies(run.id):
        if by_id[link.task_id].state not in ("pending", "cancelled"):
            assert by_id[link.depends_on_id].state == "completed"
    derived = derive_state(tasks) if tasks else None
    match run.state:
        case "planned":
            assert run.missing_tasks
        case "completed":
            assert derived == "validating"
        case "failed":
            assert derived in ("failed", "validating")
        case "cancelled":
            assert not any(task.state in ("pending", "queued", "running", "retrying") for task in tasks)
        case state:
            assert state == derived


async def _assert_log_is_valid(engine: Engine) -> None:
    """The same judge that a user has for the log of another system."""
    validator = Validator(load_lifecycle("orchestrated"), "the audit trail")
    for move in await engine.list_transitions(limit=10_000):
        event = {
            "timestamp": move.at,
            "event_type": EVENT_TYPES[move.kind],
            "severity": move.severity,
            "entity_id": move.entity_id,
            "from_state": move.from_state,
            "to_state": move.to_state,
            "trigger": move.trigger,
            "metadata": msgspec.json.decode(move.metadata or "{}"),
        }
        assert list(validator.check_line(msgspec.json.encode(event) + b"\n")) == []
    validator.close()


# Tasks and workstreams


async def test_a_workstream_carries_its_tasks_through_to_completion(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, slots=2)
        run = await submit_stream(
            engine,
            NewTask(name="merge", depends_on=("api", "ui"), checks=True),
            NewTask(name="api", depends_on=("schema",), checks=True),
            NewTask(name="ui", depends_on=("schema",), checks=True),
            NewTask(name="schema", checks=True),
            checks=True,
        )
        assert run.state == "ready"
        assert [task.state for task in await engine.list_tasks(run.id)] == ["pending", "pending", "pending", "queued"]
        await assert_promises_kept(engine)
        clock.advance(1)
        waves = []
        while claims := await engine.claim_tasks(worker.id, 5):
            waves.append(sorted(claim.name for claim in claims))
            await assert_promises_kept(engine)
            for claim in claims:
                clock.advance(1)
                await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output=claim.name, exit_code=0))
                assert (await engine.get_task(claim.task_id)).state == "validating"
                await assert_promises_kept(engine)
                await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
                await assert_promises_kept(engine)
        assert waves == [["schema"], ["api", "ui"], ["merge"]]
        validating = await engine.get_run(run.id)
        assert (validating.state, validating.completed_at) == ("validating", None)
        clock.advance(1)
        done = await engine.for_tenant(actor="ci").signal_run(run.id, "checks_passed", reason="merged")
        assert (done.state, done.outcome, done.completed_at) == ("completed", "success", clock.now())
        assert done.started_at == validating.started_at
        assert await moves_of(engine, run.id) == [
            "planned -> ready : all_tasks_created",
            "ready -> executing : first_task_started",
            "executing -> validating : all_tasks_completed",
            "validating -> completed : validation_passed",
        ]
        move = await last_move(engine, run.id)
        assert (move.actor, move.reason) == ("ci", "merged")
        for task in await engine.list_tasks(run.id):
            assert task.output == f'"{task.name}"'
            assert await moves_of(engine, task.id) == [
                "pending -> queued : scheduler_assigned",
                "queued -> running : worker_started",
                "running -> validating : execution_completed",
                "validating -> completed : validation_passed",
            ]
            (attempt,) = await engine.list_attempts(task.id)
            assert (attempt.worker_id, attempt.ended_by) == (worker.id, "validation_passed")
        await assert_promises_kept(engine)


async def test_a_failed_execution_is_retried_after_its_backoff(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a", max_retries=2, backoff=STEADY, checks=True))
        for delay in (1, 2):
            claim = await fail_one(engine, worker, f"delay {delay}")
            task = await task_of(engine, run, "a")
            assert (task.state, task.retry_count, task.worker_id) == ("retrying", delay, None)
            assert error_of(task) == f"delay {delay}"
            assert (await last_move(engine, task.id)).severity == "warning"
            assert (await engine.get_worker(worker.id)).state == "idle"
            assert await state_of(engine, run) == "executing"
            await pass_time(engine, clock, delay - 0.5)
            assert await engine.claim_tasks(worker.id) == []
            await pass_time(engine, clock, 0.5)
            assert await state_of(engine, run, "a") == "queued"
            await assert_promises_kept(engine)
        await do_one(engine, worker)
        assert await moves_of(engine, claim.task_id) == [
            "pending -> queued : scheduler_assigned",
            *["queued -> running : worker_started", "running -> retrying : execution_failed"],
            "retrying -> queued : retry_delay_elapsed",
            *["queued -> running : worker_started", "running -> retrying : execution_failed"],
            "retrying -> queued : retry_delay_elapsed",
            "queued -> running : worker_started",
            "running -> validating : execution_completed",
            "validating -> completed : validation_passed",
        ]
        assert await state_of(engine, run) == "validating"
        await assert_promises_kept(engine)


async def test_a_critical_task_that_fails_fails_the_workstream_and_cancels_the_rest(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, slots=2)
        run = await submit_stream(
            engine,
            NewTask(name="a", priority=3),
            NewTask(name="running", priority=2),
            NewTask(name="retrying", max_retries=1, priority=1),
            NewTask(name="queued"),
            NewTask(name="pending", depends_on=("a",)),
        )
        other = await join(engine)
        first, running = await engine.claim_tasks(worker.id, 2)
        await fail_one(engine, other, "try again")
        assert [task.state for task in await engine.list_tasks(run.id)] == [
            *("running", "running", "retrying", "queued", "pending")
        ]
        await engine.fail_task(first.task_id, first.epoch, AttemptReport(error="compiler crashed", exit_code=2))
        failed = await engine.get_run(run.id)
        assert (failed.state, failed.outcome, failed.completed_at) == ("failed", "failure", clock.now())
        move = await last_move(engine, run.id)
        assert (move.from_state, move.trigger, move.severity) == ("executing", "critical_task_failed", "critical")
        assert move.reason == "a is failed"
        task_move = await last_move(engine, first.task_id)
        assert (task_move.trigger, task_move.severity) == ("execution_failed", "error")
        assert error_of(await task_of(engine, run, "a")) == "compiler crashed"
        assert [task.state for task in await engine.list_tasks(run.id)] == ["failed", *["cancelled"] * 4]
        assert (await engine.send_heartbeat(worker.id, [(running.task_id, running.epoch)])).lost
        with pytest.raises(LeaseLost):
            await engine.complete_task(running.task_id, running.epoch)
        assert [each.state for each in await engine.list_workers()] == ["idle", "idle"]
        await pass_time(engine, clock, 20)
        assert await engine.claim_tasks(worker.id, 2) == []
        await assert_promises_kept(engine)


async def test_a_task_that_is_not_critical_fails_alone(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(
            engine,
            NewTask(name="lint", critical=False, priority=1),
            NewTask(name="fix", depends_on=("lint",)),
            NewTask(name="build"),
        )
        await fail_one(engine, worker)
        assert await state_of(engine, run) == "executing"
        await assert_promises_kept(engine)
        await do_one(engine, worker)
        assert [task.state for task in await engine.list_tasks(run.id)] == ["failed", "pending", "completed"]
        assert await state_of(engine, run) == "executing"
        assert await engine.claim_tasks(worker.id) == []
        await assert_promises_kept(engine)
        await engine.for_tenant(actor="ada").signal_run(run.id, "cancel", reason="good enough")
        assert [task.state for task in await engine.list_tasks(run.id)] == ["failed", "cancelled", "completed"]
        await assert_promises_kept(engine)


async def test_a_check_that_fails_fails_the_task_with_its_details(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a", max_retries=3, checks=True), NewTask(name="b", depends_on=("a",)))
        claim = await claim_one(engine, worker)
        assert claim.has_checks
        await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output="done", exit_code=0))
        await assert_promises_kept(engine)
        await engine.report_attempt(
            claim.task_id, claim.epoch, "checks_failed", AttemptReport(error="coverage is 61 %, 80 % are wanted")
        )
        task = await engine.get_task(claim.task_id)
        assert (task.state, error_of(task), task.output) == ("failed", "coverage is 61 %, 80 % are wanted", '"done"')
        move = await last_move(engine, task.id)
        assert (move.from_state, move.trigger, move.severity) == ("validating", "validation_failed", "error")
        assert await state_of(engine, run) == "failed"
        assert await state_of(engine, run, "b") == "cancelled"
        (attempt,) = await engine.list_attempts(task.id)
        assert attempt.ended_by == "validation_failed"
        await assert_promises_kept(engine)


async def test_a_worker_is_busy_until_the_checks_of_its_task_have_ended(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a", checks=True), NewTask(name="b", checks=True))
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch)
        assert (await engine.get_worker(worker.id)).state == "busy"
        assert await engine.claim_tasks(worker.id) == []
        await assert_promises_kept(engine)
        await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        assert [move.actor for move in await engine.list_history(claim.task_id)][-3:] == [worker.id] * 3
        assert (await engine.get_worker(worker.id)).state == "idle"
        await do_one(engine, worker)
        assert await state_of(engine, run) == "validating"
        await assert_promises_kept(engine)


async def test_the_final_validation_may_fail(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a"), checks=True)
        await do_one(engine, worker)
        failed = await engine.for_tenant(actor="ci").signal_run(run.id, "checks_failed", reason="merge conflict in a.py")
        assert (failed.state, error_of(failed)) == ("failed", "merge conflict in a.py")
        move = await last_move(engine, run.id)
        assert (move.from_state, move.trigger, move.severity) == ("validating", "validation_failed", "error")
        assert (move.actor, move.reason) == ("ci", "merge conflict in a.py")
        await assert_promises_kept(engine)


async def test_a_workstream_is_not_validated_before_its_tasks_are_complete(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a"), NewTask(name="b"))
        await do_one(engine, worker)
        for signal in ("checks_passed", "checks_failed"):
            with pytest.raises(TransitionRefused, match="executing"):
                await engine.signal_run(run.id, signal)
        for state in ("ready", "completed", "planned"):
            assert not (await engine.request_transition(Kind.RUN, run.id, to_state=state)).success
        with pytest.raises(RequestInvalid):
            await engine.request_transition(Kind.RUN, run.id, trigger="all_tasks_completed")
        assert await state_of(engine, run) == "executing"
        await assert_promises_kept(engine)


async def test_a_workstream_is_planned_until_all_announced_tasks_are_there(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await engine.for_tenant(actor="ada").submit_run(
            NewRun(name="later", lifecycle="orchestrated", task_count=3, tasks=(NewTask(name="a"),), checks=True)
        )
        assert (run.state, run.missing_tasks) == ("planned", 2)
        assert await engine.claim_tasks(worker.id) == []
        await engine.add_tasks(run.id, [NewTask(name="b", depends_on=("a",))])
        assert await state_of(engine, run) == "planned"
        await assert_promises_kept(engine)
        with pytest.raises(RequestInvalid, match="There is another task called 'a'"):
            await engine.add_tasks(run.id, [NewTask(name="a")])
        await engine.add_tasks(run.id, [NewTask(name="c", depends_on=("b",))])
        assert await state_of(engine, run) == "ready"
        await assert_promises_kept(engine)
        for name in "abc":
            assert (await do_one(engine, worker)).name == name
        assert await path_of(engine, run.id) == ["planned", "ready", "executing", "validating"]
        await assert_promises_kept(engine)


@pytest.mark.parametrize("state", ["planned", "ready", "executing"])
async def test_a_workstream_can_be_cancelled_before_its_validation(database_url: str, clock: ManualClock, state: str) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(
            engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)), task_count=3 if state == "planned" else 2
        )
        if state == "executing":
            await claim_one(engine, worker)
        assert await state_of(engine, run) == state
        await engine.for_tenant(actor="ada").signal_run(run.id, "cancel", reason="another plan")
        move = await last_move(engine, run.id)
        assert (move.from_state, move.to_state, move.trigger) == (state, "cancelled", "user_cancelled")
        assert (move.actor, move.reason) == ("ada", "another plan")
        for task in await engine.list_tasks(run.id):
            assert task.state == "cancelled"
            task_move = await last_move(engine, task.id)
            assert (task_move.trigger, task_move.actor, task_move.reason) == ("user_cancelled", "ada", "another plan")
        assert (await engine.get_worker(worker.id)).state == "idle"
        assert await engine.claim_tasks(worker.id) == []
        with pytest.raises(TransitionRefused, match="cancelled"):
            await engine.signal_run(run.id, "cancel")
        await assert_promises_kept(engine)


async def test_a_workstream_that_takes_too_long_is_cancelled(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, lease_seconds=1000)
        run = await submit_stream(engine, NewTask(name="a"), timeout_seconds=60)
        await claim_one(engine, worker)
        await pass_time(engine, clock, 61)
        assert await path_of(engine, run.id) == ["planned", "ready", "executing", "cancelled"]
        assert (await last_move(engine, run.id)).reason == "the run exceeded its timeout"
        await assert_promises_kept(engine)


@pytest.mark.parametrize("state", ["pending", "queued", "running", "retrying"])
async def test_a_task_that_has_not_ended_can_be_cancelled(database_url: str, clock: ManualClock, state: str) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(
            engine,
            NewTask(name="first", priority=1),
            NewTask(name="a", critical=False, max_retries=1, depends_on=("first",) if state == "pending" else ()),
            NewTask(name="other"),
        )
        await do_one(engine, worker) if state in ("running", "retrying") else None
        if state == "running":
            await claim_one(engine, worker)
        elif state == "retrying":
            await fail_one(engine, worker)
        task = await task_of(engine, run, "a")
        assert task.state == state
        cancelled = await engine.for_tenant(actor="ada").signal_task(task.id, "cancel", reason="no longer wanted")
        assert (cancelled.state, cancelled.outcome) == ("cancelled", "canceled")
        move = await last_move(engine, task.id)
        assert (move.from_state, move.trigger, move.actor, move.reason) == (state, "user_cancelled", "ada", "no longer wanted")
        await pass_time(engine, clock, 10)
        assert await state_of(engine, run, "a") == "cancelled"
        assert (await engine.get_worker(worker.id)).state == "idle"
        await test_supervised.assert_promises_kept(engine)


async def test_a_task_goes_only_to_a_worker_with_its_capabilities(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        plain = await join(engine)
        able = await join(engine, capabilities=["python", "gpu"])
        run = await submit_stream(engine, NewTask(name="train", capabilities=("gpu",)))
        assert await engine.claim_tasks(plain.id) == []
        assert await path_of(engine, plain.id) == ["initializing", "idle"]
        await do_one(engine, able)
        assert await state_of(engine, run) == "validating"
        await assert_promises_kept(engine)


async def test_a_task_that_runs_too_long_is_retried_and_then_fails(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, lease_seconds=1000)
        run = await submit_stream(engine, NewTask(name="a", timeout_seconds=10, max_retries=1, backoff=STEADY))
        claim = await claim_one(engine, worker)
        assert claim.deadline_at is not None
        assert (claim.deadline_at - clock.now()).total_seconds() == 10
        await pass_time(engine, clock, 10)
        assert await state_of(engine, run, "a") == "retrying"
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        await pass_time(engine, clock, 1)
        await claim_one(engine, worker)
        await pass_time(engine, clock, 10)
        task = await task_of(engine, run, "a")
        assert (task.state, error_of(task)) == ("failed", "timed out after 10s")
        assert await state_of(engine, run) == "failed"
        await assert_promises_kept(engine)


async def test_checks_that_take_too_long_are_reported(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, lease_seconds=10_000)
        await submit_stream(engine, NewTask(name="a", checks=True))
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch)
        await pass_time(engine, clock, 901)
        (notice,) = await engine.list_notices()
        assert (notice.entity_id, notice.message) == (claim.task_id, "It has been validating for longer than 15m.")
        await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        await assert_promises_kept(engine)


async def test_checks_whose_worker_is_gone_fail(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a", checks=True))
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch)
        await pass_time(engine, clock, 31)
        assert (await last_move(engine, claim.task_id)).trigger == "validation_failed"
        with pytest.raises(LeaseLost):
            await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        assert await state_of(engine, run) == "failed"
        await assert_promises_kept(engine)


# Workers


async def test_a_worker_is_busy_with_its_first_task_and_idle_after_its_last(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, slots=2)
        assert worker.state == "idle"
        await submit_stream(engine, *(NewTask(name=name) for name in "abc"))
        claims = await engine.claim_tasks(worker.id, 10)
        assert len(claims) == 2
        await pass_checks(engine, claims[0])
        assert (await engine.get_worker(worker.id)).state == "busy"
        await pass_checks(engine, claims[1])
        assert await moves_of(engine, worker.id) == [
            "initializing -> idle : registration_complete",
            "idle -> busy : task_assigned",
            "busy -> idle : task_completed",
        ]
        await assert_promises_kept(engine)


async def test_a_worker_that_misses_its_heartbeats_loses_its_tasks_to_others(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        silent, other = await join(engine, slots=2), await join(engine, slots=2, lease_seconds=1000)
        run = await submit_stream(engine, NewTask(name="a"), NewTask(name="b"))
        lost = await engine.claim_tasks(silent.id, 2)
        clock.advance(29)
        assert (await engine.send_heartbeat(silent.id, [(claim.task_id, claim.epoch) for claim in lost])).lost == ()
        await pass_time(engine, clock, 30)
        assert (await engine.get_worker(silent.id)).state == "busy"
        await pass_time(engine, clock, 1)
        worker_move = await last_move(engine, silent.id)
        assert (worker_move.from_state, worker_move.to_state) == ("busy", "unresponsive")
        assert (worker_move.trigger, worker_move.severity) == ("health_check_timeout", "error")
        assert worker_move.reason == "no heartbeat for 30 seconds"
        for claim in lost:
            move = await last_move(engine, claim.task_id)
            assert (move.from_state, move.to_state, move.trigger) == ("running", "queued", "worker_lost")
            assert move.severity == "error"
            assert (await engine.get_task(claim.task_id)).retry_count == 0
        assert await state_of(engine, run) == "executing"
        await assert_promises_kept(engine)
        for claim in await engine.claim_tasks(other.id, 2):
            assert claim.epoch == 2
            await pass_checks(engine, claim)
        beat = await engine.send_heartbeat(silent.id, [(claim.task_id, claim.epoch) for claim in lost])
        assert set(beat.lost) == {(claim.task_id, 1) for claim in lost}
        for claim in lost:
            with pytest.raises(LeaseLost):
                await engine.complete_task(claim.task_id, claim.epoch)
        assert await state_of(engine, run) == "validating"
        await assert_promises_kept(engine)


async def test_a_worker_that_is_heard_of_again_is_idle_and_gets_work(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        await pass_time(engine, clock, 31)
        assert (await engine.get_worker(worker.id)).state == "unresponsive"
        assert (await engine.send_heartbeat(worker.id)).worker.state == "idle"
        assert (await do_one(engine, worker)).epoch == 2
        await pass_time(engine, clock, 29)
        assert await moves_of(engine, worker.id) == [
            "initializing -> idle : registration_complete",
            "idle -> busy : task_assigned",
            "busy -> unresponsive : health_check_timeout",
            "unresponsive -> idle : health_check_recovered",
            "idle -> busy : task_assigned",
            "busy -> idle : task_completed",
        ]
        assert await state_of(engine, run) == "validating"
        await assert_promises_kept(engine)


async def test_a_worker_that_stays_away_is_shut_down(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        await submit_stream(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        await pass_time(engine, clock, 31)
        await pass_time(engine, clock, 268)
        assert (await engine.get_worker(worker.id)).state == "unresponsive"
        await pass_time(engine, clock, 1)
        move = await last_move(engine, worker.id)
        assert (move.from_state, move.to_state) == ("unresponsive", "shutdown")
        assert (move.trigger, move.severity) == ("max_timeout_exceeded", "error")
        assert (await engine.send_heartbeat(worker.id)).worker.state == "shutdown"
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id)
        await assert_promises_kept(engine)


async def test_an_idle_worker_shuts_down_at_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        await engine.for_tenant(actor="ada").signal_worker(worker.id, "drain", reason="night")
        move = await last_move(engine, worker.id)
        assert (move.from_state, move.to_state, move.trigger) == ("idle", "shutdown", "shutdown_requested")
        assert (move.actor, move.reason) == ("ada", "night")
        await submit_stream(engine, NewTask(name="a"))
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id)
        await assert_promises_kept(engine)


async def test_a_busy_worker_shuts_down_when_its_last_task_has_ended(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, slots=2)
        await submit_stream(engine, *(NewTask(name=name, critical=False) for name in "abc"))
        claims = await engine.claim_tasks(worker.id, 2)
        assert (await engine.for_tenant(actor="ada").signal_worker(worker.id, "drain")).state == "busy"
        for claim in claims:
            assert (await engine.get_worker(worker.id)).state == "busy"
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no"))
        assert await moves_of(engine, worker.id) == [
            "initializing -> idle : registration_complete",
            "idle -> busy : task_assigned",
            "busy -> shutdown : shutdown_requested",
        ]
        await assert_promises_kept(engine)


async def test_a_worker_that_shall_shut_down_gets_nothing_new(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, slots=3)
        run = await submit_stream(engine, NewTask(name="a", critical=False), NewTask(name="b"))
        claim = await claim_one(engine, worker)
        await engine.signal_worker(worker.id, "drain")
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id)
        assert await state_of(engine, run, "b") == "queued"
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no"))
        assert (await engine.get_worker(worker.id)).state == "shutdown"
        await assert_promises_kept(engine)


@pytest.mark.parametrize("asked", ["before its execution ends", "while its checks run"])
async def test_a_worker_that_shuts_down_does_not_spoil_the_checks_of_its_task(
    database_url: str, clock: ManualClock, asked: str
) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a", checks=True))
        claim = await claim_one(engine, worker)
        if asked == "before its execution ends":
            await engine.signal_worker(worker.id, "drain")
            await engine.complete_task(claim.task_id, claim.epoch)
        else:
            await engine.complete_task(claim.task_id, claim.epoch)
            await engine.signal_worker(worker.id, "drain")
        assert await state_of(engine, run, "a") == "validating"
        await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        assert await path_of(engine, claim.task_id) == ["pending", "queued", "running", "validating", "completed"]
        assert await state_of(engine, run) == "validating"
        assert (await engine.get_worker(worker.id)).state == "shutdown"
        await assert_promises_kept(engine)


async def test_a_worker_that_shall_shut_down_does_so_when_it_comes_back(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        await submit_stream(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        await engine.signal_worker(worker.id, "drain")
        await pass_time(engine, clock, 31)
        assert (await engine.get_worker(worker.id)).state == "unresponsive"
        await engine.send_heartbeat(worker.id)
        assert (await path_of(engine, worker.id))[-3:] == ["unresponsive", "idle", "shutdown"]
        await assert_promises_kept(engine)


async def test_a_task_that_keeps_losing_its_workers_fails(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit_stream(engine, NewTask(name="poison", max_reclaims=2))
        for epoch in (1, 2, 3):
            worker = await join(engine)
            assert (await claim_one(engine, worker)).epoch == epoch
            await pass_time(engine, clock, 31)
        task = await task_of(engine, run, "poison")
        assert (task.state, task.reclaim_count, task.epoch) == ("failed", 2, 3)
        assert error_of(task).endswith("no reclaims left")
        assert await moves_of(engine, task.id) == [
            "pending -> queued : scheduler_assigned",
            *["queued -> running : worker_started", "running -> queued : worker_lost"] * 2,
            *["queued -> running : worker_started", "running -> failed : execution_failed"],
        ]
        assert await state_of(engine, run) == "failed"
        await assert_promises_kept(engine)


async def test_nobody_but_the_worker_of_an_attempt_reports_about_it(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a"))
        task = await task_of(engine, run, "a")
        for signal in ("claim", "worker_started", "complete", "fail", "lease_lost", "worker_lost"):
            with pytest.raises(RequestInvalid):
                await engine.signal_task(task.id, signal)
        with pytest.raises(RequestInvalid):
            await engine.request_transition(Kind.TASK, task.id, trigger="worker_started")
        assert not (await engine.request_transition(Kind.TASK, task.id, trigger="scheduler_assigned")).success
        claim = await claim_one(engine, worker)
        with pytest.raises(RequestInvalid):
            await engine.signal_task(task.id, "execution_completed")
        with pytest.raises(LeaseLost, match="the last attempt was 1"):
            await engine.complete_task(task.id, claim.epoch + 1)
        await pass_checks(engine, claim)
        await assert_promises_kept(engine)


async def test_an_execution_completes_only_with_an_expected_exit_code(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine, slots=2)
        run = await submit_stream(engine, NewTask(name="a"), NewTask(name="b", expected_exit_codes=(0, 3)))
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 2)}
        with pytest.raises(TransitionRefused, match="exit_code_expected"):
            await engine.complete_task(claims["a"].task_id, 1, AttemptReport(exit_code=3))
        assert await state_of(engine, run, "a") == "running"
        await engine.complete_task(claims["b"].task_id, 1, AttemptReport(exit_code=3))
        await engine.complete_task(claims["a"].task_id, 1, AttemptReport(exit_code=0))
        assert {await state_of(engine, run, name) for name in claims} == {"validating"}


async def test_a_workstream_that_a_critical_task_fails_has_its_error(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await join(engine)
        run = await submit_stream(engine, NewTask(name="a"))
        await fail_one(engine, worker, "no space left")
        assert error_of(await engine.get_run(run.id)) == "no space left"

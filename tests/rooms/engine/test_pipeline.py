"""Document 001, end to end: workstreams of steps, retries with backoff, and one circuit breaker a tool for everybody."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
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
from tests.rooms.engine.test_supervised import STEADY, assert_promises_kept, last_move, moves_of

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewTask
from pointsman.errors import LeaseLost, NotFound, RequestInvalid, TransitionRefused
from pointsman.kernel.machine import Kind
from pointsman.store.rows import Run, Task, Worker

LONG = Backoff(base_seconds=100.0, factor=2.0, jitter=0.0)
TOOL = "aider"


async def submit_steps(engine: Engine, *steps: NewTask, **options: Any) -> Run:
    return await submit(engine, *steps, lifecycle="pipeline", **options)


async def employ(engine: Engine, **options: Any) -> Worker:
    """A worker that is patient enough for these scenarios."""
    return await register(engine, **{"lease_seconds": 100_000, **options})


async def fail_one(engine: Engine, worker: Worker, error: str = "exit code 1", **options: Any) -> Claim:
    claim = await claim_one(engine, worker)
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error=error, **options))
    return claim


async def complete_one(engine: Engine, worker: Worker) -> Claim:
    claim = await claim_one(engine, worker)
    await engine.complete_task(claim.task_id, claim.epoch)
    return claim


def error_of(entity: Run | Task) -> str:
    assert entity.error is not None
    message: str = msgspec.json.decode(entity.error)["message"]
    return message


async def breaker_path(engine: Engine) -> list[str]:
    return await path_of(engine, (await engine.get_breaker(TOOL)).id)


async def trip(engine: Engine, worker: Worker, failures: int = 5) -> None:
    """Fail steps of the tool until its breaker opens."""
    await submit_steps(engine, *(NewTask(name=f"bad-{number}", tool=TOOL, critical=False) for number in range(failures)))
    for _ in range(failures):
        await fail_one(engine, worker)
    assert (await engine.get_breaker(TOOL)).state == "OPEN"


# Workstreams and steps


async def test_a_workstream_runs_its_steps_in_the_order_of_their_dependencies(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine, slots=5)
        run = await submit_steps(
            engine,
            NewTask(name="last", depends_on=("left", "right")),
            NewTask(name="left", depends_on=("first",)),
            NewTask(name="right", depends_on=("first",)),
            NewTask(name="first"),
        )
        assert await state_of(engine, run) == "S_PENDING"
        names = []
        while claims := await engine.claim_tasks(worker.id, 5):
            names.append(sorted(claim.name for claim in claims))
            assert await state_of(engine, run) == "S_RUNNING"
            for claim in claims:
                await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(exit_code=0))
        assert names == [["first"], ["left", "right"], ["last"]]
        assert await moves_of(engine, run.id) == [
            "S_PENDING -> S_RUNNING : start_execution",
            "S_RUNNING -> S_SUCCESS : all_steps_succeed",
        ]
        for task in await engine.list_tasks(run.id):
            assert await moves_of(engine, task.id) == [
                "S_PENDING -> S_RUNNING : dependencies_met",
                "S_RUNNING -> S_SUCCESS : success",
            ]
        await assert_promises_kept(engine)


async def test_a_failed_step_retries_in_two_recorded_moves(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1", max_retries=2, backoff=STEADY))
        await fail_one(engine, worker, exit_code=3)
        task = await task_of(engine, run, "s1")
        assert (task.state, task.retry_count, task.attempt_count, task.completed_at) == ("S_RETRYING", 1, 1, None)
        assert error_of(task) == "exit code 1"
        assert await state_of(engine, run) == "S_RUNNING"
        await pass_time(engine, clock, 1)
        await complete_one(engine, worker)
        history = await engine.list_history(task.id)
        assert await moves_of(engine, task.id) == [
            "S_PENDING -> S_RUNNING : dependencies_met",
            "S_RUNNING -> S_FAILED : failure",
            "S_FAILED -> S_RETRYING : retry_eligible",
            "S_RETRYING -> S_RUNNING : retry_attempt",
            "S_RUNNING -> S_SUCCESS : success",
        ]
        assert [move.severity for move in history] == ["info", "info", "error", "warning", "info", "info"]
        assert history[2].at == history[3].at
        attempts = await engine.list_attempts(task.id)
        assert [(attempt.ended_by, attempt.exit_code) for attempt in attempts] == [("failure", 3), ("success", None)]
        assert await state_of(engine, run) == "S_SUCCESS"
        await assert_promises_kept(engine)


async def test_the_wait_before_a_retry_doubles(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1", max_retries=4, backoff=Backoff(base_seconds=3, jitter=0)))
        for delay in (3, 6, 12, 24):
            await fail_one(engine, worker)
            await pass_time(engine, clock, delay - 0.5)
            assert await engine.claim_tasks(worker.id) == []
            await pass_time(engine, clock, 0.5)
        await complete_one(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        await assert_promises_kept(engine)


async def test_a_step_that_fails_for_good_fails_and_abandons_its_workstream(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(
            engine, NewTask(name="s1", max_retries=1, backoff=STEADY), NewTask(name="s2", depends_on=("s1",))
        )
        await fail_one(engine, worker)
        await pass_time(engine, clock, 1)
        await fail_one(engine, worker, "exit code 2")
        ended = await engine.get_run(run.id)
        assert (ended.state, ended.outcome, ended.completed_at) == ("S_ABANDONED", "failure", clock.now())
        assert error_of(ended) == "exit code 2"
        assert await moves_of(engine, run.id) == [
            "S_PENDING -> S_RUNNING : start_execution",
            "S_RUNNING -> S_FAILED : step_fails",
            "S_FAILED -> S_ABANDONED : retries_exhausted",
        ]
        failed = (await engine.list_history(run.id))[2]
        assert (failed.severity, failed.reason) == ("error", "s1 is S_FAILED")
        assert await state_of(engine, run, "s1") == "S_FAILED"
        assert await state_of(engine, run, "s2") == "S_PENDING"
        assert await engine.claim_tasks(worker.id) == []
        await assert_promises_kept(engine)


@pytest.mark.parametrize("cause", ["retry_on_failure", "retryable"])
async def test_a_step_whose_tool_does_not_retry_fails_at_once(database_url: str, clock: ManualClock, cause: str) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1", max_retries=5, retry_on_failure=cause != "retry_on_failure"))
        await fail_one(engine, worker, retryable=cause != "retryable")
        task = await task_of(engine, run, "s1")
        assert (task.state, task.outcome, task.retry_count) == ("S_FAILED", "failure", 0)
        assert await path_of(engine, task.id) == ["S_PENDING", "S_RUNNING", "S_FAILED"]
        await assert_promises_kept(engine)


async def test_a_workstream_retries_what_failed_after_its_backoff(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(
            engine,
            NewTask(name="s1"),
            NewTask(name="s2", depends_on=("s1",), max_retries=1, backoff=STEADY),
            max_retries=2,
            backoff=STEADY,
        )
        await complete_one(engine, worker)
        for delay in (1, 2):
            await fail_one(engine, worker)
            await pass_time(engine, clock, 1)
            await fail_one(engine, worker)
            assert await state_of(engine, run) == "S_RETRYING"
            assert await state_of(engine, run, "s2") == "S_FAILED"
            await pass_time(engine, clock, delay - 0.5)
            assert await state_of(engine, run) == "S_RETRYING"
            assert await engine.claim_tasks(worker.id) == []
            await pass_time(engine, clock, 0.5)
            assert await state_of(engine, run) == "S_RUNNING"
            again = await task_of(engine, run, "s2")
            assert (again.state, again.retry_count) == ("S_PENDING", 0)
        await complete_one(engine, worker)
        assert (await engine.get_run(run.id)).retry_count == 2
        once_more = ["S_RUNNING -> S_FAILED : step_fails", "S_FAILED -> S_RETRYING : retry_eligible"]
        assert await moves_of(engine, run.id) == [
            "S_PENDING -> S_RUNNING : start_execution",
            *once_more,
            "S_RETRYING -> S_RUNNING : retry_attempt",
            *once_more,
            "S_RETRYING -> S_RUNNING : retry_attempt",
            "S_RUNNING -> S_SUCCESS : all_steps_succeed",
        ]
        step_moves = await moves_of(engine, (await task_of(engine, run, "s2")).id)
        assert step_moves.count("S_FAILED -> S_PENDING : reset") == 2
        assert len(await engine.list_attempts((await task_of(engine, run, "s1")).id)) == 1
        await assert_promises_kept(engine)


async def test_a_workstream_that_has_no_retry_left_is_abandoned(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1"), max_retries=1, backoff=STEADY)
        await fail_one(engine, worker)
        await pass_time(engine, clock, 1)
        await fail_one(engine, worker)
        assert await path_of(engine, run.id) == [
            *("S_PENDING", "S_RUNNING", "S_FAILED", "S_RETRYING"),
            *("S_RUNNING", "S_FAILED", "S_ABANDONED"),
        ]
        with pytest.raises(TransitionRefused):
            await engine.signal_run(run.id, "cancel")
        await assert_promises_kept(engine)


async def test_what_runs_while_its_workstream_waits_to_retry_is_kept(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine, slots=2)
        run = await submit_steps(engine, NewTask(name="s1"), NewTask(name="s2"), max_retries=1, backoff=STEADY)
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 2)}
        await engine.fail_task(claims["s1"].task_id, claims["s1"].epoch, AttemptReport(error="no"))
        assert await state_of(engine, run) == "S_RETRYING"
        await engine.complete_task(claims["s2"].task_id, claims["s2"].epoch)
        assert await state_of(engine, run) == "S_RETRYING"
        await pass_time(engine, clock, 1)
        await complete_one(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        assert len(await engine.list_attempts(claims["s2"].task_id)) == 1
        await assert_promises_kept(engine)


async def test_a_running_workstream_can_be_abandoned(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1", max_retries=3), NewTask(name="s2"), max_retries=3)
        claim = await claim_one(engine, worker)
        await engine.for_tenant(actor="ada").signal_run(run.id, "cancel", reason="superseded")
        assert await moves_of(engine, run.id) == [
            "S_PENDING -> S_RUNNING : start_execution",
            "S_RUNNING -> S_ABANDONED : abandon",
        ]
        move = await last_move(engine, run.id)
        assert (move.actor, move.reason, move.severity) == ("ada", "superseded", "warning")
        assert await path_of(engine, claim.task_id) == ["S_PENDING", "S_RUNNING", "S_FAILED"]
        assert (await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])).lost == ((claim.task_id, claim.epoch),)
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        assert await engine.claim_tasks(worker.id) == []
        await assert_promises_kept(engine)


async def test_a_workstream_that_does_not_run_cannot_be_abandoned(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1"), max_retries=1, backoff=LONG)
        with pytest.raises(TransitionRefused, match="S_PENDING: 'cancel' is not allowed from here"):
            await engine.signal_run(run.id, "cancel")
        await fail_one(engine, worker)
        with pytest.raises(TransitionRefused, match="S_RETRYING: 'cancel' is not allowed from here"):
            await engine.signal_run(run.id, "cancel")
        for state in ("S_SUCCESS", "S_PENDING", "S_ABANDONED"):
            assert not (await engine.request_transition(Kind.RUN, run.id, to_state=state)).success
        assert await path_of(engine, run.id) == ["S_PENDING", "S_RUNNING", "S_FAILED", "S_RETRYING"]
        await assert_promises_kept(engine)


async def test_a_step_that_runs_too_long_fails_and_retries(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1", timeout_seconds=60, max_retries=1, backoff=STEADY))
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 61)
        task = await task_of(engine, run, "s1")
        assert (task.state, error_of(task)) == ("S_RETRYING", "timed out after 1m")
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        await pass_time(engine, clock, 1)
        await complete_one(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        await assert_promises_kept(engine)


async def test_a_step_whose_worker_is_gone_fails_and_retries(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        gone = await register(engine, lease_seconds=30)
        run = await submit_steps(engine, NewTask(name="s1", max_retries=1, backoff=STEADY))
        claim = await claim_one(engine, gone)
        await pass_time(engine, clock, 31)
        await pass_time(engine, clock, 1)
        worker = await employ(engine)
        again = await complete_one(engine, worker)
        assert (again.task_id, again.epoch) == (claim.task_id, 2)
        assert await path_of(engine, claim.task_id) == [
            *("S_PENDING", "S_RUNNING", "S_FAILED", "S_RETRYING"),
            *("S_RUNNING", "S_SUCCESS"),
        ]
        assert await state_of(engine, run) == "S_SUCCESS"
        await assert_promises_kept(engine)


async def test_a_workstream_that_takes_too_long_fails_for_good(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1", max_retries=3), NewTask(name="s2"), timeout_seconds=60)
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 60)
        ended = await engine.get_run(run.id)
        assert (ended.state, error_of(ended)) == ("S_ABANDONED", "the run exceeded its timeout")
        assert await path_of(engine, run.id) == ["S_PENDING", "S_RUNNING", "S_FAILED", "S_ABANDONED"]
        assert await path_of(engine, claim.task_id) == ["S_PENDING", "S_RUNNING", "S_FAILED"]
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        await assert_promises_kept(engine)


async def test_a_workstream_that_never_began_in_time_fails_for_good(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit_steps(engine, NewTask(name="s1"), timeout_seconds=60)
        await pass_time(engine, clock, 61)
        assert await path_of(engine, run.id) == ["S_PENDING", "S_RUNNING", "S_FAILED", "S_ABANDONED"]
        await assert_promises_kept(engine)


async def test_another_try_gives_a_workstream_no_more_time(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1"), timeout_seconds=60, max_retries=1, backoff=STEADY)
        await fail_one(engine, worker)
        await pass_time(engine, clock, 1)
        await claim_one(engine, worker)
        await pass_time(engine, clock, 58)
        assert await state_of(engine, run) == "S_RUNNING"
        await pass_time(engine, clock, 1)
        assert await state_of(engine, run) == "S_ABANDONED"
        await assert_promises_kept(engine)


# The circuit breaker


async def test_five_failures_in_a_row_open_the_breaker_of_their_tool(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await submit_steps(engine, NewTask(name="s1", tool=TOOL, max_retries=9, backoff=STEADY))
        for count in range(1, 5):
            await fail_one(engine, worker)
            breaker = await engine.get_breaker(TOOL)
            assert (breaker.state, breaker.failure_count) == ("CLOSED", count)
            await pass_time(engine, clock, 200)
        claim = await fail_one(engine, worker)
        breaker = await engine.get_breaker(TOOL)
        assert (breaker.state, breaker.failure_count) == ("OPEN", 5)
        assert breaker.retry_at is not None
        assert (breaker.retry_at - clock.now()).total_seconds() == 60
        move = await last_move(engine, breaker.id)
        assert (move.from_state, move.trigger, move.severity) == ("CLOSED", "failure_threshold_exceeded", "error")
        assert move.reason == "5 failures in a row, the last one of s1"
        assert (await path_of(engine, claim.task_id))[-2:] == ["S_RUNNING", "S_FAILED"]
        await assert_promises_kept(engine)


async def test_an_open_breaker_stops_a_step_from_retrying(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL, failure_threshold=1)
        run = await submit_steps(engine, NewTask(name="s1", tool=TOOL, max_retries=5))
        await fail_one(engine, worker)
        task = await task_of(engine, run, "s1")
        assert (task.state, task.retry_count) == ("S_FAILED", 0)
        assert await state_of(engine, run) == "S_ABANDONED"
        await assert_promises_kept(engine)


async def test_a_success_in_between_starts_the_count_again(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await submit_steps(engine, *(NewTask(name=f"s{number}", tool=TOOL, critical=False) for number in range(12)))
        for _ in range(4):
            await fail_one(engine, worker)
        await complete_one(engine, worker)
        assert (await engine.get_breaker(TOOL)).failure_count == 0
        for _ in range(4):
            await fail_one(engine, worker)
        assert (await engine.get_breaker(TOOL)).state == "CLOSED"
        await fail_one(engine, worker)
        assert await breaker_path(engine) == ["CLOSED", "OPEN"]
        await assert_promises_kept(engine)


async def test_a_step_waits_while_the_breaker_of_its_tool_is_open(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine, slots=5)
        await engine.declare_tool(TOOL)
        await engine.declare_tool("black")
        await trip(engine, worker)
        run = await submit_steps(engine, NewTask(name="waits", tool=TOOL), NewTask(name="goes", tool="black"))
        claims = await engine.claim_tasks(worker.id, 5)
        assert [claim.name for claim in claims] == ["goes"]
        await pass_time(engine, clock, 59)
        assert await engine.claim_tasks(worker.id, 5) == []
        assert await state_of(engine, run, "waits") == "S_PENDING"
        await assert_promises_kept(engine)


async def test_after_its_cooldown_a_breaker_admits_exactly_one_probe_however_many_ask(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock, seed=1) as one, open_engine(database_url, clock, seed=2) as two:
        worker = await employ(one)
        await one.declare_tool(TOOL)
        await trip(one, worker)
        await submit_steps(one, *(NewTask(name=f"s{number}", tool=TOOL) for number in range(10)))
        workers = [await employ(engine, slots=5) for engine in (one, two, one, two)]
        await pass_time(one, clock, 60)
        assert (await one.get_breaker(TOOL)).state == "HALF_OPEN"
        engines = (one, two, one, two)
        answers = await asyncio.gather(*(engine.claim_tasks(each.id, 5) for engine, each in zip(engines, workers, strict=True)))
        (probe,) = [claim for claims in answers for claim in claims]
        assert (await two.get_breaker(TOOL)).probe_task_id == probe.task_id
        await two.complete_task(probe.task_id, probe.epoch)
        breaker = await one.get_breaker(TOOL)
        assert (breaker.state, breaker.failure_count, breaker.probe_task_id) == ("CLOSED", 0, None)
        answers = await asyncio.gather(*(engine.claim_tasks(each.id, 5) for engine, each in zip(engines, workers, strict=True)))
        assert sum(len(claims) for claims in answers) == 9
        assert await moves_of(one, breaker.id) == [
            "CLOSED -> OPEN : failure_threshold_exceeded",
            "OPEN -> HALF_OPEN : cooldown_expires",
            "HALF_OPEN -> CLOSED : success",
        ]
        await assert_promises_kept(one)


async def test_a_probe_that_fails_opens_the_breaker_for_another_cooldown(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await trip(engine, worker)
        await submit_steps(engine, *(NewTask(name=f"s{number}", tool=TOOL, critical=False) for number in range(2)))
        await pass_time(engine, clock, 60)
        await fail_one(engine, worker)
        breaker = await engine.get_breaker(TOOL)
        assert breaker.state == "OPEN"
        assert breaker.retry_at is not None
        assert (breaker.retry_at - clock.now()).total_seconds() == 60
        assert (await last_move(engine, breaker.id)).trigger == "failure"
        assert await engine.claim_tasks(worker.id) == []
        await pass_time(engine, clock, 60)
        await complete_one(engine, worker)
        assert await breaker_path(engine) == ["CLOSED", "OPEN", "HALF_OPEN", "OPEN", "HALF_OPEN", "CLOSED"]
        await assert_promises_kept(engine)


async def test_a_breaker_may_ask_for_several_good_probes(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine, slots=3)
        await engine.declare_tool(TOOL, failure_threshold=2, success_threshold=2, cooldown_seconds=10)
        await trip(engine, worker, failures=2)
        await submit_steps(engine, *(NewTask(name=f"s{number}", tool=TOOL) for number in range(4)))
        await pass_time(engine, clock, 10)
        for _ in range(2):
            (probe,) = await engine.claim_tasks(worker.id, 3)
            assert (await engine.get_breaker(TOOL)).state == "HALF_OPEN"
            await engine.complete_task(probe.task_id, probe.epoch)
        assert (await engine.get_breaker(TOOL)).state == "CLOSED"
        assert len(await engine.claim_tasks(worker.id, 3)) == 2
        await assert_promises_kept(engine)


@pytest.mark.parametrize("end", ["worker is gone", "step is cancelled", "workstream is abandoned", "worker is terminated"])
async def test_a_probe_that_ends_without_an_answer_leaves_its_place_to_the_next(
    database_url: str, clock: ManualClock, end: str
) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await trip(engine, worker)
        first = await submit_steps(engine, NewTask(name="probe", tool=TOOL))
        await submit_steps(engine, NewTask(name="next", tool=TOOL))
        frail = await register(engine, lease_seconds=200)
        await pass_time(engine, clock, 60)
        probe = await claim_one(engine, frail)
        assert probe.name == "probe"
        assert await engine.claim_tasks(worker.id) == []
        match end:
            case "worker is gone":
                await pass_time(engine, clock, 201)
            case "step is cancelled":
                await engine.signal_task(probe.task_id, "cancel")
            case "workstream is abandoned":
                await engine.signal_run(first.id, "cancel")
            case _:
                await engine.signal_worker(frail.id, "terminate", ended=True)
        breaker = await engine.get_breaker(TOOL)
        assert (breaker.state, breaker.probe_task_id) == ("HALF_OPEN", None)
        assert (await complete_one(engine, worker)).name == "next"
        assert await breaker_path(engine) == ["CLOSED", "OPEN", "HALF_OPEN", "CLOSED"]
        await assert_promises_kept(engine)


async def test_a_late_answer_of_an_attempt_from_before_says_nothing_about_the_probe(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine, slots=2)
        await engine.declare_tool(TOOL)
        await submit_steps(
            engine, NewTask(name="late", tool=TOOL, critical=False, priority=1), NewTask(name="later", tool=TOOL)
        )
        late = await claim_one(engine, worker)
        later = await claim_one(engine, worker)
        other = await employ(engine)
        await trip(engine, other)
        await pass_time(engine, clock, 60)
        await engine.fail_task(late.task_id, late.epoch, AttemptReport(error="no"))
        await engine.complete_task(later.task_id, later.epoch)
        assert await breaker_path(engine) == ["CLOSED", "OPEN", "HALF_OPEN"]
        await assert_promises_kept(engine)


async def test_an_operator_resets_a_breaker_with_a_reason(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        with pytest.raises(TransitionRefused, match="already CLOSED"):
            await engine.reset_breaker(TOOL)
        await trip(engine, worker)
        await submit_steps(engine, NewTask(name="s1", tool=TOOL))
        breaker = await engine.for_tenant(actor="ada").reset_breaker(TOOL, reason="aider --version works")
        assert (breaker.state, breaker.failure_count, breaker.retry_at) == ("CLOSED", 0, None)
        move = await last_move(engine, breaker.id)
        assert (move.from_state, move.trigger, move.severity) == ("OPEN", "reset", "warning")
        assert (move.actor, move.reason) == ("ada", "aider --version works")
        await complete_one(engine, worker)
        await pass_time(engine, clock, 61)
        assert await breaker_path(engine) == ["CLOSED", "OPEN", "CLOSED"]
        with pytest.raises(NotFound):
            await engine.reset_breaker("nobody")
        await assert_promises_kept(engine)


async def test_a_half_open_breaker_can_be_reset_while_its_probe_runs(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine, slots=2)
        await engine.declare_tool(TOOL)
        await trip(engine, worker)
        await submit_steps(engine, NewTask(name="s1", tool=TOOL), NewTask(name="s2", tool=TOOL))
        await pass_time(engine, clock, 60)
        probe = await claim_one(engine, worker)
        await engine.for_tenant(actor="ada").reset_breaker(TOOL)
        await claim_one(engine, worker)
        await engine.complete_task(probe.task_id, probe.epoch)
        assert await breaker_path(engine) == ["CLOSED", "OPEN", "HALF_OPEN", "CLOSED"]
        await assert_promises_kept(engine)


async def test_a_step_may_fail_instead_of_waiting_for_an_open_breaker(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await trip(engine, worker)
        clock.advance(2)
        run = await submit_steps(engine, NewTask(name="s1", tool=TOOL, on_open_circuit="fail", max_retries=3))
        assert await engine.claim_tasks(worker.id) == []
        task = await task_of(engine, run, "s1")
        assert (task.state, error_of(task)) == ("S_FAILED", f"{TOOL} circuit is open, retry in 58 seconds")
        assert error_of(await engine.get_run(run.id)) == f"{TOOL} circuit is open, retry in 58 seconds"
        assert await state_of(engine, run) == "S_ABANDONED"
        assert (await engine.get_breaker(TOOL)).failure_count == 5
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        await assert_promises_kept(engine)


async def test_a_step_that_fails_at_an_open_breaker_does_not_cost_the_worker_its_turn(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await trip(engine, worker)
        await submit_steps(engine, NewTask(name="s1", tool=TOOL, on_open_circuit="fail", priority=1))
        await submit_steps(engine, NewTask(name="other"))
        assert (await claim_one(engine, worker)).name == "other"
        await assert_promises_kept(engine)


async def test_every_step_that_waits_goes_on_when_the_breaker_closes(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await trip(engine, worker)
        run = await submit_steps(engine, *(NewTask(name=f"s{number}", tool=TOOL) for number in range(3)))
        await pass_time(engine, clock, 60)
        for _ in range(3):
            await complete_one(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        await assert_promises_kept(engine)


async def test_a_tool_that_nobody_declared_is_refused_with_a_suggestion(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool(TOOL)
        with pytest.raises(RequestInvalid) as caught:
            await submit_steps(engine, NewTask(name="a", tool=TOOL), NewTask(name="b", tool="aidr"))
        (problem,) = caught.value.problems
        assert problem.path == "tasks[1].tool"
        assert "There is no tool 'aidr'. Did you mean aider?" in problem.message
        assert await engine.list_runs() == []


async def test_a_breaker_outlives_its_engine(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock, seed=1) as engine:
        worker = await employ(engine)
        await engine.declare_tool(TOOL)
        await trip(engine, worker)
    async with open_engine(database_url, clock, seed=2) as engine:
        run = await submit_steps(engine, NewTask(name="s1", tool=TOOL))
        assert await engine.claim_tasks(worker.id) == []
        await engine.declare_tool(TOOL)
        assert (await engine.get_breaker(TOOL)).state == "OPEN"
        await pass_time(engine, clock, 60)
        await complete_one(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        await assert_promises_kept(engine)


# Recovery 2: what an operator does with a failed step


async def test_an_operator_puts_a_failed_step_back_to_the_beginning(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1", max_retries=1, backoff=STEADY), max_retries=1, backoff=LONG)
        await fail_one(engine, worker)
        await pass_time(engine, clock, 1)
        claim = await fail_one(engine, worker)
        assert (await task_of(engine, run, "s1")).retry_count == 1
        reset = await engine.for_tenant(actor="ada").signal_task(claim.task_id, "reset", reason="the disk is free again")
        assert (reset.state, reset.retry_count, reset.completed_at) == ("S_PENDING", 0, None)
        move = await last_move(engine, claim.task_id)
        assert (move.from_state, move.to_state, move.trigger) == ("S_FAILED", "S_PENDING", "reset")
        assert (move.severity, move.actor, move.reason) == ("warning", "ada", "the disk is free again")
        await pass_time(engine, clock, 100)
        await complete_one(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        assert [attempt.epoch for attempt in await engine.list_attempts(claim.task_id)] == [1, 2, 3]
        await assert_promises_kept(engine)


async def test_an_operator_skips_a_failed_step_and_its_dependents_go_on(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(
            engine, NewTask(name="s1"), NewTask(name="s2", depends_on=("s1",)), max_retries=1, backoff=LONG
        )
        claim = await fail_one(engine, worker)
        skipped = await engine.for_tenant(actor="ada").signal_task(claim.task_id, "skip", reason="done by hand")
        assert (skipped.state, skipped.outcome) == ("S_SUCCESS", "success")
        move = await last_move(engine, claim.task_id)
        assert (move.from_state, move.trigger, move.severity) == ("S_FAILED", "skip", "warning")
        assert (move.actor, move.reason) == ("ada", "done by hand")
        await pass_time(engine, clock, 100)
        assert (await complete_one(engine, worker)).name == "s2"
        assert await state_of(engine, run) == "S_SUCCESS"
        assert len(await engine.list_attempts(claim.task_id)) == 1
        await assert_promises_kept(engine)


async def test_a_step_that_has_not_failed_is_neither_reset_nor_skipped(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1"))
        task = await task_of(engine, run, "s1")
        for signal in ("reset", "skip"):
            with pytest.raises(TransitionRefused, match="S_PENDING"):
                await engine.signal_task(task.id, signal)
        await complete_one(engine, worker)
        for signal in ("reset", "skip"):
            with pytest.raises(TransitionRefused, match="S_SUCCESS"):
                await engine.signal_task(task.id, signal)
        await assert_promises_kept(engine)


async def test_a_step_of_an_abandoned_workstream_stays_failed(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="s1"))
        claim = await fail_one(engine, worker)
        with pytest.raises(TransitionRefused, match="S_ABANDONED"):
            await engine.signal_task(claim.task_id, "reset")
        assert await state_of(engine, run, "s1") == "S_FAILED"
        assert await engine.claim_tasks(worker.id) == []
        await assert_promises_kept(engine)


async def test_a_step_that_is_not_critical_is_passed_over_when_it_fails(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        run = await submit_steps(engine, NewTask(name="lint", critical=False), NewTask(name="test", depends_on=("lint",)))
        claim = await fail_one(engine, worker)
        assert await moves_of(engine, claim.task_id) == [
            "S_PENDING -> S_RUNNING : dependencies_met",
            "S_RUNNING -> S_FAILED : failure",
            "S_FAILED -> S_SUCCESS : skip",
        ]
        move = await last_move(engine, claim.task_id)
        assert (move.actor, move.reason) == ("engine", "failed, but not critical")
        await complete_one(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        await assert_promises_kept(engine)


# 001.6: a state that should not last


async def test_a_workstream_that_runs_for_more_than_an_hour_is_reported_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock, seed=1) as one, open_engine(database_url, clock, seed=2) as two:
        worker = await employ(one)
        run = await submit_steps(one, NewTask(name="slow"))
        claim = await claim_one(one, worker)
        clock.advance(3599)
        await asyncio.gather(one.tend(), two.tend())
        assert await one.list_notices() == []
        clock.advance(2)
        for _ in range(3):
            await asyncio.gather(one.tend(), two.tend())
            clock.advance(1)
        (notice,) = await two.list_notices()
        assert (notice.kind, notice.entity_id, notice.run_id, notice.subject) == ("run", run.id, run.id, "overstayed")
        assert notice.message == "It has been S_RUNNING for longer than 1h."
        assert await state_of(one, run) == "S_RUNNING"
        await one.complete_task(claim.task_id, claim.epoch)
        assert await state_of(two, run) == "S_SUCCESS"
        await assert_promises_kept(one)


async def test_a_workstream_that_ends_in_time_is_not_reported(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await submit_steps(engine, NewTask(name="quick"))
        await complete_one(engine, worker)
        await pass_time(engine, clock, 7200)
        assert await engine.list_notices() == []
        await assert_promises_kept(engine)


async def test_the_hour_begins_again_with_another_try(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await employ(engine)
        await submit_steps(engine, NewTask(name="s1"), max_retries=1, backoff=STEADY)
        await pass_time(engine, clock, 10)
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 3000)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no"))
        await pass_time(engine, clock, 1)
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 3000)
        assert await engine.list_notices() == []
        await pass_time(engine, clock, 601)
        assert len(await engine.list_notices()) == 1
        await assert_promises_kept(engine)

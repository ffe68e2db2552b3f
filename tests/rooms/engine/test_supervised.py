"""Document 000, end to end: supervised workers, jobs that get all their workers or none, and requests that may be repeated."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
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

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import KeyReused, LeaseLost, NotFound, RequestInvalid, TransitionRefused, WorkerUnavailable
from pointsman.kernel.machine import Kind
from pointsman.store.rows import Entity, Run, Transition, Worker

STEADY = Backoff(base_seconds=1.0, factor=2.0, jitter=0.0)


# What holds after every scenario, of this lifecycle and of every other one.


async def assert_promises_kept(engine: Engine) -> None:
    """The audit trail leads to every state, gap by gap, and no attempt shares its epoch with another one."""
    trail: dict[str, list[Transition]] = defaultdict(list)
    after: str | None = None
    while page := await engine.list_transitions(after=after):
        after = page[-1].position
        for move in page:
            trail[move.entity_id].append(move)
    runs = await engine.list_runs(limit=1000)
    tasks = [task for run in runs for task in await engine.list_tasks(run.id)]
    entities: list[Entity] = [*runs, *tasks, *await engine.list_workers(), *await engine.list_breakers()]
    assert {entity.id for entity in entities} == set(trail)
    for entity in entities:
        _assert_trail_leads_to(entity, trail[entity.id])
        assert await engine.list_history(entity.id) == trail[entity.id]
    for task in tasks:
        attempts = [attempt for attempt in await engine.list_attempts(task.id) if attempt.started_at]
        assert [attempt.epoch for attempt in attempts] == list(range(1, task.epoch + 1))
        under_way = [attempt.epoch for attempt in attempts if attempt.ended_at is None]
        assert under_way == ([task.current_attempt] if task.current_attempt else [])
        assert (task.phase == "active") == (task.current_attempt is not None)
        assert task.retry_count <= task.max_retries
        assert task.reclaim_count <= task.max_reclaims


def _assert_trail_leads_to(entity: Entity, trail: Sequence[Transition]) -> None:
    assert trail[0].from_state is None
    assert trail[0].trigger == "create"
    for before, after in pairwise(trail):
        assert after.from_state == before.to_state
        assert before.at <= after.at
    assert trail[-1].to_state == entity.state
    assert entity.revision == len(trail) - 1
    assert entity.entered_at == trail[-1].at
    assert (entity.completed_at is not None) == (entity.phase == "done")
    assert entity.started_at is None or entity.created_at <= entity.started_at
    assert entity.completed_at is None or (entity.started_at or entity.created_at) <= entity.completed_at


async def moves_of(engine: Engine, entity_id: str) -> list[str]:
    """Every move that an entity has made, as a lifecycle file would write it."""
    history = await engine.list_history(entity_id)
    return [f"{move.from_state} -> {move.to_state} : {move.trigger}" for move in history if move.from_state]


async def last_move(engine: Engine, entity_id: str) -> Transition:
    return (await engine.list_history(entity_id))[-1]


async def submit_job(engine: Engine, *tasks: NewTask, **options: Any) -> Run:
    return await submit(engine, *(tasks or (NewTask(name="work"),)), lifecycle="supervised", **options)


async def hire(engine: Engine, count: int = 1, **options: Any) -> list[Worker]:
    return [await register(engine, lifecycle="supervised", **options) for _ in range(count)]


async def members(engine: Engine, run: Run) -> list[str]:
    """The workers that belong to a job."""
    return [worker.id for worker in await engine.list_workers() if worker.run_id == run.id]


async def finish(engine: Engine, worker: Worker | str) -> None:
    (claim,) = await engine.claim_tasks(worker if isinstance(worker, str) else worker.id)
    await engine.complete_task(claim.task_id, claim.epoch)


# Jobs


async def test_a_job_goes_from_submission_to_completion_with_its_whole_history(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await engine.for_tenant(actor="ada").submit_run(
            NewRun(name="compile", lifecycle="supervised", tasks=(NewTask(name="work"),)), reason="nightly"
        )
        assert re.fullmatch(r"j_[0-9a-f]{12}", job.id)
        assert (job.state, job.depth, job.worker_count, job.started_at) == ("PENDING", 0, 1, None)
        clock.advance(5)
        (worker,) = await hire(engine)
        started_at = clock.now()
        assert (await engine.get_run(job.id)).state == "RUNNING"
        clock.advance(10)
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output={"built": True}))

        ended = await engine.get_run(job.id)
        assert (ended.state, ended.outcome) == ("COMPLETED", "success")
        assert (ended.started_at, ended.completed_at) == (started_at, clock.now())
        assert (await engine.get_task(claim.task_id)).output == '{"built":true}'
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        assert await moves_of(engine, job.id) == [
            "SUBMITTED -> PENDING : validate",
            "PENDING -> RUNNING : allocate_resources",
            "RUNNING -> COMPLETED : success",
        ]
        created = (await engine.list_history(job.id))[0]
        assert (created.actor, created.reason, created.from_state) == ("ada", "nightly", None)
        assert await moves_of(engine, worker.id) == ["IDLE -> RUNNING : start_task"]
        assert (await engine.get_worker(worker.id)).run_id is None
        await assert_promises_kept(engine)


async def test_jobs_nest_to_depth_five_and_no_deeper(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await submit_job(engine)
        for depth in range(1, 6):
            child = await submit_job(engine, parent_run_id=job.id)
            assert (child.depth, child.parent_run_id) == (depth, job.id)
            job = child
        with pytest.raises(RequestInvalid, match="depth 6"):
            await submit_job(engine, parent_run_id=job.id)
        with pytest.raises(NotFound):
            await submit_job(engine, parent_run_id="j_000000000000")
        assert len(await engine.list_runs()) == 6
        await assert_promises_kept(engine)


@pytest.mark.parametrize("count", [1, 10])
async def test_a_job_may_ask_for_one_to_ten_workers(database_url: str, clock: ManualClock, count: int) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await submit_job(engine, worker_count=count)
        workers = await hire(engine, count)
        assert await state_of(engine, job) == "RUNNING"
        assert sorted(await members(engine, job)) == sorted(worker.id for worker in workers)
        await assert_promises_kept(engine)


@pytest.mark.parametrize("count", [0, 11, -1])
async def test_a_job_for_no_worker_or_for_more_than_ten_is_refused_and_not_stored(
    database_url: str, clock: ManualClock, count: int
) -> None:
    async with open_engine(database_url, clock) as engine:
        with pytest.raises(RequestInvalid, match="worker_count") as caught:
            await submit_job(engine, worker_count=count)
        assert [problem.path for problem in caught.value.problems] == ["worker_count"]
        assert await engine.list_runs() == []


async def test_an_invalid_job_is_refused_with_every_problem_and_never_stored(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        with pytest.raises(RequestInvalid) as caught:
            await submit_job(engine, NewTask(name="a", depends_on=("nobody",)), NewTask(name=""), worker_count=99)
        assert {problem.path for problem in caught.value.problems} == {"tasks[0]", "tasks[1].name", "worker_count"}
        assert await engine.list_runs() == []
        assert await engine.list_transitions() == []


# Allocation


async def test_a_job_gets_all_of_its_workers_or_none(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await submit_job(engine, worker_count=3)
        for missing in (3, 2, 1):
            assert await state_of(engine, job) == "PENDING", missing
            assert await members(engine, job) == []
            assert {worker.state for worker in await engine.list_workers()} <= {"IDLE"}
            await hire(engine)
        assert await state_of(engine, job) == "RUNNING"
        assert len(await members(engine, job)) == 3
        assert [worker.state for worker in await engine.list_workers()] == ["RUNNING"] * 3
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING"]
        await assert_promises_kept(engine)


async def test_a_pending_job_hands_nothing_out(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit_job(engine, worker_count=2)
        (worker,) = await hire(engine)
        assert await engine.claim_tasks(worker.id) == []
        await assert_promises_kept(engine)


async def test_a_job_waits_until_the_workers_of_another_one_are_released(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        workers = await hire(engine, 2)
        first = await submit_job(engine, worker_count=2)
        second = await submit_job(engine, worker_count=1)
        assert [await state_of(engine, first), await state_of(engine, second)] == ["RUNNING", "PENDING"]
        await finish(engine, workers[0])
        assert [await state_of(engine, first), await state_of(engine, second)] == ["COMPLETED", "RUNNING"]
        (member,) = await members(engine, second)
        await finish(engine, member)
        assert await state_of(engine, second) == "COMPLETED"
        assert await moves_of(engine, member) == ["IDLE -> RUNNING : start_task"]
        await assert_promises_kept(engine)


async def test_only_the_workers_of_a_job_get_its_tasks(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        mine, yours = await hire(engine, 2)
        job = await submit_job(engine, NewTask(name="a"), NewTask(name="b"), worker_count=1)
        (member,) = await members(engine, job)
        outsider = yours if member == mine.id else mine
        assert await engine.claim_tasks(outsider.id, 5) == []
        await finish(engine, member)
        await finish(engine, member)
        assert await state_of(engine, job) == "COMPLETED"
        await assert_promises_kept(engine)


async def test_jobs_that_compete_for_workers_never_share_one_nor_take_half(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock, seed=1) as one, open_engine(database_url, clock, seed=2) as two:
        jobs = await asyncio.gather(*(submit_job(engine, worker_count=3) for engine in (one, two, one, two)))
        await asyncio.gather(*(hire(engine, 1) for engine in (one, two, one, two, one, two, one, two)))
        while unfinished := [job for job in jobs if await state_of(one, job) != "COMPLETED"]:
            held = {job.id: await members(one, job) for job in jobs}
            assert all(len(group) in (0, 3) for group in held.values())
            everyone = [member for group in held.values() for member in group]
            assert len(everyone) == len(set(everyone))
            running = [job for job in unfinished if held[job.id]]
            assert len(running) == min(2, len(unfinished))
            await asyncio.gather(*(finish(engine, held[job.id][0]) for engine, job in zip((one, two), running, strict=False)))
        await assert_promises_kept(one)


async def test_a_job_asks_for_workers_that_can_do_its_tasks(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await hire(engine)
        job = await submit_job(engine, NewTask(name="paint", capabilities=("brush",)))
        assert await state_of(engine, job) == "PENDING"
        (able,) = await hire(engine, capabilities=["brush"])
        assert await members(engine, job) == [able.id]
        await finish(engine, able)
        assert await state_of(engine, job) == "COMPLETED"
        await assert_promises_kept(engine)


async def test_a_worker_that_comes_back_is_given_to_the_job_that_waits(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, lease_seconds=30)
        await pass_time(engine, clock, 31)
        job = await submit_job(engine)
        assert await state_of(engine, job) == "PENDING"
        await engine.send_heartbeat(worker.id)
        assert await state_of(engine, job) == "RUNNING"
        assert await members(engine, job) == [worker.id]
        await assert_promises_kept(engine)


async def test_a_job_gets_a_worker_as_soon_as_that_has_finished_something_else(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        other = await submit(engine, NewTask(name="something"))
        claim = await claim_one(engine, worker)
        job = await submit_job(engine)
        assert await state_of(engine, job) == "PENDING"
        await engine.complete_task(claim.task_id, claim.epoch)
        assert [await state_of(engine, other), await state_of(engine, job)] == ["SUCCEEDED", "RUNNING"]
        await finish(engine, worker)
        assert await state_of(engine, job) == "COMPLETED"
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        await assert_promises_kept(engine)


async def test_the_worker_of_a_job_gets_nothing_else_until_it_is_released(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, slots=3)
        job = await submit_job(engine)
        other = await submit(engine, NewTask(name="something", priority=9))
        (claim,) = await engine.claim_tasks(worker.id, 3)
        assert claim.run_id == job.id
        await engine.complete_task(claim.task_id, claim.epoch)
        await finish(engine, worker)
        assert await state_of(engine, other) == "SUCCEEDED"
        await assert_promises_kept(engine)


async def test_a_crashed_worker_that_comes_back_rejoins_a_job_that_is_short_of_workers(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, lease_seconds=30)
        job = await submit_job(engine)
        lost = await claim_one(engine, worker)
        await pass_time(engine, clock, 31)
        assert await members(engine, job) == []
        beat = await engine.send_heartbeat(worker.id, [(lost.task_id, lost.epoch)])
        assert beat.lost == ((lost.task_id, lost.epoch),)
        assert await members(engine, job) == [worker.id]
        await finish(engine, worker)
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        await assert_promises_kept(engine)


async def test_a_job_gets_another_worker_when_one_of_its_own_is_drained(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        leaving, spare = await hire(engine, 2)
        job = await submit_job(engine, NewTask(name="a"), NewTask(name="b"))
        claim = await claim_one(engine, leaving)
        await engine.signal_worker(leaving.id, "drain")
        await engine.complete_task(claim.task_id, claim.epoch)
        assert (await engine.get_worker(leaving.id)).state == "COMPLETED"
        assert await members(engine, job) == [spare.id]
        await finish(engine, spare)
        assert await state_of(engine, job) == "COMPLETED"
        await assert_promises_kept(engine)


# How jobs end


async def test_a_pending_job_can_be_cancelled(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await submit_job(engine)
        clock.advance(3)
        cancelled = await engine.for_tenant(actor="ada").signal_run(job.id, "cancel", reason="not needed any more")
        assert (cancelled.state, cancelled.outcome) == ("CANCELED", "canceled")
        assert (cancelled.started_at, cancelled.completed_at) == (None, clock.now())
        move = await last_move(engine, job.id)
        assert (move.from_state, move.trigger, move.actor, move.reason) == ("PENDING", "cancel", "ada", "not needed any more")
        assert await state_of(engine, job, "work") == "CANCELED"
        await hire(engine)
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "CANCELED"]
        await assert_promises_kept(engine)


async def test_a_job_whose_tasks_are_not_all_there_is_submitted_and_can_be_cancelled(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        await hire(engine)
        job = await engine.submit_run(NewRun(name="later", lifecycle="supervised", task_count=2, tasks=(NewTask(name="a"),)))
        assert job.state == "SUBMITTED"
        assert await members(engine, job) == []
        await engine.for_tenant(actor="ada").signal_run(job.id, "cancel")
        assert await moves_of(engine, job.id) == ["SUBMITTED -> CANCELED : cancel"]
        assert await state_of(engine, job, "a") == "CANCELED"
        with pytest.raises(RequestInvalid, match="has ended"):
            await engine.add_tasks(job.id, [NewTask(name="b")])
        await assert_promises_kept(engine)


async def test_a_job_is_validated_when_the_last_of_its_tasks_is_there(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        job = await engine.submit_run(NewRun(name="later", lifecycle="supervised", task_count=2))
        await engine.add_tasks(job.id, [NewTask(name="a")])
        assert await state_of(engine, job) == "SUBMITTED"
        assert await engine.claim_tasks(worker.id) == []
        await engine.add_tasks(job.id, [NewTask(name="b", depends_on=("a",))])
        assert await state_of(engine, job) == "RUNNING"
        await finish(engine, worker)
        await finish(engine, worker)
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        await assert_promises_kept(engine)


async def test_cancelling_a_running_job_takes_its_tasks_and_releases_its_workers(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker, _ = await hire(engine, 2)
        job = await submit_job(
            engine, NewTask(name="a"), NewTask(name="b"), NewTask(name="c", depends_on=("a",)), worker_count=2
        )
        claim = await claim_one(engine, worker)
        await engine.for_tenant(actor="ada").signal_run(job.id, "cancel", reason="wrong branch")
        assert await moves_of(engine, job.id) == [
            "SUBMITTED -> PENDING : validate",
            "PENDING -> RUNNING : allocate_resources",
            "RUNNING -> CANCELED : cancel",
        ]
        assert sorted(task.state for task in await engine.list_tasks(job.id)) == ["CANCELED", "CANCELED", "RUNNING"]
        assert await members(engine, job) == []
        beat = await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])
        assert beat.cancelled == ((claim.task_id, claim.epoch),)
        await engine.report_attempt(claim.task_id, claim.epoch, "cancel")
        assert [task.state for task in await engine.list_tasks(job.id)] == ["CANCELED"] * 3
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        follower = await submit_job(engine, worker_count=2)
        assert await state_of(engine, follower) == "RUNNING"
        await assert_promises_kept(engine)


async def test_a_job_that_takes_too_long_is_cancelled(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, lease_seconds=1000)
        job = await submit_job(engine, timeout_seconds=60)
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 59)
        assert await state_of(engine, job) == "RUNNING"
        await pass_time(engine, clock, 2)
        move = await last_move(engine, job.id)
        assert (move.from_state, move.to_state, move.trigger) == ("RUNNING", "CANCELED", "cancel")
        assert move.actor == "engine"
        assert move.reason == "the run exceeded its timeout"
        assert await members(engine, job) == []
        await engine.report_attempt(claim.task_id, claim.epoch, "cancel")
        assert await state_of(engine, job, "work") == "CANCELED"
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        await assert_promises_kept(engine)


async def test_a_job_that_takes_too_long_is_cancelled_even_if_its_worker_stops_the_task_first(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, lease_seconds=1000)
        job = await submit_job(engine, timeout_seconds=60)
        claim = await claim_one(engine, worker)
        clock.advance(60)  # no timer has fired yet
        await engine.report_attempt(claim.task_id, claim.epoch, "expire", AttemptReport(error="too long", retryable=False))
        move = await last_move(engine, job.id)
        assert (move.to_state, move.trigger, move.reason) == ("CANCELED", "cancel", "the run exceeded its timeout")
        assert await state_of(engine, job, "work") == "TIMED_OUT"
        await assert_promises_kept(engine)


async def test_a_job_that_waits_too_long_for_workers_is_cancelled(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await submit_job(engine, timeout_seconds=60)
        await pass_time(engine, clock, 61)
        assert await moves_of(engine, job.id) == ["SUBMITTED -> PENDING : validate", "PENDING -> CANCELED : cancel"]
        await assert_promises_kept(engine)


async def test_an_error_that_cannot_be_retried_fails_the_job_at_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker, _ = await hire(engine, 2)
        job = await submit_job(engine, NewTask(name="a", max_retries=3), NewTask(name="b"), worker_count=2)
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="schema mismatch", retryable=False))
        failed = await engine.get_run(job.id)
        assert (failed.state, failed.outcome, failed.completed_at) == ("FAILED", "failure", clock.now())
        assert failed.error is not None
        assert "schema mismatch" in failed.error
        move = await last_move(engine, job.id)
        assert (move.trigger, move.severity, move.actor) == ("error", "error", "engine")
        assert move.reason == "a is FAILED"
        assert [await state_of(engine, job, name) for name in "ab"] == ["FAILED", "CANCELED"]
        assert await members(engine, job) == []
        assert len(await engine.list_attempts(claim.task_id)) == 1
        await assert_promises_kept(engine)


async def test_an_ended_job_stays_as_it_is(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await submit_job(engine)
        await engine.signal_run(job.id, "cancel")
        for signal in ("retry", "cancel", "resume"):
            with pytest.raises(TransitionRefused):
                await engine.signal_run(job.id, signal)
        result = await engine.request_transition(Kind.RUN, job.id, to_state="RUNNING")
        assert not result.success
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "CANCELED"]
        await assert_promises_kept(engine)


async def test_nobody_completes_a_job_whose_tasks_have_not_ended(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await hire(engine)
        job = await submit_job(engine)
        with pytest.raises(RequestInvalid):
            await engine.request_transition(Kind.RUN, job.id, to_state="COMPLETED")
        with pytest.raises(RequestInvalid):
            await engine.signal_run(job.id, "complete")
        assert await state_of(engine, job) == "RUNNING"
        await assert_promises_kept(engine)


# Requests for a transition


async def test_a_transition_can_be_asked_for_by_its_state_or_by_its_trigger(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        clock.advance(2)
        result = await engine.for_tenant(actor="ada").request_transition(
            Kind.WORKER, worker.id, to_state="RUNNING", reason="go"
        )
        assert (result.entity_id, result.from_state, result.to_state) == (worker.id, "IDLE", "RUNNING")
        assert (result.at, result.success, result.error) == (clock.now(), True, None)
        result = await engine.for_tenant(actor="ada").request_transition(
            Kind.WORKER, worker.id, trigger="pause", reason="lunch"
        )
        assert (result.from_state, result.to_state, result.success) == ("RUNNING", "PAUSED", True)
        move = await last_move(engine, worker.id)
        assert (move.trigger, move.actor, move.reason, move.at) == ("pause", "ada", "lunch", clock.now())
        with pytest.raises(RequestInvalid, match="either to_state or trigger"):
            await engine.request_transition(Kind.WORKER, worker.id)
        with pytest.raises(RequestInvalid, match="either to_state or trigger"):
            await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING", trigger="resume")
        await assert_promises_kept(engine)


async def test_a_refused_transition_says_which_of_three_cases_it_is(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        refused = await engine.request_transition(Kind.WORKER, worker.id, to_state="PAUSED")
        assert (refused.success, refused.from_state, refused.to_state, refused.at) == (False, "IDLE", "PAUSED", clock.now())
        assert refused.error is not None
        assert "is IDLE: 'PAUSED' is not allowed from here" in refused.error
        assert "Allowed from IDLE: start_task -> RUNNING, terminate -> TERMINATED" in refused.error
        there = await engine.request_transition(Kind.WORKER, worker.id, to_state="IDLE")
        assert there.error == "supervised.worker is already IDLE: 'IDLE' changes nothing."
        await engine.signal_worker(worker.id, "terminate")
        over = await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING")
        assert over.error is not None
        assert "has ended in TERMINATED" in over.error
        assert "Nothing leads out of it" in over.error
        assert [there.success, over.success] == [False, False]

        job = await submit_job(engine)
        for state, words in {"PENDING": "is already PENDING", "COMPLETED": "is not allowed from here"}.items():
            result = await engine.request_transition(Kind.RUN, job.id, to_state=state)
            assert result.error is not None
            assert words in result.error
        assert (await engine.for_tenant(actor="ada").request_transition(Kind.RUN, job.id, to_state="CANCELED")).success
        result = await engine.request_transition(Kind.RUN, job.id, to_state="RUNNING")
        assert result.error is not None
        assert "has ended in CANCELED" in result.error
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "CANCELED"]
        await assert_promises_kept(engine)


async def test_a_refused_signal_carries_the_case_and_what_is_allowed(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        with pytest.raises(TransitionRefused, match="is not allowed from here"):
            await engine.signal_worker(worker.id, "pause")
        await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING")
        await engine.signal_worker(worker.id, "pause")
        with pytest.raises(TransitionRefused, match="is already PAUSED"):
            await engine.signal_worker(worker.id, "pause")
        await engine.signal_worker(worker.id, "terminate")
        with pytest.raises(TransitionRefused, match="has ended in TERMINATED"):
            await engine.signal_worker(worker.id, "resume")
        with pytest.raises(NotFound):
            await engine.signal_worker("worker_0", "pause")
        await assert_promises_kept(engine)


# The worker's machine, row by row

WAYS = {
    "IDLE": [],
    "RUNNING": ["start_task"],
    "PAUSED": ["start_task", "pause"],
    "COMPLETED": ["start_task", "complete_tasks"],
    "FAILED": ["start_task", "error_unrecoverable"],
    "TERMINATED": ["terminate"],
}
ALLOWED = {
    "IDLE": {"RUNNING", "TERMINATED"},
    "RUNNING": {"PAUSED", "COMPLETED", "FAILED", "TERMINATED"},
    "PAUSED": {"RUNNING", "TERMINATED"},
    "COMPLETED": {"TERMINATED"},
    "FAILED": {"TERMINATED"},
    "TERMINATED": set(),
}


@pytest.mark.parametrize("state", WAYS)
async def test_a_worker_moves_along_its_table_and_nowhere_else(database_url: str, clock: ManualClock, state: str) -> None:
    async with open_engine(database_url, clock) as engine:
        for wanted in WAYS:
            (worker,) = await hire(engine)
            for trigger in WAYS[state]:
                assert (await engine.request_transition(Kind.WORKER, worker.id, trigger=trigger)).success
            before = await path_of(engine, worker.id)
            result = await engine.request_transition(Kind.WORKER, worker.id, to_state=wanted)
            assert result.success == (wanted in ALLOWED[state]), (state, wanted)
            assert await path_of(engine, worker.id) == [*before, *([wanted] if result.success else [])]
        await assert_promises_kept(engine)


@pytest.mark.parametrize("state", [state for state in WAYS if state != "TERMINATED"])
async def test_a_supervisor_ends_a_worker_from_every_state_but_terminated(
    database_url: str, clock: ManualClock, state: str
) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        for trigger in WAYS[state]:
            await engine.request_transition(Kind.WORKER, worker.id, trigger=trigger)
        ended = await engine.for_tenant(actor="supervisor").signal_worker(worker.id, "terminate", reason="out of control")
        assert (ended.state, ended.outcome, ended.completed_at) == ("TERMINATED", "canceled", clock.now())
        move = await last_move(engine, worker.id)
        assert (move.from_state, move.trigger, move.severity) == (state, "terminate", "warning")
        assert (move.actor, move.reason) == ("supervisor", "out of control")
        with pytest.raises(TransitionRefused):
            await engine.signal_worker(worker.id, "terminate")
        await assert_promises_kept(engine)


async def test_a_worker_completes_only_with_empty_hands(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        await submit_job(engine)
        claim = await claim_one(engine, worker)
        refused = await engine.request_transition(Kind.WORKER, worker.id, to_state="COMPLETED")
        assert refused.error is not None
        assert "It would need: not holds_tasks" in refused.error
        await engine.complete_task(claim.task_id, claim.epoch)
        await engine.request_transition(Kind.WORKER, worker.id, to_state="COMPLETED")
        assert await path_of(engine, worker.id) == ["IDLE", "RUNNING", "COMPLETED"]
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id)
        await assert_promises_kept(engine)


async def test_a_drained_worker_takes_nothing_new_and_completes_after_its_last_task(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, slots=2)
        await submit_job(engine, NewTask(name="a"), NewTask(name="b"))
        claim = await claim_one(engine, worker)
        assert (await engine.for_tenant(actor="ada").signal_worker(worker.id, "drain")).state == "RUNNING"
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id)
        await engine.complete_task(claim.task_id, claim.epoch)
        assert await moves_of(engine, worker.id) == ["IDLE -> RUNNING : start_task", "RUNNING -> COMPLETED : complete_tasks"]
        await assert_promises_kept(engine)


async def test_a_paused_worker_claims_nothing_until_it_is_resumed(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING")
        await engine.for_tenant(actor="supervisor").signal_worker(worker.id, "pause", reason="maintenance")
        job = await submit_job(engine)
        assert await state_of(engine, job) == "PENDING"
        with pytest.raises(WorkerUnavailable, match="is PAUSED"):
            await engine.claim_tasks(worker.id)
        await engine.for_tenant(actor="supervisor").signal_worker(worker.id, "resume")
        assert await state_of(engine, job) == "RUNNING"
        await finish(engine, worker)
        assert await moves_of(engine, worker.id) == [
            "IDLE -> RUNNING : start_task",
            "RUNNING -> PAUSED : pause",
            "PAUSED -> RUNNING : resume",
        ]
        await assert_promises_kept(engine)


# Recovery (000 §4.1): workers


async def test_a_transient_error_is_retried_three_times_while_the_worker_stays_running(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, lease_seconds=1000)
        job = await submit_job(engine, NewTask(name="work", max_retries=3, backoff=STEADY))
        for attempt, delay in enumerate((1, 2, 4), start=1):
            claim = await claim_one(engine, worker)
            assert claim.epoch == attempt
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="connection reset"))
            assert await state_of(engine, job, "work") == "RETRYING"
            await pass_time(engine, clock, delay - 0.1)
            assert await engine.claim_tasks(worker.id) == []
            await pass_time(engine, clock, 0.2)
            assert (await engine.get_worker(worker.id)).state == "RUNNING"
            assert await state_of(engine, job) == "RUNNING"
        await finish(engine, worker)
        assert await state_of(engine, job) == "COMPLETED"
        task = await task_of(engine, job, "work")
        assert (task.retry_count, task.attempt_count, task.epoch) == (3, 4, 4)
        assert [attempt.ended_by for attempt in await engine.list_attempts(task.id)] == ["fail", "fail", "fail", "complete"]
        assert await path_of(engine, worker.id) == ["IDLE", "RUNNING"]
        await assert_promises_kept(engine)


async def test_a_fourth_transient_error_fails_the_job(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, lease_seconds=1000)
        job = await submit_job(engine, NewTask(name="work", max_retries=3, backoff=STEADY))
        for _ in range(4):
            claim = await claim_one(engine, worker)
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="connection reset"))
            await pass_time(engine, clock, 10)
        assert await state_of(engine, job) == "FAILED"
        assert (await path_of(engine, claim.task_id)).count("RETRYING") == 3
        assert (await engine.get_worker(worker.id)).state == "RUNNING"
        await assert_promises_kept(engine)


async def test_a_worker_without_resources_is_paused_and_its_job_goes_on_with_another_one(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        exhausted, spare = await hire(engine, 2)
        job = await submit_job(engine, NewTask(name="work", max_retries=1, backoff=STEADY))
        claim = await claim_one(engine, exhausted)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="out of memory"))
        paused = await engine.for_tenant(actor="supervisor").signal_worker(exhausted.id, "pause", reason="out of memory")
        assert paused.state == "PAUSED"
        assert (await last_move(engine, exhausted.id)).reason == "out of memory"
        await pass_time(engine, clock, 2)
        assert await members(engine, job) == [spare.id]
        await finish(engine, spare)
        assert await state_of(engine, job) == "COMPLETED"
        await assert_promises_kept(engine)


async def test_an_unrecoverable_error_fails_the_worker_and_gives_its_task_to_another_one(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        broken, spare = await hire(engine, 2)
        job = await submit_job(engine)
        claim = await claim_one(engine, broken)
        with pytest.raises(TransitionRefused, match="not retryable"):
            await engine.signal_worker(broken.id, "fail", reason="a hiccup", retryable=True)
        failed = await engine.for_tenant(actor=broken.id).signal_worker(broken.id, "fail", reason="disk is gone")
        assert (failed.state, failed.outcome, failed.error) == ("FAILED", "failure", "disk is gone")
        move = await last_move(engine, broken.id)
        assert (move.trigger, move.severity, move.actor, move.reason) == (
            "error_unrecoverable",
            "error",
            broken.id,
            "disk is gone",
        )
        assert await state_of(engine, job) == "RUNNING"
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        assert await members(engine, job) == [spare.id]
        await finish(engine, spare)
        assert await state_of(engine, job) == "COMPLETED"
        assert await path_of(engine, claim.task_id) == ["PENDING", "QUEUED", "RUNNING", "QUEUED", "RUNNING", "SUCCEEDED"]
        await assert_promises_kept(engine)


async def test_a_terminated_worker_is_replaced_at_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        ended, spare = await hire(engine, 2)
        job = await submit_job(engine)
        claim = await claim_one(engine, ended)
        await engine.for_tenant(actor="supervisor").signal_worker(ended.id, "terminate", ended=True)
        assert (await engine.send_heartbeat(ended.id, [(claim.task_id, claim.epoch)])).lost == ((claim.task_id, claim.epoch),)
        assert await members(engine, job) == [spare.id]
        await finish(engine, spare)
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        await assert_promises_kept(engine)


async def test_a_worker_that_is_silent_for_too_long_is_terminated(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine, lease_seconds=30)
        await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING")
        await pass_time(engine, clock, 31)
        assert (await engine.get_worker(worker.id)).state == "RUNNING"
        await pass_time(engine, clock, 300)
        move = await last_move(engine, worker.id)
        assert (move.from_state, move.to_state, move.trigger) == ("RUNNING", "TERMINATED", "terminate")
        assert (move.actor, move.reason) == ("engine", "no heartbeat for too long")
        await assert_promises_kept(engine)


# Recovery (000 §4.2): jobs


async def test_a_crashed_worker_is_replaced_and_its_job_stays_running(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (crashed,) = await hire(engine, lease_seconds=30)
        job = await submit_job(engine)
        lost = await claim_one(engine, crashed)
        await pass_time(engine, clock, 31)
        assert await state_of(engine, job) == "RUNNING"
        assert await state_of(engine, job, "work") == "QUEUED"
        assert await members(engine, job) == []
        (replacement,) = await hire(engine)
        assert await members(engine, job) == [replacement.id]
        claim = await claim_one(engine, replacement)
        assert (claim.task_id, claim.epoch) == (lost.task_id, lost.epoch + 1)
        with pytest.raises(LeaseLost, match="attempt 2 has taken over"):
            await engine.complete_task(lost.task_id, lost.epoch)
        await engine.complete_task(claim.task_id, claim.epoch)
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        assert await moves_of(engine, claim.task_id) == [
            "PENDING -> QUEUED : ready",
            "QUEUED -> RUNNING : claim",
            "RUNNING -> QUEUED : lease_lost",
            "QUEUED -> RUNNING : claim",
            "RUNNING -> SUCCEEDED : complete",
        ]
        attempts = await engine.list_attempts(claim.task_id)
        assert [(attempt.worker_id, attempt.ended_by) for attempt in attempts] == [
            (crashed.id, "lease_lost"),
            (replacement.id, "complete"),
        ]
        await assert_promises_kept(engine)


async def test_a_job_keeps_its_other_workers_when_one_crashes(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        workers = await hire(engine, 2, lease_seconds=30)
        job = await submit_job(engine, NewTask(name="a"), NewTask(name="b"), worker_count=2)
        first = await claim_one(engine, workers[0])
        second = await claim_one(engine, workers[1])
        clock.advance(20)
        await engine.send_heartbeat(workers[0].id, [(first.task_id, first.epoch)])
        await pass_time(engine, clock, 15)
        assert await members(engine, job) == [workers[0].id]
        await engine.complete_task(first.task_id, first.epoch)
        taken = await claim_one(engine, workers[0])
        assert (taken.task_id, taken.epoch) == (second.task_id, 2)
        await engine.complete_task(taken.task_id, taken.epoch)
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        await assert_promises_kept(engine)


# Repeated requests


async def test_a_repeated_request_gets_the_stored_answer_and_has_one_effect(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING")
        first = await engine.signal_worker(worker.id, "pause", reason="lunch", request_id="req-1")
        clock.advance(100)
        await engine.send_heartbeat(worker.id)
        await engine.signal_worker(worker.id, "resume", request_id="req-2")
        assert await engine.signal_worker(worker.id, "pause", reason="lunch", request_id="req-1") == first
        assert await path_of(engine, worker.id) == ["IDLE", "RUNNING", "PAUSED", "RUNNING"]

        job = await engine.submit_run(NewRun(name="once", lifecycle="supervised", tasks=(NewTask(name="a"),)), request_id="r")
        again = await engine.submit_run(NewRun(name="once", lifecycle="supervised", tasks=(NewTask(name="a"),)), request_id="r")
        assert again == job
        assert [run.id for run in await engine.list_runs()] == [job.id]
        await assert_promises_kept(engine)


async def test_a_refused_transition_is_an_answer_that_is_stored_too(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        refused = await engine.request_transition(Kind.WORKER, worker.id, to_state="PAUSED", request_id="r")
        await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING")
        assert await engine.request_transition(Kind.WORKER, worker.id, to_state="PAUSED", request_id="r") == refused
        assert (await engine.get_worker(worker.id)).state == "RUNNING"
        await assert_promises_kept(engine)


async def test_a_request_that_raised_is_not_stored_and_may_be_tried_again(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        with pytest.raises(TransitionRefused):
            await engine.signal_worker(worker.id, "pause", request_id="r")
        await engine.request_transition(Kind.WORKER, worker.id, to_state="RUNNING")
        assert (await engine.signal_worker(worker.id, "pause", request_id="r")).state == "PAUSED"
        await assert_promises_kept(engine)


async def test_a_worker_whose_answer_was_lost_may_report_again(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        (worker,) = await hire(engine)
        job = await submit_job(engine)
        claim = await claim_one(engine, worker)
        first = await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output={"n": 1}), request_id="done")
        assert (
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output={"n": 1}), request_id="done") == first
        )
        with pytest.raises(KeyReused):
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output={"n": 2}), request_id="done")
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output={"n": 1}))
        assert await path_of(engine, job.id) == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        await assert_promises_kept(engine)


async def test_concurrent_twins_have_one_effect_and_one_answer(database_url: str, clock: ManualClock) -> None:
    new = NewRun(name="once", lifecycle="supervised", tasks=(NewTask(name="a"),))
    async with open_engine(database_url, clock) as engine:
        jobs = await asyncio.gather(*(engine.submit_run(new, request_id="twin") for _ in range(10)))
        assert all(job == jobs[0] for job in jobs)
        assert [run.id for run in await engine.list_runs()] == [jobs[0].id]
        await assert_promises_kept(engine)


async def test_twins_in_two_processes_have_one_effect_and_one_answer(database_url: str, clock: ManualClock) -> None:
    new = NewRun(name="once", lifecycle="supervised", tasks=(NewTask(name="a"),))
    async with open_engine(database_url, clock, seed=1) as one, open_engine(database_url, clock, seed=2) as two:
        jobs = await asyncio.gather(*(engine.submit_run(new, request_id="twin") for engine in (one, two) * 5))
        assert all(job == jobs[0] for job in jobs)
        assert [run.id for run in await two.list_runs()] == [jobs[0].id]
        await assert_promises_kept(two)


async def test_a_key_is_refused_for_another_request(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.submit_run(NewRun(name="a", tasks=(NewTask(name="a"),)), request_id="r")
        with pytest.raises(KeyReused, match="'r' was used for another request"):
            await engine.submit_run(NewRun(name="b", tasks=(NewTask(name="a"),)), request_id="r")
        runs = (NewRun(name=name, tasks=(NewTask(name="a"),)) for name in "cd")
        outcomes = await asyncio.gather(*(engine.submit_run(run, request_id="s") for run in runs), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Run, KeyReused]
        assert len(await engine.list_runs()) == 2
        await assert_promises_kept(engine)


async def test_a_key_belongs_to_one_route_and_one_tenant(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await engine.submit_run(NewRun(name="a", tasks=(NewTask(name="a"),)), request_id="r")
        other = await engine.for_tenant("other").submit_run(NewRun(name="b", tasks=(NewTask(name="a"),)), request_id="r")
        await engine.signal_run(job.id, "cancel", request_id="r")
        assert await state_of(engine, job) == "CANCELED"
        assert (await engine.for_tenant("other").get_run(other.id)).state == "PENDING"
        await assert_promises_kept(engine)


async def test_an_expired_key_has_a_fresh_effect(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        first = await engine.register_worker("w", request_id="r")
        clock.advance(3599)
        assert (await engine.register_worker("w", request_id="r")).id == first.id
        clock.advance(1)
        second = await engine.register_worker("w", request_id="r")
        assert second.id != first.id
        clock.advance(3599)
        assert (await engine.register_worker("w", request_id="r")).id == second.id
        await assert_promises_kept(engine)


async def test_expired_keys_are_purged_and_others_are_not(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for number in range(3):
            await engine.declare_tool("compiler", request_id=f"old-{number}")
        clock.advance(1800)
        kept = await engine.declare_tool("compiler", cooldown_seconds=9, request_id="young")
        assert await engine.tend() == 0
        clock.advance(1800)
        assert await engine.tend() == 3
        assert await engine.tend() == 0
        assert await engine.declare_tool("compiler", cooldown_seconds=9, request_id="young") == kept
        await assert_promises_kept(engine)


async def test_the_result_of_a_job_is_stored_with_it(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await engine.register_worker("w", lifecycle="supervised")
        job = await submit_job(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        for output in ({"rows": 3}, None):
            claim = await claim_one(engine, worker)
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output=output))
        done = await engine.get_run(job.id)
        assert (done.state, msgspec.json.decode(done.output or "")) == ("COMPLETED", {"a": {"rows": 3}, "b": None})


async def test_a_job_that_took_too_long_says_so(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        job = await submit_job(engine, NewTask(name="a"), timeout_seconds=60)
        await pass_time(engine, clock, 61)
        ended = await engine.get_run(job.id)
        assert (ended.state, msgspec.json.decode(ended.error or "")["type"]) == ("CANCELED", "timeout")


@pytest.mark.parametrize("end", ["its process has ended", "its lease has run out"])
async def test_the_worker_of_a_canceled_job_is_free_when_its_process_has_ended(
    database_url: str, clock: ManualClock, end: str
) -> None:
    """Document 000: a cancel kills the processes and releases the resources; the next job must not meet the old process."""
    async with open_engine(database_url, clock) as engine:
        worker = await engine.register_worker("w", lifecycle="supervised", lease_seconds=30)
        job = await submit_job(engine)
        claim = await claim_one(engine, worker)
        assert (await engine.signal_run(job.id, "cancel")).state == "CANCELED"
        following = await submit_job(engine)
        assert await state_of(engine, following) == "PENDING"
        assert (await engine.send_heartbeat(worker.id, [(claim.task_id, 1)])).cancelled == ((claim.task_id, 1),)
        if end == "its process has ended":
            await engine.report_attempt(claim.task_id, 1, "cancel")
            assert await state_of(engine, following) == "RUNNING"
        else:
            await pass_time(engine, clock, 31)
        assert (await engine.get_task(claim.task_id)).state == "CANCELED"
        await assert_promises_kept(engine)

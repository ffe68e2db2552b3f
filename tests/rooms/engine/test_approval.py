"""Document 003 from end to end: templates in strict order, reclaimed steps, backoff by attempts, and gates for people."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, pass_time, path_of, register, state_of, submit, task_of
from tests.rooms.engine.test_standard import (
    EXACT,
    LEASE,
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

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import KeyReused, LeaseLost, NotFound, TransitionRefused
from pointsman.store.rows import Run, Worker

TEMPLATE = (NewTask(name="FETCH"), NewTask(name="BUILD"), NewTask(name="APPROVAL", gate=True), NewTask(name="SHIP"))


async def submit_template(engine: Engine, *tasks: NewTask, **options: Any) -> Run:
    return await submit(engine, *(tasks or TEMPLATE), lifecycle="approval", ordered=True, **options)


async def test_steps_run_in_the_order_of_their_template_whatever_their_priority(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=5)
        run = await submit_template(engine, NewTask(name="one"), NewTask(name="two", priority=9), NewTask(name="three"))
        for name in ("one", "two", "three"):
            (claim,) = await engine.claim_tasks(worker.id, 5)
            assert claim.name == name
            await engine.complete_task(claim.task_id, claim.epoch)
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "SUCCEEDED"]
        assert await path_of(engine, (await task_of(engine, run, "two")).id) == ["PENDING", "RUNNING", "SUCCEEDED"]


async def test_a_run_is_pending_until_its_first_step_is_claimed(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_template(engine)
        assert await state_of(engine, run) == "PENDING"
        claim = await claim_one(engine, worker)
        assert claim.attempt_count == 1
        assert await state_of(engine, run) == "RUNNING"
        assert await states_of(engine, run) == {
            "FETCH": "RUNNING",
            "BUILD": "PENDING",
            "APPROVAL": "PENDING",
            "SHIP": "PENDING",
        }


async def test_a_gate_opens_when_it_is_reached_and_only_a_person_passes_it(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=5)
        run = await submit_template(engine)
        gate = await task_of(engine, run, "APPROVAL")
        with pytest.raises(TransitionRefused):
            await engine.signal_task(gate.id, "approve")
        assert (await engine.approve_run(run.id)).state == "PENDING", "with no gate open, approving changes nothing"
        assert await complete_all(engine, worker) == ["FETCH", "BUILD"]
        assert await states_of(engine, run) == {
            "FETCH": "SUCCEEDED",
            "BUILD": "SUCCEEDED",
            "APPROVAL": "WAITING_APPROVAL",
            "SHIP": "PENDING",
        }
        assert await state_of(engine, run) == "WAITING_APPROVAL"
        await claim_nothing(engine, worker)
        approved = await engine.for_tenant(actor="ada").approve_run(run.id, reason="go")
        assert approved.state == "RUNNING"
        events = await read_stream(engine)
        assert (await engine.approve_run(run.id)).state == "RUNNING"
        assert await read_stream(engine) == events, "approving twice is approving once"
        passed = await task_of(engine, run, "APPROVAL")
        assert (passed.state, passed.actor, passed.reason) == ("SUCCEEDED", "ada", "go")
        assert (passed.attempt_count, await engine.list_attempts(gate.id)) == (0, [])
        assert await complete_all(engine, worker) == ["SHIP"]
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "WAITING_APPROVAL", "RUNNING", "SUCCEEDED"]


async def test_the_last_gate_completes_the_run(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_template(engine, NewTask(name="BUILD"), NewTask(name="APPROVAL", gate=True))
        await claim_and_complete(engine, worker)
        assert (await engine.approve_run(run.id)).state == "SUCCEEDED"
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED"]
        assert (await engine.approve_run(run.id)).state == "SUCCEEDED"


async def test_a_run_may_begin_with_a_gate(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_template(engine, NewTask(name="APPROVAL", gate=True), NewTask(name="SHIP"))
        assert await state_of(engine, run) == "WAITING_APPROVAL"
        await engine.approve_run(run.id)
        assert await complete_all(engine, worker) == ["SHIP"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_run_with_other_work_does_not_wait_for_its_gate(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="APPROVAL", gate=True), NewTask(name="other"), lifecycle="approval")
        assert await states_of(engine, run) == {"APPROVAL": "WAITING_APPROVAL", "other": "PENDING"}
        assert await state_of(engine, run) == "PENDING"
        claim = await claim_one(engine, worker)
        assert await state_of(engine, run) == "RUNNING"
        await engine.complete_task(claim.task_id, claim.epoch)
        assert await state_of(engine, run) == "WAITING_APPROVAL"


async def test_a_gate_that_nobody_answers_ends_the_run(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="APPROVAL", gate=True, approval_seconds=60), NewTask(name="SHIP"))
        await pass_time(engine, clock, 60)
        assert await state_of(engine, run, "APPROVAL") == "CANCELED"
        assert await state_of(engine, run) == "FAILED"


async def test_a_failed_step_waits_two_to_the_power_of_its_attempts(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=86400)
        run = await submit_template(engine, NewTask(name="a", max_attempts=4, backoff=EXACT), NewTask(name="b"))
        for attempts, seconds in ((1, 20), (2, 40), (3, 80)):
            claim = await claim_and_fail(engine, worker, f"failure {attempts}")
            assert claim.attempt_count == attempts
            step = await task_of(engine, run, "a")
            assert (step.state, step.attempt_count) == ("PENDING", attempts)
            assert step.available_at == clock.now() + timedelta(seconds=seconds)
            assert await state_of(engine, run) == "RUNNING"
            await pass_time(engine, clock, seconds - 0.001)
            await claim_nothing(engine, worker)
            await pass_time(engine, clock, 0.001)
        await claim_and_complete(engine, worker)
        assert await path_of(engine, claim.task_id) == ["PENDING", *["RUNNING", "PENDING"] * 3, "RUNNING", "SUCCEEDED"]
        assert await complete_all(engine, worker) == ["b"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_retries_that_are_asked_for_as_well_do_not_change_the_backoff(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=86400)
        run = await submit_template(engine, NewTask(name="a", max_attempts=4, max_retries=3, backoff=EXACT))
        for seconds in (20, 40, 80):
            await claim_and_fail(engine, worker)
            assert (await task_of(engine, run, "a")).available_at == clock.now() + timedelta(seconds=seconds)
            await pass_time(engine, clock, seconds)


async def test_jitter_spreads_the_backoff_within_its_share(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=20)
        backoff = Backoff(base_seconds=100, jitter=0.25)
        tasks = [NewTask(name=f"t{number}", max_retries=1, backoff=backoff) for number in range(20)]
        run = await submit(engine, *tasks, lifecycle="approval")
        for claim in await engine.claim_tasks(worker.id, 20):
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="all at once"))
        due = [task.available_at for task in await engine.list_tasks(run.id)]
        assert all(at is not None and 200 <= (at - clock.now()).total_seconds() <= 250 for at in due)
        assert len(set(due)) > 15


async def test_used_up_attempts_fail_the_step_and_the_run_for_good(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit_template(engine, NewTask(name="a", max_attempts=2, backoff=EXACT), NewTask(name="b"))
        await claim_and_fail(engine, worker)
        await pass_time(engine, clock, 20)
        claim = await claim_and_fail(engine, worker, "again", exit_code=2)
        assert await states_of(engine, run) == {"a": "FAILED", "b": "CANCELED"}
        failed = await engine.get_run(run.id)
        assert (failed.state, message_of(failed)) == ("FAILED", "again")
        await claim_nothing(engine, worker)
        for signal in ("retry", "cancel", "approve"):
            with pytest.raises(TransitionRefused):
                await engine.signal_task(claim.task_id, signal)
            with pytest.raises(TransitionRefused):
                await engine.signal_run(run.id, "retry")
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "FAILED"]


async def test_a_failure_behind_an_approved_gate_fails_the_run(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_template(engine, NewTask(name="APPROVAL", gate=True), NewTask(name="SHIP", max_attempts=1))
        await engine.approve_run(run.id)
        await claim_and_fail(engine, worker)
        assert (await path_of(engine, run.id))[-1] == "FAILED"


async def test_what_is_not_retryable_fails_at_once(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_template(engine, NewTask(name="a", max_attempts=9))
        await claim_and_fail(engine, worker, retryable=False)
        assert await state_of(engine, run, "a") == "FAILED"
        assert await state_of(engine, run) == "FAILED"


async def test_a_timeout_is_a_failure_like_any_other(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit_template(engine, NewTask(name="a", max_attempts=2, timeout_seconds=60, backoff=EXACT))
        await claim_one(engine, worker)
        await pass_time(engine, clock, 60)
        assert await state_of(engine, run, "a") == "PENDING"
        await pass_time(engine, clock, 20)
        await claim_one(engine, worker)
        await pass_time(engine, clock, 60)
        assert await state_of(engine, run, "a") == "FAILED"


async def test_output_and_cost_are_stored_with_the_step(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit_template(engine, NewTask(name="a", max_retries=1, backoff=EXACT))
        await claim_and_fail(engine, worker, cost_usd=usd("0.50"))
        await pass_time(engine, clock, 20)
        claim = await claim_and_complete(engine, worker, output={"url": "https://example.org"}, cost_usd=usd("0.25"))
        step = await engine.get_task(claim.task_id)
        assert msgspec.json.decode(str(step.output)) == {"url": "https://example.org"}
        assert (step.cost_usd, (await engine.get_run(run.id)).spent_usd) == (usd("0.75"), usd("0.75"))
        assert [attempt.cost_usd for attempt in await engine.list_attempts(step.id)] == [usd("0.50"), usd("0.25")]


# reclaim


async def lose_worker(engine: Engine, clock: ManualClock) -> Worker:
    """A worker that claims the only step and is not heard of any more."""
    worker = await register(engine, lease_seconds=LEASE)
    await claim_one(engine, worker)
    await pass_time(engine, clock, LEASE + 1)
    return worker


async def test_a_step_of_a_silent_worker_stays_running_and_is_taken_over_by_a_new_attempt(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="a"))
        zombie = await lose_worker(engine, clock)
        step = await task_of(engine, run, "a")
        assert (step.state, step.epoch, step.lease_expired) == ("RUNNING", 1, True)
        for stale in (
            engine.complete_task(step.id, 1, AttemptReport(output="stale", cost_usd=usd(1))),
            engine.fail_task(step.id, 1, AttemptReport(error="stale")),
            engine.report_attempt(step.id, 1, report=AttemptReport(cost_usd=usd(1))),
        ):
            with pytest.raises(LeaseLost, match="its lease has expired"):
                await stale
        heir = await register(engine)
        claim = await claim_one(engine, heir)
        assert (claim.epoch, claim.attempt_count) == (2, 2)
        with pytest.raises(LeaseLost, match="attempt 2 has taken over"):
            await engine.complete_task(step.id, 1)
        assert (await engine.send_heartbeat(zombie.id, [(step.id, 1)])).lost == ((step.id, 1),)
        await engine.complete_task(step.id, 2, AttemptReport(output="fresh"))
        done = await engine.get_task(step.id)
        assert (done.state, msgspec.json.decode(str(done.output)), done.cost_usd) == ("SUCCEEDED", "fresh", usd(0))
        assert await path_of(engine, step.id) == ["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
        history = await engine.list_history(step.id)
        assert [(event.trigger, event.severity) for event in history if event.from_state == "RUNNING"] == [
            ("reclaim", "warning"),
            ("complete", "info"),
        ]
        old, new = await engine.list_attempts(step.id)
        assert (old.worker_id, old.ended_by, new.worker_id, new.ended_by) == (zombie.id, "reclaim", heir.id, "complete")
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_worker_that_comes_back_may_take_its_own_step_over(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="a"))
        worker = await lose_worker(engine, clock)
        await engine.send_heartbeat(worker.id)
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        assert (await claim_and_complete(engine, worker)).epoch == 2
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_lost_step_outlives_the_worker_that_lost_it(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="a"))
        worker = await lose_worker(engine, clock)
        await pass_time(engine, clock, LEASE * 10)
        assert (await engine.get_worker(worker.id)).state == "SHUTDOWN"
        heir = await register(engine)
        assert (await claim_and_complete(engine, heir)).epoch == 2
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_terminated_worker_leaves_its_step_to_the_next_claim(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="a"))
        worker, heir = await register(engine), await register(engine)
        await claim_one(engine, worker)
        await engine.signal_worker(worker.id, "terminate", ended=True)
        assert await state_of(engine, run, "a") == "RUNNING"
        assert (await claim_and_complete(engine, heir)).epoch == 2


async def test_a_step_older_than_its_limit_is_reclaimed_from_a_worker_that_still_beats(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        slow, heir = await register(engine, lease_seconds=3600), await register(engine, lease_seconds=3600)
        run = await submit_template(engine, NewTask(name="a", reclaim_after_seconds=100))
        first = await claim_one(engine, slow)
        await pass_time(engine, clock, 99.9)
        await claim_nothing(engine, heir)
        await pass_time(engine, clock, 0.1)
        second = await claim_one(engine, heir)
        assert (second.task_id, second.epoch) == (first.task_id, 2)
        assert (await engine.send_heartbeat(slow.id, [(first.task_id, 1)])).lost == ((first.task_id, 1),)
        with pytest.raises(LeaseLost):
            await engine.complete_task(first.task_id, 1)
        assert (await engine.get_worker(slow.id)).state == "IDLE", "who lost its only step is free"
        await pass_time(engine, clock, 99)
        await engine.complete_task(second.task_id, 2)
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_attempts_that_reclaims_use_up_fail_the_step(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="a", max_attempts=2))
        await lose_worker(engine, clock)
        assert await state_of(engine, run, "a") == "RUNNING"
        await lose_worker(engine, clock)
        step = await task_of(engine, run, "a")
        assert (step.state, step.attempt_count) == ("FAILED", 2)
        assert await state_of(engine, run) == "FAILED"


async def test_a_step_that_kills_its_workers_is_stopped(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="a", max_reclaims=2))
        for _ in range(3):
            assert await state_of(engine, run) in ("PENDING", "RUNNING")
            await lose_worker(engine, clock)
        assert await state_of(engine, run, "a") == "FAILED"


async def test_a_reclaimed_step_that_fails_goes_on_counting(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, NewTask(name="a", max_attempts=3, backoff=EXACT))
        await lose_worker(engine, clock)
        worker = await register(engine, lease_seconds=3600)
        await claim_and_fail(engine, worker)
        step = await task_of(engine, run, "a")
        assert (step.state, step.attempt_count) == ("PENDING", 2)
        assert step.available_at == clock.now() + timedelta(seconds=40)


# cancel


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "WAITING_APPROVAL"])
async def test_a_step_is_cancelled_from_wherever_it_stands(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_template(engine, NewTask(name="x", gate=state == "WAITING_APPROVAL"), NewTask(name="after"))
        if state == "RUNNING":
            await claim_one(engine, worker)
        step = await task_of(engine, run, "x")
        assert step.state == state
        assert (await engine.for_tenant(actor="ada").signal_task(step.id, "cancel")).state == "CANCELED"
        assert await states_of(engine, run) == {"x": "CANCELED", "after": "CANCELED"}
        assert await state_of(engine, run) == "FAILED"
        if state == "RUNNING":
            with pytest.raises(LeaseLost):
                await engine.complete_task(step.id, step.epoch)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "WAITING_APPROVAL", "stale", "backing off"])
async def test_a_cancelled_run_cancels_its_steps_from_wherever_they_stand(
    database_url: str, clock: ManualClock, state: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(
            engine,
            NewTask(name="first"),
            NewTask(name="x", gate=state == "WAITING_APPROVAL", max_retries=1),
            NewTask(name="after"),
        )
        worker = await register(engine)
        if state != "PENDING":
            await claim_and_complete(engine, worker)
        match state:
            case "RUNNING":
                await claim_one(engine, worker)
            case "backing off":
                await claim_and_fail(engine, worker)
            case "stale":
                await lose_worker(engine, clock)
        canceled = await engine.for_tenant(actor="ada").signal_run(run.id, "cancel", reason="not needed")
        assert canceled.state == "CANCELED"
        states = await states_of(engine, run)
        assert states.pop("first") == ("CANCELED" if state == "PENDING" else "SUCCEEDED")
        assert set(states.values()) == {"CANCELED"}
        await pass_time(engine, clock, 3600)
        fresh = await register(engine)
        await claim_nothing(engine, fresh)
        for signal in ("cancel", "retry"):
            with pytest.raises(TransitionRefused):
                await engine.signal_run(run.id, signal)
        assert (await engine.approve_run(run.id)).state == "CANCELED"


async def test_a_run_that_takes_too_long_is_cancelled(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_template(engine, timeout_seconds=600)
        await pass_time(engine, clock, 600)
        assert await state_of(engine, run) == "CANCELED"
        assert set((await states_of(engine, run)).values()) == {"CANCELED"}


# idempotency and tenants


async def test_a_key_makes_one_durable_run_for_each_tenant(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock, tenants=("default", "other")) as engine:
        new = NewRun(name="release", tasks=TEMPLATE, lifecycle="approval", ordered=True)
        first = await engine.submit_run(new, request_id="k1")
        assert (await engine.submit_run(new, request_id="k1")).id == first.id
        other = await engine.for_tenant("other").submit_run(new, request_id="k1")
        assert other.id != first.id
        with pytest.raises(KeyReused):
            await engine.submit_run(NewRun(name="another", tasks=TEMPLATE, lifecycle="approval"), request_id="k1")
        assert len(await engine.list_runs()) == len(await engine.for_tenant("other").list_runs()) == 1
        for attempt in (
            engine.for_tenant("other").approve_run(first.id),
            engine.for_tenant("other").signal_run(first.id, "cancel"),
            engine.for_tenant("other").get_run(first.id),
        ):
            with pytest.raises(NotFound):
                await attempt

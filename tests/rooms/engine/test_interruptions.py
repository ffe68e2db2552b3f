"""A worker that a person stops gives its attempts back: nothing is counted, and no run ends for it. Other ends count."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, pass_time, register, state_of, submit, task_of
from tests.rooms.engine.test_standard import proved_engine

from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewTask
from pointsman.kernel.machine import Outcome, Phase
from pointsman.lifecycles import SHIPPED

TIMES = 5
"""More often than a task may be reclaimed, retried or attempted here."""


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_an_interrupted_attempt_does_not_count(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        first, second = NewTask(name="a", max_attempts=2, max_retries=1), NewTask(name="b", depends_on=("a",))
        run = await submit(engine, first, second, lifecycle=lifecycle)
        worker = await register(engine, lease_seconds=3600)
        for number in range(1, TIMES + 1):
            claim = await claim_one(engine, worker)
            assert (claim.name, claim.epoch, claim.attempt_count) == ("a", number, 1)
            await engine.report_attempt(claim.task_id, claim.epoch, "interrupt", AttemptReport(error="interrupted"))
            task = await task_of(engine, run, "a")
            assert (task.attempt_count, task.retry_count, task.reclaim_count) == (0, 0, 0)
            assert {each.outcome for each in await engine.list_tasks(run.id)} == {None}
            assert (await engine.get_run(run.id)).outcome is None
            await pass_time(engine, clock, 1)


@pytest.mark.parametrize("lifecycle", SHIPPED)
@pytest.mark.parametrize("retry_on_failure", [True, False])
async def test_a_usage_limit_costs_nothing_and_keeps_its_session_and_its_tool_waits(
    database_url: str, clock: ManualClock, lifecycle: str, *, retry_on_failure: bool
) -> None:
    """It was not tried at all, so it has not failed either."""
    async with proved_engine(database_url, clock) as engine:
        await engine.declare_tool("claude", failure_threshold=3)
        first = NewTask(name="a", tool="claude", max_attempts=1, retry_on_failure=retry_on_failure)
        run = await submit(engine, first, NewTask(name="b", tool="claude"), lifecycle=lifecycle)
        worker = await register(engine, lease_seconds=86_400)
        for number in range(1, TIMES + 1):
            claim = await claim_one(engine, worker)
            assert (claim.name, claim.epoch, claim.session_id) == ("a", number, None if number == 1 else "s")
            until = clock.now() + timedelta(hours=5)
            report = AttemptReport(error="limit", session_id="s", usage_limit_until=until, retryable=False)
            await engine.report_attempt(claim.task_id, claim.epoch, "interrupt", report)
            task, breaker = await task_of(engine, run, "a"), await engine.get_breaker("claude")
            assert (task.attempt_count, task.retry_count, task.reclaim_count) == (0, 0, 0)
            assert (task.outcome, task.available_at) == (None, until)
            assert (breaker.phase, breaker.retry_at, breaker.limited_until) == (Phase.HELD, until, until)
            assert breaker.reason == f"usage limit until {until:%Y-%m-%d %H:%M:%S} UTC"
            await pass_time(engine, clock, 5 * 3600 - 1)
            assert await engine.claim_tasks(worker.id) == []
            await pass_time(engine, clock, 1)
        probe = await claim_one(engine, worker)
        other = await register(engine, lease_seconds=86_400)
        assert await engine.claim_tasks(other.id) == []
        await engine.complete_task(probe.task_id, probe.epoch)
        assert len(await engine.list_attempts(probe.task_id)) >= TIMES
        closed = await engine.get_breaker("claude")
        assert (closed.state, closed.limited_until, closed.failure_count) == ("CLOSED", None, 0)


async def test_of_two_usage_limits_the_later_one_holds(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        await engine.declare_tool("claude")
        await submit(engine, *(NewTask(name=name, tool="claude") for name in "abc"))
        worker = await register(engine, slots=3, lease_seconds=86_400)
        claims = await engine.claim_tasks(worker.id, 3)
        for claim, hours in zip(claims, (2, 5, 3), strict=True):
            report = AttemptReport(usage_limit_until=clock.now() + timedelta(hours=hours))
            await engine.report_attempt(claim.task_id, claim.epoch, "interrupt", report)
        assert (await engine.get_breaker("claude")).retry_at == clock.now() + timedelta(hours=5)
        await pass_time(engine, clock, 4 * 3600)
        assert await engine.claim_tasks(worker.id, 3) == []
        await pass_time(engine, clock, 3600)
        assert len(await engine.claim_tasks(worker.id, 3)) == 1


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_who_resets_a_circuit_ends_the_usage_limit_of_its_tool_and_of_no_other(
    database_url: str, clock: ManualClock, lifecycle: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        tools = ("claude", "codex")
        for tool in tools:
            await engine.declare_tool(tool)
        run = await submit(engine, *(NewTask(name=tool, tool=tool) for tool in tools), lifecycle=lifecycle)
        worker = await register(engine, slots=2, lease_seconds=86_400)
        for claim in await engine.claim_tasks(worker.id, 2):
            report = AttemptReport(error="limit", usage_limit_until=clock.now() + timedelta(hours=5))
            await engine.report_attempt(claim.task_id, claim.epoch, "interrupt", report)
        assert await engine.claim_tasks(worker.id, 2) == []
        await engine.reset_breaker("claude")
        await pass_time(engine, clock, 0)
        (again,) = await engine.claim_tasks(worker.id, 2)
        assert again.name == "claude"
        assert (await task_of(engine, run, "codex")).available_at == clock.now() + timedelta(hours=5)


async def test_a_usage_limit_that_is_over_does_not_start_its_tool_at_once(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        await submit(engine, NewTask(name="a"))
        worker = await register(engine)
        claim = await claim_one(engine, worker)
        report = AttemptReport(usage_limit_until=clock.now() - timedelta(hours=1))
        await engine.report_attempt(claim.task_id, claim.epoch, "interrupt", report)
        assert await engine.claim_tasks(worker.id) == []
        await pass_time(engine, clock, 1)
        assert (await claim_one(engine, worker)).epoch == 2


async def test_a_usage_limit_may_end_in_any_time_zone_and_at_any_time(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        far = timezone(-timedelta(hours=23, minutes=59))
        for hours, until in ((5, (clock.now() + timedelta(hours=5)).astimezone(far)), (None, datetime.max.replace(tzinfo=far))):
            run = await submit(engine, NewTask(name="a"))
            claim = await claim_one(engine, await register(engine))
            await engine.report_attempt(claim.task_id, claim.epoch, "interrupt", AttemptReport(usage_limit_until=until))
            available_at = (await task_of(engine, run, "a")).available_at
            assert available_at
            assert available_at == until if hours else clock.now() < available_at < until


async def test_a_task_to_be_canceled_is_canceled_and_its_tool_still_waits(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        await engine.declare_tool("claude")
        run = await submit(engine, NewTask(name="a", tool="claude"), lifecycle="agent")
        claim = await claim_one(engine, await register(engine))
        await engine.signal_task(claim.task_id, "cancel")
        report = AttemptReport(usage_limit_until=clock.now() + timedelta(hours=1))
        await engine.report_attempt(claim.task_id, claim.epoch, "interrupt", report)
        task = await task_of(engine, run, "a")
        assert (task.outcome, task.available_at) == (Outcome.CANCELED, None)
        assert (await engine.get_breaker("claude")).state == "OPEN"


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_a_session_outlives_its_worker(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    """The id is stored while the attempt runs, so that a worker that is killed loses nothing."""
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", max_retries=2), lifecycle=lifecycle)
        claim = await claim_one(engine, await register(engine, lease_seconds=10))
        assert claim.session_id is None
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(session_id="s"))
        assert (await task_of(engine, run, "a")).session_id == "s"
        await pass_time(engine, clock, 11)
        if lifecycle == "agent":  # a lost lease is a failure there, and a person runs it again
            assert await state_of(engine, run, "a") == "FAILED"
            await engine.signal_task(claim.task_id, "retry")
        await pass_time(engine, clock, 3600)
        again = await claim_one(engine, await register(engine, lease_seconds=3600))
        assert (again.epoch, again.session_id) == (2, "s")
        first, *_ = await engine.list_attempts(claim.task_id)
        assert (first.session_id, first.resumed) == ("s", False)


async def test_who_starts_over_gets_a_new_session_and_who_resumes_the_same(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        await submit(engine, NewTask(name="a", max_reclaims=0))
        for signal, session in (("resume", "s"), ("retry", None)):
            claim = await claim_one(engine, await register(engine, lease_seconds=10))
            await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(session_id="s"))
            await pass_time(engine, clock, 11)
            await engine.signal_task(claim.task_id, signal)
            worker = await register(engine, lease_seconds=10)
            again = await claim_one(engine, worker)
            assert again.session_id == session
            await engine.report_attempt(again.task_id, again.epoch, "interrupt")
            await engine.signal_worker(worker.id, "drain")


@pytest.mark.parametrize("lifecycle", SHIPPED)
@pytest.mark.parametrize("by_worker", [True, False])
async def test_an_attempt_that_took_too_long_goes_on_in_its_session(
    database_url: str, clock: ManualClock, lifecycle: str, *, by_worker: bool
) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", timeout_seconds=60, max_retries=1), lifecycle=lifecycle)
        worker = await register(engine, lease_seconds=86_400)
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(session_id="s"))
        if by_worker:
            await engine.report_attempt(claim.task_id, claim.epoch, "expire", AttemptReport(error="too slow"))
        else:
            await pass_time(engine, clock, 61)
        if lifecycle == "agent":  # a person decides there whether it goes on
            assert await state_of(engine, run, "a") == "TIMED_OUT"
            await engine.signal_task(claim.task_id, "resume")
        await pass_time(engine, clock, 3600)
        again = await claim_one(engine, worker)
        assert (again.epoch, again.session_id) == (2, "s")


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
async def test_an_answer_reaches_the_session_that_asked(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        await submit(engine, NewTask(name="a"), lifecycle=lifecycle)
        worker = await register(engine)
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(session_id="s"))
        await engine.report_attempt(claim.task_id, claim.epoch, "ask", AttemptReport(question="which?"))
        await engine.signal_task(claim.task_id, "answer", answer="this one")
        again = await claim_one(engine, worker)
        assert (again.session_id, again.answer) == ("s", "this one")


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
async def test_work_that_was_rejected_goes_on_in_its_session(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        await submit(engine, NewTask(name="a", review=True), lifecycle=lifecycle)
        worker = await register(engine)
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(session_id="s"))
        await engine.signal_task(claim.task_id, "reject", comment="more tests")
        again = await claim_one(engine, worker)
        assert (again.session_id, again.comment) == ("s", "more tests")


async def test_an_attempt_that_was_to_be_canceled_is_canceled(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), lifecycle="agent")
        claim = await claim_one(engine, await register(engine))
        await engine.signal_task(claim.task_id, "cancel")
        refusals = await engine.report_attempts([ReportAttempt(claim.task_id, claim.epoch, "interrupt")])
        assert refusals == [None]
        assert (await task_of(engine, run, "a")).outcome == Outcome.CANCELED
        assert await state_of(engine, run) == "FAILED"


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_an_attempt_that_a_worker_gives_back_counts_so_that_no_task_exhausts_workers_for_ever(
    database_url: str, clock: ManualClock, lifecycle: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", max_reclaims=2), lifecycle=lifecycle)
        worker = await register(engine, lease_seconds=36_000)
        for _ in range(3):
            claim = await claim_one(engine, worker)
            assert (await task_of(engine, run, "a")).outcome is None
            report = AttemptReport(error="out of memory", cost_usd=Decimal(1))
            await engine.report_attempt(claim.task_id, claim.epoch, "give_back", report)
            await pass_time(engine, clock, 3600)
        task = await task_of(engine, run, "a")
        assert task.cost_usd == 3
        assert task.outcome == Outcome.FAILURE
        assert "out of memory" in str(task.error)


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_a_worker_that_died_leaves_and_its_task_is_free_at_once(
    database_url: str, clock: ManualClock, lifecycle: str
) -> None:
    """Also where its machine has no way to terminate it."""
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        idle, busy = [await register(engine, lease_seconds=3600, lifecycle=lifecycle) for _ in range(2)]
        await claim_one(engine, busy)
        for worker in (idle, busy):
            left = await engine.signal_worker(worker.id, "terminate", ended=True, reason="the worker was killed")
            assert left.phase == Phase.DONE
        assert (await claim_one(engine, await register(engine))).epoch == 2
        assert await state_of(engine, run) == "RUNNING"

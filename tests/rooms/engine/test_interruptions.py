"""A worker that a person stops gives its attempts back: nothing is counted, and no run ends for it. Other ends count."""

from __future__ import annotations

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

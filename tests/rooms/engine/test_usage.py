"""Tokens and costs are summed up for attempts, tasks, runs and tenants; a tenant may have a budget."""

from __future__ import annotations

from decimal import Decimal

import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, pass_time, register, state_of, submit, task_of
from tests.rooms.engine.test_standard import proved_engine

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.kernel.machine import Outcome, Phase
from pointsman.lifecycles import SHIPPED
from pointsman.store.rows import Account, Attempt, Run, Task

USED = AttemptReport(cost_usd=Decimal("0.25"), tokens_in=1000, tokens_out=50)
GUESSED = AttemptReport(cost_usd=Decimal("0.5"), tokens_in=2000, tokens_out=70, cost_is_estimated=True)


def used(row: Task | Run | Attempt | Account) -> tuple[Decimal, int, int, bool]:
    cost = row.cost_usd if isinstance(row, Task | Attempt) else row.spent_usd
    return cost, row.tokens_in, row.tokens_out, row.cost_is_estimated


async def everything(engine: Engine, run: Run) -> list[tuple[Decimal, int, int, bool]]:
    """What the last attempt, the task, the run and the tenant have used."""
    task = await task_of(engine, run, "a")
    *_, last = await engine.list_attempts(task.id)
    return [used(last), used(task), used(await engine.get_run(run.id)), used(await engine.get_account())]


async def test_usage_is_summed_up_while_the_attempt_runs(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", max_retries=1))
        worker = await register(engine, lease_seconds=86_400)
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, report=USED)
        assert await everything(engine, run) == [(Decimal("0.25"), 1000, 50, False)] * 4
        await engine.report_attempt(claim.task_id, claim.epoch, report=GUESSED)
        assert await everything(engine, run) == [(Decimal("0.75"), 3000, 120, True)] * 4
        await engine.fail_task(claim.task_id, claim.epoch, USED)
        assert await everything(engine, run) == [(Decimal(1), 4000, 170, True)] * 4
        await pass_time(engine, clock, 3600)
        again = await claim_one(engine, worker)
        await engine.complete_task(again.task_id, again.epoch, USED)
        last, *sums = await everything(engine, run)
        assert (last, sums) == ((Decimal("0.25"), 1000, 50, False), [(Decimal("1.25"), 5000, 220, True)] * 3)


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_what_was_reported_before_a_kill_is_not_lost(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), lifecycle=lifecycle)
        claim = await claim_one(engine, await register(engine, lease_seconds=10))
        await engine.report_attempt(claim.task_id, claim.epoch, report=GUESSED)
        await pass_time(engine, clock, 11)
        first, *_ = await engine.list_attempts(claim.task_id)
        kept = (Decimal("0.5"), 2000, 70, True)
        assert [used(first), *(await everything(engine, run))[1:]] == [kept] * 4


async def test_tokens_without_a_cost_are_counted_with_the_cost_of_another_task(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"))
        worker = await register(engine, slots=2)
        for claim, report in zip(await engine.claim_tasks(worker.id, 2), (AttemptReport(tokens_in=7), USED), strict=True):
            await engine.complete_task(claim.task_id, claim.epoch, report)
        assert used(await engine.get_run(run.id)) == (Decimal("0.25"), 1007, 50, False)


# the budget of a tenant


@pytest.mark.parametrize("lifecycle", SHIPPED)
async def test_a_tenant_that_has_spent_its_budget_starts_nothing(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        await engine.set_tenant_budget(Decimal(1))
        run = await submit(engine, NewTask(name="a"), lifecycle=lifecycle)
        worker = await register(engine, lease_seconds=86_400)
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=Decimal(1)))
        assert (await task_of(engine, run, "a")).phase == Phase.ACTIVE
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=Decimal("0.01")))
        task = await task_of(engine, run, "a")
        assert task.outcome == Outcome.FAILURE
        if lifecycle in ("standard", "agent", "supervised"):
            assert task.state == "BUDGET_EXCEEDED"
        assert "the tenant has spent 1.01 USD of its budget of 1 USD" in (task.error or "")
        other = await submit(engine, NewTask(name="b"))
        free = await register(engine, lease_seconds=86_400)
        assert await engine.claim_tasks(free.id) == []
        assert await state_of(engine, other, "b") == "QUEUED"
        await engine.set_tenant_budget(Decimal(2), reason="a new month")
        assert (await claim_one(engine, free)).name == "b"
        notice, *_ = await engine.list_notices(limit=1)
        assert notice.message == "The budget of the tenant is 2 USD. It was 1 USD. By user: a new month"


async def test_an_attempt_is_told_what_is_left_of_the_smallest_budget(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        await submit(
            engine, NewTask(name="a", max_retries=9), NewTask(name="b", budget_usd=Decimal("0.1")), budget_usd=Decimal(1)
        )
        worker = await register(engine, slots=2)
        first, other = await engine.claim_tasks(worker.id, 2)
        assert (first.budget_usd, other.budget_usd) == (Decimal(1), Decimal("0.1"))
        await engine.fail_task(first.task_id, first.epoch, USED)
        await pass_time(engine, clock, 3600)
        assert (await claim_one(engine, await register(engine))).budget_usd == Decimal("0.75")
        await engine.set_tenant_budget(Decimal("0.3"))
        await submit(engine, NewTask(name="c"))
        assert (await claim_one(engine, await register(engine))).budget_usd == Decimal("0.05")


async def test_each_tenant_has_its_own_budget(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        acme = engine.for_tenant("acme")
        await acme.set_tenant_budget(Decimal(0))
        await acme.submit_run(NewRun(name="theirs", tasks=(NewTask(name="theirs"),)))
        await submit(engine, NewTask(name="ours"))
        worker = await engine.register_worker("shared", serves="all", max_concurrent_tasks=2)
        assert [claim.name for claim in await engine.claim_tasks(worker.id, 2)] == ["ours"]
        assert (await engine.get_account()).budget_usd is None
        await acme.set_tenant_budget(None)
        assert [claim.name for claim in await engine.claim_tasks(worker.id, 2)] == ["theirs"]


async def test_the_same_budget_again_is_no_news(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        for _ in range(3):
            account = await engine.set_tenant_budget(Decimal(5))
        assert account == await engine.get_account() == Account(tenant="default", budget_usd=Decimal(5))
        assert len(await engine.list_notices(limit=10)) == 1

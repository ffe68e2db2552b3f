"""Quotas: how much unfinished work a tenant may have at once, whoever adds it and however many do so together."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, register

from pointsman.engine.engine import TenantEngine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import QuotaExceeded, RequestInvalid
from pointsman.store.rows import Quota, Run, Use

ACME, GLOBEX = "acme", "globex"


async def submit(engine: TenantEngine, *names: str, payload: object = None) -> Run:
    return await engine.submit_run(NewRun(name="r", tasks=[NewTask(name=name, payload=payload) for name in names or ("a",)]))


async def use_of(engine: TenantEngine) -> Use:
    return (await engine.measure_tenant()).use


async def test_a_run_beyond_the_quota_is_refused_until_another_has_ended(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = engine.for_tenant(ACME)
        await acme.set_quotas(max_runs=2)
        first, _ = await submit(acme), await submit(acme)
        with pytest.raises(QuotaExceeded, match="acme may have 2 unfinished runs, and has 2: 1 more do not fit") as refused:
            await submit(acme)
        assert (refused.value.quota, refused.value.limit, refused.value.used) == ("max_runs", 2, 2)
        assert "pointsman tenant set acme --max-runs N" in str(refused.value)
        await submit(engine.for_tenant(GLOBEX))
        await acme.signal_run(first.id, "cancel")
        await submit(acme)
        assert (await use_of(acme)).runs == 2


async def test_tasks_count_however_they_are_added(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.set_quotas(max_tasks=3)
        run = await submit(engine, "a", "b")
        with pytest.raises(QuotaExceeded, match="2 more do not fit"):
            await submit(engine, "a", "b")
        with pytest.raises(QuotaExceeded):
            await engine.add_tasks(run.id, [NewTask(name="c"), NewTask(name="d")])
        await engine.add_tasks(run.id, [NewTask(name="c")])
        claim = await claim_one(engine, await register(engine))
        with pytest.raises(QuotaExceeded):
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(subtasks=[NewTask(name="part", parent="a")]))
        assert (await engine.get_task(claim.task_id)).current_attempt == claim.epoch, "a refused report changes nothing"
        await engine.complete_task(claim.task_id, claim.epoch)
        assert await use_of(engine) == Use(runs=1, tasks=2, payload_bytes=3 * len("null"))


async def test_the_payloads_of_unfinished_runs_and_tasks_count(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.set_quotas(max_bytes=1000)
        await submit(engine, payload="ü" * 300)
        assert (await use_of(engine)).payload_bytes == 600 + len('""') + len("null")
        with pytest.raises(QuotaExceeded, match="max-bytes"):
            await submit(engine, payload="x" * 500)
        await submit(engine, payload="x" * 300)


async def test_a_quota_of_zero_stops_new_work_and_none_lifts_it(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.set_quotas(max_runs=0, reason="unpaid")
        with pytest.raises(QuotaExceeded):
            await submit(engine)
        assert await engine.set_quotas() == Quota(tenant="default")
        await submit(engine)
        told = [notice.message for notice in await engine.list_notices() if notice.subject == "quotas"]
        assert told[1] == "The tenant may have 0 unfinished runs. By user: unpaid"
        assert len(told) == 2
        await engine.set_quotas()
        assert len([notice for notice in await engine.list_notices() if notice.subject == "quotas"]) == 2, "nothing changed"
        with pytest.raises(RequestInvalid):
            await engine.set_quotas(max_tasks=-1)


async def test_requests_of_one_batch_count_together(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.set_quotas(max_runs=5, max_tasks=8)
        answers = await asyncio.gather(*(submit(engine, "a", "b") for _ in range(20)), return_exceptions=True)
        assert sum(isinstance(answer, Run) for answer in answers) == 4
        assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 16


async def test_several_processes_never_admit_more_together(database_url: str, clock: ManualClock) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(open_engine(database_url, clock, seed=seed)) for seed in range(4)]
        for max_runs in (7, 23):
            await engines[0].for_tenant(ACME).set_quotas(max_runs=max_runs)
            asked = (submit(engine.for_tenant(ACME)) for engine in engines for _ in range(15))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(answer) for answer in answers} == {Run, QuotaExceeded}, answers
            assert (await use_of(engines[1].for_tenant(ACME))).runs == max_runs

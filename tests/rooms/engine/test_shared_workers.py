"""Shared workers: a worker serves its own tenant, a list of tenants or all of them, and tenants take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.rooms.engine.harness import ManualClock, open_engine, pass_time
from tests.rooms.store.outsider import outsider

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import LeaseLost, NotFound, RequestInvalid, WorkerUnavailable
from pointsman.store.rows import Run, Task, Worker

FLEET, ACME, GLOBEX, INITECH = "fleet", "acme", "globex", "initech"
LEASE = 30
BATCH = 100


async def share(engine: Engine, serves: Any, *, slots: int = 1, **options: Any) -> Worker:
    return await engine.for_tenant(FLEET).register_worker("shared", serves=serves, max_concurrent_tasks=slots, **options)


async def submit(engine: Engine, tenant: str, count: int = 1, *, lifecycle: str = "standard", **options: Any) -> Run:
    tasks = tuple(NewTask(name=f"{tenant}-{number}", **options) for number in range(count))
    return await engine.for_tenant(tenant).submit_run(NewRun(name=tenant, tasks=tasks, lifecycle=lifecycle))


async def claim(engine: Engine, worker: Worker, limit: int = 1, **options: Any) -> list[Claim]:
    return await engine.for_tenant(worker.tenant).claim_tasks(worker.id, limit, **options)


async def complete(engine: Engine, claims: list[Claim]) -> None:
    for each in claims:
        await engine.for_tenant(each.tenant).complete_task(each.task_id, each.epoch)


async def test_a_worker_claims_for_the_tenants_that_it_serves_and_no_other(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in (FLEET, ACME, GLOBEX, INITECH):
            await submit(engine, tenant)
        own = await engine.for_tenant(ACME).register_worker("own", max_concurrent_tasks=9)
        listed, everyones = await share(engine, (ACME, GLOBEX), slots=9), await share(engine, "all", slots=9)
        assert [each.tenant for each in await claim(engine, own, 9)] == [ACME]
        assert {each.tenant for each in await claim(engine, listed, 9)} == {FLEET, GLOBEX}
        assert {each.tenant for each in await claim(engine, everyones, 9)} == {INITECH}


@pytest.mark.parametrize("serves", [(GLOBEX, ACME), "all"], ids=["a-list", "all"])
async def test_tenants_take_turns(database_url: str, clock: ManualClock, serves: Any) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in (ACME, GLOBEX, FLEET):
            await submit(engine, tenant, 3)
        worker = await share(engine, serves)
        served = []
        for _ in range(9):
            (claimed,) = await claim(engine, worker)
            served.append(claimed.tenant)
            await complete(engine, [claimed])
        assert served == [ACME, FLEET, GLOBEX] * 3


async def test_a_batch_is_shared_equally_and_no_room_is_left(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant, count in ((ACME, 40), (GLOBEX, 3), (INITECH, 40)):
            await submit(engine, tenant, count)
        worker = await share(engine, "all", slots=20)
        first = await claim(engine, worker, 20)
        assert Counter(each.tenant for each in first) == {ACME: 9, GLOBEX: 3, INITECH: 8}
        await complete(engine, first)
        second = await claim(engine, worker, 15)
        assert Counter(each.tenant for each in second) == {INITECH: 8, ACME: 7}, "the tenant that got less comes first"


async def test_within_a_tenant_priority_and_age_decide(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit(engine, GLOBEX, 2)
        await engine.for_tenant(ACME).submit_run(
            NewRun(name="a", tasks=(NewTask(name="old"), NewTask(name="new"), NewTask(name="urgent", priority=5)))
        )
        worker = await share(engine, (ACME, GLOBEX), slots=4)
        names = [each.name for each in await claim(engine, worker, 4)]
        assert [name for name in names if not name.startswith(GLOBEX)] == ["urgent", "old"]


async def test_a_tenant_whose_tasks_the_worker_cannot_do_costs_no_other_its_turn(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for number in range(20):
            await submit(engine, f"gpu-{number:02}", capabilities=("gpu",))
        await submit(engine, GLOBEX)
        await submit(engine, INITECH)
        worker = await share(engine, "all")
        assert [each.tenant for each in await claim(engine, worker)] == [GLOBEX]


async def test_an_open_circuit_of_one_tenant_does_not_stop_another(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in (ACME, GLOBEX):
            await engine.for_tenant(tenant).declare_tool("model", failure_threshold=1)
            await submit(engine, tenant, 2, tool="model")
        worker = await share(engine, "all")
        (broken,) = await claim(engine, worker)
        await engine.for_tenant(broken.tenant).fail_task(
            broken.task_id, broken.epoch, AttemptReport(error="no answer", retryable=False)
        )
        for _ in range(2):
            (claimed,) = await claim(engine, worker)
            assert claimed.tenant == GLOBEX
            await complete(engine, [claimed])
        assert await claim(engine, worker) == []


async def test_a_shared_worker_reports_in_the_tenant_of_the_task(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in (ACME, GLOBEX):
            await submit(engine, tenant)
        worker = await share(engine, "all", slots=2)
        first, second = await claim(engine, worker, 2)
        for tenant in (FLEET, second.tenant):
            with pytest.raises(NotFound):
                await engine.for_tenant(tenant).complete_task(first.task_id, first.epoch)
        await engine.for_tenant(first.tenant).report_attempt(first.task_id, first.epoch, report=AttemptReport(session_id="s"))
        await engine.for_tenant(first.tenant).complete_task(first.task_id, first.epoch)
        done = ReportAttempt(second.task_id, second.epoch, "complete")
        assert await engine.for_tenant(second.tenant).report_attempts([done]) == [None]
        for each in (first, second):
            assert (await engine.for_tenant(each.tenant).get_run(each.run_id)).state == "SUCCEEDED"
            (attempt,) = await engine.for_tenant(each.tenant).list_attempts(each.task_id)
            assert attempt.worker_id == worker.id
        assert (await engine.for_tenant(FLEET).get_worker(worker.id)).state == "IDLE"


async def test_a_heartbeat_speaks_for_the_tasks_of_every_tenant(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in (ACME, GLOBEX):
            await submit(engine, tenant)
        worker = await share(engine, "all", slots=2)
        held = [(each.task_id, each.epoch) for each in await claim(engine, worker, 2)]
        assert (await engine.for_tenant(FLEET).send_heartbeat(worker.id, held)).lost == ()
        stranger = await engine.for_tenant(ACME).register_worker("stranger")
        assert (await engine.for_tenant(ACME).send_heartbeat(stranger.id, held)).lost == tuple(held), (
            "only its own attempts count"
        )
        clock.advance(LEASE + 1)
        assert set((await engine.for_tenant(FLEET).send_heartbeat(worker.id, held[:1])).unknown) == set(held[1:])
        assert (await engine.for_tenant(FLEET).send_heartbeat(worker.id, held)).lost == tuple(held[1:]), "it was given up"


async def test_the_tasks_of_a_silent_shared_worker_go_to_others(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in (ACME, GLOBEX):
            await submit(engine, tenant, lifecycle="approval" if tenant == ACME else "standard")
        worker = await share(engine, "all", slots=2, lease_seconds=LEASE)
        lost = await claim(engine, worker, 2)
        await pass_time(engine, clock, LEASE + 1)
        for each in lost:
            with pytest.raises(LeaseLost):
                await engine.for_tenant(each.tenant).complete_task(each.task_id, each.epoch)
        other = await share(engine, "all", slots=2)
        again = await claim(engine, other, 2)
        assert {(each.task_id, each.epoch) for each in again} == {(each.task_id, 2) for each in lost}
        await complete(engine, again)


async def test_a_run_with_workers_of_its_own_gets_shared_ones(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await share(engine, (ACME,), slots=5, lifecycle="supervised")
        narrow = await share(engine, (GLOBEX,), slots=5, lifecycle="supervised")
        await submit(engine, GLOBEX, 3)
        run = await submit(engine, ACME, 2, lifecycle="supervised")
        assert (await engine.for_tenant(ACME).get_run(run.id)).state == "RUNNING"
        assert (await engine.for_tenant(FLEET).get_worker(worker.id)).run_id == run.id
        assert {each.tenant for each in await claim(engine, narrow, 3)} == {GLOBEX}
        assert {each.run_id for each in await claim(engine, worker, 5)} == {run.id}


async def test_a_shared_worker_claims_of_one_run_if_it_serves_its_tenant(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run, other = await submit(engine, ACME), await submit(engine, GLOBEX)
        worker = await share(engine, (ACME,))
        with pytest.raises(NotFound):
            await claim(engine, worker, run_id=other.id)
        assert [each.run_id for each in await claim(engine, worker, run_id=run.id)] == [run.id]


async def test_only_its_owner_steers_a_shared_worker(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit(engine, ACME)
        worker = await share(engine, (ACME,))
        refused: list[Awaitable[Any]] = [
            engine.for_tenant(ACME).signal_worker(worker.id, "drain"),
            engine.for_tenant(ACME).send_heartbeat(worker.id),
            engine.for_tenant(ACME).claim_tasks(worker.id),
            engine.for_tenant(ACME).list_history(worker.id),
            engine.for_tenant(GLOBEX).get_worker(worker.id),
        ]
        for each in refused:
            with pytest.raises(NotFound):
                await each
        (seen,) = await engine.for_tenant(ACME).list_workers()
        assert (seen.id, seen.serves, seen.actor) == (worker.id, '["acme"]', None)
        assert await engine.for_tenant(GLOBEX).list_workers() == []
        await engine.for_tenant(FLEET).signal_worker(worker.id, "pause")
        with pytest.raises(WorkerUnavailable):
            await claim(engine, worker)


@pytest.mark.parametrize("serves", ["some", [""], [7], None, {"acme": 1}], ids=repr)
async def test_what_a_worker_serves_is_checked(database_url: str, clock: ManualClock, serves: Any) -> None:
    async with open_engine(database_url, clock) as engine:
        with pytest.raises(RequestInvalid, match="serves"):
            await share(engine, serves)


async def test_100_000_tasks_of_one_tenant_do_not_delay_another_by_more_than_a_batch(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, ACME, lifecycle="approval")
        multiply_task(database_url, run, 100_000)
        for serves in ((ACME, GLOBEX), "all"):
            worker = await share(engine, serves, slots=2 * BATCH)
            assert Counter(each.tenant for each in await claim(engine, worker, BATCH)) == {ACME: BATCH}
            await submit(engine, GLOBEX)
            assert Counter(each.tenant for each in await claim(engine, worker, BATCH)) == {ACME: BATCH - 1, GLOBEX: 1}


def multiply_task(url: str, run: Run, count: int) -> None:
    """Copy the only task of a run, under the law of the database, in a fraction of the time that it takes to submit them."""
    columns = ", ".join(name for name in Task.__struct_fields__ if name not in ("id", "name"))
    with outsider(url) as somebody:
        somebody.ask(
            f"INSERT INTO task (id, name, {columns}) "
            "WITH RECURSIVE copy (place) AS (SELECT 2 UNION ALL SELECT place + 1 FROM copy WHERE place < :count) "
            f"SELECT id || '-' || place, name || '-' || place, {columns} FROM task CROSS JOIN copy WHERE run_id = :run_id",
            count=count,
            run_id=run.id,
        )


async def test_ten_thousand_tasks_of_one_tenant_do_not_delay_another(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit(engine, ACME, 10_000, priority=9)
        worker = await share(engine, "all", slots=8)
        await complete(engine, await claim(engine, worker, 8))
        await submit(engine, GLOBEX, 12)
        for _ in range(3):
            got = await claim(engine, worker, 8)
            assert Counter(each.tenant for each in got) == {ACME: 4, GLOBEX: 4}
            await complete(engine, got)
        assert {each.tenant for each in await claim(engine, worker, 8)} == {ACME}

"""What histories have brought to light, each shown once more on its own, without any luck."""

from __future__ import annotations

import asyncio

import psycopg
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, pass_time, register, submit

from pointsman import app
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask

PATIENCE_SECONDS = 20.0
WAITING = b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def _see_waiting(url: str, count: int) -> None:
    """Until that many transactions wait for others."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as onlooker:
            while True:
                cursor = await onlooker.execute(WAITING)
                if await cursor.fetchone() == (count,):
                    return
                await asyncio.sleep(0.01)


def test_a_job_that_ends_while_it_waits_to_be_allocated_gets_nobody(postgres_url: str) -> None:
    """Who is about to mend its gang has seen it running, and must look again when it is its turn."""

    async def play() -> None:
        async with app.open(postgres_url, keeps=False) as one, app.open(postgres_url, keeps=False) as two:
            workers = [await one.register_worker(name) for name in ("first", "second")]
            job = await submit(one, NewTask(name="a"), lifecycle="supervised", worker_count=2)
            claim = await claim_one(one, workers[0])
            await one.signal_worker(workers[1].id, "terminate")
            async with await psycopg.AsyncConnection.connect(postgres_url) as outsider:
                await outsider.execute("SELECT 1 FROM worker WHERE id = %s FOR UPDATE", [workers[0].id])
                completing = asyncio.create_task(one.complete_task(claim.task_id, claim.epoch))
                await _see_waiting(postgres_url, 1)
                registering = asyncio.create_task(two.register_worker("third"))
                await _see_waiting(postgres_url, 2)
                await outsider.rollback()
                await asyncio.gather(completing, registering)
            assert (await one.get_run(job.id)).state == "COMPLETED"
            assert {worker.run_id for worker in await one.list_workers()} == {None}

    asyncio.run(play())


def test_a_worker_that_takes_a_task_while_it_waits_to_be_allocated_is_not_free(postgres_url: str) -> None:
    """Who is about to get it has seen it with empty hands, and must look again when it is its turn."""

    async def play() -> None:
        async with app.open(postgres_url, keeps=False) as one, app.open(postgres_url, keeps=False) as two:
            worker = await one.register_worker("worker")
            run = await submit(one, NewTask(name="a"))
            async with await psycopg.AsyncConnection.connect(postgres_url) as outsider:
                await outsider.execute("SELECT 1 FROM run WHERE id = %s FOR UPDATE", [run.id])
                claiming = asyncio.create_task(one.claim_tasks(worker.id))
                await _see_waiting(postgres_url, 1)
                submitting = asyncio.create_task(submit(two, NewTask(name="b"), lifecycle="supervised"))
                await _see_waiting(postgres_url, 2)
                await outsider.rollback()
                (claim,), job = await asyncio.gather(claiming, submitting)
            assert (job.state, (await one.get_worker(worker.id)).run_id) == ("PENDING", None)
            await one.complete_task(claim.task_id, claim.epoch)
            assert (await one.get_run(job.id)).state == "RUNNING"
            assert (await one.get_worker(worker.id)).run_id == job.id

    asyncio.run(play())


def test_a_claim_that_waits_for_a_run_holds_no_breaker(postgres_url: str) -> None:
    """Whoever reports has the run and wants the breaker: in the other order, both would wait until the database ends one."""

    async def play() -> None:
        clock = ManualClock()
        async with open_engine(postgres_url, clock) as engine:
            worker = await register(engine)
            await engine.declare_tool("hammer", failure_threshold=1, cooldown_seconds=1)
            run = await submit(engine, NewTask(name="a", tool="hammer", critical=False), NewTask(name="b", tool="hammer"))
            claim = await claim_one(engine, worker)
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no"))
            await pass_time(engine, clock, 1)
            assert (await engine.get_breaker("hammer")).state == "HALF_OPEN"
            async with await psycopg.AsyncConnection.connect(postgres_url) as outsider:
                await outsider.execute("SELECT 1 FROM run WHERE id = %s FOR UPDATE", [run.id])
                claiming = asyncio.create_task(engine.claim_tasks(worker.id))
                await _see_waiting(postgres_url, 1)
                await outsider.execute("SELECT 1 FROM breaker FOR UPDATE NOWAIT")
                await outsider.rollback()
                (probe,) = await claiming
            assert probe.name == "b"
            assert (await engine.get_breaker("hammer")).probe_task_id == probe.task_id

    asyncio.run(play())

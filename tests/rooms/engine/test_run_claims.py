"""Claims of one run: whoever asks for a run gets its tasks and no others, by the rules that hold for every claim."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from tests.rooms.engine.harness import ManualClock, open_engine, pass_time, register, state_of, submit, task_of

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import NotFound
from pointsman.store.rows import Run, Worker


async def claim_names(engine: Engine, worker: Worker, run: Run, limit: int = 99, wait_seconds: float = 0.0) -> list[str]:
    return [claim.name for claim in await engine.claim_tasks(worker.id, limit, run_id=run.id, wait_seconds=wait_seconds)]


async def test_only_the_tasks_of_that_run_are_claimed(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=9)
        other = await submit(engine, NewTask(name="urgent", priority=9), NewTask(name="older"))
        run = await submit(engine, NewTask(name="a"), NewTask(name="b", priority=1), NewTask(name="c", depends_on=("a",)))
        assert await claim_names(engine, worker, run, 1) == ["b"]
        assert await claim_names(engine, worker, run) == ["a"]
        assert await claim_names(engine, worker, run) == []
        assert await state_of(engine, other, "urgent") == "QUEUED"
        assert await state_of(engine, run) == "RUNNING"
        assert {claim.name for claim in await engine.claim_tasks(worker.id, 9)} == {"urgent", "older"}


async def test_a_run_that_is_unknown_or_somebody_elses_is_not_found(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        theirs = await engine.for_tenant("globex").submit_run(NewRun(name="theirs", tasks=(NewTask(name="a"),)))
        for run_id in ("run_unknown", theirs.id):
            with pytest.raises(NotFound):
                await engine.claim_tasks(worker.id, 1, run_id=run_id)
        assert (await engine.get_worker(worker.id)).state == "IDLE"


async def test_a_run_that_is_paused_or_over_has_nothing_to_claim(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a"))
        await engine.signal_run(run.id, "pause")
        assert await claim_names(engine, worker, run) == []
        await engine.signal_run(run.id, "cancel")
        assert await claim_names(engine, worker, run) == []


async def test_many_that_are_alike_are_claimed_and_completed_together(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=50)
        await submit(engine, *(NewTask(name=f"other-{number}") for number in range(50)))
        run = await submit(engine, *(NewTask(name=f"t{number}", payload=number) for number in range(50)))
        claims = await engine.claim_tasks(worker.id, 50, run_id=run.id)
        assert [(claim.run_id, claim.payload) for claim in claims] == [(run.id, number) for number in range(50)]
        done = [ReportAttempt(task_id=claim.task_id, epoch=claim.epoch, signal="complete") for claim in claims]
        assert await engine.report_attempts(done) == [None] * 50
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_what_a_worker_cannot_do_is_left_and_the_rest_is_not(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=9, capabilities=["linux"])
        run = await submit(
            engine,
            NewTask(name="gpu", capabilities=("gpu",), priority=9),
            NewTask(name="linux", capabilities=("linux",)),
            NewTask(name="any"),
        )
        assert await claim_names(engine, worker, run) == ["linux", "any"]


async def test_a_lost_task_of_that_run_is_taken_over(database_url: str, clock: ManualClock) -> None:
    """In `approval`, where a lost task stays where it is until the next claim."""
    async with open_engine(database_url, clock) as engine:
        gone = await register(engine, slots=2, lease_seconds=30.0, lifecycle="approval")
        runs = [await submit(engine, NewTask(name=name), lifecycle="approval") for name in ("mine", "theirs")]
        assert len(await engine.claim_tasks(gone.id, 2)) == 2
        await pass_time(engine, clock, 31)
        worker = await register(engine, slots=2, lifecycle="approval")
        (claim,) = await engine.claim_tasks(worker.id, 2, run_id=runs[0].id)
        assert (claim.name, claim.epoch) == ("mine", 2)
        assert (await task_of(engine, runs[1], "theirs")).lease_expired


async def test_open_circuits_and_budgets_stand_in_its_way_as_well(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", failure_threshold=1, cooldown_seconds=60.0)
        worker = await register(engine, slots=9, lease_seconds=600.0)
        broken = await submit(engine, NewTask(name="a", tool="model"))
        (claim,) = await engine.claim_tasks(worker.id, 1, run_id=broken.id)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="down"))
        run = await submit(
            engine,
            NewTask(name="waits", tool="model", priority=9),
            NewTask(name="dear", budget_usd=Decimal(3)),
            NewTask(name="as dear", budget_usd=Decimal(3)),
            NewTask(name="free"),
            budget_usd=Decimal(4),
        )
        assert await claim_names(engine, worker, run) == ["dear", "free"]
        await pass_time(engine, clock, 61)
        assert await claim_names(engine, worker, run) == ["waits"], "the probe"


async def test_a_worker_of_another_run_gets_nothing(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2, lifecycle="supervised")
        own = await submit(engine, NewTask(name="own"), lifecycle="supervised", worker_count=1)
        run = await submit(engine, NewTask(name="other"))
        assert (await engine.get_worker(worker.id)).run_id == own.id
        assert await claim_names(engine, worker, run) == []
        assert await claim_names(engine, worker, own) == ["own"]


async def test_whoever_waits_for_a_run_is_told_when_a_task_of_it_is_there(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        (first,) = await engine.claim_tasks(worker.id, 2, run_id=run.id)
        waiting = asyncio.create_task(claim_names(engine, worker, run, wait_seconds=30.0))
        await submit(engine, NewTask(name="of another run"))
        await engine.complete_task(first.task_id, first.epoch)
        assert await waiting == ["b"]


async def test_two_workers_share_a_run_without_sharing_a_task(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine, open_engine(database_url, clock, seed=2) as second:
        run = await submit(engine, *(NewTask(name=f"t{number}") for number in range(40)))

        async def drain(engine: Engine) -> list[str]:
            worker = await register(engine, slots=3)
            done: list[str] = []
            while claims := await engine.claim_tasks(worker.id, 3, run_id=run.id):
                await engine.report_attempts(
                    [ReportAttempt(task_id=claim.task_id, epoch=claim.epoch, signal="complete") for claim in claims]
                )
                done += [claim.name for claim in claims]
            return done

        first, other = await asyncio.gather(drain(engine), drain(second))
        assert sorted(first + other) == sorted(f"t{number}" for number in range(40))
        assert await state_of(engine, run) == "SUCCEEDED"

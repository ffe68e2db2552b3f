"""Leases and timers go by elapsed time: a clock that is set, or a machine that was suspended, changes nothing about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from tests.rooms.engine.harness import (
    ManualClock,
    claim_one,
    make_world,
    open_engine,
    pass_time,
    register,
    state_of,
    submit,
)

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewTask
from pointsman.engine.timekeeper import TOLERANCE_SECONDS, Attendance
from pointsman.store.clock import NEVER, SLEW
from pointsman.store.rows import Worker

HOUR = 3600.0
PATIENCE_SECONDS = 20.0
SHORT = Backoff(base_seconds=0.3, jitter=0)
TEN_SECONDS = Backoff(base_seconds=10, jitter=0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing tells when a figure changes
            await asyncio.sleep(0.01)


async def fail_once(engine: Engine, worker: Worker) -> None:
    claim = await claim_one(engine, worker)
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))


@pytest.mark.parametrize("step", [HOUR, -HOUR, 86_400.0 * 400])
async def test_a_clock_that_is_set_takes_no_lease_and_no_timer_away(database_url: str, clock: ManualClock, step: float) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2, lease_seconds=30)
        run = await submit(engine, NewTask(name="works"), NewTask(name="waits", max_retries=1, backoff=TEN_SECONDS))
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 2)}
        await engine.fail_task(claims["waits"].task_id, claims["waits"].epoch, AttemptReport(error="no luck"))
        clock.step(step)
        await pass_time(engine, clock, 9)
        assert [await state_of(engine, run, name) for name in ("works", "waits")] == ["RUNNING", "RETRYING"]
        await pass_time(engine, clock, 2)
        assert [await state_of(engine, run, name) for name in ("works", "waits")] == ["RUNNING", "QUEUED"]
        await pass_time(engine, clock, 22)
        assert await state_of(engine, run, "works") == "QUEUED", "nobody has heard of its worker for a lease"


async def test_all_processes_share_one_correction(database_url: str, clock: ManualClock) -> None:
    """The second one notices the step as well, and finds that it was corrected."""
    async with open_engine(database_url, clock) as first, open_engine(database_url, clock, seed=2) as second:
        worker = await register(first, lease_seconds=30)
        await second.send_heartbeat(worker.id)
        for _ in range(3):
            clock.step(HOUR)
            clock.advance(10)
            assert await first.tend() + await second.tend() == 0
            await second.send_heartbeat(worker.id)
        late = clock.instant - (await first.get_worker(worker.id)).heartbeat_at
        assert late.total_seconds() == pytest.approx(3 * HOUR, abs=30 * SLEW)
        clock.step(-3 * HOUR)
        clock.advance(31)
        assert await second.tend() == 1


@pytest.mark.parametrize(("quiet_seconds", "step"), [(0, HOUR), (15, 45)])
async def test_a_step_after_one_that_another_process_has_corrected(
    database_url: str, clock: ManualClock, quiet_seconds: float, step: float
) -> None:
    """The wrong time has made the correction shrink, too: that is not a time which others have lived through."""
    async with open_engine(database_url, clock) as first, open_engine(database_url, clock, seed=2) as second:
        worker = await register(first, lease_seconds=5)
        clock.step(HOUR)
        await first.send_heartbeat(worker.id)
        await second.send_heartbeat(worker.id)
        clock.advance(quiet_seconds)
        clock.step(step)
        await first.send_heartbeat(worker.id)
        clock.step(step)
        clock.advance(0.1)
        assert await second.tend() == 0
        clock.advance(5 + TOLERANCE_SECONDS + 15 * SLEW)
        assert await second.tend() == 1


async def test_the_database_time_gains_on_the_wall_clock_until_they_agree(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        began = clock.instant
        await register(engine)
        clock.step(60)
        late = await submit(engine, NewTask(name="a"))
        assert late.created_at == began
        clock.advance(100)
        assert (await submit(engine, NewTask(name="a"))).created_at == began + timedelta(seconds=100 * (1 + SLEW))
        clock.advance(60 / SLEW - 100)
        assert (await submit(engine, NewTask(name="a"))).created_at == clock.instant


async def test_a_machine_that_stood_still_does_not_set_the_clock_of_the_others(database_url: str, clock: ManualClock) -> None:
    """A virtual machine that is paused counts no time: to it, the database seems to step."""
    paused_clock = ManualClock()
    async with open_engine(database_url, clock) as engine, open_engine(database_url, paused_clock, seed=2) as paused:
        worker, dead = await register(engine, lease_seconds=30), await register(paused, lease_seconds=30)
        clock.advance(HOUR)
        await engine.send_heartbeat(worker.id)
        paused_clock.step(HOUR)
        await paused.send_heartbeat(dead.id)
        assert (await paused.get_worker(dead.id)).heartbeat_at == clock.instant


@pytest.mark.parametrize("moment", ["before the question", "before the answer", "after the answer", "in its sleep"])
def test_a_process_that_was_suspended_notices_it(clock: ManualClock, moment: str) -> None:
    attendance = Attendance(clock)

    def look(moment: str = "") -> None:
        asked = clock.boottime()
        now = clock.now()
        if moment == "before the answer":
            clock.suspend(HOUR)
        attendance.arrive(now, asked)
        if moment == "after the answer":
            clock.suspend(HOUR)
        attendance.leave(30)

    look()
    clock.advance(31)
    if moment == "before the question":
        clock.suspend(HOUR)
    look(moment)
    if moment == "in its sleep":
        clock.suspend(HOUR)
    look()
    assert attendance.since == clock.now()
    look()
    clock.advance(31)
    look()
    assert attendance.since == clock.now() - timedelta(seconds=31), "it was on time"


def test_a_duty_that_takes_long_was_not_absent(clock: ManualClock) -> None:
    """If it were, silent workers would get a new lease each time that the database is too busy to take their tasks."""
    attendance = Attendance(clock)
    for seconds in (-0.1, 1.0, -0.1):
        attendance.arrive(clock.now(), clock.boottime())
        attendance.leave(seconds)
        clock.advance(10 if seconds < 0 else seconds)
    attendance.arrive(clock.now(), clock.boottime())
    assert attendance.since == NEVER


class Sleeper:
    """Sleeps until the test wakes it up."""

    def __init__(self) -> None:
        self._alarm = asyncio.Event()
        self._wanted: dict[object, float] = {}

    @property
    def wanted(self) -> set[float]:
        """How long those want to sleep who do so now."""
        return set(self._wanted.values())

    async def __call__(self, seconds: float) -> None:
        sleeper = object()
        self._wanted[sleeper] = seconds
        try:
            await self._alarm.wait()
        finally:
            self._wanted.pop(sleeper, None)

    def wake(self) -> None:
        self._wanted.clear()
        alarm, self._alarm = self._alarm, asyncio.Event()
        alarm.set()


async def test_after_a_suspension_each_worker_has_a_whole_lease_to_be_heard_of(database_url: str, clock: ManualClock) -> None:
    """Engine and workers sleep together, and the engine may wake up first. Timers that came due meanwhile fire."""
    sleep = Sleeper()
    async with app.open(database_url, world=replace(make_world(clock), sleep=sleep), clock=clock) as engine:
        worker = await register(engine, slots=2, lease_seconds=30)
        run = await submit(engine, NewTask(name="works"), NewTask(name="waits", max_retries=1, backoff=TEN_SECONDS))
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 2)}
        await engine.fail_task(claims["waits"].task_id, claims["waits"].epoch, AttemptReport(error="no luck"))
        await until(lambda: {10.0, 30.0} <= sleep.wanted)
        clock.suspend(8 * HOUR)
        sleep.wake()
        await until(lambda: 30.0 in sleep.wanted)
        await until(lambda: engine.duty_metrics["timers"].done)
        assert [await state_of(engine, run, name) for name in ("works", "waits")] == ["RUNNING", "QUEUED"]
        clock.advance(30.1)
        sleep.wake()
        await until(lambda: engine.duty_metrics["worker-expiry"].done)
        assert await state_of(engine, run, "works") == "QUEUED"


async def test_a_step_of_the_clock_of_postgresql_itself(postgres_url: str) -> None:
    """Without a clock that is passed in. A function of the same name hides that of the server."""
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Dpublic,pg_catalog"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            "CREATE TABLE step (seconds double precision); INSERT INTO step VALUES (0); "
            "CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
            "$$SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM step$$"
        )
        async with app.open(url) as engine:
            worker = await register(engine, lease_seconds=60)
            run = await submit(engine, NewTask(name="works"), NewTask(name="waits", max_retries=1, backoff=SHORT))
            claim = await claim_one(engine, worker)
            for step in (HOUR, -HOUR):
                server.execute("UPDATE step SET seconds = seconds + %s", [step])
                await engine.tend()
            assert await state_of(engine, run, claim.name) == "RUNNING"
            await fail_once(engine, await register(engine))
            server.execute("UPDATE step SET seconds = seconds - 3600")
            async with asyncio.timeout(PATIENCE_SECONDS):
                (again,) = await engine.claim_tasks((await register(engine)).id, wait_seconds=PATIENCE_SECONDS)
            assert again.epoch == 2

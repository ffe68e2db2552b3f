"""Turns to claim: how many of the workers that wait are woken by new tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.rooms.engine.harness import ManualClock, open_engine

from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.server.turns import FIRST, Turn, Turns

ACME, GLOBEX = "acme", "globex"
MANY = 100


class Pauses:
    """The sleep of the turns: each pause ends when the test says so."""

    def __init__(self) -> None:
        self._pauses: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        over = asyncio.Event()
        self._pauses.put_nowait(over)
        await over.wait()

    async def next(self) -> asyncio.Event:
        """The next pause, once it has begun."""
        async with asyncio.timeout(20):
            return await self._pauses.get()

    async def after(self, turns: list[Turn]) -> asyncio.Event:
        """The pause after the first of these turns. What was done before may have been a wake-up, too."""
        while True:
            pause = await self.next()
            if count(turns):
                return pause
            pause.set()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Engine, Turns, Pauses]]:
    pauses = Pauses()
    async with open_engine(url, ManualClock()) as engine:
        for tenant in (ACME, GLOBEX):
            await engine.for_tenant(tenant).add_tenant()
        turns = Turns(engine, pauses.sleep)
        yield engine, turns, pauses
        turns.close()


async def submit(engine: TenantEngine, count: int = 1) -> None:
    await engine.submit_run(NewRun(name="x", tasks=[NewTask(name=f"t{number}") for number in range(count)]))


def count(turns: list[Turn]) -> int:
    return sum(turn.done() for turn in turns)


async def test_a_task_wakes_a_few_and_nobody_else_once_it_is_claimed(database_url: str) -> None:
    async with opened(database_url) as (engine, turns, pauses):
        acme = engine.for_tenant(ACME)
        worker = await acme.register_worker("w")
        waiting = [turns.expect(ACME) for _ in range(MANY)]
        await submit(acme)
        pause = await pauses.after(waiting)
        assert [turn.done() for turn in waiting] == [True] * FIRST + [False] * (MANY - FIRST)
        assert len(await acme.claim_tasks(worker.id)) == 1
        pause.set()
        (await pauses.next()).set()
        assert count(waiting) == FIRST


async def test_as_many_are_woken_as_there_are_tasks(database_url: str) -> None:
    async with opened(database_url) as (engine, turns, pauses):
        waiting = [turns.expect(ACME) for _ in range(MANY)]
        await submit(engine.for_tenant(ACME), 30)
        await pauses.after(waiting)
        assert count(waiting) == 30


async def test_others_are_woken_while_a_task_stays_unclaimed(database_url: str) -> None:
    async with opened(database_url) as (engine, turns, pauses):
        waiting = [turns.expect(ACME) for _ in range(MANY)]
        await submit(engine.for_tenant(ACME))
        pause = await pauses.after(waiting)
        woken = [count(waiting)]
        while count(waiting) < MANY:
            pause.set()
            pause = await pauses.next()
            woken.append(count(waiting))
        assert woken[:3] == [FIRST, 3 * FIRST, 7 * FIRST]


async def test_the_tasks_of_a_tenant_wake_no_worker_of_another(database_url: str) -> None:
    async with opened(database_url) as (engine, turns, pauses):
        others, waiting = [turns.expect(GLOBEX) for _ in range(MANY)], [turns.expect(ACME) for _ in range(MANY)]
        await submit(engine.for_tenant(ACME))
        await pauses.after(waiting)
        assert (count(others), count(waiting)) == (0, FIRST)


async def test_a_worker_that_missed_a_wakeup_gets_its_turn_and_one_that_did_not_waits(database_url: str) -> None:
    async with opened(database_url) as (engine, turns, pauses):
        first = turns.expect(ACME)
        await submit(engine.for_tenant(ACME))
        (await pauses.after([first])).set()
        assert await first == turns.heard
        missed, served = turns.expect(ACME, turns.heard - 1), turns.expect(ACME, turns.heard)
        await pauses.after([missed])
        assert (missed.done(), served.done()) == (True, False)


async def test_workers_without_tenant_of_their_own_wait_for_the_tasks_of_all(database_url: str) -> None:
    async with opened(database_url) as (engine, turns, pauses):
        waiting = [turns.expect("default") for _ in range(MANY)]
        await submit(engine.for_tenant(ACME))
        await pauses.after(waiting)
        assert count(waiting) == FIRST


async def test_all_are_answered_at_the_end(database_url: str) -> None:
    async with opened(database_url) as (_, turns, _):
        waiting = [turns.expect(ACME) for _ in range(MANY)]
        turns.close()
        assert count(waiting) == MANY

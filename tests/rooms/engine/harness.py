"""What engine tests share: a clock that stands still until told, an engine on it, and short ways to say things."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from pointsman import app
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.store.rows import Run, Task, Worker
from pointsman.world import RandomIds, World


class ManualClock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.instant = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
        self.stepped_seconds = 0.0
        self.suspended_seconds = 0.0

    def now(self) -> datetime:
        return self.instant

    def monotonic(self) -> float:
        return self.boottime() - self.suspended_seconds

    def boottime(self) -> float:
        return self.instant.timestamp() - self.stepped_seconds

    def advance(self, seconds: float) -> None:
        self.instant += timedelta(seconds=seconds)

    def step(self, seconds: float) -> None:
        """The wall clock is set; no time passes."""
        self.instant += timedelta(seconds=seconds)
        self.stepped_seconds += seconds

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the monotonic clock stands still."""
        self.instant += timedelta(seconds=seconds)
        self.suspended_seconds += seconds


def make_world(clock: ManualClock, seed: int = 1) -> World:
    return World(clock=clock, ids=RandomIds(Random(seed)), chance=Random(seed))


@asynccontextmanager
async def open_engine(url: str, clock: ManualClock, *, seed: int = 1, **options: Any) -> AsyncIterator[Engine]:
    """An engine whose time is the manual clock; nothing is tended unless the test calls `tend` or `pass_time`."""
    async with app.open(url, world=make_world(clock, seed), clock=clock, keeps=False, **options) as engine:
        yield engine


async def pass_time(engine: Engine, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and everything happen that is due by then."""
    clock.advance(seconds)
    while await engine.tend():
        pass


async def register(engine: TenantEngine, *, slots: int = 1, **options: Any) -> Worker:
    return await engine.register_worker("worker", max_concurrent_tasks=slots, **options)


async def claim_one(engine: Engine, worker: Worker) -> Claim:
    """The one task that is there to be claimed."""
    (claimed,) = await engine.claim_tasks(worker.id, 1)
    return claimed


async def submit(engine: Engine, *tasks: NewTask, lifecycle: str = "standard", **options: Any) -> Run:
    return await engine.submit_run(NewRun(name="test", tasks=tasks, lifecycle=lifecycle, **options))


async def task_of(engine: Engine, run: Run, name: str) -> Task:
    return next(task for task in await engine.list_tasks(run.id) if task.name == name)


async def state_of(engine: Engine, run: Run, name: str | None = None) -> str:
    """The state of a run, or of one of its tasks."""
    if name is None:
        return (await engine.get_run(run.id)).state
    return (await task_of(engine, run, name)).state


async def path_of(engine: Engine, entity_id: str) -> list[str]:
    """Every state that an entity has been in, in order."""
    return [transition.to_state for transition in await engine.list_history(entity_id)]

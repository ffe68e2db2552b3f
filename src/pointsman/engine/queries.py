"""What can be asked of an engine without changing anything: a snapshot each, for a tenant, or for the whole database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from typing import TypeVar

from pointsman.engine import checks
from pointsman.engine.doctor import Diagnosis, diagnose
from pointsman.engine.machines import Machines
from pointsman.engine.wakeups import Wakeups
from pointsman.errors import EngineClosed, NotFound, Problem
from pointsman.kernel.machine import Machine, Phase
from pointsman.store.contract import Reader, Store, Wakeup, read_position
from pointsman.store.rows import Attempt, Breaker, Dependency, Entity, Notice, Result, Run, Task, Transition, Worker
from pointsman.world import World

DEFAULT_TENANT = "default"
LONGEST_PAUSE_SECONDS = 60.0
HELD_BACK_SECONDS = 0.05
"""Nobody tells when a transaction ends that had no news, but kept others from being shown."""
PAGE = 1000
LARGEST_PAGE = 10_000
CLOSED = "The engine has been closed. Open it again."

Answer = TypeVar("Answer")


class Queries:
    """The half of an engine that only looks."""

    def __init__(self, store: Store, machines: Machines, world: World) -> None:
        self._store = store
        self._machines = machines
        self._world = world
        self._wakeups = Wakeups(store, world.sleep)
        self._tenants: set[str] = set()
        """Those whose names have been looked at."""
        self._is_closed = False

    @property
    def url(self) -> str:
        """Where the database is, without any password."""
        return self._store.url

    async def get_run(self, run_id: str, *, tenant: str = DEFAULT_TENANT) -> Run:
        return await self._find("run", run_id, tenant, lambda reader: reader.find_run(tenant, run_id))

    async def get_task(self, task_id: str, *, tenant: str = DEFAULT_TENANT) -> Task:
        return await self._find("task", task_id, tenant, lambda reader: reader.find_task(tenant, task_id))

    async def get_worker(self, worker_id: str, *, tenant: str = DEFAULT_TENANT) -> Worker:
        return await self._find("worker", worker_id, tenant, lambda reader: reader.find_worker(tenant, worker_id))

    async def get_breaker(self, tool: str, *, tenant: str = DEFAULT_TENANT) -> Breaker:
        return await self._find("tool", tool, tenant, lambda reader: reader.find_breaker(tenant, tool))

    async def list_runs(
        self, *, phase: str | None = None, after: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT
    ) -> list[Run]:
        """The newest runs first; `after` is the id of the last one of the page before."""
        checks.refuse([*_page(limit), *checks.texts(after=after)])
        if phase is not None:
            checks.refuse(checks.one_of("phase", phase, tuple(Phase)))
        return await self._list(tenant, lambda reader: reader.list_runs(tenant, phase=phase, after=after, limit=limit))

    async def list_tasks(self, run_id: str, *, tenant: str = DEFAULT_TENANT) -> list[Task]:
        await self.get_run(run_id, tenant=tenant)
        return await self._list(tenant, lambda reader: reader.list_tasks(tenant, run_id))

    async def list_results(self, run_id: str, names: Collection[str], *, tenant: str = DEFAULT_TENANT) -> list[Result]:
        """What became of these tasks of a run, and of their parts; what is unknown is left out."""
        checks.identity("run", run_id)
        return await self._list(tenant, lambda reader: reader.list_results(tenant, run_id, names))

    async def count_tasks(
        self, run_ids: Collection[str], *, tenant: str = DEFAULT_TENANT
    ) -> list[tuple[str, str, str | None, int]]:
        """(run, phase, outcome, how many) of the tasks of these runs."""
        checks.refuse(checks.words("run_ids", list(run_ids)))
        return await self._list(tenant, lambda reader: reader.count_tasks(tenant, run_ids))

    async def get_machine(self, entity: Entity | Transition) -> Machine:
        """The machine that an entity follows, or followed when it made a move."""
        if known := self._machines.known(entity.machine_id):
            return known
        return await self._ask(lambda reader: self._machines.machine(entity.machine_id, reader))

    async def list_dependencies(self, run_id: str, *, tenant: str = DEFAULT_TENANT) -> list[Dependency]:
        await self.get_run(run_id, tenant=tenant)
        return await self._list(tenant, lambda reader: reader.list_dependencies(tenant, run_id))

    async def list_workers(self, *, tenant: str = DEFAULT_TENANT) -> list[Worker]:
        return await self._list(tenant, lambda reader: reader.list_workers(tenant))

    async def list_breakers(self, *, tenant: str = DEFAULT_TENANT) -> list[Breaker]:
        return await self._list(tenant, lambda reader: reader.list_breakers(tenant))

    async def list_attempts(self, task_id: str, *, tenant: str = DEFAULT_TENANT) -> list[Attempt]:
        await self.get_task(task_id, tenant=tenant)
        return await self._list(tenant, lambda reader: reader.list_attempts(tenant, task_id))

    async def list_history(self, entity_id: str, *, tenant: str = DEFAULT_TENANT) -> list[Transition]:
        """Every move that an entity has made."""
        checks.identity("entity", entity_id)
        history = await self._list(tenant, lambda reader: reader.list_history(tenant, entity_id))
        if not history:
            raise NotFound("entity", entity_id)
        return history

    async def list_notices(self, *, limit: int = 100, tenant: str = DEFAULT_TENANT) -> list[Notice]:
        checks.refuse(_page(limit))
        return await self._list(tenant, lambda reader: reader.list_notices(tenant, limit=limit))

    async def list_transitions(
        self, *, after: str | None = None, limit: int = PAGE, run_id: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Transition]:
        """The event stream behind a position: everything once, in one order."""
        checks.refuse(_page(limit))
        read_position(after)
        if run_id is not None:
            checks.identity("run", run_id)
        return await self._list(tenant, lambda reader: reader.list_transitions(tenant, after=after, limit=limit, run_id=run_id))

    async def last_position(self) -> str | None:
        return await self._ask(lambda reader: reader.last_position())

    async def watch(
        self,
        *,
        after: str | None = None,
        run_id: str | None = None,
        pause_seconds: float = 0.0,
        tenant: str = DEFAULT_TENANT,
    ) -> AsyncGenerator[Transition]:
        """The event stream behind a position, and on and on as it grows.

        After each look there is a pause, if one is wanted: what happens meanwhile is read at once, which costs far less.
        """
        while True:
            expected = self._wakeups.expect(Wakeup.EVENTS)
            page = await self.list_transitions(after=after, limit=PAGE, run_id=run_id, tenant=tenant)
            for transition in page:
                yield transition
            if page:
                after = page[-1].position
                self._wakeups.forget(expected)
                if pause_seconds and len(page) < PAGE:
                    await self._wakeups.pause(pause_seconds)
            else:
                is_held_back = await self._ask(lambda reader: reader.is_held_back())
                await self._pause(expected, HELD_BACK_SECONDS if is_held_back else LONGEST_PAUSE_SECONDS)

    async def measure_transitions(self, *, tenant: str = DEFAULT_TENANT) -> list[tuple[str, str | None, str, int, float]]:
        """(machine, from, to, how often, mean seconds in the state left)."""
        return await self._list(tenant, lambda reader: reader.measure_transitions(tenant))

    async def diagnose(self) -> list[Diagnosis]:
        """What is stuck in the whole database, why, and what would help."""
        return await self._ask(lambda reader: diagnose(reader, self._machines, reader.now()))

    async def _ask(self, question: Callable[[Reader], Answer]) -> Answer:
        def look() -> Answer:
            with self._store.read() as reader:
                return question(reader)

        if self._is_closed:
            raise EngineClosed(CLOSED)
        return await asyncio.to_thread(look)

    async def _list(self, tenant: str, question: Callable[[Reader], list[Answer]]) -> list[Answer]:
        self._check_tenant(tenant)
        return await self._ask(question)

    async def _find(self, kind: str, name: str, tenant: str, question: Callable[[Reader], Answer | None]) -> Answer:
        checks.identity(kind, name)
        self._check_tenant(tenant)
        found = await self._ask(question)
        if found is None:
            raise NotFound(kind, name)
        return found

    async def _pause(self, expected: asyncio.Future[None], seconds: float) -> None:
        pause = self._wakeups.pause(seconds)
        try:
            await self._wakeups.wait(expected, pause)
        finally:
            pause.cancel()

    def _check_tenant(self, tenant: str) -> None:
        if tenant not in self._tenants:
            checks.refuse(checks.name("tenant", tenant))
            self._tenants.add(tenant)


def _page(limit: int) -> Iterator[Problem]:
    return checks.count("limit", limit, 1, LARGEST_PAGE)

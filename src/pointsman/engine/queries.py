"""Queries: what can be asked of an engine without changing anything. Each answers from one snapshot, for one tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from copy import copy
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from pointsman.engine import budgets, checks
from pointsman.engine.batch import Decider
from pointsman.engine.figures import TenantFigures, measure_tenant
from pointsman.engine.filters import (
    EVERY_NOTICE,
    EVERY_RUN,
    EVERY_TASK,
    EVERY_WORKER,
    NoticeFilter,
    RunFilter,
    TaskFilter,
    WorkerFilter,
)
from pointsman.engine.hooks import Hooks
from pointsman.engine.machines import Machines
from pointsman.engine.operation import Caller, Operation
from pointsman.engine.pages import (
    AttemptPlace,
    HistoryPlace,
    NoticePlace,
    RunPlace,
    RunTaskPlace,
    TaskPlace,
    WorkerPlace,
    check_limit,
    select_page,
    sorted_by,
)
from pointsman.engine.timekeeper import Timekeeper
from pointsman.engine.together import Together
from pointsman.engine.wakeups import Wakeups
from pointsman.engine.writer import CLOSED, MAX_QUEUE, Writer
from pointsman.errors import EngineClosed, NotFound
from pointsman.kernel.machine import Machine
from pointsman.store.contract import Reader, Store, Wakeup, read_position
from pointsman.store.rows import (
    Account,
    ApiKey,
    Attempt,
    AttemptTimes,
    Breaker,
    Dependency,
    Entity,
    Lane,
    ListedNotice,
    MachineRow,
    Result,
    Run,
    Task,
    Template,
    Transition,
    WaitingTask,
    Worker,
)
from pointsman.world import World

LONGEST_PAUSE_SECONDS = 60.0
HELD_BACK_SECONDS = 0.05
"""No wake-up tells when a transaction ends that moved nothing, but kept others from being shown."""
PAGE = 1000

Answer = TypeVar("Answer")
Key = tuple[str, str, str]
"""Kind, tenant and id of a row."""
Lookup = tuple[Key, Callable[[Reader], Any]]


class Surroundings:
    """What all views of one engine share, wherever its database is: the world, its hooks, its wake-ups."""

    def __init__(self, url: str, world: World, wakeups: Wakeups) -> None:
        self.url = url
        self.world = world
        self.hooks = Hooks()
        self.wakeups = wakeups
        self.waiting_claims: dict[asyncio.Future[asyncio.Future[Any]], Operation[Any]] = {}
        """Claims that have found nothing, the one that has looked longest ago first. What submits one again sets the future."""
        self.is_closed = False

    async def pause(self, expected: asyncio.Future[None], seconds: float) -> None:
        """Until the wake-up that is expected, but no longer than that."""
        pause = self.wakeups.pause(seconds)
        try:
            await self.wakeups.wait(expected, pause)
        finally:
            pause.cancel()


class Core(Surroundings):
    """The database of an engine, its machines, its writer."""

    def __init__(self, store: Store, machines: Machines, world: World, max_queue: int = MAX_QUEUE) -> None:
        super().__init__(store.url, world, Wakeups(store.listen, world.sleep))
        self.store = store
        self.machines = machines
        self._lookups = Together(self._read)
        decider = Decider(machines, world, self.hooks, foresees=store.is_remote)
        self.timekeeper = Timekeeper(world.clock)
        self.writer = Writer(
            store,
            decider.decide,
            world.clock,
            world.chance,
            self.timekeeper,
            self.hooks,
            decider.follow_up,
            max_queue,
            decider.foresee,
            decider.foresight.miss,
        )

    def submit(self, operation: Operation[Answer]) -> asyncio.Future[Answer]:
        """Queue an operation. If it begins work, one of the workers that wait claims in its commit."""
        if operation.begins_work:
            for early, claim in self.waiting_claims.items():
                if claim.tenant == operation.tenant and not early.done():
                    answer, claimed = self.writer.submit_together([operation, claim])
                    early.set_result(claimed)
                    return answer
        return self.writer.submit(operation)

    async def ask(self, query: Callable[[Reader], Answer]) -> Answer:
        """Answer a query in a thread, from a connection that only reads."""

        def look() -> Answer:
            with self.store.read() as reader:
                return query(reader)

        self._check_open()
        return await asyncio.to_thread(look)

    async def look_up(self, key: Key, query: Callable[[Reader], Answer]) -> Answer:
        """Read one row, from the same snapshot as others who do that now. Rows of the same key are read once."""
        self._check_open()
        answer: Answer = await self._lookups.ask((key, query))
        return answer

    def _read(self, lookups: Sequence[Lookup]) -> list[Any]:
        """The answers, or the errors that they met. What fails in company is read again alone, so that no error spreads."""
        try:
            with self.store.read() as reader:
                found = _find_runs(reader, {key for key, _ in lookups})
                for key, query in lookups:
                    if key not in found:
                        found[key] = query(reader)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must reach who asked
            return [error] if len(lookups) == 1 else [self._read([lookup])[0] for lookup in lookups]
        return [copy(found[key]) for key, _ in lookups]

    def _check_open(self) -> None:
        if self.is_closed:
            raise EngineClosed(CLOSED)


def _find_runs(reader: Reader, keys: Collection[Key]) -> dict[Key, Any]:
    """Several runs of a tenant in one statement."""
    found: dict[Key, Any] = {}
    for tenant in {tenant for kind, tenant, _ in keys if kind == "run"}:
        run_ids = [run_id for kind, of, run_id in keys if (kind, of) == ("run", tenant)]
        if len(run_ids) > 1:
            found |= {("run", tenant, run_id): None for run_id in run_ids}
            found |= {("run", tenant, run.id): run for run in reader.find_runs(tenant, run_ids)}
    return found


class Queries:
    """The half of an engine that only reads."""

    def __init__(self, core: Core, caller: Caller) -> None:
        self._core = core
        self._around: Surroundings = core
        self._caller = caller

    @property
    def tenant(self) -> str:
        """Whose runs, tasks, workers and tools these are."""
        return self._caller.tenant

    @property
    def url(self) -> str:
        """Where the database is, without any password."""
        return self._around.url

    async def now(self) -> datetime:
        """The time of the database, by which leases and timers go."""
        return await self._ask(lambda reader: reader.now())

    async def get_run(self, run_id: str) -> Run:
        return await self._find("run", run_id, lambda reader: reader.find_run(self.tenant, run_id))

    async def get_task(self, task_id: str) -> Task:
        return await self._find("task", task_id, lambda reader: reader.find_task(self.tenant, task_id))

    async def measure_tenant(self) -> TenantFigures:
        """What this tenant may have, and has."""
        return await self._find("tenant", self.tenant, lambda reader: measure_tenant(reader, self.tenant))

    async def get_worker(self, worker_id: str) -> Worker:
        return await self._find("worker", worker_id, lambda reader: reader.find_worker(self.tenant, worker_id))

    async def get_breaker(self, tool: str) -> Breaker:
        return await self._find("tool", tool, lambda reader: reader.find_breaker(self.tenant, tool))

    async def get_template(self, name: str) -> Template:
        """A flow that was stored by its name."""
        return await self._find("template", name, lambda reader: reader.find_template(self.tenant, name))

    async def list_templates(self) -> list[Template]:
        return await self._ask(lambda reader: reader.list_templates(self.tenant))

    async def is_deleted(self, task_id: str) -> bool:
        """Whether a person has deleted a task; its row and its history stay."""
        checks.identity("task", task_id)
        return await self._ask(lambda reader: reader.find_tombstone(self.tenant, task_id) is not None)

    @sorted_by(RunPlace)
    async def list_runs(self, wanted: RunFilter = EVERY_RUN, *, after: str | None = None, limit: int = 100) -> list[Run]:
        """The newest runs first; `after` is a cursor, as in all lists that have one."""
        page = select_page(RunPlace, after, limit, RunFilter, wanted)
        return await self._ask(lambda reader: reader.list_runs(self.tenant, **page))

    @sorted_by(TaskPlace)
    async def search_tasks(self, wanted: TaskFilter = EVERY_TASK, *, after: str | None = None, limit: int = 100) -> list[Task]:
        """Tasks of all runs, of the newest run first, without payloads and deleted ones."""
        page = select_page(TaskPlace, after, limit, TaskFilter, wanted)
        return await self._ask(lambda reader: reader.search_tasks(self.tenant, **page))

    async def find_runs(self, run_ids: Collection[str]) -> list[Run]:
        """These runs; unknown ids are left out."""
        checks.refuse(checks.ids("run_ids", list(run_ids)))
        return await self._ask(lambda reader: reader.find_runs(self.tenant, run_ids))

    async def match_runs(self, part: str, *, limit: int = 100) -> list[Run]:
        """Runs whose id begins or ends with `part`, newest first; the prefix of the id may be left out."""
        checks.refuse([*check_limit(limit), *checks.text("part", part)])
        return await self._ask(lambda reader: reader.match_runs(self.tenant, part, limit))

    async def list_held_tasks(self) -> list[Task]:
        """Every task that an attempt holds, in all runs, without payload and output."""
        return await self._ask(lambda reader: reader.list_held_tasks(self.tenant))

    async def list_waiting_tasks(self, *, run_id: str | None = None, limit: int = 100) -> list[WaitingTask]:
        """Tasks that wait for no other task: one of each group that waits for the same reason, in all runs or in one."""
        if run_id is not None:
            checks.identity("run", run_id)
        checks.refuse(check_limit(limit))
        return await self._ask(lambda reader: reader.list_waiting_tasks(self.tenant, run_id, limit))

    async def list_lanes(self) -> list[Lane]:
        """What tasks ask of their workers: tools and capabilities."""
        lanes = await self._ask(lambda reader: reader.list_lanes())
        return [lane for lane in lanes if lane.tenant == self.tenant]

    async def list_tasks(self, run_id: str) -> list[Task]:
        await self.get_run(run_id)
        return await self._ask(lambda reader: reader.list_tasks(self.tenant, run_id))

    @sorted_by(RunTaskPlace)
    async def list_tasks_in_brief(self, run_id: str, *, after: str | None = None, limit: int | None = None) -> list[Task]:
        """The tasks of a run without their payloads, which may be a megabyte each."""
        page = select_page(RunTaskPlace, after, limit)
        await self.get_run(run_id)
        return await self._ask(lambda reader: reader.list_tasks_in_brief(self.tenant, run_id, **page))

    async def list_results(self, run_id: str, names: Collection[str]) -> list[Result]:
        """What became of these tasks of a run, and of their subtasks; unknown names are left out."""
        checks.identity("run", run_id)
        return await self._ask(lambda reader: reader.list_results(self.tenant, run_id, names))

    async def count_tasks(self, run_ids: Collection[str]) -> list[tuple[str, str, str | None, int, datetime]]:
        """(run, phase, outcome, how many, when the last of them moved) of the tasks of these runs."""
        checks.refuse(checks.ids("run_ids", list(run_ids)))
        return await self._ask(lambda reader: reader.count_tasks(self.tenant, run_ids))

    async def get_machine(self, entity: Entity | Transition) -> Machine:
        """The machine that an entity follows, or followed when it made a move."""
        if known := self._core.machines.known(entity.machine_id):
            return known
        return await self._ask(lambda reader: self._core.machines.machine(entity.machine_id, reader))

    async def list_definitions(self) -> list[MachineRow]:
        """Every version of every machine, as it is stored."""
        return await self._ask(lambda reader: reader.list_machines())

    async def list_machines(self) -> list[Machine]:
        """The last version of every machine, shipped ones and those of users, by name."""
        return await self._ask(self._core.machines.list_all)

    async def list_dependencies(self, run_id: str) -> list[Dependency]:
        await self.get_run(run_id)
        return await self._ask(lambda reader: reader.list_dependencies(self.tenant, run_id))

    @sorted_by(WorkerPlace)
    async def list_workers(
        self, wanted: WorkerFilter = EVERY_WORKER, *, after: str | None = None, limit: int | None = None
    ) -> list[Worker]:
        """The workers that serve the tenant, with those that have left."""
        page = select_page(WorkerPlace, after, limit, WorkerFilter, wanted)
        return await self._ask(lambda reader: reader.list_workers(self.tenant, **page))

    async def list_breakers(self) -> list[Breaker]:
        return await self._ask(lambda reader: reader.list_breakers(self.tenant))

    async def get_account(self) -> Account:
        """What the tenant may spend, and what all its runs have spent and used."""
        found = await self._ask(lambda reader: reader.find_account(self.tenant))
        return found or Account(tenant=self.tenant)

    async def list_keys(self) -> list[ApiKey]:
        """The API keys of the tenant by name, with those that are revoked or have expired."""
        return await self._ask(lambda reader: reader.list_keys(self.tenant))

    async def explain_overspending(self, task_id: str, cost_usd: Decimal) -> str | None:
        """Which budget a task exceeds with a cost that is not reported yet: its own, that of its run or of the tenant."""
        task = await self.get_task(task_id)
        return budgets.explain_overspending(task, await self.get_run(task.run_id), await self.get_account(), cost_usd)

    async def list_attempt_times(self, run_id: str) -> list[AttemptTimes]:
        """Of the attempts of a run that have ended."""
        checks.identity("run", run_id)
        return await self._ask(lambda reader: reader.list_attempt_times(self.tenant, run_id))

    @sorted_by(AttemptPlace)
    async def list_attempts(self, task_id: str, *, after: str | None = None, limit: int | None = None) -> list[Attempt]:
        """The attempts of a task, the last of which may still wait for a worker."""
        page = select_page(AttemptPlace, after, limit)
        await self.get_task(task_id)
        return await self._ask(lambda reader: reader.list_attempts(self.tenant, task_id, **page))

    @sorted_by(HistoryPlace)
    async def list_history(self, entity_id: str, *, after: str | None = None, limit: int | None = None) -> list[Transition]:
        """Every move that an entity has made, in order."""
        page = select_page(HistoryPlace, after, limit)
        checks.identity("entity", entity_id)

        def read(reader: Reader) -> list[Transition]:
            found = reader.list_history(self.tenant, entity_id, **page)
            if not found and not reader.list_history(self.tenant, entity_id, limit=1):
                raise NotFound("entity", entity_id)
            return found

        return await self._ask(read)

    @sorted_by(NoticePlace)
    async def list_notices(
        self, wanted: NoticeFilter = EVERY_NOTICE, *, after: str | None = None, limit: int | None = None
    ) -> list[ListedNotice]:
        """What happened without a move, newest first."""
        page = select_page(NoticePlace, after, limit, NoticeFilter, wanted)
        if wanted.about is not None:
            checks.identity("entity", wanted.about)
        return await self._ask(lambda reader: reader.list_notices(self.tenant, **page))

    async def list_transitions(
        self, *, after: str | None = None, limit: int = PAGE, run_id: str | None = None
    ) -> list[Transition]:
        """The event stream behind a position: everything once, in one order."""
        checks.refuse(check_limit(limit))
        read_position(after)
        if run_id is not None:
            checks.identity("run", run_id)
        return await self._ask(lambda reader: reader.list_transitions(self.tenant, after=after, limit=limit, run_id=run_id))

    async def last_position(self) -> str | None:
        return await self._ask(lambda reader: reader.last_position())

    async def watch(
        self,
        *,
        after: str | None = None,
        run_id: str | None = None,
        pause_seconds: float = 0.0,
    ) -> AsyncGenerator[Transition]:
        """The event stream behind a position, and on and on as it grows.

        After each look there is a pause, if one is wanted: what happens meanwhile is read at once, which costs far less.
        """

        def read(after: str | None) -> Awaitable[list[Transition]]:
            return self.list_transitions(after=after, limit=PAGE, run_id=run_id)

        async with aclosing(self._watch_pages(read, after, pause_seconds)) as pages:
            async for page in pages:
                for transition in page:
                    yield transition

    async def _watch_pages(
        self, read: Callable[[str | None], Awaitable[list[Transition]]], after: str | None, pause_seconds: float
    ) -> AsyncGenerator[list[Transition]]:
        while True:
            expected = self._around.wakeups.expect(Wakeup.EVENTS)
            page = await read(after)
            if page:
                yield page
                after = page[-1].position
                self._around.wakeups.forget(expected)
                if pause_seconds and len(page) < PAGE:
                    await self._around.wakeups.pause(pause_seconds)
            else:
                is_held_back = await self.is_held_back()
                await self._around.pause(expected, HELD_BACK_SECONDS if is_held_back else LONGEST_PAUSE_SECONDS)

    async def measure_transitions(self) -> list[tuple[str, str | None, str, int, float]]:
        """(machine, from, to, how often, mean seconds in the state left)."""
        return await self._ask(lambda reader: reader.measure_transitions(self.tenant))

    async def is_held_back(self) -> bool:
        """Whether the stream holds transitions back until a transaction that still runs has ended."""
        return await self._ask(lambda reader: reader.is_held_back())

    async def _ask(self, query: Callable[[Reader], Answer]) -> Answer:
        return await self._core.ask(query)

    async def _find(self, kind: str, name: str, query: Callable[[Reader], Answer | None]) -> Answer:
        checks.identity(kind, name)
        found = await self._core.look_up((kind, self.tenant, name), query)
        if found is None:
            raise NotFound(kind, name)
        return found

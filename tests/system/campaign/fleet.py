"""Real workers on one project, runs that keep them busy, and what must hold when it is over."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.system.faults.inquest import check_effects, check_everything, check_journal
from tests.system.faults.project import PATIENCE_SECONDS, Command, Project
from tests.system.faults.test_worker_kills import DANGER, EFFECT, FLOW

from pointsman.engine.engine import Engine
from pointsman.errors import StoreError

LEASE_SECONDS = 2.0
SLOTS = 2
OPEN_RUNS = 3
"""So many runs are under way at any time."""
MOST_RUNS = 10_000
UNREACHABLE = 2
"""The exit code of a command that cannot reach its database."""


@dataclass(slots=True)
class Member:
    """A worker of the fleet."""

    name: str
    command: Command
    begun: asyncio.Queue[tuple[str, int]] = field(default_factory=asyncio.Queue)
    """The attempts that it has begun and not ended, as it tells them."""
    is_spared: bool = False
    """Another fault is busy with it."""

    async def follow(self) -> None:
        """Read what it tells, so that it never waits for us."""
        assert self.command.process.stdout
        async for line in self.command.process.stdout:
            told: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
            if told.get("event") == "started":
                self.begun.put_nowait((told["task_id"], told["epoch"]))

    async def kill(self) -> None:
        self.command.send(signal.SIGKILL)
        await self.command.process.wait()


@dataclass(frozen=True, slots=True)
class Figures:
    """What was seen in the database when all runs had ended."""

    runs: int
    tasks: int
    attempts: int
    interrupted: int


class Fleet:
    """Workers that come and go, on a database that may do so, too."""

    def __init__(self, project: Project, engine: Engine, chance: Random, stack: AsyncExitStack, store: str) -> None:
        """`store` is where workers find the database; `engine` reads it undisturbed."""
        self.project = project
        self.engine = engine
        self.chance = chance
        self.members: list[Member] = []
        self._stack = stack
        self._store = store
        self._count = 0
        self._is_over = False
        self._submitting = asyncio.create_task(self._keep_busy())

    async def add(self) -> None:
        self._count += 1
        name = f"worker-{self._count}"
        settings = {"store": self._store, "lease_seconds": LEASE_SECONDS, "slots": SLOTS}
        started = self.project.start("worker", "--json", "--name", name, **settings)
        member = Member(name, await self._stack.enter_async_context(started))
        reader = asyncio.create_task(member.follow())
        self._stack.push_async_callback(asyncio.wait, {reader})
        self._stack.push_async_callback(member.kill)
        self.members.append(member)

    async def replace(self, member: Member) -> None:
        """Another worker takes the place of one that has ended."""
        self.members.remove(member)
        await self.add()

    async def pick(self) -> Member:
        """A worker that may be lost."""
        while True:
            await self.replace_ended()
            free = [each for each in self.members if not each.is_spared]
            if free:
                member = self.chance.choice(free)
                with suppress(StoreError):
                    if not await self.is_precious(member):
                        return member
            await asyncio.sleep(0.05)

    async def _keep_busy(self) -> None:
        """Submit a run whenever there is room for one."""
        while not self._is_over:
            with suppress(StoreError):
                newest = await self.engine.list_runs(limit=10 * OPEN_RUNS)
                if sum(run.outcome is None for run in newest) < OPEN_RUNS:
                    code, said = await self.project.call("run", "flow.yaml", "--detach")
                    assert code == 0 or "does not answer" in said or "Try again" in said, said
            await asyncio.sleep(0.1)

    async def stop_submitting(self) -> None:
        self._is_over = True
        await self._submitting

    async def finish(self) -> Figures:
        """Let every run end, send the workers home, and check all promises."""
        await self.stop_submitting()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._have_ended():  # noqa: ASYNC110 - it happens in other processes
                await asyncio.sleep(0.1)
        for member in self.members:
            member.command.send(signal.SIGTERM)
        for member in self.members:
            assert await member.command.process.wait() == 0, member.command.said
            assert "Traceback" not in member.command.said, member.command.said
        figures = await self._count_work()
        assert not (self.project.folder / "overlaps.txt").exists(), "two attempts of a task ran at the same time"
        await check_everything(self.project)
        await check_journal(self.engine, self.project.folder / ".state" / "transitions.jsonl")
        assert not (await self.engine.audit()).findings
        return figures

    async def _have_ended(self) -> bool:
        """Every run has ended, and every worker has got so far that it can be sent home."""
        await self.replace_ended()
        registered = {worker.name for worker in await self.engine.list_workers()}
        runs = await self.engine.list_runs(limit=MOST_RUNS)
        has_started = registered.issuperset(member.name for member in self.members)
        return has_started and all(run.outcome is not None for run in runs)

    async def _count_work(self) -> Figures:
        runs = await self.engine.list_runs(limit=MOST_RUNS)
        tasks = attempts = interrupted = 0
        for run in runs:
            assert run.state == "SUCCEEDED", (run.id, run.state, run.error)
            interrupted += len(await check_effects(self.engine, run.id, self.project.folder / "effects" / run.id))
            found = await self.engine.list_tasks(run.id)
            tasks += len(found)
            attempts += sum(task.epoch for task in found)
        return Figures(len(runs), tasks, attempts, interrupted)

    async def is_precious(self, member: Member) -> bool:
        """Whether it holds a task that has been interrupted so often that it would fail the next time."""
        worker = next((each for each in await self.engine.list_workers() if each.name == member.name), None)
        held = await self.engine.list_held_tasks() if worker else []
        return any(worker and task.attempt_worker_id == worker.id and task.reclaim_count >= DANGER for task in held)

    async def replace_ended(self) -> None:
        """A worker ends by itself when it learns that it was declared lost, or when it cannot reach its database at first."""
        for member in list(self.members):
            code = member.command.process.returncode
            if code is not None and not member.is_spared:
                said = member.command.said
                assert code == 0 or (code == UNREACHABLE and "does not answer" in said), said
                await self.replace(member)


@asynccontextmanager
async def open_fleet(project: Project, chance: Random, workers: int, store: str | None = None) -> AsyncIterator[Fleet]:
    """A fleet at work; runs are submitted until that is stopped."""
    project.write_flow(FLOW.format(name="campaign", effect=EFFECT))
    (project.folder / "pointsman.toml").touch()
    async with project.engine() as engine, AsyncExitStack() as stack:
        fleet = Fleet(project, engine, chance, stack, store or project.url)
        for _ in range(workers):
            await fleet.add()
        try:
            yield fleet
        finally:
            await fleet.stop_submitting()

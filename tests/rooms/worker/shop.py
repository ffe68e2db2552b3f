"""Flows carried through by a real worker, on a real database, in a folder of their own."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.flows import build_run, load_flow
from pointsman.kernel.machine import Phase
from pointsman.settings import Settings, load_settings
from pointsman.store.rows import Run, Task
from pointsman.worker.process_table import read_process
from pointsman.worker.tools import declare_missing
from pointsman.worker.worker import Worker
from pointsman.world import World

PATIENCE_SECONDS = 60.0


@dataclass
class Shop:
    engine: Engine
    settings: Settings

    async def submit(self, text: str, **inputs: Any) -> Run:
        flow = load_flow(textwrap.dedent(text), file="flow.yaml")
        directory = str(self.settings.directory)
        used = [tool for name in flow.tasks if (tool := flow.task(name).tool_name)]
        await declare_missing(self.engine.for_tenant(), used, self.settings.all_tools)
        return await self.engine.submit_run(build_run(flow, inputs, directory=directory, tools=self.settings.all_tools))

    def worker(self, run: Run | None = None) -> Worker:
        return Worker(self.engine, self.settings, World(), name="tester", run_id=run.id if run else None)

    async def run_to_end(self, text: str, **inputs: Any) -> dict[str, Task]:
        """A flow from its text to its end; its tasks by name."""
        run = await self.submit(text, **inputs)
        async with self.working(run):
            await self.until_done(run)
        return await self.tasks(run)

    @asynccontextmanager
    async def working(self, run: Run) -> AsyncIterator[Worker]:
        worker = self.worker(run)
        working = asyncio.create_task(worker.work())
        try:
            yield worker
        finally:
            worker.drain()
            await asyncio.wait_for(working, PATIENCE_SECONDS)

    async def until_done(self, run: Run) -> None:
        """Look whenever something has moved."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for _ in self.engine.watch(run_id=run.id):
                if (await self.engine.get_run(run.id)).phase == Phase.DONE:
                    return

    async def tasks(self, run: Run) -> dict[str, Task]:
        return {task.name: task for task in await self.engine.list_tasks(run.id)}


async def until_there(path: Path) -> None:
    """Until a task has written that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (path.exists() and path.read_text()):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


async def until_state(pid: int, state: str) -> None:
    """Until the process table has it so: T for stopped, S for asleep."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (process := read_process(pid)) is None or process.state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def open_shop(url: str, folder: Path, **changes: Any) -> AsyncIterator[Shop]:
    settings = replace(load_settings(folder, {"store": url, "slots": 4}, {}), grace_seconds=0.5, **changes)
    async with app.open(url) as engine:
        yield Shop(engine, settings)


def output(task: Task) -> Any:
    return msgspec.json.decode(task.output or "null")


def outputs(task: Task) -> Any:
    return output(task)["outputs"]


def error(task: Task) -> str:
    return str(msgspec.json.decode(task.error or "{}").get("message"))

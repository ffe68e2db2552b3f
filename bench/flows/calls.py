"""Python functions that do nothing, called in threads of a worker: against the engine's own rate for tasks that do nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from bench.contenders import Answer, Entry, Pace, rates, take_turns
from bench.flows.scene import Scale, tell
from bench.own import drain, layered_run
from bench.report import Table, Target, rate_row

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import ReportAttempt
from pointsman.flows import build_run, load_flow
from pointsman.settings import load_settings
from pointsman.worker.worker import Worker
from pointsman.world import World

CALLS = 200
SLOTS = (10, 100)
LEASE_SECONDS = 300
"""Longer than by default: between its turns the worker stands still."""


class Watched:
    """The engine, with somebody at its door who counts what has been reported and is durable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left = 0
        self._done = asyncio.Event()

    def expect(self, count: int) -> None:
        self._left = count
        self._done.clear()

    async def wait(self) -> None:
        await self._done.wait()

    async def report_attempts(self, reports: Iterable[ReportAttempt]) -> list[Any]:
        reported = list(reports)
        refusals = await self._engine.report_attempts(reported)
        self._left -= len(reported)
        if self._left == 0:
            self._done.set()
        return refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Contest:
    """A worker and a bare engine, each at a database of its own."""

    def __init__(self, folder: Path, slots: int) -> None:
        self._folder = folder
        self._slots = slots
        self._stack = AsyncExitStack()

    async def begin(self) -> None:
        self._engine = await self._stack.enter_async_context(app.open(f"sqlite:///{self._folder}/engine.db"))
        registered = await self._engine.register_worker(
            "bench", max_concurrent_tasks=self._slots, lease_seconds=float(LEASE_SECONDS)
        )
        self._worker_id = registered.id
        self._watched = Watched(await self._stack.enter_async_context(app.open(f"sqlite:///{self._folder}/worker.db")))
        settings = load_settings(self._folder, {"slots": self._slots, "lease_seconds": LEASE_SECONDS}, {})
        self._worker = Worker(cast("Engine", self._watched), settings, World(), name="bench")
        self._working = asyncio.create_task(self._worker.work())

    async def end(self) -> None:
        self._worker.drain()
        await self._working
        await self._stack.aclose()

    async def call(self, count: int) -> Answer:
        """From when they are there to when the last one is recorded as done."""
        lines = [f"  t{number}: {{call: bench.flows.nothing:nothing, mode: thread}}" for number in range(count)]
        flow = load_flow("\n".join(["name: calls", "tasks:", *lines, ""]))
        self._watched.expect(count)
        await self._watched.submit_run(build_run(flow, {}, directory=str(self._folder)))
        began = time.perf_counter()
        await self._watched.wait()
        return {"tasks": count, "seconds": time.perf_counter() - began}

    async def drain(self, count: int) -> Answer:
        await self._engine.submit_run(layered_run([count]))
        began = time.perf_counter()
        # Like the worker, it does not know when there is nothing more to claim.
        await drain(self._engine, self._worker_id, self._slots, count + self._slots)
        return {"tasks": count, "seconds": time.perf_counter() - began}


def measure(scale: Scale) -> list[Table]:
    rows = []
    for slots in SLOTS:
        answers = hold(slots, scale.call_rounds)
        own, alone = rates(answers["worker"]), rates(answers["engine"])
        target = Target(0.5) if slots == max(SLOTS) else None
        note = "the ratio says how many times as quick the worker was"
        rows += [
            rate_row(f"engine, batches of {slots}", alone, own=own, target=target, note=note),
            rate_row(f"worker with {slots} slots", own),
        ]
    return [Table(f"{CALLS} Python functions that do nothing, called in threads, on SQLite", rows)]


def hold(slots: int, rounds: int) -> dict[str, list[Answer]]:
    with TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True) as folder, asyncio.Runner() as runner:
        contest = Contest(Path(folder), slots)
        runner.run(contest.begin())
        try:
            entries = [
                Entry("engine", lambda count: runner.run(contest.drain(count)), fixed=CALLS),
                Entry("worker", lambda count: runner.run(contest.call(count)), fixed=CALLS),
            ]
            return take_turns(entries, Pace(rounds, seconds=0, most=0), lambda what: tell(f"{slots} slots: {what}"))
        finally:
            runner.run(contest.end())

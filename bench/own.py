"""Pointsman as a program uses it: `app.open`, `submit_run`, `claim_tasks`, `complete_tasks`, the lifecycle `standard`.

    python -m bench.own sqlite:///path | postgresql://…   take part in a run of `bench/engine.py`

Between its turns its event loop stands still, so that it takes nothing from the others.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import apsw
from bench.peers.conversation import Answer, answer_each, check_done, say

import pointsman
from pointsman import app
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import PointsmanError

IDLE_SECONDS = 0.02
"""Between one task and the next where one is alone: everything has gone to sleep by then."""
LATENCY_SECONDS = 10.0
HELD = 1_000
"""How many tasks a worker holds at most where all are claimed before any is completed: each claim counts them."""
LEASE_SECONDS = 300.0
"""Longer than by default, because between its turns it stands still."""


async def turn(engine: Engine, worker_id: str, held: Sequence[Claim], room: int, *, with_output: bool = False) -> list[Claim]:
    """Report what is held as done, and claim as many as there is room for. Here, and only here, is how Pointsman drains."""
    # Both are begun before either is waited for, so they share a commit; the claim comes last, when there is room for it.
    done = engine.report_attempts(
        [
            ReportAttempt(
                task_id=claim.task_id,
                epoch=claim.epoch,
                signal="complete",
                report=AttemptReport(output=claim.task_id if with_output else None),
            )
            for claim in held
        ]
    )
    if not room:
        await done
        return []
    answers, claimed = await asyncio.gather(done, engine.claim_tasks(worker_id, room))
    assert not any(isinstance(answer, PointsmanError) for answer in answers)
    return claimed


async def drain(engine: Engine, worker_id: str, batch: int, count: int, *, with_output: bool = False) -> int:
    """Claim and complete that many tasks, or as many as there are; how many that were."""
    held: list[Claim] = []
    claimed = 0
    while True:
        held = await turn(engine, worker_id, held, min(batch, count - claimed), with_output=with_output)
        if not held:
            return claimed
        claimed += len(held)


def layered_run(layers: Sequence[int]) -> NewRun:
    """Each task waits for its share of the layer before, or shares one of it with others; a single layer waits for nothing."""
    tasks, before = [], 0
    for layer, width in enumerate(layers):
        for number in range(width):
            first, last = number * before // width, max((number + 1) * before // width, number * before // width + 1)
            waits_for = tuple(f"{layer - 1}-{earlier}" for earlier in range(first, last)) if before else ()
            tasks.append(NewTask(name=f"{layer}-{number}", depends_on=waits_for))
        before = width
    return NewRun(name="bench", tasks=tuple(tasks))


class Part:
    """What Pointsman is asked in a run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs: list[str] = []
        self._workers: dict[tuple[int, int], str] = {}

    async def versions(self) -> Answer:
        return {
            "Python": platform.python_version(),
            "Pointsman": pointsman.__version__,
            "SQLite": apsw.sqlite_lib_version(),
            **{name: importlib.metadata.version(name) for name in ("apsw", "psycopg")},
        }

    async def drain(self, count: int, batch: int, *, with_output: bool = False) -> Answer:
        return await self.whole_life([count], batch, with_output=with_output)

    async def whole_life(self, layers: list[int], batch: int, *, with_output: bool = False) -> Answer:
        """Submit a run and drain it; `seconds` is the draining alone."""
        began = time.perf_counter()
        await self._submit(layers)
        middle, commits = time.perf_counter(), self._engine.commit_metrics.batches
        await drain(self._engine, await self._worker(batch), batch, sum(layers), with_output=with_output)
        ended = time.perf_counter()
        commits = self._engine.commit_metrics.batches - commits
        await self.check_runs()
        return {"tasks": sum(layers), "seconds": ended - middle, "submit_seconds": middle - began, "commits": commits}

    async def submit_runs(self, runs: int, tasks: int, at_once: int) -> Answer:
        began = time.perf_counter()
        for start in range(0, runs, at_once):
            await asyncio.gather(*[self._submit([tasks]) for _ in range(min(at_once, runs - start))])
        return {"tasks": runs * tasks, "seconds": time.perf_counter() - began}

    async def drain_rest(self, batch: int) -> Answer:
        """Whatever is there, beside other processes; when it began and ended is for whoever adds them up."""
        began = time.perf_counter()
        done = await drain(self._engine, await self._worker(batch), batch, sys.maxsize)
        return {"tasks": done, "began": began, "ended": time.perf_counter()}

    async def claim(self, count: int, batch: int) -> Answer:
        """Claim everything before anything is completed."""
        await self._submit([count])
        workers = [await self._worker(HELD, number) for number in range(-(-count // HELD))]
        held: list[Claim] = []
        began = time.perf_counter()
        for number, worker_id in enumerate(workers, 1):
            while room := min(batch, number * HELD - len(held), count - len(held)):
                held += await turn(self._engine, worker_id, (), room)
        seconds = time.perf_counter() - began
        for start in range(0, count, batch):
            await turn(self._engine, workers[0], held[start : start + batch], 0)
        await self.check_runs()
        return {"tasks": count, "seconds": seconds}

    async def wait_for_task(self) -> Answer:
        """One task into the idle engine, claimed in the same process."""
        worker_id = await self._worker(1)

        async def claim() -> tuple[float, list[Claim]]:
            held = await self._engine.claim_tasks(worker_id, 1, wait_seconds=LATENCY_SECONDS)
            return time.perf_counter(), held

        waiting = asyncio.create_task(claim())
        await asyncio.sleep(IDLE_SECONDS)
        began = time.perf_counter()
        await self._submit([1])
        claimed, held = await waiting
        await turn(self._engine, worker_id, held, 0)
        return {"seconds": claimed - began}

    async def submit_one(self) -> Answer:
        began = time.perf_counter()
        await self._submit([1])
        return {"began": began}

    async def claim_each(self, turns: int) -> Answer:
        """Tell when each of that many tasks was claimed, as they come in one by one."""
        worker_id = await self._worker(1)
        say({"ready": True})
        for _ in range(turns):
            held = await self._engine.claim_tasks(worker_id, 1, wait_seconds=LATENCY_SECONDS)
            say({"claimed": time.perf_counter()})
            await turn(self._engine, worker_id, held, 0)
        return {}

    async def check_runs(self) -> Answer:
        """A run succeeds only when all of its tasks have: the database itself sees to that."""
        outcomes = [(await self._engine.get_run(run_id)).outcome for run_id in self._runs]
        check_done(outcomes.count("success"), len(self._runs))
        self._runs.clear()
        return {}

    async def _submit(self, layers: Sequence[int]) -> None:
        self._runs.append((await self._engine.submit_run(layered_run(layers))).id)

    async def _worker(self, slots: int, number: int = 0) -> str:
        if (slots, number) not in self._workers:
            worker = await self._engine.register_worker("bench", max_concurrent_tasks=slots, lease_seconds=LEASE_SECONDS)
            self._workers[slots, number] = worker.id
        return self._workers[slots, number]


def main() -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        engine = runner.run(stack.enter_async_context(app.open(sys.argv[1])))
        part = Part(engine)
        asked = [name for name in vars(Part) if not name.startswith("_")]
        answer_each({name: getattr(part, name) for name in asked}, runner.run)
        runner.run(stack.aclose())


if __name__ == "__main__":
    main()

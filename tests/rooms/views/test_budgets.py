"""Each view takes a fixed number of queries, however many runs, tasks and workers there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.store.contract import Reader
from pointsman.store.rows import Run
from pointsman.views.find import find_run
from pointsman.views.runs import list_runs, list_steps, list_waiting, view_run
from pointsman.views.workers import list_workers
from pointsman.world import SystemClock

View = Callable[[Engine, Run], Awaitable[object]]
NOW = SystemClock().now
BUDGETS: dict[str, tuple[int, View]] = {
    "list_runs": (7, lambda engine, _: list_runs(engine, 1000, NOW())),
    "view_run": (11, lambda engine, run: view_run(engine, run.id, NOW())),
    "list_steps": (6, lambda engine, run: list_steps(engine, run.id, None, NOW())),
    "list_workers": (5, lambda engine, _: list_workers(engine, NOW())),
    "waiting of one run": (7, lambda engine, run: list_waiting(engine, NOW(), run_id=run.id)),
    "waiting of all runs": (7, lambda engine, _: list_waiting(engine, NOW())),
    "find_run by part of its id": (2, lambda engine, run: find_run(engine, run.id[-8:])),
}


class CountingReader:
    """A reader of the real store that notes each query."""

    def __init__(self, reader: Reader, asked: list[str]) -> None:
        self._reader = reader
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        self._asked.append(name)
        return getattr(self._reader, name)


@contextmanager
def counting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    asked: list[str] = []
    read = engine._core.store.read

    @contextmanager
    def read_and_count() -> Iterator[Any]:
        with read() as reader:
            yield CountingReader(reader, asked)

    with monkeypatch.context() as patch:
        patch.setattr(engine._core.store, "read", read_and_count)
        yield asked


async def add_runs(engine: Engine, number: int) -> Run:
    """Runs of as many tasks, some of them held by workers, failed and waiting for a tool."""
    await engine.declare_tool("curl", max_concurrent=1)
    for _ in range(number):
        names = [f"step-{each}" for each in range(number)]
        steps = [NewTask(name=name, tool="curl" if name.endswith(("1", "3")) else None) for name in names]
        run = await engine.submit_run(NewRun(name="nightly", tasks=(*steps, NewTask(name="last", depends_on=tuple(names)))))
        worker = await engine.register_worker("box", max_concurrent_tasks=3)
        for each, claim in enumerate(await engine.claim_tasks(worker.id, 3)):
            if each:
                await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="boom"))
    return run


async def test_views_keep_to_their_budgets_however_much_there_is(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app.open(database_url, keeps=False) as engine:
        for number in (1, 15):
            run = await add_runs(engine, number)
            for name, (budget, view) in BUDGETS.items():
                with counting(engine, monkeypatch) as asked:
                    assert await view(engine, run), name
                assert len(asked) == budget, (name, number, asked)
                assert "list_tasks" not in asked, f"{name} reads payloads"

"""Real workers while somebody sets the clock of the database: attempts go on, and retries begin when their delay has passed.

SQLite goes by the clock of each process, so the command line is started by a program that replaces it. PostgreSQL goes by its
own clock, which a function of the same name hides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from tests.system.faults.inquest import check_folding
from tests.system.faults.project import PATIENCE_SECONDS, Project, tasks_of
from tests.system.faults.prompt import prompt

from pointsman.engine.engine import Engine

HOUR = 3600
PROGRAM = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pointsman.cli import main
from pointsman.world import SystemClock

STEP = Path("step.txt")
SystemClock.now = lambda _: datetime.now(UTC) + timedelta(seconds=int(STEP.read_text()))
sys.exit(main())
"""
CLOCK = (
    "CREATE TABLE step (seconds integer)",
    "INSERT INTO step VALUES (0)",
    """CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
       'SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM public.step'""",
)
FLOW = """
name: steps
tasks:
  goes_on: {run: "touch goes_on.$POINTSMAN_EPOCH; until [ -e go ]; do sleep 0.02; done"}
  fails:
    run: "touch fails.$POINTSMAN_EPOCH; until [ -e fail ]; do sleep 0.02; done; test $POINTSMAN_EPOCH -gt 1"
    retries: 1
    backoff: 1s
"""


class SteppedProject(Project):
    """A project on a database whose clock can be set."""

    def __init__(self, folder: Path, url: str) -> None:
        if url.startswith("sqlite"):
            super().__init__(folder, url)
            (folder / "stepped.py").write_text(PROGRAM)
            (folder / "step.txt").write_text("0")
            self.program = ("stepped.py",)
        else:
            super().__init__(folder, f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Dpublic,pg_catalog")
            with prompt(url) as session:
                for statement in CLOCK:
                    session.ask(statement)

    def set_clock(self, seconds: int) -> None:
        """So many seconds away from the right time."""
        if self.url.startswith("sqlite"):
            new = self.folder / "step.new"
            new.write_text(str(seconds))
            new.rename(self.folder / "step.txt")
        else:
            with prompt(self.url) as session:
                session.ask("UPDATE step SET seconds = :seconds", seconds=seconds)


async def test_a_worker_keeps_its_tasks_while_the_clock_is_set_to_and_fro(database_url: str, tmp_path: Path) -> None:
    project = SteppedProject(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(FLOW))
    async with project.start("worker", lease_seconds=2) as worker, project.engine() as engine:
        await worker.until(lambda: all((tmp_path / f"{name}.1").exists() for name in ("goes_on", "fails")))
        for seconds in (HOUR, -HOUR):
            project.set_clock(seconds)
            await until_heard(engine)
        (tmp_path / "fail").touch()
        await until_so(lambda: waits_for_retry(engine, run_id))
        project.set_clock(-2 * HOUR)
        await worker.until((tmp_path / "fails.2").exists)
        (tmp_path / "go").touch()
        await until_so(lambda: is_over(engine, run_id))
        assert not (tmp_path / "goes_on.2").exists()
        assert not (tmp_path / "fails.3").exists()
        await check_folding(engine)


async def until_so(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await ask():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.02)


async def until_heard(engine: Engine) -> None:
    """Until a heartbeat was recorded that was sent after now."""
    for _ in range(2):
        before = await last_heartbeat(engine)

        async def is_later(before: datetime = before) -> bool:
            return await last_heartbeat(engine) != before

        await until_so(is_later)


async def last_heartbeat(engine: Engine) -> datetime:
    return max(worker.heartbeat_at for worker in await engine.list_workers())


async def waits_for_retry(engine: Engine, run_id: str) -> bool:
    return (await tasks_of(engine, run_id))["fails"].available_at is not None


async def is_over(engine: Engine, run_id: str) -> bool:
    return (await engine.get_run(run_id)).state == "SUCCEEDED"

"""The database goes away or the disk is full while flows run: it is said, nothing that was done is lost, and work goes on."""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.system.faults.disk import fill, mounted
from tests.system.faults.inquest import check_effects, check_everything
from tests.system.faults.project import Project, find_work, tasks_of
from tests.system.faults.prompt import prompt
from tests.system.faults.proxy import proxy
from tests.system.faults.server import own_server

from pointsman.engine.engine import Engine

LOAD = """
name: load
tasks:
  many:  {run: "{effect}", foreach: "range(40)"}
  looked: {run: "{effect}", checks: [{run: sleep 0.05}], foreach: "range(20)"}
  last:  {run: "{effect}", needs: [many, looked]}
""".replace("{effect}", "mkdir -p effects; sleep 0.1; echo $POINTSMAN_EPOCH >> effects/$POINTSMAN_TASK_NAME.txt")


async def has_ended(engine: Engine, run_id: str) -> bool:
    return (await engine.get_run(run_id)).outcome is not None


async def test_workers_go_on_when_postgres_was_killed_under_load(tmp_path: Path) -> None:
    """Two of a fleet, and one that shows what happens: all three outlive the server, twice."""
    effects = tmp_path / "effects"
    with own_server() as server:
        project = Project(tmp_path, server.url)
        project.write_flow(LOAD)
        settings = {"lease_seconds": 15}
        async with (
            project.start("worker", **settings) as one,
            project.start("worker", **settings) as two,
            project.start("run", "flow.yaml", **settings) as run,
        ):
            for count in (5, 25):
                await run.until(lambda count=count: effects.exists() and len(list(effects.iterdir())) >= count)  # type: ignore[misc]
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            assert await run.wait() == 0, run.said
            for worker in (one, two):
                worker.send(signal.SIGTERM)
                assert await worker.wait() == 0, worker.said
        assert "Traceback" not in one.said + two.said + run.said
        async with project.engine() as engine:
            (only,) = await engine.list_runs()
            await check_effects(engine, only.id, effects)
        await check_everything(project)


AWAY = """
name: f
tasks:
  a: {run: "touch began; until [ -e go ]; do sleep 0.02; done; test $POINTSMAN_EPOCH -gt 1", retries: 1, backoff: 0.1s}
"""


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_worker_can_be_ended_while_its_database_is_away(tmp_path: Path, slots: int) -> None:
    """It says what is wrong, and does not wait to report, or to claim, what nobody can hear."""
    with own_server() as server:
        project = Project(tmp_path, server.url)
        run_id = await project.submit(project.write_flow(AWAY))
        async with project.start("worker", slots=slots) as worker:
            await worker.until((tmp_path / "began").exists)
            await asyncio.to_thread(server.kill)
            away = time.monotonic()
            (tmp_path / "go").touch()
            await worker.until(lambda: "does not answer" in worker.said)
            noticed = time.monotonic()
            worker.send(signal.SIGTERM)
            await worker.until(lambda: "again to kill" in worker.said)
            killed = time.monotonic()
            worker.send(signal.SIGTERM)
            await worker.wait()
            assert time.monotonic() - killed < noticed - away, "sooner than it takes to find out that nobody answers"
            assert "Traceback" not in worker.said
            assert "never awaited" not in worker.said
            assert "answers again" not in worker.said
        await asyncio.to_thread(server.start)
        code, said = await project.call("resume", run_id)
        assert code == 0, said
        await check_everything(project)


FULL = """
name: full
tasks:
  first: {run: "touch ../began; until [ -e ../go ]; do sleep 0.02; done; head -c 3000000 /dev/zero | tr '\\\\0' x; echo"}
  next:  {run: "echo next", needs: [first]}
"""


@pytest.mark.parametrize("command", ["run", "worker"])
async def test_a_full_disk_is_said_and_work_goes_on_when_there_is_room(database_url: str, tmp_path: Path, command: str) -> None:
    """With a database on it, or one elsewhere, which goes on."""
    is_elsewhere = database_url.startswith("postgresql")
    with mounted(tmp_path / "disk", "size=12m") as disk:
        project = Project(disk, database_url if is_elsewhere else None, said=tmp_path)
        flow = project.write_flow(FULL)
        if command == "worker":
            await project.submit(flow)
        async with project.start(*((command, flow) if command == "run" else (command,)), lease_seconds=60) as started:
            await started.until((tmp_path / "began").exists)
            ballast = fill(disk)
            (tmp_path / "go").touch()
            await started.until(lambda: ("stopped: No space left" if is_elsewhere else "disk is full") in started.said)
            for each in ballast:
                each.unlink()
            await project.until(_all_ended)
            if command == "worker":
                started.send(signal.SIGTERM)
            assert await started.wait() == 0, started.said
        assert "Traceback" not in started.said
        assert "stopped: No space left on device. The task continues without it." in started.said, "so much for the log"
        async with project.engine() as engine:
            (run,) = await engine.list_runs()
            tasks = await tasks_of(engine, run.id)
            assert run.state == "SUCCEEDED"
            assert {name: task.epoch for name, task in tasks.items()} == {"first": 1, "next": 1}, "nothing was done again"
        await check_everything(project)


LARGE = """
name: large
tasks:
  first:
    run: |
      touch began; until [ -e go ]; do sleep 0.02; done
      head -c 600000 /dev/urandom | base64 -w0 | sed 's/.*/"&"/' > $POINTSMAN_OUTPUT
  next: {run: "echo next", needs: [first]}
"""
"""What it hands on is more than the pages that a table has to spare."""


async def test_a_server_whose_disk_is_full_is_said_and_work_goes_on_when_there_is_room(tmp_path: Path) -> None:
    # The names of sockets must be short.
    with (
        TemporaryDirectory(prefix="pointsman-") as short,
        mounted(Path(short, "disk"), "size=200m,mode=0755") as disk,
        own_server(disk) as server,
    ):
        project = Project(tmp_path, server.url)
        project.write_flow(LARGE)
        async with project.start("run", "flow.yaml", lease_seconds=60) as run:
            await run.until((tmp_path / "began").exists)
            ballast = fill(disk)
            (tmp_path / "go").touch()
            await run.until(lambda: "disk is full" in run.said)
            for each in ballast:
                each.unlink()
            assert await run.wait() == 0, run.said
        assert "Traceback" not in run.said
        async with project.engine() as engine:
            (only,) = await engine.list_runs()
            tasks = await tasks_of(engine, only.id)
            assert {name: task.epoch for name, task in tasks.items()} == {"first": 1, "next": 1}, "nothing was done again"
            assert len(str(tasks["first"].output)) > 800_000
        await check_everything(project)


async def test_a_database_that_may_not_grow_is_said_and_work_goes_on_when_it_may(tmp_path: Path) -> None:
    """The same without a disk of its own: the system lets its files grow no further."""
    project = Project(tmp_path)
    (tmp_path / "pointsman.toml").touch()
    project.write_flow(FULL.replace("../", "").replace("3000000", "100"))
    async with project.start("run", "flow.yaml", lease_seconds=60) as run:
        await run.until((tmp_path / "began").exists)
        before = resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        (tmp_path / "go").touch()
        await run.until(lambda: "could not be written" in run.said or "disk is full" in run.said)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, before)
        assert await run.wait() == 0, run.said
    assert "Traceback" not in run.said
    await check_everything(project)


async def _all_ended(engine: Engine) -> bool:
    return all([await has_ended(engine, run.id) for run in await engine.list_runs()])


async def test_a_run_ends_although_an_open_transaction_holds_the_stream_back(tmp_path: Path, postgres_url: str) -> None:
    project = Project(tmp_path, postgres_url)
    flow = project.write_flow("{name: f, tasks: {a: {run: 'true'}}}")
    other = await project.submit(flow)
    with prompt(postgres_url) as session:

        async def type_on() -> None:
            """A session that is not idle keeps its transaction."""
            while True:
                await asyncio.to_thread(session.ask, "SELECT 1")
                await asyncio.sleep(1)

        session.ask("BEGIN")
        session.ask("UPDATE run SET state = 'PAUSED' WHERE id = :id", id=other)
        typing = asyncio.create_task(type_on())
        async with project.start("run", flow) as run:
            assert await run.wait() == 0, run.said
            assert "1 of 1 task done" in run.said
        async with project.engine() as engine:
            assert await engine.is_held_back()
        typing.cancel()
        await asyncio.wait({typing})
        session.ask("ROLLBACK")


async def test_a_second_signal_ends_a_worker_that_hangs_in_a_black_hole(tmp_path: Path, postgres_url: str) -> None:
    """Before it has noticed anything: its threads wait for answers that never come."""
    with proxy(postgres_url) as between:
        run_id = await Project(tmp_path, postgres_url).submit(Project(tmp_path).write_flow(AWAY))
        async with Project(tmp_path, between.url).start("worker", slots=2, lease_seconds=1) as worker:
            await worker.until((tmp_path / "began").exists)
            between.hold_all()
            worker.send(signal.SIGTERM)
            await worker.until(lambda: "Finishing" in worker.said)
            worker.send(signal.SIGTERM)
            assert await worker.wait() == 143, worker.said
        assert not find_work(run_id)
        assert "Traceback" not in worker.said


@pytest.mark.parametrize("command", ["run", "worker"])
async def test_a_database_that_is_deleted_under_a_run_is_noticed(tmp_path: Path, command: str) -> None:
    """SQLite itself would go on with the deleted file, and the run would succeed for nobody."""
    project = Project(tmp_path)
    flow = project.write_flow(AWAY)
    if command == "worker":
        await project.submit(flow)
    async with project.start(*((command, flow) if command == "run" else (command,)), lease_seconds=3) as started:
        await started.until((tmp_path / "began").exists)
        async with project.engine() as engine:
            (run,) = await engine.list_runs()
        shutil.rmtree(tmp_path / ".pointsman")
        assert await started.wait() == 2, started.said
    assert "state.db was deleted or replaced while it was in use. What it has stored is lost." in started.said
    assert "Traceback" not in started.said
    assert "SUCCEEDED" not in started.said
    assert not find_work(run)
    assert not (tmp_path / ".pointsman").exists()

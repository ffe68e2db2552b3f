"""Workers that fall silent and come back, and tasks that take their workers with them."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.system.faults.inquest import check_everything
from tests.system.faults.project import Command, Project, find_processes, tasks_of, until

from pointsman.engine.engine import Engine
from pointsman.store.rows import Attempt, Task
from pointsman.worker.log import log_path

SLOW_AT_FIRST = """
name: slow-at-first
tasks:
  slow:
    run: |
      touch began.$POINTSMAN_EPOCH
      if [ $POINTSMAN_EPOCH = 1 ]; then until [ -e go.1 ]; do sleep 0.02; done; else until [ -e go.2 ]; do sleep 0.02; done; fi
      echo $POINTSMAN_EPOCH >> effects.txt
"""


async def attempts_of(project: Project, run_id: str) -> list[Attempt]:
    async with project.engine() as engine:
        (task,) = await engine.list_tasks(run_id)
        return await engine.list_attempts(task.id)


async def is_succeeded(engine: Engine, run_id: str) -> bool:
    return (await engine.get_run(run_id)).state == "SUCCEEDED"


CLAIMED_TOGETHER = """
name: claimed-together
tasks:
  called: {call: "work:begin"}
  shell:  {run: "touch began.shell.$POINTSMAN_EPOCH"}
"""
WORK = """
import os, pathlib
def begin():
    pathlib.Path(f"began.called.{os.environ['POINTSMAN_EPOCH']}").touch()
"""


async def test_a_worker_that_was_frozen_between_claim_and_start_starts_nothing_that_another_one_has_done(
    database_url: str, tmp_path: Path
) -> None:
    """The first task of the claim cannot write its request, since the file is a pipe that nobody reads. The second waits."""
    project = Project(tmp_path, database_url)
    (tmp_path / "work.py").write_text(WORK)
    run_id = await project.submit(project.write_flow(CLAIMED_TOGETHER))
    request = Path(log_path(tmp_path, run_id, "called", 1)).with_suffix(".output.json.call")
    request.parent.mkdir(parents=True)
    os.mkfifo(request)
    async with project.start("worker", lease_seconds=1) as zombie:
        await project.until(lambda engine: _are_claimed(engine, run_id))
        await project.freeze(zombie)
        async with project.start("worker", lease_seconds=1) as heir:
            await project.until(lambda engine: is_succeeded(engine, run_id))
            zombie.send(signal.SIGCONT)
            reader = os.open(request, os.O_RDONLY | os.O_NONBLOCK)
            zombie.send(signal.SIGTERM)
            assert await zombie.wait() == 0, zombie.said
            os.close(reader)
            heir.send(signal.SIGTERM)
            assert await heir.wait() == 0, heir.said
    assert _find_begun(tmp_path) == {"began.called.2", "began.shell.2"}
    await check_everything(project)


def _find_begun(folder: Path) -> set[str]:
    return {each.name for each in folder.glob("began.*")}


async def _are_claimed(engine: Engine, run_id: str) -> bool:
    return all(task.state == "RUNNING" for task in await engine.list_tasks(run_id))


@pytest.mark.parametrize("child", ["goes on", "has ended"])
async def test_the_child_of_a_worker_that_is_frozen_for_longer_than_its_lease_is_killed_and_its_report_refused(
    database_url: str, tmp_path: Path, child: str
) -> None:
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(SLOW_AT_FIRST))
    async with project.start("worker", lease_seconds=1.5, grace_seconds=1) as zombie:
        await zombie.until((tmp_path / "began.1").exists)
        await project.freeze(zombie)
        if child == "has ended":
            (tmp_path / "go.1").touch()
            await until(lambda: not find_processes(f"POINTSMAN_RUN_ID={run_id}", "POINTSMAN_EPOCH=1"))
        async with project.start("worker", lease_seconds=1.5) as heir:
            await heir.until((tmp_path / "began.2").exists)
            assert not find_processes(f"POINTSMAN_RUN_ID={run_id}", "POINTSMAN_EPOCH=1"), "killed before the next one begins"
            zombie.send(signal.SIGCONT)
            assert find_processes(f"POINTSMAN_RUN_ID={run_id}", "POINTSMAN_EPOCH=2"), "that of the heir is left alone"
            (tmp_path / "go.2").touch()
            await project.until(lambda engine: is_succeeded(engine, run_id))
            # Both may go on working: it was only silent.
            again = await project.submit(project.write_flow("name: again\ntasks: {a: {run: 'true'}}", "again.yaml"))
            heir.send(signal.SIGTERM)
            assert await heir.wait() == 0, heir.said
        await project.until(lambda engine: is_succeeded(engine, again))
        zombie.send(signal.SIGTERM)
        assert await zombie.wait() == 0, zombie.said
    assert [(each.epoch, each.ended_by) for each in await attempts_of(project, run_id)] == [(1, "lease_lost"), (2, "complete")]
    assert (tmp_path / "effects.txt").read_text().split() == (["1", "2"] if child == "has ended" else ["2"])
    await check_everything(project)


async def test_a_run_whose_only_process_was_stopped_for_longer_than_its_lease_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    """As on a laptop that was closed: nobody else was there, and what it finds of its own is out of date."""
    project = Project(tmp_path, database_url)
    project.write_flow("name: alone\ntasks:\n  a: {run: touch began; sleep 3}\n  b: {run: 'true', needs: [a]}\n")
    async with project.start("run", "flow.yaml", lease_seconds=0.5) as command:
        await command.until((tmp_path / "began").exists)
        for _ in range(2):
            await project.freeze(command)
            await project.until(_is_overdue)
            command.send(signal.SIGCONT)
        assert await command.wait() == 0, command.said
    await check_everything(project)


async def _is_overdue(engine: Engine) -> bool:
    (worker,) = await engine.list_workers()
    return worker.heartbeat_at + timedelta(seconds=2 * worker.lease_seconds) < datetime.now(UTC)


POISON = """
name: poisoned
tasks:
  poison: {run: "sleep 1; echo $POINTSMAN_EPOCH >> effects.txt; kill -9 $PPID; sleep 1000"}
  fine:   {run: "true", foreach: [1, 2, 3, 4, 5]}
"""


async def test_a_task_that_kills_its_worker_fails_after_some_and_the_others_are_done(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(POISON))
    workers, is_over = 0, False
    while not is_over:
        workers += 1
        async with project.start("worker") as worker:
            is_over = await project.until(lambda engine: _has_killed_or_ended(engine, run_id, worker)) == "ended"
            if is_over:
                worker.send(signal.SIGTERM)
                assert await worker.wait() == 0, worker.said
    tasks = await _look(project, run_id)
    assert workers == 5, "four that it killed, and the one that was told that this was enough"
    assert tasks["poison"].state == "FAILED"
    assert "the worker was killed" in str(tasks["poison"].error)
    assert _count_effects(tmp_path) == 4
    assert {task.state for name, task in tasks.items() if name.startswith("fine")} == {"SUCCEEDED"}
    await check_everything(project)


async def _has_killed_or_ended(engine: Engine, run_id: str, worker: Command) -> str | None:
    if (await engine.get_run(run_id)).outcome:
        return "ended"
    return "killed" if worker.process.returncode is not None else None


async def _look(project: Project, run_id: str) -> dict[str, Task]:
    async with project.engine() as engine:
        return await tasks_of(engine, run_id)


def _count_effects(folder: Path) -> int:
    file = folder / "effects.txt"
    return len(file.read_text().split()) if file.exists() else 0

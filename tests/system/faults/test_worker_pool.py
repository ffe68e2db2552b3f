"""A pool of workers: one that dies is replaced, one that runs out of something is paused, and all of them end in order."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import resource
import signal
from pathlib import Path

import pytest
from tests.system.faults.disk import mounted
from tests.system.faults.inquest import check_everything, find_inhabitants
from tests.system.faults.project import Command, Project, find_processes, tasks_of, until

from pointsman.engine.engine import Engine
from pointsman.kernel.machine import Phase
from pointsman.store.rows import Worker
from pointsman.worker.process_table import read_process

KILLED = [("sqlite", "standard"), ("postgres", "supervised"), ("sqlite", "orchestrated")]
EXHAUSTED = [("postgres", "standard"), ("sqlite", "supervised"), ("postgres", "orchestrated")]
"""Every lifecycle with a worker machine of its own, and both databases."""
POOL = ("worker", "--count", "2", "--slots", "1", "--name", "box")
BLOCKS_ONCE = """\
name: f
lifecycle: {lifecycle}
tasks:
  a: {{run: 'touch began; if [ $POINTSMAN_EPOCH = 1 ]; then sleep 1000; fi'}}
  b: {{run: 'true', needs: [a]}}
"""
TWO = """\
name: f
tasks:
  each: {run: 'touch began-${{ item }}; until [ -e go ]; do sleep 0.02; done', foreach: [1, 2]}
  after: {run: 'true', needs: [each]}
"""
HOG = """\
name: f
lifecycle: {lifecycle}
tasks:
  a: {{command: [python3, hog.py]}}
"""
HOG_PROGRAM = """\
import os, time
if os.environ["POINTSMAN_EPOCH"] == "1":
    used = bytearray(200_000_000)
    time.sleep(1000)
"""


def pids_of(pool: Command) -> dict[str, int]:
    """The latest process of each worker, by its name."""
    return {name: int(pid) for name, pid in re.findall(r"(\S+)  started \(process (\d+)\)", pool.said)}


async def workers_of(engine: Engine) -> list[Worker]:
    return [worker for worker in await engine.list_workers() if worker.phase != Phase.DONE]


async def until_registered(project: Project, count: int) -> None:
    async def are_registered(engine: Engine) -> bool:
        return len(await workers_of(engine)) == count

    await project.until(are_registered)


async def has_succeeded(engine: Engine, run_id: str) -> bool:
    run = await engine.get_run(run_id)
    assert run.outcome in (None, "success"), run
    return run.outcome is not None


async def drain(pool: Command) -> None:
    pool.send(signal.SIGTERM)
    assert await pool.wait() == 0, pool.said


async def check_nothing_is_left(project: Project) -> None:
    """No process, and no worker in the database that seems to be alive."""
    await until(lambda: not find_inhabitants(project.folder))
    async with project.engine() as engine:
        assert not await workers_of(engine)
    await check_everything(project)


@pytest.mark.parametrize(("database", "lifecycle"), KILLED)
async def test_a_worker_that_is_killed_is_replaced_and_its_task_goes_on(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, lifecycle: str
) -> None:
    project = Project(tmp_path, request.getfixturevalue(f"{database}_url"))
    run_id = await project.submit(project.write_flow(BLOCKS_ONCE.format(lifecycle=lifecycle)))
    async with project.start(*POOL, "--lifecycle", lifecycle) as pool:
        await pool.until((tmp_path / "began").exists)
        (work,) = [each for each in find_processes(f"POINTSMAN_RUN_ID={run_id}") if each.session == each.pid]
        os.kill(work.parent, signal.SIGKILL)
        await project.until(lambda engine: has_succeeded(engine, run_id))
        await pool.until(lambda: work.parent not in pids_of(pool).values())
        await until_registered(project, 2)
        await drain(pool)
    assert re.search(r"box-\d  It was killed by SIGKILL\. A new worker replaces it", pool.said)
    async with project.engine() as engine:
        first, second = await engine.list_attempts((await tasks_of(engine, run_id))["a"].id)
        assert ("the worker was killed" in str(first.error), second.error) == (True, None)
        assert [worker.lifecycle for worker in await engine.list_workers()] == [lifecycle] * 3
    await check_nothing_is_left(project)


async def test_no_worker_outlives_its_supervisor(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(TWO))
    async with project.start(*POOL) as pool:
        await pool.until(lambda: (tmp_path / "began-1").exists() and (tmp_path / "began-2").exists())
        await pool.kill()
        await check_nothing_is_left(project)
    async with project.engine() as engine:
        tasks = await tasks_of(engine, run_id)
        assert [tasks[f"each[{index}]"].state for index in (0, 1)] == ["QUEUED", "QUEUED"], "both were given back"


async def test_the_first_signal_drains_all_workers(postgres_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, postgres_url)
    run_id = await project.submit(project.write_flow(TWO))
    async with project.start(*POOL) as pool:
        await pool.until(lambda: (tmp_path / "began-1").exists() and (tmp_path / "began-2").exists())
        pool.send(signal.SIGTERM)
        await pool.until(lambda: "again to kill" in pool.said)
        (tmp_path / "go").touch()
        assert await pool.wait() == 0, pool.said
    assert pool.said.count("It has ended.") == 2
    async with project.engine() as engine:
        states = {name: task.state for name, task in (await tasks_of(engine, run_id)).items()}
    assert states == {"each": "SUCCEEDED", "each[0]": "SUCCEEDED", "each[1]": "SUCCEEDED", "after": "QUEUED"}
    await check_nothing_is_left(project)


async def test_the_second_signal_kills_what_all_workers_run(sqlite_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, sqlite_url)
    await project.submit(project.write_flow(TWO.replace("touch", "trap '''' TERM; touch")))
    async with project.start(*POOL, grace_seconds=600) as pool:
        await pool.until(lambda: (tmp_path / "began-1").exists() and (tmp_path / "began-2").exists())
        pool.send(signal.SIGTERM)
        await pool.until(lambda: "again to kill" in pool.said)
        pool.send(signal.SIGTERM)
        assert await pool.wait() == 0, pool.said
    await check_nothing_is_left(project)


async def test_ctrl_c_at_a_terminal_reaches_the_supervisor_only(sqlite_url: str, tmp_path: Path) -> None:
    """Workers that got it as well would take the one of the supervisor for the second."""
    project = Project(tmp_path, sqlite_url)
    run_id = await project.submit(project.write_flow(TWO))
    ours, theirs = pty.openpty()
    process = project.start_with_stderr(theirs, *POOL, is_terminal=True)
    os.close(theirs)
    try:
        await until(lambda: (tmp_path / "began-1").exists() and (tmp_path / "began-2").exists())
        os.write(ours, b"\x03")
        seen = b""
        while b"again to kill" not in seen:
            seen += await asyncio.to_thread(os.read, ours, 65_536)
        (tmp_path / "go").touch()
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert re.search(rb"box-\d  \x1b\[35m\xe2\x96\xb6 each\[\d\]", seen), "in color, as a single worker"
    async with project.engine() as engine:
        tasks = await tasks_of(engine, run_id)
        assert [tasks[f"each[{index}]"].state for index in (0, 1)] == ["SUCCEEDED", "SUCCEEDED"]
    await check_nothing_is_left(project)


PAUSES = {
    "standard": ["INITIALIZING", "IDLE", "BUSY", "PAUSED", "IDLE", "SHUTDOWN"],
    "supervised": ["IDLE", "RUNNING", "PAUSED", "RUNNING", "COMPLETED"],
    "orchestrated": ["initializing", "idle", "busy", "idle", "shutdown"],
}
"""What becomes of a worker that runs out of memory. Document 002 has no state for it: the worker claims nothing meanwhile."""


@pytest.mark.parametrize(("database", "lifecycle"), EXHAUSTED)
async def test_a_worker_out_of_memory_is_paused_and_another_one_does_its_task(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, lifecycle: str
) -> None:
    project = Project(tmp_path, request.getfixturevalue(f"{database}_url"))
    (tmp_path / "hog.py").write_text(HOG_PROGRAM)
    run_id = await project.submit(project.write_flow(HOG.format(lifecycle=lifecycle)))
    async with project.start(*POOL, "--lifecycle", lifecycle, "--max-memory", "150 MB") as pool:
        await project.until(lambda engine: has_succeeded(engine, run_id))
        await pool.until(lambda: "The worker claims tasks again." in pool.said)
        await drain(pool)
    assert re.search(r"box-\d  The worker and its tasks use \S+ MB of memory, more than 150.0 MB\.", pool.said)
    async with project.engine() as engine:
        task = (await tasks_of(engine, run_id))["a"]
        first, second = await engine.list_attempts(task.id)
        assert (task.outcome, task.reclaim_count) == ("success", 1)
        assert "out of memory" in str(first.error)
        assert first.worker_id != second.worker_id
        states = {
            worker.id: [move.to_state for move in await engine.list_history(worker.id)]
            for worker in await engine.list_workers()
        }
        assert states[str(first.worker_id)] == PAUSES[lifecycle]
    await check_nothing_is_left(project)


async def test_a_worker_that_can_start_nothing_is_paused_until_it_can(sqlite_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, sqlite_url)

    async def is_given_back(engine: Engine) -> bool:
        (worker,) = await workers_of(engine)
        task = (await tasks_of(engine, run_id))["a"]
        return (worker.state, task.state, task.epoch, task.attempt_count, task.reclaim_count) == ("PAUSED", "QUEUED", 1, 0, 0)

    async with project.start("worker", "--count", "1", "--name", "box") as pool:
        await until_registered(project, 1)
        pid = pids_of(pool)["box-1"]
        limits = await leave_no_descriptors(pid)
        run_id = await project.submit(project.write_flow("name: f\ntasks:\n  a: {run: 'true'}\n"))
        await project.until(is_given_back)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        await project.until(lambda engine: has_succeeded(engine, run_id))
        await drain(pool)
    await check_nothing_is_left(project)


def count_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def leave_no_descriptors(pid: int) -> tuple[int, int]:
    """Lower the limit of a process so that it has nothing but its reserve, a quarter; returns the former limit."""
    counts = [0]
    while len(set(counts[-10:])) > 1 or len(counts) < 11:  # until it has opened everything that it keeps open
        counts.append(count_descriptors(pid))
        await asyncio.sleep(0.05)
    limit = round(counts[-1] * 1.15)
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))


async def test_workers_without_disk_space_wait_until_there_is_some(sqlite_url: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64m") as disk:
        project = Project(disk, sqlite_url, said=tmp_path)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(60_000_000))
        async with project.start(*POOL, "--min-free-disk", "16 MB") as pool:
            await pool.until(lambda: pool.said.count("MB left, less than 16.0 MB. The worker is paused") == 2)
            run_id = await project.submit(project.write_flow("name: f\ntasks:\n  a: {run: 'true'}\n"))
            async with project.engine() as engine:
                assert {worker.state for worker in await workers_of(engine)} == {"PAUSED"}
            ballast.unlink()
            await project.until(lambda engine: has_succeeded(engine, run_id))
            await drain(pool)
        await check_nothing_is_left(project)


async def test_workers_that_cannot_live_are_given_up_with_the_reason(sqlite_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, sqlite_url)
    soon = "import sys, pointsman.worker.pool as pool; pool.FIRST_PAUSE_SECONDS = 0.01; from pointsman.cli import main; "
    project.program = ("-c", f"{soon} sys.exit(main(sys.argv[1:]))")
    (tmp_path / ".pointsman" / "workers").write_text("not a folder")
    code, said = await project.call("worker", "--count", "1", "--name", "box")
    assert code == 1
    assert said.count("A new worker replaces it in") == 5
    assert re.search(r"It has died 6 times in a row, each time within 10s, and is not replaced any more\.\n", said)
    assert re.search(r"It exited with code 2 – error: Cannot use .*/\.pointsman/workers.*: .+\. A new", said), said
    assert "No worker of the pool can live." in said


async def freeze(project: Project, pid: int) -> None:
    """Stop a process, but not in the middle of a transaction."""
    is_locked = True
    while is_locked:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: (process := read_process(pid)) is not None and process.state == "T")
        is_locked = await asyncio.to_thread(project._is_locked)


async def test_a_worker_that_was_given_up_while_it_was_frozen_is_replaced(sqlite_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, sqlite_url)

    async def expire(engine: Engine) -> bool:
        (worker,) = await engine.list_workers()
        if worker.state == "UNRESPONSIVE":
            await engine.signal_worker(worker.id, "expire")
        return worker.phase == Phase.DONE

    async with project.start("worker", "--count", "1", "--name", "box", lease_seconds=1) as pool:
        await until_registered(project, 1)
        pid = pids_of(pool)["box-1"]
        await freeze(project, pid)
        await project.until(expire)
        os.kill(pid, signal.SIGCONT)
        await until_registered(project, 1)
        await drain(pool)
    assert "The worker was silent for too long" in pool.said
    await check_nothing_is_left(project)

"""Tasks without measure: too much output, too many processes, too many failures at once."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tests.system.faults.inquest import check_everything
from tests.system.faults.project import Project, find_work, tasks_of

from pointsman.engine.engine import Engine
from pointsman.worker.log import log_parts

OUTPUT_BYTES = int(os.environ.get("POINTSMAN_OUTPUT_BYTES", "200_000_000"))
LOG_BYTES = 2_000_000
MOST_MEMORY_KB = 150_000


def peak_memory_kb(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


async def test_any_amount_of_output_is_taken_with_flat_memory_and_the_log_stays_within_its_cap(
    database_url: str, tmp_path: Path
) -> None:
    project = Project(tmp_path, database_url)
    project.write_flow(
        "name: flood\n"
        f"tasks:\n  flood: {{run: 'echo the beginning; yes | head -c {OUTPUT_BYTES}; echo the end'}}\n"
        "  wait: {run: 'touch began; until [ -e go ]; do sleep 0.02; done', needs: [flood]}\n"
    )
    async with project.start("run", "flow.yaml", log_bytes=LOG_BYTES, lease_seconds=30) as run:
        await run.until((tmp_path / "began").exists, patience_seconds=60 + OUTPUT_BYTES / 1_000_000)
        peak = peak_memory_kb(run.pid)
        (tmp_path / "go").touch()
        assert await run.wait() == 0, run.said
    assert peak < MOST_MEMORY_KB
    async with project.engine() as engine:
        flood = (await tasks_of(engine, (await engine.list_runs())[0].id))["flood"]
    assert len(str(flood.output)) < 10_000, "only its end is in the database"
    parts = log_parts(Path(str(flood.attempt_log_path)))
    contents = [part.read_bytes() for part in parts]
    assert sum(map(len, contents)) <= LOG_BYTES + 1000, "but for the notice"
    assert contents[0].startswith(b"the beginning\n")
    assert contents[-1].endswith(b"the end\n")
    found = re.search(rb"the log is full: +(\d+) bytes are omitted here", contents[0])
    assert found
    assert int(found[1]) > OUTPUT_BYTES - LOG_BYTES - 100
    await check_everything(project)


BOMB = """
import fcntl, mmap, os, signal, struct, time

LIMIT = 300
count, lock = mmap.mmap(-1, 4), open("lock", "w")

def may_fork():
    fcntl.lockf(lock, fcntl.LOCK_EX)
    (forks,) = struct.unpack("i", count[:4])
    count[:4] = struct.pack("i", forks + 1)
    fcntl.lockf(lock, fcntl.LOCK_UN)
    return forks + 1 if forks < LIMIT else 0

signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    number = may_fork()
    if number and os.fork() == 0:
        if number % 3 == 0:
            os.setsid()
        elif number % 3 == 1:
            os.setpgid(0, 0)
            if os.fork():
                os._exit(0)
    if number == 64:
        open("big", "w").close()
    time.sleep(0.05)
"""
"""Everybody forks on and on, is deaf to SIGTERM, and most leave their group, their session or their parent."""


async def test_a_fork_bomb_is_ended_by_its_timeout_and_nobody_is_left(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    (tmp_path / "bomb.py").write_text(BOMB)
    project.write_flow(
        "name: bomb\ntasks:\n"
        "  bomb: {command: [python3, bomb.py], timeout: 3}\n"
        "  neighbour: {run: 'until [ -e big ]; do sleep 0.02; done; echo fine'}\n"
        "  escapes: {command: [sh, escapes.sh], timeout: 1}\n"
    )
    (tmp_path / "escapes.sh").write_text(
        "setsid sleep 1000 & setsid sh -c 'trap : TERM; while :; do sleep 1; done' & sleep 1000"
    )
    async with project.start("run", "flow.yaml", slots=3, grace_seconds=0.5) as run:
        await run.until((tmp_path / "big").exists)
        assert await run.wait() == 1, run.said
    async with project.engine() as engine:
        (only,) = await engine.list_runs()
        states = {name: task.state for name, task in (await tasks_of(engine, only.id)).items()}
    assert states == {"bomb": "TIMED_OUT", "escapes": "TIMED_OUT", "neighbour": "SUCCEEDED"}
    assert not find_work(only)
    await check_everything(project)


TASKS = 1000
BASE_SECONDS = 100.0
JITTER = 0.2


async def test_a_thousand_tasks_that_fail_at_once_do_not_return_at_once(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    project.write_flow(
        "name: herd\ntasks:\n  herd:\n"
        f"    command: ['false']\n    foreach: range({TASKS})\n    retries: 1\n"
        f"    backoff: {{base: {BASE_SECONDS}, jitter: {JITTER}}}\n"
    )
    async with project.start("run", "flow.yaml", slots=20) as run:
        delays = await project.until(_delays_of_all)
        run.send(signal.SIGINT)
        assert await run.wait() == 130, run.said
    assert len(set(delays)) > 0.99 * TASKS
    assert min(delays) >= BASE_SECONDS
    assert max(delays) <= BASE_SECONDS * (1 + JITTER) + 1
    buckets = Counter(int((delay - BASE_SECONDS) / (BASE_SECONDS * JITTER) * 10) for delay in delays)
    assert all(buckets[number] > 0.05 * TASKS for number in range(10)), "evenly enough"
    assert max(after - before for before, after in pairwise(sorted(delays))) < BASE_SECONDS * JITTER / 10
    await check_everything(project)


async def _delays_of_all(engine: Engine) -> list[float]:
    """From the failure to the next try, once all have failed."""
    for run in await engine.list_runs():
        failed = [task for task in await engine.list_tasks(run.id) if task.available_at and task.retry_count]
        if len(failed) == TASKS:
            return [(task.available_at - task.entered_at).total_seconds() for task in failed if task.available_at]
    return []


HUNGRY = """
name: hungry
tasks:
  each: {run: "touch began; until [ -e go ]; do sleep 0.02; done; echo ${{ item }} > $POINTSMAN_OUTPUT", foreach: "range(6)"}
"""


async def test_a_worker_without_descriptors_holds_back_says_so_once_and_goes_on_when_it_can(
    database_url: str, tmp_path: Path
) -> None:
    """Nothing fails, and nothing is attempted twice."""
    project = Project(tmp_path, database_url)
    async with project.start("worker", slots=6) as worker:
        await project.until(_sends_heartbeats)
        leave_descriptors(worker.pid, 6)
        run_id = await project.submit(project.write_flow(HUNGRY))
        await worker.until(lambda: "cannot start processes: Too many open files" in worker.said)
        await worker.until((tmp_path / "began").exists)
        assert worker.said.count("cannot start processes") == 1
        (tmp_path / "go").touch()
        await project.until(lambda engine: _has_ended(engine, run_id))
        worker.send(signal.SIGTERM)
        assert await worker.wait() == 0, worker.said
    assert "claims tasks again" in worker.said
    async with project.engine() as engine:
        assert {(task.state, task.epoch) for task in await engine.list_tasks(run_id)} == {("SUCCEEDED", 1)}
    await check_everything(project)


async def _sends_heartbeats(engine: Engine) -> bool:
    """It has opened what it needs for itself."""
    return any(worker.heartbeat_at > worker.created_at for worker in await engine.list_workers())


def leave_descriptors(pid: int, count: int) -> None:
    """Lower the limit of a process, so that it may use so many more before it touches its reserve, a quarter."""
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    limit = (used + count) * 4 // 3
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))


async def _has_ended(engine: Engine, run_id: str) -> bool:
    return (await engine.get_run(run_id)).outcome is not None

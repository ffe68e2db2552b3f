"""A successor ends what a dead worker left running, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rooms.worker.workshop import WORLD

from pointsman.worker.process_table import read_process
from pointsman.worker.processes import is_alive
from pointsman.worker.records import Record, end_predecessors, forget

WORKER = """
import asyncio, os, sys, time
from pathlib import Path
from tests.rooms.worker.workshop import make_shell_job, start
from pointsman.worker.records import Record

async def work():
    directory = Path(sys.argv[1])
    record = Record(directory, "worker_dead")
    job = make_shell_job(directory, sys.argv[2], worker_id="worker_dead")
    running = await start(job)
    record.add(running.pid, running.started_ticks, job.claim.task_id, job.claim.epoch)
    print(running.pid, flush=True)
    await running.wait()

asyncio.run(work())
"""


def read_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def stranger() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def start_worker(directory: Path, script: str) -> tuple[subprocess.Popen[str], int]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(directory), script], stdout=subprocess.PIPE, text=True, env=env, cwd=Path.cwd()
    )
    assert worker.stdout
    return worker, int(worker.stdout.readline())


def end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    assert worker.stdout
    worker.stdout.close()


def wait_for(path: Path) -> int:
    while not path.exists() or not path.read_text().strip():
        os.sched_yield()
    return int(path.read_text())


def started(pid: int) -> int:
    process = read_process(pid)
    assert process
    return process.started_ticks


def change(directory: Path, **changes: object) -> None:
    path = directory / ".pointsman" / "workers" / "worker_dead.jsonl"
    first, *children = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | changes), *children]))


def test_what_a_killed_worker_left_running_is_ended(tmp_path: Path) -> None:
    script = "echo $$ > child; (setsid sh -c 'echo $$ > escaped; sleep 1000' &); kill -STOP $$; sleep 1000"
    worker, child = start_worker(tmp_path, script)
    escaped = wait_for(tmp_path / "escaped")
    alive = [(pid, started(pid)) for pid in (child, escaped)]
    assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == [], "it lives"
    end(worker)
    assert all(is_alive(*each) for each in alive)
    assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == ["worker_dead"]
    assert not any(is_alive(*each) for each in alive)
    forget(tmp_path, ["worker_dead"])
    assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == []


def test_a_child_that_was_never_written_down_is_ended_as_well(tmp_path: Path) -> None:
    worker, child = start_worker(tmp_path, "sleep 1000")
    ticks = started(child)
    path = tmp_path / ".pointsman" / "workers" / "worker_dead.jsonl"
    path.write_text(path.read_text().splitlines()[0])
    end(worker)
    asyncio.run(end_predecessors(tmp_path, WORLD.sleep))
    assert not is_alive(child, ticks)


def test_a_number_that_went_to_somebody_else_is_left_alone(tmp_path: Path, stranger: int) -> None:
    record = Record(tmp_path, "worker_dead")
    record.add(stranger, started(stranger) - 1, "task_1", 1)
    change(tmp_path, started_ticks=started(os.getpid()) - 1)
    assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == ["worker_dead"], "its number went to somebody else, too"
    assert is_alive(stranger, started(stranger))


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({"host": "elsewhere"}, []),
        ({"boot": "another boot"}, ["worker_dead"]),
        ({"boot": f"{read_boot()} another namespace"}, []),
    ],
)
def test_processes_of_another_machine_or_boot_are_left_alone(
    tmp_path: Path, stranger: int, changes: dict[str, str], dead: list[str]
) -> None:
    record = Record(tmp_path, "worker_dead")
    record.add(stranger, started(stranger), "task_1", 1)
    change(tmp_path, pid=2**22 + 1, **changes)
    assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == dead
    assert is_alive(stranger, started(stranger))


def test_a_torn_record_is_no_obstacle(tmp_path: Path) -> None:
    Record(tmp_path, "worker_alive")
    (tmp_path / ".pointsman" / "workers" / "worker_torn.jsonl").write_text('{"worker_id": "wor')
    assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == []


def test_a_child_without_the_environment_it_was_given_is_ended_as_well(tmp_path: Path) -> None:
    worker, child = start_worker(tmp_path, "exec env -i sh -c 'echo $$ > bare; sleep 1000; :'")
    wait_for(tmp_path / "bare")
    ticks = started(child)
    end(worker)
    asyncio.run(end_predecessors(tmp_path, WORLD.sleep))
    assert not is_alive(child, ticks)


def test_a_record_does_not_grow_for_ever(tmp_path: Path) -> None:
    record = Record(tmp_path, "worker_1")
    for number in range(2500):
        record.add(number, 1, f"task_{number}", 1)
        record.remove(f"task_{number - 2}", 1)
    lines = (tmp_path / ".pointsman" / "workers" / "worker_1.jsonl").read_text().splitlines()
    record.close()
    assert len(lines) <= 1001
    assert json.loads(lines[0])["worker_id"] == "worker_1"
    assert json.loads(lines[-1])["task_id"] == "task_2499"


def test_a_worker_that_ends_well_leaves_no_record(tmp_path: Path) -> None:
    record = Record(tmp_path, "worker_1")
    record.add(1, 1, "task_1", 1)
    record.remove("task_1", 1)
    record.close()
    assert not list((tmp_path / ".pointsman" / "workers").iterdir())


def test_a_worker_that_is_only_halted_is_not_dead(tmp_path: Path) -> None:
    worker, child = start_worker(tmp_path, "sleep 1000")
    worker.send_signal(signal.SIGSTOP)
    assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == []
    end(worker)
    asyncio.run(end_predecessors(tmp_path, WORLD.sleep))
    assert read_process(child) is None or not is_alive(child, started(child))

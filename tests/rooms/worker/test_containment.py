"""Whatever a task does to get away, it is found after its worker was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rooms.worker.workshop import WORLD
from tests.system.faults.test_worker_kills import ESCAPE

from pointsman.worker.process_table import read_process
from pointsman.worker.processes import is_alive, send
from pointsman.worker.records import end_predecessors

WORKER = """
import subprocess, sys, time
from pathlib import Path
from pointsman.worker.containment import Containment, _set_mark, contain
from pointsman.worker.records import Record

held = Containment(mark=_set_mark("worker_dead")) if sys.argv[2] == "mark" else contain("worker_dead")
Record(Path(sys.argv[1]), "worker_dead", held)
subprocess.run([sys.executable, "-c", sys.argv[3]], check=True)
print(held.kind, flush=True)
time.sleep(1000)
"""
ENDING = """
from pathlib import Path
from pointsman.worker.containment import contain, release
import resource

def look():
    return resource.getrlimit(resource.RLIMIT_RTTIME), Path("/proc/self/cgroup").read_text()

before = look()
held = contain("worker_of_tests")
assert held.mark and look() != before
release(held)
assert look() == before
assert held.cgroup is None or not Path(held.cgroup).exists()
"""


def read_pid(path: Path) -> int:
    while not path.exists() or not path.read_text().strip():
        os.sched_yield()
    return int(path.read_text())


@pytest.mark.parametrize("protection", ["best", "mark"])
def test_a_daemon_without_environment_is_ended_after_its_worker_was_killed(tmp_path: Path, protection: str) -> None:
    """By a cgroup where the machine lets us have one, and by a mark everywhere."""
    argv = [sys.executable, "-c", WORKER, str(tmp_path), protection, ESCAPE]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert worker.stdout
    kind = worker.stdout.readline().strip()
    assert kind in (("mark",) if protection == "mark" else ("mark", "cgroup"))
    escaped = read_process(read_pid(tmp_path / "escaped"))
    assert escaped
    worker.kill()
    worker.wait()
    worker.stdout.close()
    assert is_alive(escaped.pid, escaped.started_ticks)
    try:
        assert asyncio.run(end_predecessors(tmp_path, WORLD.sleep)) == ["worker_dead"]
        assert not is_alive(escaped.pid, escaped.started_ticks)
    finally:
        send([escaped], signal.SIGKILL)


def test_nothing_is_left_of_it_when_the_worker_ends() -> None:
    subprocess.run([sys.executable, "-c", ENDING], check=True)

"""The files of a project: only their owner reads them, nobody redirects them, and a forged record kills nobody."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from pointsman.cli.logs import open_log
from pointsman.worker import records
from pointsman.worker.cost_file import CostFile
from pointsman.worker.log import AttemptLog
from pointsman.worker.process_table import read_process
from pointsman.worker.runner import read_output
from pointsman.world import World


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def run_flow(folder: Path) -> None:
    (folder / "flow.yaml").write_text("name: f\ntasks:\n  a: {run: echo hello}\n")
    done = subprocess.run([sys.executable, "-m", "pointsman", "run", "flow.yaml"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_a_run_writes_is_for_its_owner_only(tmp_path: Path) -> None:
    run_flow(tmp_path)
    folder = tmp_path / ".pointsman"
    assert mode_of(folder) == 0o700
    (log,) = folder.glob("logs/*/a/1.log")
    assert mode_of(log) == mode_of(folder / "state.db") == mode_of(tmp_path / ".state" / "transitions.jsonl") == 0o600


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o700), (0o775, 0o775)], ids=["open to read", "shared"])
def test_the_folder_of_an_existing_project_is_closed_unless_it_is_shared(tmp_path: Path, before: int, after: int) -> None:
    (tmp_path / ".pointsman").mkdir()
    (tmp_path / ".pointsman").chmod(before)
    run_flow(tmp_path)
    assert mode_of(tmp_path / ".pointsman") == after


def test_a_link_in_the_place_of_a_log_or_an_output_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text('{"secret": 1}')
    for name in ("1.log", "1.output"):
        (tmp_path / name).symlink_to(precious)
    log = AttemptLog(str(tmp_path / "1.log"), 1000)
    log.write(b"hello\n")
    log.close()
    assert log.problem
    assert precious.read_text() == '{"secret": 1}'
    value, problem = read_output(tmp_path / "1.output")
    assert value is None
    assert problem


def test_a_link_in_the_place_of_a_file_that_is_read_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("1.5\n")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    assert CostFile(str(tmp_path / "precious")).read(final=True).cost_usd == Decimal("1.5")
    assert CostFile(str(tmp_path / "link")).read(final=True).cost_usd == 0
    with pytest.raises(OSError, match="symbolic links"):
        open_log(tmp_path / "link")


def test_a_link_in_the_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "transitions.jsonl").symlink_to(tmp_path / "precious")
    run_flow(tmp_path)
    assert (tmp_path / "precious").read_bytes() == b""


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user that no worker has started."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def forge(folder: Path, victim: subprocess.Popen[bytes]) -> Path:
    """A record of a dead worker of this machine that claims to have started the process."""
    entry = read_process(victim.pid)
    assert entry
    boot = records._read_boot()
    worker = {"worker_id": "worker_1", "host": socket.gethostname(), "boot": boot, "pid": 2**22, "started_ticks": 0}
    child = {"pid": victim.pid, "started_ticks": entry.started_ticks, "task_id": "task_1", "epoch": 1}
    path = folder / ".pointsman" / "workers" / "worker_1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(f"{json.dumps(worker)}\n{json.dumps(child)}\n")
    return path


def test_a_forged_record_kills_nobody(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    forge(tmp_path, stranger)
    assert asyncio.run(records.end_predecessors(tmp_path, World().sleep)) == ["worker_1"]
    assert stranger.poll() is None


def test_a_record_that_others_may_write_or_that_is_a_link_is_not_believed(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    path = forge(tmp_path, stranger)
    path.chmod(0o666)
    assert asyncio.run(records.end_predecessors(tmp_path, World().sleep)) == []
    path.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o600)
    path.symlink_to(tmp_path / "elsewhere")
    assert asyncio.run(records.end_predecessors(tmp_path, World().sleep)) == []


def test_a_record_is_for_its_owner_only(tmp_path: Path) -> None:
    record = records.Record(tmp_path, "worker_1")
    path = tmp_path / ".pointsman" / "workers" / "worker_1.jsonl"
    assert (mode_of(path), mode_of(path.parent), mode_of(path.parent.parent)) == (0o600, 0o700, 0o700)
    record.add(os.getpid(), 1, "task_1", 1)
    assert len(path.read_text().splitlines()) == 2
    record.close()

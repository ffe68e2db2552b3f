"""A reader that does not read: nothing but the output may wait for it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.faults.inquest import check_everything
from tests.system.faults.project import Project, tasks_of, until

from pointsman.engine.engine import Engine

PIPE_BYTES = 1 << 20
"""The largest pipe that an ordinary user may have."""
TIMED = "name: f\ntasks:\n  long: {run: sleep 1000, timeout: 0.5s, critical: false}\n  b: {run: 'true', needs: [long]}\n"
ENDLESS = "name: f\ntasks:\n  a: {run: touch began; sleep 1000}\n"
NOISY = f"name: f\ntasks:\n  a: {{run: 'head -c {4 * PIPE_BYTES} /dev/zero'}}\n"
MANY = "name: f\ntasks:\n  each: {foreach: '${{ range(60) }}', run: 'true'}\n"
PROGRAM = "from pointsman.cli import main, outlet; outlet.GRACE_SECONDS = 0.2; {}raise SystemExit(main())"
HASTY = PROGRAM.format("")
PATIENT = PROGRAM.format("outlet.LIMIT = 4096; outlet.GRACE_SECONDS = 60; ")
"""With pipes and buffers that a few lines fill."""


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The end to write to of a pipe that is full, and that nobody reads."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(write_end, False)
    while True:
        try:
            os.write(write_end, bytes(4096))
        except BlockingIOError:
            break
    os.set_blocking(write_end, True)
    yield write_end
    os.close(write_end)
    os.close(read_end)


def start(project: Project, output: int, *arguments: str, program: str = HASTY) -> subprocess.Popen[bytes]:
    """A command whose stdout and stderr lead to the same pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--store", project.url],
        cwd=project.folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL if output == subprocess.PIPE else output,
    )


async def wait_for(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, 60)


async def _have_ended(engine: Engine) -> bool:
    runs = await engine.list_runs()
    return bool(runs) and all(run.completed_at for run in runs)


@pytest.mark.parametrize("arguments", [("run", "flow.yaml"), ("run", "flow.yaml", "--json"), ("worker", "--json")])
async def test_the_work_goes_on_and_time_limits_hold(
    sqlite_url: str, tmp_path: Path, full_pipe: int, arguments: tuple[str, ...]
) -> None:
    project = Project(tmp_path, sqlite_url)
    flow = project.write_flow(TIMED)
    if arguments[0] == "worker":
        await project.submit(flow)
    process = start(project, full_pipe, *arguments)
    try:
        await project.until(_have_ended)
        if arguments[0] == "worker":
            process.send_signal(signal.SIGTERM)
        assert await wait_for(process) == 0
    finally:
        process.kill()
        process.wait()
    async with project.engine() as engine:
        (run,) = await engine.list_runs()
        tasks = await tasks_of(engine, run.id)
    assert "timeout" in (tasks["long"].error or "")
    assert tasks["b"].state == "SUCCEEDED"
    await check_everything(project)


@pytest.mark.parametrize("command", ["run", "worker"])
async def test_two_signals_end_it(sqlite_url: str, tmp_path: Path, full_pipe: int, command: str) -> None:
    project = Project(tmp_path, sqlite_url)
    flow = project.write_flow(ENDLESS)
    if command == "worker":
        await project.submit(flow)
    process = start(project, full_pipe, *((command, flow) if command == "run" else (command,)))
    try:
        await until((tmp_path / "began").exists)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)  # two equal signals at once are one
        assert await wait_for(process) == (143 if command == "run" else 0)
    finally:
        process.kill()
        process.wait()
    await check_everything(project)


@pytest.mark.parametrize("arguments", [("watch", "--all"), ("logs", "latest", "-f")])
async def test_one_ctrl_c_ends_what_only_shows(
    sqlite_url: str, tmp_path: Path, full_pipe: int, arguments: tuple[str, ...]
) -> None:
    """Whoever shows waits for the reader for ever, as every program does, but not for a second signal."""
    project = Project(tmp_path, sqlite_url)
    code, said = await project.call("run", project.write_flow(NOISY), log_cap="8MB")
    assert code == 0, said
    process = start(project, full_pipe, *arguments)
    try:
        await until(lambda: _has_threads(process))
        process.send_signal(signal.SIGINT)
        assert await wait_for(process) == 130
    finally:
        process.kill()
        process.wait()


async def test_ctrl_c_ends_a_command_that_still_starts(sqlite_url: str, tmp_path: Path, full_pipe: int) -> None:
    process = Project(tmp_path, sqlite_url).start_with_stderr(full_pipe, "watch", "latest")
    try:
        await until(lambda: "msgspec" in Path(f"/proc/{process.pid}/maps").read_text())
        process.send_signal(signal.SIGINT)
        assert await wait_for(process) == 130
    finally:
        process.kill()
        process.wait()


def _has_threads(process: subprocess.Popen[bytes]) -> bool:
    """One of them writes the output: the command has begun."""
    assert process.poll() is None
    return len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 1


async def test_a_late_reader_gets_every_event(sqlite_url: str, tmp_path: Path) -> None:
    """What has no room in the pipe waits in the database; the run does not wait for it."""
    project = Project(tmp_path, sqlite_url)
    process = start(project, subprocess.PIPE, "run", project.write_flow(MANY), "--json", program=PATIENT)
    try:
        await project.until(_have_ended)
        out, _ = await asyncio.to_thread(process.communicate, timeout=60)
    finally:
        process.kill()
        process.wait()
    *events, summary = map(json.loads, out.splitlines())
    assert summary["outcome"] == "success"
    async with project.engine() as engine:
        moves = await engine.list_transitions(run_id=summary["run_id"], limit=1000)
    assert [event["metadata"]["position"] for event in events] == [move.position for move in moves]
    assert len(out) > 10 * 4096

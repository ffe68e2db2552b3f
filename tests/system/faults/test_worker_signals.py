"""What people and service managers send: Ctrl-C, SIGTERM, and the wish to pause."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import signal
from pathlib import Path

import pytest
from tests.system.faults.inquest import check_everything
from tests.system.faults.project import Command, Project, find_work, tasks_of

from pointsman.engine.engine import Engine

ONE_AFTER_THE_OTHER = """\
name: f
tasks:
  a: {run: 'touch began; until [ -e go ]; do sleep 0.02; done'}
  b: {run: 'true', needs: [a]}
"""
DEAF = "name: f\ntasks:\n  a: {run: \"trap '' TERM INT; touch began; while true; do sleep 1; done\"}\n"
TWO = "name: f\ntasks:\n  a: {run: 'touch began; until [ -e go ]; do sleep 0.02; done'}\n  b: {run: 'true'}\n"


async def states_of(project: Project, run_id: str | None = None) -> dict[str, str]:
    """Of the run itself and its tasks."""
    async with project.engine() as engine:
        run = await engine.get_run(run_id) if run_id else (await engine.list_runs())[0]
        return {"run": run.state} | {name: task.state for name, task in (await tasks_of(engine, run.id)).items()}


async def said(command: Command, words: str) -> None:
    await command.until(lambda: words in command.said)


@pytest.mark.parametrize("lifecycle", ["standard", "pipeline"])
async def test_ctrl_c_stops_the_processes_and_keeps_the_run(database_url: str, tmp_path: Path, lifecycle: str) -> None:
    project = Project(tmp_path, database_url)
    flow = project.write_flow(f"lifecycle: {lifecycle}\n{ONE_AFTER_THE_OTHER}")
    async with project.start("run", flow) as started:
        await started.until((tmp_path / "began").exists)
        started.send(signal.SIGINT)
        assert await started.wait() == 130, started.said
    assert "The run is kept" in started.said
    async with project.engine() as engine:
        (run,) = await engine.list_runs()
        assert run.outcome is None
        assert not find_work(run)
        task = (await tasks_of(engine, run.id))["a"]
        assert (task.epoch, task.attempt_count, task.retry_count, task.reclaim_count) == (1, 0, 0, 0)
    (hint,) = re.findall(r"^  pointsman (.*?)  # runs its tasks here$", started.said, re.MULTILINE)
    (tmp_path / "go").touch()
    code, words = await project.call(*shlex.split(hint))
    assert code == 0, words
    assert (await project.call("validate", ".state/transitions.jsonl"))[0] == 0
    await check_everything(project)


async def test_ctrl_c_twice_kills_what_runs_at_once_and_keeps_the_run(database_url: str, tmp_path: Path) -> None:
    """Whoever does not listen would have ten minutes otherwise."""
    project = Project(tmp_path, database_url)
    async with project.start("run", project.write_flow(DEAF), grace_seconds=600) as command:
        await command.until((tmp_path / "began").exists)
        command.send(signal.SIGINT)
        await said(command, "again to kill")
        command.send(signal.SIGINT)
        assert await command.wait() == 130, command.said
    assert await states_of(project) == {"run": "RUNNING", "a": "QUEUED"}
    (hint,) = re.findall(r"^  pointsman (cancel .*?)  # ends the run as CANCELED$", command.said, re.MULTILINE)
    assert (await project.call(*shlex.split(hint)))[0] == 0
    assert await states_of(project) == dict.fromkeys(("run", "a"), "CANCELED")
    await check_everything(project)


@pytest.mark.parametrize("command", ["run", "worker"])
async def test_sigterm_finishes_what_runs_and_takes_nothing_new(database_url: str, tmp_path: Path, command: str) -> None:
    project = Project(tmp_path, database_url)
    flow = project.write_flow(TWO)
    if command == "worker":
        await project.submit(flow)
    async with project.start(*((command, flow) if command == "run" else (command,)), slots=1) as started:
        await started.until((tmp_path / "began").exists)
        started.send(signal.SIGTERM)
        await said(started, "again to kill")
        (tmp_path / "go").touch()
        assert await started.wait() == (143 if command == "run" else 0), started.said
    assert await states_of(project) == {"run": "RUNNING", "a": "SUCCEEDED", "b": "QUEUED"}
    code, words = await project.call("resume")
    assert code == 0, words
    await check_everything(project)


async def test_a_second_sigterm_kills_and_the_task_is_for_others(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(TWO))
    async with project.start("worker", slots=1, grace_seconds=600) as worker:
        await worker.until((tmp_path / "began").exists)
        worker.send(signal.SIGTERM)
        await said(worker, "again to kill")
        worker.send(signal.SIGTERM)
        assert await worker.wait() == 0, worker.said
    assert not find_work(run_id)
    assert await states_of(project) == {"run": "RUNNING", "a": "QUEUED", "b": "QUEUED"}
    (tmp_path / "go").touch()
    code, words = await project.call("resume")
    assert code == 0, words
    async with project.engine() as engine:
        attempts = await engine.list_attempts((await tasks_of(engine, run_id))["a"].id)
        assert [each.ended_by for each in attempts] == ["lease_lost", "complete"]
    await check_everything(project)


async def test_a_worker_that_is_paused_suspends_its_children(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)

    async def wish(engine: Engine, signal_: str) -> bool:
        (worker,) = await engine.list_workers()
        await engine.signal_worker(worker.id, signal_)
        return True

    run_id = await project.submit(project.write_flow(TWO.replace("touch began", "sleep 1000 & touch began")))
    async with project.start("worker", slots=1, lease_seconds=30, on_pause="suspend") as worker:
        await worker.until((tmp_path / "began").exists)
        await project.until(lambda engine: wish(engine, "pause"))
        await worker.until(lambda: {each.state for each in find_work(run_id)} == {"T"})
        (tmp_path / "go").touch()
        assert (await states_of(project, run_id))["a"] == "RUNNING"
        await project.until(lambda engine: wish(engine, "resume"))
        await project.until(lambda engine: _has_ended(engine, run_id))
        worker.send(signal.SIGTERM)
        assert await worker.wait() == 0, worker.said
    assert set((await states_of(project, run_id)).values()) == {"SUCCEEDED"}
    await check_everything(project)


async def _has_ended(engine: Engine, run_id: str) -> bool:
    return (await engine.get_run(run_id)).outcome is not None


LINES = "name: f\ntasks:\n  a: {run: 'until [ -e go ]; do sleep 0.02; done'}\n  b: {run: 'true', needs: [a]}\n"


@pytest.mark.parametrize("command", ["run", "worker"])
async def test_whoever_reads_may_go_away_and_the_work_goes_on(sqlite_url: str, tmp_path: Path, command: str) -> None:
    """As in `pointsman worker 2>&1 | head`: the lines that follow have no reader."""
    project = Project(tmp_path, sqlite_url)
    flow = project.write_flow(LINES)
    run_id = None if command == "run" else await project.submit(flow)
    read_end, write_end = os.pipe()
    process = project.start_with_stderr(write_end, *((command, flow) if command == "run" else (command,)))
    os.close(write_end)
    try:
        assert os.read(read_end, 1)
        os.close(read_end)
        (tmp_path / "go").touch()
        await project.until(_have_ended)
        if command == "worker":
            process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        process.kill()
        process.wait()
    assert set((await states_of(project, run_id)).values()) == {"SUCCEEDED"}
    await check_everything(project)


@pytest.mark.parametrize("command", ["run", "worker"])
async def test_a_terminal_that_is_closed_ends_it_like_sigterm(sqlite_url: str, tmp_path: Path, command: str) -> None:
    project = Project(tmp_path, sqlite_url)
    flow = project.write_flow(LINES)
    run_id = None if command == "run" else await project.submit(flow)
    ours, theirs = pty.openpty()
    process = project.start_with_stderr(theirs, *((command, flow) if command == "run" else (command,)), is_terminal=True)
    os.close(theirs)
    try:
        await project.until(_has_begun)
        os.close(ours)  # the system sends SIGHUP, and whatever is written from now on fails
        (tmp_path / "go").touch()
        assert await asyncio.to_thread(process.wait, 30) == (143 if command == "run" else 0)
    finally:
        process.kill()
        process.wait()
    assert (await states_of(project, run_id))["a"] == "SUCCEEDED"
    await check_everything(project)


async def _has_begun(engine: Engine) -> bool:
    return any(run.started_at for run in await engine.list_runs())


async def _have_ended(engine: Engine) -> bool:
    runs = await engine.list_runs()
    return bool(runs) and all(run.completed_at for run in runs)

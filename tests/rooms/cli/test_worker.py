"""What a worker says of its work, to people and to programs."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from tests.system.faults.project import Project

from pointsman.engine.engine import Engine

FLOW = """
name: diary
tasks:
  well: {run: "true"}
  wrong: {run: "echo no such thing; exit 3", retries: 1, backoff: 0s, critical: false}
  never: {when: "false", run: "true"}
  each: {foreach: [1, 2], command: ["true"]}
  slow: {run: "sleep 60", timeout: 0.1s, critical: false}
  unchecked: {run: "true", checks: [{file: nothing}], critical: false}
"""
FAILURE = "failure"
EVENTS = {
    "well": ["started", "success"],
    "wrong": ["started", FAILURE, "started", FAILURE],
    "never": ["started", "skipped"],
    "each": ["started", "success"],
    "each[0]": ["started", "success"],
    "each[1]": ["started", "success"],
    "slow": ["started", FAILURE],
    "unchecked": ["started", FAILURE],
}


async def work(project: Project, *options: str) -> tuple[str, str]:
    """A worker until it has done everything; what it wrote to stdout, and what it said to people."""
    run_id = await project.submit(project.write_flow(FLOW))

    async def has_ended(engine: Engine) -> bool:
        return (await engine.get_run(run_id)).completed_at is not None

    async with project.start("worker", *options) as worker:
        await project.until(has_ended)
        worker.send(signal.SIGTERM)
        out, _ = await worker.process.communicate()
        assert worker.process.returncode == 0, worker.said
        return out.decode(), worker.said


async def test_every_beginning_and_end_is_a_line(tmp_path: Path, sqlite_url: str) -> None:
    out, said = await work(Project(tmp_path, sqlite_url))
    assert out == ""
    events: dict[str, list[str]] = {}
    for line in said.splitlines():
        if match := re.fullmatch(r"\d\d:\d\d:\d\d  [▶✓✗↷] (\S+)  [0-9a-f]{8}  (started|success|failure|skipped)(.*)", line):
            events.setdefault(match[1], []).append(match[2])
    assert events == EVENTS
    for words in (
        r"✗ wrong .* failure after .*  – exited with code 3 \(expected 0\) – no such thing",
        r"✗ wrong .* \(attempt 2\)",
        "↷ never .* – its condition is false: false",
        "✓ each .* – added 2 subtasks",
        "✗ slow .* – It was stopped after 0.1s, its timeout.",
        "✗ unchecked .* – check `file: nothing`: there is no file",
    ):
        assert re.search(words, said), (words, said)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_programs_get_the_same_as_objects(tmp_path: Path, request: pytest.FixtureRequest, database: str) -> None:
    project = Project(tmp_path, request.getfixturevalue(f"{database}_url"))
    out, _ = await work(project, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    events: dict[str, list[str]] = {}
    for line in lines:
        events.setdefault(line["name"], []).append(line["event"])
        assert (line["seconds"] is None) == (line["event"] == "started")
    assert events == EVENTS
    failed = [(line["attempt"], line["message"]) for line in lines if line["name"] == "wrong" and line["event"] == FAILURE]
    assert failed == [(attempt, "exited with code 3 (expected 0) – no such thing") for attempt in (1, 2)]


async def test_the_lines_of_a_pool_name_their_worker(tmp_path: Path, sqlite_url: str) -> None:
    out, said = await work(Project(tmp_path, sqlite_url), "--count", "2", "--name", "box")
    assert out == ""
    events: dict[str, list[str]] = {}
    for line in said.splitlines():
        pattern = r"\d\d:\d\d:\d\d  box-[12]  [▶✓✗↷] (\S+)  [0-9a-f]{8}  (started|success|failure|skipped)(.*)"
        if match := re.fullmatch(pattern, line):
            events.setdefault(match[1], []).append(match[2])
    assert {name: sorted(found) for name, found in events.items()} == {name: sorted(found) for name, found in EVENTS.items()}
    for name in ("box-1", "box-2"):
        assert re.search(rf"^\d\d:\d\d:\d\d  {name}  started \(process \d+\)$", said, re.MULTILINE)
        assert re.search(rf"^\d\d:\d\d:\d\d  {name}  It has ended\.$", said, re.MULTILINE)
    assert said.count("Finishing running tasks.") == 1, "once for all"


@pytest.mark.parametrize("command", ["worker", "run"])
async def test_a_worker_without_tasks_says_so_when_it_is_stopped(tmp_path: Path, sqlite_url: str, command: str) -> None:
    project = Project(tmp_path, sqlite_url)
    project.write_flow("{name: f, tasks: {a: {run: 'true', needs_capabilities: [gpu]}}}")
    await project.submit("flow.yaml")
    async with project.start(*(("run", "flow.yaml") if command == "run" else ("worker",))) as worker:
        await worker.until(lambda: "no worker has the capability gpu" in worker.said)
        worker.send(signal.SIGTERM)
        await worker.wait()
    assert "No task is running. The worker stops." in worker.said
    assert "running tasks" not in worker.said


async def test_programs_get_what_happens_in_a_pool_as_objects(tmp_path: Path, sqlite_url: str) -> None:
    out, _ = await work(Project(tmp_path, sqlite_url), "--count", "2", "--name", "box", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["worker"] for line in lines} == {"box-1", "box-2"}
    moves = [(line["event"], line["worker"]) for line in lines if line["event"].startswith("worker_")]
    assert sorted(moves) == [(event, name) for event in ("worker_ended", "worker_started") for name in ("box-1", "box-2")]
    assert {line["name"] for line in lines if "name" in line} == set(EVENTS)

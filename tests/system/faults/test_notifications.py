"""Processes that are killed before, during and after the delivery of a notification: it is delivered all the same."""

from __future__ import annotations

import json
from pathlib import Path

from tests.system.faults.project import Project

from pointsman import app
from pointsman.engine.submit import NewRun, NewTask

SETTINGS = """
[[notify]]
name = "program"
on = ["run_ended"]
command = ["sh", "-c", "cat >> told.jsonl; echo >> told.jsonl; [ -e hang ] && touch hanging && sleep 600; true"]
timeout = "1s"
"""
FLOW = "{name: work, tasks: {work: {run: 'echo done'}}}"


def make_project(folder: Path, url: str) -> Project:
    project = Project(folder, url)
    (folder / "pointsman.toml").write_text(SETTINGS)
    project.write_flow(FLOW)
    return project


def list_told(folder: Path) -> list[dict[str, str]]:
    """The runs that were told of, in order."""
    file = folder / "told.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["data"]["run"] for line in lines if line]


async def test_a_notification_whose_process_was_killed_in_the_middle_is_delivered_again(
    database_url: str, tmp_path: Path
) -> None:
    project = make_project(tmp_path, database_url)
    (tmp_path / "hang").touch()
    async with project.start("run", "flow.yaml") as command:
        await command.until((tmp_path / "hanging").exists)
        await command.kill()
    (tmp_path / "hang").unlink()
    (first,) = list_told(tmp_path)
    async with project.start("worker") as worker:  # as soon as the lease of the killed process is over
        await worker.until(lambda: len(list_told(tmp_path)) == 2)
    assert list_told(tmp_path) == [first, first]


async def test_what_was_committed_while_nobody_could_tell_is_told_by_the_next_process(
    database_url: str, tmp_path: Path
) -> None:
    project = make_project(tmp_path, database_url)
    async with project.start("worker") as worker:
        await worker.until(lambda: worker.said)
        await worker.kill()
    async with app.open(database_url) as engine:  # as if it had been killed right after this commit
        run = await engine.submit_run(NewRun(name="short", tasks=(NewTask(name="work"),)))
        await engine.signal_run(run.id, "cancel")
    assert list_told(tmp_path) == []
    async with project.start("worker") as worker:
        await worker.until(lambda: list_told(tmp_path))
    (told,) = list_told(tmp_path)
    assert (told["id"], told["outcome"]) == (run.id, "canceled")

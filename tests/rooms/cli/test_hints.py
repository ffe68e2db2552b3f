"""Every hint that is printed works, and does what it says: each is executed in the state in which it was printed."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import pytest
from tests import databases
from tests.rooms.cli.scene import Said, Scene
from tests.rooms.views.stories import STORIES, Story, act, describe, split
from tests.system.faults.project import Project

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.kernel.machine import Phase
from pointsman.lifecycles import SHIPPED
from pointsman.store.rows import Run, Task

PATIENCE_SECONDS = 60
AT_ONCE = ("logs", "retry", "skip", "pause", "cancel", "reset", "approve", "reject", "accept", "answer", "start")
ON_POSTGRES = (
    "claim, break, a skip, claim, complete",
    "run pause, run resume, claim, run pause, complete, run resume, run cancel",
)
HINT = re.compile(r"^  (pointsman .*?)  +# (.*)$", re.MULTILINE)


class Stage:
    """A project for each hint: a copy of the database, or the same story told again."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capture = capture
        self._number = 0
        self.tried: set[str] = set()
        """Commands that go on until they are stopped are tried once for each lifecycle and phase of a run."""

    def scene(self, url: str | None = None) -> Scene:
        self._number += 1
        folder = self._folder / str(self._number)
        (folder / ".pointsman").mkdir(parents=True)
        return Scene(folder, self._capture, url)

    def copy(self, scene: Scene) -> Scene:
        copy = self.scene()
        with contextlib.closing(apsw.Connection(file_of(scene))) as connection:
            connection.execute("VACUUM INTO ?", (file_of(copy),))
        return copy


def file_of(scene: Scene) -> str:
    return scene.url.removeprefix("sqlite:///")


@pytest.fixture
def stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Stage:
    return Stage(tmp_path, capfd)


@pytest.mark.parametrize("lifecycle", SHIPPED)
def test_every_hint_of_status_does_what_it_says(stage: Stage, lifecycle: str) -> None:
    seen: set[str] = set()
    for story in (story for story in STORIES if story.lifecycle == lifecycle):
        scene = stage.scene()
        run = scene.do(partial(submit, story=story))
        for action in ("", *split(story.actions)):
            situation = scene.do(partial(go_on, run=run, action=action))
            if situation not in seen:
                seen.add(situation)
                for command, effect in hints_of(scene.call_as_it_is("status", run.id)):
                    execute(stage, stage.copy(scene), run, command.replace(scene.options, ""), effect)


@pytest.mark.parametrize("actions", ON_POSTGRES)
def test_every_hint_of_status_does_what_it_says_on_postgres(stage: Stage, actions: str) -> None:
    story = next(story for story in STORIES if (story.lifecycle, story.actions) == ("standard", actions))
    for length in range(len(split(actions)) + 1):
        with told(stage, story, length) as (scene, run):
            hints = hints_of(scene.call("status", run.id))
        for command, effect in hints:
            with told(stage, story, length) as (scene, again):
                execute(stage, scene, again, command.replace(run.id[-8:], again.id[-8:]), effect)


@contextlib.contextmanager
def told(stage: Stage, story: Story, length: int) -> Iterator[tuple[Scene, Run]]:
    """The first actions of a story, on a database of their own."""
    with databases.postgres_database() as url:
        scene = stage.scene(url)
        run = scene.do(partial(submit, story=story))
        for action in split(story.actions)[:length]:
            scene.do(partial(go_on, run=run, action=action))
        yield scene, run


async def submit(engine: Engine, story: Story) -> Run:
    return await engine.submit_run(story.new_run)


async def go_on(engine: Engine, run: Run, action: str) -> str:
    if action:
        await act(engine, run, action)
    return await describe(engine, run)


def hints_of(said: Said) -> list[tuple[str, str]]:
    assert said.code == 0
    hints = HINT.findall(said.out)
    assert len(hints) == said.out.count("pointsman "), said.out
    return hints


def execute(stage: Stage, scene: Scene, run: Run, command: str, effect: str) -> None:
    words = shlex.split(command)[1:]
    before = look(scene, run)
    if words[0] in AT_ONCE:
        with mock.patch.object(sys, "stdin", io.StringIO("yes\n")):  # for the question of `answer`
            said = scene.call_as_it_is(shlex.join(words[:1]), *words[1:])
        assert said.code == 0, (command, effect, said)
        check_effect(effect, before, look(scene, run))
    elif (key := f"{words[0]} {run.lifecycle} {before[0].phase}") not in stage.tried:
        stage.tried.add(key)
        execute_until_it_works(scene, run, words, before)


def look(scene: Scene, run: Run) -> tuple[Run, dict[str, Task]]:
    async def read(engine: Engine) -> tuple[Run, list[Task]]:
        return await engine.get_run(run.id), await engine.list_tasks(run.id)

    found, tasks = scene.do(read)
    return found, {task.name: task for task in tasks}


def check_effect(effect: str, before: tuple[Run, dict[str, Task]], after: tuple[Run, dict[str, Task]]) -> None:
    """What a hint says of tasks and of the run has happened."""
    (run, _), (run_after, tasks) = before, after
    for clause in effect.split("; "):
        match clause.split():
            case ["queues", *names, "again"] | ["queues", *names]:
                for name in " ".join(names).split(", "):
                    assert tasks[name].phase == Phase.QUEUED, (effect, tasks[name])
            case ["skips", name]:
                assert (tasks[name].outcome, tasks[name].trigger) == ("success", "skip"), effect
            case ["ends", "the", "tasks", "that", "still", "run"]:
                running = [task for task in tasks.values() if task.phase == Phase.ACTIVE]
                assert all(task.cancel_requested_at for task in running), effect
            case ["completes" | "fails" as verb, name]:
                assert tasks[name].outcome == {"completes": "success", "fails": "failure"}[verb], effect
            case ["puts", name, "back", "to", state]:
                assert tasks[name].state == state, effect
            case ["starts", "no", "further", "task"]:
                assert not any(task.run_open for task in tasks.values() if task.outcome is None), effect
            case ["shows", *_]:
                assert run_after.revision == run.revision
            case words:
                check_run(words, effect, run, run_after)


def check_run(words: list[str], effect: str, run: Run, after: Run) -> None:
    match words:
        case ["ends", "the", "run", "as", state]:
            assert (after.state, after.phase) == (state, Phase.DONE), effect
        case ["the", "run", "stays" | "becomes" as verb, state]:
            assert after.state == state, effect
            assert (run.state == state) is (verb == "stays"), effect
        case ["the", "run", "continues"]:
            assert after.phase in (Phase.QUEUED, Phase.ACTIVE), (effect, after)
        case ["the", "run", "succeeds" | "fails" as verb]:
            assert after.outcome == {"succeeds": "success", "fails": "failure"}[verb], effect
        case _:
            raise AssertionError(f"nobody knows what to expect of: {effect}")


def execute_until_it_works(scene: Scene, run: Run, words: list[str], before: tuple[Run, dict[str, Task]]) -> None:
    """`resume`, `worker` and `watch` end with the run, or are stopped when they have begun."""
    output = scene.folder / "said.txt"
    with output.open("wb") as file:
        options = shlex.split(scene.options)
        process = subprocess.Popen([sys.executable, "-m", "pointsman", *words, *options], stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and not is_working(scene, process, run, words[0], before):
            assert time.monotonic() < deadline, (words, output.read_text())
            time.sleep(0.1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5 if words[0] == "resume" else 1)  # it may just be ending
        if process.poll() is None:
            process.send_signal(signal.SIGINT if words[0] == "watch" else signal.SIGTERM)
        expected = {"watch": (130,), "worker": (0,), "resume": (0, 143)}[words[0]]
        assert process.wait(PATIENCE_SECONDS) in expected, (words, output.read_text())
    finally:
        process.kill()
        process.wait()


def is_working(
    scene: Scene, process: subprocess.Popen[bytes], run: Run, command: str, before: tuple[Run, dict[str, Task]]
) -> bool:
    if command == "watch":
        return any(is_database(link) for link in Path(f"/proc/{process.pid}/fd").iterdir())
    workers = scene.do(lambda engine: engine.list_workers())
    has_worker = any(worker.name != "box" for worker in workers)
    if command == "worker":
        return has_worker
    after, tasks = look(scene, run)
    was_paused = before[0].phase == Phase.HELD
    has_run = sum(task.epoch for task in tasks.values()) > sum(task.epoch for task in before[1].values())
    return has_worker and (has_run or (was_paused and after.phase != Phase.HELD))


def is_database(link: Path) -> bool:
    with contextlib.suppress(OSError):
        return link.readlink().name.startswith(("state.db", "socket:"))
    return False


FLOWS: dict[str, Any] = {
    "failed": "{name: f, tasks: {a: {run: '[ -e mended ]'}, b: {run: 'true', needs: [a]}}}",
    "abandoned": "{name: f, lifecycle: pipeline, tasks: {a: {run: 'exit 1'}}}",
}


@pytest.mark.parametrize("flow", FLOWS)
async def test_every_hint_at_the_end_of_a_run_works(tmp_path: Path, flow: str) -> None:
    project = Project(tmp_path)
    project.write_flow(FLOWS[flow])
    code, said = await project.call("run", "flow.yaml")
    assert code == 1
    hints = HINT.findall(said)
    operations = [hint.split()[1] for hint, _ in hints]
    assert operations == (["logs", "retry", "skip"] if flow == "failed" else ["logs"]), said
    (tmp_path / "mended").touch()
    for hint, effect in hints:
        for command in hint.split(" && "):
            code, said = await project.call(*shlex.split(command)[1:])
            assert code == 0, (command, said)
        if "&&" in hint:
            assert effect == "queues a again; the run continues"
            async with app.open(project.url, keeps=False) as engine:
                (run,) = await engine.list_runs()
                assert run.outcome == "success"
            break


async def test_output_is_only_offered_where_a_task_has_started(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write_flow("{name: f, timeout: 0.5s, tasks: {a: {run: 'true', needs_capabilities: [gpu]}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 1
    assert "pointsman logs" not in said


async def test_the_hint_at_the_end_of_watch_works(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write_flow("{name: f, tasks: {a: {run: 'exit 1'}}}")
    await project.call("run", "flow.yaml")
    code, said = await project.call("watch", "latest")
    assert code == 1
    (hint,) = re.findall(r"More: pointsman (.*)", said)
    assert (await project.call(*hint.split()))[0] == 0

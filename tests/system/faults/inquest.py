"""What must hold after any fault: the trail leads to where everything stands, its copy in a file is clean, nobody is left."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from tests.system.faults.project import Project, find_work

from pointsman.engine.engine import Engine
from pointsman.store.rows import Attempt, Entity, Task, Transition
from pointsman.worker.process_table import list_processes

WORK = ("run_state_transition", "task_state_transition")


async def check_everything(project: Project) -> None:
    async with project.engine() as engine:
        runs = await engine.list_runs(limit=1000)
        await check_folding(engine)
        assert not [each for each in await engine.diagnose() if each.subject == "disagreement"]
    code, said = await project.call("validate", "-l", "standard", ".state/transitions.jsonl")
    assert code == 0, said
    for run in runs:
        assert not find_work(run), "a process of it is left"
    assert not find_inhabitants(project.folder), "somebody is left who has thrown away who it is"


async def check_journal(engine: Engine, path: Path) -> None:
    """It has every move of runs and tasks once, in order. The last moves of workers are not waited for: they have gone."""
    moves: list[Transition] = []
    while page := await engine.list_transitions(after=moves[-1].position if moves else None, limit=1000):
        moves += page
    assert read_journal(path) == [move.position for move in moves if move.kind in ("run", "task")]


def read_journal(path: Path) -> list[str]:
    """The positions of the moves of runs and tasks."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [line["metadata"]["position"] for line in lines if line["event_type"] in WORK]


def find_inhabitants(folder: Path) -> list[int]:
    """Every process whose working directory is in a folder: what a flow starts begins there, whatever it forgets."""
    found = []
    for process in list_processes():
        with suppress(OSError):  # it has gone meanwhile
            if not process.has_ended and Path(f"/proc/{process.pid}/cwd").readlink().is_relative_to(folder.resolve()):
                found.append(process.pid)
    return found


async def check_folding(engine: Engine) -> None:
    """fold(audit) == state, for whatever moves."""
    runs = await engine.list_runs(limit=1000)
    entities: list[Entity] = [*runs, *await engine.list_workers()]
    for run in runs:
        entities += await engine.list_tasks(run.id)
    for entity in entities:
        stands, revision = None, -1
        for move in await engine.list_history(entity.id):
            assert (move.from_state, move.revision) == (stands, revision + 1), "each follows the one before"
            stands, revision = move.to_state, move.revision
        assert (stands, revision) == (entity.state, entity.revision)


async def check_effects(engine: Engine, run_id: str, folder: Path) -> list[Attempt]:
    """Each task of a run that succeeded had its effect, a line with its epoch in a file of its name; what was interrupted."""
    interrupted = []
    for task in await engine.list_tasks(run_id):
        if task.has_subtasks or task.state == "SKIPPED":
            continue  # it does nothing itself
        attempts = await engine.list_attempts(task.id)
        interrupted += [attempt for attempt in attempts if attempt.ended_by == "lease_lost"]
        check_effect(task, attempts, [int(line) for line in (folder / f"{task.name}.txt").read_text().split()])
    return interrupted


def check_effect(task: Task, attempts: list[Attempt], effects: list[int]) -> None:
    assert task.state == "SUCCEEDED"
    assert [attempt.epoch for attempt in attempts] == list(range(1, task.epoch + 1))
    *before, last = attempts
    assert last.ended_by in ("complete", "checks_passed")
    for attempt in before:
        # Interrupted and failed ones are in the history as what they are, with the reason.
        assert attempt.ended_by in ("lease_lost", "fail", "checks_failed")
        assert attempt.error
    assert effects == sorted(set(effects)), "once for each attempt, and none that was over did anything"
    assert effects[-1] == last.epoch, "nothing after it was done"
    missing = {attempt.epoch for attempt in attempts} - set(effects)
    assert missing <= {attempt.epoch for attempt in before if attempt.ended_by == "lease_lost"}, "only what was cut short"
    assert {*effects, *missing} == {attempt.epoch for attempt in attempts}

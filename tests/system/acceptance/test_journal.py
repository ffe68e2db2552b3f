"""The journal of a project: complete whoever moves something, and valid under every lifecycle, alone and mixed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.system.faults.project import Project

from pointsman import load_lifecycle
from pointsman.engine.engine import Engine
from pointsman.errors import PointsmanError
from pointsman.events.validate import Validator
from pointsman.flows import build_run, load_flow
from pointsman.kernel.machine import Phase
from pointsman.lifecycles import SHIPPED

FLOW = """
name: {lifecycle}
lifecycle: {lifecycle}
tasks:
  shaky: {{run: "[ -e {lifecycle}.well ] || {{ touch {lifecycle}.well; exit 1; }}"{retries}}}
  next: {{run: "true", needs: shaky}}
"""
RUN_TYPES = {"supervised": "job", "pipeline": "workstream", "orchestrated": "workstream"}


def read(project: Project) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project.folder / ".state" / "transitions.jsonl").read_text().splitlines()]


async def is_complete(project: Project) -> bool:
    """Whether the journal has every transition of the database once, in order."""
    async with project.engine() as engine:
        moves = await engine.list_all_transitions(limit=10_000)
    lines = read(project)
    return [line["metadata"]["position"] for line in lines] == [move.position for move in moves]


def validate(lines: Iterable[dict[str, Any]]) -> list[str]:
    validator = Validator(load_lifecycle("orchestrated"), "log")
    try:
        return [str(each) for line in lines for each in validator.check_line(json.dumps(line).encode() + b"\n")]
    finally:
        validator.close()


async def say_what_people_would(engine: Engine) -> bool:
    """Accept results, pass final checks, and run again what only a person runs again; whether all runs have ended."""
    runs = await engine.list_runs()
    for run in (each for each in runs if each.phase != Phase.DONE):
        with suppress(PointsmanError):  # it may have moved meanwhile
            if (await engine.get_machine(run)).moves(run.state, "checks_passed"):
                await engine.signal_run(run.id, "checks_passed")
            for task in await engine.list_tasks_in_brief(run.id):
                machine = await engine.get_machine(task)
                for word in ("accept", "retry"):
                    if task.phase != Phase.ACTIVE and machine.moves(task.state, word):
                        await engine.signal_task(task.id, word)
    return all(run.phase == Phase.DONE for run in runs)


async def test_the_log_of_every_lifecycle_is_valid_alone_and_mixed(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    run_ids = {}
    async with project.engine() as engine:
        for lifecycle in SHIPPED:
            retries = "" if lifecycle == "agent" else ", retries: 1, backoff: 0.01s"  # there, people retry
            project.write_flow(FLOW.format(lifecycle=lifecycle, retries=retries))
            new = build_run(load_flow(tmp_path / "flow.yaml"), {}, directory=str(tmp_path))
            run_ids[lifecycle] = (await engine.submit_run(new)).id
    async with project.start("worker") as worker:
        await project.until(say_what_people_would)
        worker.send(signal.SIGTERM)
        assert await worker.wait() == 0, worker.said
    code, said = await project.call("validate", ".state/transitions.jsonl")
    assert code == 0, said
    assert await is_complete(project)
    lines = read(project)
    for lifecycle, run_id in run_ids.items():
        others = {*run_ids.values()} - {run_id}
        alone = [line for line in lines if is_about_worker(line) or line["metadata"].get("run_id") not in others]
        assert validate(alone) == []
        kinds = {line["event_type"] for line in alone if line["entity_id"] == run_id}
        assert kinds == {f"{RUN_TYPES.get(lifecycle, 'run')}_state_transition"}


def is_about_worker(line: dict[str, Any]) -> bool:
    return bool(line["event_type"] == "worker_state_transition")

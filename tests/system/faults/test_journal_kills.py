"""The journal after a kill: the next command that writes it completes it."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from tests.system.faults.project import Project

from pointsman.engine.engine import Engine

FLOW = "name: f\ntasks:\n  a: {run: 'true'}\n  b: {run: 'true', needs: [a]}\n"


async def _have_ended(engine: Engine) -> bool:
    runs = await engine.list_runs()
    return bool(runs) and all(run.completed_at for run in runs)


async def test_resume_of_an_ended_run_completes_the_journal(database_url: str, tmp_path: Path) -> None:
    """Killed when the database says SUCCEEDED and the journal does not yet: its lock is held until then."""
    project = Project(tmp_path, database_url)
    journal = tmp_path / ".state" / "transitions.jsonl"
    journal.parent.mkdir()
    with journal.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with project.start("run", project.write_flow(FLOW)) as command:
            await project.until(_have_ended)
            await command.kill()
        assert journal.stat().st_size == 0
    code, said = await project.call("resume")
    assert code == 0, said
    async with project.engine() as engine:
        moves = await engine.list_transitions(limit=1000)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line["metadata"]["position"] for line in lines] == [move.position for move in moves]
    assert any(line["to_state"] == "SUCCEEDED" and line["event_type"] == "run_state_transition" for line in lines)

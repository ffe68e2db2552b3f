"""The journal of a project has every transition, whoever moves something, and events tell what document 002 asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.rooms.cli.scene import Scene

SHAKY = """
name: f
tasks:
  shaky: {run: "[ -e well ] || { touch well; exit 1; }", retries: 1, backoff: 0.01s}
"""


def read(scene: Scene) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (scene.folder / ".state" / "transitions.jsonl").read_text().splitlines()]


def is_complete(scene: Scene) -> bool:
    """Whether the journal has every transition of the database once, in order."""
    moves = scene.do(lambda engine: engine.list_all_transitions(limit=10_000))
    return [line["metadata"]["position"] for line in read(scene)] == [move.position for move in moves]


@pytest.mark.parametrize("database", ["scene", "scene_on_postgres"])
def test_what_commands_move_without_a_worker_is_in_the_journal(database: str, request: pytest.FixtureRequest) -> None:
    scene: Scene = request.getfixturevalue(database)
    scene.submit()
    for command in ("skip latest fetch", "pause latest", "cancel latest"):
        assert scene.call(command).code == 0
        assert is_complete(scene), command
    assert read(scene)[-1]["to_state"] == "CANCELED"
    assert scene.call_anywhere("validate", str(scene.folder / ".state" / "transitions.jsonl")).code == 0


def test_a_command_that_changes_nothing_writes_no_journal(scene: Scene) -> None:
    scene.submit()
    journal = scene.folder / ".state" / "transitions.jsonl"
    journal.unlink()
    assert scene.call("status").code == 0
    assert not journal.exists()


def test_an_event_tells_how_long_the_state_lasted_and_how_often_the_task_was_retried(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text(SHAKY)
    assert scene.call("run", str(scene.folder / "flow.yaml")).code == 0
    told = [(line["to_state"], line["metadata"]["retry_count"]) for line in read(scene) if line["entity_id"].startswith("task")]
    assert told == [
        ("PENDING", 0),
        ("QUEUED", 0),
        ("RUNNING", 0),
        ("RETRYING", 1),
        ("QUEUED", 1),
        ("RUNNING", 1),
        ("SUCCEEDED", 1),
    ]
    lasted = {move.position: move.seconds_in_state for move in scene.do(lambda engine: engine.list_transitions())}
    for line in read(scene):
        assert line["metadata"].get("duration_seconds") == lasted[line["metadata"]["position"]]

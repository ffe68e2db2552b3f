"""Examples with people and workers in the loop, played as their first lines say: one for each document, and people.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.examples.terminal import Terminal, copy_example, open_terminal, read_commands

from pointsman.events.validate import Validator
from pointsman.lifecycles import SHIPPED, load_lifecycle


@pytest.fixture(params=["sqlite", "postgres"])
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """In a copy of examples/documents; its journal is valid when it is closed."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    with open_terminal(copy_example("documents", tmp_path), url) as terminal:
        yield terminal
    assert findings(terminal) == []


def findings(terminal: Terminal) -> list[str]:
    lifecycle, *others = map(load_lifecycle, SHIPPED)
    with (terminal.folder / ".state" / "transitions.jsonl").open("rb") as journal:
        return [str(finding) for finding in Validator(lifecycle, "journal", others=others).check_log(journal)]


def play(terminal: Terminal, flow: str) -> str:
    return terminal.play(read_commands(terminal.folder / flow))


def test_a_supervised_job_waits_for_its_workers_and_retries_an_error_that_passes(terminal: Terminal) -> None:
    said = play(terminal, "supervised.yaml")
    assert terminal.path("supervised.job") == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
    assert "part[1]  RETRYING" in said
    assert "COMPLETED  translation: 6 of 6 tasks done" in said


def test_a_pipeline_fails_opens_its_breaker_and_is_retried(terminal: Terminal) -> None:
    play(terminal, "pipeline.yaml")
    workstream = ["S_PENDING", "S_RUNNING", "S_FAILED", "S_RETRYING", "S_RUNNING", "S_SUCCESS"]
    assert terminal.path("pipeline.workstream") == workstream
    assert terminal.path("standard.breaker") == ["CLOSED", "OPEN", "HALF_OPEN", "CLOSED"]
    failures = [line for line in terminal.journal() if line["to_state"] == "S_FAILED" and line["event_type"].startswith("step")]
    assert len(failures) == 2, "the second time the circuit is open, so the step itself is not retried"


def test_an_orchestrated_workstream_is_validated_at_its_end(terminal: Terminal) -> None:
    said = play(terminal, "orchestrated.yaml")
    assert terminal.path("orchestrated.workstream") == ["planned", "ready", "executing", "validating", "completed"]
    assert "test  retrying" in said
    assert "clean (" in said
    (plan,) = (terminal.folder / ".pointsman" / "runs").glob("*/plan.json")
    assert plan.with_name("dag.json").exists()


def test_an_approval_is_up_to_somebody_else(terminal: Terminal) -> None:
    said = play(terminal, "approval.yaml")
    assert 'Send "Five systems, one engine"?' in said
    assert terminal.path("approval.run") == ["PENDING", "RUNNING", "WAITING_APPROVAL", "RUNNING", "SUCCEEDED"]
    (approved,) = [line for line in terminal.journal() if line["trigger"] == "approve" and "task" in line["entity_id"]]
    assert approved["metadata"]["actor"] == "ada"
    assert (terminal.folder / "build/approval/sent.txt").read_text() == "Five systems, one engine\n"


def test_an_agent_asks_delegates_and_is_reviewed(terminal: Terminal) -> None:
    play(terminal, "agent.yaml")
    asked = ["PENDING", "QUEUED", "RUNNING", "BLOCKED"]
    reviewed = ["QUEUED", "RUNNING", "BLOCKED", "READY"]
    again = ["PENDING", "QUEUED", "RUNNING", "READY", "COMPLETED"]
    assert terminal.path("agent.task") == [*asked, *reviewed, *again]
    assert (terminal.folder / "build/agent/schema.sql").read_text() == "create table notes for sqlite; add an index\n"


def test_people_decide_what_the_comment_says(tmp_path: Path) -> None:
    with open_terminal(copy_example(".", tmp_path)) as terminal:
        said = play(terminal, "people.yaml")
        assert "Who is the note for?" in said
        assert "SUCCEEDED  people: 5 of 5 tasks done" in said
        triggers = [line["trigger"] for line in terminal.journal()]
        decisions = ["answer", "children_done", "reject", "accept", "approve"]
        assert [each for each in triggers if each in decisions] == decisions
        assert (terminal.folder / "build/people/published.txt").read_text() == "News for the customers. and thank them\n"
        assert findings(terminal) == []

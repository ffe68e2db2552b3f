"""`make run-agents`: a scripted agent and people, played with real commands in a copy of examples/agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system.examples.terminal import BIN, EXAMPLES, copy_example

from pointsman.events.validate import Validator
from pointsman.lifecycles import SHIPPED, load_lifecycle

MEET = [
    ("plan", ["PENDING", "QUEUED", "RUNNING", "BLOCKED", "QUEUED", "RUNNING", "SUCCEEDED"]),
    (
        "implement",
        [
            *("PENDING", "QUEUED", "RUNNING", "BUDGET_EXCEEDED"),
            *("QUEUED", "RUNNING", "BLOCKED", "READY"),
            *("PENDING", "QUEUED", "RUNNING", "READY", "SUCCEEDED"),
        ],
    ),
    ("implement/code", ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]),
    ("implement/test", ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]),
    ("ship", ["PENDING", "WAITING_APPROVAL", "SUCCEEDED"]),
    ("run[merge]", ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]),
]
"""The states that each task passes."""


class Played:
    """What the play leaves: its output, and a project."""

    def __init__(self, folder: Path, said: str) -> None:
        self.folder, self.said = folder, said

    def call(self, *words: str) -> str:
        return subprocess.run(words, cwd=self.folder, capture_output=True, check=True, text=True, env=environment()).stdout

    def ask(self, *words: str) -> Any:
        return json.loads(self.call("pointsman", *words, "--json"))

    def history(self, task: str) -> Any:
        return self.ask("history", "latest", task)

    def lines_of(self, task: str, attempt: int) -> list[dict[str, Any]]:
        """What the agent printed."""
        log = self.history(task)["attempts"][attempt - 1]["log_path"]
        return [json.loads(line) for line in (self.folder / log).read_text("utf-8").splitlines() if line.startswith("{")]


def environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(tmp_path_factory.mktemp("agents") / "project")


def play(folder: Path, **variables: str) -> Played:
    result = subprocess.run(
        [sys.executable, EXAMPLES / "agents" / "play.py", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        timeout=600,
        env=os.environ | variables,
    )
    assert result.returncode == 0, result.stdout
    return Played(folder, result.stdout)


def test_every_task_passes_the_states_that_it_should(played: Played) -> None:
    assert [(name, [move["to"] for move in played.history(name)["moves"]]) for name, _ in MEET] == MEET


def test_a_person_is_asked_through_mcp_and_the_agent_goes_on_in_its_session_with_the_answer(played: Played) -> None:
    assert "Should Fahrenheit replace Celsius, or stand beside it?\n  choices: beside, replace" in played.said
    (answered,) = [move for move in played.history("plan")["moves"] if move["trigger"] == "answer"]
    assert answered["metadata"]["answer"] == "beside"
    asked, planned = (played.lines_of("plan", attempt) for attempt in (1, 2))
    assert asked[0]["session_id"] == planned[0]["session_id"]
    assert "mcp__pointsman__ask" in json.dumps(asked)
    assert "(beside)" in planned[-1]["result"]


def test_a_budget_is_exceeded_and_raised_and_the_agent_goes_on_in_its_session(played: Played) -> None:
    first, *_ = played.history("implement")["attempts"]
    assert first["cost_usd"] == "0.35"
    stopped, continued = (played.lines_of("implement", attempt) for attempt in (1, 2))
    assert stopped[-1]["subtype"] == "error_max_budget_usd"
    assert stopped[0]["session_id"] == continued[0]["session_id"]
    assert "The budget is 2 USD. It was 0.5 USD. By ada: it is worth it" in played.call("pointsman", "notices")
    budget = played.ask("budget")
    assert (budget["budget_usd"], budget["spent_usd"]) == ("2", "1")


def test_the_comment_of_a_rejection_reaches_the_agent(played: Played) -> None:
    assert "The reviewer says: One decimal is enough. Please test it." in json.dumps(played.lines_of("implement", 3))
    assert "reject         ada       One decimal is enough. Please test it." in played.said


def test_another_person_approves(played: Played) -> None:
    *_, approved = played.history("ship")["moves"]
    assert (approved["trigger"], approved["actor"]) == ("approve", "ben")


def test_the_worktree_is_merged_and_gone(played: Played) -> None:
    merge, *_ = played.call("git", "log", "--merges", "--format=%s").splitlines()
    assert merge == "Merge feature"
    assert ":.1f} °F" in played.call("git", "show", "main:temperature.py")
    assert len(played.call("git", "worktree", "list").splitlines()) == 1
    assert played.call("git", "status", "--short") == ""


def test_the_journal_of_the_play_is_valid(played: Played) -> None:
    lifecycle, *others = map(load_lifecycle, SHIPPED)
    with (played.folder / ".state" / "transitions.jsonl").open("rb") as journal:
        assert [str(each) for each in Validator(lifecycle, "journal", others=others).check_log(journal)] == []


def test_it_goes_the_same_way_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    played = play(tmp_path / "project", POINTSMAN_STORE=postgres_url)
    assert "SUCCEEDED  feature: 6 of 6 tasks done" in played.said
    assert not (tmp_path / "project" / ".pointsman" / "state.db").exists()


SLOW = """\
import json, os, sys, time
message = json.loads(sys.stdin.readline())["message"]["content"][0]["text"]
resumed = [word for word in sys.argv if word.startswith("--resume=")]
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s-1"}), flush=True)
if not resumed:
    time.sleep(600)
text = f"{resumed[0]} {message}"
print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": text, "total_cost_usd": 0.1}))
"""


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
def test_an_agent_that_took_too_long_is_resumed_in_its_session_and_told_so(tmp_path: Path, lifecycle: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "pointsman.toml").write_text('[tools.claude]\ncommand = ["python3", "slow.py"]\n')
    flow = {"name": "slow", "lifecycle": lifecycle, "tasks": {"a": {"agent": "claude", "prompt": "Go", "timeout": "2s"}}}
    (tmp_path / "flow.yaml").write_text(json.dumps(flow))
    project = Played(tmp_path, "")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        project.call("pointsman", "run", "flow.yaml")
    assert failed.value.returncode == 1
    assert project.history("a")["moves"][-1]["to"] == "TIMED_OUT"
    words = ["pointsman", "resume", "latest", "a"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        if lifecycle == "agent":
            assert any(b"a waits: needs a review" in line for line in process.stdout)
            project.call("pointsman", "accept", "latest", "a")
        process.communicate(timeout=120)
    assert process.returncode == 0
    (task,) = project.ask("status", "latest")["tasks"]
    assert task["outputs"] == "--resume=s-1 Your previous execution timed out. Please continue where you left off."


def test_a_play_in_which_a_step_is_missing_fails(tmp_path: Path) -> None:
    """The agent forgets the answer."""
    example = copy_example("agents", tmp_path)
    script = example / "scripted_claude.py"
    script.write_text(script.read_text("utf-8").replace("({message})", ""), "utf-8")
    words: list[str | Path] = [sys.executable, example / "play.py", tmp_path / "copy"]
    result = subprocess.run(words, capture_output=True, check=False, text=True, timeout=600)
    assert result.returncode == 1
    assert "error: this should be true: the plan has the answer" in result.stderr

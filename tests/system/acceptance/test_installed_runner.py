"""A runner of another distribution: its key works in flows like those that are built in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

RUNNER = '''\
"""Answers a greeting."""
from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Annotated

from pointsman.flows.model import FlowTask
from pointsman.flows.values import Content, Word
from pointsman.worker.ending import Ending
from pointsman.worker.runner import Job


class GreetTask(FlowTask):
    kind = "greet"
    synonyms = {"hail": "greet"}

    greet: Annotated[Word, Content.TEXT]
    """Whom to greet."""
    manners: Annotated[Word, Content.TEXT] = "polite"
    """With `greet`: the tone."""

    def summary(self) -> str:
        return f"greet {self.greet}"

    def check(self, given: Set[str]) -> Iterator[tuple[str, str, str]]:
        if self.manners == "rude":
            yield "manners", "it is rude.", "Be polite."


class Greeting:
    pid = None
    started_ticks = 0
    last_output_at = 0.0

    def __init__(self, job: Job) -> None:
        self._job = job

    async def wait(self) -> Ending:
        self._job.log.write(f"Hello, {self._job.task.greet}\\n".encode())
        return Ending("exited", exit_code=0, output={"greeting": f"Hello, {self._job.task.greet}"})

    async def stop(self, grace_seconds: float) -> None: ...
    def kill(self) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...


class GreetRunner:
    task_model = GreetTask

    def __init__(self, world: object, directory: Path) -> None: ...

    async def start(self, job: Job) -> Greeting:
        return Greeting(job)

    def close(self) -> None: ...
'''
FLOW = """\
name: greetings
inputs: {who: world}
tasks:
  hello: {greet: "${{ inputs.who }}"}
  each: {greet: "number ${{ item }}", foreach: [1, 2], needs: hello}
  reply: {run: "echo ${{ tasks.hello.outputs.greeting }} > reply.txt", needs: [hello, each]}
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder on the path with the distribution in it, as an installer leaves it."""
    site = tmp_path / "site"
    (site / "greetings-1.0.dist-info").mkdir(parents=True)
    (site / "greetings.py").write_text(RUNNER)
    (site / "greetings-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (site / "greetings-1.0.dist-info" / "entry_points.txt").write_text("[pointsman.runners]\ngreet = greetings:GreetRunner\n")
    return site


def pointsman(folder: Path, *arguments: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(site or "")}
    command = [sys.executable, "-m", "pointsman", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_a_flow_with_the_key_runs_to_its_end(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    result = pointsman(tmp_path, "run", "flow.yaml", "-i", "who=Ada", site=installed)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "reply.txt").read_text() == "Hello, Ada\n"


def test_flow_check_knows_its_keys_and_its_checks(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    assert "valid" in pointsman(tmp_path, "flow", "check", "flow.yaml", site=installed).stdout
    (tmp_path / "flow.yaml").write_text(
        "name: x\ntasks:\n"
        "  a: {greet: you, manners: rude}\n"
        "  b: {hail: you, manners: polite}\n"
        "  c: {greet: you, run: echo}\n"
        "  d: {run: echo, manners: polite}\n"
        "  e: {greet: '${{ inputs.nobody }}', color: red}\n"
    )
    result = pointsman(tmp_path, "flow", "check", "flow.yaml", "--json", site=installed)
    assert result.returncode == 1
    found = {(each["line"], each["rule"], each["message"]) for each in json.loads(result.stdout)[0]["findings"]}
    assert found == {
        (3, "action", "Task a: it is rude."),
        (4, "structure", "`hail` is not a key of task b."),
        (5, "action", "Task c has `greet` beside `run`."),
        (6, "action", "Task d has `manners`, which belongs to `greet`."),
        (7, "structure", "`color` is not a key of task e."),
        (7, "expression", "The flow has no input 'nobody'."),
    }


def test_the_schema_has_its_keys(tmp_path: Path, installed: Path) -> None:
    with_runner = json.loads(pointsman(tmp_path, "flow", "schema", site=installed).stdout)
    without = json.loads(pointsman(tmp_path, "flow", "schema").stdout)
    document = {"name": "x", "tasks": {"a": {"greet": "you", "manners": "polite"}}}
    jsonschema.Draft202012Validator.check_schema(with_runner)
    assert jsonschema.Draft202012Validator(with_runner).is_valid(document)
    assert not jsonschema.Draft202012Validator(without).is_valid(document)
    assert with_runner["$defs"]["FlowTask"]["properties"]["greet"]["description"] == "Whom to greet."


def test_without_the_distribution_its_key_is_unknown(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    result = pointsman(tmp_path, "flow", "check", "flow.yaml")
    assert result.returncode == 1
    assert "`greet` is not a key of task hello." in result.stdout
    submitted = pointsman(tmp_path, "run", "flow.yaml", "--detach", site=installed)
    assert submitted.returncode == 0, submitted.stderr
    resumed = pointsman(tmp_path, "resume")
    assert "This worker has no runner for `greet`. Install the package that has it." in resumed.stdout + resumed.stderr


def test_a_runner_that_cannot_be_imported_is_named(tmp_path: Path, installed: Path) -> None:
    (installed / "greetings.py").write_text("import no_such_module\n")
    (tmp_path / "flow.yaml").write_text(FLOW)
    result = pointsman(tmp_path, "flow", "check", "flow.yaml", site=installed)
    assert result.returncode == 2
    assert "Cannot load the runner of `greet` from greetings:GreetRunner: No module named 'no_such_module'." in result.stderr


def test_entry_points_are_looked_up_only_for_keys_that_are_not_built_in(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("name: x\ntasks: {a: {run: echo, retries: 1}, b: {call: m:f, needs: a}}\n")
    code = (
        "import sys; from importlib import metadata; from pointsman.flows import load_flow\n"
        "found = metadata.entry_points\n"
        "def refuse(**which): return found(**which) if which == {'group': 'pydantic'} else sys.exit('looked up')\n"
        "metadata.entry_points = refuse; load_flow('flow.yaml', file=None)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

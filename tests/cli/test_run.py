"""What `pointsman run` says while it waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.project import Project

TOOLS = """
[tools.shaky]
command = ["sh"]
[tools.shaky.breaker]
failure_threshold = 1
cooldown = "4s"
[tools.other]
command = ["sh"]
"""
SHAKY = "[ -e well ] || { touch well; exit 1; }"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "pointsman.toml").write_text(TOOLS)
    (tmp_path / "shaky.sh").write_text(SHAKY)
    return Project(tmp_path)


async def test_an_open_circuit_is_said_once_each_time(project: Project) -> None:
    project.write_flow("{name: f, tasks: {a: {tool: shaky, command: [shaky.sh], retries: 1, backoff: 0.1s}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 0, said
    assert said.count("shaky circuit is open, retry in ") == 1
    assert " seconds; its tasks wait for that." in said


async def test_the_circuit_of_a_tool_that_the_run_does_not_use_is_not_said(project: Project) -> None:
    project.write_flow("{name: f, tasks: {a: {tool: shaky, command: [shaky.sh]}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 1, said
    project.write_flow("{name: f, tasks: {b: {run: sleep 1}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 0, said
    assert "circuit" not in said

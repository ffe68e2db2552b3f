"""The log of the library: its level and its form come from flags or from POINTSMAN_LOG."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman import app
from pointsman.engine.operations.upkeep import NoteDuty

FLOW = "name: f\ntasks: {a: {run: 'true'}}\n"


def pointsman(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    command = [sys.executable, "-m", "pointsman", *arguments]
    return subprocess.run(command, cwd=folder, env=env | variables, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(FLOW)
    return tmp_path


def test_nothing_is_logged_unless_something_is_wrong(project: Path) -> None:
    assert "pointsman.worker" not in pointsman(project, "run", "flow.yaml").stderr


@pytest.mark.parametrize(
    ("flags", "variables"), [(["--log-level", "info"], {}), ([], {"POINTSMAN_LOG": "info"}), ([], {"POINTSMAN_LOG": "INFO"})]
)
def test_attempts_are_logged_with_their_fields(project: Path, flags: list[str], variables: dict[str, str]) -> None:
    result = pointsman(project, "run", "flow.yaml", *flags, **variables)
    assert result.returncode == 0, result.stderr
    (begins,) = [line for line in result.stderr.splitlines() if "attempt of a begins" in line]
    assert " info pointsman.worker.attempt: " in begins
    assert all(f"  {field}=" in begins for field in ("run", "task", "attempt", "tenant"))


@pytest.mark.parametrize(
    ("flags", "variables"), [(["--log-level", "info", "--log-json"], {}), ([], {"POINTSMAN_LOG": "info:json"})]
)
def test_the_log_can_be_json_lines(project: Path, flags: list[str], variables: dict[str, str]) -> None:
    result = pointsman(project, "run", "flow.yaml", *flags, **variables)
    logged = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    (begins,) = [line for line in logged if line["message"] == "attempt of a begins"]
    assert (begins["level"], begins["logger"], begins["attempt"]) == ("info", "pointsman.worker.attempt", 1)


@pytest.mark.parametrize("value", ["loud", "warning:xml"])
def test_a_level_that_does_not_exist_is_refused_with_the_levels_that_do(project: Path, value: str) -> None:
    result = pointsman(project, "status", POINTSMAN_LOG=value)
    assert result.returncode == 2
    assert f"POINTSMAN_LOG is '{value}'. Use one of debug, info, warning, error" in result.stderr


async def test_status_shows_duties_that_fail_in_another_process(project: Path) -> None:
    assert pointsman(project, "run", "flow.yaml").returncode == 0
    async with app.open(f"sqlite:///{project}/.pointsman/state.db", keeps=False) as engine:
        await engine._core.writer.submit(NoteDuty(name="journal", error="No space left on device", failures=3))
    for arguments in (["status"], ["status", "latest"], ["workers"]):
        result = pointsman(project, *arguments)
        assert "Duty journal failed 3 times in a row in " in result.stderr, arguments
        assert "No space left on device" in result.stderr
    listed = json.loads(pointsman(project, "status", "latest", "--json").stdout)["failing_duties"]
    assert [(each["name"], each["failures"]) for each in listed] == [("journal", 3)]

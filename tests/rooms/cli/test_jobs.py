"""Jobs of document 000: `worker_count`, `workspace` and `task_description`; and what tasks do at an open circuit."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys

import pytest
from tests.rooms.cli.scene import Scene

JOB = """\
name: count
lifecycle: supervised
inputs: {what: words}
task_description: Count the ${{ inputs.what }}
worker_count: 2
workspace: ws_docs
tasks:
  count:
    command: [echo, "to do: ${{ run.task_description }}"]
"""
TOOLS = """\
[tools.flaky]
command = ["sh", "-c"]
[tools.flaky.breaker]
failure_threshold = 1
"""


@pytest.mark.parametrize("database", ["scene", "scene_on_postgres"])
def test_a_job_waits_for_the_workers_of_its_workspace(request: pytest.FixtureRequest, database: str) -> None:
    scene: Scene = request.getfixturevalue(database)
    file = scene.folder / "job.yaml"
    file.write_text(JOB)
    with scene.start(f"run {file} -i what=pages") as job:
        assert job.stderr
        waits = next(line for line in job.stderr if "waits for" in line)
        assert waits.startswith("The run waits for 2 workers of its own with workspace=ws_docs. To continue: pointsman worker")
        shown = scene.call("status latest").out
        assert "Count the pages" in shown
        assert "count  PENDING" in shown
        hint = shlex.split(re.sub(r".*To continue: pointsman ", "", waits))
        assert hint[:3] == ["worker", "--workspace", "ws_docs"]
        with subprocess.Popen([sys.executable, "-m", "pointsman", *hint], stderr=subprocess.DEVNULL) as second:
            job.communicate(timeout=60)
            second.send_signal(signal.SIGTERM)
        assert (job.returncode, second.returncode) == (0, 0)
    assert "to do: Count the pages" in scene.call("logs latest").out
    assert scene.call("status latest --json").json["task_description"] == "Count the pages"


def test_a_job_that_starts_at_once_says_nothing_of_waiting(scene: Scene) -> None:
    (scene.folder / "job.yaml").write_text("name: job\nlifecycle: supervised\ntasks: {a: {run: echo a}}\n")
    said = scene.call("run", str(scene.folder / "job.yaml"))
    assert (said.code, "waits" in said.err) == (0, False), said.err


def test_a_job_that_waits_takes_no_worker_from_another_run(scene: Scene) -> None:
    (scene.folder / "job.yaml").write_text("name: job\nlifecycle: supervised\ntasks: {a: {run: echo a}}\n")
    (scene.folder / "other.yaml").write_text("name: other\ntasks: {a: {run: echo a}}\n")
    assert scene.call("run --detach", str(scene.folder / "job.yaml")).code == 0
    other = scene.start(f"run {scene.folder / 'other.yaml'}")
    try:
        _, err = other.communicate(timeout=60)
    finally:
        other.kill()
    assert other.returncode == 0, err
    assert scene.call("resume", scene.call("status --json").json[-1]["id"]).code == 0


def test_a_worker_of_another_workspace_is_no_help(scene: Scene) -> None:
    (scene.folder / "job.yaml").write_text(JOB.replace("worker_count: 2", "worker_count: 1"))
    assert scene.call("run --detach", str(scene.folder / "job.yaml")).code == 0
    scene.do(lambda engine: engine.register_worker("other", workspace_id="ws_other"))
    scene.do(lambda engine: engine.register_worker("none"))
    (run,) = scene.do(lambda engine: engine.list_runs())
    assert scene.state(run) == "PENDING"
    assert "pointsman worker --workspace ws_docs" in scene.call("status latest").out
    scene.do(lambda engine: engine.register_worker("right", workspace_id="ws_docs"))
    assert scene.state(run) == "RUNNING"


@pytest.mark.parametrize("lifecycle", ["standard", "pipeline", "orchestrated", "approval", "agent", "supervised"])
def test_a_task_may_fail_at_an_open_circuit(scene: Scene, lifecycle: str) -> None:
    (scene.folder / "pointsman.toml").write_text(TOOLS)
    flow = scene.folder / "flow.yaml"
    task = "{command: [exit 1], tool: flaky, max_attempts: 1, on_open_circuit: fail}"
    flow.write_text(f"{{name: f, lifecycle: {lifecycle}, tasks: {{a: {task}}}}}")
    assert "exited with code 1" in scene.call("run", str(flow)).err
    refused = scene.call("run", str(flow))
    assert (refused.code, "flaky circuit is open, retry in" in refused.err) == (1, True), refused

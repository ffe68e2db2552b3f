"""What `pointsman run` and `resume` say: to people while they wait and at the end, to programs nothing but data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rooms.cli.scene import Scene
from tests.system.faults.project import Project, tasks_of

TOOLS = """
[tools.shaky]
command = ["sh"]
[tools.shaky.breaker]
failure_threshold = 1
cooldown = "4s"
"""
SHAKY = "[ -e well ] || { touch well; exit 1; }"
PATIENT = """
from pointsman.cli import main, run_to_end
run_to_end.LOOK_SECONDS = run_to_end.LAG_SECONDS = 1_000_000
raise SystemExit(main(["run", "flow.yaml"]))
"""


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
    assert "a waits: shaky circuit is open, retry in " in said


async def test_a_circuit_that_was_open_before_is_said_and_one_of_what_is_done_is_not(project: Project) -> None:
    (project.folder / "pointsman.toml").write_text(TOOLS.replace("4s", "15s"))
    project.write_flow("{name: f, tasks: {a: {tool: shaky, command: [shaky.sh], critical: false}, b: {run: sleep 2}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 0, said
    assert "circuit" not in said, "nothing waits for it"
    project.write_flow("{name: f, tasks: {each: {tool: shaky, foreach: [1, 2], command: [shaky.sh]}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 0, said
    assert said.count("shaky circuit is open, retry in ") == 1


async def test_the_circuit_of_a_tool_that_the_run_does_not_use_is_not_said(project: Project) -> None:
    project.write_flow("{name: f, tasks: {a: {tool: shaky, command: [shaky.sh]}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 1, said
    project.write_flow("{name: f, tasks: {b: {run: sleep 1}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 0, said
    assert "circuit" not in said


async def test_tasks_that_still_run_after_the_end_of_their_run_are_named_once(project: Project) -> None:
    project.write_flow("{name: f, tasks: {bad: {run: 'false'}, slow: {run: sleep 4}}}")
    code, said = await project.call("run", "flow.yaml")
    assert (code, said.count("Waiting for running tasks: slow")) == (1, 1), said


CALLS = """
import os, threading

def talk():
    print("from the function")
    thread = threading.Thread(target=print, args=("from a thread of it",))
    thread.start()
    thread.join()
    os.system("echo from a program of it")
"""


async def test_programs_get_nothing_but_data_whatever_functions_print(project: Project) -> None:
    (project.folder / "calls.py").write_text(CALLS)
    project.write_flow('{name: f, tasks: {a: {call: "calls:talk", mode: thread}}}')
    async with project.start("run", "flow.yaml", "--json") as run:
        out, _ = await run.process.communicate()
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1]["outcome"] == "success"
    assert "from a thread of it" in run.said
    assert "from a program of it" in run.said
    log = lines[-1]["tasks"][0]["log"]
    assert (project.folder / log).read_text() == "from the function\n"


async def test_what_this_process_cannot_do_is_said_by_resume_as_well(project: Project) -> None:
    project.write_flow("{name: f, tasks: {a: {run: echo, needs_capabilities: [gpu]}}}")
    run_id = await project.submit("flow.yaml")
    async with project.start("resume", run_id) as resumed:
        await resumed.until(lambda: "a waits: no worker has the capability gpu." in resumed.said)
        resumed.send(signal.SIGTERM)
        await resumed.wait()
    assert await project.call("resume", run_id, "--capability", "gpu") is not None
    async with project.engine() as engine:
        assert (await engine.get_run(run_id)).outcome == "success"


@pytest.mark.parametrize(
    ("flow", "why"),
    [
        ("{name: f, timeout: 1s, tasks: {a: {run: sleep 30}}}", "f has used up its timeout of 1s. Raise `timeout` in the flow"),
        ("{name: f, budget_usd: 1, tasks: {a: {run: 'echo 1.5 >> $POINTSMAN_COST; exit 3'}}}", "f has no money left. Raise"),
    ],
    ids=["time", "money"],
)
async def test_what_cannot_succeed_any_more_is_not_offered_to_be_tried_again(project: Project, flow: str, why: str) -> None:
    project.write_flow(flow)
    code, said = await project.call("run", "flow.yaml")
    assert code == 1
    assert why in said
    assert "pointsman retry" not in said
    async with project.start("status", "latest") as status:
        out, _ = await status.process.communicate()
    assert why in out.decode()
    assert "pointsman retry" not in out.decode()
    code, said = await project.call("resume")
    assert (code, said.strip().endswith("Run the flow again.")) == (1, True)


async def test_a_run_that_was_paused_is_waited_for_and_that_is_said(project: Project) -> None:
    project.write_flow("{name: f, tasks: {a: {run: 'touch began; sleep 4'}, b: {run: echo, needs: [a]}}}")
    async with project.start("run", "flow.yaml") as run:
        await run.until((project.folder / "began").exists)
        assert (await project.call("pause", "latest"))[0] == 0
        await run.until(lambda: "The run is PAUSED. To continue: pointsman resume " in run.said)
        async with project.engine() as engine:
            (only,) = await engine.list_runs()
            await engine.signal_run(only.id, "resume")
        assert await run.wait() == 0, run.said
        async with project.engine() as engine:
            assert {task.epoch for task in (await tasks_of(engine, only.id)).values()} == {1}


def test_a_run_has_the_tags_of_its_flow_and_of_the_command(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text("{name: f, tags: [nightly, 'team a'], tasks: {a: {run: 'true'}}}")
    run_id = scene.call("run --detach --tag release --tag nightly", str(scene.folder / "flow.yaml")).out.strip()
    assert scene.call("status latest --json").json["tags"] == ["nightly", "release", "team a"]
    assert "\ntags: nightly, release, team a\n" in scene.call("status latest").out
    assert [run["id"] for run in scene.call("status --json --tag release").json] == [run_id]
    refused = scene.call("run --detach --tag", "", str(scene.folder / "flow.yaml"))
    assert (refused.code, "tags[2]: It is empty" in refused.err) == (2, True), refused


def test_each_run_has_its_plan_and_its_graph(scene: Scene) -> None:
    (scene.folder / "flow.yaml").write_text("{name: f, tasks: {a: {run: 'true'}, b: {run: 'true', needs: a}}}")
    run_id = scene.call("run --detach", str(scene.folder / "flow.yaml")).out.strip()
    files = (scene.folder / ".pointsman" / "runs" / run_id / name for name in ("plan.json", "dag.json"))
    plan, dag = (json.loads(file.read_text()) for file in files)
    assert [stage["tasks"] for stage in plan["stages"]] == [["a"], ["b"]]
    assert dag["edges"] == [{"from": "a", "to": "b"}]


def test_a_command_ends_with_the_last_task_of_its_run_however_rarely_it_looks(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("{name: f, tasks: {a: {run: 'true'}, b: {run: 'true', needs: a}}}")
    command = [sys.executable, "-c", PATIENT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "✓ b" in done.stderr
    assert "2 of 2 tasks done" in done.stderr

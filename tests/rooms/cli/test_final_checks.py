"""The checks of a whole run: whoever works on the run runs them, after its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.faults.project import Project, tasks_of

TASKS = "tasks: {write: {run: echo done > result.txt}, read: {needs: [write], run: cat result.txt}}"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


async def run(project: Project, lifecycle: str, checks: str = "") -> tuple[int, str]:
    project.write_flow(f"name: f\nlifecycle: {lifecycle}\n{TASKS}\n{checks}\n")
    return await project.call("run", "flow.yaml")


async def test_the_checks_of_a_run_decide_how_it_ends(tmp_path: Path, database_url: str) -> None:
    project, lifecycle = Project(tmp_path, database_url), "orchestrated"
    code, said = await run(project, lifecycle)
    assert code == 0, said
    assert "completed  f: 2 of 2 tasks done" in said, "without checks, they pass"
    passing = "checks: [{file: result.txt}, {run: 'test -z ${{ tasks.read.outputs }}'}]"
    code, said = await run(project, lifecycle, passing)
    assert code == 0, said
    code, said = await run(project, lifecycle, "checks: [{file: missing.txt}]")
    assert code == 1, said
    assert "✗ checks  check `file: missing.txt`: there is no file" in said
    code, said = await project.call("validate", ".state/transitions.jsonl")
    assert code == 0, said


async def test_a_run_that_is_being_validated_is_resumed(project: Project) -> None:
    """Its worker is killed while the checks run; the next one runs them again."""
    project.write_flow(f"name: f\nlifecycle: standard\n{TASKS}\nchecks: [{{run: 'echo x >> tries; test -e go || sleep 60'}}]\n")
    async with project.start("run", "flow.yaml", lease_seconds=1) as first:
        await first.until((project.folder / "tries").exists)
        await first.kill()
    (project.folder / "go").touch()
    code, said = await project.call("resume", lease_seconds=1)
    assert code == 0, said
    assert (project.folder / "tries").read_text() == "x\nx\n"


@pytest.mark.parametrize(("lifecycle", "ended"), [("orchestrated", "failed"), ("standard", "CANCELED")])
async def test_a_run_that_is_being_validated_is_canceled(project: Project, lifecycle: str, ended: str) -> None:
    """Document 002 has no way to cancel a workstream then: its validation fails."""
    project.write_flow(f"name: f\nlifecycle: {lifecycle}\n{TASKS}\nchecks: [{{run: 'touch checking; sleep 60'}}]\n")
    async with project.start("run", "flow.yaml") as running:
        await running.until((project.folder / "checking").exists)
        code, said = await project.call("cancel", "latest", "--reason", "not today")
        assert code == 0, said
        assert await running.wait() == 1
    async with project.engine() as engine:
        (run,) = await engine.list_runs()
        assert run.state == ended
        assert (await tasks_of(engine, run.id))["checks"].phase == "done"


@pytest.mark.parametrize("lifecycle", ["pipeline", "approval", "agent"])
async def test_the_checks_of_a_task_count_where_they_have_no_state_of_their_own(project: Project, lifecycle: str) -> None:
    project.write_flow(f"{{name: f, lifecycle: {lifecycle}, tasks: {{a: {{run: echo a, checks: [{{file: missing.txt}}]}}}}}}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 1, said
    assert "check `file: missing.txt`: there is no file" in said


async def test_checks_that_mean_nothing_are_refused(project: Project) -> None:
    project.write_flow("{name: f, lifecycle: approval, tasks: {checks: {run: echo}}, checks: [{exit_code: 0}]}")
    code, said = await project.call("run", "flow.yaml")
    assert code == 2, said
    assert "Runs of the lifecycle approval have no final checks." in said
    assert "`exit_code` checks the process of a task" in said
    assert "this task has the same name" in said

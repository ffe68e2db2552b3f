"""A worker learns at once what concerns the tasks that it runs: its next heartbeat would come much too late here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.faults.inquest import check_everything
from tests.system.faults.project import PATIENCE_SECONDS, Project, find_work

LEASE_SECONDS = 100 * PATIENCE_SECONDS
"""So that the next heartbeat by itself is far beyond the patience of the test."""
FLOW = "name: f\ntasks:\n  a: {run: \"trap 'touch stopped; exit 1' TERM; touch began; while true; do sleep 0.05; done\"}\n"


@pytest.mark.parametrize("target", ["run", "task"])
async def test_a_canceled_task_is_signaled_before_the_next_heartbeat(database_url: str, tmp_path: Path, target: str) -> None:
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(FLOW))
    async with project.start("worker", lease_seconds=LEASE_SECONDS) as worker:
        await worker.until((tmp_path / "began").exists)
        code, said = await project.call("cancel", run_id, *(["a"] if target == "task" else []))
        assert code == 0, said
        await worker.until((tmp_path / "stopped").exists)
        await worker.until(lambda: not find_work(run_id))
    await check_everything(project)


async def test_a_paused_run_is_suspended_before_the_next_heartbeat(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    run_id = await project.submit(project.write_flow(FLOW))
    async with project.start("worker", lease_seconds=LEASE_SECONDS, on_pause="suspend") as worker:
        await worker.until((tmp_path / "began").exists)
        assert (await project.call("pause", run_id))[0] == 0
        await worker.until(lambda: all(_is_stopped(each.pid) for each in find_work(run_id)))
        async with project.engine() as engine:
            await engine.signal_run(run_id, "resume")
        await worker.until(lambda: not any(_is_stopped(each.pid) for each in find_work(run_id)))
        assert (await project.call("cancel", run_id))[0] == 0
        await worker.until(lambda: not find_work(run_id))
    await check_everything(project)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False

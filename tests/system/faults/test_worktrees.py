"""A worker that is killed in the middle of a merge: the merge is done once, and no work is lost."""

from __future__ import annotations

from pathlib import Path

from tests.rooms.worker.repository import make_repository
from tests.system.faults.project import Project

FLOW = "{name: fix, worktree: true, tasks: {work: {run: 'echo two > a.txt; echo new > b.txt'}}}"


async def test_a_merge_that_is_killed_is_finished_once(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    reached, project = tmp_path / "reached", Project(repository.folder, said=tmp_path)
    # The merge moves the base with a fast-forward of its checkout, after which this hook runs: once it hangs.
    repository.hook("post-merge", f"[ -e {reached} ] && exit 0; touch {reached}; sleep 600")
    flow = project.write_flow(FLOW)
    async with project.start("run", flow) as command:
        await command.until(reached.exists)
        await command.kill()
    assert repository.subjects() == ["Merge fix", "a"]
    async with project.start("resume", "latest") as command:
        assert await command.wait() == 0, command.said
    assert repository.subjects() == ["Merge fix", "a"]
    assert (repository.show("a"), repository.show("b")) == ("two", "new")
    assert (repository.branches(), repository.git("status", "--porcelain")) == (["main"], "")
    assert not list((repository.folder / ".pointsman" / "worktrees").glob("*/run"))

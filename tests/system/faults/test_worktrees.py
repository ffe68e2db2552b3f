"""A worker that is killed while a worktree is made or merged: it is made anew, merged once, and no work is lost."""

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


async def test_a_worktree_whose_creation_is_killed_is_made_anew(database_url: str, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    reached, project = tmp_path / "reached", Project(repository.folder, database_url, said=tmp_path)
    repository.hook("post-checkout", f"[ -e {reached} ] && exit 0; touch {reached}; sleep 600")
    flow = project.write_flow(FLOW)
    async with project.start("run", flow) as command:
        await command.until(reached.exists)
        await command.kill()
    async with project.start("resume", "latest") as command:
        assert await command.wait() == 0, command.said
    assert (repository.show("a"), repository.show("b")) == ("two", "new")
    assert (repository.branches(), repository.git("worktree", "list").count("\n")) == (["main"], 0)

"""`pointsman worktree`: worktrees are listed, shown, merged and pruned, and work that is not merged stays."""

from __future__ import annotations

import pytest
from tests.rooms.cli.scene import Scene
from tests.rooms.worker.repository import ALONE, Repository, inside, make_repository

from pointsman.engine.submit import NewTask
from pointsman.store.rows import Run
from pointsman.views.find import short


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository(scene: Scene) -> Repository:
    return make_repository(scene.folder)


def end(scene: Scene) -> Run:
    """A run that was canceled: nobody merges its worktrees but a person."""
    run = scene.submit(NewTask(name="work"))
    assert scene.call("cancel", run.id).code == 0
    return run


def test_worktrees_are_listed_with_what_is_merged_and_the_disk_they_use(scene: Scene, repository: Repository) -> None:
    run, going = end(scene), scene.submit(NewTask(name="work"))
    assert scene.call("worktree").err == "There are no worktrees.\n"
    repository.enter("same", run_id=run.id)
    inside(repository.enter("ahead", run_id=run.id)).commit(b="new\n")
    (repository.enter("changed", run_id=run.id).folder / "c.txt").write_text("x" * 100_000)
    repository.enter(run_id=going.id)
    said = scene.call("worktree list")
    rows = {line[: line.index("pointsman/")].rstrip(): line for line in said.out.splitlines()[1:]}
    states = [line.split()[1:4] for line in rows]
    assert states[:3] == [["fix:", "ahead", "unmerged"], ["fix:", "changed", "dirty"], ["fix:", "same", "merged"]]
    assert states[3][:2] == ["fix", "merged"]
    assert "4 worktrees, " in said.err
    found = scene.call("worktree list --json").json
    assert [(each["task"], each["state"], each["run_state"]) for each in found] == [
        ("ahead", "unmerged", "CANCELED"),
        ("changed", "dirty", "CANCELED"),
        ("same", "merged", "CANCELED"),
        (None, "merged", "PENDING"),
    ]
    assert found[1]["changes"] == ["c.txt"]
    assert found[1]["bytes"] > 100_000 > found[2]["bytes"] > 0


def test_a_worktree_is_shown_with_its_commits_files_and_changes(scene: Scene, repository: Repository) -> None:
    run = end(scene)
    worktree = repository.enter("work", run_id=run.id)
    inside(worktree).commit(b="new\n")
    (worktree.folder / "c.txt").write_text("c\n")
    repository.commit(d="meanwhile\n")
    said = scene.call("worktree show latest")
    assert f"branch: {worktree.branch}, from main, which has moved on by 1 commit" in said.out
    lines = [line.strip() for line in said.out.splitlines()]
    assert lines[-2:] == ["not committed:", "c.txt"]
    assert "A\tb.txt" in lines
    assert f"pointsman worktree merge {short(run.id)} work" in said.err
    (shown,) = scene.call("worktree show latest work --json").json
    assert (shown["files"], shown["behind"], shown["changes"]) == (["A\tb.txt"], 1, ["c.txt"])
    said = scene.call("worktree show latest other")
    assert (said.code, "It has those of work." in said.err) == (2, True)


def test_a_person_merges_what_a_run_has_left(scene: Scene, repository: Repository) -> None:
    run = scene.submit(NewTask(name="work"))
    worktree = repository.enter("work", run_id=run.id, merge="none")
    (worktree.folder / "b.txt").write_text("new\n")
    said = scene.call("worktree merge latest")
    assert (said.code, "may still change its worktree" in said.err) == (2, True)
    assert scene.call("cancel", run.id).code == 0
    assert scene.call("worktree merge latest --into nowhere").code == 2
    repository.git("branch", "release")
    said = scene.call("worktree merge latest work --into release --how squash")
    assert (said.code, said.out) == (0, f"fix: work: {worktree.branch} is merged into release (1 file)\n")
    assert (repository.show("b", "release"), repository.subjects(), repository.branches()) == (
        "new",
        ["a"],
        ["main", "release"],
    )


def test_a_conflict_is_told_with_its_files_and_exit_code_1(scene: Scene, repository: Repository) -> None:
    run = end(scene)
    worktree = repository.enter(run_id=run.id)
    inside(worktree).commit(a="theirs\n")
    repository.commit(a="ours\n")
    said = scene.call("worktree merge latest")
    assert (said.code, said.out.splitlines()[-1]) == (1, "  a.txt")
    assert "conflict in 1 file" in said.out
    (result,) = scene.call("worktree merge latest --json").json
    assert result["files"] == ["a.txt"]
    assert (repository.show("a"), worktree.folder.exists()) == ("ours", True)


def test_the_inbox_says_that_a_run_has_ended_without_its_merge(scene: Scene, repository: Repository) -> None:
    run, going = end(scene), scene.submit(NewTask(name="work"))
    repository.enter("same", run_id=run.id)
    inside(repository.enter("result", run_id=run.id, merge="none")).commit(b="new\n")
    inside(repository.enter(run_id=going.id)).commit(b="new\n")
    assert scene.call("inbox").err == "Nothing waits for you.\n"
    inside(repository.enter("ahead", run_id=run.id)).commit(b="new\n")
    one = "1 worktree of a run that has ended is not merged: pointsman worktree list\n"
    assert scene.call("inbox").err == f"Nothing waits for you.\n{one}"
    (repository.enter("changed", run_id=run.id).folder / "c.txt").write_text("c\n")
    assert "2 worktrees of runs that have ended are not merged" in scene.call("inbox").err
    assert scene.call("inbox --json").json == []
    assert scene.call(f"worktree merge {short(run.id)} ahead").code == 0
    assert scene.call("inbox").err == f"Nothing waits for you.\n{one}"


def test_prune_removes_only_what_is_merged_and_only_when_told(scene: Scene, repository: Repository) -> None:
    run, going = end(scene), scene.submit(NewTask(name="work"))
    merged, active = repository.enter("merged", run_id=run.id), repository.enter(run_id=going.id)
    ahead, changed = repository.enter("ahead", run_id=run.id), repository.enter("changed", run_id=run.id)
    inside(ahead).commit(b="new\n")
    (changed.folder / "c.txt").write_text("c\n")
    said = scene.call("worktree prune")
    assert f"{merged.path}  would be removed\n" in said.out
    assert f"{ahead.path}  is kept: it has commits that its base does not have\n" in said.out
    assert f"{changed.path}  is kept: it has changes that are not committed\n" in said.out
    assert f"{active.path}  is kept: its run is PENDING\n" in said.out
    assert "1 worktree would be removed, " in said.err
    assert "pointsman worktree prune --yes" in said.err
    assert merged.folder.exists()
    said = scene.call("worktree prune --yes")
    assert "1 worktree removed, " in said.err
    assert [each.folder.exists() for each in (merged, ahead, changed, active)] == [False, True, True, True]
    assert merged.branch not in repository.branches()
    assert scene.call("worktree prune").err == "There is nothing to remove.\n"


def test_a_worktree_that_is_gone_is_said_to_be(scene: Scene, repository: Repository) -> None:
    worktree = repository.enter(run_id=end(scene).id)
    repository.git("worktree", "remove", "--force", worktree.path)
    repository.git("branch", "-D", worktree.branch)
    assert scene.call("worktree list --json").json[0]["state"] == "gone"
    assert scene.call("worktree merge latest").code == 1
    assert scene.call("worktree prune --yes").err == "1 worktree removed, 0 B.\n"
    assert scene.call("worktree list --json").json == []


def test_a_worktree_of_a_run_that_the_database_does_not_know_is_kept(scene: Scene, repository: Repository) -> None:
    end(scene)
    worktree = repository.enter(run_id="run_of_another_database")
    assert "is kept: this database does not know its run" in scene.call("worktree prune --yes").out
    assert worktree.folder.exists()

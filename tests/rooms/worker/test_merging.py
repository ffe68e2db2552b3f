"""Worktrees and merges with real git: what is made, what is merged, what stops a merge, and that no work is ever lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs
from tests.rooms.worker.repository import ALONE, Repository, inside, make_repository

from pointsman.errors import MergeStopped, WorktreeError
from pointsman.worker.merging import merge, remove
from pointsman.worker.worktrees import list_records, read_record, record_of, write_record

ENTER_AND_MERGE = """
import sys
from pathlib import Path
from pointsman.worker.merging import merge
from pointsman.worker.worktrees import Place, enter

place = Place(directory=sys.argv[1], run_id=sys.argv[2], title="fix")
worktree = enter(place)
Path(worktree.path, sys.argv[2] + ".txt").write_text("work")
merge(worktree)
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "project")


@pytest.mark.parametrize(
    ("how", "subjects"),
    [("merge", ["Merge fix", "a"]), ("squash", ["fix", "a"]), ("ff", ["fix: work that was not committed", "b", "a"])],
)
def test_work_is_committed_merged_and_cleaned_up(repository: Repository, how: str, subjects: list[str]) -> None:
    worktree = repository.enter(merge=how)
    inside(worktree).commit(b="committed\n")
    (worktree.folder / "c.txt").write_text("not committed\n")
    done = merge(worktree)
    assert (done.base, done.files, done.kept) == ("main", 2, None)
    assert repository.subjects() == subjects
    assert ((repository.folder / "b.txt").read_text(), (repository.folder / "c.txt").read_text()) == (
        "committed\n",
        "not committed\n",
    )
    assert repository.branches() == ["main"]
    assert not worktree.folder.exists()
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("worktree", "list").count("\n") == 0
    assert merge(worktree).commit == done.commit, "a second call finds it merged"


def test_the_plan_is_there_before_anything_changes(repository: Repository, tmp_path: Path) -> None:
    plan = tmp_path / "merge.json"
    worktree = repository.enter()
    start = inside(worktree).commit(b="new\n")
    repository.hook("reference-transaction", f'[ "$1" = prepared ] && cp -n {plan} {tmp_path}/before.json; true')
    done = merge(worktree, plan)
    (before,), (after,) = (json.loads(path.read_text())["merges"] for path in (tmp_path / "before.json", plan))
    assert (before["state"], before["result"], before["tip"], before["base"]) == ("prepared", done.commit, start, "main")
    assert (after["state"], after["files"]) == ("merged", ["b.txt"])


def test_conflicts_are_listed_and_nothing_changes_until_a_person_has_resolved_them(
    repository: Repository, tmp_path: Path
) -> None:
    worktree = repository.enter()
    inside(worktree).commit(a="theirs\n", b="same\n")
    main = repository.commit(a="ours\n")
    with pytest.raises(MergeStopped, match="conflict in 1 file") as stopped:
        merge(worktree, tmp_path / "merge.json")
    assert stopped.value.files == ("a.txt",)
    assert f"cd {worktree.path} && git merge main" in str(stopped.value)
    assert repository.git("rev-parse", "main") == main
    (plan,) = json.loads((tmp_path / "merge.json").read_text())["merges"]
    assert (plan["state"], plan["files"]) == ("stopped", ["a.txt"])
    assert remove(worktree) == f"{worktree.branch} is not merged"

    subprocess.run(["git", "merge", "main"], cwd=worktree.path, capture_output=True, check=False)
    with pytest.raises(MergeStopped, match="begun a merge") as stopped:
        merge(worktree)
    assert stopped.value.files == ("a.txt",)
    (worktree.folder / "a.txt").write_text("both\n")
    inside(worktree).git("add", "a.txt")
    merge(worktree)
    assert (repository.show("a"), repository.show("b")) == ("both", "same")


def test_a_base_that_has_moved_is_merged_into_and_only_fast_forwards_need_a_person(repository: Repository) -> None:
    plain, forward = repository.enter("plain"), repository.enter("forward", merge="ff")
    inside(plain).commit(b="new\n")
    inside(forward).commit(c="new\n")
    repository.commit(d="meanwhile\n")
    merge(plain)
    assert repository.subjects() == ["Merge fix: plain", "d", "a"]
    with pytest.raises(MergeStopped, match=r"cannot be fast-forwarded .* git rebase main"):
        merge(forward)
    inside(forward).git("rebase", "--quiet", "main")
    merge(forward)
    assert repository.subjects()[0] == "c"


def test_a_dirty_checkout_keeps_its_changes_and_stops_what_would_overwrite_them(repository: Repository) -> None:
    free, blocked = repository.enter("free"), repository.enter("blocked")
    inside(free).commit(b="new\n")
    inside(blocked).commit(a="two\n")
    (repository.folder / "a.txt").write_text("mine\n")
    merge(free)
    assert (repository.show("b"), (repository.folder / "a.txt").read_text()) == ("new", "mine\n")
    with pytest.raises(MergeStopped, match="refuses to update that checkout") as stopped:
        merge(blocked)
    assert stopped.value.files == ("a.txt",)
    assert (repository.show("a"), (repository.folder / "a.txt").read_text()) == ("one", "mine\n")
    repository.git("stash", "--quiet")
    merge(blocked)
    assert repository.show("a") == "two"


def test_a_base_that_is_checked_out_nowhere_moves_without_a_checkout(repository: Repository) -> None:
    repository.git("switch", "--quiet", "--create", "elsewhere")
    worktree = repository.enter(base="main", branch="fix/login")
    inside(worktree).commit(b="new\n")
    merge(worktree)
    assert (repository.show("b"), (repository.folder / "b.txt").exists()) == ("new", False)
    assert repository.branches() == ["elsewhere", "main"]


def test_a_bare_repository_has_worktrees_too(repository: Repository, tmp_path: Path) -> None:
    bare = make_repository(tmp_path / "bare.git", "--bare")
    repository.git("push", "--quiet", str(bare.folder), "main")
    worktree = bare.enter()
    inside(worktree).commit(b="new\n")
    merge(worktree)
    assert (bare.show("b"), bare.branches()) == ("new", ["main"])


def test_a_project_in_a_subfolder_works_in_its_place(repository: Repository) -> None:
    project = repository.folder / "service"
    project.mkdir()
    worktree = Repository(project).enter()
    assert worktree.project == worktree.folder / "service"
    assert worktree.find(project / "deep", project) == worktree.folder / "service" / "deep"
    assert worktree.find(Path("/elsewhere"), project) == Path("/elsewhere")


def test_hooks_of_the_user_run_and_one_that_refuses_a_commit_stops_the_merge(repository: Repository) -> None:
    repository.hook("pre-commit", "if git diff --cached | grep -q TODO; then echo 'no TODO here'; exit 1; fi")
    repository.hook("post-checkout", "exit 1")
    worktree = repository.enter()
    (worktree.folder / "b.txt").write_text("TODO\n")
    with pytest.raises(MergeStopped, match="no TODO here") as stopped:
        merge(worktree)
    assert stopped.value.files == ("b.txt",)
    assert str(stopped.value).splitlines()[0].endswith("Perhaps a hook refused it.")
    assert (worktree.folder / "b.txt").read_text() == "TODO\n"
    (worktree.folder / "b.txt").write_text("done\n")
    merge(worktree)
    assert repository.show("b") == "done"


def test_work_in_submodules_is_kept_in_the_repository(repository: Repository, tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    allow = ("-c", "protocol.file.allow=always")
    repository.git(*allow, "submodule", "--quiet", "add", str(library.folder), "lib")
    repository.git("commit", "--quiet", "--message", "with a library")
    main = Repository(repository.folder / "lib")
    worktree = repository.enter()
    sub = Repository(worktree.folder / "lib")
    assert sub.show("a", "HEAD") == "one"
    assert sub.git("remote", "get-url", "origin") == str(library.folder)
    (sub.folder / "a.txt").write_text("two\n")
    sub.git("config", "user.name", "Ada")
    sub.git("config", "user.email", "ada@example.org")
    done = merge(worktree)
    assert done.kept is None
    commit = repository.git("rev-parse", "main:lib")
    assert main.git("show", f"{commit}:a.txt") == "two", "the commit is in the repository that the main checkout uses"
    assert main.git("branch", "--contains", commit, "--format=%(refname:short)") == worktree.branch


def test_a_repository_inside_a_worktree_stops_the_merge(repository: Repository) -> None:
    worktree = repository.enter()
    make_repository(worktree.folder / "vendor")
    with pytest.raises(MergeStopped, match="no submodules") as stopped:
        merge(worktree)
    assert stopped.value.files == ("vendor/",)
    assert (worktree.folder / "vendor" / "a.txt").exists()


def test_what_is_not_merged_is_not_removed(repository: Repository) -> None:
    unmerged, dirty, ahead = (repository.enter(name) for name in ("unmerged", "dirty", "ahead"))
    inside(unmerged).commit(b="new\n")
    (dirty.folder / "a.txt").write_text("two\n")
    inside(ahead).git("switch", "--quiet", "--detach")
    inside(ahead).commit(c="on no branch\n")
    assert remove(unmerged) == f"{unmerged.branch} is not merged"
    assert "not committed: a.txt" in str(remove(dirty))
    assert "HEAD is not at" in str(remove(ahead))
    with pytest.raises(MergeStopped, match="detached"):
        merge(ahead)
    assert all(each.folder.exists() for each in (unmerged, dirty, ahead))
    assert len(repository.branches()) == 4


def test_a_crash_at_any_moment_loses_nothing(repository: Repository) -> None:
    worktree = repository.enter("made")
    # Between the record and the end of `git worktree add`: nobody has worked there, and it is made anew.
    write_record(structs.replace(worktree, state="creating"))
    again = repository.enter("made")
    assert again.state == "ready"
    commit = inside(again).commit(b="new\n")
    # A branch with work is not taken for the rest of a crash.
    write_record(structs.replace(again, state="creating"))
    repository.enter("made")
    assert repository.git("rev-parse", again.branch) == commit
    # Between the move of the base and the clean-up.
    squashed = repository.enter("squashed", merge="squash")
    inside(squashed).commit(c="new\n")
    tip = repository.git("rev-parse", squashed.branch)
    tree = repository.git("rev-parse", f"{squashed.branch}^{{tree}}")
    made = repository.git("commit-tree", "-p", "main", "-m", "squashed", tree)
    write_record(structs.replace(squashed, state="merging", tip=tip, commit=made))
    repository.git("merge", "--quiet", "--ff-only", made)
    assert merge(squashed).commit == made
    assert repository.subjects() == ["squashed", "a"]


def test_a_worktree_that_somebody_deleted_comes_back_with_what_was_committed(repository: Repository) -> None:
    worktree = repository.enter()
    inside(worktree).commit(b="new\n")
    shutil.rmtree(worktree.folder)
    assert (repository.enter().folder / "b.txt").read_text() == "new\n"
    shutil.rmtree(worktree.folder)
    assert merge(worktree).kept is None
    assert repository.show("b") == "new"


def test_runs_that_begin_and_finish_at_once_are_all_merged(repository: Repository) -> None:
    names = [f"run_{number}" for number in range(6)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ENTER_AND_MERGE, str(repository.folder), name], stderr=subprocess.PIPE, text=True
        )
        for name in names
    ]
    assert [process.communicate(timeout=120)[1] for process in started] == [""] * 6
    assert {f"{name}.txt" for name in names} <= {*repository.git("ls-tree", "--name-only", "main").split()}
    assert (repository.branches(), repository.git("status", "--porcelain")) == (["main"], "")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"base": "nowhere"}, "has no such branch"),
        ({"base": "v1"}, "is no local branch"),
        ({"branch": "main"}, "exists already"),
        ({"branch": "a..b"}, "not a name that git accepts"),
    ],
)
def test_a_worktree_that_cannot_be_made_says_why(repository: Repository, keys: dict[str, str], message: str) -> None:
    repository.git("tag", "v1")
    with pytest.raises(WorktreeError, match=message):
        repository.enter(**keys)
    assert list_records(repository.folder) == []


def test_outside_of_a_repository_and_before_its_first_commit_there_is_no_worktree(tmp_path: Path) -> None:
    with pytest.raises(WorktreeError, match="is in no git repository"):
        Repository(tmp_path).enter()
    Repository(tmp_path).git("init", "--quiet")
    with pytest.raises(WorktreeError, match="has no commit yet"):
        Repository(tmp_path).enter()


def test_a_record_that_cannot_be_read_is_not_overwritten(repository: Repository) -> None:
    worktree = repository.enter()
    record_of(worktree.folder).write_text("{")
    with pytest.raises(WorktreeError, match="cannot be read"):
        repository.enter()
    with pytest.raises(WorktreeError, match="cannot be read"):
        read_record(record_of(worktree.folder))

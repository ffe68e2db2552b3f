"""Git worktrees of runs and tasks: where they are, what is known of them, and how one is made.

    .pointsman/worktrees/RUN/NAME         the worktree, with a branch of its own
    .pointsman/worktrees/RUN/NAME.json    its record: written before it is made, so that a crash leaves nothing unknown

An attempt that follows another one, after a crash, an answer or a rejection, finds the worktree as that one has left it.
`pointsman.worker.merging` merges and removes them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from pointsman.errors import GitFailed, WorktreeError
from pointsman.worker.git import Git, locked
from pointsman.worker.log import folder_of
from pointsman.worker.submodules import add_submodules

FOLDER = Path(".pointsman") / "worktrees"
OF_RUN = "run"
SHORT = 12
Policy = Literal["ff", "merge", "squash", "none"]
State = Literal["creating", "ready", "merging", "merged", "removed"]


class Place(Struct, frozen=True, kw_only=True):
    """Which worktree an attempt works in."""

    directory: str
    """The project."""
    run_id: str
    title: str
    """What the run is called."""
    task: str | None = None
    """The task whose worktree it is; None if it is that of the whole run."""
    base: str | None = None
    branch: str | None = None
    merge: Policy = "merge"

    @property
    def name(self) -> str:
        return folder_of(self.task) if self.task is not None else OF_RUN

    @property
    def path(self) -> Path:
        return Path(self.directory).absolute() / FOLDER / self.run_id / self.name

    @property
    def record(self) -> Path:
        return record_of(self.path)


class Worktree(Struct, frozen=True, kw_only=True):
    """What is known of a worktree."""

    run_id: str
    title: str
    task: str | None
    path: str
    branch: str
    base: str | None
    """The branch that it is merged into; None if it began at a commit without one."""
    start: str
    """The commit that it began with."""
    merge: Policy
    repository: str
    """The common folder of the repository."""
    subfolder: str = ""
    """Where the project is in the repository."""
    state: State = "creating"
    tip: str | None = None
    """The last commit that was, or is about to be, merged."""
    commit: str | None = None
    """What the base becomes with it."""

    @property
    def folder(self) -> Path:
        return Path(self.path)

    @property
    def project(self) -> Path:
        """The folder of the project in the worktree."""
        return self.folder / self.subfolder

    @property
    def exists(self) -> bool:
        return os.path.lexists(self.folder / ".git")

    @property
    def owner(self) -> str | None:
        """The task of the flow that it belongs to: items of a `foreach` belong to their task."""
        return self.task.partition("[")[0] if self.task is not None else None

    @property
    def label(self) -> str:
        return f"{self.title}: {self.task}" if self.task is not None else self.title

    @property
    def git(self) -> Git:
        """Git in the worktree, or in its repository where it is gone."""
        return Git(self.folder if self.exists else Path(self.repository))

    def find(self, cwd: Path, project: Path) -> Path:
        """The folder of the worktree that stands for a folder of the project; one outside of the repository stays itself."""
        within = os.path.normpath(os.path.join(self.subfolder, os.path.relpath(cwd, project)))  # noqa: PTH118
        return cwd if within == ".." or within.startswith("../") else self.folder / within


def record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def read_record(path: Path) -> Worktree | None:
    """What is known of a worktree; None if nothing is."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Worktree)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise WorktreeError(f"The record of a worktree cannot be read: {path}: {error}. Repair it, or move it away.") from None


def write_record(worktree: Worktree) -> Worktree:
    """Written as a whole, or not at all."""
    path = record_of(worktree.folder)
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(worktree)))
    beside.replace(path)
    return worktree


def list_records(directory: Path, run_id: str | None = None) -> list[Worktree]:
    """The worktrees of a project, or of one run, in the order of their names; numbers go by their value."""
    found = (read_record(path) for path in (directory / FOLDER).glob(f"{run_id or '*'}/*.json"))
    return sorted((each for each in found if each), key=_order)


def _order(worktree: Worktree) -> tuple[str, list[tuple[int, str]]]:
    words = re.split(r"(\d+)", worktree.task or "")
    return worktree.run_id, [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def find_ready(place: Place) -> Worktree | None:
    """The worktree, if nothing is left to do before work can begin there."""
    known = read_record(place.record)
    return known if known and known.state == "ready" and known.exists else None


def enter(place: Place) -> Worktree:
    """The worktree of a place; made if there is none. Calls at the same time wait for each other, and crashes do no harm."""
    if ready := find_ready(place):
        return ready
    repository, subfolder = _find_repository(Path(place.directory))
    with locked(repository):
        known = read_record(place.record)
        if known is None or known.state in ("creating", "removed"):
            if known is not None:
                _clear(known)
            known = _plan(place, repository, subfolder)
            _add(known)
        elif not known.exists:
            _bring_back(known)
        add_submodules(known.folder, repository)
        known.project.mkdir(parents=True, exist_ok=True)
        return write_record(structs.replace(known, state="ready"))


def enter_from(**place: Any) -> dict[str, Any]:
    """The same for a process of its own: the worktree, or the problem."""
    try:
        return {"worktree": msgspec.to_builtins(enter(msgspec.convert(place, Place)))}
    except GitFailed as error:
        return {"problem": str(error), "retryable": True}
    except WorktreeError as error:
        return {"problem": str(error), "retryable": False}


def _find_repository(directory: Path) -> tuple[Path, str]:
    """The common folder of the repository around a project, and where the project is in it."""
    git = Git(directory)
    ran = git.run("rev-parse", "--path-format=absolute", "--git-common-dir")
    if ran.code != 0:
        if "not a git repository" in ran.err:
            message = f"{directory} is in no git repository, but its flow wants a `worktree`."
            raise WorktreeError(f"{message} Make one with `git init`, or remove `worktree` from the flow.")
        raise WorktreeError(f"Git refuses to work in {directory}: {ran.err.strip()}")
    prefix = git.try_("rev-parse", "--show-prefix") if git.try_("rev-parse", "--is-inside-work-tree") == "true" else ""
    return Path(ran.out.rstrip("\n")), (prefix or "").rstrip("/")


def _plan(place: Place, repository: Path, subfolder: str) -> Worktree:
    """Decide where it begins and what its branch is called, and write that down."""
    git = Git(Path(place.directory))
    base, start = _find_base(git, place)
    place.path.parent.mkdir(parents=True, exist_ok=True)
    ignore = Path(place.directory) / FOLDER / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")  # the checkout around it does not take it for its own
    return write_record(
        Worktree(
            run_id=place.run_id,
            title=place.title,
            task=place.task,
            path=str(place.path),
            branch=_choose_branch(git, place),
            base=base,
            start=start,
            merge=place.merge,
            repository=str(repository),
            subfolder=subfolder,
        )
    )


def _find_base(git: Git, place: Place) -> tuple[str | None, str]:
    """The branch to merge into, and the commit to begin with."""
    base = place.base
    if base is None:
        head = git.try_("symbolic-ref", "--quiet", "--short", "HEAD")
        start = git.commit_of("HEAD")
        if start is None:
            raise WorktreeError(f"The repository of {git.folder} has no commit yet. Commit something first.")
        if head is None and place.merge != "none":
            message = f"HEAD of {git.folder} is detached, so there is no branch to merge into."
            advice = "Check out a branch, or name one: `worktree: {base: BRANCH}`, or use `merge: none`."
            raise WorktreeError(f"{message} {advice}")
        return head, start
    start = git.tip_of(base)
    if start is not None:
        return base, start
    start = git.commit_of(base)
    if start is None:
        raise WorktreeError(f"`worktree` has the base '{base}', but the repository of {git.folder} has no such branch.")
    if place.merge != "none":
        message = f"`worktree` has the base '{base}', which is no local branch: nothing can be merged into it."
        raise WorktreeError(f"{message} Name a branch of {git.folder}, or use `merge: none`.")
    return None, start


def _choose_branch(git: Git, place: Place) -> str:
    """The branch that the flow names, or one that is named after the run and the task."""
    if place.branch is not None:
        if not git.holds("check-ref-format", "--branch", place.branch):
            raise WorktreeError(f"'{place.branch}' is not a name that git accepts for a branch. Change `branch` of `worktree`.")
        if git.tip_of(place.branch) is not None:
            message = f"The branch '{place.branch}' exists already in the repository of {git.folder}."
            raise WorktreeError(f"{message} Change `branch` of `worktree`, or delete it: git branch -d {place.branch}")
        return place.branch
    words = [place.title, place.run_id[-SHORT:], *([place.task] if place.task is not None else [])]
    plain = "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", word).strip("-")[:40] for word in words)
    digest = sha256(f"{place.run_id}/{place.task}".encode()).hexdigest()[:SHORT]
    names = (f"pointsman/{plain}", f"pointsman/{plain}-{digest}")
    free = next((name for name in names if git.tip_of(name) is None), None)
    if free is None:
        raise WorktreeError(f"The branch {names[1]} exists already. Rename or delete it.")
    return free


def _add(worktree: Worktree) -> None:
    """Hooks that follow a checkout may fail; what counts is what is checked out."""
    git = Git(Path(worktree.repository))
    ran = git.run("worktree", "add", "--no-track", "-b", worktree.branch, worktree.path, worktree.start)
    if ran.code != 0 and not (worktree.exists and worktree.git.commit_of("HEAD") == worktree.start):
        _clear(worktree)
        said = ran.err.strip()
        raise GitFailed(f"git could not make the worktree {worktree.path}: {said}", said)


def _bring_back(worktree: Worktree) -> None:
    """Somebody has removed the folder: its branch has what was committed."""
    git = Git(Path(worktree.repository))
    if git.tip_of(worktree.branch) is None:
        message = f"The worktree {worktree.path} is gone, and so is its branch {worktree.branch}."
        raise WorktreeError(f"{message} Bring the branch back, or delete {record_of(worktree.folder)} to begin anew.")
    git.ask("worktree", "add", "--force", worktree.path, worktree.branch)


def _clear(worktree: Worktree) -> None:
    """Remove what a crash has left of one that no work has begun in; a branch goes only if it has no commit of its own."""
    if worktree.state != "creating":
        return
    git = Git(Path(worktree.repository))
    git.run("worktree", "remove", "--force", "--force", worktree.path)
    if worktree.folder.exists():
        shutil.rmtree(worktree.folder)
    git.run("worktree", "prune")
    git.run("update-ref", "-d", f"refs/heads/{worktree.branch}", worktree.start)


def list_checkouts(git: Git, branch: str) -> Iterator[Path]:
    """The folders in which a branch is checked out."""
    path = ""
    for line in git.list_z("worktree", "list", "--porcelain", "-z"):
        if line.startswith("worktree "):
            path = line.removeprefix("worktree ")
        elif line == f"branch refs/heads/{branch}" and Path(path).is_dir():
            yield Path(path)

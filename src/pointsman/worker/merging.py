"""Merges the branch of a worktree into its base, and removes what is merged.

    commit what is not committed ─▶ plan ─▶ a merge commit, in no checkout ─▶ the base moves ─▶ the worktree and its branch go
                                      │                                            │
                                conflicts: nothing has changed        moved meanwhile: plan again

The merge is made with `git merge-tree`, which touches no file. The base moves from the commit that was merged into, or not at
all: by `git update-ref` with the old value, or, where it is checked out, by a fast-forward of that checkout, which git refuses
if it would overwrite anything. So a crash loses no work at any moment, and a second call finishes what the first began.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from pointsman.errors import GitFailed, MergeStopped, WorktreeError
from pointsman.worker.git import Git, locked, readable, shorten
from pointsman.worker.processes import Ran
from pointsman.worker.submodules import list_submodules, list_used, save_submodules
from pointsman.worker.worktrees import Policy, Worktree, list_checkouts, list_records, read_record, record_of, write_record

PLAN_FILE = "merge.json"
MOST_FILES = 1_000
MOST_SUBJECTS = 50
ROUNDS = 5
"""How often the base may move while a merge is made."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A branch that is merged."""

    branch: str
    base: str
    commit: str
    """The commit that has it: what the base became, or its tip if it had everything already."""
    files: int
    kept: str | None = None
    """Why the worktree is still there; None if it was removed."""


# Commit


def list_changes(folder: Path) -> list[tuple[str, str]]:
    """What is not committed in a worktree, also in its submodules: status and path."""
    entries = Git(folder).ask("status", "--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=none").split("\0")
    changes = []
    while entries:
        entry = entries.pop(0)
        if entry:
            changes.append((entry[:2], entry[3:]))
            if entry[0] in "RC":
                entries.pop(0)  # what it was called before
    return changes


def commit_all(worktree: Worktree) -> None:
    """Commit what is not committed, with the user's identity and hooks; MergeStopped if that is not up to us."""
    for submodule in list_used(worktree.folder, Path(worktree.repository)):
        _commit(submodule.folder, worktree)
    _commit(worktree.folder, worktree)


def _commit(folder: Path, worktree: Worktree) -> None:
    git = Git(folder).named()
    if conflicts := sorted({line.partition("\t")[2] for line in git.list_z("ls-files", "--unmerged", "-z")}):
        raise MergeStopped(f"Somebody has begun a merge in {folder} that has conflicts. Resolve them and commit.", conflicts)
    changes = list_changes(folder)
    nested = [path for status, path in changes if status == "??" and path.endswith("/")]
    if nested:
        message = f"{folder} has git repositories in it that are no submodules: their files would not be merged."
        raise MergeStopped(f"{message} Move them away, list them in .gitignore, or make them submodules.", nested)
    concludes = git.commit_of("MERGE_HEAD") is not None
    if not changes and not concludes:
        return
    added = git.run("add", "--all")
    if added.code != 0:  # such as a lock of the index that a killed git has left: whether it is stale, a person knows
        message = f"git could not add the work in {folder}, which is still there."
        raise MergeStopped(f"{message}{_quote(added)}", (path for _, path in changes))
    if not concludes and git.holds("diff", "--cached", "--quiet"):
        return  # only inside a submodule, which has ignored files or the like
    message = f"{worktree.label}: work that was not committed"
    ran = git.run("commit", "--quiet", "-m", message, "-m", _trailers(worktree))
    if ran.code != 0:
        message = f"git could not commit the work in {folder}, which is still there. Perhaps a hook refused it."
        raise MergeStopped(f"{message}{_quote(ran)}", (path for _, path in changes))


def _quote(ran: Ran) -> str:
    """What git said, on lines of its own: summaries show only the first line of a message."""
    return f"\nGit said:\n{shorten(ran.out + ran.err) or f'(nothing, exit code {ran.code})'}"


def _trailers(worktree: Worktree) -> str:
    task = [f"Pointsman-Task: {worktree.task}"] if worktree.task is not None else []
    return "\n".join([f"Pointsman-Run: {worktree.run_id}", *task])


# Merge


def merge(worktree: Worktree, plan: Path | None = None, *, into: str | None = None, how: Policy | None = None) -> Merged:
    """Merge the work of a worktree, and remove it; MergeStopped if a person has to do something first.

    `into` and `how` override what the worktree was made with. The plan is written to a file before anything changes.
    """
    with locked(Path(worktree.repository)):
        worktree = read_record(record_of(worktree.folder)) or worktree
        if worktree.state == "removed":
            return Merged(worktree.branch, worktree.base or "", worktree.commit or "", 0)
        chosen = structs.replace(worktree, base=into or worktree.base, merge=how or worktree.merge)
        try:
            return _merge(chosen, plan)
        except MergeStopped as stopped:
            _write_plan(plan, chosen, state="stopped", reason=str(stopped), files=stopped.files)
            raise


def _merge(worktree: Worktree, plan: Path | None) -> Merged:
    base = worktree.base
    if base is None:
        raise MergeStopped(f"There is no branch to merge {worktree.branch} into: HEAD was detached. Name one with --into.")
    if worktree.exists:
        commit_all(worktree)
        head = worktree.git.try_("symbolic-ref", "--quiet", "--short", "HEAD")
        if head != worktree.branch:
            state = f"on the branch {head}" if head else "detached, perhaps in the middle of a rebase"
            message = f"HEAD of {worktree.path} is {state}, not on its branch {worktree.branch}, which is merged."
            raise MergeStopped(f"{message} Finish what was begun there, and check out {worktree.branch}.")
    tip = worktree.git.tip_of(worktree.branch)
    if tip is None:
        raise MergeStopped(f"The branch {worktree.branch} is gone: there is nothing to merge. Bring it back, or give up.")
    for _ in range(ROUNDS):
        old = worktree.git.tip_of(base)
        if old is None:
            raise MergeStopped(f"The branch {base}, which the work is to be merged into, is gone. Bring it back.")
        if is_merged(worktree, tip, old):
            return _conclude(worktree, base, tip, worktree.commit if worktree.tip == tip and worktree.commit else old, plan)
        new = _build_commit(worktree, base, old, tip)
        checkouts = list(list_checkouts(worktree.git, base))
        _write_plan(plan, worktree, state="prepared", base_commit=old, tip=tip, result=new, checkouts=checkouts)
        worktree = write_record(structs.replace(worktree, state="merging", tip=tip, commit=new))
        if _move_base(worktree, base, old, new, checkouts):
            return _conclude(worktree, base, tip, new, plan)
    raise MergeStopped(f"{base} moved {ROUNDS} times while the work was being merged. Try again.")


def is_merged(worktree: Worktree, tip: str, base_tip: str) -> bool:
    """Whether a base has the work: as it is, or as the commit that an earlier call made of it."""
    git = worktree.git
    made = worktree.commit if worktree.tip == tip else None
    return git.has_ancestor(base_tip, tip) or (made is not None and git.has_ancestor(base_tip, made))


def _build_commit(worktree: Worktree, base: str, old: str, tip: str) -> str:
    """The commit that the base becomes."""
    git = worktree.git
    if worktree.merge == "ff":
        if git.has_ancestor(tip, old):
            return tip
        commands = write_commands(worktree, f"git rebase {shlex.quote(base)}")
        message = f"{base} has commits that {worktree.branch} does not have, so it cannot be fast-forwarded (`merge: ff`)."
        raise MergeStopped(f"{message} Rebase the work: {commands}")
    tree = _merge_trees(worktree, base, old, tip)
    parents = ("-p", old) if worktree.merge == "squash" else ("-p", old, "-p", tip)
    return git.named().ask("commit-tree", *git.signing(), *parents, *_describe(worktree, base, old, tip), tree)


def _merge_trees(worktree: Worktree, base: str, old: str, tip: str) -> str:
    """The tree of both; MergeStopped with the files that have conflicts."""
    ran = worktree.git.run("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", old, tip)
    tree, *files = ran.out.rstrip("\0").split("\0")
    if ran.code == 0:
        return tree
    if ran.code != 1:
        said = shorten(ran.err)
        if ran.code == 129:
            raise WorktreeError("This git cannot merge without a checkout. Install git 2.38 or newer.")
        raise GitFailed(f"`git merge-tree` failed in {worktree.path}: {said}", said)
    conflicts = sorted({file for file in files if file})
    count = f"{len(conflicts)} file{'s' if len(conflicts) != 1 else ''}"
    commands = write_commands(worktree, f"git merge {shlex.quote(base)}")
    where = f"{worktree.branch} and {base} conflict in {count}: {name_files(conflicts)}."
    message = f"{where} Resolve that in the worktree and commit: {commands}"
    raise MergeStopped(message, conflicts)


def write_commands(worktree: Worktree, command: str) -> str:
    """What to type to do something in a worktree."""
    return f"cd {shlex.quote(worktree.path)} && {command}"


def _describe(worktree: Worktree, base: str, old: str, tip: str) -> tuple[str, ...]:
    """The message of the commit, as options."""
    if worktree.merge == "merge":
        return ("-m", f"Merge {worktree.label}", "-m", f"Branch {worktree.branch} into {base}.", "-m", _trailers(worktree))
    subjects = worktree.git.ask("log", "--reverse", "--format=* %s", f"--max-count={MOST_SUBJECTS}", f"{old}..{tip}")
    return ("-m", worktree.label, *(("-m", subjects) if subjects else ()), "-m", _trailers(worktree))


def _move_base(worktree: Worktree, base: str, old: str, new: str, checkouts: Sequence[Path]) -> bool:
    """Move the base from one commit to the other; False if it was elsewhere meanwhile."""
    git = worktree.git
    if not checkouts:
        ran = git.run("update-ref", "-m", f"pointsman: merge {worktree.branch}", f"refs/heads/{base}", new, old)
        if ran.code != 0 and git.tip_of(base) == old:
            raise MergeStopped(f"git refuses to move {base}. Perhaps a hook does.{_quote(ran)}")
        return ran.code == 0
    if len(checkouts) > 1:
        places = " and ".join(map(str, checkouts))
        raise MergeStopped(f"{base} is checked out more than once, in {places}. Check out something else in all but one.")
    for checkout in checkouts:
        ran = Git(checkout).named().run("merge", "--ff-only", "--no-autostash", "--no-stat", "--quiet", new)
        if git.tip_of(base) not in (old, new):
            return False
        if ran.code != 0 and git.tip_of(base) == old:
            files = re.findall(r"^\t(.+)$", ran.err, re.MULTILINE)
            where = f"{base} is checked out in {checkout}, and git refuses to update that checkout"
            advice = "Commit, stash or move what is in the way there; nothing of it was touched."
            raise MergeStopped(f"{where}. {advice}{_quote(ran)}", files)
    return True


# Clean up


def _conclude(worktree: Worktree, base: str, tip: str, commit: str, plan: Path | None) -> Merged:
    files = worktree.git.list_z("diff", "--name-only", "-z", f"{worktree.start}...{tip}")
    worktree = write_record(structs.replace(worktree, state="merged", tip=tip, commit=commit))
    _write_plan(plan, worktree, state="merged", tip=tip, result=commit, files=files)
    return Merged(worktree.branch, base, commit, len(files), _remove(worktree, tip))


def remove(worktree: Worktree) -> str | None:
    """Remove a worktree that is merged and clean, and its branch; the reason if it is kept."""
    with locked(Path(worktree.repository)):
        worktree = read_record(record_of(worktree.folder)) or worktree
        tip = worktree.git.tip_of(worktree.branch)
        base_tip = worktree.git.tip_of(worktree.base) if worktree.base else None
        if tip is not None and (base_tip is None or not is_merged(worktree, tip, base_tip)):
            return f"{worktree.branch} is not merged"
        return _remove(worktree, tip)


def _remove(worktree: Worktree, tip: str | None) -> str | None:
    """`tip` is what is known to be merged: a branch that has moved on, and a worktree with changes, stay."""
    repository = Path(worktree.repository)
    git = Git(repository)
    try:
        if worktree.exists:
            if changes := list_changes(worktree.folder):
                return f"it has changes that are not committed: {name_files(path for _, path in changes)}"
            if worktree.git.commit_of("HEAD") != tip:
                return f"its HEAD is not at {worktree.branch}, which was merged"
            if problem := save_submodules(worktree.folder, repository, worktree.branch):
                return problem
            if loose := find_loose(worktree.folder, repository):
                return f"it has git repositories that are no submodules: {name_files(loose)}"
            has_submodules = any(True for _ in list_used(worktree.folder, repository))
            # Git itself looks for changes once more, but refuses every worktree with submodules unless it is forced.
            git.ask("worktree", "remove", *(["--force"] if has_submodules else []), worktree.path)
        git.run("worktree", "prune")
        if tip is not None:
            git.ask("update-ref", "-d", f"refs/heads/{worktree.branch}", tip)
    except GitFailed as error:
        return str(error)
    write_record(structs.replace(worktree, state="removed"))
    return None


def find_loose(folder: Path, repository: Path) -> list[str]:
    """Repositories inside a worktree that git only has a commit of, and no address."""
    entries = Git(folder).list_z("ls-files", "--stage", "-z")
    links = [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]
    declared = {submodule.folder for submodule in list_submodules(folder, repository)}
    return [link for link in links if folder / link not in declared and (folder / link / ".git").exists()]


def name_files(files: Iterable[str], most: int = 5) -> str:
    names = [readable(file) for file in files]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# Plan and process


def _write_plan(path: Path | None, worktree: Worktree, **facts: Any) -> None:
    """Write what is about to be merged, or was: one entry for each worktree of the run. The caller holds the lock."""
    if path is None:
        return
    entry = {
        "task": worktree.task,
        "branch": worktree.branch,
        "base": worktree.base,
        "merge": worktree.merge,
        "worktree": worktree.path,
        "start": worktree.start,
        **facts,
    }
    if "files" in entry:
        files = [readable(file) for file in entry["files"]]
        entry |= {"files": files[:MOST_FILES], "file_count": len(files)}
    if "checkouts" in entry:
        entry["checkouts"] = [str(checkout) for checkout in entry["checkouts"]]
    try:
        others = [each for each in msgspec.json.decode(path.read_bytes())["merges"] if each.get("task") != worktree.task]
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        others = []
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    content = {"run_id": worktree.run_id, "merges": [*others, entry]}
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    beside.replace(path)


def plan_path(directory: Path, run_id: str) -> Path:
    """Beside the graph and the plan of a run."""
    return directory / ".pointsman" / "runs" / run_id / PLAN_FILE


def find_work(directory: Path, run_id: str, task: str | None) -> list[Worktree]:
    """The worktrees of a run, or of one of its tasks, in which work has begun."""
    return [each for each in list_records(directory, run_id) if each.owner == task and each.state != "creating"]


def merge_from(directory: str, run_id: str, task: str | None) -> dict[str, Any]:
    """Merge the worktrees of a run or a task, in a process of its own: what was merged, or why not."""
    project = Path(directory)
    found = find_work(project, run_id, task)
    merged: list[dict[str, Any]] = []
    for worktree in found:
        _say(f"Merging {worktree.branch} into {worktree.base}")
        try:
            done = merge(worktree, plan_path(project, run_id))
        except MergeStopped as stopped:
            _say(f"Not merged:\n{stopped}")
            files = [readable(file) for file in stopped.files]
            return {"stopped": str(stopped), "files": files, "worktree": worktree.path, "merged": merged}
        except WorktreeError as error:
            _say(f"Not merged:\n{error}")
            return {"problem": str(error), "retryable": isinstance(error, GitFailed), "merged": merged}
        _say(f"{done.base} is at {done.commit}" + (f"; {worktree.path} is kept: {done.kept}" if done.kept else ""))
        fields = ("branch", "base", "commit", "files", "kept")
        merged.append({"task": worktree.task, **{field: getattr(done, field) for field in fields}})
    return {"merged": merged}


def _say(line: str) -> None:
    """To the log of the attempt."""
    sys.stdout.write(readable(f"{line}\n"))
    sys.stdout.flush()

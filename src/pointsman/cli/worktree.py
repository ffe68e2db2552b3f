"""`pointsman worktree`: the git worktrees of runs and tasks; list, show, merge and prune them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.output import LONGEST_NAME, count, cut, echo, near, show_size, show_state, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.errors import MergeStopped, NotFound, NothingYet, Problem, RequestInvalid, WorktreeError
from pointsman.kernel.machine import Phase
from pointsman.store.rows import Run
from pointsman.views.find import find_run, short
from pointsman.worker import merging
from pointsman.worker.git import Git, readable
from pointsman.worker.worktrees import Policy, Worktree, list_records

WorkState = Literal["merged", "unmerged", "dirty", "gone", "unusable"]
MEANINGS: dict[WorkState, str] = {
    "merged": "its base has everything",
    "unmerged": "it has commits that its base does not have",
    "dirty": "it has changes that are not committed",
    "gone": "its folder and its branch do not exist any more",
    "unusable": "git cannot read it",
}
MOST_FILES = 20
run_argument = click.argument("run", metavar="RUN")
task_argument = click.argument("task", metavar="[TASK]", required=False)


@dataclass(frozen=True, slots=True)
class CheckedWorktree:
    """What is true of a worktree now."""

    worktree: Worktree
    state: WorkState
    run: Run | None
    bytes: int
    problem: str = ""
    changes: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.run is not None and self.run.phase == Phase.DONE

    @property
    def reason_to_keep(self) -> str | None:
        if self.run is None:
            return f"this database does not know its run. To remove it: git worktree remove {shlex.quote(self.worktree.path)}"
        if not self.has_ended:
            return f"its run is {self.run.state}"
        if self.state in ("merged", "gone"):
            return None
        return self.problem or MEANINGS[self.state]


@click.group(cls=Collection, default="list")
def command() -> None:
    """List the git worktrees of runs and tasks, and show, merge or remove them. Without a command, this lists them.

    \b
    Examples:
      pointsman worktree
      pointsman worktree show latest
      pointsman worktree merge latest
      pointsman worktree prune --yes
    """


@command.command("list")
@project_options
def list_(*, asked: Asked) -> None:
    """List the worktrees of this project: whether they are merged, the state of their runs, and the disk space they use.

    \b
    States:
      merged    its base has everything
      unmerged  it has commits that its base does not have
      dirty     it has changes that are not committed
      gone      its folder and its branch do not exist any more

    \b
    Examples:
      pointsman worktree list
      pointsman worktree list --json
    """
    _in_project(asked, lambda project: show_all(project, as_json=asked.as_json))


@command.command()
@run_argument
@task_argument
@project_options
def show(run: str, task: str | None, *, asked: Asked) -> None:
    """Show the worktrees of RUN, or that of TASK: commits, files, and what is not committed.

    \b
    Examples:
      pointsman worktree show latest
      pointsman worktree show latest build
    """
    in_project(asked, lambda project: show_some(project, run, task, as_json=asked.as_json))


@command.command()
@run_argument
@task_argument
@click.option("--into", metavar="BRANCH", help="Merge into another branch than its base.")
@click.option("--how", type=click.Choice(["merge", "squash", "ff"]), help="How to merge (default: as the flow says).")
@project_options
def merge(run: str, task: str | None, *, into: str | None, how: Policy | None, asked: Asked) -> int:
    """Merge the worktrees of RUN, or that of TASK, and remove those that are merged.

    This is what the merge of a run does by itself when its tasks have succeeded. Use it when the run has failed or was
    canceled, after `merge: none`, or when you have resolved a conflict. What is not committed is committed first.

    Exit code 0: merged, 1: a person has to do something first; nothing was changed.

    \b
    Examples:
      pointsman worktree merge latest
      pointsman worktree merge latest build --how squash
      pointsman worktree merge latest --into release
    """
    return in_project(asked, lambda project: merge_some(project, run, task, into, how, as_json=asked.as_json))


@command.command()
@click.option("--yes", is_flag=True, help="Remove them; by default, only say what would be removed.")
@project_options
def prune(*, yes: bool, asked: Asked) -> None:
    """Remove the worktrees that are merged and clean, of runs that have ended, and their branches.

    Nothing that is not merged is ever removed. Without --yes, nothing is removed at all.

    \b
    Examples:
      pointsman worktree prune
      pointsman worktree prune --yes
    """
    _in_project(asked, lambda project: prune_all(project, removes=yes, as_json=asked.as_json))


def _in_project(asked: Asked, work: Any) -> None:
    try:
        in_project(asked, work)
    except NothingYet as nothing:
        echo("[]") if asked.as_json else echo(str(nothing), err=True)


async def find_all(project: Project, run_id: str | None = None) -> list[CheckedWorktree]:
    """The worktrees of a project, or of one run, that still exist."""
    found = [each for each in list_records(project.settings.directory, run_id) if each.state != "removed"]
    runs: dict[str, Run | None] = {}
    for each in found:
        if each.run_id not in runs:
            try:
                runs[each.run_id] = await project.engine.get_run(each.run_id)
            except NotFound:
                runs[each.run_id] = None
    return [look_at(each, runs[each.run_id]) for each in found]


async def count_left(project: Project) -> int:
    """How many worktrees are up to a person: their runs have ended, and were to merge them, but did not."""
    records = [each for each in list_records(project.settings.directory) if each.merge != "none" and each.state != "removed"]
    runs = await project.engine.find_runs(sorted({each.run_id for each in records}))
    ended = {run.id: run for run in runs if run.phase == Phase.DONE}
    found = [look_at(each, ended[each.run_id]) for each in records if each.run_id in ended]
    return sum(checked.reason_to_keep is not None for checked in found)


async def find_some(project: Project, name: str, task: str | None) -> list[CheckedWorktree]:
    run = await find_run(project.engine, name)
    found = await find_all(project, run.id)
    chosen = [each for each in found if task is None or task in (each.worktree.task, each.worktree.owner)]
    if not chosen:
        whose = f"'{run.name}' ({short(run.id)})" + (f" and its task '{task}'" if task else "")
        known = f" It has those of {', '.join(each.worktree.task or 'the run' for each in found)}." if found else ""
        raise RequestInvalid([Problem("", f"There is no worktree of {whose} in this project.{known}")])
    return chosen


def look_at(worktree: Worktree, run: Run | None) -> CheckedWorktree:
    size = measure(worktree.folder)
    try:
        git = worktree.git
        tip = git.tip_of(worktree.branch)
        if tip is None and not worktree.exists:
            return CheckedWorktree(worktree, "gone", run, size)
        changes = tuple(path for _, path in merging.list_changes(worktree.folder)) if worktree.exists else ()
        base_tip = git.tip_of(worktree.base) if worktree.base else None
        merged = tip is not None and base_tip is not None and merging.is_merged(worktree, tip, base_tip)
    except WorktreeError as error:
        return CheckedWorktree(worktree, "unusable", run, size, str(error))
    state: WorkState = "dirty" if changes else "merged" if merged else "unmerged"
    return CheckedWorktree(worktree, state, run, size, changes=changes)


def measure(folder: Path) -> int:
    """The disk space that a folder uses, in bytes."""
    used = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                used += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118 - of many files
            except OSError:
                continue
    return used


def describe(checked: CheckedWorktree) -> dict[str, object]:
    return {
        **{key: value for key, value in msgspec.to_builtins(checked.worktree).items() if key != "state"},
        "state": checked.state,
        "run_state": checked.run.state if checked.run else None,
        "bytes": checked.bytes,
        "changes": [readable(path) for path in checked.changes],
        "problem": checked.problem or None,
    }


async def show_all(project: Project, *, as_json: bool) -> None:
    found = await find_all(project)
    if as_json:
        echo(show_json([describe(each) for each in found]))
    elif not found:
        echo("There are no worktrees.", err=True)
    else:
        show_rows(found)
        total = show_size(sum(each.bytes for each in found))
        echo(
            f"{count(len(found), 'worktree')}, {total}. To remove what is merged: {project.hint('worktree', 'prune')}", err=True
        )


def show_rows(found: Sequence[CheckedWorktree]) -> None:
    rows = [
        (
            short(each.worktree.run_id),
            cut(each.worktree.label, LONGEST_NAME),
            each.state,
            show_state(each.run.state, each.run.phase, each.run.outcome) if each.run else "unknown",
            show_size(each.bytes),
            each.worktree.branch,
            near(each.worktree.folder),
        )
        for each in found
    ]
    show_table(("run", "worktree of", "state", "run state", "disk", "branch", "folder"), rows)


async def show_some(project: Project, name: str, task: str | None, *, as_json: bool) -> None:
    found = await find_some(project, name, task)
    if as_json:
        echo(show_json([describe(each) | list_work(each.worktree) for each in found]))
        return
    for checked in found:
        worktree, work = checked.worktree, list_work(checked.worktree)
        echo(click.style(worktree.label, bold=True) + f"  {checked.state}: {checked.problem or MEANINGS[checked.state]}")
        echo(f"  folder: {worktree.path} ({show_size(checked.bytes)})")
        behind = f", which has moved on by {count(work['behind'], 'commit')}" if work["behind"] else ""
        echo(f"  branch: {worktree.branch}, from {worktree.base or worktree.start}{behind}")
        for title, lines in (("commits", work["commits"]), ("files", work["files"]), ("not committed", checked.changes)):
            show_lines(title, [readable(line) for line in lines])
        words = (short(worktree.run_id), *([worktree.task] if worktree.task else []))
        if checked.state in ("unmerged", "dirty") and checked.has_ended:
            echo(f"To merge it: {project.hint('worktree', 'merge', *words)}", err=True)


def show_lines(title: str, lines: Sequence[str]) -> None:
    if lines:
        more = [f"… and {len(lines) - MOST_FILES} more"] if len(lines) > MOST_FILES else []
        echo(f"  {title}:")
        for line in (*lines[:MOST_FILES], *more):
            echo(f"    {line}")


def list_work(worktree: Worktree) -> dict[str, Any]:
    """What a branch has that its base has not."""
    git, base = worktree.git, worktree.base or worktree.start
    commits = git.try_("log", "--format=%h %s", f"{base}..refs/heads/{worktree.branch}") or ""
    files = git.try_("diff", "--name-status", f"{base}...refs/heads/{worktree.branch}") or ""
    behind = git.try_("rev-list", "--count", f"refs/heads/{worktree.branch}..{base}") or "0"
    return {"commits": commits.splitlines(), "files": files.splitlines(), "behind": int(behind)}


async def merge_some(
    project: Project, name: str, task: str | None, into: str | None, how: Policy | None, *, as_json: bool
) -> int:
    chosen = await find_some(project, name, task)
    results: list[dict[str, object]] = []
    code = 0
    for checked in chosen:
        result = merge_one(project, checked, into, how)
        results.append({"task": checked.worktree.task, **result})
        code = max(code, 1 if "stopped" in result else 0)
        if not as_json:
            show_result(checked.worktree, result)
    if as_json:
        echo(show_json(results))
    return code


def merge_one(project: Project, checked: CheckedWorktree, into: str | None, how: Policy | None) -> dict[str, object]:
    worktree, run = checked.worktree, checked.run
    if run is not None and run.phase in (Phase.QUEUED, Phase.ACTIVE):
        wait = project.hint("watch", short(run.id))
        raise RequestInvalid([Problem("", f"'{run.name}' is {run.state} and may still change its worktree. Wait: {wait}")])
    if (worktree.merge if how is None else how) == "none":
        how = "merge"
    if into is not None and Git(Path(worktree.repository)).tip_of(into) is None:
        raise RequestInvalid([Problem("--into", f"The repository has no branch '{into}'.")])
    plan = merging.plan_path(project.settings.directory, worktree.run_id)
    try:
        done = merging.merge(worktree, plan, into=into, how=how)
    except MergeStopped as stopped:
        return {"stopped": str(stopped), "files": [readable(file) for file in stopped.files]}
    return {"branch": done.branch, "base": done.base, "commit": done.commit, "files": done.files, "kept": done.kept}


def show_result(worktree: Worktree, result: dict[str, Any]) -> None:
    if "stopped" in result:
        echo(f"{worktree.label} is not merged. {result['stopped']}")
        for file in result["files"]:
            echo(f"  {file}")
        return
    echo(f"{worktree.label}: {result['branch']} is merged into {result['base']} ({count(result['files'], 'file')})")
    if result["kept"]:
        echo(f"{worktree.path} is kept: {result['kept']}", err=True)


async def prune_all(project: Project, *, removes: bool, as_json: bool) -> None:
    results: list[dict[str, object]] = []
    for checked in await find_all(project):
        why = checked.reason_to_keep
        if why is None and removes:
            why = merging.remove(checked.worktree)
        results.append({**describe(checked), "removed": why is None and removes, "kept": why})
    if as_json:
        echo(show_json(results))
        return
    for result in results:
        verb = "removed" if removes else "would be removed"
        echo(f"{result['path']}  " + (f"is kept: {result['kept']}" if result["kept"] else verb))
    gone = [result for result in results if not result["kept"]]
    size = show_size(sum(int(str(result["bytes"])) for result in gone))
    if removes:
        echo(f"{count(len(gone), 'worktree')} removed, {size}.", err=True)
    elif gone:
        echo(f"{count(len(gone), 'worktree')} would be removed, {size}: {project.hint('worktree', 'prune', '--yes')}", err=True)
    else:
        echo("There is nothing to remove.", err=True)

"""What an attempt changes in its git work tree, for the person who reviews it.

    before ── a tree of all files ──▶ the work ──▶ after ── another one ──▶ the difference of both, cut to a readable size

In a worktree of a run or a task, `before` is the commit that its branch has in common with its base: that is what is merged.
A subtask shows only what it has changed itself: the review of its task has the rest.
Both trees have files that are not tracked, but no ignored ones. They are written to a folder of the attempt, with an index of
their own: neither the repository nor its index changes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from msgspec import structs

from pointsman.worker.log import AttemptLog
from pointsman.worker.runner import Job, Running, wait_for
from pointsman.worker.runners.command import SHELLS, ShellTask, start_command
from pointsman.worker.verdict import clean
from pointsman.world import World

MOST_SECONDS = 20.0
"""For each of the two trees; without an answer by then, there is no difference to show."""
MOST_LINES = 60
LONGEST_LINE = 500
LOG_BYTES = 1_000_000
FOLDER_SUFFIX = ".changes"
WRITE_TREE = """\
root=$(git rev-parse --show-toplevel 2>/dev/null)
index=$(git rev-parse --git-path index)
objects=$(cd "$(git rev-parse --git-path objects)" && pwd)
mkdir -p "$POINTSMAN_CHANGES/objects"
test ! -f "$index" || cp "$index" "$POINTSMAN_CHANGES/index"
export GIT_INDEX_FILE="$POINTSMAN_CHANGES/index"
export GIT_OBJECT_DIRECTORY="$POINTSMAN_CHANGES/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$objects"
cd "$root"
git add --all -- . ':(exclude,glob)**/.pointsman/**' ':(exclude,glob)**/.state/**' 2>/dev/null
tree=$(git write-tree)
"""
SHOW_TREE = WRITE_TREE + 'echo "$tree"'
SHOW_BASE = 'git merge-base "$POINTSMAN_BASE" HEAD || echo "$POINTSMAN_START"'
SHOW_CHANGES = WRITE_TREE + 'git diff --no-color --no-ext-diff --patch-with-stat --stat=100 "$POINTSMAN_BEFORE" "$tree"'


class WorkTree:
    """The work tree around the working folder of an attempt, as it was before the work began."""

    def __init__(self, job: Job, world: World, started: Callable[[Running], bool]) -> None:
        """`started` is called with each process, and returns whether it may continue."""
        self._job, self._world, self._started = job, world, started
        self._folder = f"{job.stem}{FOLDER_SUFFIX}"
        self._before = ""

    async def remember(self) -> str:
        """Remember what is there; nothing, if the folder belongs to no work tree."""
        shows_all = self._job.worktree is not None and not self._job.task.shows_changes
        script = SHOW_BASE if shows_all else SHOW_TREE
        self._before = (await self._run(script, f"{self._folder}/tree.log")).strip()
        return self._before

    async def describe_changes(self) -> str:
        """What has changed since then."""
        path = f"{self._job.stem}.diff.log"
        return _shorten(await self._run(SHOW_CHANGES, path), path) if self._before else ""

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self, script: str, path: str) -> str:
        """The output of a script, which is also written to a file; empty if it fails or takes too long: there may be no git."""
        worktree = self._job.worktree
        of_base = {"POINTSMAN_BASE": worktree.base or worktree.start, "POINTSMAN_START": worktree.start} if worktree else {}
        job = structs.replace(
            self._job,
            task=ShellTask(run=script),
            env={**self._job.env, **of_base, "POINTSMAN_CHANGES": self._folder, "POINTSMAN_BEFORE": self._before},
            log=AttemptLog(path, LOG_BYTES),
            stdout_wanted=True,
        )
        running = start_command(job, (*SHELLS["sh"], script), self._world)
        ending = await wait_for(running, job, MOST_SECONDS, self._started)
        return clean((ending.stdout or b"").decode("utf-8", "replace")) if ending.exit_code == 0 else ""


def _shorten(changes: str, path: str) -> str:
    lines = changes.splitlines()
    shown = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in lines[:MOST_LINES]]
    more = len(lines) - MOST_LINES
    return "\n".join([*shown, *([f"… {more} more lines in {path}"] if more > 0 else [])])

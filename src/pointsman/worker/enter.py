"""Takes a job into its worktree, which a process of the attempt makes if it is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from pointsman.worker.log import AttemptLog
from pointsman.worker.runner import Job, Running, wait_for
from pointsman.worker.runners.python import CallTask, start_call
from pointsman.worker.verdict import Failed
from pointsman.worker.worktrees import Place, Worktree, find_ready
from pointsman.world import World

OWN_PATH = str(Path(__file__).parents[2])
MOST_SECONDS = 1800.0
"""A checkout of a large repository, after others have made theirs."""
LOG_BYTES = 1_000_000


async def enter_worktree(job: Job, world: World, started: Callable[[Running], bool]) -> Job | Failed:
    """The job in its worktree, in the folder that stands for its own; or why there is no worktree."""
    assert job.place is not None
    worktree = find_ready(job.place)
    if worktree is None:
        answer = await _make(job, job.place, world, started)
        if "problem" in answer:
            return Failed(f"It has no worktree to work in. {answer['problem']}", retryable=answer["retryable"])
        worktree = msgspec.convert(answer["worktree"], Worktree)
    env = {**job.env, "POINTSMAN_WORKTREE": worktree.path, "POINTSMAN_BRANCH": worktree.branch}
    return structs.replace(job, worktree=worktree, cwd=worktree.find(job.cwd, Path(job.place.directory)), env=env)


async def _make(job: Job, place: Place, world: World, started: Callable[[Running], bool]) -> dict[str, Any]:
    """In a process of its own, which ends with the attempt, and with it the lock that it holds."""
    task = CallTask(call="pointsman.worker.worktrees:enter_from", with_=msgspec.to_builtins(place))
    answer = f"{job.stem}.worktree.json"
    making = structs.replace(
        job,
        task=task,
        cwd=Path(place.directory),
        output_path=answer,
        env={**job.env, "POINTSMAN_OUTPUT": answer},
        log=AttemptLog(f"{job.stem}.worktree.log", LOG_BYTES),
    )
    ending = await wait_for(start_call(making, task, [OWN_PATH], world), making, MOST_SECONDS, started)
    if ending.as_expected and isinstance(ending.output, dict):
        return ending.output
    return {"problem": f"The process that makes it {ending.message or 'said nothing'}.", "retryable": True}

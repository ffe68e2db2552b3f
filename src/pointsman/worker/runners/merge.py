"""`merges`: merges the worktrees of a run or a task. Flows have no such key: `pointsman.flows.build` adds these tasks.

a process merges ──▶ merged: the output says what
                └──▶ a person has to do something first: a question, or a failure where tasks cannot ask
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from pointsman.flows.kinds import MERGES
from pointsman.flows.model import FlowTask
from pointsman.flows.values import Text, Truth
from pointsman.worker.ending import Ending
from pointsman.worker.runner import QUESTION_SUFFIX, Job, Running
from pointsman.worker.runners.command import NotStarted
from pointsman.worker.runners.python import CallTask, start_call
from pointsman.world import World

OWN_PATH = str(Path(__file__).parents[3])
RETRY, GIVE_UP = "retry", "give up"
MOST_NAMES = 50


class MergeTask(FlowTask):
    """A merge of worktrees."""

    kind = MERGES

    merges: Text
    """The task whose worktrees it merges; empty for that of the run."""
    asks: Truth = False
    """Whether it can ask a person."""

    def summary(self) -> str:
        return f"merge the worktree of {self.merges or 'the run'}"


class MergeRunner:
    task_model: ClassVar[type[FlowTask]] = MergeTask

    def __init__(self, world: World, directory: Path) -> None:  # noqa: ARG002 - every runner is made alike
        self._world = world

    async def start(self, job: Job) -> Running:
        assert isinstance(job.task, MergeTask)
        if job.claim.answer == GIVE_UP and _is_first(job):
            message = "is not merged: a person gave up. The worktree and its branch are kept"
            return NotStarted(Ending("exited", exit_code=1, message=message, retryable=False), self._world.clock.monotonic())
        arguments = {"directory": str(job.cwd), "run_id": job.claim.run_id, "task": job.task.merges or None}
        call = CallTask(call="pointsman.worker.merging:merge_from", with_=arguments)
        running = start_call(replace(job, task=call), call, [OWN_PATH], self._world)
        return running if running.pid is None else RunningMerge(running, job, job.task)

    def close(self) -> None: ...


class RunningMerge:
    """The process that merges; its ending says what it came to."""

    def __init__(self, running: Running, job: Job, task: MergeTask) -> None:
        self._running, self._job, self._task = running, job, task
        self.pid = running.pid
        self.started_ticks = running.started_ticks
        self.stop, self.kill, self.suspend, self.resume = running.stop, running.kill, running.suspend, running.resume

    @property
    def last_output_at(self) -> float:
        return self._running.last_output_at

    async def wait(self) -> Ending:
        ending = await self._running.wait()
        answer = ending.output
        if not ending.as_expected or not isinstance(answer, dict):
            return ending
        if "problem" in answer:
            return replace(ending, exit_code=1, message=f"failed: {answer['problem']}", retryable=answer["retryable"])
        if "stopped" in answer:
            return self._stop(ending, answer)
        return ending

    def _stop(self, ending: Ending, answer: Mapping[str, Any]) -> Ending:
        """A person has to decide: by an answer, or by a command after the failure."""
        about = "\n".join([str(answer["stopped"]), *_list_files(answer["files"])])
        if not self._task.asks:
            again = f"pointsman worktree merge {self._job.claim.run_id}"
            message = f"is not merged. {about}\nThe worktree {answer['worktree']} is kept. When that is done: {again}"
            return replace(ending, exit_code=1, message=message, retryable=False)
        question = {
            "text": f"{about}\nAnswer `{RETRY}` when that is done, or `{GIVE_UP}` to keep the worktree unmerged.",
            "choices": [RETRY, GIVE_UP],
        }
        Path(self._job.stem + QUESTION_SUFFIX).write_text(json.dumps(question), "utf-8")
        return ending


def _is_first(job: Job) -> bool:
    """Whether this is the attempt that the answer was given for: a task keeps its last answer when it is tried again."""
    seen = Path(f"{Path(job.stem).parent}/given-up")
    if seen.exists() and seen.read_text("utf-8") != str(job.claim.epoch):
        return False
    seen.parent.mkdir(parents=True, exist_ok=True)
    seen.write_text(str(job.claim.epoch), "utf-8")
    return True


def _list_files(files: list[str]) -> list[str]:
    more = [f"  … and {len(files) - MOST_NAMES} more"] if len(files) > MOST_NAMES else []
    return [*(f"  {file}" for file in files[:MOST_NAMES]), *more]

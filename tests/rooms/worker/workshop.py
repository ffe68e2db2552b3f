"""Jobs for the tests of the worker: real processes, in a directory of their own, and nobody left when it is over."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pointsman.engine.claims import Claim
from pointsman.flows.model import FlowTask
from pointsman.worker import processes
from pointsman.worker.cost_file import CostFile
from pointsman.worker.ending import Ending
from pointsman.worker.log import AttemptLog
from pointsman.worker.process_table import Process, carries, list_processes
from pointsman.worker.runner import Job, Runners, Running, build_environment, inherit_environment
from pointsman.world import RandomIds, World

WORLD = World()
IDS = RandomIds()


def make_job(
    directory: Path,
    *argv: str,
    task: FlowTask | None = None,
    env: Mapping[str, str] | None = None,
    cap_bytes: int = 1_000_000,
    worker_id: str = "worker_of_tests",
    **fields: Any,
) -> Job:
    """A job whose task has an id of its own, so that its processes can be found among all others."""
    claim = Claim(
        task_id=IDS.short("task"), epoch=1, tenant="default", run_id="run_1", name="build", payload={}, attempt_count=1
    )
    log = AttemptLog(f"{directory}/logs/{claim.task_id}.log", cap_bytes)
    output_path = f"{directory}/{claim.task_id}.json"
    cost_file = CostFile(f"{directory}/{claim.task_id}.cost")
    environment = build_environment(
        inherit_environment(os.environ, ()),
        claim,
        named=env or {},
        output_path=output_path,
        cost_path=cost_file.path,
        log_dir=str(log.path.parent),
        worker_id=worker_id,
    )
    task = task.model_copy(update={"command": argv} if argv else {}) if task else FlowTask(command=argv)
    fields.setdefault("cwd", directory)
    fields.setdefault("grace_seconds", 5.0)
    return Job(
        claim=claim,
        task=task,
        env=environment,
        output_path=output_path,
        log=log,
        cost_file=cost_file,
        **fields,
    )


def make_shell_job(directory: Path, script: str, **fields: Any) -> Job:
    return make_job(directory, task=FlowTask(run=script), **fields)


def make_python_job(directory: Path, program: str, **fields: Any) -> Job:
    return make_job(directory, sys.executable, "-c", program, **fields)


async def start(job: Job) -> Running:
    return await Runners(WORLD, job.cwd).of(job.task).start(job)


def run(job: Job) -> Ending:
    """From the start to the end."""

    async def from_start_to_end() -> Ending:
        return await (await start(job)).wait()

    with nobody_left(job):
        ending = asyncio.run(from_start_to_end())
    job.log.close()
    return ending


async def written(job: Job, text: str) -> None:
    """Until the work has written that."""
    await until(lambda: text in job.log.tail())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # it happens in another process
        await asyncio.sleep(0.005)


def members(job: Job) -> list[Process]:
    marker = processes.marker_of(job.claim.task_id, job.claim.epoch)
    return [process for process in list_processes() if not process.has_ended and carries(process.pid, marker)]


@contextmanager
def nobody_left(*jobs: Job) -> Iterator[None]:
    """Whatever a test does, no process of its jobs outlives it; what did is ended, and told."""
    try:
        yield
    finally:
        left = [process for job in jobs for process in members(job)]
        for process in left:
            os.kill(process.pid, 9)
    assert not left

"""A project in a folder of its own, with runs made through the engine, and the command line beside it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from pointsman import app
from pointsman.cli import main
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask
from pointsman.store.rows import Run, Task

FLOW = (
    NewTask(name="fetch"),
    NewTask(name="transform", depends_on=("fetch",)),
    NewTask(name="load", depends_on=("transform",)),
)
EXIT_CODE_2 = "exited with code 2 (expected 0)\nThe end of its log: boom"

Answer = TypeVar("Answer")

RUNS_TASKS = ("run", "resume", "worker")


@dataclass(frozen=True)
class Said:
    """What a command has answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Scene:
    """Everything in one folder."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/.pointsman/state.db"
        self._store = ("--store", url) if url else ()
        self._capture = capture

    @property
    def options(self) -> str:
        """What every hint has to say for the command to mean this project."""
        return f" {shlex.join((*self._store, '-C', str(self.folder)))}"

    def call(self, command: str, *arguments: str) -> Said:
        """A command, in this process; the hints that it gives are without the options of this project."""
        said = self.call_as_it_is(command, *arguments)
        return Said(said.code, said.out.replace(self.options, ""), said.err.replace(self.options, ""))

    def call_as_it_is(self, command: str, *arguments: str) -> Said:
        return self.call_anywhere(command, *arguments, *self._store, "-C", str(self.folder))

    def call_anywhere(self, command: str, *arguments: str) -> Said:
        """A command that is not about a project. One that runs tasks ends all processes below its own, so it gets one."""
        words = [*command.split(), *arguments]
        if words[0] in RUNS_TASKS:
            ended = subprocess.run([sys.executable, "-m", "pointsman", *words], capture_output=True, text=True, check=False)
            return Said(ended.returncode, ended.stdout, ended.stderr)
        self._capture.readouterr()
        code = main(words)
        said = self._capture.readouterr()
        return Said(code, said.out, said.err)

    def start(
        self, command: str, environment: Mapping[str, str] = MappingProxyType({}), output: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """A command, in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "pointsman", *command.split(), *self._store, "-C", str(self.folder)],
            stdout=output,
            stderr=output,
            text=True,
            env=os.environ | environment,
        )

    def do(self, work: Callable[[Engine], Awaitable[Answer]]) -> Answer:
        """Some work with the engine, which is closed again afterwards."""
        (self.folder / ".pointsman").mkdir(exist_ok=True)

        async def opened() -> Answer:
            async with app.open(self.url, keeps=False) as engine:
                return await work(engine)

        return asyncio.run(opened())

    def submit(self, *tasks: NewTask, name: str = "nightly", **options: Any) -> Run:
        return self.do(lambda engine: engine.submit_run(NewRun(name=name, tasks=tasks or FLOW, **options)))

    def tasks(self, run: Run) -> dict[str, Task]:
        return {task.name: task for task in self.do(lambda engine: engine.list_tasks(run.id))}

    def state(self, run: Run, task: str | None = None) -> str:
        return self.tasks(run)[task].state if task else self.do(lambda engine: engine.get_run(run.id)).state

    def claim(self, *, limit: int = 1) -> list[Claim]:
        async def register_and_claim(engine: Engine) -> list[Claim]:
            worker = await engine.register_worker("box", max_concurrent_tasks=limit)
            return await engine.claim_tasks(worker.id, limit)

        return self.do(register_and_claim)

    def write_log(self, run: Run, claim: Claim, content: bytes) -> str:
        """Relative to the project, as a worker stores it."""
        path = Path(".pointsman") / "logs" / run.id / claim.name / f"{claim.epoch}.log"
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)
        return str(path)

    def complete(self, run: Run, content: bytes | None = None, **options: Any) -> Claim:
        """Claim a task and do it."""
        (claim,) = self.claim()
        path = self.write_log(run, claim, content) if content is not None else None
        self.do(
            lambda engine: engine.complete_task(
                claim.task_id, claim.epoch, AttemptReport(log_path=path, exit_code=0, **options)
            )
        )
        return claim

    def fail(self, run: Run, content: bytes | None = None) -> Claim:
        (claim,) = self.claim()
        path = self.write_log(run, claim, content) if content is not None else None
        self.do(
            lambda engine: engine.fail_task(
                claim.task_id, claim.epoch, AttemptReport(error=EXIT_CODE_2, exit_code=2, log_path=path, retryable=False)
            )
        )
        return claim

    def failed_run(self) -> Run:
        """fetch succeeded, transform failed, load waits for it."""
        run = self.submit()
        self.complete(run, b"fetched 1\nfetched 2\nfetched 3\n")
        self.fail(run, b"boom\n")
        return run

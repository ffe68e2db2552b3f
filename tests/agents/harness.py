"""A project with a real agent in it, led to a stand-in for its model, and the command line as a user types it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.agents.clis import PROGRAMS, SECRET, Cli
from tests.agents.model_api import ModelApi, Request, serve
from tests.system.faults.project import PATIENCE_SECONDS, Command, Project, find_processes

from pointsman.store.rows import Attempt, Run, Task

NOT_PASSED = "POISON"
"""A variable of the worker that no setting names."""


class AgentProject(Project):
    def __init__(self, folder: Path, cli: Cli, api: ModelApi) -> None:
        self.cli, self.api = cli, api
        self.home = folder / "home"
        project = folder / "project"
        for each in (self.home, project):
            each.mkdir()
        super().__init__(project, said=folder)
        self.variables = cli.set_up(self.home, project, api.url)
        self.write_settings("")
        self.epochs: list[set[str]] = []
        """The attempts that had processes whenever the agent asked its model."""
        self.environs: list[dict[str, str]] = []
        """The variables of these processes."""
        api.on_turn = self._look_around

    def subscribe(self) -> None:
        """Use the account of a person instead of an API key, where only that has usage limits with a reset time."""
        self.variables = {name: value for name, value in self.variables.items() if value != SECRET or not self.cli.subscription}
        self.variables |= dict.fromkeys(self.cli.subscription, SECRET)

    def write_settings(self, more: str) -> None:
        (self.folder / "pointsman.toml").write_text(f"pass_env = {json.dumps(self.cli.pass_env)}\n{more}\n")

    def _environment(self, **settings: object) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        path = ":".join([*map(str, PROGRAMS), "/usr/local/bin", "/usr/bin", "/bin"])
        own = {"PATH": path, "HOME": str(self.home), NOT_PASSED: "secret of the worker", "POINTSMAN_SLOTS": "2"}
        given = {f"POINTSMAN_{name.upper()}": str(value) for name, value in settings.items()}
        return {**kept, **self.variables, **own, "POINTSMAN_LEASE_SECONDS": "10", "POINTSMAN_GRACE_SECONDS": "5", **given}

    def write_task(self, prompt: str = "Do it.", **keys: Any) -> str:
        """A flow with one task of the agent."""
        task = {"agent": self.cli.name, "prompt": prompt, **keys}
        if self.cli.model:
            task |= {"model": self.cli.model}
        if self.cli.arguments:
            task |= {"arguments": [*self.cli.arguments]}
        return self.write_flow(json.dumps({"name": "try", "tasks": {"work": task}}))

    async def run(self, *arguments: str) -> tuple[int, str]:
        return await self.call("run", "flow.yaml", *arguments)

    def running(self) -> AbstractAsyncContextManager[Command]:
        """`pointsman run` at work."""
        return self.start("run", "flow.yaml")

    async def until_task(
        self, command: Command, is_so: Callable[[Task], bool], patience_seconds: float = PATIENCE_SECONDS
    ) -> Task:
        """The task of the agent, as soon as that is so."""
        async with asyncio.timeout(patience_seconds), self.engine() as engine:
            while True:
                runs = await engine.list_runs(limit=1)
                for task in await engine.list_tasks(runs[0].id) if runs else ():
                    if task.name == "work" and is_so(task):
                        return task
                assert command.process.returncode is None, command.said
                await asyncio.sleep(0.05)

    async def look(self) -> tuple[Run, Task, list[Attempt]]:
        """The run, the task of the agent, and its attempts."""
        async with self.engine() as engine:
            run = (await engine.list_runs(limit=1))[0]
            task = next(each for each in await engine.list_tasks(run.id) if each.name == "work")
            return run, task, list(await engine.list_attempts(task.id))

    def _look_around(self, request: Request) -> None:  # noqa: ARG002
        found = [
            environ for each in find_processes(f"HOME={self.home}") if "POINTSMAN_EPOCH" in (environ := read_environ(each.pid))
        ]
        self.environs += found
        self.epochs.append({environ["POINTSMAN_EPOCH"] for environ in found})


def read_environ(pid: int) -> dict[str, str]:
    """The variables that a process was started with; none if it has just ended."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


@contextmanager
def open_project(folder: Path, cli: Cli) -> Iterator[AgentProject]:
    with serve(cli.dialect()) as api:
        yield AgentProject(folder, cli, api)
        assert not api.problems, api.problems

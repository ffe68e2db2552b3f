"""A project in a folder of its own, and the real command line at work in it: processes to be killed, stopped and woken."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw
from tests.system.faults.prompt import prompt

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.store.rows import Run, Task
from pointsman.worker.process_table import Process as Entry
from pointsman.worker.process_table import carries, list_processes

PATIENCE_SECONDS = 90
"""Machines are shared: nothing here is meant to be quick, only to come about."""

OPEN_TRANSACTIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
      AND backend_type = 'client backend'
"""

Answer = TypeVar("Answer")


class Command:
    """One process of the command line."""

    def __init__(self, process: Process, said: Path) -> None:
        self.process = process
        self._said = said

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it wrote for people, so far."""
        return self._said.read_text("utf-8", "replace")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The transitions that it tells with --json, until it ends or is killed."""
        assert self.process.stdout
        async for line in self.process.stdout:
            if line.endswith(b"\n"):
                event = json.loads(line)
                if "event_type" in event:
                    yield event

    def send(self, number: signal.Signals) -> None:
        """Without Popen, which would take the exit code of a process that has just ended, and asyncio would report 255."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def stop(self) -> None:
        """Until every thread has stopped: one that waits for a processor may end a system call, and lock a file."""
        self.send(signal.SIGSTOP)
        await until(lambda: self.process.returncode is not None or self._has_stopped())

    def _has_stopped(self) -> bool:
        states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return set(states) == {"T"}

    async def until(self, is_so: Callable[[], Answer], patience_seconds: float = PATIENCE_SECONDS) -> Answer:
        """The same as `until`, as long as it is there."""

        def is_so_or_over() -> Answer:
            answer = is_so()
            assert answer or self.process.returncode is None, f"It has ended: {self.said}"
            return answer

        try:
            return await until(is_so_or_over, patience_seconds)
        except TimeoutError:
            raise AssertionError(f"It does not come about: {self.said}") from None

    async def kill(self) -> None:
        """-9, and wait until it is gone."""
        self.send(signal.SIGKILL)
        await self.wait()

    async def wait(self) -> int:
        """Its exit code; what it still says is read, so that it never waits for us."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode


class Project:
    def __init__(self, folder: Path, url: str | None = None, *, said: Path | None = None) -> None:
        """On a database in the folder itself, unless there is another one; what is said to people is kept in `said`."""
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/.pointsman/state.db"
        self._said = said or folder
        self.program: tuple[str, ...] = ("-m", "pointsman")
        self._count = 0
        (folder / ".pointsman").mkdir(exist_ok=True)

    def write_flow(self, text: str, name: str = "flow.yaml") -> str:
        (self.folder / name).write_text(text)
        return name

    @asynccontextmanager
    async def start(self, *arguments: str, **settings: object) -> AsyncIterator[Command]:
        """A command at work, with settings from its environment; gone when the block is left."""
        self._count += 1
        said = self._said / f"said-{os.getpid()}-{self._count}.txt"
        env = self._environment(**settings)
        with said.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *self.program, *arguments, cwd=self.folder, env=env, stdout=PIPE, stderr=file, limit=1 << 22
            )
        command = Command(process, said)
        try:
            yield command
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    def _environment(self, **settings: object) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
        env |= {"POINTSMAN_STORE": self.url, "POINTSMAN_SLOTS": "2", "POINTSMAN_LEASE_SECONDS": "20"}
        return env | {f"POINTSMAN_{name.upper()}": str(value) for name, value in settings.items()}

    def start_with_stderr(self, stderr: int, *arguments: str, is_terminal: bool = False) -> subprocess.Popen[bytes]:
        """A command that talks to that descriptor; if it is a terminal, it is the one that the command belongs to."""

        def take_terminal() -> None:
            fcntl.ioctl(stderr, termios.TIOCSCTTY, 0)

        return subprocess.Popen(
            [sys.executable, "-m", "pointsman", *arguments],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=take_terminal if is_terminal else None,  # noqa: PLW1509 - one system call, and no lock
        )

    async def call(self, *arguments: str, **settings: object) -> tuple[int, str]:
        """A command from its start to its end: its exit code, and what it said to people."""
        async with self.start(*arguments, **settings) as command:
            return await command.wait(), command.said

    async def show(self, *arguments: str) -> str:
        """What a command that succeeds prints on stdout."""
        async with self.start(*arguments) as command:
            out, _ = await command.process.communicate()
            assert command.process.returncode == 0, (command.process.returncode, command.said)
        return out.decode()

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        async with app.open(self.url, keeps=False) as engine:
            yield engine

    async def submit(self, flow: str) -> str:
        """For workers to do; the id of the run."""
        return (await self.show("run", flow, "--detach")).strip()

    async def freeze(self, command: Command) -> None:
        """Stop it, but not in the middle of a transaction: nobody could do anything as long as that holds its locks."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await command.stop()
            while await asyncio.to_thread(self._is_locked):
                command.send(signal.SIGCONT)
                await asyncio.sleep(0.05)
                await command.stop()

    def _is_locked(self) -> bool:
        with prompt(self.url) as session:
            if session.dialect == "postgres":
                return session.ask(OPEN_TRANSACTIONS) != [(0,)]
            try:
                session.ask("PRAGMA busy_timeout = 50")  # whoever holds the lock may be the process that we have stopped
                session.ask("BEGIN IMMEDIATE")
                session.ask("ROLLBACK")
            except apsw.BusyError:
                return True
        return False

    async def until(self, ask: Callable[[Engine], Awaitable[Answer]]) -> Answer:
        """What it answers as soon as it answers something."""
        async with asyncio.timeout(PATIENCE_SECONDS), self.engine() as engine:
            while not (answer := await ask(engine)):  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.02)
            return answer


async def until(is_so: Callable[[], Answer], patience_seconds: float = PATIENCE_SECONDS) -> Answer:
    """What it answers as soon as it answers something."""
    async with asyncio.timeout(patience_seconds):
        while not (answer := is_so()):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)
        return answer


async def tasks_of(engine: Engine, run_id: str) -> dict[str, Task]:
    return {task.name: task for task in await engine.list_tasks(run_id)}


def find_processes(*entries: str) -> list[Entry]:
    """Everybody alive whose environment has these entries."""
    marker = "\0".join(entries)
    return [each for each in list_processes() if not each.has_ended and carries(each.pid, marker)]


def find_work(run: Run | str) -> list[Entry]:
    """Every process that work of a run has started."""
    return find_processes(f"POINTSMAN_RUN_ID={run if isinstance(run, str) else run.id}")

"""`command` and `run`: a program or a shell script, in its own session, without input, with its output in the log."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from pointsman.flows.model import FlowTask, Shell
from pointsman.flows.values import Argv, Content, Word
from pointsman.worker import processes
from pointsman.worker.ending import Ending, describe_refusal, describe_status
from pointsman.worker.process_table import Process
from pointsman.worker.processes import Spawned
from pointsman.worker.runner import ANSWERS_SUFFIX, OUTPUT_BYTES, Job, Running, read_output
from pointsman.worker.shortage import is_shortage
from pointsman.world import World

SHELLS: Mapping[Shell, tuple[str, ...]] = {"sh": ("/bin/sh", "-e", "-c"), "bash": ("bash", "-eo", "pipefail", "-c")}
"""A script ends with the first command that fails: what follows would work with a result that is not there."""
CHUNK = 65_536
"""Bytes per read: the capacity of a pipe. A process that writes faster than we read waits."""


class CommandTask(FlowTask):
    """A program."""

    kind = "command"
    synonyms: ClassVar[Mapping[str, str]] = {"cmd": "command", "argv": "command"}

    command: Annotated[Argv, Content.TEXT]
    """A program and its arguments, without a shell."""

    def summary(self) -> str:
        return " ".join([*([self.tool] if self.tool else []), *self.command])

    def check(self, given: Set[str]) -> Iterator[tuple[str, str, str]]:  # noqa: ARG002
        if not self.command and self.tool is None:
            yield "command", "the command is empty.", "Name a program: `[echo, hello]`."


class ShellTask(FlowTask):
    """A shell script."""

    kind = "run"
    synonyms: ClassVar[Mapping[str, str]] = {"script": "run", "shell": "run", "bash": "run"}

    run: Annotated[Word, Content.SHELL]
    """A script, which ends with the first command that fails; values of expressions are quoted for the shell."""
    shell: Shell = "sh"
    """The shell of the script: `sh` (`/bin/sh -e`), or `bash` (`bash -eo pipefail`)."""

    def summary(self) -> str:
        return next((line.strip() for line in self.run.splitlines() if line.strip()), "")


class CommandRunner:
    task_model: ClassVar[type[FlowTask]] = CommandTask

    def __init__(self, world: World, directory: Path) -> None:  # noqa: ARG002 - every runner is made alike
        self._world = world

    async def start(self, job: Job) -> Running:
        return start_command(job, self._argv(job), self._world)

    def close(self) -> None: ...

    def _argv(self, job: Job) -> tuple[str, ...]:
        assert isinstance(job.task, CommandTask)
        return (*(job.tool.command if job.tool else ()), *job.task.command)


class ShellRunner(CommandRunner):
    task_model = ShellTask

    def _argv(self, job: Job) -> tuple[str, ...]:
        assert isinstance(job.task, ShellTask)
        return (*SHELLS[job.task.shell], job.task.run)


def start_command(job: Job, argv: tuple[str, ...], world: World) -> RunningCommand | NotStarted:
    """Start a program while the lease is certain and the machine can; one that cannot be started has ended."""
    with contextlib.suppress(OSError):  # only work that writes something needs the folder
        job.log.make_folder()
        if job.answers:
            Path(job.stem + ANSWERS_SUFFIX).write_text(json.dumps(dict(job.answers)), "utf-8")
    job.lease.check()
    try:
        spawned = processes.spawn(argv, cwd=job.cwd, env=job.env, separate_stderr=job.stdout_wanted)
    except (OSError, ValueError) as error:
        if is_shortage(error):
            raise
        return NotStarted(describe_refusal(error, argv, job.cwd, job.env), world.clock.monotonic())
    return RunningCommand(job, spawned, world, in_shell=argv[:-1] in SHELLS.values())


class NotStarted:
    """Work that could not be started."""

    pid = None
    started_ticks = 0

    def __init__(self, ending: Ending, now: float) -> None:
        self.last_output_at = now
        self._ending = ending

    async def wait(self) -> Ending:
        return self._ending

    async def stop(self, grace_seconds: float) -> None: ...

    def kill(self) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


class RunningCommand:
    """A process and all its descendants."""

    def __init__(self, job: Job, spawned: Spawned, world: World, *, in_shell: bool) -> None:
        self.pid = spawned.pid
        self.started_ticks = spawned.started_ticks
        self.last_output_at = world.clock.monotonic()
        self._job = job
        self._in_shell = in_shell
        self._spawned = spawned
        self._world = world
        self._marker = processes.marker_of(job.claim.task_id, job.claim.epoch)
        self._stopped = False
        self._grace = job.grace_seconds
        self._tree_ends: asyncio.Task[list[Process]] | None = None
        self._captured = bytearray()
        self._reading: set[int] = set()
        for descriptor in (spawned.stdout, spawned.stderr):
            if descriptor is not None:
                os.set_blocking(descriptor, False)
                self._reading.add(descriptor)
                asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor)
        # A separate task: the process is ended and reaped even if the caller stops waiting.
        self._watch = asyncio.create_task(self._watch_to_the_end())

    async def wait(self) -> Ending:
        return await asyncio.shield(self._watch)

    async def stop(self, grace_seconds: float) -> None:
        self._stopped, self._grace = True, grace_seconds
        await self._end_tree()
        await self.wait()

    def kill(self) -> None:
        self._stopped, self._grace = True, 0.0
        processes.kill_tree(self._spawned, self._marker)

    def suspend(self) -> None:
        processes.suspend_tree(self._spawned, self._marker)

    def resume(self) -> None:
        self.last_output_at = self._world.clock.monotonic()
        processes.resume_tree(self._spawned, self._marker)

    async def _watch_to_the_end(self) -> Ending:
        await processes.wait_for_end(self._spawned)
        survivors = []
        if self._tree_ends or processes.find_left_behind(self._spawned, self._marker):
            survivors = await self._end_tree()
        status = processes.reap(self._spawned)
        self._drain()
        job = self._job
        ending = describe_status(status, job.expected_exit_codes, in_shell=self._in_shell)
        if self._stopped:
            ending = Ending(
                "stopped", ending.exit_code, ending.signal, f"was stopped and {ending.message or 'exited as expected'}"
            )
        if survivors:
            pids = ", ".join(str(each.pid) for each in survivors)
            ending = replace(ending, message=f"{ending.message}; these processes could not be killed: {pids}".lstrip("; "))
        output, problem = read_output(job.output_path)
        stdout = bytes(self._captured) if job.stdout_wanted else None
        return replace(ending, output=output, output_problem=problem, stdout=stdout)

    async def _end_tree(self) -> list[Process]:
        """End all processes, once, and to completion even if the caller stops waiting."""
        if self._tree_ends is None:
            ends = processes.end_tree(self._spawned, self._marker, self._grace, self._world.sleep)
            self._tree_ends = asyncio.create_task(ends)
        return await asyncio.shield(self._tree_ends)

    def _read(self, descriptor: int) -> None:
        """Read one chunk per turn, so that a process that never stops writing does not block the others."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(descriptor, data)
        else:
            self._close(descriptor)

    def _take(self, descriptor: int, data: bytes) -> None:
        self.last_output_at = self._world.clock.monotonic()
        self._job.log.write(data)
        if self._job.stdout_wanted and descriptor == self._spawned.stdout:
            # One byte more than allowed, so that the reader sees that it is too large.
            self._captured += data[: OUTPUT_BYTES + 1 - len(self._captured)]

    def _drain(self) -> None:
        """Read what the dead processes have written, and no more: an unknown process may hold the other end open."""
        for descriptor in tuple(self._reading):
            left = _capacity(descriptor)
            while left > 0 and descriptor in self._reading:
                try:
                    data = os.read(descriptor, min(left, CHUNK))
                except OSError:
                    break
                if not data:
                    break
                self._take(descriptor, data)
                left -= len(data)
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._reading:
            self._reading.discard(descriptor)
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)


def _capacity(pipe: int) -> int:
    get_size = getattr(fcntl, "F_GETPIPE_SZ", None)
    return CHUNK if get_size is None else fcntl.fcntl(pipe, get_size)

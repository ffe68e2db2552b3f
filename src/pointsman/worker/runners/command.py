"""`command` and `run`: a program or a shell script, in its own session, without input, with its output in the log."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

from msgspec.structs import replace

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


class Listener(Protocol):
    """Takes the output of a process as it arrives."""

    def take(self, data: bytes, *, is_stdout: bool) -> None: ...

    async def conclude(self, ending: Ending) -> Ending:
        """The ending, with what the output says about it."""
        ...


class Capture:
    """The output of a plain program goes to the log; its stdout is kept where `outputs: stdout` asks for it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._captured = bytearray()

    def take(self, data: bytes, *, is_stdout: bool) -> None:
        self._job.log.write(data)
        if self._job.stdout_wanted and is_stdout:
            # One byte more than allowed, so that the reader sees that it is too large.
            self._captured += data[: OUTPUT_BYTES + 1 - len(self._captured)]

    async def conclude(self, ending: Ending) -> Ending:
        return replace(ending, stdout=bytes(self._captured)) if self._job.stdout_wanted else ending


def start_command(
    job: Job,
    argv: tuple[str, ...],
    world: World,
    *,
    listener: Listener | None = None,
    stdin: bytes | None = None,
    keeps_stdin: bool = False,
) -> RunningCommand | NotStarted:
    """Start a program while the lease is certain and the machine can; one that cannot be started has ended.

    A `listener` gets stdout and stderr separately. `stdin` is written while the output is read, and closed then; with
    `keeps_stdin` by `close_stdin`.
    """
    with contextlib.suppress(OSError):  # only work that writes something needs the folder
        job.log.make_folder()
        if job.answers:
            Path(job.stem + ANSWERS_SUFFIX).write_text(json.dumps(dict(job.answers)), "utf-8")
    job.lease.check()
    reads, writes = (None, None) if stdin is None else os.pipe()
    try:
        spawned = processes.spawn(
            argv,
            cwd=job.cwd,
            env=job.env,
            separate_stderr=job.stdout_wanted or listener is not None,
            stdin=reads,
        )
    except (OSError, ValueError) as error:
        if writes is not None:
            os.close(writes)
        if is_shortage(error):
            raise
        return NotStarted(describe_refusal(error, argv, job.cwd, job.env), world.clock.monotonic())
    finally:
        if reads is not None:
            os.close(reads)
    running = RunningCommand(job, spawned, world, listener or Capture(job), in_shell=argv[:-1] in SHELLS.values())
    if writes is not None:
        running.write_stdin(writes, stdin or b"", keeps=keeps_stdin)
    return running


class NotStarted:
    """Work that could not be started."""

    pid = None
    started_ticks = 0

    def __init__(self, ending: Ending, now: float) -> None:
        self.last_output_at = now
        self.ending = ending

    async def wait(self) -> Ending:
        return self.ending

    async def stop(self, grace_seconds: float) -> None: ...

    def kill(self) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


class RunningCommand:
    """A process and all its descendants."""

    def __init__(self, job: Job, spawned: Spawned, world: World, listener: Listener, *, in_shell: bool) -> None:
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
        self._listener = listener
        self._stdin: int | None = None
        self._unwritten = memoryview(b"")
        self._keeps_stdin = False
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

    def write_stdin(self, descriptor: int, data: bytes, *, keeps: bool) -> None:
        """Write to its stdin as fast as it reads, while its output is read."""
        os.set_blocking(descriptor, False)
        self._stdin, self._unwritten, self._keeps_stdin = descriptor, memoryview(data), keeps
        asyncio.get_running_loop().add_writer(descriptor, self._write)

    def close_stdin(self) -> None:
        if self._stdin is not None:
            asyncio.get_running_loop().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    def _write(self) -> None:
        assert self._stdin is not None
        try:
            self._unwritten = self._unwritten[os.write(self._stdin, self._unwritten) :]
        except BlockingIOError:
            return
        except OSError:  # it has closed its stdin, or ended; its output says why
            self.close_stdin()
            return
        if not self._unwritten and self._keeps_stdin:
            asyncio.get_running_loop().remove_writer(self._stdin)
        elif not self._unwritten:
            self.close_stdin()

    async def stop(self, grace_seconds: float) -> None:
        self._stopped, self._grace = True, grace_seconds
        self.close_stdin()
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
        self.close_stdin()
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
        return await self._listener.conclude(replace(ending, output=output, output_problem=problem))

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
        self._listener.take(data, is_stdout=descriptor == self._spawned.stdout)

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

"""Runs a program: in its own session, without input, its output to the log as it arrives."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from dataclasses import replace

from pointsman.worker import processes
from pointsman.worker.endings import Ending, describe_refusal, describe_status
from pointsman.worker.process_table import Process
from pointsman.worker.processes import Spawned
from pointsman.worker.runner import OUTPUT_BYTES, Job, Running, read_output
from pointsman.world import World

CHUNK = 65_536
"""Read at once: as much as a pipe holds. A child that writes faster than we do waits."""


class CommandRunner:
    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self, job: Job) -> Running:
        assert job.argv is not None, "a command has arguments"
        return start_command(job, job.argv, self._world)


def start_command(job: Job, argv: tuple[str, ...], world: World) -> RunningCommand | NotStarted:
    with contextlib.suppress(OSError):  # it is there for what the work may write; work that writes nothing does not need it
        job.log.make_folder()
    try:
        spawned = processes.spawn(argv, cwd=job.cwd, env=job.env, separate_stderr=job.stdout_wanted)
    except (OSError, ValueError) as error:
        return NotStarted(describe_refusal(error, argv, job.cwd, job.env), world.clock.monotonic())
    return RunningCommand(job, spawned, world)


class NotStarted:
    """What never ran ends at once."""

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
    def __init__(self, job: Job, spawned: Spawned, world: World) -> None:
        self.pid = spawned.pid
        self.started_ticks = spawned.started_ticks
        self.last_output_at = world.clock.monotonic()
        self._job = job
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
        # A task of its own: what was started is ended and reaped even when nobody waits any more.
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
        ending = describe_status(status, job.expected_exit_codes, in_shell=job.task.run is not None)
        if self._stopped:
            ending = Ending("stopped", ending.exit_code, ending.signal, f"was stopped, and {ending.message or 'exited well'}")
        if survivors:
            pids = ", ".join(str(each.pid) for each in survivors)
            ending = replace(ending, message=f"{ending.message}; the system could not end the processes {pids}".lstrip("; "))
        output, problem = read_output(job.output_path)
        stdout = bytes(self._captured) if job.stdout_wanted else None
        return replace(ending, output=output, output_problem=problem, stdout=stdout)

    async def _end_tree(self) -> list[Process]:
        """Once, whoever asks for it, and to its end, even when nobody waits for that any more."""
        if self._tree_ends is None:
            ends = processes.end_tree(self._spawned, self._marker, self._grace, self._world.sleep)
            self._tree_ends = asyncio.create_task(ends)
        return await asyncio.shield(self._tree_ends)

    def _read(self, descriptor: int) -> None:
        """One chunk a turn, so that a child that never stops writing does not keep the others waiting."""
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
            # One byte more than is allowed: whoever reads it sees that it was too much.
            self._captured += data[: OUTPUT_BYTES + 1 - len(self._captured)]

    def _drain(self) -> None:
        """Read what those who are gone have written, and no more: somebody we cannot see may hold the other end."""
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

"""Calls a Python function: in a process of its own, or in a thread of the worker when the flow asks for that."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
import json
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from msgspec import structs

from pointsman.worker import call
from pointsman.worker.endings import Ending
from pointsman.worker.runner import Job, Running, parse_output
from pointsman.worker.runners.command import NotStarted, RunningCommand, start_command
from pointsman.world import World


class PythonRunner:
    """`paths` are searched for modules first, before the working directory of the task."""

    def __init__(self, world: World, paths: tuple[Path, ...] = ()) -> None:
        self._world = world
        self._paths = paths
        self._threads = Threads()

    async def start(self, job: Job) -> Running:
        if job.task.mode == "thread":
            self._search(job.cwd)
            return RunningThread(job, self._threads, self._world)
        return start_call(job, [str(path) for path in (*self._paths, job.cwd)], {}, self._world)

    def _search(self, cwd: Path) -> None:
        """For modules of functions that are called in threads; a function may have changed the path of the worker."""
        if str(cwd) not in sys.path:
            paths = dict.fromkeys(map(str, (*self._paths, cwd)))
            sys.path[:0] = [path for path in paths if path not in sys.path]

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()


def start_call(job: Job, paths: list[str], offered: Mapping[str, Any], world: World) -> Running:
    """By the path of the file: it is found whatever the user's PYTHONPATH is, and -P keeps our directory out of theirs."""
    assert job.task.call is not None, "a function to call"
    request = {"function": job.task.call, "arguments": dict(job.task.with_), "offered": dict(offered), "paths": paths}
    request_path = Path(f"{job.output_path}.call")
    try:
        request_path.parent.mkdir(parents=True, exist_ok=True)
        request_path.write_text(json.dumps(request), "utf-8")  # an environment variable holds only so much
    except OSError as error:
        return NotStarted(Ending("not_started", message=f"could not be started: {error}"), world.clock.monotonic())
    env = {"PYTHONUNBUFFERED": "1", **job.env, "POINTSMAN_CALL": str(request_path)}
    running = start_command(structs.replace(job, env=env), (sys.executable, "-P", str(call.__file__)), world)
    return running if isinstance(running, NotStarted) else RunningCall(running, job)


class RunningCall:
    """The process that calls a function; its problems are told in the words of the function."""

    def __init__(self, running: RunningCommand, job: Job) -> None:
        self._running = running
        self._problem_path = Path(f"{job.output_path}.problem")
        self.pid = running.pid
        self.started_ticks = running.started_ticks
        self.stop, self.kill, self.suspend, self.resume = running.stop, running.kill, running.suspend, running.resume

    @property
    def last_output_at(self) -> float:
        return self._running.last_output_at

    async def wait(self) -> Ending:
        ending = await self._running.wait()
        with contextlib.suppress(FileNotFoundError, ValueError):
            problem = json.loads(self._problem_path.read_text("utf-8"))
            if ending.kind == "exited" and ending.exit_code == 1:
                ending = replace(ending, kind=problem["kind"], message=problem["message"], retryable=problem["retryable"])
        return ending


class RunningThread:
    """A thread cannot be ended from outside: it is asked to, and abandoned when it does not."""

    pid = None
    started_ticks = 0

    def __init__(self, job: Job, threads: Threads, world: World) -> None:
        self.last_output_at = world.clock.monotonic()
        self._world = world
        self._job = job
        self._cancel = call.Cancel()
        self._stopped = False
        self._called: asyncio.Future[call.Called | None] = asyncio.get_running_loop().create_future()
        """What came of it; None when it was abandoned."""
        threads.run(self._run)

    async def wait(self) -> Ending:
        called = await self._called
        if called is None:
            message = "its thread does not end: it still runs in the worker, and what it does is not counted"
            return Ending("stopped", message=f"{message}; give it a parameter `cancel`, or let it run in a process")
        if self._stopped:
            return Ending("stopped", message=called.message or "returned")
        if called.kind != "returned":
            return Ending(called.kind, message=called.message, retryable=called.retryable)
        output, problem = parse_output(called.result.encode(), "what it returned")
        return Ending("exited", exit_code=0, output=output, output_problem=problem)

    async def stop(self, grace_seconds: float) -> None:
        self._stopped = True
        self._cancel.cancel()
        await asyncio.wait({self._called}, timeout=grace_seconds)
        self._abandon()

    def kill(self) -> None:
        self._stopped = True
        self._cancel.cancel()
        self._abandon()

    def suspend(self) -> None:
        """A thread goes on."""

    def resume(self) -> None:
        self.last_output_at = self._world.clock.monotonic()

    def _abandon(self) -> None:
        if not self._called.done():
            self._called.set_result(None)

    def _run(self) -> Report:
        """In the thread; what is returned is done in the event loop."""
        assert self._job.task.call is not None, "a function to call"
        if self._called.done():
            return _do_nothing  # it was killed before it began
        DividedStream.install()
        token = _writer.set(self._write)
        try:
            called = call.call(self._job.task.call, self._job.task.with_, {}, self._cancel)
        except BaseException as error:  # noqa: BLE001  # SystemExit and the like end the call, never the worker
            called = call.Called("raised", message=f"raised {type(error).__name__}: {error}".rstrip(": "))
        finally:
            _writer.reset(token)
        if called.traceback:
            self._write(called.traceback)
        return partial(self._finish, called)

    def _finish(self, called: call.Called) -> None:
        if not self._called.done():
            self._called.set_result(called)

    def _write(self, text: str) -> None:
        self.last_output_at = self._world.clock.monotonic()
        self._job.log.write(text.encode("utf-8", "replace"))


_writer: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar("writer", default=None)


class DividedStream(io.TextIOBase):
    """What is printed in the thread of a call goes to the log of that call, all else where it went before."""

    def __init__(self, original: TextIO) -> None:
        self._original = original

    @classmethod
    def install(cls) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if not isinstance(stream, cls):
                setattr(sys, name, cls(stream))

    def write(self, text: str) -> int:
        writer = _writer.get()
        if writer is None:
            return self._original.write(text)
        writer(text)
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def isatty(self) -> bool:
        return _writer.get() is None and self._original.isatty()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


Report = Callable[[], None]


def _do_nothing() -> None: ...


class Threads:
    """Threads that are used again, of one event loop: there are always as many as calls. They never hold up the end of the
    worker, as those of an executor would; after `close`, nothing is run.

    Calls go out, and reports come back, as many at once as there are: threads take turns at the interpreter, and each change
    costs more than a short call.
    """

    def __init__(self) -> None:
        self._threads = 0
        self._calls = 0
        """Those that have not been reported."""
        self._outgoing: list[Callable[[], Report]] = []
        self._inbox: queue.SimpleQueue[Callable[[], Report] | None] = queue.SimpleQueue()
        self._reports: deque[Report] = deque()
        self._is_woken = False

    def run(self, work: Callable[[], Report]) -> None:
        """Do it in a thread, and what it returns here, in the event loop."""
        loop = asyncio.get_running_loop()
        self._calls += 1
        if self._calls > self._threads:
            self._threads += 1
            threading.Thread(target=self._work_off, args=(loop,), name="pointsman call", daemon=True).start()
        if not self._outgoing:
            loop.call_soon(self._hand_out)
        self._outgoing.append(work)

    def close(self) -> None:
        for _ in range(self._threads):
            self._inbox.put(None)

    def _hand_out(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        for work in outgoing:
            self._inbox.put(work)

    def _work_off(self, loop: asyncio.AbstractEventLoop) -> None:
        while work := self._inbox.get():
            self._reports.append(work())
            if not self._is_woken:  # once for all that come until the event loop is awake
                self._is_woken = True
                with contextlib.suppress(RuntimeError):  # the worker has gone meanwhile
                    loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._is_woken = False
        while self._reports:
            self._calls -= 1
            self._reports.popleft()()

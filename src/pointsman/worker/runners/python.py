"""`call`: a Python function, in its own process or, with `mode: thread`, in a thread of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import io
import json
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TextIO

from msgspec.structs import replace
from pydantic import Field

from pointsman.flows.model import CallMode, FlowTask
from pointsman.flows.values import Callable as FunctionName
from pointsman.flows.values import Content
from pointsman.worker import call
from pointsman.worker.ending import Ending
from pointsman.worker.runner import Job, Running, parse_output
from pointsman.worker.runners.command import NotStarted, RunningCommand, start_command
from pointsman.worker.shortage import is_shortage
from pointsman.world import World


class CallTask(FlowTask):
    """A Python function."""

    kind = "call"
    synonyms: ClassVar[Mapping[str, str]] = {
        "python": "call",
        "function": "call",
        "args": "with",
        "arguments": "with",
        "kwargs": "with",
    }

    call: FunctionName
    """A Python function, as `package.module:function`."""
    with_: Annotated[dict[str, Any], Content.DATA] = Field(
        default_factory=dict, validation_alias="with", serialization_alias="with"
    )
    """With `call`: the arguments, by name."""
    mode: CallMode = "process"
    """With `call`: whether the function runs in its own process or in a thread of the worker."""

    def summary(self) -> str:
        return f"{self.call}()"

    def check(self, given: Set[str]) -> Iterator[tuple[str, str, str]]:
        if self.mode == "thread":
            for key in sorted({"env", "cwd", "budget_usd", "expects", "worktree"} & given):
                advice = "Pass the value in `with`, or run the function in a process: `mode: process`."
                yield key, f"`{key}` has no effect on a function in a thread.", advice


class PythonRunner:
    """Looks for modules in the project first, or in its place in the worktree, then in the working directory of the task."""

    task_model: ClassVar[type[FlowTask]] = CallTask

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._directory = directory
        self._threads = Threads()

    async def start(self, job: Job) -> Running:
        assert isinstance(job.task, CallTask)
        if job.task.mode == "thread":
            self._extend_path(job.cwd)
            return RunningThread(job, job.task, self._threads, self._world)
        project = job.worktree.project if job.worktree else self._directory
        return start_call(job, job.task, [str(project), str(job.cwd)], self._world)

    def _extend_path(self, cwd: Path) -> None:
        """Make the modules of functions in threads importable; a function may have changed the path of the worker."""
        if str(cwd) not in sys.path:
            paths = dict.fromkeys((str(self._directory), str(cwd)))
            sys.path[:0] = [path for path in paths if path not in sys.path]

    def close(self) -> None:
        """Release the threads."""
        self._threads.close()


def start_call(job: Job, task: CallTask, paths: list[str], world: World, offered: Mapping[str, Any] | None = None) -> Running:
    """Start a process that calls the function; `offered` are arguments for parameters of these names, if it has them."""
    request = {"function": task.call, "arguments": dict(task.with_), "offered": offered or job.offered, "paths": paths}
    request_path = Path(f"{job.output_path}.call")
    try:
        request_path.parent.mkdir(parents=True, exist_ok=True)
        request_path.write_text(json.dumps(request), "utf-8")  # the size of environment variables is limited
    except OSError as error:
        if is_shortage(error):
            raise
        return NotStarted(Ending("not_started", message=f"could not be started: {error}"), world.clock.monotonic())
    env = {"PYTHONUNBUFFERED": "1", **job.env, "POINTSMAN_CALL": str(request_path)}
    # By the path of the file, which works with any PYTHONPATH; -P keeps our directory out of the path.
    running = start_command(replace(job, env=env), (sys.executable, "-P", str(call.__file__)), world)
    return running if isinstance(running, NotStarted) else RunningCall(running, job)


class RunningCall:
    """The process that calls a function; its ending has the exception of the function."""

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
    """A call in a thread. A thread cannot be killed: it is asked to stop, and abandoned if it does not."""

    pid = None
    started_ticks = 0

    def __init__(self, job: Job, task: CallTask, threads: Threads, world: World) -> None:
        self.last_output_at = world.clock.monotonic()
        self._world = world
        self._task = task
        self._log = job.log
        self._offered = job.offered
        self._cancel = call.Cancel()
        self._stopped = False
        self._called: asyncio.Future[call.Called | None] = asyncio.get_running_loop().create_future()
        """The result; None if the thread was abandoned."""
        threads.run(self._run)

    async def wait(self) -> Ending:
        called = await self._called
        if called is None:
            message = "its thread did not stop: it still runs in the worker, and its result is ignored"
            return Ending("interrupted", message=f"{message}; give it a parameter `cancel`, or use `mode: process`")
        if self._stopped:
            return Ending("interrupted", message=called.message or "returned")
        if called.kind != "returned":
            return Ending(called.kind, message=called.message, retryable=called.retryable)
        output, problem = parse_output(called.result.encode(), "its return value")
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
        """A thread cannot be suspended."""

    def resume(self) -> None:
        self.last_output_at = self._world.clock.monotonic()

    def _abandon(self) -> None:
        if not self._called.done():
            self._called.set_result(None)

    def _run(self) -> Report:
        """Runs in the thread; the event loop calls the result."""
        if self._called.done():
            return _do_nothing  # it was killed before it started
        DividedStream.install()
        token = _writer.set(self._write)
        try:
            called = call.call(self._task.call, self._task.with_, self._offered, self._cancel)
        except BaseException as error:  # noqa: BLE001  # SystemExit and the like end the call, not the worker
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
        self._log.write(text.encode("utf-8", "replace"))


_writer: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar("writer", default=None)


class DividedStream(io.TextIOBase):
    """Sends what the thread of a call prints to the log of that call, and everything else to the original stream."""

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
    """A pool with as many threads as there are calls. Unlike those of an executor, they do not delay the exit of the worker.

    Calls and reports are passed in batches: a thread switch costs more than a short call.
    """

    def __init__(self) -> None:
        self._threads = 0
        self._calls = 0
        """Calls that have not been reported."""
        self._outgoing: list[Callable[[], Report]] = []
        self._inbox: queue.SimpleQueue[Callable[[], Report] | None] = queue.SimpleQueue()
        self._reports: deque[Report] = deque()
        self._is_woken = False

    def run(self, work: Callable[[], Report]) -> None:
        """Run `work` in a thread, and what it returns in the event loop."""
        loop = asyncio.get_running_loop()
        if self._calls >= self._threads:
            try:
                threading.Thread(target=self._serve, args=(loop,), name="pointsman call", daemon=True).start()
            except RuntimeError:  # how Python says that the system refused a thread
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
            self._threads += 1
        self._calls += 1
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

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while work := self._inbox.get():
            self._reports.append(work())
            if not self._is_woken:  # one wake-up for all reports until the event loop runs
                self._is_woken = True
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._is_woken = False
        while self._reports:
            self._calls -= 1
            self._reports.popleft()()

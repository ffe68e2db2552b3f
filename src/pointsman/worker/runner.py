"""The contract of runners: a runner starts the work of an attempt and returns a handle to wait for, stop and suspend it.

A runner belongs to one kind of task. It declares the keys of that kind in its `task_model`; `pointsman.flows.kinds` says how
it is registered.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

from msgspec import Struct

from pointsman.artifacts import SUFFIX as ARTIFACTS_SUFFIX
from pointsman.engine.budgets import NO_USAGE, Usage
from pointsman.engine.claims import Claim
from pointsman.engine.sessions import invent_session
from pointsman.errors import RunnerUnusable
from pointsman.flows.kinds import find_runner
from pointsman.flows.model import FlowTask
from pointsman.prices import Price
from pointsman.settings import AgentProfile, ToolProfile
from pointsman.tracing import TRACEPARENT
from pointsman.worker.cost_file import CostFile
from pointsman.worker.ending import Ending
from pointsman.worker.lease import ENDLESS, Lease
from pointsman.worker.log import AttemptLog
from pointsman.worker.worktrees import Place, Worktree
from pointsman.world import World

__all__ = [
    "OUTPUT_BYTES",
    "Ending",
    "Job",
    "Runner",
    "Runners",
    "Running",
    "build_environment",
    "inherit_environment",
    "parse_output",
    "read_file",
    "read_output",
    "wait_for",
]

OUTPUT_SUFFIX = ".output.json"
QUESTION_SUFFIX = ".question.json"
SUBTASKS_SUFFIX = ".subtasks.jsonl"
ANSWERS_SUFFIX = ".answers.json"
OUTPUT_BYTES = 1_000_000
"""The largest output; outputs are stored in the database."""
INHERITED = (
    "PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV",
)  # fmt: skip
"""The variables of the worker that every task inherits; the flow and the settings can add others."""


class Occasion(Struct, frozen=True):
    """Why the session of an agent continues, as far as the agent has to know."""

    unheard: Literal["prompt", "answer", "comment"] | None = None
    """What it may not have heard: it has said nothing since."""
    broken_off: Literal["timeout", "interrupted"] | None = None
    """How the last attempt ended. With `unheard`: that attempt may have told it."""


class Progress:
    """What work says about itself while it runs, for its worker to report."""

    def __init__(self) -> None:
        self.session_id: str | None = None
        """The session that a later attempt can continue."""
        self.problem: str | None = None
        """What people should know about it, in a sentence."""
        self.news = asyncio.Event()
        """Set whenever there is something to report."""

    def see_session(self, session_id: str) -> None:
        if session_id != self.session_id:
            self.session_id = session_id
            self.news.set()


class Job(Struct, frozen=True, kw_only=True):
    """One attempt, ready to start: all expressions are evaluated."""

    claim: Claim
    task: FlowTask
    env: Mapping[str, str]
    cwd: Path
    output_path: str
    log: AttemptLog
    cost_file: CostFile
    place: Place | None = None
    """The worktree that it works in."""
    worktree: Worktree | None = None
    """The same, when it is there."""
    answers: Mapping[str, str] = {}
    """By question: what people have answered to earlier attempts."""
    occasion: Occasion = Occasion()
    """Of an agent: what former attempts, or a person after them, have left to say."""
    dropped_subtasks: tuple[str, ...] = ()
    """Of an agent: those that its last attempt had added when it broke off."""
    progress: Progress | None = None
    """Of an agent: what it says about itself."""
    agent: AgentProfile | None = None
    """The agent of the task, if pointsman.toml defines it."""
    session_usage: Usage = NO_USAGE
    """Of an agent: what earlier attempts have used in the session that it continues."""
    prices: Mapping[str, Price] = {}
    """By model: what its tokens cost."""
    lease: Lease = ENDLESS
    tool: ToolProfile | None = None
    has_budget: bool = False
    """Whether the task, its run or its tenant has a budget."""
    ends_by: float | None = None
    """When its run reaches `run_timeout`, by the boot clock."""
    run_timeout: float | None = None
    prepared_at: float = 0.0
    """Seconds since 1970: this attempt did not write older files."""
    stdout_wanted: bool = False
    grace_seconds: float = 10.0

    @property
    def stem(self) -> str:
        """What the names of all files of the attempt begin with."""
        return self.output_path.removesuffix(OUTPUT_SUFFIX)

    @property
    def offered(self) -> dict[str, str]:
        """Arguments for functions that have parameters of these names."""
        given = {"answer": self.claim.answer, "comment": self.claim.comment}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def expected_exit_codes(self) -> frozenset[int]:
        return frozenset(self.task.expected_exit_codes)


class Running(Protocol):
    """Work in progress."""

    @property
    def pid(self) -> int | None:
        """None for work without a process of its own."""
        ...

    @property
    def started_ticks(self) -> int:
        """When the process started: with the pid, this identifies it."""
        ...

    @property
    def last_output_at(self) -> float:
        """By the monotonic clock; the start time before the first output."""
        ...

    async def wait(self) -> Ending: ...

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM (or the like), and kill it after the grace period; `wait` returns the ending."""
        ...

    def kill(self) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


async def wait_for(running: Running, job: Job, seconds: float, started: Callable[[Running], bool]) -> Ending:
    """The end of a job that may take so long; `started` is called with its process, and returns whether that may continue."""
    if not started(running):
        running.kill()
    try:
        async with asyncio.timeout(seconds):
            return await running.wait()
    except TimeoutError:
        await running.stop(job.grace_seconds)
        return Ending("stopped", message=f"did not finish within {seconds:g} seconds")
    except asyncio.CancelledError:
        running.kill()
        raise
    finally:
        job.log.close()


class Runner(Protocol):
    """Runs the tasks of one kind; a worker makes one when it claims the first of them."""

    task_model: ClassVar[type[FlowTask]]
    """The keys of the kind."""

    def __init__(self, world: World, directory: Path) -> None:
        """`directory` is the project."""
        ...

    async def start(self, job: Job) -> Running:
        """Start the work. If that fails, `wait` of the result says why.

        The lease was certain when this was called. A runner that does anything slow before the work begins calls
        `job.lease.check()` right before that, and lets the exception pass: then the worker asks, and starts it again. The same
        holds for an OSError that says that the machine has no process, descriptor or memory left.
        """
        ...

    def close(self) -> None:
        """Release what the runner holds; the worker ends."""
        ...


class Runners:
    """The runners of a worker, by kind."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world, self._directory = world, directory
        self._runners: dict[str, Runner] = {}

    def of(self, task: FlowTask) -> Runner:
        """The runner of a task."""
        kind = task.kind or ""
        if kind not in self._runners:
            found = cast("type[Runner] | None", find_runner(kind))
            if found is None:
                raise RunnerUnusable("The task has no key that selects a runner.")
            self._runners[kind] = found(self._world, self._directory)
        return self._runners[kind]

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()


def inherit_environment(environ: Mapping[str, str], pass_env: Iterable[str]) -> dict[str, str]:
    """The part of the worker's environment that every task inherits."""
    patterns = [*INHERITED, *pass_env]
    return {name: value for name, value in environ.items() if any(fnmatch.fnmatchcase(name, each) for each in patterns)}


def build_environment(
    inherited: Mapping[str, str],
    claim: Claim,
    *,
    named: Mapping[str, str],
    output_path: str,
    cost_path: str,
    log_dir: str,
    worker_id: str,
) -> dict[str, str]:
    """The environment of an attempt: inherited variables, those of flow and task, and those that identify it."""
    stem = output_path.removesuffix(OUTPUT_SUFFIX)
    said = {"POINTSMAN_ANSWER": claim.answer, "POINTSMAN_COMMENT": claim.comment, TRACEPARENT: claim.traceparent}
    if claim.answer is not None:
        said["POINTSMAN_ANSWERS"] = stem + ANSWERS_SUFFIX
    return {
        **inherited,
        **named,
        "POINTSMAN_RUN_ID": claim.run_id,
        "POINTSMAN_TASK_ID": claim.task_id,
        "POINTSMAN_TASK_NAME": claim.name,
        "POINTSMAN_ATTEMPT": str(claim.epoch),
        "POINTSMAN_EPOCH": str(claim.epoch),
        "POINTSMAN_OUTPUT": output_path,
        "POINTSMAN_COST": cost_path,
        "POINTSMAN_LOG_DIR": log_dir,
        "POINTSMAN_ARTIFACTS": stem + ARTIFACTS_SUFFIX,
        "POINTSMAN_WORKER_ID": worker_id,
        "POINTSMAN_SESSION": find_session(claim),
        "POINTSMAN_QUESTION": stem + QUESTION_SUFFIX,
        "POINTSMAN_SUBTASKS": stem + SUBTASKS_SUFFIX,
        **{name: value for name, value in said.items() if value is not None},
    }


def find_session(claim: Claim) -> str:
    """The session that an attempt continues, or a new one."""
    return claim.session_id or invent_session(claim.task_id, claim.epoch)


def read_output(path: str | Path) -> tuple[Any, str | None]:
    """The JSON in an output file (None if there is none), and what is wrong with it."""
    content, problem = read_file(path)
    return (None, problem) if content is None else parse_output(content, str(path))


def read_file(path: str | Path) -> tuple[bytes | None, str | None]:
    """What an attempt has left in a file (None if nothing), up to one byte more than is allowed; or why it cannot be read."""
    try:
        # Neither a named pipe in the place of the file may block the worker, nor a link lead it to another file.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, f"its output {path} is not a file"
            content = file.read(OUTPUT_BYTES + 1)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"its output {path} cannot be read: {error.strerror}"
    return (content, None) if content.strip() else (None, None)


def parse_output(content: bytes, origin: str) -> tuple[Any, str | None]:
    """The value of a JSON text, and what is wrong with it."""
    if len(content) > OUTPUT_BYTES:
        size = f"larger than {OUTPUT_BYTES:,} bytes"
        return None, f"its output ({origin}) is {size}; write large results to a file and output its path"
    try:
        return _decode(content.decode("utf-8")), None
    except (ValueError, RecursionError) as error:
        beginning = content[:80].decode("utf-8", "replace")
        return None, f"its output ({origin}) is not JSON: {error}; it begins with {beginning!r}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not valid JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).decode

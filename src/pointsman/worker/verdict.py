"""The verdict on an attempt: how its work ended, compared with what the task expects."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from pointsman.engine.questions import Question
from pointsman.engine.submit import NewTask
from pointsman.kernel.grammar import format_duration
from pointsman.worker.left_files import read_question
from pointsman.worker.resources import LackKind
from pointsman.worker.runner import QUESTION_SUFFIX, Ending, Job, parse_output, read_output

LONGEST_MESSAGE = 20_000
CLOCK_SECONDS = 1.0
"""How much the modification time of a file may lag behind the clock."""
Stop = Literal["lost", "killed", "interrupted", "overspent", "canceled", "timeout", "stall", "run timeout"] | LackKind
"""Why the worker stopped the work: the lease was lost, a person killed or stopped the worker, the budget is exceeded (the
engine knows), the task was canceled, the attempt took too long, it wrote nothing for too long, its run took too long, or the
worker has run out of something.
"""


class Completed(Struct, frozen=True):
    """The work succeeded."""

    output: dict[str, Any]
    exit_code: int | None = None
    subtasks: tuple[NewTask, ...] = ()
    """Added by the work."""


class Asked(Struct, frozen=True):
    """The work needs an answer of a person before it can continue."""

    question: Question
    exit_code: int | None = None


class Checked(Struct, frozen=True):
    """The work succeeded, and its checks have run."""

    failures: tuple[str, ...]
    retryable: bool


class Failed(Struct, frozen=True):
    message: str
    retryable: bool
    exit_code: int | None = None


class Expired(Struct, frozen=True):
    """The attempt or its run took too long, or it wrote nothing for too long."""

    message: str
    retryable: bool


class Canceled(Struct, frozen=True):
    """The task was canceled, and its process has ended."""


class Skipped(Struct, frozen=True):
    """A condition excludes the task."""

    reason: str


class FanOut(Struct, frozen=True):
    """The task has a subtask for each item."""

    subtasks: tuple[NewTask, ...]


class Interrupted(Struct, frozen=True):
    """The process has ended, or could not be started: the task waits for another attempt."""

    why: str
    counts: bool = False
    """It counts as a reclaim: the task may be what its worker has run out of something for."""


class Limited(Struct, frozen=True):
    """The account of an agent has reached its usage limit: the task waits until then, and nothing is counted."""

    until: datetime
    message: str
    exit_code: int | None = None


class Overspent(Struct, frozen=True):
    """An agent has stopped itself at the budget that it was given."""

    message: str
    exit_code: int | None = None


class Nothing(Struct, frozen=True):
    """Nothing to report: the attempt no longer holds its task, or the engine knows already."""

    why: str = "lost its lease"


Verdict = (
    Completed | Asked | Checked | Failed | Expired | Canceled | Skipped | FanOut | Interrupted | Limited | Overspent | Nothing
)


def judge(job: Job, ending: Ending, stop: Stop | None) -> Verdict:
    """Judge an attempt that has ended by itself, or that the worker has stopped."""
    task = job.task
    match stop:
        case "lost":
            return Nothing()
        case "overspent":
            return Nothing(stop)
        case "killed" | "interrupted" | "out of processes":
            return Interrupted(stop)
        case "out of memory" | "out of disk space":
            return Interrupted(stop, counts=True)
        case "canceled":
            return Canceled()
        case "timeout":
            message = f"It was stopped after {format_duration(task.timeout or 0)}, its timeout"
            return Expired(_with_response(message, ending), is_retried(job, stop))
        case "stall":
            message = f"It was stopped after {format_duration(task.stall_timeout or 0)} without output"
            return Expired(_with_response(message, ending), is_retried(job, stop))
        case "run timeout":
            message = f"It was stopped because its run reached its timeout of {format_duration(job.run_timeout or 0)}"
            return Expired(_with_response(message, ending), retryable=False)
        case None:
            return _judge_end(job, ending)


def _with_response(message: str, ending: Ending) -> str:
    """Work that cannot be killed may still run."""
    return f"{message}, and {ending.message}." if ending.kind == "interrupted" else f"{message}."


def clean(message: str) -> str:
    """Text that every database accepts: without NUL and invalid UTF-8, and not too long."""
    text = message.encode("utf-8", "replace").decode().replace("\0", "�")
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def is_retried(job: Job, reason: str | int) -> bool:
    """Whether the task is retried after this; by default, after everything."""
    return job.task.retry_on is None or reason in job.task.retry_on


def _judge_end(job: Job, ending: Ending) -> Completed | Asked | Failed | Limited | Overspent:
    if ending.limit and ending.limit.until:
        return Limited(ending.limit.until, ending.limit.message, ending.exit_code)
    if ending.is_overspent:
        return Overspent(ending.message, ending.exit_code)
    if not ending.as_expected:
        reasons: tuple[str | int | None, ...] = ("signal",) if ending.kind == "signaled" else ("failure", ending.exit_code)
        retryable = ending.retryable and any(is_retried(job, reason) for reason in reasons if reason is not None)
        return Failed(_with_last_line(job, ending.message), retryable, ending.exit_code)
    question, problem = read_question(job.stem + QUESTION_SUFFIX, job.task.expects)
    if problem:
        return Failed(f"It ended, but {problem}", retryable=False, exit_code=ending.exit_code)
    if question is not None:
        return Asked(question, ending.exit_code)
    outputs, problem = _read_outputs(job, ending)
    if problem:
        return Failed(f"It succeeded, but {problem}", is_retried(job, "failure"), ending.exit_code)
    return Completed({"outputs": outputs, "tail": job.log.tail()}, ending.exit_code)


def _with_last_line(job: Job, message: str) -> str:
    """The last line of output is usually the reason; an exception has it in its message already."""
    last_line = job.log.last_line()
    return f"{message} – {last_line}" if last_line and last_line not in message else message


def _read_outputs(job: Job, ending: Ending) -> tuple[Any, str | None]:
    """The outputs of a task, or what is wrong with them."""
    declared = job.task.outputs
    if declared is None:
        return ending.output, ending.output_problem
    if declared.from_ == "stdout":
        return parse_output(ending.stdout or b"", "stdout")
    path = Path(job.cwd, declared.file or "")
    try:
        is_stale = path.stat().st_mtime + CLOCK_SECONDS < job.prepared_at
    except FileNotFoundError:
        return None, f"it did not write its outputs to {path}"
    except OSError as error:
        return None, f"its outputs {path} cannot be read: {error.strerror}"
    return (None, f"it did not write its outputs to {path}: the file there is older") if is_stale else read_output(path)

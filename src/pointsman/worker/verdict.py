"""What an attempt comes to: how its work ended, held against what the task expects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pointsman.engine.submit import NewTask
from pointsman.kernel.grammar import format_duration
from pointsman.worker.runner import Ending, Job, parse_output, read_output

LONGEST_MESSAGE = 20_000
CLOCK_SECONDS = 1.0
"""The time of a file may be so much behind."""
Stop = Literal["lost", "killed", "overspent", "called off", "timeout", "stall", "end of its run"]
"""Why the worker ended some work: it no longer counts, the worker ends, it spent too much (as the engine knows), it was called
off, it took or was silent too long.
"""


@dataclass(frozen=True, slots=True)
class Completed:
    """The work is done."""

    output: dict[str, Any]
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """The work was done and reported, and then looked at."""

    failures: tuple[str, ...]
    retryable: bool


@dataclass(frozen=True, slots=True)
class Failed:
    message: str
    retryable: bool
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """It took too long, or was silent for too long."""

    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Canceled:
    """It was called off, and its process has ended."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """It is not to be done."""

    reason: str


@dataclass(frozen=True, slots=True)
class Spread:
    """It is to be done once for each item."""

    items: tuple[NewTask, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to be said about it, because it no longer counts, or the engine knows already."""

    why: str = "no longer counts"


Verdict = Completed | Checked | Failed | Expired | Canceled | Skipped | Spread | Nothing


def judge(job: Job, ending: Ending, stop: Stop | None) -> Verdict:
    """One attempt that has ended, by itself or because the worker wanted it to."""
    task = job.task
    match stop:
        case "lost":
            return Nothing()
        case "killed" | "overspent":
            return Nothing(stop)
        case "called off":
            return Canceled()
        case "timeout":
            message = f"It was {_ended(job)} after {format_duration(task.timeout or 0)}, its timeout{_and_then(job, ending)}."
            return Expired(message, is_retried(job, stop))
        case "stall":
            limit = format_duration(task.stall_timeout or 0)
            return Expired(
                f"It was {_ended(job)} after {limit} without any output{_and_then(job, ending)}.", is_retried(job, stop)
            )
        case "end of its run":
            limit = format_duration(job.run_timeout or 0)
            message = f"It was {_ended(job)} when its run had taken {limit}, the timeout of the run{_and_then(job, ending)}."
            return Expired(message, retryable=False)
        case None:
            return _judge_end(job, ending)


def _ended(job: Job) -> str:
    """Nobody can end a thread from outside."""
    return "asked to end" if job.task.mode == "thread" else "ended"


def _and_then(job: Job, ending: Ending) -> str:
    return f", and {ending.message}" if job.task.mode == "thread" else ""


def clean(message: str) -> str:
    """Text that any database takes: what is no UTF-8, and NUL, is replaced, and there is an end to it."""
    text = message.encode("utf-8", "replace").decode().replace("\0", "�")
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def is_retried(job: Job, reason: str | int) -> bool:
    """Whether the task is to be tried again after this; when it does not say, after anything."""
    return job.task.retry_on is None or reason in job.task.retry_on


def _judge_end(job: Job, ending: Ending) -> Completed | Failed:
    if not ending.as_expected:
        reasons: tuple[str | int | None, ...] = ("signal",) if ending.kind == "signaled" else ("failure", ending.exit_code)
        retryable = ending.retryable and any(is_retried(job, reason) for reason in reasons if reason is not None)
        return Failed(_with_last_words(job, ending.message), retryable, ending.exit_code)
    outputs, problem = _read_outputs(job, ending)
    if problem:
        return Failed(f"It ended well, but {problem}", is_retried(job, "failure"), ending.exit_code)
    return Completed({"outputs": outputs, "tail": job.log.tail()}, ending.exit_code)


def _with_last_words(job: Job, message: str) -> str:
    """The last line that it said is mostly the reason; an exception says it in its message, too."""
    last_line = job.log.last_line()
    return f"{message} – {last_line}" if last_line and last_line not in message else message


def _read_outputs(job: Job, ending: Ending) -> tuple[Any, str | None]:
    """The JSON that a task leaves for others, or what is wrong with it."""
    declared = job.task.outputs
    if declared is None:
        return ending.output, ending.output_problem
    if declared.from_ == "stdout":
        return parse_output(ending.stdout or b"", "stdout")
    path = Path(job.cwd, declared.file or "")
    try:
        is_stale = path.stat().st_mtime + CLOCK_SECONDS < job.prepared_at
    except FileNotFoundError:
        return None, f"it did not write its outputs to {path}, as it should"
    except OSError as error:
        return None, f"its outputs {path} cannot be read: {error.strerror}"
    return (None, f"it did not write its outputs to {path}: what is there is older") if is_stale else read_output(path)

"""Every exception that Pointsman raises on purpose.

    PointsmanError
    ├── LifecycleError
    │   ├── LifecycleInvalid      a lifecycle file breaks a rule; carries every finding
    │   ├── LifecycleUnreadable   the file cannot be opened or is not text
    │   ├── SyntaxProblem         a line of it cannot be read; the loader turns it into a finding
    │   └── UnknownName           no lifecycle, machine or state of that name
    ├── FlowError
    │   ├── FlowInvalid           a flow file breaks a rule; carries every finding
    │   ├── FlowUnreadable        the file cannot be opened or is not text
    │   └── ExpressionFailed      an expression cannot be read, or has no value here
    ├── SettingsInvalid           a setting is unknown or wrong; carries every finding
    ├── TransitionRefused         the machine does not allow the move; carries the refusal
    ├── LogUnreadable             the event log cannot be opened or read
    ├── RequestError
    │   ├── RequestInvalid        a request breaks a rule; carries every problem with its path
    │   ├── NotFound              no run, task, worker or breaker of that id
    │   ├── NothingYet            nothing has been run here so far
    │   ├── KeyReused             an idempotency key came back with another request
    │   ├── LeaseLost             an attempt is over; its process must end, and nothing of it counts
    │   ├── WorkerUnavailable     a worker that may not claim asked for work
    │   └── CircuitOpen           the breaker of a tool lets nothing through
    ├── StoreError
    │   ├── StoreUnusable         there is no database to be had there; says what is there instead
    │   ├── StoreTooNew           a newer version of Pointsman has written this database
    │   ├── StoreUnavailable      the database does not answer
    │   │   └── OutcomeUnknown    it went away during a commit, and could not be asked what became of it
    │   ├── StoreBusy             somebody else holds the database for longer than we wait
    │   ├── StoreFull             there is no room to write
    │   ├── Overloaded            more operations wait for the writer than it takes; says when to try again
    │   ├── LawBroken             the database refused a change that no rule allows
    │   └── Conflict              somebody else changed a row meanwhile; tried again, never seen from outside
    └── EngineClosed              asked after the engine was closed

Messages are written for the person who has to act on them: what was wrong, what was expected, what to do now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

__all__ = [
    "CircuitOpen",
    "Conflict",
    "EngineClosed",
    "ExpressionFailed",
    "Finding",
    "FlowError",
    "FlowInvalid",
    "FlowUnreadable",
    "KeyReused",
    "LawBroken",
    "LeaseLost",
    "LifecycleError",
    "LifecycleInvalid",
    "LifecycleUnreadable",
    "LogUnreadable",
    "NotFound",
    "NothingYet",
    "OutcomeUnknown",
    "Overloaded",
    "Place",
    "PointsmanError",
    "Problem",
    "RequestError",
    "RequestInvalid",
    "SettingsInvalid",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreTooNew",
    "StoreUnavailable",
    "StoreUnusable",
    "SyntaxProblem",
    "TransitionRefused",
    "UnknownName",
    "WorkerUnavailable",
    "nearest",
    "suggest",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a file; lines and columns count from 1, and are 0 for what has none: a flag, a variable."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong in a file, and what to do about it."""

    rule: str
    place: Place
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.rule}]\n    {self.advice}"


class Explained(Protocol):
    """Anything that says, as a sentence, why it is so."""

    @property
    def message(self) -> str: ...


class PointsmanError(Exception):
    """The root: catch this to catch everything that Pointsman refuses."""


class LifecycleError(PointsmanError):
    """Something is wrong with a lifecycle or the way it was asked for."""


class LifecycleInvalid(LifecycleError):
    """A lifecycle file breaks at least one rule; `findings` has all of them."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


class LifecycleUnreadable(LifecycleError):
    """A lifecycle file cannot be opened, or does not hold text."""


class SyntaxProblem(LifecycleError):
    """A line does not follow the grammar; never leaves the loader, which makes a finding of it."""

    def __init__(self, place: Place, expected: str) -> None:
        super().__init__(f"{place}: expected {expected}")
        self.place = place
        self.expected = expected


class UnknownName(LifecycleError):
    """Nothing is known under this name; `nearest` has what may have been meant."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        self.nearest = nearest(name, self.known)
        super().__init__(f"There is no {what} called '{name}'. {suggest(name, self.known)}")


class FlowError(PointsmanError):
    """Something is wrong with a flow."""


class FlowInvalid(FlowError):
    """A flow breaks at least one rule; `findings` has all of them."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


class FlowUnreadable(FlowError):
    """A flow file cannot be opened, or does not hold text."""


class ExpressionFailed(FlowError):
    """An expression is not one, or has no value with what is known where it stands."""


class SettingsInvalid(PointsmanError):
    """At least one setting is unknown or has a value that it cannot have; `findings` has all of them."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


class TransitionRefused(PointsmanError):
    """The machine does not allow the move; `refusal` says which case it is and what is allowed."""

    def __init__(self, refusal: Explained) -> None:
        self.refusal = refusal
        super().__init__(refusal.message)


class LogUnreadable(PointsmanError):
    """An event log cannot be opened or read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a request: where, what, and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class RequestError(PointsmanError):
    """What was asked for cannot be done; nothing has changed."""


class RequestInvalid(RequestError):
    """A request breaks at least one rule; `problems` has all of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotFound(RequestError):
    """There is nothing of that id, or it belongs to somebody else."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"There is no {kind} '{name}'. Check the id; an id of another tenant is not found either.")


class NothingYet(RequestError):
    """There is no database here, or no run in it."""

    def __init__(self, where: str = "here") -> None:
        super().__init__(f"There are no runs {where} yet. Start one: pointsman run flow.yaml")


class KeyReused(RequestError):
    """An idempotency key was used before, for another request."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"The idempotency key '{key}' was used for another request. Use a new key for a new request.")


class LeaseLost(RequestError):
    """The attempt no longer holds its task: end its process, and report nothing more of it."""

    def __init__(self, task_id: str, epoch: int, why: str) -> None:
        self.task_id = task_id
        self.epoch = epoch
        super().__init__(f"Attempt {epoch} of {task_id} no longer counts: {why}. End its process; nothing was changed.")


class WorkerUnavailable(RequestError):
    """A worker asked for work in a state in which it may have none."""

    def __init__(self, worker_id: str, state: str) -> None:
        self.worker_id = worker_id
        self.state = state
        super().__init__(f"Worker {worker_id} is {state} and may not claim. Resume it, let it recover, or register a new one.")


class CircuitOpen(RequestError):
    """The breaker of a tool is open."""

    def __init__(self, tool: str, seconds: float) -> None:
        self.tool = tool
        self.retry_in_seconds = max(0, int(seconds + 0.999))
        super().__init__(f"{tool} circuit is open, retry in {self.retry_in_seconds} seconds")


class StoreError(PointsmanError):
    """Something is wrong with the database, not with the request."""


class StoreUnusable(StoreError):
    """What the URL leads to is not a database of ours, and cannot become one."""


class StoreTooNew(StoreError):
    """The database was written by a newer version of Pointsman."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or went away."""


class OutcomeUnknown(StoreUnavailable):
    """The database went away during a commit: what was asked may have been done."""


class StoreBusy(StoreError):
    """Another process holds the database."""


class StoreFull(StoreError):
    """The disk is full."""


class Overloaded(StoreError):
    """More operations wait for the writer than it takes."""

    def __init__(self, queue_length: int, retry_after_seconds: float) -> None:
        super().__init__(
            f"{queue_length:,} operations wait to be written, and no more are taken. "
            f"Try again in {retry_after_seconds:.1f} seconds."
        )
        self.retry_after_seconds = retry_after_seconds


class LawBroken(StoreError):
    """The database refused a change."""


class Conflict(StoreError):
    """A row was changed by somebody else between reading and writing."""


class EngineClosed(PointsmanError):
    """The engine was closed before the answer was there."""


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence that helps somebody who wrote a name that nobody knows."""
    known = tuple(known)
    if close := nearest(name, known):
        return f"Did you mean {' or '.join(close)}?"
    return f"Known: {', '.join(known)}." if known else "None is declared."


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known names that a person who typed `name` may have meant, best first."""
    return _nearest(name, tuple(known))


@lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    from difflib import get_close_matches  # only ever needed on the way to an error message

    folded = {candidate.lower(): candidate for candidate in known}
    if name.lower() in folded:
        return (folded[name.lower()],)
    close = get_close_matches(name.lower(), folded, n=3, cutoff=0.6)
    inside = [candidate for candidate in folded if len(name) > 2 and name.lower() in candidate and candidate not in close]
    return tuple(folded[candidate] for candidate in (*close, *inside)[:3])

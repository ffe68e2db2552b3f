"""Every exception that Pointsman raises on purpose.

    PointsmanError
    ├── FindingsError             the base of LifecycleInvalid, FlowInvalid and SettingsInvalid
    ├── LifecycleError
    │   ├── LifecycleInvalid      a lifecycle file breaks a rule; carries every finding
    │   ├── LifecycleUnreadable   the file cannot be opened or is not text
    │   └── UnknownName           no lifecycle, machine or state has that name
    ├── FlowError
    │   ├── FlowInvalid           a flow breaks a rule; carries every finding
    │   ├── FlowUnreadable        the file cannot be opened or is not text
    │   ├── ExpressionFailed      an expression cannot be parsed or evaluated
    │   └── RunnerUnusable        an installed runner cannot be loaded
    ├── SettingsInvalid           a setting is unknown or invalid; carries every finding
    ├── TransitionRefused         the machine does not allow the transition; carries the refusal
    ├── LeaseUncertain            work may not begin before a heartbeat has confirmed its attempt; handled by the worker
    ├── DeliveryFailed            a notification did not reach its target; handled by the outbox
    ├── LogUnreadable             the event log cannot be opened or read
    ├── WorktreeError             a worktree cannot be made, merged or removed, and trying again does not help
    │   ├── MergeStopped          a person has to do something first; carries the files it is about
    │   └── GitFailed             a git command failed; carries what it said
    ├── RequestError
    │   ├── RequestInvalid        a request breaks a rule; carries every problem with its path
    │   ├── NotFound              no run, task, worker or breaker has that id
    │   ├── AlreadyExists         something else has that name
    │   ├── NothingYet            no run has been submitted here
    │   ├── KeyReused             an idempotency key was used for another request
    │   ├── KeyEnded              an API key is revoked or has expired, and gets no new secret
    │   ├── AuthenticationFailed  a text is not that of a valid API key; never says why
    │   ├── NotAllowed            the flow leaves this decision to other people
    │   ├── NotYourWorker         the worker belongs to another API key
    │   ├── QuotaExceeded         the tenant has too much unfinished work for more; names the quota
    │   ├── LeaseLost             the attempt is over; its process must end, and its reports are ignored
    │   ├── WorkerUnavailable     the worker may not claim in its state
    │   ├── CircuitOpen           the breaker of a tool is open
    │   └── CallRefused           an HTTP request cannot be read, or may not be made; names the type of the problem
    ├── StoreError
    │   ├── StoreUnusable         the URL does not lead to a usable database
    │   ├── StoreGone             the file of the database was deleted or replaced while it was in use
    │   ├── StoreTooNew           a newer version of Pointsman has written this database
    │   ├── StoreUnavailable      the database does not answer
    │   │   ├── OutcomeUnknown    the connection broke during a commit, and the result could not be looked up
    │   │   └── ServerUnavailable the server does not answer; says whether the request may have been carried out
    │   ├── StoreBusy             another process has locked the database for too long
    │   ├── StoreFull             the disk is full
    │   ├── ServerFailed          the server has a defect, or answers with something else than it should
    │   ├── Overloaded            too many operations wait for the writer; says when to retry
    │   ├── LawBroken             the database refused a change that no rule allows
    │   └── Conflict              another process changed a row; retried internally
    │       └── Unforeseen        a transaction was asked for something else than was foreseen; retried internally
    └── EngineClosed              the engine was closed before it answered

A message tells the user what happened, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

__all__ = [
    "AlreadyExists",
    "AuthenticationFailed",
    "CallRefused",
    "CircuitOpen",
    "Conflict",
    "EngineClosed",
    "ExpressionFailed",
    "Finding",
    "FindingsError",
    "FlowError",
    "FlowInvalid",
    "FlowUnreadable",
    "GitFailed",
    "KeyEnded",
    "KeyReused",
    "LawBroken",
    "LeaseLost",
    "LeaseUncertain",
    "LifecycleError",
    "LifecycleInvalid",
    "LifecycleUnreadable",
    "LogUnreadable",
    "MergeStopped",
    "NotAllowed",
    "NotFound",
    "NotYourWorker",
    "NothingYet",
    "OutcomeUnknown",
    "Overloaded",
    "Place",
    "PointsmanError",
    "Problem",
    "QuotaExceeded",
    "RequestError",
    "RequestInvalid",
    "RunnerUnusable",
    "ServerFailed",
    "ServerUnavailable",
    "SettingsInvalid",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreGone",
    "StoreTooNew",
    "StoreUnavailable",
    "StoreUnusable",
    "TransitionRefused",
    "Unforeseen",
    "UnknownName",
    "WorkerUnavailable",
    "WorktreeError",
    "nearest",
    "suggest",
]


class Place(Struct, frozen=True):
    """A position in a file; lines and columns start at 1. Both are 0 for a flag, a variable or the path of a value."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Finding(Struct, frozen=True):
    """A rule that a file breaks, where, and what to do about it."""

    rule: str
    place: Place
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.rule}]\n    {self.advice}"


class Explained(Protocol):
    """Anything with a message for people."""

    @property
    def message(self) -> str: ...


class PointsmanError(Exception):
    """The base class of every error that Pointsman raises on purpose."""

    options: str = ""
    """What the commands that it advises need to find the same project."""


class FindingsError(PointsmanError):
    """Carries every finding."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


class LifecycleError(PointsmanError):
    """A lifecycle is invalid or does not exist."""


class LifecycleInvalid(LifecycleError, FindingsError):
    """A lifecycle file breaks at least one rule; `findings` has all of them."""


class LifecycleUnreadable(LifecycleError):
    """A lifecycle file cannot be opened or is not text."""


class UnknownName(LifecycleError):
    """No such name; `nearest` has similar ones."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        self.nearest = nearest(name, self.known)
        super().__init__(f"There is no {what} called '{name}'. {suggest(name, self.known)}")


class FlowError(PointsmanError):
    """A flow is invalid or cannot be read."""


class FlowInvalid(FlowError, FindingsError):
    """A flow breaks at least one rule; `findings` has all of them."""


class FlowUnreadable(FlowError):
    """A flow file cannot be opened or is not text."""


class ExpressionFailed(FlowError):
    """An expression cannot be parsed, or cannot be evaluated here."""


class RunnerUnusable(FlowError):
    """An installed runner cannot be loaded."""


class SettingsInvalid(FindingsError):
    """At least one setting is unknown or invalid; `findings` has all of them."""


class TransitionRefused(PointsmanError):
    """The machine does not allow the transition; `refusal` has the reason and what is allowed."""

    def __init__(self, refusal: Explained) -> None:
        self.refusal = refusal
        super().__init__(refusal.message)


class WorktreeError(PointsmanError):
    """A worktree cannot be made, merged or removed."""


class MergeStopped(WorktreeError):
    """A person has to do something before the work can be merged. Nothing was changed, and the worktree is kept."""

    def __init__(self, message: str, files: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.files = tuple(files)


class GitFailed(WorktreeError):
    """A git command failed."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


class DeliveryFailed(PointsmanError):
    """A notification did not reach its target."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        """`is_final`: another try would fail for the same reason."""
        super().__init__(message)
        self.is_final = is_final


class LogUnreadable(PointsmanError):
    """An event log cannot be opened or read."""


class Problem(Struct, frozen=True):
    """One invalid value of a request, by its path."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class RequestError(PointsmanError):
    """The request was refused; nothing has changed."""


class RequestInvalid(RequestError):
    """A request breaks at least one rule; `problems` has all of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotFound(RequestError):
    """Nothing has that id, or it belongs to another tenant."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"There is no {kind} '{name}'. Check the id; an id of another tenant is not found either.")


class AlreadyExists(RequestError):
    """A name is taken."""

    def __init__(self, kind: str, name: str, advice: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"There is a {kind} '{name}' already. {advice}")


class NothingYet(RequestError):
    """There is no database here, or no run in it."""

    def __init__(self, where: str = "here", options: str = "") -> None:
        super().__init__(f"There are no runs {where} yet. Start one: pointsman run flow.yaml{options}")


class KeyReused(RequestError):
    """An idempotency key was used before, for another request."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"The idempotency key '{key}' was used for another request. Use a new key for a new request.")


class KeyEnded(RequestError):
    """An API key is revoked or has expired."""


class AuthenticationFailed(RequestError):
    """A text is not that of a valid API key.

    The message is always the same: it does not say whether the key is mistyped, unknown, revoked or expired.
    """

    def __init__(self) -> None:
        super().__init__("The API key is not valid. Check that it is complete, or ask for a new one: pointsman key create")


class NotAllowed(RequestError):
    """A person decides what the flow leaves to others."""


class NotYourWorker(RequestError):
    """An API key acts only as the workers that it has registered."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"Worker {worker_id} was not registered with this API key, and only its own key acts as it. "
            "Register a worker with this key."
        )


class QuotaExceeded(RequestError):
    """More work than the tenant may have unfinished at once."""

    def __init__(self, tenant: str, quota: str, what: str, *, limit: int, used: int, wanted: int) -> None:
        self.quota = quota
        self.limit = limit
        self.used = used
        self.wanted = wanted
        option = quota.replace("_", "-")
        super().__init__(
            f"The tenant {tenant} may have {limit:,} {what}, and has {used:,}: {wanted:,} more do not fit. "
            f"Wait until some have ended, or let an operator raise it: pointsman tenant set {tenant} --{option} N"
        )


class LeaseLost(RequestError):
    """The attempt no longer holds its task: end its process and report nothing more."""

    def __init__(self, task_id: str, epoch: int, why: str) -> None:
        self.task_id = task_id
        self.epoch = epoch
        super().__init__(f"Attempt {epoch} of {task_id} no longer counts: {why}. End its process; nothing was changed.")


class LeaseUncertain(PointsmanError):
    """The worker was frozen, or too slow: another one may have the task of this attempt."""


class WorkerUnavailable(RequestError):
    """A worker tried to claim in a state in which it may not."""

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


class CallRefused(RequestError):
    """An HTTP request cannot be read, or may not be made; `problem` is a type of `server/problems.py`.

    In a client, `status` and `title` are those of the answer.
    """

    status = 0
    title = ""

    def __init__(
        self, problem: str, message: str, *, headers: Mapping[str, str] | None = None, members: Mapping[str, str] | None = None
    ) -> None:
        self.problem = problem
        self.headers = dict(headers or {})
        self.members = dict(members or {})
        super().__init__(message)


class StoreError(PointsmanError):
    """The database failed, not the request."""


class StoreUnusable(StoreError):
    """The URL does not lead to a usable database."""


class StoreGone(StoreError):
    """The file of the database was deleted or replaced while it was in use: what it has stored is lost."""


class StoreTooNew(StoreError):
    """The database was written by a newer version of Pointsman."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or the connection broke."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke during a commit, which may have succeeded."""


class ServerUnavailable(StoreUnavailable):
    """The server cannot be reached, is stopping, or broke the connection.

    A change without an idempotency key that may have been carried out is `OutcomeUnknown` instead.
    """

    def __init__(self, message: str, *, may_have_happened: bool = False, retry_after_seconds: float | None = None) -> None:
        """`may_have_happened`: a change was sent; with its idempotency key, it can be sent again."""
        super().__init__(message)
        self.may_have_happened = may_have_happened
        self.retry_after_seconds = retry_after_seconds


class ServerFailed(StoreError):
    """The server has a defect, which its log has under `reference`; or something else answered in its place."""

    reference: str | None = None


class StoreBusy(StoreError):
    """Another process has locked the database."""


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
    """Another process changed a row between reading and writing."""


class Unforeseen(Conflict):
    """A transaction was asked for something else than was foreseen. Roll it back, and begin one without foresight."""

    def __init__(self, right: int | None) -> None:
        super().__init__("A transaction was asked for something else than was foreseen.")
        self.right = right
        """How many questions were foreseen rightly; None if all were, and more was asked."""


class EngineClosed(PointsmanError):
    """The engine was closed before it answered."""


MOST_LISTED = 100


def suggest(name: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown name, as a sentence."""
    known = tuple(known)
    if close := nearest(name, known):
        return f"Did you mean {' or '.join(close)}?"
    more = f", and {len(known) - MOST_LISTED:,} more" if len(known) > MOST_LISTED else ""
    return f"Known: {', '.join(known[:MOST_LISTED])}{more}." if known else "None is declared."


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known names that are similar to `name`, best first."""
    return _nearest(name, tuple(known))


@lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    from difflib import get_close_matches  # imported late: only error messages need it

    folded = {candidate.lower(): candidate for candidate in known}
    if name.lower() in folded:
        return (folded[name.lower()],)
    close = get_close_matches(name.lower(), folded, n=3, cutoff=0.6)
    inside = [candidate for candidate in folded if len(name) > 2 and name.lower() in candidate and candidate not in close]
    return tuple(folded[candidate] for candidate in (*close, *inside)[:3])

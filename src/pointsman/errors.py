"""Every exception that Pointsman raises on purpose.

    PointsmanError
    ├── LifecycleError
    │   ├── LifecycleInvalid      a lifecycle file breaks a rule; carries every finding
    │   ├── LifecycleUnreadable   the file cannot be opened or is not text
    │   ├── SyntaxProblem         a line of it cannot be read; the loader turns it into a finding
    │   └── UnknownName           no lifecycle, machine or state of that name
    ├── TransitionRefused         the machine does not allow the move; carries the refusal
    └── LogUnreadable             the event log cannot be opened or read

Messages are written for the person who has to act on them: what was wrong, what was expected, what to do now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

__all__ = [
    "Finding",
    "LifecycleError",
    "LifecycleInvalid",
    "LifecycleUnreadable",
    "LogUnreadable",
    "Place",
    "PointsmanError",
    "SyntaxProblem",
    "TransitionRefused",
    "UnknownName",
    "nearest",
    "suggest",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


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


class TransitionRefused(PointsmanError):
    """The machine does not allow the move; `refusal` says which case it is and what is allowed."""

    def __init__(self, refusal: Explained) -> None:
        self.refusal = refusal
        super().__init__(refusal.message)


class LogUnreadable(PointsmanError):
    """An event log cannot be opened or read."""


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

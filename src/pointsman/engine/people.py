"""Who may say what: a person does not speak for a worker, nor for the engine."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.engine.work import Work
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Kind
from pointsman.store.rows import Entity

PEOPLE: Mapping[Kind, tuple[str, ...]] = {
    Kind.TASK: ("approve", "accept", "answer", "reject", "cancel", "skip", "reset", "retry", "resume", "ready"),
    Kind.RUN: ("cancel", "pause", "resume", "retry", "ready", "checks_passed", "checks_failed"),
    Kind.WORKER: ("pause", "resume", "drain", "terminate", "assign", "fail", "expire"),
    Kind.BREAKER: ("reset",),
}
DECISIONS = ("approve", "accept", "answer", "reject")
"""Of those about a task: what a run waits for. When it has ended, nobody waits any more."""
AGAIN = ("retry", "reset", "resume")
"""Of those about a task: another try of what has failed, the first that its machine takes."""
WORKERS = (
    *("complete", "fail", "expire", "cancel", "ask", "overspend", "skip", "checks_passed", "checks_failed"),
    *("interrupt", "give_back"),
)


def list_signals(kind: Kind) -> str:
    """The description of a field that takes one of them."""
    return f"One of: {', '.join(PEOPLE[kind])}."


def check_person(work: Work, row: Entity, kind: Kind, signal: str) -> None:
    """Refuse a signal, or a trigger that stands for one, that only the engine or the worker of an attempt may send."""
    allowed = PEOPLE[kind]
    if signal in allowed:
        return
    pulled = [move.signal for move in work.machine(row).transitions if signal in (move.signal, move.trigger)]
    if any(name not in allowed for name in pulled) or signal in work.machine(row).fallbacks:
        message = f"'{signal}' follows from what happens to the {kind.value}; people may say: {', '.join(allowed)}."
        raise RequestInvalid([Problem("signal", message)])


def check_worker(signal: str) -> None:
    if signal not in WORKERS:
        raise RequestInvalid([Problem("signal", f"'{signal}' is not for a worker to say. It may say: {', '.join(WORKERS)}.")])

"""Runs of any shape, drawn by lot: flat ones, graphs, subtasks, gates, reviews, tools, budgets, limits of every kind."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace
from tests.system.simulation.promises import PERSONS

from pointsman.engine.operation import validate
from pointsman.engine.operations.runs import SubmitRun
from pointsman.engine.policy import Backoff
from pointsman.engine.questions import Question, write_question
from pointsman.engine.submit import MAX_DEPTH, NewRun, NewTask
from pointsman.errors import RequestInvalid
from pointsman.lifecycles import SHIPPED

OnExpiry = Literal["approve", "reject", "cancel", "skip"] | None
TENANTS = ("acme", "globex")
TOOLS = ("compiler", "model")
WORDS = ("gpu", "linux")
DIFFERENCES: tuple[dict[str, Any], ...] = ({}, {}, {}, {"checks": True}, {"review": True}, {"budget_usd": Decimal(3)})
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"max_concurrent": 1},
    {"max_concurrent": 2},
    {"rate_count": 1, "rate_seconds": 2.0},
    {"rate_count": 3, "rate_seconds": 6.0},
    {"max_concurrent": 2, "rate_count": 2, "rate_seconds": 3.0},
)
"""What a tool may bear."""
WITH_GATES = ("standard", "approval", "supervised")
ON_EXPIRY: dict[str, tuple[OnExpiry, ...]] = {"approval": (None, "approve", "cancel")}
"""What a gate may get that nobody decides in time, where that is not everything."""
WITH_SUBTASKS = ("standard", "supervised", "agent")
"""Lifecycles whose tasks wait for their subtasks."""
WITH_PEOPLE = ("standard", "standard", "approval", "agent")
"""Lifecycles whose tasks wait for people, those with more ways to do so more often."""
WITH_CHECKS = ("standard", "orchestrated", "supervised")
"""Lifecycles whose tasks have a state for their checks."""
WITH_FINAL_CHECKS = ("standard", "orchestrated", "agent")


class Asked(NamedTuple):
    """A question that an attempt may ask, and what is an answer to it."""

    question: Question
    answers: tuple[str, ...]
    """Of these people choose; with none, they answer in words of their own."""
    fits: Callable[[str], bool]

    @property
    def stored(self) -> str:
        return write_question(self.question)


QUESTIONS = {
    asked.question.text: asked
    for asked in (
        Asked(Question("which?"), (), bool),
        Asked(
            Question("red or blue?", choices=("red", "blue"), default="red"),
            ("red", "blue", "green"),
            {"red", "blue"}.__contains__,
        ),
        Asked(Question("how many?", schema={"type": "integer"}), ("1", "2", "some"), str.isdigit),
    )
}
"""By text. Some of the answers that people give do not fit."""


def draw_run(chance: Random, name: str, *, is_peopled: bool) -> NewRun:
    luck = chance.random()
    if luck < (0.8 if is_peopled else 0.1):
        return _draw_peoples_run(chance, name)
    if luck < (0.9 if is_peopled else 0.45):
        return _draw_plain_run(chance, name)
    lifecycle = chance.choice((*SHIPPED, "standard", "approval"))
    tasks = draw_tasks(chance, chance.choice((1, 2, 3, 3, 4, 6)), lifecycle, known=())
    later = chance.randint(1, 2) if chance.random() < 0.1 else 0
    new = NewRun(
        name=name,
        tasks=tasks,
        lifecycle=lifecycle,
        ordered=chance.random() < 0.15,
        task_count=len(tasks) + later if later else None,
        autostart=chance.random() > 0.05,
        worker_count=chance.choice((1, 1, 2)),
        checks=chance.random() < 0.2,
        final_task=NewTask(name="checks") if lifecycle in WITH_FINAL_CHECKS and chance.random() < 0.2 else None,
        max_retries=chance.choice((0, 0, 1, 2)),
        backoff=_draw_backoff(chance),
        timeout_seconds=chance.choice((None, None, None, None, 60.0, 200.0)),
        budget_usd=chance.choice((None, None, Decimal(2), Decimal(5))),
    )
    try:
        validate(SubmitRun(new))
    except RequestInvalid:  # an order and a graph may contradict each other, and gates have no subtasks
        return replace(new, tasks=tuple(replace(task, depends_on=(), parent=None) for task in tasks))
    return new


def _draw_plain_run(chance: Random, name: str) -> NewRun:
    """Tasks that ask for nothing are alike, and go together; among them may be some that differ in one thing only."""
    lifecycle = chance.choice(("standard", "standard", *SHIPPED))
    differ = chance.random() < 0.5
    tasks = [NewTask(name=f"t{number}-plain") for number in range(chance.randint(5, 12))]
    if differ:
        tasks = [replace(task, **chance.choice(DIFFERENCES)) for task in tasks]
    if chance.random() < 0.5:
        waits_for = tuple(task.name for task in tasks if chance.random() < 0.5)
        tasks.append(NewTask(name="t-last", depends_on=waits_for))
    return NewRun(name=name, tasks=tuple(tasks), lifecycle=lifecycle)


def _draw_peoples_run(chance: Random, name: str) -> NewRun:
    """Few tasks, all of which wait for people: gates, reviews, and tasks with subtasks down to the last level."""
    lifecycle = chance.choice(WITH_PEOPLE)
    tasks: list[NewTask] = []
    for number in range(chance.randint(1, 3)):
        task = NewTask(name=f"p{number}", review=chance.random() < 0.6, max_retries=1, backoff=Backoff(base_seconds=0.0))
        if lifecycle in WITH_GATES and chance.random() < 0.6:
            task = _draw_gate(chance, task.name, lifecycle)
        tasks.append(task)
    if lifecycle in WITH_SUBTASKS and not tasks[-1].gate:
        tasks += _draw_chain(chance, tasks[-1].name, lifecycle)
    if chance.random() < 0.5:
        tasks.append(NewTask(name="last", depends_on=(tasks[0].name,)))
    return NewRun(name=name, tasks=tuple(tasks), lifecycle=lifecycle, autostart=chance.random() < 0.7)


def _draw_chain(chance: Random, parent: str, lifecycle: str) -> list[NewTask]:
    """Subtasks, each of the one before; the last may be a gate."""
    names = [parent, *(f"{parent}-{depth}" for depth in range(chance.randint(1, MAX_DEPTH)))]
    chain = [NewTask(name=name, parent=before, critical=chance.random() < 0.7) for before, name in pairwise(names)]
    if lifecycle in WITH_GATES and chance.random() < 0.6:
        chain[-1] = _draw_gate(chance, names[-1], lifecycle, parent=names[-2])
    return chain


def _draw_gate(chance: Random, name: str, lifecycle: str, **options: Any) -> NewTask:
    approvers = tuple(sorted(chance.sample(PERSONS, k=2))) if chance.random() < 0.4 else ()
    return NewTask(
        name=name,
        gate=True,
        approval_seconds=chance.choice((None, 5.0, 12.0)),
        approvers=approvers,
        quorum=1 if lifecycle == "approval" else chance.choice((1, 2, len(approvers or PERSONS))),
        on_expiry=chance.choice(ON_EXPIRY.get(lifecycle, (None, "approve", "reject", "cancel", "skip"))),
        **options,
    )


def draw_tasks(chance: Random, number: int, lifecycle: str, known: tuple[str, ...]) -> tuple[NewTask, ...]:
    """Tasks that may depend on, and be parts of, those before them and those that are known."""
    tasks: list[NewTask] = []
    names = list(known)
    for _ in range(number):
        name = f"t{len(names)}-{chance.randrange(1000)}"
        tasks.append(_draw_task(chance, name, names, lifecycle))
        names.append(name)
    return tuple(tasks)


def _draw_task(chance: Random, name: str, before: list[str], lifecycle: str) -> NewTask:
    options: dict[str, Any] = {}
    if before and chance.random() < 0.5:
        options["depends_on"] = tuple(sorted(set(chance.choices(before, k=chance.choice((1, 1, 2, 3))))))
    elif before and chance.random() < 0.25:
        options["parent"] = chance.choice(before)  # which may be a gate: that is refused
    if lifecycle in WITH_GATES and chance.random() < 0.12:
        return _draw_gate(chance, name, lifecycle, **options)
    if chance.random() < 0.4:
        options["tool"] = chance.choice(TOOLS)
        options["on_open_circuit"] = chance.choice(("wait", "wait", "fail"))
    if chance.random() < 0.2:
        options["capabilities"] = (chance.choice(WORDS),)
    return NewTask(
        name=name,
        priority=chance.choice((0, 0, 0, 1, -1)),
        critical=chance.random() > 0.25,
        review=chance.random() < 0.12,
        checks=chance.random() < 0.2,
        max_retries=chance.choice((0, 0, 1, 2, 3)),
        max_attempts=chance.choice((None, None, None, 1, 2, 4)),
        max_reclaims=chance.choice((0, 1, 3, 3)),
        backoff=_draw_backoff(chance),
        retry_on_failure=chance.random() > 0.1,
        timeout_seconds=chance.choice((None, None, None, 4.0, 15.0)),
        reclaim_after_seconds=chance.choice((None, None, None, None, 12.0)),
        budget_usd=chance.choice((None, None, Decimal("0.5"), Decimal(1), Decimal(3))),
        **options,
    )


def _draw_backoff(chance: Random) -> Backoff:
    return Backoff(base_seconds=chance.choice((0.0, 1.0, 5.0)), factor=2.0, max_seconds=20.0, jitter=chance.choice((0.0, 0.5)))

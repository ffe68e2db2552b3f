"""Runs of any shape, drawn by lot: flat ones, graphs, subtasks_of, templates, gates, tools, budgets, limits of every kind."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

from msgspec.structs import replace

from pointsman.engine.operation import validate
from pointsman.engine.operations.runs import SubmitRun
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import RequestInvalid
from pointsman.lifecycles import SHIPPED

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


def draw_run(chance: Random, name: str) -> NewRun:
    if chance.random() < 0.4:
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
        max_retries=chance.choice((0, 0, 1, 2)),
        backoff=_draw_backoff(chance),
        timeout_seconds=chance.choice((None, None, None, None, 60.0, 200.0)),
        budget_usd=chance.choice((None, None, Decimal(2), Decimal(5))),
    )
    try:
        validate(SubmitRun(new))
    except RequestInvalid:  # an order and a graph may contradict each other
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
        options["parent"] = chance.choice(before)
    if lifecycle in WITH_GATES and chance.random() < 0.12:
        return NewTask(name=name, gate=True, approval_seconds=chance.choice((None, None, 20.0)), **options)
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

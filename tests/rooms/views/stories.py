"""Stories: what happens to a run of each lifecycle, one action after the other, until every state has been visited.

claim           a worker takes the next task (the worker registers with the first claim)
complete, fail  the worker reports on the task that it holds; `fail` can be retried, `break` cannot
ask, overspend, expire, checks_passed, checks_failed   what else it reports
lose            the worker is terminated
wait            retry delays pass
run X           a person sends X to the run
NAME X          a person sends X to the task NAME
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.kernel.machine import Kind, Phase
from pointsman.lifecycles import load_lifecycle
from pointsman.store.rows import Run

SOON = Backoff(base_seconds=0.02, factor=1, jitter=0)
LEASE_SECONDS = 3600.0
"""Nobody sends heartbeats here."""
WORK = {"run": "true"}


def work(name: str, **options: Any) -> NewTask:
    return NewTask(name=name, payload=WORK, backoff=SOON, **options)


TWO = (work("a", max_retries=1), work("b", depends_on=("a",)))


@dataclass(frozen=True)
class Story:
    lifecycle: str
    actions: str
    tasks: tuple[NewTask, ...] = TWO
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def new_run(self) -> NewRun:
        return NewRun(name="nightly", tasks=self.tasks, lifecycle=self.lifecycle, backoff=SOON, **self.options)

    def __str__(self) -> str:
        return f"{self.lifecycle}: {self.actions}"


def tell(lifecycle: str, *stories: str, tasks: tuple[NewTask, ...] = TWO, **options: Any) -> Iterator[Story]:
    return (Story(lifecycle, actions, tasks, options) for actions in stories)


GATED = (work("a"), NewTask(name="gate", gate=True, depends_on=("a",)), work("b", depends_on=("gate",)))
LAST_GATED = (work("a"), NewTask(name="gate", gate=True, depends_on=("a",)))
FAMILY = (work("whole"), work("part", parent="whole"))

STORIES = [
    *tell(
        "standard",
        "claim, complete, claim, complete",
        "claim, fail, wait, claim, fail, run retry, claim, complete, claim, complete",
        "claim, break, a skip, claim, complete",
        "claim, break, a retry, claim, lose",
        "claim, expire, wait, claim, expire, a resume",
        "claim, overspend",
        "run pause, run resume, claim, run pause, complete, run resume, run cancel",
        "claim, ask, a answer, claim, complete",
        "claim, run cancel",
        "a cancel",
        "a skip, b skip",
    ),
    *tell(
        "standard",
        "claim, complete, checks_failed, wait, claim, complete, checks_passed",
        tasks=(work("a", checks=True, max_retries=1),),
    ),
    *tell("standard", "claim, complete, a reject, claim, complete, a accept", tasks=(work("a", review=True),)),
    *tell("standard", "claim, complete, gate approve, claim, complete", "claim, complete, gate reject, gate skip", tasks=GATED),
    *tell("standard", "claim, complete, gate approve", "claim, complete, gate cancel", tasks=LAST_GATED),
    *tell("standard", "claim, complete, claim, complete", "claim, complete, claim, break, part retry", tasks=FAMILY),
    *tell("standard", "claim, complete, claim, break, part skip", "claim, complete, claim, break, whole skip", tasks=FAMILY),
    *tell("standard", "claim, claim, break, break, a skip, b skip", tasks=(work("a"), work("b"))),
    *tell("standard", "claim, break, claim, complete", tasks=(work("a", critical=False), work("b"))),
    *tell(
        "standard", "claim, complete, claim, complete, run checks_failed, wait, run checks_passed", checks=True, max_retries=1
    ),
    *tell("standard", "claim, break, wait, claim, complete, claim, break", max_retries=1),
    *tell("standard", "a ready, claim", autostart=False),
    *tell(
        "supervised",
        "claim, complete, claim, complete",
        "claim, break",
        "claim, run cancel",
        "run cancel",
        "claim, lose",
    ),
    *tell("supervised", "claim", worker_count=2),
    *tell("supervised", "run cancel", task_count=5),
    *tell(
        "pipeline",
        "claim, complete, claim, complete",
        "claim, fail, wait, claim, fail",
        "claim, break, a skip",
        "claim, run cancel",
        "claim, a cancel",
    ),
    *tell(
        "pipeline",
        "claim, break, a skip, wait, claim, complete",
        "claim, break, a reset, wait",
        "claim, break, wait",
        max_retries=1,
    ),
    *tell("pipeline", "claim, complete, claim, break, wait, claim, break, b skip", max_retries=1),
    *tell(
        "orchestrated",
        "claim, complete, checks_passed, claim, complete, checks_passed, run checks_passed",
        "claim, complete, checks_passed, claim, complete, checks_passed, run checks_failed",
        "claim, complete, checks_passed, claim, complete, checks_passed, run cancel",
        "claim, complete, run cancel",
        checks=True,
    ),
    *tell(
        "orchestrated",
        "claim, complete, checks_passed, claim, complete, checks_passed",
        "claim, fail, wait, claim, fail",
        "claim, complete, checks_failed",
        "claim, lose",
        "claim, run cancel",
        "a cancel",
    ),
    *tell("orchestrated", "run cancel", task_count=5),
    *tell(
        "approval",
        "claim, complete, gate approve, claim, complete",
        "claim, complete, run cancel",
        "claim, complete, gate cancel",
        "claim, break",
        "claim, lose",
        "run cancel",
        tasks=GATED,
    ),
    *tell("approval", "claim, fail, wait, claim, fail", tasks=(work("a", max_attempts=2),)),
    *tell(
        "agent",
        "claim, complete, a accept, claim, complete, b accept",
        "claim, complete, a reject, claim, complete",
        "claim, ask, a answer, claim, complete",
        "claim, break, a retry, claim, overspend",
        "claim, expire, a resume, claim, break",
        "claim, a cancel",
        "claim, run cancel",
        "a cancel",
        "claim, lose",
    ),
    *tell("agent", "a ready, claim", autostart=False),
]


async def act(engine: Engine, run: Run, action: str) -> None:
    """Let one thing happen."""
    who, _, signal = action.partition(" ")
    if not signal:
        await WORKERS[action](engine)
    elif who == "run":
        await engine.signal_run(run.id, signal)
    else:
        task = next(task for task in await engine.list_tasks(run.id) if task.name == who)
        await engine.signal_task(task.id, signal, answer="yes" if signal == "answer" else None)


async def _claim(engine: Engine) -> None:
    workers = [worker for worker in await engine.list_workers() if worker.phase != Phase.DONE]
    worker = workers[0] if workers else await engine.register_worker("box", lease_seconds=LEASE_SECONDS, max_concurrent_tasks=2)
    await engine.claim_tasks(worker.id, 1)


async def _held(engine: Engine) -> tuple[str, int]:
    (task, *_) = await engine.list_held_tasks()
    return task.id, task.epoch


def _report(signal: str, **details: Any) -> Callable[[Engine], Awaitable[None]]:
    async def report(engine: Engine) -> None:
        await engine.report_attempt(*await _held(engine), signal, AttemptReport(session_id="s", **details))

    return report


async def _lose(engine: Engine) -> None:
    for worker in await engine.list_workers():
        if worker.phase != Phase.DONE:
            await engine.signal_worker(worker.id, "terminate", ended=True)


async def _wait(engine: Engine) -> None:
    await asyncio.sleep(0.05)
    while await engine.tend():
        pass


WORKERS: dict[str, Callable[[Engine], Awaitable[None]]] = {
    "claim": _claim,
    "complete": _report("complete"),
    "fail": _report("fail", error="boom"),
    "break": _report("fail", error="boom", retryable=False),
    "ask": _report("ask", question="Which one?"),
    "lose": _lose,
    "wait": _wait,
    **{signal: _report(signal) for signal in ("overspend", "expire", "checks_passed", "checks_failed")},
}


async def describe(engine: Engine, run: Run) -> str:
    """Everything that makes a difference to what can be done."""
    run = await engine.get_run(run.id)
    workers = sum(worker.phase != Phase.DONE for worker in await engine.list_workers())
    tasks = [
        f"{task.name}={task.state}{'!' * (task.cancel_requested_at is not None)}{'?' * task.lease_expired}"
        for task in await engine.list_tasks(run.id)
    ]
    return f"{run.lifecycle} {run.state} workers={workers} {' '.join(tasks)}"


def states_of(lifecycle: str) -> dict[Kind, set[str]]:
    """The states of the machines for runs and tasks that a lifecycle declares itself."""
    machines = [machine for machine in load_lifecycle(lifecycle).machines if machine.kind in (Kind.RUN, Kind.TASK)]
    return {machine.kind: {state.name for state in machine.states} for machine in machines}


def split(actions: str) -> list[str]:
    return re.split(r",\s*", actions)

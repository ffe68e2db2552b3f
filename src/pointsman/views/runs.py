"""Runs: the latest ones, one with its tasks, and what keeps any of them waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from pointsman.engine.engine import TenantEngine
from pointsman.engine.filters import EVERY_RUN, RunFilter
from pointsman.engine.gates import EXPIRED
from pointsman.flows.results import describe_job
from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.rows import Run, Task, WaitingTask
from pointsman.views import steps
from pointsman.views.changes import describe_changes, describe_output
from pointsman.views.sources import NOT_BOUND, Fleet, RunRecords, load_fleet, load_machines, load_run
from pointsman.views.values import (
    NextStep,
    RunListing,
    RunSummary,
    RunView,
    RunWaiting,
    TaskView,
    Waiting,
    WaitingTasks,
    entity_fields,
    read_error,
    read_output,
)
from pointsman.views.waiting import explain_run, explain_task

ENGINE = "engine"
SKIP = "skip"
QUIET = ("cancel", "claim", "dependency", "retry_delay", "run_ended", "run_held", "run_paused", "slots_busy", "subtasks")
"""Reasons that pass by themselves, or that are said of the run."""
NONE_RAN: Mapping[int, float] = {}
Nested = TypeVar("Nested", Task, TaskView)


async def list_runs(
    engine: TenantEngine,
    limit: int,
    now: datetime,
    dead: Collection[str] = (),
    bound: Mapping[str, str] = NOT_BOUND,
    wanted: RunFilter = EVERY_RUN,
) -> list[RunListing]:
    """The latest runs, with their tasks counted; `dead` and `bound` as in `load_fleet`."""
    runs = await engine.list_runs(wanted, limit=limit)
    counts: dict[str, Counter[str]] = {run.id: Counter() for run in runs}
    moved: dict[str, datetime] = {}
    for run_id, phase, outcome, number, moved_at in await engine.count_tasks(list(counts)) if runs else ():
        counts[run_id].update({"total": number, phase: number} | ({outcome: number} if outcome else {}))
        moved[run_id] = max(moved.get(run_id, moved_at), moved_at)
    fleet, machines = await load_fleet(engine, now, dead, bound), await load_machines(engine, runs)
    names = ("total", *(phase.value for phase in Phase), *(outcome.value for outcome in Outcome))
    return [
        RunListing(
            **_run_fields(run),
            waiting=explain_run(RunRecords(run, (), machines, moved_at=moved.get(run.id)), fleet),
            tasks={name: counts[run.id][name] for name in names},
        )
        for run in runs
    ]


async def view_run(
    engine: TenantEngine, run_id: str, now: datetime, dead: Collection[str] = (), bound: Mapping[str, str] = NOT_BOUND
) -> RunView:
    """One run with everything that can be said of it; `dead` and `bound` as in `load_fleet`."""
    records = await load_run(engine, await engine.get_run(run_id))
    return make_run_view(records, await load_fleet(engine, now, dead, bound))


def make_run_view(records: RunRecords, fleet: Fleet) -> RunView:
    run = records.run
    blockers = records.blockers()
    waiting = [explain_task(task, records, fleet, blockers) for task in records.tasks]
    obstacle = steps.find_obstacle(records, fleet.now)
    return RunView(
        **_run_fields(run),
        tasks=tuple(
            make_task_view(
                task,
                why,
                attempt_seconds=_measure_attempts(task, records, fleet),
                failed_with_subtask=_failed_with_subtask(task, records),
                tail=describe_output(task, records) or None if why and why.kind == "review" else None,
                diff=describe_changes(task, records) or None if why and why.kind == "review" else None,
            )
            for task, why in zip(records.tasks, waiting, strict=True)
        ),
        task_description=describe_job(msgspec.json.decode(run.payload)),
        attended=bool(fleet.living(run.id)),
        waiting=explain_run(records, fleet),
        obstacle=obstacle,
        next_steps=tuple(steps.find_steps(records, fleet, waiting, obstacle)),
        as_of=fleet.now,
    )


def _measure_attempts(task: Task, records: RunRecords, fleet: Fleet) -> dict[int, float]:
    """By epoch: how many seconds each attempt ran, up to the last heartbeat of a worker that was lost."""
    ended = records.attempts.get(task.id, ())
    periods = {each.epoch: (each.started_at, fleet.last_seen_before_end(each)) for each in ended}
    if task.current_attempt is not None and task.attempt_started_at:
        periods[task.current_attempt] = (task.attempt_started_at, fleet.last_seen(task))
    if is_needless(task):
        periods.pop(task.epoch, None)
    return {epoch: max((end - start).total_seconds(), 0.0) for epoch, (start, end) in periods.items()}


def _failed_with_subtask(task: Task, records: RunRecords) -> bool:
    subtasks = records.subtasks.get(task.id, ())
    has_failed = any(subtask.critical and subtask.outcome == Outcome.FAILURE for subtask in subtasks)
    return has_failed and task.outcome == Outcome.FAILURE and records.was_told(task, "child_failed")


def is_needless(task: Task) -> bool:
    """Its last attempt did no work: the worker found that a condition excludes the task."""
    return task.trigger == SKIP and task.actor == task.attempt_worker_id


def make_task_view(
    task: Task,
    waiting: Waiting | None = None,
    *,
    attempt_seconds: Mapping[int, float] = NONE_RAN,
    failed_with_subtask: bool = False,
    tail: str | None = None,
    diff: str | None = None,
) -> TaskView:
    expired = task.is_gate and (task.reason or "").startswith(EXPIRED) and task.actor == ENGINE
    return TaskView(
        **entity_fields(task, task.name),
        run_id=task.run_id,
        parent_task_id=task.parent_task_id,
        depth=task.depth,
        has_subtasks=task.has_subtasks,
        critical=task.critical,
        expired=expired,
        skipped=task.trigger == SKIP,
        given_up=task.trigger == SKIP and task.actor == ENGINE and not expired,
        failed_with_subtask=failed_with_subtask,
        attempts=task.epoch - is_needless(task),
        took_seconds=sum(attempt_seconds.values()) if attempt_seconds else None,
        attempt_seconds=attempt_seconds,
        retry_count=task.retry_count,
        max_retries=task.max_retries,
        worker_id=task.worker_id,
        exit_code=task.attempt_exit_code,
        log_path=task.attempt_log_path,
        error=read_error(task.error),
        outputs=read_output(task).get("outputs"),
        tail=tail,
        diff=diff,
        cost_usd=task.cost_usd,
        cost_is_estimated=task.cost_is_estimated,
        tokens_in=task.tokens_in,
        tokens_out=task.tokens_out,
        waiting=waiting,
    )


def arrange(tasks: Sequence[Nested]) -> Iterator[Nested]:
    """Every task before its subtasks, and otherwise in the order of the run."""
    subtasks: dict[str | None, list[Nested]] = {}
    for task in tasks:
        subtasks.setdefault(task.parent_task_id, []).append(task)
    waiting = subtasks.get(None, [])[::-1]
    while waiting:
        task = waiting.pop()
        yield task
        waiting += subtasks.get(task.id, [])[::-1]


def make_run_summary(run: Run) -> RunSummary:
    return RunSummary(**_run_fields(run))


async def list_steps(engine: TenantEngine, run_id: str, task_id: str | None, now: datetime) -> list[NextStep]:
    """What can be done about one task, or about the run as a whole."""
    records = await load_run(engine, await engine.get_run(run_id))
    obstacle = steps.find_obstacle(records, now)
    task = _find(records.tasks, task_id)
    found = steps.steps_of_task(task, records, now) if task else steps.steps_of_run(records, now)
    return [step for step in found if not obstacle or step.operation not in steps.MENDING]


async def foresee_failure(engine: TenantEngine, run_id: str, task_id: str | None, signal: str, now: datetime) -> str | None:
    """Why a run that has ended would fail again if a person sent this signal to it or to a task; None where it may succeed."""
    records = await load_run(engine, await engine.get_run(run_id))
    return steps.foresee_failure(records, signal, _find(records.tasks, task_id), now)


def _find(tasks: Sequence[Task], task_id: str | None) -> Task | None:
    return next((task for task in tasks if task.id == task_id), None)


async def list_waiting(
    engine: TenantEngine,
    now: datetime,
    dead: Collection[str] = (),
    bound: Mapping[str, str] = NOT_BOUND,
    *,
    run_id: str | None = None,
    limit: int = 100,
) -> list[RunWaiting]:
    """What keeps runs waiting, or only one of them, and what would not pass by itself.

    Tasks that wait for the same reason are one row, so this is cheap enough to be asked again and again.
    """
    waiting = await engine.list_waiting_tasks(run_id=run_id, limit=limit)
    runs = await engine.find_runs(sorted({task.run_id for task in waiting} | ({run_id} if run_id else set())))
    if not runs:
        return []
    fleet = await load_fleet(engine, now, dead, bound)
    machines = await load_machines(engine, (*runs, *waiting))
    return [_explain_run(run, [task for task in waiting if task.run_id == run.id], machines, fleet) for run in runs]


def _explain_run(run: Run, tasks: Sequence[WaitingTask], machines: Any, fleet: Fleet) -> RunWaiting:
    records = RunRecords(run, tasks, machines)
    explained = [(task, explain_task(task, records, fleet, {})) for task in tasks]
    return RunWaiting(
        run_id=run.id,
        name=run.name,
        waiting=explain_run(records, fleet),
        tasks=tuple(_group(explained)),
        next_steps=tuple(steps.worker_steps(records, fleet, [why for _, why in explained])),
    )


def _group(explained: Iterable[tuple[WaitingTask, Waiting | None]]) -> Iterator[WaitingTasks]:
    groups: dict[str, WaitingTasks] = {}
    for task, why in explained:
        if why and why.kind not in QUIET:
            known = groups.get(why.reason)
            name, number = (known.name, known.count) if known else (task.name, 0)
            groups[why.reason] = WaitingTasks(name, number + task.alike, why)
    yield from groups.values()


def read_tags(run: Run) -> tuple[str, ...]:
    return msgspec.json.decode(run.tags, type=tuple[str, ...])


def _run_fields(run: Run) -> dict[str, Any]:
    return {
        **entity_fields(run, run.name),
        "lifecycle": run.lifecycle,
        "tags": read_tags(run),
        "error": read_error(run.error),
        "output": None if run.output is None else msgspec.json.decode(run.output),
        "retry_count": run.retry_count,
        "budget_usd": run.budget_usd,
        "spent_usd": run.spent_usd,
        "cost_is_estimated": run.cost_is_estimated,
        "tokens_in": run.tokens_in,
        "tokens_out": run.tokens_out,
    }

"""Submissions: what a person may ask for, every problem with it at once, and the rows that it becomes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pointsman.engine.machines import allocates
from pointsman.engine.policy import Backoff, Policy, write_policy
from pointsman.engine.work import Cause, Work
from pointsman.errors import Problem, RequestInvalid, suggest
from pointsman.kernel.machine import Kind, Lifecycle, Machine
from pointsman.lifecycles import DEFAULT
from pointsman.store.rows import Dependency, Run, Task

MAX_DEPTH = 5
MAX_WORKERS = 10
MAX_TASKS = 100_000
MAX_NAME = 200
MAX_PAYLOAD_BYTES = 1_048_576
MAX_SECONDS = 10 * 366 * 86_400.0
MAX_COUNT = 1_000_000
MAX_USD = 100_000_000


class NewTask(Struct, frozen=True, kw_only=True):
    """A task to be done."""

    name: str
    payload: Any = None
    """What a worker gets to see; any JSON up to a megabyte."""
    depends_on: tuple[str, ...] = ()
    parent: str | None = None
    """The name of the task that this one is a part of."""
    tool: str | None = None
    capabilities: tuple[str, ...] = ()
    priority: int = 0
    gate: bool = False
    critical: bool = True
    review: bool = False
    checks: bool = False
    max_retries: int = 0
    max_attempts: int | None = None
    max_reclaims: int = 3
    backoff: Backoff = Backoff()
    retry_on_failure: bool = True
    timeout_seconds: float | None = None
    reclaim_after_seconds: float | None = None
    approval_seconds: float | None = None
    on_open_circuit: Literal["wait", "fail"] = "wait"
    budget_usd: Decimal | None = None


class NewRun(Struct, frozen=True, kw_only=True):
    """A run of tasks to be carried through."""

    name: str
    tasks: tuple[NewTask, ...] = ()
    lifecycle: str = DEFAULT
    ordered: bool = False
    """Each task waits for the one before it."""
    task_count: int | None = None
    """How many tasks there will be, when more are added later; the run does not begin before they are all there."""
    autostart: bool = True
    payload: Any = None
    parent_run_id: str | None = None
    worker_count: int = 1
    checks: bool = False
    max_retries: int = 0
    backoff: Backoff = Backoff()
    timeout_seconds: float | None = None
    budget_usd: Decimal | None = None


def check_run(new: NewRun) -> None:
    """Every problem of a run that can be seen without the database."""
    problems = [*_check_name("name", new.name), *check_tasks(new.tasks, known={}), *_check_payload("payload", new.payload)]
    problems += _check_count("worker_count", new.worker_count, 1, MAX_WORKERS)
    problems += _check_count("max_retries", new.max_retries, 0)
    problems += _check_backoff("backoff", new.backoff)
    problems += _check_seconds("timeout_seconds", new.timeout_seconds)
    problems += _check_usd("budget_usd", new.budget_usd)
    if new.task_count is not None and new.task_count < len(new.tasks):
        problems.append(Problem("task_count", f"{len(new.tasks)} tasks are given, but only {new.task_count} are announced."))
    if not new.tasks and not new.task_count:
        problems.append(
            Problem("tasks", "A run needs at least one task. Give one, or announce how many will come with task_count.")
        )
    if problems:
        raise RequestInvalid(problems)


def check_tasks(tasks: Sequence[NewTask], known: Mapping[str, int]) -> list[Problem]:
    """Every problem of a set of tasks; `known` are the tasks that are there already, by name, with their depths."""
    problems: list[Problem] = []
    if len(tasks) > MAX_TASKS:
        return [Problem("tasks", f"{len(tasks)} tasks are more than the {MAX_TASKS} that fit into one request. Split it up.")]
    names = dict(known)
    for index, task in enumerate(tasks):
        path = f"tasks[{index}]"
        problems += _check_name(f"{path}.name", task.name)
        if task.name in names:
            problems.append(Problem(f"{path}.name", f"There is another task called '{task.name}'. Names are unique in a run."))
        names[task.name] = 0
        problems += _check_task(path, task)
    for index, task in enumerate(tasks):
        for name in (*task.depends_on, *([task.parent] if task.parent is not None else [])):
            if name not in names:
                problems.append(Problem(f"tasks[{index}]", f"There is no task '{name}' in this run. {suggest(name, names)}"))
        if len(set(task.depends_on)) != len(task.depends_on):
            problems.append(Problem(f"tasks[{index}].depends_on", "The same task is named twice. Name it once."))
    if not problems:
        problems += _check_cycles(tasks)
    if not problems:
        problems += _check_depths(tasks, known)
    return problems


def _check_task(path: str, task: NewTask) -> Iterator[Problem]:
    yield from _check_payload(f"{path}.payload", task.payload)
    yield from _check_count(f"{path}.priority", task.priority, -MAX_COUNT)
    yield from _check_count(f"{path}.max_retries", task.max_retries, 0)
    yield from _check_count(f"{path}.max_reclaims", task.max_reclaims, 0)
    if task.max_attempts is not None:
        yield from _check_count(f"{path}.max_attempts", task.max_attempts, 1)
    for name in ("timeout_seconds", "reclaim_after_seconds", "approval_seconds"):
        yield from _check_seconds(f"{path}.{name}", getattr(task, name))
    yield from _check_backoff(f"{path}.backoff", task.backoff)
    yield from _check_usd(f"{path}.budget_usd", task.budget_usd)
    if task.tool is not None:
        yield from _check_name(f"{path}.tool", task.tool)
    for index, word in enumerate(task.capabilities):
        yield from _check_name(f"{path}.capabilities[{index}]", word)
    if task.on_open_circuit not in ("wait", "fail"):
        yield Problem(f"{path}.on_open_circuit", f"'{task.on_open_circuit}' is neither 'wait' nor 'fail'.")


def _check_cycles(tasks: Sequence[NewTask]) -> list[Problem]:
    """A task waits for what it depends on, and ends after its subtasks: neither may lead back to itself."""
    for relation, edges in (
        ("depends_on", {task.name: task.depends_on for task in tasks}),
        ("parent", {task.name: (task.parent,) for task in tasks if task.parent is not None}),
    ):
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            return [Problem("tasks", f"'{relation}' leads in a circle: {circle}. Remove one of these links.")]
    return []


def _check_depths(tasks: Sequence[NewTask], known: Mapping[str, int]) -> list[Problem]:
    depths = measure_depths(tasks, known)
    return [
        Problem(
            f"tasks[{index}].parent", f"'{task.name}' is at depth {depths[task.name]}; subtasks go no deeper than {MAX_DEPTH}."
        )
        for index, task in enumerate(tasks)
        if depths[task.name] > MAX_DEPTH
    ]


def measure_depths(tasks: Sequence[NewTask], known: Mapping[str, int]) -> dict[str, int]:
    parents = {task.name: task.parent for task in tasks}
    depths = dict(known)
    for task in tasks:
        line = [task.name]
        while line[-1] not in depths and (parent := parents[line[-1]]) is not None:
            line.append(parent)
        depth = depths.get(line[-1], 0)
        for generation, name in enumerate(reversed(line)):
            depths[name] = depth + generation
    return depths


def check_text(path: str, text: str, limit: int = MAX_PAYLOAD_BYTES) -> Iterator[Problem]:
    """What neither database could keep, or nobody could have meant."""
    if "\0" in text:
        yield Problem(path, "It contains a NUL character. Remove it.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        yield Problem(path, "It contains half of a surrogate pair and is no Unicode text. Repair its encoding.")
        return
    if size > limit:
        yield Problem(path, _too_large(size, limit))


def _too_large(size: int, limit: int) -> str:
    return f"It has {size} bytes, and {limit} are allowed. Keep large things in a file, and pass its path."


def _check_name(path: str, name: str) -> Iterator[Problem]:
    if not _is_text(name) or not name.strip():
        yield Problem(path, "It is empty. Give it a name.")
        return
    yield from check_text(path, name, MAX_NAME)


def _check_payload(path: str, payload: Any) -> Iterator[Problem]:
    try:
        encoded = msgspec.json.encode(payload)
    except RecursionError:
        yield Problem(path, "It is nested too deeply. Flatten it.")
    except (TypeError, ValueError, OverflowError) as error:
        yield Problem(path, f"It cannot be written as JSON: {error}.")
    else:
        if len(encoded) > MAX_PAYLOAD_BYTES:
            yield Problem(path, _too_large(len(encoded), MAX_PAYLOAD_BYTES))
        if _has_odd_number(payload):
            yield Problem(path, "It contains a number that JSON cannot hold (NaN or infinity).")


def _has_odd_number(value: Any) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(_has_odd_number(each) for each in value.values())
        case list() | tuple():
            return any(_has_odd_number(each) for each in value)
        case _:
            return False


def _check_count(path: str, number: int, low: int, high: int = MAX_COUNT) -> Iterator[Problem]:
    if not is_count(number, low, high):
        yield Problem(path, f"It is {number!r}, and must be a whole number from {low} to {high}.")


def _check_seconds(path: str, seconds: float | None) -> Iterator[Problem]:
    if seconds is not None and not is_duration(seconds):
        yield Problem(path, f"It is {seconds!r}, and must be a number of seconds above 0 and up to ten years.")


def _check_backoff(path: str, backoff: Backoff) -> Iterator[Problem]:
    for name, low, high in (
        ("base_seconds", 0, MAX_SECONDS),
        ("factor", 1, 1000),
        ("max_seconds", 0, MAX_SECONDS),
        ("jitter", 0, 10),
    ):
        value = getattr(backoff, name)
        if not low <= value <= high:
            yield Problem(f"{path}.{name}", f"It is {value!r}, and must be a number from {low} to {high:g}.")


def _check_usd(path: str, amount: Decimal | None) -> Iterator[Problem]:
    if amount is None:
        return
    if not is_amount(amount):
        yield Problem(path, f"It is {amount!r}, and must be an amount of dollars from 0 to 100 million, as a Decimal.")


# Types are promised by annotations only, and requests are written by people.


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def is_amount(value: object) -> bool:
    return isinstance(value, Decimal) and value.is_finite() and 0 <= value < MAX_USD


def is_count(value: object, low: int = 1, high: int = MAX_COUNT) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_SECONDS


def build_run(work: Work, new: NewRun, lifecycle: Lifecycle, tenant: str, cause: Cause) -> Run:
    """The row of a new run; a supervised job has a short id, as document 000 wants it."""
    machine = lifecycle.of_kind(Kind.RUN)
    with_workers = allocates(machine)
    depth = 0
    if new.parent_run_id is not None:
        parent = work.run(tenant, new.parent_run_id)
        depth = parent.depth + 1
        if depth > MAX_DEPTH:
            raise RequestInvalid(
                [Problem("parent_run_id", f"It would be at depth {depth}; runs go no deeper than {MAX_DEPTH}.")]
            )
    capabilities = tuple(sorted({word for task in new.tasks for word in task.capabilities}))
    policy = Policy(
        backoff=new.backoff,
        timeout_seconds=new.timeout_seconds,
        capabilities=capabilities if with_workers else (),
        autostart=new.autostart,
    )
    run = Run(
        id=work.world.ids.short("j") if with_workers else work.world.ids.new("run", work.now),
        tenant=tenant,
        machine_id=work.machines.number(machine),
        state=machine.initial.name,
        phase=machine.initial.phase.value,
        actor=cause.actor,
        reason=cause.reason,
        entered_at=work.now,
        created_at=work.now,
        name=new.name,
        lifecycle=lifecycle.name,
        parent_run_id=new.parent_run_id,
        depth=depth,
        worker_count=new.worker_count,
        allocates=with_workers,
        missing_tasks=(new.task_count or len(new.tasks)) - len(new.tasks),
        has_checks=new.checks,
        max_retries=new.max_retries,
        policy=write_policy(policy),
        budget_usd=new.budget_usd,
        payload=msgspec.json.encode(new.payload).decode(),
    )
    work.runs.add(run)
    if new.timeout_seconds is not None:
        work.set_timer(run, Kind.RUN, "deadline", work.now + timedelta(seconds=new.timeout_seconds), run.id)
    return run


def check_tools(work: Work, tenant: str, new: Sequence[NewTask]) -> None:
    """A tool that nobody declared has no breaker, and is most likely misspelt."""
    tools = {task.tool for task in new if task.tool is not None}
    if not tools:
        return
    work.load_breakers(tenant, tools)
    problems = []
    for index, task in enumerate(new):
        if task.tool is not None and work.breaker(tenant, task.tool) is None:
            known = [breaker.tool for breaker in work.transaction.list_breakers(tenant)]
            message = f"There is no tool '{task.tool}'. {suggest(task.tool, known)} Declare it first."
            problems.append(Problem(f"tasks[{index}].tool", message))
    if problems:
        raise RequestInvalid(problems)


def add_tasks(
    work: Work,
    run: Run,
    new: Sequence[NewTask],
    machine: Machine,
    cause: Cause,
    *,
    is_open: bool,
    ordered: bool,
    known: Mapping[str, str] = MappingProxyType({}),
) -> list[Task]:
    """The rows of new tasks in a run, with what they depend on; the tasks that it has already may be named, and are in hand."""
    depths = measure_depths(new, {name: work.tasks.rows[task_id].depth for name, task_id in known.items()})
    names = {**known} | {task.name: work.world.ids.new("task", work.now) for task in new}
    rows = []
    before: str | None = None
    for position, task in enumerate(new, start=len(known)):
        waits_for = {names[name] for name in task.depends_on}
        if ordered and before:
            waits_for.add(before)
        row = _build_task(work, run, task, machine, names, depths, position, is_open=is_open)
        row.actor, row.reason = cause.actor, cause.reason
        row.open_dependencies = sum(_is_open_dependency(work, task_id) for task_id in waits_for)
        details = {
            "run_id": run.id,
            "depends_on": sorted(waits_for),
            "critical": task.critical,
            "max_retries": task.max_retries,
        }
        row.metadata = msgspec.json.encode(details).decode()
        work.dependencies += [Dependency(row.id, other) for other in sorted(waits_for)]
        work.tasks.add(row)
        work.waiting.append(row.id)
        if row.parent_task_id:
            work.add_child(row.parent_task_id)
        before = row.id
        rows.append(row)
    work.unsettled_runs.add(run.id)
    return rows


def _is_open_dependency(work: Work, task_id: str) -> bool:
    row = work.tasks.rows.get(task_id)
    return row is None or row.outcome != "success"


def _build_task(
    work: Work,
    run: Run,
    new: NewTask,
    machine: Machine,
    names: Mapping[str, str],
    depths: Mapping[str, int],
    position: int,
    *,
    is_open: bool,
) -> Task:
    policy = Policy(
        backoff=new.backoff,
        timeout_seconds=new.timeout_seconds,
        reclaim_after_seconds=new.reclaim_after_seconds,
        approval_seconds=new.approval_seconds,
        retry_on_failure=new.retry_on_failure,
        on_open_circuit=new.on_open_circuit,
    )
    return Task(
        id=names[new.name],
        tenant=run.tenant,
        machine_id=work.machines.number(machine),
        state=machine.initial.name,
        phase=machine.initial.phase.value,
        entered_at=work.now,
        created_at=work.now,
        run_id=run.id,
        parent_task_id=names[new.parent] if new.parent else None,
        depth=depths[new.name],
        position=position,
        name=new.name,
        lane_id=_find_lane(work, run.tenant, new),
        priority=new.priority,
        is_gate=new.gate,
        critical=new.critical,
        review_wanted=new.review,
        has_checks=new.checks,
        allocated=run.allocates,
        run_open=is_open,
        max_attempts=new.max_attempts,
        max_retries=new.max_retries,
        max_reclaims=new.max_reclaims,
        policy=write_policy(policy),
        budget_usd=new.budget_usd,
        payload=msgspec.json.encode(new.payload).decode(),
    )


def _find_lane(work: Work, tenant: str, new: NewTask) -> int:
    capabilities = msgspec.json.encode(sorted(set(new.capabilities))).decode()
    fails_fast = new.on_open_circuit == "fail" and new.tool is not None
    for lane in (*work.lanes.values(), *work.new_lanes.values()):
        if (lane.tenant, lane.tool, lane.capabilities, lane.fails_fast) == (tenant, new.tool, capabilities, fails_fast):
            return lane.id
    lane = work.transaction.insert_lane(tenant, new.tool, capabilities, fails_fast=fails_fast)
    work.new_lanes[lane.id] = lane
    return lane.id

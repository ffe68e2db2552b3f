"""Submissions: what a person may ask for, every problem with it at once, and the rows that it becomes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Struct

from pointsman.engine import gates, runs
from pointsman.engine.checks import MAX_COUNT
from pointsman.engine.fields import Amount, Count, CountFromZero, ExitCode, Json, Name, RunId, Seconds, Words, whole
from pointsman.engine.machines import allocates
from pointsman.engine.policy import Backoff, Policy, name_workspace, read_policy, write_policy
from pointsman.engine.work import Cause, Work
from pointsman.errors import Problem, RequestInvalid, suggest
from pointsman.kernel.machine import Kind, Lifecycle, Machine, Phase, TaskDefaults
from pointsman.lifecycles import DEFAULT
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Dependency, Run, RunTag, Task, Use

MAX_DEPTH = 5
MAX_WORKERS = 10
MAX_TASKS = 100_000
MOST_SUGGESTIONS = 10
MAX_PAYLOADS_BYTES = 256 << 20
"""All payloads of one request: they are built, sent and committed together."""


TaskCount = Annotated[int, whole(1, MAX_TASKS)]


class NewTask(Struct, frozen=True, kw_only=True):
    """A task to be done."""

    name: Annotated[Name, "Unique in its run."]
    payload: Annotated[Json, "What the worker gets to see; any JSON up to a megabyte."] = None
    depends_on: Annotated[Words, "Names of the tasks that must succeed before it begins."] = ()
    parent: Annotated[Name | None, "The name of the task that this is a subtask of."] = None
    tool: Annotated[Name | None, "A declared tool, whose circuit breaker and limits apply."] = None
    capabilities: Annotated[Words, "What its worker must be able to do."] = ()
    priority: Annotated[int, whole(-MAX_COUNT), "Higher goes first."] = 0
    gate: Annotated[bool, "It waits for an approval, and no worker claims it."] = False
    critical: Annotated[bool, "Its failure fails the run."] = True
    review: Annotated[bool, "A person accepts or rejects its result."] = False
    checks: Annotated[bool, "Its worker checks the result and reports that, too."] = False
    auxiliary: Annotated[bool, "It only serves other tasks: under no lifecycle does a person review its result."] = False
    max_retries: Annotated[CountFromZero | None, "How often it is retried; by default, as its attempts allow."] = None
    max_attempts: Annotated[Count | None, "How many attempts it gets in all; by default, as its lifecycle says."] = None
    max_reclaims: Annotated[CountFromZero, "How often it is taken up again after its worker was lost."] = 3
    backoff: Annotated[Backoff, "How long it waits between retries."] = Backoff()
    retry_on_failure: Annotated[bool, "False: a failure is final."] = True
    expected_exit_codes: Annotated[Sequence[ExitCode], "The exit codes that mean success."] = (0,)
    timeout_seconds: Annotated[Seconds | None, "How long one attempt may take."] = None
    reclaim_after_seconds: Annotated[Seconds | None, "An older attempt may be taken over, whatever its worker says."] = None
    approval_seconds: Annotated[Seconds | None, "How long a gate waits for a person."] = None
    approvers: Annotated[Words, "Who may decide a gate; anybody, if empty."] = ()
    quorum: Annotated[Count, "How many different people have to approve a gate."] = 1
    self_approval: Annotated[bool, "Whether the person who submitted the run may approve a gate."] = True
    on_expiry: Annotated[
        Literal["approve", "reject", "cancel", "skip"] | None, "What happens to a gate that nobody decides in time."
    ] = None
    on_open_circuit: Annotated[Literal["wait", "fail"], "While the circuit of its tool is open."] = "wait"
    budget_usd: Annotated[Amount | None, "What it may spend, over all attempts."] = None


class NewRun(Struct, frozen=True, kw_only=True):
    """A run of tasks."""

    name: Annotated[Name, "What people call it."]
    tasks: Annotated[Sequence[NewTask], "Its tasks, in their order."] = ()
    lifecycle: Annotated[Name, "The lifecycle that it and its tasks follow."] = DEFAULT
    ordered: Annotated[bool, "Each task waits for the one before it."] = False
    task_count: Annotated[TaskCount | None, "How many tasks there will be; it begins when all of them are added."] = None
    autostart: Annotated[bool, "Its tasks begin without being asked."] = True
    payload: Annotated[Json, "Kept with the run; any JSON up to a megabyte."] = None
    parent_run_id: Annotated[RunId | None, "The run that this one belongs to."] = None
    worker_count: Annotated[int, whole(1, MAX_WORKERS), "How many workers it gets for itself, if its lifecycle allocates."] = 1
    workspace: Annotated[Name | None, "The workspace of these workers; any, if there is none."] = None
    checks: Annotated[bool, "It waits for somebody to report its final checks when its tasks are done."] = False
    final_task: Annotated[NewTask | None, "Checks it when all other tasks have succeeded: it is added then."] = None
    last_tasks: Annotated[
        Sequence[NewTask], "Added one after the other when all other tasks have succeeded, before the run completes."
    ] = ()
    max_retries: Annotated[CountFromZero, "How often it is retried after a failure."] = 0
    backoff: Annotated[Backoff, "How long it waits between retries."] = Backoff()
    timeout_seconds: Annotated[Seconds | None, "How long all of it may take."] = None
    budget_usd: Annotated[Amount | None, "What all its tasks together may spend."] = None
    tags: Annotated[Words, "Words by which lists of runs can be filtered."] = ()


def check_run(new: NewRun, found: Collection[str] = ()) -> Iterator[Problem]:
    """Every problem that the fields of a run have only together; `found` are the paths of those that single fields have."""
    if not {"", "tasks"}.isdisjoint(found):
        return
    yield from check_tasks(new.tasks, known={}, ordered=new.ordered, found=found)
    if "task_count" not in found and new.task_count is not None and new.task_count < len(new.tasks):
        yield Problem("task_count", f"{len(new.tasks)} tasks are given, but only {new.task_count} are announced. Say how many.")
    if new.final_task is not None:
        yield from _check_final(new.final_task, new.tasks)
        if new.last_tasks:
            yield Problem("last_tasks", "A run has a final task, or last tasks. Leave one of them out.")
    for index, last in enumerate(new.last_tasks):
        yield from _check_final(last, (*new.tasks, *new.last_tasks[:index]), f"last_tasks[{index}]")
    if not new.tasks and not new.task_count:
        yield Problem("tasks", "A run needs at least one task. Give one, or announce how many will come with task_count.")


def _check_final(final: NewTask, tasks: Sequence[NewTask], path: str = "final_task") -> Iterator[Problem]:
    if final.depends_on or final.parent is not None or final.gate:
        message = "The final task waits for all others, and a worker runs it. Leave out depends_on, parent and gate."
        yield Problem(path, message)
    if any(task.name == final.name for task in tasks):
        yield Problem(f"{path}.name", f"There is another task called '{final.name}'. Names are unique in a run.")


def check_tasks(
    tasks: Sequence[NewTask],
    known: Mapping[str, int],
    *,
    known_gates: Collection[str] = (),
    ordered: bool = False,
    found: Collection[str] = (),
) -> list[Problem]:
    """Every problem that tasks have only together; `known` are those that the run has already, by name, with their depths."""
    if len(tasks) > MAX_TASKS:
        return [Problem("tasks", f"{len(tasks)} tasks are more than the {MAX_TASKS} that fit into one request. Split it up.")]
    problems: list[Problem] = []
    if not any(path.endswith((".name", "]")) for path in found):
        problems += _check_names(tasks, known)
    if not any(path.endswith(("]", ".depends_on", ".parent")) for path in found):
        problems += _check_links(tasks, known) or _check_parents(tasks, known_gates)
    if problems or found:
        return problems
    total = sum(len(msgspec.json.encode(task.payload)) for task in tasks)
    if total > MAX_PAYLOADS_BYTES:
        message = (
            f"The payloads have {total >> 20} MB together, and at most {MAX_PAYLOADS_BYTES >> 20} MB fit into one request. "
            "Split it up, or store the data elsewhere and pass its address."
        )
        return [Problem("tasks", message)]
    return _check_circles(tasks, ordered=ordered) or _check_depths(tasks, known)


def _check_names(tasks: Sequence[NewTask], known: Mapping[str, int]) -> Iterator[Problem]:
    names = set(known)
    for index, task in enumerate(tasks):
        if task.name in names:
            yield Problem(f"tasks[{index}].name", f"There is another task called '{task.name}'. Names are unique in a run.")
        names.add(task.name)


def _check_links(tasks: Sequence[NewTask], known: Mapping[str, int]) -> list[Problem]:
    names = {*known, *(task.name for task in tasks)}
    problems: list[Problem] = []
    for index, task in enumerate(tasks):
        if len(problems) >= MOST_SUGGESTIONS:
            break  # suggestions are slow, and ten are enough
        linked = (*task.depends_on, *([task.parent] if task.parent is not None else []))
        problems += [
            Problem(f"tasks[{index}]", f"There is no task '{name}' in this run. {suggest(name, names)}")
            for name in linked
            if name not in names
        ]
        if len(set(task.depends_on)) != len(task.depends_on):
            problems.append(Problem(f"tasks[{index}].depends_on", "The same task is named twice. Name it once."))
    return problems


def _check_parents(tasks: Sequence[NewTask], known_gates: Collection[str]) -> list[Problem]:
    gate_names = {*known_gates, *(task.name for task in tasks if task.gate)}
    return [
        Problem(
            f"tasks[{index}].parent", f"'{task.parent}' is a gate, which people decide: it has no subtasks. Use depends_on."
        )
        for index, task in enumerate(tasks)
        if task.parent in gate_names
    ]


def _check_circles(tasks: Sequence[NewTask], *, ordered: bool) -> list[Problem]:
    """A task waits for what it depends on and, in an order, for the one before it; and ends after its subtasks."""
    # What waits for nothing is in no circle: most large runs have no links at all.
    waits_for: dict[str, list[str]] = {task.name: list(task.depends_on) for task in tasks if task.depends_on}
    if ordered:
        for before, task in pairwise(tasks):
            waits_for.setdefault(task.name, []).append(before.name)
    ends_after: dict[str, list[str]] = {}
    for task in tasks:
        if task.parent is not None:
            ends_after.setdefault(task.parent, []).append(task.name)
    # A part that waits for its whole never begins, and the whole never ends.
    both = {name: waits_for.get(name, []) + ends_after.get(name, []) for name in {*waits_for, *ends_after}}
    for edges in (waits_for, ends_after, both):
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            return [Problem("tasks", f"These wait for each other in a circle: {circle}. Remove one of these links.")]
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


def build_run(work: Work, new: NewRun, lifecycle: Lifecycle, tenant: str, cause: Cause, traceparent: str | None = None) -> Run:
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
    needed = {word for task in new.tasks for word in task.capabilities}
    if new.workspace is not None:
        needed.add(name_workspace(new.workspace))
    payload = _encode_payload(new)
    _admit(work, tenant, new.tasks, runs=1, payload_bytes=len(payload))
    policy = Policy(
        backoff=new.backoff,
        timeout_seconds=new.timeout_seconds,
        capabilities=tuple(sorted(needed)) if with_workers else (),
        autostart=new.autostart,
        submitter=cause.actor,
        traceparent=traceparent,
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
        has_checks=new.checks or new.final_task is not None,
        final_task=_write_final_tasks(new),
        max_retries=new.max_retries,
        policy=write_policy(policy),
        budget_usd=new.budget_usd,
        tags=msgspec.json.encode(sorted(set(new.tags))).decode(),
        payload=payload.decode(),
    )
    work.runs.add(run)
    work.tags += [RunTag(tenant=tenant, tag=tag, created_at=run.created_at, run_id=run.id) for tag in sorted(set(new.tags))]
    if new.timeout_seconds is not None:
        work.set_timer(run, Kind.RUN, "deadline", work.now + timedelta(seconds=new.timeout_seconds), run.id)
    return run


def _encode_payload(new: NewRun | NewTask) -> bytes:
    return msgspec.json.encode(new.payload)


def _admit(work: Work, tenant: str, tasks: Sequence[NewTask], *, runs: int = 0, payload_bytes: int = 0) -> None:
    """Refuse more than the quotas of the tenant have room for."""
    if work.quotas.limits(tenant):
        total = payload_bytes + sum(len(_encode_payload(task)) for task in tasks)
        work.quotas.admit(tenant, Use(runs=runs, tasks=len(tasks), payload_bytes=total))


def _write_final_tasks(new: NewRun) -> str | None:
    """The final task of a run as an object, its last tasks as a list."""
    final = new.final_task or new.last_tasks
    return msgspec.json.encode(final).decode() if final else None


def read_final_tasks(run: Run) -> list[NewTask]:
    """The tasks that are added to a run when all others have succeeded, in their order."""
    if run.final_task is None:
        return []
    found = msgspec.json.decode(run.final_task, type=NewTask | list[NewTask])
    return found if isinstance(found, list) else [found]


def check_tools(work: Work, tenant: str, new: Sequence[NewTask]) -> None:
    """A tool that was never declared has no breaker, and is probably misspelled."""
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


def check_gates(new: Sequence[NewTask], machine: Machine, submitter: str | None) -> None:
    """Refuse gates that the machine cannot open, pass or end as they ask, or that too few people may pass."""
    problems = []
    for index, task in enumerate(new):
        if not task.gate:
            continue
        for field, message in gates.find_misfits(machine, task.quorum, task.on_expiry):
            problems.append(Problem(f"tasks[{index}].{field}", message))
        if not task.self_approval and task.approvers and len({*task.approvers} - {submitter}) < task.quorum:
            message = f"{submitter} submits the run and may not approve {task.name}: too few others may. Name more people."
            problems.append(Problem(f"tasks[{index}].approvers", message))
    if problems:
        raise RequestInvalid(problems)


def check_workers(new: NewRun, machine: Machine) -> None:
    """A machine that allocates no workers would ignore how many there should be, and where."""
    if allocates(machine):
        return
    problems = [
        Problem(field, f"{machine.name} has no workers of its own. Leave it out, or choose the lifecycle supervised.")
        for field, is_asked in (("worker_count", new.worker_count > 1), ("workspace", new.workspace is not None))
        if is_asked
    ]
    if problems:
        raise RequestInvalid(problems)


def check_final_task(new: NewRun, machine: Machine) -> None:
    """A machine without final checks would never run them."""
    if new.final_task is not None and "checks_passed" not in machine.signals:
        message = f"{machine.name} has no final checks. Choose the lifecycle standard or orchestrated, or leave it out."
        raise RequestInvalid([Problem("final_task", message)])


def add_final_task(work: Work, run: Run) -> bool:
    """Add the next of the tasks that end a run whose other tasks have succeeded; False if all were added before."""
    if run.final_task is None:
        return False
    work.flush()
    known = work.transaction.find_task_names(run.id)
    missing = [task for task in read_final_tasks(run) if task.name not in known]
    if not missing:
        return False
    work.load(task_ids=known.values())
    machine = _find_machine(work, run, known.values())
    cause = Cause(reason="all other tasks succeeded")
    is_open = runs.is_open(run, work.machine(run).state(run.state))
    rows = add_tasks(work, run, missing[:1], machine, cause, is_open=is_open, ordered=False, known=known)
    work.added |= {row.id for row in rows}
    return True


def check_addition(work: Work, run: Run, new: Sequence[NewTask]) -> dict[str, str]:
    """Refuse tasks that cannot be added to a run, with every problem; the ids of those that it has, by name."""
    work.flush()  # others may have added some in this transaction
    known = work.transaction.find_task_names(run.id)
    work.load(task_ids=known.values())
    _check_open(work, run, new, known)
    rows = {name: work.tasks.rows[task_id] for name, task_id in known.items()}
    known_gates = [name for name, row in rows.items() if row.is_gate]
    problems = check_tasks(new, {name: row.depth for name, row in rows.items()}, known_gates=known_gates)
    for final in read_final_tasks(run):
        problems += _check_final(final, new)
    if problems:
        raise RequestInvalid(problems)
    check_gates(new, _find_machine(work, run, known.values()), read_policy(run.policy).submitter)
    check_tools(work, run.tenant, new)
    _admit(work, run.tenant, new)
    return known


def extend_run(work: Work, run: Run, new: Sequence[NewTask], known: Mapping[str, str], cause: Cause) -> list[Task]:
    """Add tasks that were checked to a run; `known` are those that it has."""
    machine = _find_machine(work, run, known.values())
    is_open = runs.is_open(run, work.machine(run).state(run.state))
    rows = add_tasks(work, run, new, machine, cause, is_open=is_open, ordered=False, known=known)
    if run.missing_tasks:
        run.missing_tasks = max(run.missing_tasks - len(new), 0)
        work.runs.change(run)
        runs.make_ready(work, run)
        runs.tell_tasks(work, run)
    return rows


class Plan(NamedTuple):
    """Subtasks that a running task adds, and the tasks that its run has."""

    new: Sequence[NewTask]
    known: Mapping[str, str]


def plan_subtasks(work: Work, task: Task, new: Sequence[NewTask]) -> Plan:
    """Check the subtasks of a running task, without those that an attempt before this one has added already."""
    machine = work.machine(task)
    if "children_done" not in machine.signals:
        raise RequestInvalid(
            [Problem("subtasks", f"Tasks of {machine.name} cannot have subtasks. Use the lifecycle standard.")]
        )
    work.flush()
    known = work.transaction.find_task_names(task.run_id)
    missing = [each for each in new if each.name not in known]
    return Plan(missing, check_addition(work, work.runs.rows[task.run_id], missing) if missing else known)


def add_subtasks(work: Work, task: Task, plan: Plan) -> None:
    cause = Cause(task.attempt_worker_id or "worker", f"subtasks of {task.name}")
    work.added |= {row.id for row in extend_run(work, work.runs.rows[task.run_id], plan.new, plan.known, cause)}


def _check_open(work: Work, run: Run, new: Sequence[NewTask], known: Mapping[str, str]) -> None:
    if run.phase == Phase.DONE and not _are_subtasks(work, run, new, known):
        raise RequestInvalid([Problem("run_id", f"{run.name} has ended ({run.state}). Submit a new run.")])
    if run.phase == Phase.ACTIVE and not work.takes(run, "complete"):
        message = f"{run.name} is {run.state}: its tasks are done, and only its checks are left. Submit a new run."
        raise RequestInvalid([Problem("run_id", message)])


def _are_subtasks(work: Work, run: Run, new: Sequence[NewTask], known: Mapping[str, str]) -> bool:
    """Whether all belong to running tasks: these go on to their end when their run has failed, which may be retried."""
    parents = [work.tasks.rows.get(known.get(task.parent or "", "")) for task in new]
    return work.takes(run, "retry") and all(parent and parent.phase == Phase.ACTIVE for parent in parents)


def _find_machine(work: Work, run: Run, known: Iterable[str]) -> Machine:
    """The one that the other tasks of the run follow, which may be unknown here but for what the database has of it."""
    for task_id in known:
        return work.machine(work.tasks.rows[task_id])
    return work.machines.lifecycle(run.lifecycle, work.transaction).of_kind(Kind.TASK)


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
    defaults = work.machines.lifecycle(run.lifecycle, work.transaction).defaults
    names = {**known} | {task.name: work.world.ids.new("task", work.now) for task in new}
    rows = []
    before: str | None = None
    for position, task in enumerate(new, start=len(known)):
        waits_for = {names[name] for name in task.depends_on}
        if ordered and before:
            waits_for.add(before)
        row = _build_task(work, run, task, machine, defaults, names, depths, position, is_open=is_open)
        row.actor, row.reason = cause.actor, cause.reason
        row.open_dependencies = sum(_is_open_dependency(work, task_id) for task_id in waits_for)
        details = {
            "run_id": run.id,
            "depends_on": sorted(waits_for),
            "critical": task.critical,
            "max_retries": row.max_retries,
        }
        row.metadata = msgspec.json.encode(details).decode()
        work.dependencies += [Dependency(row.id, other) for other in sorted(waits_for)]
        work.tasks.add(row)
        work.waiting.append(row.id)
        if row.parent_task_id:
            work.add_child(row.parent_task_id)
        before = row.id
        rows.append(row)
    if machine.initial.phase is Phase.QUEUED:
        work.wakeups |= Wakeup.TASKS
    work.unsettled_runs.add(run.id)
    return rows


def _is_open_dependency(work: Work, task_id: str) -> bool:
    """One that has succeeded in this very commit is open until its dependents are freed, which is still to come."""
    row = work.tasks.rows.get(task_id)
    return row is None or row.outcome != "success" or task_id in work.succeeded


def _build_task(
    work: Work,
    run: Run,
    new: NewTask,
    machine: Machine,
    defaults: TaskDefaults,
    names: Mapping[str, str],
    depths: Mapping[str, int],
    position: int,
    *,
    is_open: bool,
) -> Task:
    reclaim_after_seconds = new.reclaim_after_seconds
    if reclaim_after_seconds is None and new.timeout_seconds is None:
        reclaim_after_seconds = defaults.reclaim_after_seconds
    policy = Policy(
        backoff=new.backoff,
        timeout_seconds=new.timeout_seconds,
        reclaim_after_seconds=reclaim_after_seconds,
        approval_seconds=new.approval_seconds,
        approvers=tuple(new.approvers),
        quorum=new.quorum,
        self_approval=new.self_approval,
        on_expiry=new.on_expiry,
        retry_on_failure=new.retry_on_failure,
        expected_exit_codes=tuple(new.expected_exit_codes),
        on_open_circuit=new.on_open_circuit,
        auxiliary=new.auxiliary,
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
        max_retries=(new.max_attempts or defaults.max_attempts) - 1 if new.max_retries is None else new.max_retries,
        max_reclaims=new.max_reclaims,
        policy=write_policy(policy),
        budget_usd=new.budget_usd,
        payload=_encode_payload(new).decode(),
    )


def _find_lane(work: Work, tenant: str, new: NewTask) -> int:
    capabilities = msgspec.json.encode(sorted(set(new.capabilities))).decode()
    fails_fast = new.on_open_circuit == "fail" and new.tool is not None
    for lane in work.known_lanes(tenant):
        if (lane.tool, lane.capabilities, lane.fails_fast) == (new.tool, capabilities, fails_fast):
            return lane.id
    lane = work.transaction.insert_lane(tenant, new.tool, capabilities, fails_fast=fails_fast)
    work.new_lanes[lane.id] = lane
    return lane.id

"""The doctor: what is stuck, why, and what would help (document 001, recovery 1 to 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from pointsman.engine import breakers, budgets, runs, tasks, workers
from pointsman.engine.machines import Machines
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Kind, Phase
from pointsman.store.contract import Reader, Wakeup
from pointsman.store.rows import ZERO_USD, Breaker, Run, Task

MOST_FAILED_TASKS = 1000
_BY_HAND = "The database was probably changed by hand. Repair does what the engine would have done."
_DOUBTFUL = "The law was bypassed by hand. A person must decide which state is right, and move it along a legal transition."


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One thing that does not go on as it should."""

    subject: str
    """overstayed, stalled, unretried, circuit or disagreement"""
    kind: str
    entity_id: str
    finding: str
    advice: str
    repairable: bool = False
    """`repair` can fix it without a person."""


def diagnose(reader: Reader, machines: Machines, now: datetime) -> list[Diagnosis]:
    return [
        *_overstayed(reader, machines, now),
        *_stalled(reader, machines),
        *_failed(reader, machines),
        *_circuits(reader, now),
        *_disagreements(reader),
    ]


def repair(work: Work, diagnoses: Sequence[Diagnosis]) -> None:
    """Recount wrong counters, and do what the engine would have done."""
    found = {kind: [each.entity_id for each in diagnoses if each.kind == kind] for kind in Kind}
    held = work.transaction.find_held_tasks(found[Kind.WORKER]) if found[Kind.WORKER] else []
    task_ids = found[Kind.TASK] + [task_id for _, task_id, _ in held]
    work.lock_runs(found[Kind.RUN], of_tasks=task_ids)
    work.load_workers(found[Kind.WORKER])
    _repair_tasks(work, found[Kind.TASK])
    for worker_id in found[Kind.WORKER]:
        workers.reassign_tasks(work, work.workers.rows[worker_id], Cause(reason="its worker has ended"))
    for run_id in found[Kind.RUN]:
        _repair_run(work, work.runs.rows[run_id])
    if found[Kind.BREAKER]:
        _repair_breakers(work, found[Kind.BREAKER])
    work.unsettled_runs |= work.runs.rows.keys()


def _repair_tasks(work: Work, task_ids: Sequence[str]) -> None:
    if not task_ids:
        return
    work.transaction.recount_dependencies(task_ids)
    work.load(task_ids=task_ids)
    for task_id in task_ids:
        task = work.tasks.rows[task_id]
        if task.phase != Phase.DONE:
            tasks.grant_attempt(task)
            work.tasks.change(task)
            if task.available_at:
                work.set_timer(task, Kind.TASK, "retry", task.available_at, task.run_id)
            work.waiting.append(task_id)
            work.wakeups |= Wakeup.TASKS


def _repair_run(work: Work, run: Run) -> None:
    runs.tell_tasks(work, run)
    active = work.transaction.select_run_tasks(run.id, (Phase.ACTIVE.value,))
    run.promised_usd = sum((task.reserved_usd for task in active), ZERO_USD)
    budgets.cover(run)
    work.runs.change(run)
    work.wakeups |= Wakeup.TASKS
    if run.phase == Phase.DONE:
        workers.release_from_run(work, run)


def _repair_breakers(work: Work, breaker_ids: Sequence[str]) -> None:
    for tripped in work.transaction.list_tripped_breakers():
        if tripped.id not in breaker_ids:
            continue
        work.load_breakers(tripped.tenant, [tripped.tool])
        if tripped.phase == Phase.HELD and tripped.retry_at:
            work.set_timer(tripped, Kind.BREAKER, "cooldown", tripped.retry_at)
        if tripped.probe_task_id:
            work.load(task_ids=[tripped.probe_task_id])
            if work.tasks.rows[tripped.probe_task_id].phase != Phase.ACTIVE:
                breakers.leave(work, work.tasks.rows[tripped.probe_task_id])


def _overstayed(reader: Reader, machines: Machines, now: datetime) -> Iterator[Diagnosis]:
    for kind, entity_id, state, entered_at in reader.count_overstayed(now, machines.limits()):
        stay = format_duration(int((now - entered_at).total_seconds()))
        yield Diagnosis(
            subject="overstayed",
            kind=kind,
            entity_id=entity_id,
            finding=f"It has been {state} for {stay}, longer than its lifecycle expects.",
            advice="Look at its history. If nothing works on it any more, cancel it or retry what failed in it.",
        )


def _stalled(reader: Reader, machines: Machines) -> Iterator[Diagnosis]:
    unended = [run_id for run_id, machine_id, state in reader.list_unended_runs() if machines.may_complete(machine_id, state)]
    for run_id in [run_id for run_id, _ in reader.list_stalled_runs()] + unended:
        yield Diagnosis(
            subject="stalled",
            kind=Kind.RUN.value,
            entity_id=run_id,
            finding="It is under way, but none of its tasks can move and none waits for a person.",
            advice="Repair lets it follow its tasks; where one of them failed for good, retry, reset or skip that one.",
            repairable=True,
        )


def _failed(reader: Reader, machines: Machines) -> Iterator[Diagnosis]:
    tripped = {(breaker.tenant, breaker.tool) for breaker in reader.list_tripped_breakers()}
    for task in reader.list_failed_tasks(MOST_FAILED_TASKS):
        yield Diagnosis(
            subject="unretried",
            kind=Kind.TASK.value,
            entity_id=task.id,
            finding=f"{task.name} is {task.state} and is not retried: {_why_not(reader, task, tripped)}.",
            advice=_ways_on(machines, task),
        )


def _why_not(reader: Reader, task: Task, tripped: set[tuple[str, str]]) -> str:
    tool = reader.find_tool(task.lane_id)
    if not read_policy(task.policy).retry_on_failure:
        return "its tool is not to be retried (retry_on_failure is false)"
    if tool and (task.tenant, tool) in tripped:
        return f"the circuit of {tool} is open"
    if task.max_attempts is not None and task.attempt_count >= task.max_attempts:
        return f"its {task.max_attempts} attempts are used up"
    if task.retry_count >= task.max_retries:
        return f"its {task.max_retries} retries are used up"
    return "the failure was not one that a retry could mend"


def _ways_on(machines: Machines, task: Task) -> str:
    machine = machines.known(task.machine_id)
    ways = [signal for signal in ("retry", "resume", "reset", "skip") if machine and machine.moves(task.state, signal)]
    return f"A person can {' or '.join(ways)} it." if ways else "Nothing leads out of this state. Submit the work again."


def _circuits(reader: Reader, now: datetime) -> Iterator[Diagnosis]:
    for breaker in reader.list_tripped_breakers():
        yield Diagnosis(
            subject="circuit",
            kind=Kind.BREAKER.value,
            entity_id=breaker.id,
            finding=_circuit_state(breaker, now),
            advice="Wait for its probe, or reset the breaker when the tool is well again.",
        )


def _circuit_state(breaker: Breaker, now: datetime) -> str:
    if breaker.phase == Phase.HELD and breaker.retry_at:
        seconds = max(0, round((breaker.retry_at - now).total_seconds()))
        return f"{describe_circuit(breaker)}, retry in {seconds} seconds"
    return describe_circuit(breaker)


def describe_circuit(breaker: Breaker) -> str:
    """How the circuit of a tool stands; views use the same words."""
    if breaker.phase == Phase.HELD:
        return f"{breaker.tool} circuit is open"
    probe = "one probe is under way" if breaker.probe_task_id else "its next task is the probe"
    return f"{breaker.tool} circuit is half open: {probe}"


def _disagreements(reader: Reader) -> Iterator[Diagnosis]:
    for kind, entity_id, what in reader.list_disagreements():
        yield Diagnosis(
            subject="disagreement",
            kind=kind,
            entity_id=entity_id,
            finding=f"{what[0].upper()}{what[1:]}.",
            advice=_DOUBTFUL if "audit trail" in what else _BY_HAND,
            repairable="audit trail" not in what,
        )

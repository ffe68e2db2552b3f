"""The doctor: what is stuck, why, and what would help (document 001, recovery 1 to 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from pointsman.engine.machines import Machines
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Work
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Kind, Phase
from pointsman.store.contract import Reader
from pointsman.store.rows import Breaker, Task

MOST_FAILED_TASKS = 1000


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One thing that does not go on as it should."""

    subject: str
    """overstayed, stalled, unretried, circuit or disagreement"""
    kind: str
    entity_id: str
    finding: str
    advice: str
    repairable: bool = False
    """`repair` can put it right without asking anybody."""


def diagnose(reader: Reader, machines: Machines, now: datetime) -> list[Diagnosis]:
    return [
        *_overstayed(reader, machines, now),
        *_stalled(reader),
        *_failed(reader, machines),
        *_circuits(reader, now),
        *_disagreements(reader),
    ]


def repair(work: Work, diagnoses: Sequence[Diagnosis]) -> None:
    """Count anew what was counted wrongly, and let runs that stand still follow their tasks."""
    disagreeing = [each.entity_id for each in diagnoses if each.subject == "disagreement" and each.kind == Kind.TASK]
    stalled = [each.entity_id for each in diagnoses if each.subject == "stalled"]
    run_ids = set(stalled) | (work.transaction.find_run_ids(disagreeing) if disagreeing else set())
    work.load(run_ids=run_ids)
    if disagreeing:
        work.transaction.recount_dependencies(disagreeing)
        work.transaction.end_orphaned_attempts(disagreeing, work.now)
        work.load(task_ids=disagreeing)
        work.waiting += [task_id for task_id in disagreeing if task_id in work.tasks.rows]
    work.unsettled_runs |= work.runs.rows.keys() & run_ids


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


def _stalled(reader: Reader) -> Iterator[Diagnosis]:
    for run_id, _ in reader.list_stalled_runs():
        yield Diagnosis(
            subject="stalled",
            kind=Kind.RUN.value,
            entity_id=run_id,
            finding="It is under way, but nothing in it moves and nobody is asked for anything.",
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
        return f"{breaker.tool} circuit is open, retry in {seconds} seconds"
    waits = "one probe is under way" if breaker.probe_task_id else "its next task is the probe"
    return f"{breaker.tool} circuit is half open: {waits}"


def _disagreements(reader: Reader) -> Iterator[Diagnosis]:
    for kind, entity_id, what in reader.list_disagreements():
        yield Diagnosis(
            subject="disagreement",
            kind=kind,
            entity_id=entity_id,
            finding=f"{what[0].upper()}{what[1:]}.",
            advice="Somebody changed the database by hand, most likely. Repair counts anew.",
            repairable=kind == Kind.TASK,
        )

"""The doctor: what is stuck, why, and what would help (document 001, recovery 1 to 4)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence, Set
from datetime import datetime

from msgspec import Struct

from pointsman.engine import breakers, budgets, runs, tasks, workers
from pointsman.engine.machines import Machines
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Kind, Machine, Outcome, Phase, Transition
from pointsman.kernel.step import Snapshot, Step, step
from pointsman.store.contract import Reader, Wakeup
from pointsman.store.rows import ZERO_USD, Breaker, Contradiction, Run, Task

MOST_FAILED_TASKS = 1000
_FAILED = "although its critical task"
MOST_NAMED = 3
_FOLLOW = "Repair lets it follow its tasks; where one of them failed for good, retry, reset or skip that one."
_UNDECIDED = (
    "The law was bypassed by hand, and the audit trail confirms both. Compare it with a backup, or with a seal that you kept "
    "(`pointsman doctor --audit`)."
)
_BY_HAND = "The database was probably changed by hand. Repair does what the engine would have done."
_DOUBTFUL = "The law was bypassed by hand. A person must decide which state is right, and move it along a legal transition."
_LAWLESS = ("audit trail", "it runs, but")
"""Signs of what the law forbids, and repair cannot put right."""
_CONTRADICTED = "The law was bypassed by hand. Repair puts it back to where its audit trail ends"


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One thing that does not go on as it should."""

    subject: str
    """overstayed, stalled, unretried, circuit, contradiction or disagreement"""
    kind: str
    entity_id: str
    finding: str
    advice: str
    repairable: bool = False
    """`repair` can fix it without a person."""


def diagnose(reader: Reader, machines: Machines, now: datetime) -> list[Diagnosis]:
    machines.learn_all(reader)
    contradictions = reader.list_contradictions()
    explained = {entity_id for each in contradictions for entity_id in (each.run_id, each.task_id)}
    return [
        *_overstayed(reader, machines, now),
        *_stalled(reader, machines, now),
        *_failed(reader, machines),
        *_circuits(reader, now),
        *_contradictions(contradictions),
        *_disagreements(reader, explained),
    ]


def restore(work: Work, diagnoses: Sequence[Diagnosis]) -> None:
    """Put what contradicts its audit trail back to where the trail ends; what follows from that is up to `repair`."""
    for kind in (Kind.TASK, Kind.RUN):
        if found := [each.entity_id for each in diagnoses if is_contradiction(each) and each.kind == kind]:
            work.transaction.restore(kind, found)


def is_contradiction(diagnosis: Diagnosis) -> bool:
    return diagnosis.subject == "contradiction"


def repair(work: Work, diagnoses: Sequence[Diagnosis], cause: Cause) -> None:
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
    work.struck_runs |= {each.entity_id for each in diagnoses if _FAILED in each.finding}
    if found[Kind.BREAKER]:
        _repair_breakers(work, found[Kind.BREAKER])
    work.unsettled_runs |= work.runs.rows.keys()
    for diagnosis in diagnoses:
        _give_notice(work, diagnosis, cause)


def _give_notice(work: Work, diagnosis: Diagnosis, cause: Cause) -> None:
    """What follows from a repair are moves of the engine; who wanted it is only here."""
    rows = (work.tasks.rows, work.runs.rows, work.workers.rows, work.breakers.rows)
    row = next((table[diagnosis.entity_id] for table in rows if diagnosis.entity_id in table), None)
    if row is not None:
        run_id = row.id if isinstance(row, Run) else row.run_id if isinstance(row, Task) else None
        message = cause.sign(f"Repaired: {diagnosis.finding}")
        work.give_notice(row, diagnosis.kind, run_id, subject="repaired", message=message)


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
        runs.end_tasks(work, run)
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


def _stalled(reader: Reader, machines: Machines, now: datetime) -> Iterator[Diagnosis]:
    unended = [
        (run_id, tenant)
        for run_id, tenant, machine_id, state, has_checks in reader.list_unended_runs()
        if machines.may_complete(machine_id, state, has_checks=bool(has_checks))
    ]
    for run_id, tenant in [*reader.list_stalled_runs(), *unended]:
        run = reader.find_run(tenant, run_id)
        assert run
        leads_on = _leads_on(reader, machines.machine(run.machine_id, reader), run, now)
        yield Diagnosis(
            subject="stalled",
            kind=Kind.RUN.value,
            entity_id=run_id,
            finding="It is under way, but none of its tasks can move and none waits for a person.",
            advice=_FOLLOW if leads_on else _explain_stall(reader, machines, run),
            repairable=leads_on,
        )


def _leads_on(reader: Reader, machine: Machine, run: Run, now: datetime) -> bool:
    """Whether its machine lets the run go where its tasks lead it: not every machine has a way for everything."""
    (situation,) = reader.assess_runs([run.id])
    facts = runs.facts_of(run, situation)
    snapshot = Snapshot(run.state, run.entered_at)
    if run.phase == Phase.QUEUED and isinstance(begun := step(machine, snapshot, "start", facts, now), Step):
        snapshot = begun.snapshot
    signal = "wait" if situation.unfinished else "complete"
    if not situation.unfinished and not machine.moves(snapshot.state, "complete"):
        signal = "checks_passed"
    if situation.failed_task or situation.last_failure:
        signal = "fail"
    return isinstance(step(machine, snapshot, signal, facts, now), Step)


def _explain_stall(reader: Reader, machines: Machines, run: Run) -> str:
    """What a person can do where the machine of a run has no way on."""
    failed = [task for task in reader.list_tasks_in_brief(run.tenant, run.id) if task.outcome not in (None, Outcome.SUCCESS)]
    named = ", ".join(f"{task.name} is {task.state}" for task in failed[:MOST_NAMED])
    machine = machines.machine(run.machine_id, reader)
    ways = {signal for task in failed for signal in _list_ways(machines, task)}
    can = [f"{signal} a failed task" for signal in sorted(ways)] + ["cancel the run"] * bool(machine.moves(run.state, "cancel"))
    possible = f"A person can {' or '.join(can)}." if can else "Nothing leads out of this state. Submit the work again."
    return f"Its lifecycle has no way on from {run.state} now that {named or 'its tasks have ended'}. {possible}"


def _failed(reader: Reader, machines: Machines) -> Iterator[Diagnosis]:
    tripped = {(breaker.tenant, breaker.tool) for breaker in reader.list_tripped_breakers()}
    for task in reader.list_failed_tasks(MOST_FAILED_TASKS):
        yield Diagnosis(
            subject="unretried",
            kind=Kind.TASK.value,
            entity_id=task.id,
            finding=f"{task.name} is {task.state} and is not retried: {_why_not(reader, machines, task, tripped)}.",
            advice=_ways_on(machines, task),
        )


def _why_not(reader: Reader, machines: Machines, task: Task, tripped: set[tuple[str, str]]) -> str:
    tool = reader.find_tool(task.lane_id)
    if budgets.is_used_up(task):
        return "its budget is spent"
    if not read_policy(task.policy).retry_on_failure:
        return "its tool is not to be retried (retry_on_failure is false)"
    if tool and (task.tenant, tool) in tripped:
        return f"the circuit of {tool} is open"
    if task.is_gate:
        return "a person rejected it, or nobody decided in time"
    if _failed_with_another(machines, task):
        return "it has never run, because a task that it depends on failed"
    if tasks.attempts_used_up(task):
        return f"it has used up its attempts ({task.max_attempts})"
    if not tasks.has_retries_left(machines.machine(task.machine_id, reader), task):
        return f"it has used up its retries ({task.max_retries})"
    return "the failure was not one that a retry could mend"


def _list_ways(machines: Machines, task: Task) -> list[str]:
    """The signals that a person can send to a failed task, as far as its row tells."""
    machine = machines.known(task.machine_id)
    facts = {
        "attempts_left": not tasks.attempts_used_up(task),
        "is_gate": task.is_gate,
        "has_session": task.session_id is not None,
    }

    def is_open(move: Transition) -> bool:
        return all(facts.get(guard.name, not guard.negated) is not guard.negated for guard in move.guards)

    signals = ("retry", "resume", "reset", "skip")
    ways = [signal for signal in signals if machine and any(map(is_open, machine.moves(task.state, signal)))]
    has_nothing_to_resume = task.session_id is None and "retry" in ways
    return [signal for signal in ways if signal != "resume" or not has_nothing_to_resume]


def _failed_with_another(machines: Machines, task: Task) -> bool:
    machine = machines.known(task.machine_id)
    moves = machine.transitions if machine else ()
    return any(
        move.signal == "dependency_failed" and (move.trigger, move.to_state) == (task.trigger, task.state) for move in moves
    )


def _ways_on(machines: Machines, task: Task) -> str:
    if _failed_with_another(machines, task):
        return "Retry the task that it depends on; that retries this one as well."
    ways = _list_ways(machines, task)
    return f"A person can {' or '.join(ways)} it." if ways else "Nothing leads out of this state. Submit the work again."


def _circuits(reader: Reader, now: datetime) -> Iterator[Diagnosis]:
    for breaker in reader.list_tripped_breakers():
        reset = f"pointsman breakers reset {shlex.quote(breaker.tool)}"
        yield Diagnosis(
            subject="circuit",
            kind=Kind.BREAKER.value,
            entity_id=breaker.id,
            finding=_circuit_state(breaker, now),
            advice=f"Wait for its probe, or reset the breaker when the tool is well again: {reset}",
        )


def _circuit_state(breaker: Breaker, now: datetime) -> str:
    if breaker.phase == Phase.HELD and breaker.retry_at:
        seconds = max(0, round((breaker.retry_at - now).total_seconds()))
        return f"{describe_circuit(breaker)}, retry in {seconds} seconds"
    return describe_circuit(breaker)


def describe_circuit(breaker: Breaker) -> str:
    """How the circuit of a tool stands; views use the same words."""
    if breaker.phase == Phase.HELD:
        limited = breakers.is_limited(breaker)
        return f"{breaker.tool} has reached its usage limit" if limited else f"{breaker.tool} circuit is open"
    probe = "one probe is under way" if breaker.probe_task_id else "its next task is the probe"
    return f"{breaker.tool} circuit is half open: {probe}"


def _contradictions(contradictions: Sequence[Contradiction]) -> Iterator[Diagnosis]:
    """Runs that have succeeded without their tasks (document 001, recovery 4): the audit trail tells which is wrong."""
    known: set[str] = set()
    for found in contradictions:
        task_is_wrong = found.task_trail_outcome == Outcome.SUCCESS
        run_is_wrong = not task_is_wrong and found.run_trail_outcome != Outcome.SUCCESS
        entity_id = found.task_id if task_is_wrong else found.run_id
        if entity_id in known:
            continue
        known.add(entity_id)
        advice = f"{_CONTRADICTED}: {found.task_trail}."
        if not task_is_wrong:
            advice = f"{_CONTRADICTED}, {found.run_trail}, and lets it follow its tasks." if run_is_wrong else _UNDECIDED
        yield Diagnosis(
            subject="contradiction",
            kind=(Kind.TASK if task_is_wrong else Kind.RUN).value,
            entity_id=entity_id,
            finding=f"The run is {found.run_state}, but its task {found.task_name} is {found.task_state}.",
            advice=advice,
            repairable=task_is_wrong or run_is_wrong,
        )


def _disagreements(reader: Reader, explained: Set[str]) -> Iterator[Diagnosis]:
    """Those that no contradiction explains."""
    for kind, entity_id, what in reader.list_disagreements():
        if entity_id in explained:
            continue
        yield Diagnosis(
            subject="disagreement",
            kind=kind,
            entity_id=entity_id,
            finding=f"{what[0].upper()}{what[1:]}.",
            advice=_DOUBTFUL if any(sign in what for sign in _LAWLESS) else _BY_HAND,
            repairable=not any(sign in what for sign in _LAWLESS),
        )

"""The short way: plain tasks begin and end without being read first.

A task is plain where its machine alone decides what becomes of it: no tool, no budget, no checks, no review, no subtasks, no
earlier attempt that failed. For all plain tasks in one state of a machine the kernel decides once. One statement writes the
moves, with all that was assumed in its WHERE; a task that differs is left out, and goes the general way in the same
transaction. The law checks both ways alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pointsman.engine import runs, tasks
from pointsman.engine.machines import Machines, once_for_each_machine
from pointsman.engine.operation import Caller, Needs, Operation, Stage
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.kernel.machine import Kind, Machine, Outcome, Phase, Refusal, State, Transition
from pointsman.kernel.step import Snapshot, step
from pointsman.store.contract import Wakeup
from pointsman.store.rows import BegunTask, PlainMove, PlainReport, Worker

WHENEVER = datetime(2000, 1, 1, tzinfo=UTC)
MOST_CHARACTERS = 65_536
"""A longer output is written on its own, so that a statement does not become too large."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the statements of the store verify. A guard that asks for anything else is not for plain tasks."""

    dependencies_met: bool = True
    due: bool = True
    exit_code_expected: bool = True
    process_ended: bool = True
    is_gate: bool = False
    has_checks: bool = False
    review_wanted: bool = False
    open_subtasks: bool = False
    lease_expired: bool = False


_FACTS = _Facts()


def end(work: Work, caller: Caller, reports: Sequence[PlainReport]) -> None:
    """End the tasks of these reports that are plain. Their runs are locked."""
    moves = list_moves(work.machines, "complete")
    found = work.transaction.end_plain_tasks(caller.tenant, reports, moves, work.now, caller.key_id)
    if not found:
        return
    work.wakeups |= Wakeup.EVENTS
    work.ended_plain |= {task.id for task in found}
    work.succeeded += [task.id for task in found if task.has_dependents]
    work.parents |= {task.parent_task_id for task in found if task.parent_task_id}
    work.unsettled_runs |= {task.run_id for task in found}
    work.dropped_timers |= {task.id for task in found if read_policy(task.policy).limits}
    for worker_id, count in Counter(task.worker_id for task in found).items():
        work.change_held(worker_id, -count)


def begin(
    work: Work, worker: Worker, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None = None
) -> list[BegunTask]:
    """Give a worker the plain ones among the tasks whose turn it is."""
    moves = list_moves(work.machines, "claim")
    begun = work.transaction.begin_plain_tasks(worker, tenant, lane_ids, limit, moves, work.now, run_id)
    work.asked_to_begin[worker.id].append((tenant, lane_ids, run_id, len(begun) == limit))
    if not begun:
        return begun
    work.wakeups |= Wakeup.EVENTS
    work.tasks.forget(task.id for task in begun)
    work.change_held(worker.id, len(begun))
    work.busy_runs |= {task.run_id for task in begun}
    for task in begun:
        tasks.set_limits(work, task, read_policy(task.policy), task.entered_at)
    _start_runs(work, begun)
    return begun


def find_reports(
    operations: Sequence[Operation[Any]], needs: Sequence[Needs]
) -> Iterable[tuple[Caller, Sequence[PlainReport]]]:
    """Reports about tasks that no other operation of the batch has to do with, by who reports. These are decided first."""
    together = list(zip(operations, needs, strict=True))
    if any(each.held_by or (each.run_ids and operation.stage is Stage.SIGNALS) for operation, each in together):
        return ()
    found: dict[tuple[str, str | None], tuple[Caller, list[PlainReport]]] = {}
    asked = Counter(task_id for each in needs for task_id in each.task_ids)
    for operation, each in together:
        if reports := [report for report in each.reports if asked[report.task_id] == 1]:
            caller = operation.caller
            found.setdefault((caller.tenant, caller.key_id), (caller, []))[1].extend(reports)
    return found.values()


def _start_runs(work: Work, begun: Iterable[BegunTask]) -> None:
    """Start those runs whose first task has begun. The others stay as they are."""
    waiting: dict[str, str] = {}
    for task in begun:
        if task.run_phase == Phase.QUEUED:
            waiting.setdefault(task.run_id, task.name)
    work.load(run_ids=waiting)
    for run_id, name in waiting.items():
        run = work.runs.rows[run_id]
        if run.phase == Phase.QUEUED and not run.allocates:
            runs.try_send(work, run, "start", Cause(reason=f"first task claimed: {name}"), facts=runs.facts_of(run))


def list_moves(machines: Machines, signal: str) -> list[PlainMove]:
    """What the kernel decides for plain tasks, on every machine that this process knows."""
    return _list_moves(machines, signal, len(machines.numbered))


@lru_cache(maxsize=16)
def _list_moves(machines: Machines, signal: str, _count: int) -> list[PlainMove]:
    """No machine is ever forgotten or changed, so their number says whether there is a new one."""
    return [
        PlainMove(
            machine_id=number,
            from_state=move.from_state,
            to_state=move.to_state,
            trigger=move.trigger,
            stores_output="store_output" in move.effects,
            needs_worker="worker" in machine.state(move.to_state).needs,
        )
        for number, machine in machines.numbered.items()
        if machine.kind is Kind.TASK
        for move in _decide(machine)[signal]
    ]


@once_for_each_machine
def _decide(machine: Machine) -> dict[str, list[Transition]]:
    """By signal: the moves of plain tasks that begin with a claim, and that end with success."""
    begin = [_try_step(machine, state, "claim") for state in machine.states if state.phase is Phase.QUEUED]
    end = [_try_step(machine, state, "complete") for state in machine.states if state.phase is Phase.ACTIVE]
    return {
        "claim": [move for move in begin if move and _leads_to(machine, move, Phase.ACTIVE, None)],
        "complete": [move for move in end if move and _leads_to(machine, move, Phase.DONE, Outcome.SUCCESS)],
    }


def _try_step(machine: Machine, state: State, signal: str) -> Transition | None:
    """The one transition that a signal leads to; None where it leads nowhere, further, or depends on more."""
    try:
        decided = step(machine, Snapshot(state.name, WHENEVER), signal, _FACTS, WHENEVER)
    except AttributeError:
        return None
    return None if isinstance(decided, Refusal) or len(decided.taken) != 1 else decided.taken[0]


def _leads_to(machine: Machine, move: Transition, phase: Phase, outcome: Outcome | None) -> bool:
    """Whether a transition leads there and does no more than the statements do."""
    left, entered = machine.state(move.from_state), machine.state(move.to_state)
    lasts = left.longest_stay_seconds is None and entered.longest_stay_seconds is None
    stays = (entered.name, "ready") not in machine.moves_on
    effects = {"store_output"} if phase is Phase.DONE else set()
    does_no_more = effects.issuperset(move.effects) and {"worker"}.issuperset(entered.needs)
    return (entered.phase, entered.outcome) == (phase, outcome) and lasts and stays and does_no_more

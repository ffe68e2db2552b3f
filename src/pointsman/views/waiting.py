"""Why a task or a run waits. Every interface names the same reasons in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from pointsman.engine import breakers, budgets, gates, limits
from pointsman.engine.doctor import describe_circuit
from pointsman.engine.machines import waits_in_queue
from pointsman.engine.policy import read_policy
from pointsman.engine.questions import read_question
from pointsman.engine.workers import is_suspended
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Phase
from pointsman.store.rows import Breaker, Run, Task, Worker
from pointsman.views.sources import Fleet, RunRecords, lease_end, takes_tasks
from pointsman.views.values import NEEDS_PERSON, Waiting, WaitingKind, first_line, show_usd

Blockers: TypeAlias = Mapping[str, Sequence[str]]
MOST_NAMES = 3


class _Metadata(Struct, frozen=True):
    """What the last move of a task says of its attempt."""

    usage_limit: bool = False


def explain_run(records: RunRecords, fleet: Fleet) -> Waiting | None:
    """Why a run as a whole does not move."""
    run = records.run
    if run.phase == Phase.DONE:
        return None
    if run.phase == Phase.HELD:
        return _explain_held_run(records)
    if run.phase == Phase.QUEUED and run.allocates:
        workers = "one worker" if run.worker_count == 1 else f"{run.worker_count} workers"
        needed = read_policy(run.policy).capabilities
        able = f" with {', '.join(needed)}" if needed else ""
        return Waiting("allocation", f"the run waits for {workers} of its own{able}", run.entered_at)
    if run.final_task is None and records.takes(run, "checks_passed") and not records.takes(run, "complete"):
        return Waiting("final_checks", "its tasks are done, and its final checks have not been reported", run.entered_at)
    return None if fleet.living(run.id) else _explain_unattended(records, fleet)


def _explain_unattended(records: RunRecords, fleet: Fleet) -> Waiting:
    """No worker is there: either none has begun, or the last one was stopped, killed or lost."""
    run = records.run
    if run.started_at is None:
        return Waiting("no_worker", "no worker is running it", run.entered_at)
    seen = (fleet.last_seen(task) for task in fleet.held if task.run_id == run.id)
    moved = (task.entered_at for task in records.tasks)
    since = max(run.entered_at, records.moved_at or run.entered_at, *moved, *seen)
    return Waiting("interrupted", "interrupted: no worker is running it", since)


def _explain_held_run(records: RunRecords) -> Waiting:
    run = records.run
    if run.missing_tasks:
        return Waiting("missing_tasks", f"{run.missing_tasks:,} of its tasks have not been added", run.entered_at)
    kind: WaitingKind = "run_paused" if records.takes(run, "resume") else "run_held"
    return Waiting(kind, f"the run is {run.state}", run.entered_at)


def explain_task(task: Task, records: RunRecords, fleet: Fleet, blockers: Blockers) -> Waiting | None:
    """Why a task does not move; of several reasons the one to deal with first."""
    if task.phase == Phase.DONE:
        return None
    if task.cancel_requested_at:
        return Waiting("cancel", "being canceled", task.cancel_requested_at)
    if task.phase == Phase.ACTIVE:
        return _explain_active(task, fleet)
    if task.phase == Phase.HELD and (asked := _explain_person(task, records)):
        is_over = records.run.phase == Phase.DONE and asked.kind in NEEDS_PERSON
        return _explain_closed_run(records, fleet) if is_over else asked
    if task.open_dependencies and (names := blockers.get(task.id)):
        return Waiting("dependency", f"after: {_list_names(names)}", task.created_at)
    if not task.run_open and (closed := _explain_closed_run(records, fleet)):
        return closed
    if task.available_at and task.available_at > fleet.now:
        return _explain_delay(task, fleet)
    return _explain_queued(task, records.run, fleet) if task.phase == Phase.QUEUED else None


def _explain_delay(task: Task, fleet: Fleet) -> Waiting:
    if msgspec.json.decode(task.metadata or "null", type=_Metadata | None) != _Metadata(usage_limit=True):
        return Waiting("retry_delay", "retry scheduled", task.entered_at, task.available_at)
    lane = fleet.lanes.get(task.lane_id)
    tool = lane.tool if lane and lane.tool else "its tool"
    return Waiting("rate_limit", f"{tool} has reached its usage limit", task.entered_at, task.available_at)


def _explain_active(task: Task, fleet: Fleet) -> Waiting | None:
    worker = fleet.workers.get(task.attempt_worker_id or "")
    if worker is None:
        return None
    if fleet.is_alive(worker.id) and not task.lease_expired:
        suspended = f"suspended: its worker {worker.name} is {worker.state}"
        return Waiting("suspended", suspended, worker.entered_at) if is_suspended(worker) else None
    until = None if task.lease_expired else lease_end(worker)
    what = "was killed" if worker.id in fleet.dead else "is lost"
    return Waiting("lost_worker", f"interrupted: its worker {worker.name} {what}", worker.heartbeat_at, until)


def _explain_person(task: Task, records: RunRecords) -> Waiting | None:
    """A task that is held until a person, or its subtasks, move it."""
    if task.question is not None:
        return Waiting("answer", f"needs an answer: {first_line(read_question(task.question).text)}", task.entered_at)
    if task.has_subtasks and records.takes(task, "children_done"):
        number = sum(each.outcome is None for each in records.subtasks.get(task.id, ()))
        subtasks = "subtask" if number == 1 else "subtasks"
        return Waiting("subtasks", f"after: {number:,} {subtasks}" if number else "after: its subtasks", task.entered_at)
    if records.takes(task, "approve"):
        return Waiting(
            "approval", _describe_approval(task, records.run), gates.read_approvals(task).opened_at, gates.expires_at(task)
        )
    if records.takes(task, "accept"):
        return Waiting("review", "needs a review", task.entered_at)
    return Waiting("start", "it has not been started", task.entered_at) if _is_left_to_start(task, records) else None


def _is_left_to_start(task: Task, records: RunRecords) -> bool:
    """In a run that a person starts: a task that a person could start now."""
    if read_policy(records.run.policy).autostart or records.run.phase == Phase.DONE:
        return False
    return records.takes(task, "ready") and (not task.open_dependencies or waits_in_queue(records.machine(task)))


def _describe_approval(task: Task, run: Run) -> str:
    policy, approved_by = read_policy(task.policy), gates.read_approvals(task).approved_by
    excluded = gates.find_excluded(task, run)
    people = f", but not by {excluded}" if excluded else ""
    if policy.approvers:
        people = f" by {' or '.join(each for each in policy.approvers if each != excluded)}"
    if policy.quorum == 1:
        return f"needs approval{people}"
    so_far = f": {', '.join(approved_by)}" if approved_by else ""
    return f"needs approval{people} ({len(approved_by)} of {policy.quorum}{so_far})"


def _explain_closed_run(records: RunRecords, fleet: Fleet) -> Waiting | None:
    run = records.run
    if run.phase == Phase.DONE:
        return Waiting("run_ended", f"the run is {run.state}", run.entered_at)
    return explain_run(records, fleet)


def _explain_queued(task: Task, run: Run, fleet: Fleet) -> Waiting:
    if budgets.is_closed(fleet.account):
        return Waiting("budget", budgets.explain_closed(fleet.account), task.entered_at)
    if budgets.claim_room(run, task) is None and not budgets.can_never_fit(run, task):
        return Waiting("budget", _describe_budget(run), task.entered_at)
    living = fleet.living(run.id)
    if unable := explain_capabilities(fleet.needs_of(task), [fleet.abilities[worker.id] for worker in living]):
        return Waiting("capability", unable, task.entered_at)
    breaker = fleet.breaker_of(task)
    if breaker and (limited := _explain_tool(breaker, fleet)):
        return limited
    return _explain_workers(task, living, fleet)


def _describe_budget(run: Run) -> str:
    assert run.budget_usd is not None
    spent, reserved = show_usd(run.spent_usd), show_usd(run.reserved_usd)
    return f"the budget of the run has no room: {spent} of {show_usd(run.budget_usd)} USD spent, {reserved} reserved"


def explain_capabilities(needed: frozenset[str], abilities: Sequence[frozenset[str]]) -> str:
    """Which of these no worker has; empty where one of them has them all."""
    if not needed or any(needed <= able for able in abilities):
        return ""
    missing = sorted(needed.difference(*abilities))
    if not missing:
        return f"no single worker has the capabilities {', '.join(sorted(needed))}"
    return f"no worker has the {'capability' if len(missing) == 1 else 'capabilities'} {', '.join(missing)}"


def _explain_tool(breaker: Breaker, fleet: Fleet) -> Waiting | None:
    if not breakers.admits(breaker):
        kind: WaitingKind = "rate_limit" if breakers.is_limited(breaker) else "circuit_open"
        return Waiting(kind, describe_circuit(breaker), breaker.entered_at, breaker.retry_at)
    if breaker.max_concurrent is not None and fleet.at_work.get(breaker.tool, 0) >= breaker.max_concurrent:
        return Waiting("tool_limit", f"{breaker.tool} is at its limit of {breaker.max_concurrent} at once", fleet.now)
    free_at = limits.find_free_at(breaker, fleet.now)
    if free_at is None:
        return None
    window = format_duration(breaker.rate_seconds or 0)
    return Waiting("rate_limit", f"{breaker.tool} is at its limit of {breaker.rate_count} in {window}", fleet.now, free_at)


def _explain_workers(task: Task, living: Sequence[Worker], fleet: Fleet) -> Waiting:
    able = [worker for worker in living if fleet.needs_of(task) <= fleet.abilities[worker.id]]
    taking = [worker for worker in able if takes_tasks(worker)]
    if not taking:
        named = f": {able[0].name} is {able[0].state}" if able else ""
        reason = f"no worker takes tasks{named}" if able else "no worker is running it"
        return Waiting("no_worker", reason, task.entered_at)
    if all(fleet.used_slots.get(worker.id, 0) >= worker.max_concurrent_tasks for worker in taking):
        slots = sum(worker.max_concurrent_tasks for worker in taking)
        return Waiting("slots_busy", f"all slots are busy ({slots})", task.entered_at)
    return Waiting("claim", "a worker is about to start it", task.entered_at)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more

"""Timers: each fires once, in the transaction that takes it, unless its entity has moved on."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from pointsman.engine import breakers, gates, runs, tasks, workers
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Kind, Phase
from pointsman.store.clock import NEVER
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Breaker, Entity, Run, Task, Timer, Worker

BATCH = 200


def fire_due(work: Work, limit: int = BATCH, skip: int = 0) -> int:
    """Fire the timers that are due; how many fired."""
    due = work.transaction.find_due_timers(work.now, limit + skip)[skip:]
    _load(work, due, ())
    fired = work.transaction.take_timers(due) if due else []
    for timer in fired:
        _fire(work, timer)
    work.allocation_wanted = True
    return len(fired)


def miss_silent(work: Work, limit: int = BATCH, skip: int = 0, since: datetime = NEVER) -> int:
    """Take the tasks of workers whose lease has expired; how many workers there were. All count as heard of at `since`."""
    silent = work.transaction.find_silent_workers(work.now, limit + skip, since)[skip:]
    _load(work, (), silent)
    for name in silent:
        worker = work.workers.rows[name]
        if not worker.missing and worker.heartbeat_at + timedelta(seconds=worker.lease_seconds) < work.now:
            workers.miss(work, worker)
    return len(silent)


def _load(work: Work, due: Collection[Timer], silent: Collection[str]) -> None:
    """Load everything in locking order: runs, workers, breakers."""
    names = set(silent) | {timer.entity_id for timer in due if timer.kind == Kind.WORKER}
    held = work.transaction.find_held_tasks(sorted(names)) if names else []
    run_ids = {timer.run_id for timer in due if timer.run_id} | {run_id for _, _, run_id in held}
    task_ids = [timer.entity_id for timer in due if timer.kind == Kind.TASK] + [task_id for _, task_id, _ in held]
    work.load(task_ids=task_ids, run_ids=run_ids)
    work.load_workers(names)
    for tenant in {timer.tenant for timer in due if timer.kind == Kind.BREAKER}:
        wanted = {timer.entity_id for timer in due if timer.kind == Kind.BREAKER}
        guarded = work.transaction.list_guarded_breakers(tenant)
        work.load_breakers(tenant, [breaker.tool for breaker in guarded if breaker.id in wanted])


def _fire(work: Work, timer: Timer) -> None:
    row: Entity | None
    match timer.kind:
        case Kind.TASK:
            row = work.tasks.rows.get(timer.entity_id)
        case Kind.RUN:
            row = work.runs.rows.get(timer.entity_id)
        case Kind.WORKER:
            row = work.workers.rows.get(timer.entity_id)
        case _:
            row = work.breakers.rows.get(timer.entity_id)
    if row is None or (row.revision != timer.revision and timer.purpose != "deadline"):
        return
    if timer.purpose == "overstay":
        _report_overstay(work, row, timer)
        _leave_overstayed(work, row)
        return
    match row:
        case Task():
            _fire_for_task(work, row, timer.purpose)
        case Run():
            _fire_for_run(work, row, timer.purpose)
        case Worker() if row.missing:
            workers.try_send(work, row, "expire", Cause(reason="no heartbeat for too long"))
        case Breaker() if timer.purpose == "rate":
            work.wakeups |= Wakeup.TASKS  # more tasks of its tool may start
        case Breaker():
            breakers.try_send(work, row, "delay_over", Cause(reason="cooldown elapsed"))


def _fire_for_task(work: Work, task: Task, purpose: str) -> None:
    match purpose:
        case "retry" if work.takes(task, "delay_over"):
            tasks.try_send(work, task, "delay_over", Cause(reason="retry delay elapsed"))
        case "retry":
            task.available_at = None
            work.tasks.change(task)
            work.unsettled_runs.add(task.run_id)
            work.wakeups |= Wakeup.TASKS
        case "timeout" if task.phase == Phase.ACTIVE:
            seconds = read_policy(task.policy).timeout_seconds or 0
            reason = f"timed out after {format_duration(seconds)}"
            breakers.failed(work, task)
            report = tasks.Report(error=tasks.as_error(reason, type="timeout"), timed_out=True)
            tasks.try_send(work, task, "expire", Cause(reason=reason), report)
        case "reclaim" if task.phase == Phase.ACTIVE:
            workers.lose_lease(work, task, Cause(reason="the attempt exceeded reclaim_after_seconds"))
        case "approval":
            _expire_gate(work, task)
        case _:
            pass


def _expire_gate(work: Work, task: Task) -> None:
    chosen = read_policy(task.policy).on_expiry
    signal = next((each for each in ((chosen,) if chosen else gates.ON_EXPIRY) if work.takes(task, each)), None)
    if signal is not None:
        reason = gates.EXPIRED if chosen is None else f"{gates.EXPIRED}, so on_expire: {chosen} applies"
        tasks.try_send(work, task, signal, Cause(reason=reason), tasks.Report(error=tasks.as_error(reason)))


def _fire_for_run(work: Work, run: Run, purpose: str) -> None:
    if run.phase == Phase.DONE:
        return
    if purpose == "retry":
        runs.try_send(work, run, "delay_over", Cause(reason="retry delay elapsed"))
    elif purpose == "deadline":
        runs.expire(work, run)


def _report_overstay(work: Work, row: Entity, timer: Timer) -> None:
    allowed = work.machine(row).state(row.state).longest_stay_seconds
    if allowed is None:
        return
    message = f"It has been {row.state} for longer than {format_duration(allowed)}."
    work.give_notice(row, timer.kind, timer.run_id, subject="overstayed", message=message)


def _leave_overstayed(work: Work, row: Entity) -> None:
    """What follows then is up to its lifecycle; without a transition for it, nothing does."""
    allowed = work.machine(row).state(row.state).longest_stay_seconds
    if allowed is None or not work.takes(row, "overstay"):
        return
    reason = f"{row.state} for longer than {format_duration(allowed)}"
    match row:
        case Task():
            tasks.try_send(work, row, "overstay", Cause(reason=reason), tasks.Report(error=tasks.as_error(reason)))
        case Run():
            runs.try_send(work, row, "overstay", Cause(reason=reason), error=tasks.as_error(reason))
        case Worker():
            workers.try_send(work, row, "overstay", Cause(reason=reason), error=reason)
        case _:
            pass

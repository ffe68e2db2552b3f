"""Workers: the tasks that a worker holds decide whether it is busy, its heartbeats whether it is alive."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from pointsman.engine import breakers, budgets, tasks
from pointsman.engine.checks import MAX_SECONDS
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.errors import NotYourWorker
from pointsman.kernel.machine import Kind, Outcome, Phase, Refusal, Transition
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Run, Task, Worker

EXPIRES_AFTER_LEASES = 10
"""A worker expires after this many leases without a heartbeat."""
FRESH_LEASES = 0.05
"""A heartbeat younger than this share of a lease is not renewed by a claim."""
MOST_RUNS = 100
MOST_WORKERS = 1000
SHORTEST_LIMIT = timedelta(seconds=1)
LONGEST_LIMIT = timedelta(seconds=MAX_SECONDS)
SUSPENDED = {"suspend": True}
"""The metadata of a pause that also suspends processes. They go on with the next move of the worker, whatever it is."""
AVAILABLE = (Phase.QUEUED.value, Phase.ACTIVE.value)


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    holds_tasks: bool
    has_capacity: bool
    drain_wanted: bool
    pause_wanted: bool
    retryable: bool


def facts_of(work: Work, worker: Worker, *, held: int | None = None, retryable: bool = False) -> WorkerFacts:
    if held is None:
        held = count_held(work, worker)
    return WorkerFacts(
        holds_tasks=held > 0,
        has_capacity=held < worker.max_concurrent_tasks,
        drain_wanted=worker.drain_wanted,
        pause_wanted=worker.pause_wanted,
        retryable=retryable,
    )


def count_held(work: Work, worker: Worker) -> int:
    return work.count_held([worker.id])[worker.id]


def send(work: Work, worker: Worker, signal: str, cause: Cause, *, retryable: bool = False, error: str | None = None) -> None:
    tasks.refuse(try_send(work, worker, signal, cause, retryable=retryable, error=error))


def try_send(
    work: Work,
    worker: Worker,
    signal: str,
    cause: Cause,
    *,
    held: int | None = None,
    retryable: bool = False,
    error: str | None = None,
) -> Refusal | None:
    """Move a worker and its tasks, or return why it cannot move and change nothing."""
    decided = work.decide(worker, signal, facts_of(work, worker, held=held, retryable=retryable))
    if isinstance(decided, Refusal):
        return decided
    for transition in decided:
        # The law lets a worker end only without tasks, so these lose their leases first.
        if "reassign_tasks" in transition.effects or work.machine(worker).state(transition.to_state).phase is Phase.DONE:
            reason = cause.reason or f"worker {worker.name} is {transition.to_state}"
            reassign_tasks(work, worker, Cause(cause.actor, reason))
        work.workers.before_move(worker)
        if worker.missing or work.machine(worker).state(worker.state).longest_stay_seconds is not None:
            work.drop_timers(worker)
        state = work.move(worker, transition, _with_losses(work, worker, cause))
        work.watch_stay(worker, Kind.WORKER, state, worker.run_id)
        _keep_wish(worker, transition)
        if state.phase is Phase.DONE:
            worker.run_id = None
        if "record_error" in transition.effects:
            worker.error = error
        if state.phase is not Phase.ACTIVE:  # a worker that has just become busy frees nothing for others
            work.wakeups |= Wakeup.TASKS
            work.allocation_wanted = True
        work.reviewed_workers.add(worker.id)
    return None


def is_suspended(worker: Worker) -> bool:
    """Whether a person has suspended its processes: its last move was such a pause."""
    return worker.pause_wanted and worker.metadata is not None and msgspec.json.decode(worker.metadata).get("suspend") is True


def may_run_processes(work: Work, worker: Worker, signal: str) -> bool:
    """Whether a signal that kills its processes has to wait until they have ended, or its lease has run out."""
    decided = work.decide(worker, signal, facts_of(work, worker))
    kills = not isinstance(decided, Refusal) and any("kill_processes" in move.effects for move in decided)
    return kills and not worker.missing and count_held(work, worker) > 0


def _with_losses(work: Work, worker: Worker, cause: Cause) -> Cause:
    """Name the tasks it lost that did not move with its own next move: their own history shows nothing."""
    lost = work.lost.pop(worker.id, None)
    return replace(cause, metadata={**(cause.metadata or {}), "lost": lost}) if lost else cause


def _keep_wish(worker: Worker, transition: Transition) -> None:
    """A pause or drain still holds when the worker comes back after missed heartbeats."""
    match transition.signal:
        case "pause" | "resume":
            worker.pause_wanted = transition.signal == "pause"
        case "drain":
            worker.drain_wanted = True
        case _:
            pass


def review(work: Work) -> None:
    """Move every worker whose tasks have changed: busy with its first task, idle after its last."""
    reviewed = sorted(work.reviewed_workers)
    work.reviewed_workers = set()
    if not reviewed:
        return
    work.load_workers(reviewed)
    for worker_id, holds in work.count_held(reviewed).items():
        worker = work.workers.rows[worker_id]
        if holds < worker.max_concurrent_tasks <= holds - work.held_change[worker_id]:
            work.wakeups |= Wakeup.TASKS  # it had no room, and may already wait for its next task
        if holds and worker.phase == Phase.QUEUED:
            # The guard asks whether there was room before it got this task.
            try_send(work, worker, "assign", Cause(), held=holds - 1)
        elif not holds and worker.phase != Phase.DONE:
            _free(work, worker)


def _free(work: Work, worker: Worker) -> None:
    """Its last task has ended: it becomes idle, or leaves if it drains. One that may not work gives up its run."""
    if worker.terminate_wanted:
        try_send(work, worker, "terminate", Cause(reason="last task ended"), held=0)
    elif worker.drain_wanted and work.takes(worker, "drain"):
        try_send(work, worker, "drain", Cause(reason="last task ended"), held=0)
    elif work.takes(worker, "release"):
        try_send(work, worker, "release", Cause(), held=0)
    if worker.run_id and worker.phase not in AVAILABLE:
        worker.run_id = None
        work.workers.change(worker)
    work.allocation_wanted = True


def heard_of(work: Work, worker: Worker, *, by_claim: bool = False) -> None:
    """Record a heartbeat. A claim counts as one, but is recorded only if the last heartbeat is not fresh."""
    fresh_until = worker.heartbeat_at + timedelta(seconds=worker.lease_seconds * FRESH_LEASES)
    if worker.missing or not by_claim or work.now >= fresh_until:
        worker.heartbeat_at = max(work.now, worker.heartbeat_at)
        work.workers.change(worker)
    if worker.missing:
        worker.missing = False
        work.drop_timers(worker)
        if work.takes(worker, "recover"):
            try_send(work, worker, "recover", Cause(reason="heartbeats resumed"))
        work.wakeups |= Wakeup.TIMERS
        work.allocation_wanted = True


def miss(work: Work, worker: Worker) -> None:
    """Its lease has expired: its tasks go to others, and without further heartbeats it expires later."""
    worker.missing = True
    worker.run_id = None
    work.workers.change(worker)
    silence = f"no heartbeat for {worker.lease_seconds:g} seconds"
    reassign_tasks(work, worker, Cause(reason=f"worker {worker.name} is gone: {silence}"))
    if worker.terminate_wanted:
        try_send(work, worker, "terminate", Cause(reason=silence))
    elif work.takes(worker, "suspect"):
        try_send(work, worker, "suspect", Cause(reason=silence))
    work.allocation_wanted = True
    if worker.phase != Phase.DONE:
        due_at = worker.heartbeat_at + timedelta(seconds=worker.lease_seconds * EXPIRES_AFTER_LEASES)
        work.set_timer(worker, Kind.WORKER, "expire", due_at)


def retire(work: Work, worker: Worker, cause: Cause) -> None:
    """Its process has ended, and its machine has no force for that: it loses its tasks, and leaves as if it had none."""
    reassign_tasks(work, worker, cause)
    if try_send(work, worker, "drain", cause):
        send(work, worker, "expire", cause)


def reassign_tasks(work: Work, worker: Worker, cause: Cause) -> None:
    work.flush()
    for _, task_id, _ in work.transaction.find_held_tasks([worker.id]):
        work.load(task_ids=[task_id])
        lose_lease(work, work.tasks.rows[task_id], Cause(cause.actor, cause.reason))


def lose_lease(work: Work, task: Task, cause: Cause) -> None:
    """An attempt has lost its lease. If the machine has no transition for that, the next claim takes the task over as it is."""
    if task.phase != Phase.ACTIVE or task.lease_expired:
        return
    work.leases_lost.append((task.run_id, task.id, task.epoch, task.attempt_worker_id))
    error = tasks.as_error(cause.reason or "attempt lost")
    if task.cancel_requested_at is not None and tasks.try_send(work, task, "cancel", cause, tasks.Report(error=error)) is None:
        return
    moves = work.machine(task).moves(task.state, "lease_lost")
    machine_counts = any(guard.name == "reclaims_left" for move in moves for guard in move.guards)
    if not machine_counts and tasks.is_used_up(task):
        reason = f"{cause.reason}; no reclaims left"
        tasks.try_send(
            work, task, "fail", Cause(cause.actor, reason), tasks.Report(error=tasks.as_error(reason), retryable=False)
        )
    elif not moves:
        task.reclaim_count += 1
        _expire_lease(work, task)
    elif _send_lease_lost(work, task, cause) and task.outcome is None:
        task.reclaim_count = min(task.reclaim_count + 1, task.max_reclaims)
    tasks.keep_session(work, task)


def give_back(work: Work, task: Task, cause: Cause, report: tasks.Report) -> None:
    """A worker has run out of something: that counts as a reclaim, since the task may be what uses too much of it.

    A machine that knows only failure as a way out of an attempt fails, and is tried again in the same commit.
    """
    is_last, reclaims = tasks.is_used_up(task), task.reclaim_count + 1
    tasks.note_attempt(work, task, report)
    lose_lease(work, task, cause)
    if task.outcome == Outcome.FAILURE and not is_last:
        _try_again(work, task, cause)
        task.reclaim_count = reclaims
        tasks.keep_session(work, task)


def _try_again(work: Work, task: Task, cause: Cause) -> None:
    """In the same commit, so that its run does not fail with it."""
    tasks.try_again(work, task, cause)
    if task.phase != Phase.DONE:
        work.failed.remove(task.id)


def interrupt(work: Work, task: Task, cause: Cause, report: tasks.Report) -> None:
    """A person has stopped the worker: the attempt does not count, and the task waits for the next claim.

    A machine that knows only failure as a way out of an attempt fails, and is tried again in the same commit.
    """
    if task.cancel_requested_at is not None and tasks.try_send(work, task, "cancel", cause, report) is None:
        return
    can_lose_lease = bool(work.machine(task).moves(task.state, "lease_lost"))
    if not can_lose_lease and report.usage_limit_until is None:
        task.attempt_count -= 1
        tasks.note_attempt(work, task, report)
        _expire_lease(work, task)
        tasks.keep_session(work, task)
        return
    # A task that waits for the end of a usage limit is not active: no worker has it.
    tasks.send(work, task, "lease_lost" if can_lose_lease else "fail", cause, report)
    if task.outcome == Outcome.FAILURE:
        _try_again(work, task, cause)
    tasks.keep_session(work, task)


def meet_usage_limit(work: Work, task: Task, cause: Cause, report: tasks.Report, until: datetime) -> None:
    """The tool has reached its usage limit: an interruption, and neither this task nor others of the tool begin before it ends.

    A limit that has ended already delays by a moment: a tool that reports the wrong time must not be started without a pause.
    """
    until = min(max(until, work.now + SHORTEST_LIMIT), work.now + LONGEST_LIMIT).astimezone(UTC)
    report = replace(report, usage_limit_until=until)
    interrupt(work, task, cause, report)
    if task.phase in (Phase.QUEUED, Phase.HELD):
        tasks.wait_until(work, task, until, report)
    breakers.meet_usage_limit(work, task, until)


def _expire_lease(work: Work, task: Task) -> None:
    """The machine has no transition for a lost attempt: the next claim takes the task over as it is."""
    task.lease_expired = True
    # The next attempt reserves budget and the probe of its tool again. It must not wait for those of this one.
    budgets.settle(work, task)
    breakers.leave(work, task)
    work.tasks.change(task)
    assert task.attempt_worker_id
    work.lost.setdefault(task.attempt_worker_id, []).append(task.id)
    work.change_held(task.attempt_worker_id, -1)
    work.wakeups |= Wakeup.TASKS | Wakeup.WORKERS
    if work.runs.rows[task.run_id].phase == Phase.DONE:
        tasks.end_lost(work, task)


def _send_lease_lost(work: Work, task: Task, cause: Cause) -> bool:
    reason = cause.reason or "attempt lost"
    if tasks.is_used_up(task):
        reason += f"; interrupted {task.reclaim_count + 1} times, and at most {task.max_reclaims} reclaims are allowed"
    error = tasks.as_error(reason)
    return tasks.try_send(work, task, "lease_lost", replace(cause, reason=reason), tasks.Report(error=error)) is None


def release_from_run(work: Work, run: Run) -> None:
    """Free the workers that are allocated to a run."""
    work.flush()
    names = work.transaction.find_run_workers([run.id])
    work.load_workers(names)
    for name in names:
        worker = work.workers.rows[name]
        worker.run_id = None
        work.workers.change(worker)
        work.reviewed_workers.add(name)
        work.wakeups |= Wakeup.TASKS  # it may claim tasks of other runs now
    work.allocation_wanted = True


def allocate(work: Work) -> None:
    """Allocate workers to runs that wait for their own: all that a run needs, or none. Replace those that were lost."""
    work.allocation_wanted = False
    work.flush()
    idle: set[str] = set()
    """Tenants without free workers."""
    for run_id, tenant in work.transaction.list_allocatable_runs(MOST_RUNS):
        if tenant in idle or not work.transaction.find_free_workers(tenant, 1):
            idle.add(tenant)
            continue
        run = work.try_lock_run(run_id)
        if run is None:
            work.passed_over.add(run_id)
            continue
        if run.phase not in AVAILABLE:
            continue  # it ended before it was locked
        free = _take_free(work, run)
        if run.phase == Phase.QUEUED and not _start_with(work, run, free):
            continue
        for worker in free:
            worker.run_id, worker.last_tenant = run.id, run.tenant
            work.workers.change(worker)
            work.wakeups |= Wakeup.TASKS  # a claim of it that waits is for tasks of this run from now on
            if worker.phase == Phase.QUEUED:
                try_send(work, worker, "assign", Cause(reason=f"allocated to {run.name}", metadata={"run_id": run.id}), held=0)
        work.flush()


def _take_free(work: Work, run: Run) -> list[Worker]:
    """The free workers that the run lacks, with the capabilities that it needs, checked again once they are locked.

    A transaction that allocates has locked workers before runs, so it never waits for a lock: another one may wait for it.
    """
    lacking = run.worker_count - len(work.transaction.find_run_workers([run.id]))
    names = work.transaction.find_free_workers(run.tenant, MOST_WORKERS, read_policy(run.policy).capabilities, run.id)
    workers = work.try_lock_workers(names, max(lacking, 0))
    held = work.count_held([worker.id for worker in workers])
    found = [
        worker
        for worker in workers
        if worker.phase in AVAILABLE and worker.run_id is None and not worker.missing and not held[worker.id]
    ]
    if len(found) < lacking <= len(names):
        work.passed_over.add(run.id)
    return found


def lock_for_allocation(work: Work, run_ids: Collection[str]) -> None:
    """Lock runs that were passed over, and then every worker that they might get: in that order it is safe to wait."""
    work.lock_runs(run_ids)
    for tenant in sorted({run.tenant for run in work.runs.rows.values()}):
        work.load_workers(work.transaction.find_free_workers(tenant, MOST_WORKERS))
    work.allocation_wanted = True


def _start_with(work: Work, run: Run, free: list[Worker]) -> bool:
    from pointsman.engine import runs

    facts = runs.facts_of(run, free_workers=len(free))
    return runs.try_send(work, run, "start", Cause(reason=f"{len(free)} free workers"), facts=facts) is None


def find_own(work: Work, tenant: str, key_id: str | None, worker_id: str) -> Worker:
    """The worker as which a caller acts."""
    worker = work.worker(tenant, worker_id)
    check_key(worker, key_id)
    return worker


def check_key(worker: Worker, key_id: str | None) -> None:
    """A key acts only as the workers that it has registered. Without a key, a caller has the database or its server."""
    if key_id is not None and worker.key_id != key_id:
        raise NotYourWorker(worker.id)


def served_tenants(worker: Worker) -> frozenset[str] | None:
    """The tenants that a worker serves; None for all of them."""
    others: list[str] | str = msgspec.json.decode(worker.serves)
    return None if isinstance(others, str) else frozenset([worker.tenant, *others])


def serves(worker: Worker, tenant: str) -> bool:
    served = served_tenants(worker)
    return served is None or tenant in served


def capabilities(worker: Worker) -> set[str]:
    return set(msgspec.json.decode(worker.capabilities, type=list[str]))

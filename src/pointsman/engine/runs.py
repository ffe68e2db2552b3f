"""Runs: the state of a run follows from its tasks, in the same commit, along the transitions of its machine."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from pointsman.engine import tasks, workers
from pointsman.engine.checks import MAX_TEXT_BYTES
from pointsman.engine.machines import once_for_each_machine
from pointsman.engine.policy import read_policy
from pointsman.engine.work import Cause, Work
from pointsman.kernel.machine import Kind, Machine, Outcome, Phase, Refusal, State, Transition
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Run, Situation, Task

FAILURES = ("fail", "expire", "checks_failed")
UNFINISHED = (Phase.HELD.value, Phase.QUEUED.value, Phase.ACTIVE.value)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts that the guards of a run ask for."""

    has_checks: bool
    retries_left: bool
    all_tasks_created: bool
    all_tasks_succeeded: bool
    critical_failure: bool
    workers_available: bool
    retryable: bool


def facts_of(run: Run, situation: Situation | None = None, *, free_workers: int = 0, retryable: bool = True) -> RunFacts:
    """The facts of a run. The situation may be left out where its tasks do not matter."""
    return RunFacts(
        has_checks=run.has_checks,
        retries_left=run.retry_count < run.max_retries,
        all_tasks_created=run.missing_tasks == 0,
        all_tasks_succeeded=situation is not None and not situation.unfinished,
        critical_failure=situation is not None and situation.failed_task is not None,
        workers_available=free_workers >= run.worker_count,
        retryable=retryable,
    )


def assess(work: Work, run: Run) -> Situation:
    """The situation of the tasks of a run, including what was decided in this transaction."""
    work.flush()
    return work.transaction.assess_runs([run.id])[0]


def send(work: Work, run: Run, signal: str, cause: Cause, *, error: str | None = None, output: str | None = None) -> None:
    """Move a run, or raise `TransitionRefused` and change nothing."""
    tasks.refuse(try_send(work, run, signal, cause, error=error, output=output))


def make_ready(work: Work, run: Run) -> None:
    """Send `ready` to a run whose tasks are all created, if its machine takes that signal."""
    if run.missing_tasks == 0 and work.takes(run, "ready"):
        try_send(work, run, "ready", Cause(reason="all tasks created"), facts=facts_of(run))


def try_send(
    work: Work,
    run: Run,
    signal: str,
    cause: Cause,
    *,
    facts: RunFacts | None = None,
    error: str | None = None,
    output: str | None = None,
    reopens: bool = True,
) -> Refusal | None:
    """Move a run and what depends on its state, or return why it cannot move and change nothing."""
    decided = work.decide(run, signal, facts or facts_of(run, assess(work, run)))
    if isinstance(decided, Refusal):
        return decided
    for transition in decided:
        _take(work, run, transition, cause, error, output)
    if error is not None and signal in FAILURES:
        run.error = error  # also where its machine calls that a cancellation
        work.runs.change(run)
    if reopens and signal in ("retry", "delay_over"):
        _reopen_tasks(work, run, cause)
    work.unsettled_runs.add(run.id)
    return None


def settle(work: Work) -> None:
    """Move every run whose tasks have changed to where its tasks lead."""
    busy = work.busy_runs | {task.run_id for task in work.tasks.rows.values() if _goes_on(task)}
    unsettled = [run_id for run_id in sorted(work.unsettled_runs) if _may_follow(work, work.runs.rows[run_id], busy)]
    work.unsettled_runs = set()
    if not unsettled:
        return
    work.flush()
    for situation in work.transaction.assess_runs(unsettled):
        _settle_one(work, work.runs.rows[situation.run_id], situation)


def may_wait(work: Work) -> bool:
    """Whether runs can be settled after the claims, which often leave nothing to settle."""
    return not work.struck_runs and all(work.runs.rows[run_id].phase == Phase.ACTIVE for run_id in work.unsettled_runs)


def _may_follow(work: Work, run: Run, busy: Set[str]) -> bool:
    """A run stays as it is while one of its tasks continues, unless another task has just failed."""
    stays = run.phase in (Phase.QUEUED, Phase.ACTIVE) and run.id in busy and run.id not in work.struck_runs
    return run.phase != Phase.DONE and not stays


def _goes_on(task: Task) -> bool:
    return task.phase == Phase.ACTIVE or (task.phase == Phase.QUEUED and task.open_dependencies == 0)


def _settle_one(work: Work, run: Run, situation: Situation) -> None:
    facts = facts_of(run, situation)
    # A new failure stops a run at once. An old one stops it when no task continues: a person may be retrying one by one.
    if situation.failed_task and (run.id in work.struck_runs or not situation.moving):
        _fail(work, run, facts, situation.failed_task)
    elif run.missing_tasks:
        return
    elif situation.last_failure and not situation.failed_task:
        _fail(work, run, facts, situation.last_failure)
    elif not situation.unfinished and _is_checked(work, run):
        _check(work, run, facts)
    elif not situation.unfinished and not run.has_checks and _add_last_task(work, run):
        return
    elif not situation.unfinished:
        _begin(work, run, facts)
        try_send(work, run, "complete", Cause(reason="all tasks succeeded"), facts=facts)
    elif not situation.moving:
        _wait(work, run, facts)
    elif run.phase == Phase.HELD and work.takes(run, "proceed"):
        try_send(work, run, "proceed", Cause(reason="tasks continue"), facts=facts)


def _add_last_task(work: Work, run: Run) -> bool:
    """Add what a run without final checks ends with, such as a merge: until that is done, it has not completed."""
    from pointsman.engine import submit

    return submit.add_final_task(work, run)


def _is_checked(work: Work, run: Run) -> bool:
    """Whether only its final checks are left."""
    return work.takes(run, "checks_passed") and not work.takes(run, "complete")


def _check(work: Work, run: Run, facts: RunFacts) -> None:
    """Let a worker run the final checks; without any, they have passed. Some are reported by somebody else."""
    from pointsman.engine import submit

    if run.final_task is None and run.has_checks:
        return
    if run.final_task is None or not submit.add_final_task(work, run):
        reason = "all checks passed" if run.has_checks else "it has no checks"
        try_send(work, run, "checks_passed", Cause(reason=reason), facts=facts)


def _fail(work: Work, run: Run, facts: RunFacts, task_id: str) -> None:
    due_at = _find_deadline(run)
    if due_at and work.now >= due_at:  # its worker was faster than the timer: that a task was stopped is not the reason
        expire(work, run)
        return
    work.load(task_ids=[task_id])
    task = work.tasks.rows[task_id]
    _begin(work, run, facts)
    cause = Cause(reason=f"{task.name} is {task.state}", metadata={"task_id": task.id})
    signal = "checks_failed" if _is_checked(work, run) else "fail"
    try_send(work, run, signal, cause, facts=facts, error=task.error)


def expire(work: Work, run: Run) -> None:
    """The run has exceeded its timeout. One that has not started, or is paused, starts or resumes first so that it can end."""
    reason = "the run exceeded its timeout"
    for signal in ("start", "resume"):
        if not work.takes(run, "expire") and work.takes(run, signal) and not run.allocates:
            try_send(work, run, signal, Cause(reason=reason), facts=facts_of(run))
    facts = facts_of(run, assess(work, run), retryable=False)
    try_send(work, run, "expire", Cause(reason=reason), facts=facts, error=tasks.as_error(reason, type="timeout"))


def _wait(work: Work, run: Run, facts: RunFacts) -> None:
    if has_waiting(work.machine(run)):
        _begin(work, run, facts)
        try_send(work, run, "wait", Cause(reason="waiting for a person"), facts=facts)


@once_for_each_machine
def has_waiting(machine: Machine) -> bool:
    """Whether runs have a state for waiting. Elsewhere, a run of which nothing has started stays where it is."""
    return any(move.signal == "wait" for move in machine.transitions)


def _begin(work: Work, run: Run, facts: RunFacts) -> None:
    """Start a run that has not started: every machine requires that before it can end."""
    if run.phase == Phase.QUEUED and not run.allocates:
        try_send(work, run, "start", Cause(reason="started so that it can end"), facts=facts)


def _take(work: Work, run: Run, transition: Transition, cause: Cause, error: str | None, output: str | None) -> None:
    if output is None and "store_output" in transition.effects:
        output = _collect_outputs(work, run)  # the law stores an output only with the move itself
    work.runs.before_move(run)
    left = work.machine(run).state(run.state)
    if left.longest_stay_seconds is not None or "schedule_retry" in _effects_into(work, run, left):
        work.drop_timers(run)
        _set_deadline(work, run)
    was_open = is_open(run, left)
    _count(run, transition)
    state = work.move(run, transition, cause.after_retries(run.retry_count))
    if state.phase is Phase.DONE and read_policy(run.policy).timeout_seconds is not None:
        work.drop_timers(run)
    work.watch_stay(run, Kind.RUN, state, run.id)
    for effect in transition.effects:
        _apply(work, run, effect, cause, error, output)
    # A run that has succeeded has no task left to start.
    if is_open(run, state) != was_open and state.outcome is not Outcome.SUCCESS:
        _open(work, run, now_open=is_open(run, state))
    if state.phase is Phase.QUEUED and run.allocates:
        work.allocation_wanted = True
    if state.phase is Phase.DONE and state.outcome is not Outcome.SUCCESS:
        _end_lost_tasks(work, run)


def _collect_outputs(work: Work, run: Run) -> str:
    """The result of a run: the outputs of its tasks by name, or only the names if they are too large for one value."""
    work.flush()
    done = [task for task in work.transaction.list_tasks_in_brief(run.tenant, run.id) if task.parent_task_id is None]
    outputs = {task.name: msgspec.Raw(task.output.encode()) if isinstance(task.output, str) else None for task in done}
    encoded = msgspec.json.encode(outputs)
    return (encoded if len(encoded) <= MAX_TEXT_BYTES else msgspec.json.encode(dict.fromkeys(outputs))).decode()


def _end_lost_tasks(work: Work, run: Run) -> None:
    work.flush()
    for task in work.transaction.select_run_tasks(run.id, (Phase.ACTIVE.value,)):
        work.tasks.hold([task])
        held = work.tasks.rows[task.id]
        if held.phase == Phase.ACTIVE and held.lease_expired:
            tasks.end_lost(work, held)


def _effects_into(work: Work, run: Run, state: State) -> set[str]:
    return {effect for move in work.machine(run).transitions if move.to_state == state.name for effect in move.effects}


def is_open(run: Run, state: State) -> bool:
    """Whether tasks of a run in this state may start. A run with workers of its own needs them first."""
    if run.missing_tasks:
        return False
    return state.phase is Phase.ACTIVE or (state.phase is Phase.QUEUED and not run.allocates)


def tell_tasks(work: Work, run: Run) -> None:
    """Store with the tasks of a run whether they may start."""
    _open(work, run, now_open=is_open(run, work.machine(run).state(run.state)))


def _open(work: Work, run: Run, *, now_open: bool) -> None:
    work.flush()
    work.transaction.open_runs([run.id], is_open=now_open)
    for task in work.tasks.rows.values():
        if task.run_id == run.id:
            task.run_open = now_open
    work.wakeups |= Wakeup.WORKERS  # what runs may be suspended, or go on
    if now_open:
        work.wakeups |= Wakeup.TASKS


def _count(run: Run, transition: Transition) -> None:
    """Before the move, which is stored with the count."""
    if "count_retry" in transition.effects:
        run.retry_count += 1
    elif "reset_retries" in transition.effects:
        run.retry_count = 0


def _apply(work: Work, run: Run, effect: str, cause: Cause, error: str | None, output: str | None) -> None:
    match effect:
        case "schedule_retry":
            delay = read_policy(run.policy).backoff.delay(max(run.retry_count - 1, 0), work.world.chance)
            work.set_timer(run, Kind.RUN, "retry", work.now + delay, run.id)
            run.error = error
        case "record_error":
            run.error = error
        case "store_output":
            run.output = output
        case "cancel_tasks":
            _cancel_tasks(work, run, cause)
        case "release_workers":
            workers.release_from_run(work, run)
        case _:
            pass  # for the worker: plans, worktrees, archives, processes


def _cancel_tasks(work: Work, run: Run, cause: Cause) -> None:
    """Cancel every task that has not ended. A running one is canceled when its worker has ended the process."""
    work.flush()
    reason = cause.reason or f"the run is {run.state}"
    for task in work.transaction.select_run_tasks(run.id, UNFINISHED):
        work.tasks.hold([task])
        tasks.withdraw(work, work.tasks.rows[task.id], Cause(cause.actor, reason))


def end_tasks(work: Work, run: Run) -> None:
    """Cancel what a run that has ended leaves open, where its machine says so. It was ended by hand."""
    if "cancel_tasks" in _effects_into(work, run, work.machine(run).state(run.state)):
        _cancel_tasks(work, run, Cause(reason=f"the run is {run.state}"))


def cancel_running(work: Work, run: Run, cause: Cause) -> bool:
    """Cancel the tasks that still run although their run has ended; whether there were any."""
    canceled = False
    for task in find_running(work, run):
        work.tasks.hold([task])
        canceled |= tasks.cancel(work, work.tasks.rows[task.id], cause) is None
    return canceled


def find_running(work: Work, run: Run) -> list[Task]:
    """The tasks of a run that still run, and that nobody has canceled."""
    work.flush()
    running = work.transaction.select_run_tasks(run.id, (Phase.ACTIVE.value,))
    return [task for task in running if task.cancel_requested_at is None]


def _reopen_tasks(work: Work, run: Run, cause: Cause) -> None:
    """A retry of a run retries the tasks that failed in it."""
    work.flush()
    for task in work.transaction.select_run_tasks(run.id, (Phase.DONE.value,)):
        work.tasks.hold([task])
        tasks.try_again(work, work.tasks.rows[task.id], cause)


def _set_deadline(work: Work, run: Run) -> None:
    """Set the timeout of the whole run again, after all timers of the run were dropped."""
    if due_at := _find_deadline(run):
        work.set_timer(run, Kind.RUN, "deadline", due_at, run.id)


def _find_deadline(run: Run) -> datetime | None:
    seconds = read_policy(run.policy).timeout_seconds
    return None if seconds is None else run.created_at + timedelta(seconds=seconds)

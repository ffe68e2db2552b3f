"""Tasks: the kernel decides where a signal leads; the phases and effects of that transition decide what changes.

Entering `active` begins an attempt, leaving it ends the attempt. Entering `done` releases or blocks the dependents of the
task. Nothing here knows the name of a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from msgspec import UNSET

from pointsman.engine import breakers, budgets, gates
from pointsman.engine.budgets import NO_USAGE, Usage
from pointsman.engine.machines import waits_in_queue
from pointsman.engine.people import AGAIN
from pointsman.engine.policy import Policy, read_policy
from pointsman.engine.work import Cause, Work
from pointsman.errors import TransitionRefused
from pointsman.kernel.machine import Kind, Machine, Outcome, Phase, Refusal, State, Transition
from pointsman.store.contract import Wakeup
from pointsman.store.rows import ZERO_USD, BegunTask, Run, Task, Worker


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker reports about its attempt with a signal, or a person says with one."""

    output: str | None = None
    error: str | None = None
    exit_code: int | None = None
    usage: Usage = NO_USAGE
    """Since the last report."""
    session_id: str | None = None
    log_path: str | None = None
    retryable: bool = True
    usage_limit_until: datetime | None = None
    """A usage limit of the tool lasts until this instant: the attempt does not count."""
    interrupted: bool = False
    """A person has stopped the worker: the attempt does not count."""
    timed_out: bool = False
    """It took too long: the next attempt continues its session, under every lifecycle."""
    question: str | None = None
    answer: str | None = None
    comment: str | None = None
    process_ended: bool = True
    adds_subtasks: bool = False
    """With this report, which are open then."""
    quorum_reached: bool = True
    """As many people have approved as the gate asks for."""
    worker: Worker | None = None
    """The worker that claims the task."""

    @property
    def counts(self) -> bool:
        """Whether the attempt counts towards the limits of its task."""
        return self.usage_limit_until is None and not self.interrupted


NOTHING = Report()


class TaskFacts:
    """The facts that the guards of a task ask for, each computed when it is asked for."""

    __slots__ = ("_report", "_task", "_work")

    def __init__(self, work: Work, task: Task, report: Report) -> None:
        self._work = work
        self._task = task
        self._report = report

    @property
    def dependencies_met(self) -> bool:
        return self._task.open_dependencies == 0

    @property
    def due(self) -> bool:
        return self._task.available_at is None or self._task.available_at <= self._work.now

    @property
    def is_gate(self) -> bool:
        return self._task.is_gate

    @property
    def top_level(self) -> bool:
        return is_top_level(self._work.runs.rows[self._task.run_id], self._task)

    @property
    def has_checks(self) -> bool:
        return self._task.has_checks

    @property
    def has_session(self) -> bool:
        return (self._report.session_id or self._task.session_id) is not None

    @property
    def open_subtasks(self) -> bool:
        subtasks = self._work.subtasks_of.get(self._task.id)
        return self._report.adds_subtasks or (subtasks is not None and not subtasks.is_done)

    @property
    def review_wanted(self) -> bool:
        return self._task.review_wanted

    @property
    def process_ended(self) -> bool:
        return self._report.process_ended

    @property
    def quorum_reached(self) -> bool:
        return self._report.quorum_reached

    @property
    def lease_expired(self) -> bool:
        return self._task.lease_expired

    @property
    def retries_left(self) -> bool:
        """An attempt that does not count always leaves one."""
        if not self._report.counts:
            return True
        return has_retries_left(self._work.machine(self._task), self._task)

    @property
    def attempts_left(self) -> bool:
        return not self._report.counts or not attempts_used_up(self._task)

    @property
    def reclaims_left(self) -> bool:
        return not self._report.counts or not is_used_up(self._task)

    @property
    def retryable(self) -> bool:
        return not self._report.counts or (self._report.retryable and self.retry_on_failure)

    @property
    def retry_on_failure(self) -> bool:
        """An attempt that does not count is no failure of the task."""
        return not self._report.counts or read_policy(self._task.policy).retry_on_failure

    @property
    def exit_code_expected(self) -> bool:
        exit_code = self._report.exit_code
        return exit_code is None or exit_code in read_policy(self._task.policy).expected_exit_codes

    @property
    def breaker_open(self) -> bool:
        """An attempt that does not count says nothing of its tool, and waits for it like all others."""
        return self._report.counts and breakers.is_open(self._work, self._task)


def check(work: Work, task: Task, signal: str, report: Report) -> tuple[Transition, ...]:
    """The transitions that a signal leads to; raises `TransitionRefused` if there are none."""
    decided = decide(work, task, signal, report)
    if isinstance(decided, Refusal):
        raise TransitionRefused(decided)
    return decided


def decide(work: Work, task: Task, signal: str, report: Report) -> tuple[Transition, ...] | Refusal:
    """What the kernel decides. Three rules hold for every machine: no task is ready before its dependencies are met, no task
    enters a state that needs a session without one, and no result is accepted while a subtask is open.
    """
    facts = TaskFacts(work, task, report)
    decided = work.decide(task, signal, facts)
    if isinstance(decided, Refusal):
        return decided
    machine = work.machine(task)
    if decided[0].signal == "ready" and task.open_dependencies and not waits_in_queue(machine):
        return machine.refuse(task.state, signal, already_there=False, unmet=("dependencies_met",))
    if not facts.has_session and any("session" in machine.state(move.to_state).needs for move in decided):
        return machine.refuse(task.state, signal, already_there=False, unmet=("has_session",))
    if decided[0].signal == "accept" and facts.open_subtasks:
        return machine.refuse(task.state, signal, already_there=False, unmet=("not open_subtasks",))
    return decided


def refuse(refusal: Refusal | None) -> None:
    if refusal:
        raise TransitionRefused(refusal)


def send(work: Work, task: Task, signal: str, cause: Cause, report: Report = NOTHING) -> None:
    """Move a task, or raise `TransitionRefused` and change nothing."""
    refuse(try_send(work, task, signal, cause, report))


def try_send(work: Work, task: Task, signal: str, cause: Cause, report: Report = NOTHING) -> Refusal | None:
    """Move a task, or return why it cannot move and change nothing."""
    decided = decide(work, task, signal, report)
    if isinstance(decided, Refusal):
        return decided
    take(work, task, decided, cause, report)
    return None


def take(work: Work, task: Task, decided: tuple[Transition, ...], cause: Cause, report: Report) -> None:
    """Move a task along transitions that were decided for it."""
    for transition in decided:
        _take(work, task, transition, cause, report)


def cancel(work: Work, task: Task, cause: Cause) -> Refusal | None:
    """Cancel a task now, or request that its worker ends the process first. The worker of a job is not free before that."""
    running = may_run(task)
    if running and task.allocated and work.takes(task, "cancel"):
        _request_cancel(work, task, cause)
        return None
    report = Report(process_ended=not running, retryable=False, error=as_error(cause.reason or "canceled"))
    refusal = try_send(work, task, "cancel", cause, report)
    if refusal and running and work.takes(task, "cancel"):
        _request_cancel(work, task, cause)
        return None
    return refusal


def _request_cancel(work: Work, task: Task, cause: Cause) -> None:
    """The worker moves the task when its process has ended; who wanted that is kept now."""
    if task.cancel_requested_at is None:
        task.cancel_requested_at = work.now
        work.tasks.change(task)
        message = cause.sign("Its worker is to end it.")
        work.give_notice(task, Kind.TASK.value, task.run_id, subject="cancel", message=message)
        work.wakeups |= Wakeup.WORKERS


def withdraw(work: Work, task: Task, cause: Cause) -> None:
    """Cancel a task of a run that ends. Where nobody can cancel a task that waits for a person, it goes back to work first."""
    if cancel(work, task, cause) is None or task.phase != Phase.HELD:
        return
    for signal in ("reject", "answer"):
        if work.takes(task, signal) and try_send(work, task, signal, cause) is None:
            cancel(work, task, cause)
            return


def is_top_level(run: Run, task: Task) -> bool:
    """Whether its result is one of the run. Nobody reviews that of checks or of a merge."""
    return task.parent_task_id is None and not read_policy(task.policy).auxiliary and not _is_final(run, task)


def _is_final(run: Run, task: Task) -> bool:
    if run.final_task is None:
        return False
    found = msgspec.json.decode(run.final_task)
    return task.name in ([each["name"] for each in found] if isinstance(found, list) else (found["name"],))


def may_run(task: Task) -> bool:
    """Whether a worker may be running it."""
    return task.phase == Phase.ACTIVE and not task.lease_expired


def end_lost(work: Work, task: Task) -> None:
    """End a task whose attempt was lost after its run had ended: no claim will take it over."""
    reason = "attempt lost after the run had ended"
    if cancel(work, task, Cause(reason=reason)):
        try_send(work, task, "fail", Cause(reason=reason), Report(error=as_error(reason), retryable=False))


def try_again(work: Work, task: Task, cause: Cause) -> None:
    """Retry a task that has failed, if its machine has a transition for that."""
    if task.outcome != Outcome.FAILURE:
        return
    for signal in AGAIN:
        if work.takes(task, signal) and try_send(work, task, signal, cause) is None:
            grant_attempt(task)
            break


def grant_attempt(task: Task) -> None:
    """Allow one more attempt: what a person asks for does not fail because of the limit."""
    if task.phase != Phase.DONE and task.max_attempts is not None:
        task.attempt_count = min(task.attempt_count, task.max_attempts - 1)


def is_used_up(task: Task) -> bool:
    """Neither another reclaim nor another attempt is left."""
    return task.reclaim_count >= task.max_reclaims or attempts_used_up(task)


def attempts_used_up(task: Task) -> bool:
    return task.max_attempts is not None and task.attempt_count >= task.max_attempts


def has_retries_left(machine: Machine, task: Task) -> bool:
    """A machine that counts no retries counts attempts; those that were lost are no failures."""
    counts_retries = any("count_retry" in move.effects for move in machine.transitions)
    retries = task.retry_count if counts_retries else task.attempt_count - task.reclaim_count - 1
    return retries < task.max_retries and not attempts_used_up(task)


def as_error(message: str, **details: object) -> str:
    return msgspec.json.encode({"message": message, **details}).decode()


def _take(work: Work, task: Task, transition: Transition, cause: Cause, report: Report) -> None:
    work.tasks.before_move(task)
    machine = work.machine(task)
    left, entered = machine.state(task.state), machine.state(transition.to_state)
    policy = read_policy(task.policy)
    if _may_have_timers(task, left, policy):
        work.drop_timers(task)
    ends = left.phase is Phase.ACTIVE and (left is entered or entered.phase is not Phase.ACTIVE)
    if ends:
        if cause.actor != task.attempt_worker_id:
            work.wakeups |= Wakeup.WORKERS  # its process has to end
        _end_attempt(work, task, report)
    _count(task, transition, report)
    state = work.move(task, transition, cause.after_retries(task.retry_count))
    task.available_at = None
    if state.phase is Phase.ACTIVE:
        if ends or left.phase is not Phase.ACTIVE:
            _begin_attempt(work, task, policy, report)
        else:
            note_attempt(work, task, report)
            assert task.attempt_started_at
            set_limits(work, task, policy, task.attempt_started_at)
        if "worker" not in state.needs:
            task.worker_id = None
    for effect in transition.effects:
        _apply(task, effect, report)
    if ends and report.timed_out:
        task.keep_session = True
    if "schedule_retry" in transition.effects:
        _schedule_retry(work, task, transition, policy, report)
    work.watch_stay(task, Kind.TASK, state, task.run_id)
    _follow(work, task, state)


def _may_have_timers(task: Task, state: State, policy: Policy) -> bool:
    return (
        task.available_at is not None
        or state.longest_stay_seconds is not None
        or (state.phase is Phase.ACTIVE and bool(policy.limits))
        or (task.is_gate and policy.approval_seconds is not None)
    )


def _begin_attempt(work: Work, task: Task, policy: Policy, report: Report) -> None:
    assert report.worker, "only a worker's claim leads into a phase in which something runs"
    task.epoch += 1
    task.current_attempt = task.epoch
    task.attempt_count += 1
    task.lease_expired = False
    task.cancel_requested_at = None
    resumed = task.keep_session and task.session_id is not None
    if not resumed:
        task.session_id = None
    task.keep_session = False
    task.worker_id = task.attempt_worker_id = report.worker.id
    task.attempt_started_at = task.entered_at
    task.attempt_resumed = resumed
    task.attempt_cost_usd = ZERO_USD
    task.attempt_tokens_in = task.attempt_tokens_out = 0
    task.attempt_cost_is_estimated = False
    task.attempt_error = task.attempt_exit_code = task.attempt_log_path = None
    work.change_held(report.worker.id, 1)
    set_limits(work, task, policy, task.attempt_started_at)


def set_limits(work: Work, task: Task | BegunTask, policy: Policy, started_at: datetime) -> None:
    """Set the timers that limit how long the attempt may take, including its checks."""
    for purpose, seconds in policy.limits:
        work.set_timer(task, Kind.TASK, purpose, started_at + timedelta(seconds=seconds), task.run_id)


def _end_attempt(work: Work, task: Task, report: Report) -> None:
    """Complete the columns of the attempt. The law stores them with the move that ends it."""
    assert task.attempt_worker_id
    _note(task, report)
    task.attempt_error = report.error
    work.change_held(task.attempt_worker_id, 0 if task.lease_expired else -1)
    budgets.settle(work, task, report.usage)
    breakers.leave(work, task)
    task.current_attempt = None
    task.worker_id = None
    task.lease_expired = False
    if not report.counts:
        task.attempt_count -= 1


def note_attempt(work: Work, task: Task, report: Report) -> None:
    """Store the usage, the session and the log of a running attempt."""
    _note(task, report)
    budgets.spend(work, task, report.usage)
    work.tasks.change(task)


def keep_session(work: Work, task: Task) -> None:
    """The attempt ended through no fault of its own: the next one continues its session, if it had begun one."""
    if task.session_id is not None:
        task.keep_session = True
        work.tasks.change(task)


def _note(task: Task, report: Report) -> None:
    task.session_id = report.session_id or task.session_id
    if report.usage:
        task.attempt_cost_usd += report.usage.cost_usd
        task.attempt_tokens_in += report.usage.tokens_in
        task.attempt_tokens_out += report.usage.tokens_out
        task.attempt_cost_is_estimated |= report.usage.is_estimated
    if report.exit_code is not None:
        task.attempt_exit_code = report.exit_code
    task.attempt_log_path = report.log_path or task.attempt_log_path


def _count(task: Task, transition: Transition, report: Report) -> None:
    """Before the move, which is stored with the count. Who resets the retries starts over, with a new session."""
    if "count_retry" in transition.effects:
        task.retry_count += report.counts
    elif "reset_retries" in transition.effects:
        task.retry_count = task.reclaim_count = task.attempt_count = 0
        task.keep_session = False


def _apply(task: Task, effect: str, report: Report) -> None:
    match effect:
        case "record_error":
            task.error = report.error
        case "store_output":
            task.output = report.output if report.output is not None else UNSET
        case "store_question":
            task.question, task.answer = report.question, None
        case "clear_question":
            task.question, task.answer = None, report.answer
        case "store_comment":
            task.comment = report.comment
        case "keep_session":
            task.keep_session = True
        case _:
            pass  # for the worker: run checks, end processes


def _schedule_retry(work: Work, task: Task, transition: Transition, policy: Policy, report: Report) -> None:
    """The approval lifecycle counts attempts, the others count retries: the delay grows with what is counted."""
    if not report.counts:
        due_at = max(report.usage_limit_until or work.now, work.now)
    else:
        exponent = task.retry_count - 1 if "count_retry" in transition.effects else task.attempt_count
        due_at = work.now + policy.backoff.delay(exponent, work.world.chance)
    wait_until(work, task, due_at, report)


def wait_until(work: Work, task: Task, due_at: datetime, report: Report) -> None:
    """Keep a task that was put back from being claimed before an instant."""
    task.error = report.error
    task.available_at = due_at
    work.set_timer(task, Kind.TASK, "retry", due_at, task.run_id)


def _follow(work: Work, task: Task, state: State) -> None:
    """Note what has to follow for its run, its parent, its dependents and the workers that wait."""
    work.unsettled_runs.add(task.run_id)
    if task.parent_task_id and state.phase is Phase.DONE:
        work.parents.add(task.parent_task_id)
    if state.phase is Phase.QUEUED:
        work.wakeups |= Wakeup.TASKS
        if task.open_dependencies and work.takes(task, "dependency_failed"):
            work.behind.append(task.id)
    if state.phase is not Phase.DONE and work.takes(task, "ready"):
        work.waiting.append(task.id)
    if task.is_gate and state.phase is Phase.HELD and (due_at := gates.expires_at(task)):
        work.set_timer(task, Kind.TASK, "approval", due_at, task.run_id)
    if state.phase is Phase.DONE:
        if state.outcome is Outcome.SUCCESS:
            work.succeeded.append(task.id)
        else:
            work.failed.append(task.id)
            work.struck_runs.add(task.run_id)

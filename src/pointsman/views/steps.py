"""What a person can do now about a run or a task, derived from their machines: each step is tried as a forecast first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from shlex import quote

from pointsman.engine import budgets
from pointsman.engine.gates import GATE_SIGNALS, PASSING, find_excluded, read_approvals
from pointsman.engine.people import PEOPLE
from pointsman.engine.policy import read_policy
from pointsman.engine.sessions import is_invented
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Kind, Outcome, Phase, State
from pointsman.store.rows import ZERO_USD, Run, Task
from pointsman.views.find import short
from pointsman.views.forecast import Forecast
from pointsman.views.sources import Fleet, RunRecords
from pointsman.views.values import NEEDS_PERSON, NextStep, Waiting

MOST_TASKS = 3
"""How many tasks of a run steps are listed for; those of any other task can be asked for."""
MOST_NAMES = 3
OVERSPEND = "overspend"
MENDING = ("retry", "resume", "reset", "skip")
"""Signals that can bring a task that has ended to success."""


def find_steps(
    records: RunRecords, fleet: Fleet, waiting: Sequence[Waiting | None], obstacle: str | None
) -> Iterator[NextStep]:
    """The steps that make sense for a run: all that the machines take and that do not leave it failed."""
    run_steps = list(steps_of_run(records, fleet.now))
    can_retry = not obstacle and any(step.operation == "retry" for step in run_steps)
    yield from (step for step in run_steps if step.operation == "retry" and can_retry)
    for task in _needing_attention(records.tasks, waiting) if not obstacle else ():
        for step in steps_of_task(task, records, fleet.now):
            if step.operation != "cancel" and not (can_retry and step.operation == "retry"):
                yield step
    yield from worker_steps(records, fleet, waiting)
    attended = bool(fleet.living(records.run.id))
    yield from (
        step for step in run_steps if step.operation not in ("retry", "resume") and (attended or step.operation != "pause")
    )


def steps_of_run(records: RunRecords, now: datetime) -> Iterator[NextStep]:
    """What a person can do about the run as a whole."""
    run = records.run
    for signal in PEOPLE[Kind.RUN]:
        forecast = Forecast(records, now)
        may_be_taken = records.takes(run, signal) or signal == "cancel"
        if not may_be_taken or not forecast.signal_run(signal):
            continue
        if signal != "retry" or (_leads_on(forecast.run) and not any(_is_broke(task, run) for task in forecast.reopened())):
            effect = _describe_run_step(signal, forecast, run)
            yield NextStep(operation=signal, target=run.id, effect=effect, run_state=forecast.run.name)


def steps_of_task(task: Task, records: RunRecords, now: datetime) -> Iterator[NextStep]:
    """What a person can do about one task, without what would change nothing for a run that has ended."""
    for signal in PEOPLE[Kind.TASK]:
        forecast = Forecast(records, now)
        if not records.takes(task, signal) or not forecast.signal_task(task, signal):
            continue
        if signal in MENDING and signal != "skip" and _is_broke(task, records.run):
            continue
        if signal == "resume" and _has_nothing_to_resume(task, records):
            continue
        if signal in ("cancel", "reject") or _leads_on(forecast.run):
            yield NextStep(
                operation=signal,
                target=task.id,
                effect=_describe_task_step(signal, task, forecast, records.run),
                run_state=forecast.run.name,
                task_state=forecast.state(task).name,
                by=read_policy(task.policy).approvers if signal in GATE_SIGNALS else (),
                not_by=tuple(_find_excluded(task, records.run, signal)),
            )


def _has_nothing_to_resume(task: Task, records: RunRecords) -> bool:
    """Without a session to continue, it is a retry."""
    return task.session_id is None and records.takes(task, "retry")


def stopped_in_session(task: Task) -> bool:
    """An agent stopped at a budget: with more money it goes on where it was, while a retry would pay for its work once more."""
    return task.trigger == OVERSPEND and task.outcome == Outcome.FAILURE and _has_session(task)


def _has_session(task: Task) -> bool:
    return task.session_id is not None and not is_invented(task.session_id, task.id)


def _find_excluded(task: Task, run: Run, signal: str) -> Iterator[str]:
    """Who may not send a signal to a gate, of those whom it does not leave out by name."""
    if signal == "approve":
        yield from read_approvals(task).approved_by
    if signal in PASSING and (submitter := find_excluded(task, run)):
        yield submitter


def find_obstacle(records: RunRecords, now: datetime) -> str | None:
    """Why a run cannot succeed any more, whatever is tried: its time or money is used up, or a task is lost for good."""
    run = records.run
    if run.outcome in (Outcome.SUCCESS, Outcome.CANCELED):
        return None
    seconds = read_policy(run.policy).timeout_seconds
    if seconds is not None and now >= run.created_at + timedelta(seconds=seconds):
        return (
            f"{run.name} has used up its timeout of {format_duration(seconds)}. Raise `timeout` in the flow, and run it again."
        )
    if (lost := find_lost(records)) and not _is_consequence(lost, records):
        if lost.trigger == OVERSPEND:
            return f"{lost.name} has no money left. Raise `budget_usd` in the flow, and run it again."
        return f"{run.name} cannot succeed without {lost.name}, and {lost.state} is final. Run the flow again."
    if budgets.is_spent(run):
        return _explain_poverty(records)
    if run.outcome == Outcome.FAILURE and not any(_mending_steps(records, now)):
        return f"{run.state} is final. Run the flow again.{_explain_window(records)}"
    return None


def _explain_window(records: RunRecords) -> str:
    """Of a run that has ended for good: how its failed tasks could have been mended before."""
    waits = any("schedule_retry" in move.effects for move in records.machine(records.run).transitions)
    failed = [task for task in records.tasks if task.outcome == Outcome.FAILURE]
    signals = [signal for signal in ("reset", "skip") if any(records.takes(task, signal) for task in failed)]
    if not waits or not signals:
        return ""
    return (
        f" To {' or '.join(signals)} a failed task before the run ends, set `retries` and `backoff` of the flow: "
        "the run waits that long before it is retried."
    )


def _explain_poverty(records: RunRecords) -> str:
    run = records.run
    command = f"`pointsman budget set {short(run.id)} {_find_sufficient_budget(records)}`"
    if run.phase != Phase.DONE:
        way = f"Raise its budget, for example: {command}."
    elif records.takes(run, "retry"):
        stopped = next((task for task in records.tasks if stopped_in_session(task)), None)
        again = f"continue its session: `pointsman resume {short(run.id)} {quote(stopped.name)}`" if stopped else "retry it"
        way = f"Raise its budget, for example: {command}, and {again}."
    else:
        way = "Raise `budget_usd` in the flow, and run it again."
    return f"{run.name} has no money left. {way}"


def _find_sufficient_budget(records: RunRecords) -> int:
    """The smallest whole amount that leaves something, and that covers any one of the tasks that have not succeeded."""
    run = records.run
    open_tasks = [task for task in records.tasks if task.outcome != Outcome.SUCCESS]
    wanted = max((task.budget_usd - task.cost_usd for task in open_tasks if task.budget_usd is not None), default=ZERO_USD)
    return int(run.spent_usd + run.promised_usd + max(wanted, ZERO_USD)) + 1


def foresee_failure(records: RunRecords, signal: str, task: Task | None, now: datetime) -> str | None:
    """Why a run that has ended would fail again, although its machine takes this signal; None where it may succeed.

    One task may be skipped after the other, so only the last skip has to lead on.
    """
    if signal not in MENDING or records.run.phase != Phase.DONE or not records.takes(task or records.run, signal):
        return None
    if obstacle := find_obstacle(records, now):
        return obstacle
    if task and signal == "resume" and _has_nothing_to_resume(task, records):
        return f"{task.name} has no session to continue."
    steps = steps_of_task(task, records, now) if task else steps_of_run(records, now)
    if signal == "skip" or any(step.operation == signal for step in steps):
        return None
    broke = next((each for each in ((task,) if task else records.tasks) if _is_broke(each, records.run)), None)
    return f"{broke.name} has no money left, so it would fail again." if broke else "The run would fail again."


def find_lost(records: RunRecords) -> Task | None:
    """A task that the run cannot succeed without, and that nothing can bring to success.

    One that failed comes before those that were canceled, perhaps because of it.
    """
    for outcome in (Outcome.FAILURE, Outcome.CANCELED):
        for task in records.tasks:
            counts = task.critical or outcome is Outcome.FAILURE  # one that is not critical would have been skipped
            if counts and task.outcome == outcome and not _can_be_mended(task, records):
                return task
    return None


def _is_consequence(lost: Task, records: RunRecords) -> bool:
    """A task that was canceled because its run has failed for good: what failed in the run is what counts."""
    ended = records.run.outcome == Outcome.FAILURE and not records.takes(records.run, "retry")
    has_failed = any(task.critical and task.outcome == Outcome.FAILURE for task in records.tasks)
    return lost.outcome == Outcome.CANCELED and ended and has_failed


def _can_be_mended(task: Task, records: RunRecords) -> bool:
    return any(records.takes(task, signal) for signal in (("skip",) if _is_broke(task, records.run) else MENDING))


def _is_broke(task: Task, run: Run) -> bool:
    """A task that would start without money can only be skipped, unless its run gets more."""
    return task.trigger == OVERSPEND and budgets.can_never_fit(run, task)


def _mending_steps(records: RunRecords, now: datetime) -> Iterator[NextStep]:
    yield from (step for step in steps_of_run(records, now) if step.operation == "retry")
    for task in _needing_attention(records.tasks, ()):
        yield from (step for step in steps_of_task(task, records, now) if step.operation in MENDING)


def _needing_attention(tasks: Sequence[Task], waiting: Sequence[Waiting | None]) -> list[Task]:
    """Tasks that have failed, and then those that wait for a person; a task that failed with its subtasks comes last."""
    failed = [task for task in tasks if task.outcome == Outcome.FAILURE]
    asking = [task for task, why in zip(tasks, waiting, strict=False) if why and why.kind in NEEDS_PERSON]
    return [*sorted(failed, key=lambda task: task.has_subtasks)[:MOST_TASKS], *asking[:MOST_TASKS]]


def worker_steps(records: RunRecords, fleet: Fleet, waiting: Sequence[Waiting | None]) -> Iterator[NextStep]:
    """Starting a worker, where that helps: for the run, or one that has what the others lack."""
    run = records.run
    if run.phase == Phase.DONE:
        return
    lacking = [task for task, why in zip(records.tasks, waiting, strict=True) if why and why.kind == "capability"]
    allocating = run.allocates and run.phase == Phase.QUEUED
    of_run = read_policy(run.policy).capabilities if allocating else ()
    missing = tuple(sorted({*of_run, *(word for task in lacking for word in fleet.needs_of(task))}))
    attended = bool(fleet.living(run.id))
    resumed = Forecast(records, fleet.now)
    if resumed.signal_run("resume"):
        effect = f"{_describe_run(resumed.run, run)}, and its tasks run here"
        yield _work_step("resume", run.id, effect, resumed.run.name, missing)
    elif allocating and run.worker_count > 1:
        effect = f"starts one of the {run.worker_count} workers that the run waits for"
        yield _work_step("serve", "", effect, run.state, missing)
        return
    elif not attended and _has_work(records):
        yield _work_step("work", run.id, "runs its tasks here", run.state, missing)
    if missing and attended:
        yield _work_step("serve", "", f"starts a worker that has: {', '.join(missing)}", run.state, missing)


def _work_step(operation: str, target: str, effect: str, run_state: str, capabilities: tuple[str, ...]) -> NextStep:
    return NextStep(operation=operation, target=target, effect=effect, run_state=run_state, capabilities=capabilities)


def _has_work(records: RunRecords) -> bool:
    """Whether a worker would find something to do, now or after a delay."""
    if records.run.phase == Phase.HELD:
        return records.takes(records.run, "delay_over")
    return any(
        task.phase == Phase.ACTIVE
        or (task.phase == Phase.QUEUED and not task.open_dependencies)
        or (task.phase == Phase.HELD and task.available_at is not None)
        for task in records.tasks
    )


def _leads_on(run: State) -> bool:
    return run.phase is not Phase.DONE or run.outcome is Outcome.SUCCESS


def _describe_run_step(signal: str, forecast: Forecast, run: Run) -> str:
    match signal:
        case "retry":
            names = [task.name for task in forecast.reopened()]
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            return f"queues {', '.join(names[:MOST_NAMES])}{more} again; {_describe_run(forecast.run, run)}"
        case "pause":
            return f"starts no further task; {_describe_run(forecast.run, run)}"
        case "cancel" if run.phase == Phase.DONE:
            return "ends the tasks that still run"
        case "cancel":
            return f"ends the run as {forecast.run.name}"
        case _:
            return _describe_run(forecast.run, run)


def _describe_task_step(signal: str, task: Task, forecast: Forecast, run: Run) -> str:
    if forecast.is_requested:
        return f"asks the worker of {task.name} to stop it"
    state = forecast.state(task)
    if state.name == task.state:
        missing = read_policy(task.policy).quorum - len(read_approvals(task).approved_by) - 1
        return f"counts as one approval of {task.name}; {missing} more needed"
    if state.outcome is Outcome.SUCCESS:
        what = f"skips {task.name}" if signal == "skip" else f"completes {task.name}"
    elif state.outcome is Outcome.CANCELED:
        what = f"cancels {task.name}"
    elif state.outcome is Outcome.FAILURE:
        what = f"fails {task.name}"
    else:
        again = " again" if task.epoch else ""
        again += " in the same session" if signal == "resume" and _has_session(task) else ""
        what = f"queues {task.name}{again}" if state.phase is Phase.QUEUED else f"puts {task.name} back to {state.name}"
    return f"{what}; {_describe_run(forecast.run, run)}"


def _describe_run(after: State, before: Run) -> str:
    match after.outcome, after.phase:
        case _ if after.name == before.state and after.phase in (Phase.HELD, Phase.DONE):
            return f"the run stays {after.name}"
        case Outcome.SUCCESS, _:
            return "the run succeeds"
        case Outcome.FAILURE, _:
            return "the run fails"
        case Outcome.CANCELED, _:
            return "the run is canceled"
        case _, Phase.HELD:
            return f"the run becomes {after.name}"
        case _:
            return "the run continues"

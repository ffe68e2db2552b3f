"""`pointsman cancel`, `pause`, `retry`, `skip` and `reset`: signals that people send to a run or to one of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click

from pointsman.cli.describe import show_json
from pointsman.cli.hints import COMMANDS, list_commands, write_command
from pointsman.cli.notifier import deliver_unattended
from pointsman.cli.output import count, echo, show_state
from pointsman.cli.project import Asked, Project, in_project, person, project_options, warn_of_changes
from pointsman.engine.engine import TenantEngine
from pointsman.engine.gates import read_approvals
from pointsman.engine.policy import read_policy
from pointsman.errors import TransitionRefused
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Case, Outcome, Phase, Refusal
from pointsman.store.rows import Entity, Run, Task
from pointsman.views.find import find_run, find_task, short
from pointsman.views.runs import foresee_failure, list_steps, make_run_summary, make_task_view
from pointsman.views.steps import MENDING
from pointsman.views.values import NextStep, RunView

Result = TypeVar("Result")
run_argument = click.argument("run", metavar="RUN")
task_argument = click.argument("task", metavar="[TASK]", required=False)
one_task_argument = click.argument("task", metavar="TASK")
UNMET = {
    "process_ended": "its process to have ended",
    "dependencies_met": "the tasks that it depends on to have succeeded",
    "has_session": "a session to continue",
}
"""Guards that people meet, in plain words."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Who decides, and why: both are stored in the history. A repeated request id has one effect."""

    actor: str
    reason: str | None = None
    request_id: str | None = None
    answer: str | None = None
    comment: str | None = None
    epoch: int | None = None
    """The attempt that the person has seen."""


def decision_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """--reason, --as and --request-id, handed to the command as `decision`."""

    @click.option("--reason", "-r", metavar="TEXT", help="Why; it is stored in the history.")
    @click.option("--as", "actor", metavar="NAME", help="Who decides, for the history (default: the user of this system).")
    @click.option("--request-id", metavar="ID", help="Makes it safe to repeat: the same id has one effect.")
    @wraps(command)
    def with_options(*arguments: Any, reason: str | None, actor: str | None, request_id: str | None, **options: Any) -> Result:
        return command(*arguments, decision=Decision(actor or person(), reason, request_id), **options)

    return with_options


@click.command()
@run_argument
@task_argument
@decision_options
@project_options
def cancel(run: str, task: str | None, *, decision: Decision, asked: Asked) -> None:
    """Cancel RUN, or only its TASK.

    Running processes get SIGTERM, and SIGKILL if they do not end; tasks that have not started never will. A run cannot succeed
    without a critical task (every task is, unless its flow says otherwise); `pointsman skip` lets the others continue.

    \b
    Examples:
      pointsman cancel latest
      pointsman cancel 9ef05a58 fetch --reason "the source is down"
    """
    in_project(asked, lambda project: steer(project, "cancel", run, task, decision, as_json=asked.as_json))


@click.command()
@run_argument
@decision_options
@project_options
def pause(run: str, *, decision: Decision, asked: Asked) -> None:
    """Start no further task of RUN until `pointsman resume`.

    Running tasks finish, or are suspended if the setting on_pause says so.

    \b
    Examples:
      pointsman pause latest
      pointsman pause 9ef05a58 --reason "until the deployment is over"
    """
    in_project(asked, lambda project: steer(project, "pause", run, None, decision, as_json=asked.as_json))


@click.command()
@run_argument
@task_argument
@decision_options
@project_options
def retry(run: str, task: str | None, *, decision: Decision, asked: Asked) -> None:
    """Retry the failed tasks of RUN, or only TASK; tasks that succeeded are not repeated.

    \b
    Examples:
      pointsman retry latest
      pointsman retry 9ef05a58 fetch
    """
    in_project(asked, lambda project: steer(project, "retry", run, task, decision, as_json=asked.as_json))


@click.command()
@run_argument
@click.argument("task", metavar="TASK")
@decision_options
@project_options
def skip(run: str, task: str, *, decision: Decision, asked: Asked) -> None:
    """Skip TASK of RUN: tasks that wait for it continue as if it had succeeded.

    \b
    Examples:
      pointsman skip latest fetch
      pointsman skip 9ef05a58 'load[3]' --reason "the file is empty"
    """
    in_project(asked, lambda project: steer(project, "skip", run, task, decision, as_json=asked.as_json))


@click.command()
@run_argument
@one_task_argument
@decision_options
@project_options
def reset(run: str, task: str, *, decision: Decision, asked: Asked) -> None:
    """Put the failed TASK of RUN back to its beginning, with no retries counted.

    Some lifecycles, such as pipeline, have this instead of `retry`.

    \b
    Examples:
      pointsman reset latest fetch --reason "the disk was full"
    """
    in_project(asked, lambda project: steer(project, "reset", run, task, decision, as_json=asked.as_json))


@dataclass(frozen=True, slots=True)
class Decided:
    """A run and its tasks before and after a decision."""

    run_before: Run
    run: Run
    tasks_before: dict[str, Task]
    tasks: list[Task]
    task: Task | None
    """The one that it is about, unless it is about the whole run."""
    subjects: set[str]
    steps: list[NextStep]
    """What was possible before."""

    def describe(self) -> dict[str, object]:
        return {"run": make_run_summary(self.run), "task": make_task_view(self.task) if self.task else None}

    def list_stopped(self) -> list[Task]:
        """Tasks that ran, and that the decision has stopped."""
        active = {each.id for each in self.tasks_before.values() if each.phase == Phase.ACTIVE}
        return [each for each in self.tasks if each.id in active and is_stopping(each)]


async def decide(project: Project, signal: str, name: str, task: str | None, decision: Decision) -> Decided:
    """Send a signal. A refusal says what is possible instead."""
    engine = project.engine
    before = await find_run(engine, name)
    tasks_before = {each.id: each for each in await engine.list_tasks_in_brief(before.id)}
    task_before = await find_task(engine, before, task) if task is not None else None
    subjects = {task_before.id} if task_before else await find_subjects(project, signal, tasks_before.values())
    steps = await find_possible(project, before, task_before)
    task_id = task_before.id if task_before else None
    if failure := await foresee_failure(engine, before.id, task_id, signal, await engine.now()):
        mending = [step for step in steps if step.operation in MENDING]
        raise TransitionRefused(Sentence(f"{failure}{list_ways(await write_ways(project, before, mending))}"))
    try:
        await send(engine.for_tenant(actor=decision.actor), signal, before, task_before, decision)
    except TransitionRefused as refused:
        raise await _in_words(project, refused, before, task_before) from None
    after = await engine.get_run(before.id)
    tasks_after = await engine.list_tasks_in_brief(before.id)
    changed = await engine.get_task(task_before.id) if task_before else None
    return Decided(before, after, tasks_before, tasks_after, changed, subjects, steps)


async def steer(
    project: Project, signal: str, name: str, task: str | None, decision: Decision, *, as_json: bool, continues: bool = False
) -> None:
    """Send a signal, and say what has changed and what happens next. A command that `continues` the run needs no hint to."""
    done = await decide(project, signal, name, task, decision)
    if as_json:
        echo(show_json(done.describe()))
    else:
        await show_decided(project, signal, done, continues=continues)
    if not continues:
        await deliver_unattended(project, done.run)


async def show_decided(project: Project, signal: str, done: Decided, *, continues: bool) -> None:
    before, after, tasks_before = done.run_before, done.run, done.tasks_before
    shows_all = done.task or signal == "approve"  # to approve a gate again changes nothing
    decided = [
        each for each in done.tasks if each.id in done.subjects and (shows_all or is_changed(tasks_before[each.id], each))
    ]
    for each in decided:
        echo(f"{each.name}: {show_change(tasks_before[each.id], each)}{show_approvals(each)}")
    if signal in OF_ALL_TASKS and not decided:
        echo(f"No task of {after.name} ({short(after.id)}) {OF_ALL_TASKS[signal]}.", err=True)
    elif after.state != before.state or not decided:
        echo(f"{after.name} ({short(after.id)}): {show_change(before, after)}")
    if signal == "retry":
        warn_of_changes(project, after)
    view = await project.view_run(after.id)
    for sentence in tell_what_follows(project, view, done.list_stopped(), continues=continues):
        echo(sentence, err=True)
    if signal == "cancel" and view.obstacle and any(step.operation == "skip" for step in done.steps):
        echo("(`pointsman skip` instead of `cancel` lets the other tasks continue.)", err=True)


OF_ALL_TASKS = {"approve": "waits for an approval", "ready": "waits to be started"}
"""Signals that go to all tasks of a run that take them, unless one is named; and why there may be none."""


async def send(engine: TenantEngine, signal: str, run: Run, task: Task | None, decision: Decision) -> None:
    reason, request_id = decision.reason, decision.request_id
    if task:
        said = (decision.answer, decision.comment, decision.epoch)
        await engine.signal_task(task.id, signal, *said, reason=reason, request_id=request_id)
    elif signal == "approve":
        await engine.approve_run(run.id, reason=reason, request_id=request_id)
    elif signal == "ready":
        await engine.start_run(run.id, reason=reason, request_id=request_id)
    else:
        await engine.signal_run(run.id, signal, reason=reason, request_id=request_id)


async def find_subjects(project: Project, signal: str, tasks: Iterable[Task]) -> set[str]:
    """The tasks that a decision about a whole run is about."""
    if signal not in OF_ALL_TASKS:
        return set()
    return {task.id for task in tasks if (await project.engine.get_machine(task)).moves(task.state, signal)}


def is_changed(before: Entity, after: Entity) -> bool:
    return after.revision != before.revision


def is_stopping(task: Task) -> bool:
    return task.phase == Phase.DONE or task.cancel_requested_at is not None


def tell_what_follows(project: Project, run: RunView, stopped: Sequence[Task], *, continues: bool) -> Iterator[str]:
    """What happens next, from how the run is now."""
    if stopped:
        was, who = ("was", "its worker ends it") if len(stopped) == 1 else ("were", "their workers end them")
        grace = format_duration(project.settings.grace_seconds)
        yield f"{count(len(stopped), 'task')} {was} running; {who} with SIGTERM, and after {grace} with SIGKILL."
    if run.obstacle:
        yield run.obstacle
    if run.phase == Phase.DONE:
        if run.failed_tasks and run.outcome == Outcome.FAILURE:
            yield f"{count(len(run.failed_tasks), 'task')} failed: {project.hint('status', short(run.id))}"
        return
    active = sum(task.phase == Phase.ACTIVE for task in run.tasks)
    if run.phase == Phase.HELD and active:
        what = "it" if active == 1 else "them"
        yield f"{count(active, 'running task')} may finish, unless the worker suspends {what}; no other task starts."
    if continues:
        return
    going_on = next((each for each, step in list_commands(project, run) if step.operation in ("resume", "work")), None)
    if going_on:
        waits = "No worker is running it. " if run.phase != Phase.HELD else ""
        yield f"{waits}To continue: {going_on}"
    elif run.attended:
        yield f"Its workers continue: {project.hint('watch', short(run.id))}"


async def find_possible(project: Project, run: Run, task: Task | None) -> list[NextStep]:
    return await list_steps(project.engine, run.id, task.id if task else None, await project.engine.now())


@dataclass(frozen=True, slots=True)
class Sentence:
    """A refusal that names the run or the task."""

    message: str


async def _in_words(project: Project, refused: TransitionRefused, run: Run, task: Task | None) -> TransitionRefused:
    """The same refusal without the names of machines; it may be the run that does not let its task move."""
    refusal = refused.refusal
    if not isinstance(refusal, Refusal):
        return refused
    about = task if task and (await project.engine.get_machine(task)).name == refusal.machine else None
    name = about.name if about else f"{run.name} ({short(run.id)})"
    ways = await write_ways(project, run, await find_possible(project, run, about))
    return TransitionRefused(Sentence(explain_refusal(refusal, name, ways)))


async def write_ways(project: Project, run: Run, steps: list[NextStep]) -> list[str]:
    """What can be done instead, as commands with their effects."""
    names = {each.id: each.name for each in await project.engine.list_tasks_in_brief(run.id)}
    commands = ((write_command(project, step, run.id, names), step) for step in steps)
    return [f"{command} ({step.effect})" for command, step in commands if command]


def list_ways(ways: list[str]) -> str:
    return f" Possible now: {', '.join(ways)}." if ways else ""


def explain_refusal(refusal: Refusal, name: str, ways: list[str]) -> str:
    if refusal.case is Case.ALREADY_THERE:
        return f"{name} is {refusal.state} already."
    if not refusal.allowed:
        return f"{name} is {refusal.state}, and that is final."
    needed = f" It needs: {', or '.join(UNMET.get(word, word) for word in refusal.unmet)}." if refusal.unmet else ""
    asked = COMMANDS.get(refusal.asked, refusal.asked)
    return f"{name} is {refusal.state}, which does not allow `{asked}`.{needed}{list_ways(ways)}"


def show_change(before: Entity, after: Entity) -> str:
    shown = show_state(after.state, after.phase, after.outcome)
    return f"{before.state} → {shown}" if after.state != before.state else f"still {shown}"


def show_approvals(task: Task) -> str:
    """How far a gate is that needs several."""
    quorum = read_policy(task.policy).quorum
    if not task.is_gate or task.phase != Phase.HELD or quorum == 1:
        return ""
    approved = read_approvals(task).approved_by
    return f", {len(approved)} of {count(quorum, 'approval')}: {', '.join(approved)}"

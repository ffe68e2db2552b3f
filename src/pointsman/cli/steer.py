"""`pointsman cancel`, `pause`, `retry` and `skip`: what people want of a run or of one of its tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click

from pointsman.cli.describe import describe_run, describe_task, explain_exhaustion, find_lost
from pointsman.cli.output import count, show_state
from pointsman.cli.project import (
    Asked,
    Project,
    find_run,
    find_task,
    in_project,
    is_attended,
    person,
    project_options,
    short,
    warn_of_changes,
)
from pointsman.errors import TransitionRefused
from pointsman.kernel.machine import Case, Kind, Machine, Outcome, Phase, Refusal
from pointsman.store.rows import Run, Task

run_argument = click.argument("run", metavar="RUN")
task_argument = click.argument("task", metavar="[TASK]", required=False)
RUN_SIGNALS = ("resume", "retry", "pause", "cancel")
TASK_SIGNALS = ("retry", "skip", "cancel")
MOST_WAYS = 3
UNMET = {"process_ended": "its process to have ended"}
"""Guards that people meet, in their words."""
reason_option = click.option("--reason", "-r", metavar="TEXT", help="Why; it is kept in the history.")


@click.command()
@run_argument
@task_argument
@reason_option
@project_options
def cancel(run: str, task: str | None, reason: str | None, *, asked: Asked) -> None:
    """End RUN, or only its TASK.

    What is running is asked to end, and killed if it does not; what has not begun never will. A run cannot succeed without
    a task that is critical (as tasks are unless their flow says otherwise); `pointsman skip` lets the others go on.

    \b
    Examples:
      pointsman cancel latest
      pointsman cancel 9ef05a58 fetch --reason "the source is down"
    """
    in_project(asked, lambda project: steer(project, "cancel", run, task, reason, as_json=asked.as_json))


@click.command()
@run_argument
@reason_option
@project_options
def pause(run: str, reason: str | None, *, asked: Asked) -> None:
    """Let no further task of RUN begin; `pointsman resume` goes on with it.

    Tasks that are running end as they would, or are suspended where the setting on_pause says so.

    \b
    Examples:
      pointsman pause latest
      pointsman pause 9ef05a58 --reason "until the deployment is over"
    """
    in_project(asked, lambda project: steer(project, "pause", run, None, reason, as_json=asked.as_json))


@click.command()
@run_argument
@task_argument
@reason_option
@project_options
def retry(run: str, task: str | None, reason: str | None, *, asked: Asked) -> None:
    """Try again what has failed in RUN, or only its TASK; what succeeded is not repeated.

    \b
    Examples:
      pointsman retry latest
      pointsman retry 9ef05a58 fetch
    """
    in_project(asked, lambda project: steer(project, "retry", run, task, reason, as_json=asked.as_json))


@click.command()
@run_argument
@click.argument("task", metavar="TASK")
@reason_option
@project_options
def skip(run: str, task: str, reason: str | None, *, asked: Asked) -> None:
    """Pass over TASK of RUN: whatever waits for it goes on as if it had succeeded.

    \b
    Examples:
      pointsman skip latest fetch
      pointsman skip 9ef05a58 'load[3]' --reason "the file is empty"
    """
    in_project(asked, lambda project: steer(project, "skip", run, task, reason, as_json=asked.as_json))


async def steer(project: Project, signal: str, name: str, task: str | None, reason: str | None, *, as_json: bool) -> None:
    """Send a signal, and say what has changed and what happens next; a refusal names the run or the task."""
    engine = project.engine
    before = await find_run(engine, name)
    task_before = await find_task(engine, before, task) if task is not None else None
    active = {each.id for each in await engine.list_tasks(before.id) if each.phase == Phase.ACTIVE}
    try:
        if task_before:
            await engine.for_tenant(actor=person()).signal_task(task_before.id, signal, reason=reason)
        else:
            await engine.for_tenant(actor=person()).signal_run(before.id, signal, reason=reason)
    except TransitionRefused as refused:
        raise await _in_words(project, refused, before, task_before) from None
    after = await engine.get_run(before.id)
    tasks = await engine.list_tasks(before.id)
    changed = next((each for each in tasks if task_before and each.id == task_before.id), None)
    if as_json:
        click.echo(json.dumps({"run": describe_run(after), "task": describe_task(changed) if changed else None}, indent=2))
        return
    if task_before and changed:
        click.echo(f"{changed.name}: {show_change(task_before, changed)}")
    if after.state != before.state or not changed:
        click.echo(f"{after.name} ({short(after.id)}): {show_change(before, after)}")
    if signal == "retry":
        warn_of_changes(after)
    attended = await is_attended(project, after)
    stopped = [each for each in tasks if each.id in active and (each.phase == Phase.DONE or each.cancel_requested_at)]
    if stopped:
        ends = "its worker ends it" if len(stopped) == 1 else "their workers end them"
        were = "was" if len(stopped) == 1 else "were"
        grace = f"{project.settings.grace_seconds:g} s"
        click.echo(f"{count(len(stopped), 'task')} {were} running; {ends}, and after {grace} by force.", err=True)
    machines = {each.machine_id: await engine.get_machine(each) for each in tasks}
    for sentence in foresee(project, after, tasks, machines, attended=attended):
        click.echo(sentence, err=True)
    skippable = task_before and machines[task_before.machine_id].moves(task_before.state, "skip")
    if signal == "cancel" and skippable and changed in find_lost(tasks, machines):
        click.echo("(`pointsman skip` instead of `cancel` lets the others go on without a task.)", err=True)


async def can_retry(project: Project, run: Run) -> bool:
    """Whether a run that has ended can be tried again, and succeed."""
    engine = project.engine
    if not (await engine.get_machine(run)).moves(run.state, "retry") or explain_exhaustion(run, project.world.clock.now()):
        return False
    tasks = await engine.list_tasks(run.id)
    return not find_lost(tasks, {task.machine_id: await engine.get_machine(task) for task in tasks})


@dataclass(frozen=True, slots=True)
class Sentence:
    """A refusal in words of the run or task that it is about."""

    message: str


async def _in_words(project: Project, refused: TransitionRefused, run: Run, task: Task | None) -> TransitionRefused:
    """The same refusal without the names of machines; it may be the run that keeps its task from moving."""
    engine = project.engine
    refusal = refused.refusal
    if not isinstance(refusal, Refusal):
        return refused
    about: Run | Task = run
    if task and (await engine.get_machine(task)).name == refusal.machine:
        about = task
    machine = await engine.get_machine(about)
    name = f"{run.name} ({short(run.id)})" if about is run else about.name
    ways = list(_ways_on(project, machine, refusal, run, task, can_retry=await can_retry(project, run)))
    if about is run and refusal.asked == "cancel":
        active = [each for each in await engine.list_tasks(run.id) if each.phase == Phase.ACTIVE]
        ways += [project.hint("cancel", short(run.id), each.name) for each in active[:MOST_WAYS]]
    return TransitionRefused(Sentence(explain_refusal(refusal, name, ways)))


def explain_refusal(refusal: Refusal, name: str, ways: list[str]) -> str:
    if refusal.case is Case.ALREADY_THERE:
        return f"{name} is {refusal.state} already."
    if not refusal.allowed:
        return f"{name} is {refusal.state}, and nothing leads out of that."
    needed = f" It would need: {', or '.join(UNMET.get(word, word) for word in refusal.unmet)}." if refusal.unmet else ""
    on = f" What can be done: {', '.join(ways)}." if ways else ""
    return f"{name} is {refusal.state}, and `{refusal.asked}` is not possible then.{needed}{on}"


def _ways_on(
    project: Project, machine: Machine, refusal: Refusal, run: Run, task: Task | None, *, can_retry: bool
) -> Iterator[str]:
    """Commands that the machine takes in this state, and that lead somewhere."""
    of_task = machine.kind is Kind.TASK
    about = (short(run.id), task.name) if task and of_task else (short(run.id),)
    for signal in TASK_SIGNALS if of_task else RUN_SIGNALS:
        if signal == refusal.asked or not machine.moves(refusal.state, signal):
            continue
        if of_task and signal == "cancel" and task and task.critical:
            yield f"{project.hint(signal, *about)} (but {run.name} cannot succeed without it)"
        elif of_task or signal != "retry" or can_retry:
            yield project.hint(signal, *about)


def show_change(before: Run | Task, after: Run | Task) -> str:
    shown = show_state(after.state, after.phase, after.outcome)
    return f"{before.state} → {shown}" if after.revision != before.revision else f"still {shown}"


def foresee(project: Project, run: Run, tasks: list[Task], machines: Mapping[int, Machine], *, attended: bool) -> Iterator[str]:
    """What happens next, by how the run stands now."""
    active = [task for task in tasks if task.phase == Phase.ACTIVE]
    failed = [task for task in tasks if task.outcome == Outcome.FAILURE]
    lost = find_lost(tasks, machines)
    if lost and run.outcome in (None, Outcome.FAILURE):
        yield f"{run.name} cannot succeed without {lost[0].name}, which is {lost[0].state}: nothing leads out of that."
    if run.phase == Phase.DONE:
        if failed and run.outcome == Outcome.FAILURE:
            yield f"{count(len(failed), 'task')} failed in it: {project.hint('status', short(run.id))}"
        return
    if run.phase == Phase.HELD:
        if active:
            what = "it" if len(active) == 1 else "them"
            yield f"{count(len(active), 'task')} running may finish, unless the worker suspends {what}; nothing more begins."
        yield f"To go on with it: {project.hint('resume', short(run.id))}"
    elif attended:
        yield f"Its workers go on with it: {project.hint('watch', short(run.id))}"
    else:
        yield f"No worker is at it. To go on with it: {project.hint('resume', short(run.id))}"

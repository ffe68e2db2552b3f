"""`pointsman cancel`, `pause`, `retry` and `skip`: signals that people send to a run or to one of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from pointsman.cli.describe import show_json
from pointsman.cli.hints import list_commands, write_command
from pointsman.cli.output import count, echo, show_state
from pointsman.cli.project import Asked, Project, in_project, person, project_options, warn_of_changes
from pointsman.errors import TransitionRefused
from pointsman.kernel.machine import Case, Outcome, Phase, Refusal
from pointsman.store.rows import Run, Task
from pointsman.views.find import find_run, find_task, short
from pointsman.views.runs import list_steps, make_run_summary, make_task_view
from pointsman.views.values import NextStep, RunView

run_argument = click.argument("run", metavar="RUN")
task_argument = click.argument("task", metavar="[TASK]", required=False)
UNMET = {"process_ended": "its process to have ended"}
"""Guards that people meet, in plain words."""
reason_option = click.option("--reason", "-r", metavar="TEXT", help="Why; it is stored in the history.")


@click.command()
@run_argument
@task_argument
@reason_option
@project_options
def cancel(run: str, task: str | None, reason: str | None, *, asked: Asked) -> None:
    """Cancel RUN, or only its TASK.

    Running processes get SIGTERM, and SIGKILL if they do not end; tasks that have not started never will. A run cannot succeed
    without a critical task (every task is, unless its flow says otherwise); `pointsman skip` lets the others continue.

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
    """Start no further task of RUN until `pointsman resume`.

    Running tasks finish, or are suspended if the setting on_pause says so.

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
    """Retry the failed tasks of RUN, or only TASK; tasks that succeeded are not repeated.

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
    """Skip TASK of RUN: tasks that wait for it continue as if it had succeeded.

    \b
    Examples:
      pointsman skip latest fetch
      pointsman skip 9ef05a58 'load[3]' --reason "the file is empty"
    """
    in_project(asked, lambda project: steer(project, "skip", run, task, reason, as_json=asked.as_json))


async def steer(project: Project, signal: str, name: str, task: str | None, reason: str | None, *, as_json: bool) -> None:
    """Send a signal, and say what has changed and what happens next."""
    engine = project.engine
    before = await find_run(engine, name)
    task_before = await find_task(engine, before, task) if task is not None else None
    active = {each.id for each in await engine.list_tasks_in_brief(before.id) if each.phase == Phase.ACTIVE}
    steps = await find_possible(project, before, task_before)
    try:
        if task_before:
            await engine.for_tenant(actor=person()).signal_task(task_before.id, signal, reason=reason)
        else:
            await engine.for_tenant(actor=person()).signal_run(before.id, signal, reason=reason)
    except TransitionRefused as refused:
        raise await _in_words(project, refused, before, task_before) from None
    after = await engine.get_run(before.id)
    changed = await engine.get_task(task_before.id) if task_before else None
    if as_json:
        echo(show_json({"run": make_run_summary(after), "task": make_task_view(changed) if changed else None}))
        return
    if task_before and changed:
        echo(f"{changed.name}: {show_change(task_before, changed)}")
    if after.state != before.state or not changed:
        echo(f"{after.name} ({short(after.id)}): {show_change(before, after)}")
    if signal == "retry":
        warn_of_changes(after)
    stopped = [each for each in await engine.list_tasks_in_brief(after.id) if each.id in active and is_stopping(each)]
    view = await project.view_run(after.id)
    for sentence in tell_what_follows(project, view, stopped):
        echo(sentence, err=True)
    if signal == "cancel" and view.obstacle and any(step.operation == "skip" for step in steps):
        echo("(`pointsman skip` instead of `cancel` lets the other tasks continue.)", err=True)


def is_stopping(task: Task) -> bool:
    return task.phase == Phase.DONE or task.cancel_requested_at is not None


def tell_what_follows(project: Project, run: RunView, stopped: list[Task]) -> Iterator[str]:
    """What happens next, from how the run is now."""
    if stopped:
        was, who = ("was", "its worker ends it") if len(stopped) == 1 else ("were", "their workers end them")
        grace = f"{project.settings.grace_seconds:g} s"
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
    names = {each.id: each.name for each in await project.engine.list_tasks_in_brief(run.id)}
    ways = [
        f"{command} ({step.effect})"
        for step in await find_possible(project, run, about)
        if (command := write_command(project, step, run.id, names))
    ]
    return TransitionRefused(Sentence(explain_refusal(refusal, name, ways)))


def explain_refusal(refusal: Refusal, name: str, ways: list[str]) -> str:
    if refusal.case is Case.ALREADY_THERE:
        return f"{name} is {refusal.state} already."
    if not refusal.allowed:
        return f"{name} is {refusal.state}, and that is final."
    needed = f" It needs: {', or '.join(UNMET.get(word, word) for word in refusal.unmet)}." if refusal.unmet else ""
    possible = f" Possible now: {', '.join(ways)}." if ways else ""
    return f"{name} is {refusal.state}, which does not allow `{refusal.asked}`.{needed}{possible}"


def show_change(before: Run | Task, after: Run | Task) -> str:
    shown = show_state(after.state, after.phase, after.outcome)
    return f"{before.state} → {shown}" if after.revision != before.revision else f"still {shown}"

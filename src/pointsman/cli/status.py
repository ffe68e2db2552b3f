"""`pointsman status`: the latest runs, or one run with its tasks and next steps."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from pointsman.cli.describe import list_results, show_json
from pointsman.cli.hints import list_commands, show_waiting
from pointsman.cli.output import LONGEST_NAME, count, cut, echo, near, show_counts, show_seconds, show_state, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.engine.fields import shape_of
from pointsman.engine.filters import EVERY_RUN, RunFilter
from pointsman.errors import NothingYet, Problem, RequestInvalid
from pointsman.kernel.machine import Outcome, Phase
from pointsman.views import runs
from pointsman.views.find import find_run, short
from pointsman.views.values import CurrentRun, RunView, TaskView, first_line, show_usage, show_usd
from pointsman.worker.log import log_path

MOST_TASKS = 50
"""Of more tasks than these, only the ones that need attention are shown."""
MOST_FAILURES = 3
MOST_REVIEWS = 3


def name_flag(condition: str) -> str:
    return f"--{condition.replace('_', '-')}"


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each condition that a list of runs can have."""
    for field in reversed(shape_of(RunFilter).fields):
        command = click.option(name_flag(field.name), metavar="VALUE", help=field.description)(command)
    return command


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--number", "-n", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many runs to list.")
@filter_options
@click.option("--all", "-a", "show_all", is_flag=True, help=f"Show every task, even if there are more than {MOST_TASKS}.")
@project_options
def command(run: str | None, number: int, *, show_all: bool, asked: Asked, **conditions: str | None) -> None:
    """Show the latest runs, or the tasks of RUN, why they wait and what you can do next.

    RUN is an id, the beginning or the end of one, or `latest`. Without it, runs can be filtered; those that are listed fulfill
    every condition.

    \b
    Examples:
      pointsman status
      pointsman status --outcome failure --created-after 2026-11-01
      pointsman status latest
      pointsman status 9ef05a58 --json
    """
    try:
        if run is None:
            in_project(asked, lambda project: show_runs(project, number, read_filter(conditions), as_json=asked.as_json))
        elif given := [name for name, value in conditions.items() if value is not None]:
            flags = ", ".join(name_flag(name) for name in given)
            raise click.UsageError(f"{flags}: for lists of runs, and one run is named. Leave out {run!a} or the condition.")
        else:
            in_project(asked, lambda project: show_run(project, run, show_all=show_all, as_json=asked.as_json))
    except NothingYet as nothing:
        if run is not None:
            raise
        echo("[]") if asked.as_json else echo(str(nothing), err=True)


def read_filter(conditions: Mapping[str, str | None]) -> RunFilter:
    """What the flags say; a date alone is its beginning in UTC."""
    given: dict[str, Any] = {name: value for name, value in conditions.items() if value is not None}
    for name in ("created_after", "created_before"):
        if re.fullmatch(r"\d{4}-\d\d-\d\d", given.get(name, "")):
            given[name] += "T00:00:00Z"
    problems: list[Problem] = []
    wanted = shape_of(RunFilter).read("", given, problems)
    if problems:
        raise RequestInvalid([Problem(name_flag(problem.path), problem.message) for problem in problems])
    assert isinstance(wanted, RunFilter)
    return wanted


async def show_runs(project: Project, number: int, wanted: RunFilter = EVERY_RUN, *, as_json: bool) -> None:
    now = await project.engine.now()
    listed = await runs.list_runs(project.engine, number + 1, now, project.find_dead(), project.find_bound(), wanted)
    if not listed and wanted != EVERY_RUN:
        echo("[]") if as_json else echo("No run fulfills these conditions.", err=True)
        return
    if not listed:
        raise NothingYet
    if as_json:
        echo(show_json(listed[:number]))
        return
    rows = [
        (
            show_run_state(run),
            cut(run.name, LONGEST_NAME),
            f"{run.tasks['success']:,}/{run.tasks['total']:,}",
            f"{show_seconds((now - run.created_at).total_seconds())} ago",
            show_elapsed(run, now),
            short(run.id),
        )
        for run in listed[:number]
    ]
    show_table(("state", "name", "done", "created", "elapsed", "run"), rows)
    await show_failing_duties(project)
    if len(listed) > number:
        echo(f"There are older runs: {project.hint('status', '-n', str(number * 2))}", err=True)


async def show_run(project: Project, name: str, *, show_all: bool, as_json: bool) -> None:
    run = await project.view_run((await find_run(project.engine, name)).id)
    if as_json:
        described = describe_run(project, run)
        described["failing_duties"] = msgspec.to_builtins(await project.engine.list_duty_failures())
        echo(show_json(described))
        return
    now = run.as_of
    elapsed = f", {show_elapsed(run, now)} elapsed" if run.started_at else ""
    head = f"{click.style(run.name, bold=True)}  {show_run_state(run)}"
    echo(f"{head}  {show_counts(run.counts)}{elapsed}{show_money(run)}")
    echo(click.style(run.id, dim=True))
    if run.tags:
        echo(f"tags: {', '.join(run.tags)}")
    if run.task_description:
        echo(run.task_description)
    if run.phase == Phase.HELD and run.reason:
        echo(f"Reason: {run.reason}")
    echo()
    show_tasks(run.tasks, now, show_all=show_all)
    show_failures(project, run.failed_tasks)
    show_results(project, [task for task in run.tasks if task.waiting and task.waiting.kind == "review"])
    if folder := find_logs(project, run):
        echo(f"\nLogs: {near(folder)}")
    elif project.is_remote and any(task.attempts for task in run.tasks):
        echo(f"\nLogs: {project.hint('logs', short(run.id))}")
    if run.waiting:
        sentence = show_waiting(run.waiting, now)
        echo(f"\n{sentence[0].upper()}{sentence[1:]}.")
    if run.obstacle:
        echo(f"\n{run.obstacle}")
    await show_failing_duties(project)
    if hints := list(write_hints(project, run)):
        echo("\nNext:")
        width = max(len(command) for command, _ in hints)
        for command, effect in hints:
            echo(f"  {command.ljust(width)}  {click.style(f'# {effect}', dim=True)}")


async def show_failing_duties(project: Project) -> None:
    """Background work that fails, in any process on this database."""
    now = await project.engine.now()
    for duty in await project.engine.list_duty_failures():
        since = show_seconds(max(0.0, (now - duty.failed_at).total_seconds()))
        times = f"failed {count(duty.failures, 'time')} in a row in {duty.process}, the last time {since} ago"
        echo(click.style(f"\nDuty {duty.name} {times}: {duty.error}", fg="red"), err=True)


def describe_run(project: Project, run: RunView) -> dict[str, Any]:
    """The view as an object, with the words and commands that people get."""
    described: dict[str, Any] = msgspec.to_builtins(run)
    for task, view in zip(described["tasks"], run.tasks, strict=True):
        task["why"] = explain(view, run.as_of) or None
    described["next"] = [{"command": command, "what": step.effect} for command, step in list_commands(project, run)]
    return described


def write_hints(project: Project, run: RunView) -> Iterator[tuple[str, str]]:
    """The log of what failed, then every step that has a command; watching where others do the work."""
    if failed := [task for task in run.failed_tasks if task.attempts]:
        yield project.hint("logs", short(run.id), failed[0].name), "shows what it wrote"
    commands = list_commands(project, run)
    if run.attended and run.phase != Phase.DONE and not any(step.operation == "resume" for _, step in commands):
        yield project.hint("watch", short(run.id)), "shows what happens"
    yield from ((command, step.effect) for command, step in commands)


def find_logs(project: Project, run: RunView) -> Path | None:
    """The folder with all logs of a run; where workers of other projects wrote them, the one that they have in common."""
    folder = Path(log_path(project.settings.directory, run.id, "any", 1)).parent.parent
    if folder.is_dir():
        return folder
    recorded = [path for task in run.tasks if (path := project.find_log(task.log_path))]
    return Path(os.path.commonpath([path.parent for path in recorded])) if recorded else None


def show_money(run: RunView) -> str:
    """What it has spent, where it has spent anything or has a budget."""
    used = show_usage(run.spent_usd, run.tokens_in, run.tokens_out, is_estimated=run.cost_is_estimated)
    used = f" ({used})" if used else ""
    if run.budget_usd is not None:
        return f", {show_usd(run.spent_usd)} of {show_usd(run.budget_usd)} USD spent{used}"
    return f", {show_usd(run.spent_usd)} USD spent{used}" if run.spent_usd or used else ""


def show_tasks(tasks: Sequence[TaskView], now: datetime, *, show_all: bool) -> None:
    shown = list(runs.arrange(tasks))
    if len(tasks) > MOST_TASKS and not show_all:
        shown = pick(shown)
    rows = [
        (
            cut("  " * task.depth + task.name, LONGEST_NAME),
            show_state(task.state, task.phase, task.outcome),
            str(task.attempts) if task.attempts else "",
            show_seconds(task.took_seconds) if task.took_seconds is not None else "",
            explain(task, now),
        )
        for task in shown
    ]
    if rows:
        show_table(("task", "state", "attempts", "took", "why"), rows, fits=True)
    if left_out := Counter((task.state, task.phase, task.outcome) for task in tasks) - Counter(
        (task.state, task.phase, task.outcome) for task in shown
    ):
        words = ", ".join(f"{number:,} {show_state(*state)}" for state, number in left_out.items())
        echo(f"{'and ' if rows else ''}{words} (-a shows all)")


def pick(tasks: Sequence[TaskView]) -> list[TaskView]:
    """Of many tasks those that people want to see: failed, active, and the ones with subtasks."""

    def rank(task: TaskView) -> int:
        if task.outcome == Outcome.FAILURE or task.phase == Phase.ACTIVE or (task.skipped and task.error):
            return 0
        return 1 if task.has_subtasks else 2 if task.outcome != Outcome.SUCCESS else 3 if task.depth == 0 else 4

    wanted = [task for task in sorted(tasks, key=rank) if rank(task) < 4][:MOST_TASKS]
    chosen = {task.id for task in wanted}
    return [task for task in tasks if task.id in chosen]


def explain(task: TaskView, now: datetime) -> str:
    """Why a task waits, failed or was skipped."""
    error = first_line(task.error)
    last_error = f"last error: {error}" if error else ""
    if task.waiting:
        before = last_error if task.waiting.kind != "answer" else ""
        return "; ".join(filter(None, (show_waiting(task.waiting, now), before)))
    if task.skipped:
        return "; ".join(filter(None, (first_line(task.reason), last_error)))
    if task.phase == Phase.DONE:
        if task.expired:
            return first_line(task.reason)
        return "" if task.outcome == Outcome.SUCCESS else error or first_line(task.reason)
    return last_error if task.phase != Phase.ACTIVE else ""


def show_failures(project: Project, failed: Sequence[TaskView]) -> None:
    """The error of each failed task, and where its log is; of one at a server, the command that reads it."""
    for task in failed[:MOST_FAILURES]:
        echo(f"\n{click.style(task.name, fg='red')}: {first_line(task.error or task.reason)}")
        if path := project.find_attempt_log(task.run_id, task.name, task.attempts, task.log_path):
            echo(f"  log: {near(path)}")
        elif project.is_remote and task.attempts:
            echo(f"  log: {project.hint('logs', short(task.run_id), task.name)}")
    if len(failed) > MOST_FAILURES:
        echo(f"\nand {len(failed) - MOST_FAILURES:,} more")


def show_results(project: Project, reviewed: Sequence[TaskView]) -> None:
    """What people have to see of results that wait for a review."""
    for task in reviewed[:MOST_REVIEWS]:
        echo(f"\n{click.style(task.name, bold=True)}:")
        for line in list_results(task.outputs, task.tail, task.diff, project.find_log(task.log_path)):
            echo(f"  {line}")
    if len(reviewed) > MOST_REVIEWS:
        echo(f"\nand {count(len(reviewed) - MOST_REVIEWS, 'more result')}: {project.hint('inbox')}")


def show_run_state(run: CurrentRun) -> str:
    state = show_state(run.state, run.phase, run.outcome)
    return f"{state} (interrupted)" if run.interrupted_at else state


def show_elapsed(run: CurrentRun, now: datetime) -> str:
    seconds = run.elapsed_seconds(now)
    return show_seconds(seconds) if seconds is not None else ""

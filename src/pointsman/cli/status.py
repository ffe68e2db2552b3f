"""`pointsman status`: the latest runs, or one of them with its tasks and what can be done next."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import click

from pointsman.cli.describe import describe_run, describe_task, elapsed_seconds, first_line, read_error, show_instant
from pointsman.cli.output import count, cut, near, show_seconds, show_state, show_table
from pointsman.cli.project import Asked, Project, find_run, in_project, is_attended, project_options, short
from pointsman.errors import NothingYet
from pointsman.kernel.machine import Machine, Outcome, Phase
from pointsman.store.rows import Run, Task

MOST_TASKS = 50
"""More than these, and those that need no attention are only counted."""
MOST_FAILURES = 3
LONGEST_NAME = 32


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--number", "-n", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many runs to list.")
@click.option("--all", "-a", "show_all", is_flag=True, help=f"Show all tasks, also where there are more than {MOST_TASKS}.")
@project_options
def command(run: str | None, number: int, *, show_all: bool, asked: Asked) -> None:
    """Show the latest runs, or how the tasks of RUN stand and what can be done next.

    RUN is an id, the beginning or the end of one, or `latest`.

    \b
    Examples:
      pointsman status
      pointsman status latest
      pointsman status 9ef05a58 --json
    """
    try:
        if run is None:
            in_project(asked, lambda project: show_runs(project, number, as_json=asked.as_json))
        else:
            in_project(asked, lambda project: show_run(project, run, show_all=show_all, as_json=asked.as_json))
    except NothingYet as nothing:
        if run is not None:
            raise
        click.echo("[]") if asked.as_json else click.echo(str(nothing), err=True)


async def show_runs(project: Project, number: int, *, as_json: bool) -> None:
    runs = await project.engine.list_runs(limit=number + 1)
    if not runs:
        raise NothingYet
    counts = await count_tasks(project, [run.id for run in runs])
    now = project.world.clock.now()
    if as_json:
        listed = [{**describe_run(run), "tasks": describe_counts(counts[run.id])} for run in runs[:number]]
        click.echo(json.dumps(listed, indent=2))
        return
    rows = [
        (
            show_state(run.state, run.phase, run.outcome),
            cut(run.name, LONGEST_NAME),
            f"{done(counts[run.id]):,}/{counts[run.id].total():,}",
            f"{show_seconds((now - run.created_at).total_seconds())} ago",
            show_elapsed(run, now),
            short(run.id),
        )
        for run in runs[:number]
    ]
    show_table(("state", "name", "tasks", "begun", "took", "run"), rows)
    if len(runs) > number:
        click.echo(f"There are older ones: pointsman status -n {number * 2}", err=True)


async def show_run(project: Project, name: str, *, show_all: bool, as_json: bool) -> None:
    engine = project.engine
    run = await find_run(engine, name)
    tasks = await engine.list_tasks(run.id)
    machines = {row.machine_id: await engine.get_machine(row) for row in (run, *tasks)}
    attended = await is_attended(project, run)
    steps = list(next_steps(run, tasks, machines, attended=attended))
    if as_json:
        described = {
            **describe_run(run),
            "tasks": [describe_task(task) for task in tasks],
            "attended": attended,
            "next": [{"command": step, "what": what} for step, what in steps],
            "as_of": show_instant(project.world.clock.now()),
        }
        click.echo(json.dumps(described, indent=2))
        return
    now = project.world.clock.now()
    ended = sum(task.phase == Phase.DONE for task in tasks)
    head = f"{click.style(run.name, bold=True)}  {show_state(run.state, run.phase, run.outcome)}"
    took = f", {show_elapsed(run, now)}" if run.started_at else ""
    click.echo(f"{head}  {ended:,} of {count(len(tasks), 'task')} done{took}")
    click.echo(click.style(run.id, dim=True))
    if run.phase == Phase.HELD and run.reason:
        click.echo(f"Why: {run.reason}")
    click.echo()
    show_tasks(tasks, await find_blockers(project, run, tasks), now, show_all=show_all)
    show_failures(project, tasks)
    logged = [task for task in tasks if task.attempt_log_path]
    if logged:
        folder = Path(os.path.commonpath([project.settings.directory / (task.attempt_log_path or "") for task in logged]))
        click.echo(f"\nLogs: {near(folder)}")
    if run.phase in (Phase.QUEUED, Phase.ACTIVE) and not attended:
        click.echo("\nNo worker is at it.")
    if steps:
        click.echo("\nNext:")
        width = max(len(step) for step, _ in steps)
        for step, what in steps:
            click.echo(f"  {step.ljust(width)}  {click.style(f'# {what}', dim=True)}")


async def find_blockers(project: Project, run: Run, tasks: Sequence[Task]) -> dict[str, list[str]]:
    """By task: the names of those that it still waits for."""
    open_tasks = {task.id: task.name for task in tasks if task.outcome != Outcome.SUCCESS}
    blockers: dict[str, list[str]] = {}
    if any(task.open_dependencies for task in tasks):
        for dependency in await project.engine.list_dependencies(run.id):
            if dependency.depends_on_id in open_tasks:
                blockers.setdefault(dependency.task_id, []).append(open_tasks[dependency.depends_on_id])
    return blockers


def arrange(tasks: Sequence[Task]) -> Iterator[Task]:
    """Every task before its subtasks, and otherwise in the order of the run."""
    children: dict[str | None, list[Task]] = {}
    for task in tasks:
        children.setdefault(task.parent_task_id, []).append(task)
    waiting = children.get(None, [])[::-1]
    while waiting:
        task = waiting.pop()
        yield task
        waiting += children.get(task.id, [])[::-1]


def show_tasks(tasks: Sequence[Task], blockers: Mapping[str, list[str]], now: datetime, *, show_all: bool) -> None:
    shown = list(arrange(tasks))
    if len(tasks) > MOST_TASKS and not show_all:
        shown = [task for task in shown if task.outcome != Outcome.SUCCESS][:MOST_TASKS]
    rows = [
        (
            cut("  " * task.depth + task.name, LONGEST_NAME),
            show_state(task.state, task.phase, task.outcome),
            str(task.epoch) if task.epoch else "",
            show_elapsed(task, now) if task.phase in (Phase.ACTIVE, Phase.DONE) else "",
            explain(task, blockers.get(task.id, [])),
        )
        for task in shown
    ]
    if rows:
        show_table(("task", "state", "tries", "took", "why"), rows, fits=True)
    if left_out := Counter((task.state, task.phase, task.outcome) for task in tasks) - Counter(
        (task.state, task.phase, task.outcome) for task in shown
    ):
        words = ", ".join(f"{number:,} {show_state(*state)}" for state, number in left_out.items())
        click.echo(f"and {words} (-a shows all)")


def explain(task: Task, blockers: Sequence[str]) -> str:
    """Why a task is where it is, where that is not plain."""
    if task.cancel_requested_at and task.phase != Phase.DONE:
        return "is being called off"
    if task.outcome == Outcome.SUCCESS:
        return first_line(read_error(task.error) or task.reason) if task.trigger == "skip" else ""
    if task.question is not None and task.phase == Phase.HELD:
        return first_line(task.question)
    if task.open_dependencies and task.phase != Phase.DONE:
        return f"waits for {', '.join(blockers[:3])}" + (f" and {len(blockers) - 3:,} more" if len(blockers) > 3 else "")
    error = first_line(read_error(task.error))
    if task.phase != Phase.DONE:
        return f"before: {error}" if error else ""
    return error or first_line(task.reason)


def show_failures(project: Project, tasks: Sequence[Task]) -> None:
    """What has failed in full, and where to read on."""
    failed = [task for task in tasks if task.outcome == Outcome.FAILURE]
    for task in failed[:MOST_FAILURES]:
        click.echo(f"\n{click.style(task.name, fg='red')}: {first_line(read_error(task.error) or task.reason)}")
        if task.attempt_log_path:
            click.echo(f"  log: {near(project.settings.directory / task.attempt_log_path)}")
    if len(failed) > MOST_FAILURES:
        click.echo(f"\nand {len(failed) - MOST_FAILURES:,} more")


def next_steps(
    run: Run, tasks: Sequence[Task], machines: Mapping[int, Machine], *, attended: bool
) -> Iterator[tuple[str, str]]:
    """Commands that make sense now: only what the machines take."""
    name = short(run.id)
    failed = next((task for task in tasks if task.outcome == Outcome.FAILURE), None)
    machine = machines[run.machine_id]
    # One that only waited for its subtasks has written nothing.
    told = next((task for task in tasks if task.outcome == Outcome.FAILURE and not task.has_children), failed)
    if told:
        yield f"pointsman logs {name} {quote(told.name)}", "what it wrote"
    if machine.moves(run.state, "retry"):
        yield f"pointsman retry {name}", "try again what has failed"
    elif failed and machines[failed.machine_id].moves(failed.state, "retry") and run.phase != Phase.DONE:
        yield f"pointsman retry {name} {quote(failed.name)}", "try it again"
    if failed and machines[failed.machine_id].moves(failed.state, "skip") and run.outcome != Outcome.CANCELED:
        yield f"pointsman skip {name} {quote(failed.name)}", "go on without it"
    if machine.moves(run.state, "resume") or (run.phase in (Phase.QUEUED, Phase.ACTIVE) and not attended):
        yield f"pointsman resume {name}", "go on"
    elif run.phase != Phase.DONE:
        yield f"pointsman watch {name}", "see what happens"
    if machine.moves(run.state, "pause") and attended:
        yield f"pointsman pause {name}", "let nothing more begin"
    if machine.moves(run.state, "cancel"):
        yield f"pointsman cancel {name}", "end it"


def quote(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").replace(".", "").isalnum() else f"'{name}'"


async def count_tasks(project: Project, run_ids: Sequence[str]) -> dict[str, Counter[tuple[str, str | None]]]:
    counts: dict[str, Counter[tuple[str, str | None]]] = {run_id: Counter() for run_id in run_ids}
    for run_id, phase, outcome, number in await project.engine.count_tasks(run_ids):
        counts[run_id][phase, outcome] += number
    return counts


def done(counts: Counter[tuple[str, str | None]]) -> int:
    return sum(number for (phase, _), number in counts.items() if phase == Phase.DONE)


def describe_counts(counts: Counter[tuple[str, str | None]]) -> dict[str, int]:
    by_phase = Counter({phase.value: 0 for phase in Phase})
    by_outcome = Counter({outcome.value: 0 for outcome in Outcome})
    for (phase, outcome), number in counts.items():
        by_phase[phase] += number
        if outcome:
            by_outcome[outcome] += number
    return {"total": counts.total(), **by_phase, **by_outcome}


def show_elapsed(entity: Run | Task, now: datetime) -> str:
    seconds = elapsed_seconds(entity, now)
    return show_seconds(seconds) if seconds is not None else ""

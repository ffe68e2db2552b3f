"""`pointsman status`: the latest runs, or one of them with its tasks and what can be done next."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import click

from pointsman.cli.describe import (
    Needs,
    describe_run,
    describe_task,
    describe_worker,
    elapsed_seconds,
    explain_breaker,
    explain_capabilities,
    explain_delay,
    explain_exhaustion,
    explain_loss,
    find_log,
    find_lost,
    first_line,
    read_capabilities,
    read_error,
    read_lanes,
    show_instant,
)
from pointsman.cli.output import count, cut, near, show_seconds, show_state, show_table
from pointsman.cli.project import PAGE, Asked, Project, find_run, in_project, project_options, short
from pointsman.engine import budgets
from pointsman.errors import NothingYet
from pointsman.kernel.machine import Machine, Outcome, Phase
from pointsman.store.rows import Breaker, Run, Task, Worker
from pointsman.worker.log import log_path

MOST_TASKS = 50
"""More than these, and those that need no attention are only counted."""
MOST_FAILURES = 3
LONGEST_NAME = 32


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--number", "-n", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many runs to list.")
@click.option("--all", "-a", "show_all", is_flag=True, help=f"Show all tasks, also where there are more than {MOST_TASKS}.")
@click.option("--workers", is_flag=True, help="Show the workers instead; with --all also those that are gone.")
@project_options
def command(run: str | None, number: int, *, show_all: bool, workers: bool, asked: Asked) -> None:
    """Show the latest runs, or how the tasks of RUN stand, why they wait, and what can be done next.

    RUN is an id, the beginning or the end of one, or `latest`.

    \b
    Examples:
      pointsman status
      pointsman status latest
      pointsman status 9ef05a58 --json
      pointsman status --workers
    """
    if workers and run is not None:
        raise click.UsageError("--workers is about all of them: leave out the run.", click.get_current_context())
    try:
        if workers:
            in_project(asked, lambda project: show_workers(project, show_all=show_all, as_json=asked.as_json))
        elif run is None:
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
    surroundings = await look_around(project, run, tasks)
    attended = bool(surroundings.workers)
    steps = list(next_steps(project, run, tasks, machines, surroundings))
    now = project.world.clock.now()
    if as_json:
        described = {
            **describe_run(run),
            "tasks": [{**describe_task(task), "why": explain(task, surroundings, now) or None} for task in tasks],
            "attended": attended,
            "next": [{"command": step, "what": what} for step, what in steps],
            "as_of": show_instant(now),
        }
        click.echo(json.dumps(described, indent=2))
        return
    ended = sum(task.phase == Phase.DONE for task in tasks)
    head = f"{click.style(run.name, bold=True)}  {show_state(run.state, run.phase, run.outcome)}"
    took = f", {show_elapsed(run, now)}" if run.started_at else ""
    click.echo(f"{head}  {ended:,} of {count(len(tasks), 'task')} done{took}{show_money(run)}")
    click.echo(click.style(run.id, dim=True))
    if run.phase == Phase.HELD and run.reason:
        click.echo(f"Why: {run.reason}")
    click.echo()
    show_tasks(tasks, surroundings, now, show_all=show_all)
    show_failures(project, tasks)
    if folder := find_logs(project, run, tasks):
        click.echo(f"\nLogs: {near(folder)}")
    if run.phase in (Phase.QUEUED, Phase.ACTIVE) and not attended:
        click.echo("\nNo worker is at it.")
    lost, exhausted = find_lost(tasks, machines), explain_exhaustion(run, now)
    if run.outcome == Outcome.FAILURE and (lost or exhausted):
        click.echo(f"\n{explain_loss(lost[0]) if lost else exhausted}")
    if steps:
        click.echo("\nNext:")
        width = max(len(step) for step, _ in steps)
        for step, what in steps:
            click.echo(f"  {step.ljust(width)}  {click.style(f'# {what}', dim=True)}")


def find_logs(project: Project, run: Run, tasks: Sequence[Task]) -> Path | None:
    """The folder of all logs of a run; where others have written them, the one that they have in common."""
    folder = Path(log_path(project.settings.directory, run.id, "any", 1)).parent.parent
    if folder.is_dir():
        return folder
    recorded = [project.settings.directory / task.attempt_log_path for task in tasks if task.attempt_log_path]
    return Path(os.path.commonpath([path.parent for path in recorded])) if recorded else None


def show_money(run: Run) -> str:
    """What it has spent, where that is anything or there is a limit to it."""
    if run.budget_usd is not None:
        return f", {budgets.show(run.spent_usd)} of {budgets.show(run.budget_usd)} USD spent"
    return f", {budgets.show(run.spent_usd)} USD spent" if run.spent_usd else ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is not in a task itself and may be why it waits."""

    run: Run
    workers: Sequence[Worker]
    """Those that are there and may do its tasks."""
    blockers: Mapping[str, list[str]] = field(default_factory=dict)
    """By task: the names of those that it still waits for."""
    needs: Mapping[int, Needs] = field(default_factory=dict)
    """By lane: tasks of one lane ask for the same tool and the same abilities."""
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    at_work: Mapping[str, int] = field(default_factory=dict)
    """By tool with a limit: how many of its tasks are at work, in all runs."""

    def of_task(self, task: Task) -> Needs:
        return self.needs.get(task.lane_id, (None, ()))


async def look_around(project: Project, run: Run, tasks: Sequence[Task]) -> Surroundings:
    workers = [worker for worker in await list_living(project) if worker.run_id in (None, run.id)]
    blockers = await find_blockers(project, run, tasks)
    if not any(task.phase == Phase.QUEUED for task in tasks):
        return Surroundings(run, workers, blockers)
    needs = read_lanes(tasks)
    tools = {tool for tool, _ in needs.values() if tool}
    breakers = {breaker.tool: breaker for breaker in await project.engine.list_breakers() if breaker.tool in tools}
    limited = any(breaker.max_concurrent is not None for breaker in breakers.values())
    at_work = Counter(await list_tools_at_work(project)) if limited else Counter[str]()
    return Surroundings(run, workers, blockers, needs, breakers, at_work)


async def list_living(project: Project) -> list[Worker]:
    """Workers that are there; one that was killed here is not, though its lease may last."""
    from pointsman.worker.records import find_dead

    now = project.world.clock.now()
    dead = find_dead(project.settings.directory)
    return [
        worker
        for worker in await project.engine.list_workers()
        if worker.phase != Phase.DONE
        and worker.id not in dead
        and (now - worker.heartbeat_at).total_seconds() < worker.lease_seconds
    ]


async def list_tasks_at_work(project: Project) -> list[Task]:
    """All that somebody works on, of the latest runs."""
    engine = project.engine
    runs = await engine.list_runs(limit=PAGE)
    counted = await engine.count_tasks([run.id for run in runs])
    busy = {run_id for run_id, phase, _, _ in counted if phase == Phase.ACTIVE}
    return [task for run_id in sorted(busy) for task in await engine.list_tasks(run_id) if task.current_attempt is not None]


async def list_tools_at_work(project: Project) -> list[str]:
    tasks = [task for task in await list_tasks_at_work(project) if not task.lease_expired]
    needs = read_lanes(tasks)
    return [tool for task in tasks if (tool := needs[task.lane_id][0])]


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


def show_tasks(tasks: Sequence[Task], surroundings: Surroundings, now: datetime, *, show_all: bool) -> None:
    shown = list(arrange(tasks))
    if len(tasks) > MOST_TASKS and not show_all:
        shown = pick(shown)
    rows = [
        (
            cut("  " * task.depth + task.name, LONGEST_NAME),
            show_state(task.state, task.phase, task.outcome),
            str(task.epoch) if task.epoch else "",
            show_elapsed(task, now) if task.phase in (Phase.ACTIVE, Phase.DONE) else "",
            explain(task, surroundings, now),
        )
        for task in shown
    ]
    if rows:
        show_table(("task", "state", "tries", "took", "why"), rows, fits=True)
    if left_out := Counter((task.state, task.phase, task.outcome) for task in tasks) - Counter(
        (task.state, task.phase, task.outcome) for task in shown
    ):
        words = ", ".join(f"{number:,} {show_state(*state)}" for state, number in left_out.items())
        click.echo(f"{'and ' if rows else ''}{words} (-a shows all)")


def pick(tasks: Sequence[Task]) -> list[Task]:
    """Those that people want to see of many: what failed, what goes on, and what all the others are parts of."""

    def rank(task: Task) -> int:
        if task.outcome == Outcome.FAILURE or task.phase == Phase.ACTIVE or (task.trigger == "skip" and task.error):
            return 0
        return 1 if task.has_subtasks else 2 if task.outcome != Outcome.SUCCESS else 3 if task.depth == 0 else 4

    wanted = [task for task in sorted(tasks, key=rank) if rank(task) < 4][:MOST_TASKS]
    chosen = {task.id for task in wanted}
    return [task for task in tasks if task.id in chosen]


def explain(task: Task, surroundings: Surroundings, now: datetime) -> str:
    """Why a task is where it is, where that is not plain."""
    if task.cancel_requested_at and task.phase != Phase.DONE:
        return "is being called off"
    if task.outcome == Outcome.SUCCESS:
        return first_line(read_error(task.error) or task.reason) if task.trigger == "skip" else ""
    if task.question is not None and task.phase == Phase.HELD:
        return first_line(task.question)
    error = first_line(read_error(task.error))
    if task.phase == Phase.DONE:
        return error or first_line(task.reason)
    waits = explain_waiting(task, surroundings, now) if task.phase in (Phase.QUEUED, Phase.HELD) else ""
    return "; ".join(part for part in (waits, f"before: {error}" if error else "") if part)


def explain_waiting(task: Task, surroundings: Surroundings, now: datetime) -> str:
    """What a task waits for that has not begun; the first reason is the one to mend."""
    blockers = surroundings.blockers.get(task.id, [])
    if task.open_dependencies and blockers:
        return f"after: {', '.join(blockers[:3])}" + (f" and {len(blockers) - 3:,} more" if len(blockers) > 3 else "")
    run = surroundings.run
    if run.phase in (Phase.DONE, Phase.HELD) and not task.run_open:
        return f"its run is {run.state}"
    if delay := explain_delay(task, now):
        return delay
    if task.phase != Phase.QUEUED:
        return ""
    tool, capabilities = surroundings.of_task(task)
    if unable := explain_capabilities(capabilities, surroundings.workers):
        return unable
    breaker = surroundings.breakers.get(tool or "")
    return explain_breaker(breaker, surroundings.at_work.get(breaker.tool, 0), now) if breaker else ""


def show_failures(project: Project, tasks: Sequence[Task]) -> None:
    """What has failed in full, and where to read on."""
    failed = [task for task in tasks if task.outcome == Outcome.FAILURE]
    for task in failed[:MOST_FAILURES]:
        click.echo(f"\n{click.style(task.name, fg='red')}: {first_line(read_error(task.error) or task.reason)}")
        if path := find_log(project.settings.directory, task, task.epoch, task.attempt_log_path):
            click.echo(f"  log: {near(path)}")
    if len(failed) > MOST_FAILURES:
        click.echo(f"\nand {len(failed) - MOST_FAILURES:,} more")


def next_steps(
    project: Project, run: Run, tasks: Sequence[Task], machines: Mapping[int, Machine], surroundings: Surroundings
) -> Iterator[tuple[str, str]]:
    """Commands that make sense now: only what the machines take, and what can still lead to success."""
    name = short(run.id)
    attended = bool(surroundings.workers)
    is_over = bool(find_lost(tasks, machines) or explain_exhaustion(run, project.world.clock.now()))
    failed = next((task for task in tasks if task.outcome == Outcome.FAILURE), None)
    machine = machines[run.machine_id]
    # One that only waited for its subtasks has written nothing.
    told = next((task for task in tasks if task.outcome == Outcome.FAILURE and not task.has_subtasks), failed)
    if told:
        yield project.hint("logs", name, told.name), "what it wrote"
    ended_badly = [task for task in tasks if task.critical and task.outcome in (Outcome.FAILURE, Outcome.CANCELED)]
    # A run that is tried again fails at once where one of these stays as it is.
    can_retry = all(machines[task.machine_id].moves(task.state, "retry") for task in ended_badly)
    if machine.moves(run.state, "retry") and can_retry and not is_over:
        yield project.hint("retry", name), "try again what has failed"
    elif failed and machines[failed.machine_id].moves(failed.state, "retry") and run.phase != Phase.DONE:
        yield project.hint("retry", name, failed.name), "try it again"
    if failed and machines[failed.machine_id].moves(failed.state, "skip") and run.outcome != Outcome.CANCELED and not is_over:
        yield project.hint("skip", name, failed.name), "go on without it"
    missing = find_missing(tasks, surroundings)
    abilities = [word for each in missing for word in ("--capability", each)]
    if missing and attended and run.phase != Phase.DONE:
        yield project.hint("worker", *abilities), "do what the others cannot, where that can be done"
    if machine.moves(run.state, "resume") or (run.phase in (Phase.QUEUED, Phase.ACTIVE) and not attended):
        yield project.hint("resume", name, *abilities), "go on"
    elif run.phase != Phase.DONE:
        yield project.hint("watch", name), "see what happens"
    if machine.moves(run.state, "pause") and attended:
        yield project.hint("pause", name), "let nothing more begin"
    if machine.moves(run.state, "cancel"):
        yield project.hint("cancel", name), "end it"


def find_missing(tasks: Sequence[Task], surroundings: Surroundings) -> list[str]:
    """What tasks wait for that no worker can do."""
    waiting = [surroundings.of_task(task)[1] for task in tasks if task.phase == Phase.QUEUED]
    return sorted({word for needed in waiting if explain_capabilities(needed, surroundings.workers) for word in needed})


async def show_workers(project: Project, *, show_all: bool, as_json: bool) -> None:
    """Who is there, what they hold, and when they were last heard of."""
    living = {worker.id for worker in await list_living(project)}
    workers = [worker for worker in await project.engine.list_workers() if show_all or worker.phase != Phase.DONE]
    held: dict[str | None, list[Task]] = {}
    for task in await list_tasks_at_work(project):
        held.setdefault(task.attempt_worker_id, []).append(task)
    if as_json:
        described = [describe_worker(worker, held.get(worker.id, []), alive=worker.id in living) for worker in workers]
        click.echo(json.dumps(described, indent=2))
        return
    if not workers:
        click.echo("No worker is there. Start one: pointsman worker", err=True)
        return
    now = project.world.clock.now()
    rows = [
        (
            cut(worker.name, LONGEST_NAME),
            show_state(worker.state, worker.phase, worker.outcome),
            f"{len(held.get(worker.id, []))}/{worker.max_concurrent_tasks}",
            f"{show_seconds((now - worker.heartbeat_at).total_seconds())} ago"
            + ("" if worker.id in living or worker.phase == Phase.DONE else ", lost"),
            ", ".join(read_capabilities(worker)),
            short(worker.id),
            ", ".join(f"{task.name} ({short(task.run_id)})" for task in held.get(worker.id, [])),
        )
        for worker in workers
    ]
    show_table(("worker", "state", "slots", "heard of", "can do", "id", "holds"), rows, fits=True)


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

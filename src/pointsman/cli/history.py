"""`pointsman history`: every transition of a run, a task, a worker or a tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from pointsman.cli.describe import describe_attempt, describe_move, show_json
from pointsman.cli.output import count, cut, echo, near, show_seconds, show_state, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.engine.engine import Engine
from pointsman.errors import NotFound, NothingYet, Problem, RequestInvalid
from pointsman.kernel.machine import Kind
from pointsman.store.rows import Attempt, Transition
from pointsman.views.find import LATEST, find_run, find_task, find_worker, is_part, short
from pointsman.views.notices import list_notices
from pointsman.views.values import TaskView, first_line, read_error, show_usage, show_usd
from pointsman.worker.journal import JOURNAL, rebuild
from pointsman.worker.log import log_path

RUNS_TO_SEARCH = 20
MOST_NOTICES = 100
SAID = ("question", "answer", "comment")
LONGEST_SAID = 200


@click.command()
@click.argument("identity", metavar="[ID]", required=False)
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--rebuild", "rebuilds", is_flag=True, help=f"Write {JOURNAL} again from the database.")
@project_options
def command(identity: str | None, task: str | None, *, rebuilds: bool, asked: Asked) -> None:
    """Show every transition of a run, a task, a worker or a tool: when, who and why; and every attempt.

    ID is the id of a run, a task or a worker (or the beginning or the end of it), the name of a tool, or `latest` for the
    latest run. You can also name a task as RUN TASK.

    \b
    Examples:
      pointsman history latest
      pointsman history latest fetch
      pointsman history 9ef05a58 fetch --json
      pointsman history --rebuild
    """
    if rebuilds:
        if identity is not None:
            raise click.UsageError("--rebuild writes the whole journal: leave out the id.", click.get_current_context())
        in_project(asked, lambda project: rebuild_journal(project, as_json=asked.as_json))
        return
    if identity is None:
        raise click.UsageError("Name a run, a task, a worker or a tool.", click.get_current_context())
    in_project(asked, lambda project: show_history(project, identity, task, as_json=asked.as_json))


async def rebuild_journal(project: Project, *, as_json: bool) -> None:
    path = project.settings.directory / JOURNAL
    lines = await rebuild(project.engine, path)
    if as_json:
        echo(json.dumps({"file": str(path), "lines": lines}))
    else:
        echo(f"wrote {count(lines, 'line')} to {near(path)}", err=True)


async def show_history(project: Project, identity: str, task: str | None, *, as_json: bool) -> None:
    engine = project.engine
    kind, entity_id, name = await find_entity(engine, identity, task)
    moves = await engine.list_history(entity_id)
    attempts = await engine.list_attempts(entity_id) if kind is Kind.TASK else []
    view = await view_task(project, entity_id) if attempts else None
    listed = await list_notices(engine, about=entity_id, limit=MOST_NOTICES)
    notices = [notice for notice in reversed(listed) if notice.id == entity_id]
    if as_json:
        described = {
            "kind": kind,
            "id": entity_id,
            "name": name,
            "moves": [describe_move(move, name) for move in moves],
            "attempts": [describe_attempt(attempt, view, project.settings.directory) for attempt in attempts if view],
            "notices": notices,
        }
        echo(show_json(described))
        return
    label = "tool" if kind is Kind.BREAKER else kind
    echo(f"{label} {click.style(name, bold=True)}  {click.style(entity_id, dim=True)}\n")
    await show_moves(engine, moves)
    if view:
        echo()
        show_attempts(project, attempts, view)
    if notices:
        echo()
        rows = [(f"{each.at.astimezone():%Y-%m-%d %H:%M:%S}", each.subject, each.message) for each in notices]
        show_table(("when", "notice", "message"), rows, fits=True)


async def view_task(project: Project, task_id: str) -> TaskView:
    run = await project.view_run((await project.engine.get_task(task_id)).run_id)
    return next(task for task in run.tasks if task.id == task_id)


async def show_moves(engine: Engine, moves: Sequence[Transition]) -> None:
    rows = []
    day = ""
    for move in moves:
        machine = await engine.get_machine(move)
        entered = machine.state(move.to_state)
        today = f"{move.at.astimezone():%Y-%m-%d}"
        time = f"{move.at.astimezone():%H:%M:%S.%f}"[:-3]
        rows.append(
            (
                time if today == day else f"{today} {time}",
                show_state(entered.name, entered.phase, entered.outcome),
                move.trigger,
                short(move.actor) if move.actor and move.actor.startswith("worker_") else move.actor or "",
                _explain(move),
            )
        )
        day = today
    width = max(len(row[0]) for row in rows)
    show_table(("when", "state", "trigger", "by", "why"), [(row[0].rjust(width), *row[1:]) for row in rows], fits=True)


def _explain(move: Transition) -> str:
    """Why it moved: the reason, and what people said: question and answer, or the comment of a rejection."""
    said = [cut(first_line(str(move.details[key])), LONGEST_SAID) for key in SAID if key in move.details]
    return "; ".join(text for text in (first_line(move.reason), " ".join(said)) if text)


def show_attempts(project: Project, attempts: Sequence[Attempt], task: TaskView) -> None:
    is_lost = task.waiting is not None and task.waiting.kind == "lost_worker"
    rows = [
        (
            str(attempt.epoch),
            short(attempt.worker_id) if attempt.worker_id else "",
            show_seconds(task.attempt_seconds[attempt.epoch]) if attempt.epoch in task.attempt_seconds else "",
            attempt.ended_by or _show_open(attempt, is_lost=is_lost),
            str(attempt.exit_code) if attempt.exit_code is not None else "",
            _show_cost(attempt),
            first_line(read_error(attempt.error)),
        )
        for attempt in attempts
    ]
    show_table(("attempt", "worker", "took", "ended by", "exit", "cost", "error"), rows, fits=True)
    for attempt in attempts:
        if attempt.started_at is None:
            expected = Path(log_path(project.settings.directory, task.run_id, task.name, attempt.epoch))
            echo(f"log of attempt {attempt.epoch}, once it has started: {near(expected)}")
        elif path := project.find_attempt_log(task.run_id, task.name, attempt.epoch, attempt.log_path):
            echo(f"log of attempt {attempt.epoch}: {near(path)}")


def _show_open(attempt: Attempt, *, is_lost: bool) -> str:
    if attempt.started_at is None:
        return "not started"
    return "interrupted" if is_lost else "still running"


def _show_cost(attempt: Attempt) -> str:
    usd = f"{show_usd(attempt.cost_usd)} USD" if attempt.cost_usd else ""
    used = show_usage(attempt.cost_usd, attempt.tokens_in, attempt.tokens_out, is_estimated=attempt.cost_is_estimated)
    return ", ".join(part for part in (usd, used) if part)


async def find_entity(engine: Engine, identity: str, task: str | None) -> tuple[Kind, str, str]:
    """(kind, id, name) of the entity that a person means."""
    if task is not None:
        found = await find_task(engine, await find_run(engine, identity), task)
        return Kind.TASK, found.id, found.name
    if other := await _find_other(engine, identity):
        return other
    try:
        run = await find_run(engine, identity)
    except (RequestInvalid, NothingYet) as unknown:
        for run in await engine.list_runs(limit=RUNS_TO_SEARCH):
            for each in await engine.list_tasks_in_brief(run.id):
                if is_part(identity, each.id):
                    return Kind.TASK, each.id, each.name
        if isinstance(unknown, RequestInvalid):
            raise RequestInvalid([Problem("", f"There is no task, worker or tool '{identity}'. {unknown}")]) from None
        raise
    return Kind.RUN, run.id, run.name


async def _find_other(engine: Engine, identity: str) -> tuple[Kind, str, str] | None:
    """Anything but a run: a task by its whole id, a tool by its name, a worker by its name, its id or a part of that."""
    if identity == LATEST:
        return None
    for breaker in await engine.list_breakers():
        if identity in (breaker.tool, breaker.id):
            return Kind.BREAKER, breaker.id, breaker.tool
    with suppress(NotFound):
        task = await engine.get_task(identity)
        return Kind.TASK, task.id, task.name
    with suppress(RequestInvalid):
        worker = await find_worker(engine, identity)
        return Kind.WORKER, worker.id, worker.name
    return None

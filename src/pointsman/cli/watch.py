"""`pointsman watch`: the transitions of a run as they happen."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import click

from pointsman.cli.describe import describe_move
from pointsman.cli.hints import WaitingPrinter
from pointsman.cli.output import cut, echo, show_seconds, show_state, show_time, tell, terminal_columns
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.streams import background_output, keep_up
from pointsman.engine.engine import Engine
from pointsman.kernel.machine import Kind, Outcome, Phase
from pointsman.store.rows import Run, Transition
from pointsman.views.find import find_run, short
from pointsman.views.runs import make_run_summary
from pointsman.views.values import first_line

LONGEST_NAME = 24


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--all", "-a", "from_start", is_flag=True, help="Start with the first transition of the run.")
@project_options
def command(run: str | None, *, from_start: bool, asked: Asked) -> int:
    """Show the transitions of RUN, or of the latest run, until it has ended, and why its tasks wait.

    Exit code 0: the run succeeded, 1: it did not. With --json every transition is an object on a line of its own.

    \b
    Examples:
      pointsman watch
      pointsman watch 9ef05a58 --all
      pointsman watch latest --json | jq .to
    """
    with background_output(needs_reader=True):
        return in_project(asked, lambda project: watch(project, run, from_start=from_start, as_json=asked.as_json))


async def watch(project: Project, name: str | None, *, from_start: bool, as_json: bool) -> int:
    engine = project.engine
    position = None if from_start else await engine.last_position()
    run = await find_run(engine, name)
    if run.phase != Phase.DONE:
        run = await follow_with_reasons(project, run, position, as_json=as_json)
    elif from_start:
        run = await follow(project, run, position, as_json=as_json)
    show_end(project, run)
    return 0 if run.outcome == Outcome.SUCCESS else 1


async def follow_with_reasons(project: Project, run: Run, position: str | None, *, as_json: bool) -> Run:
    printer = WaitingPrinter(project, tell, run.id)
    await printer.look()
    telling = asyncio.create_task(printer.keep_telling())
    try:
        return await follow(project, run, position, as_json=as_json)
    finally:
        telling.cancel()
        await asyncio.wait({telling})


async def follow(project: Project, run: Run, position: str | None, *, as_json: bool) -> Run:
    """Show the transitions behind a position until the run has ended, and was not retried since."""
    engine = project.engine
    names = Names(engine, run)
    async with aclosing(engine.watch(after=position, run_id=run.id)) as moves:
        async for move in moves:
            await show_move(engine, move, names, as_json=as_json)
            await keep_up(project.world.sleep)
            if move.entity_id == run.id and (await engine.get_machine(move)).state(move.to_state).phase is Phase.DONE:
                run = await engine.get_run(run.id)
                if run.phase == Phase.DONE:
                    break
    for last in await engine.list_transitions(after=move.position, run_id=run.id):
        await show_move(engine, last, names, as_json=as_json)
        await keep_up(project.world.sleep)
    return run


class Names:
    """The names of a run and its tasks; tasks that are added later are looked up."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self.width = len(cut(run.name, LONGEST_NAME))
        self._engine = engine
        self._run_id = run.id
        self._names = {run.id: run.name}

    async def find(self, move: Transition) -> str:
        if move.entity_id not in self._names:
            self._names |= {task.id: task.name for task in await self._engine.list_tasks_in_brief(self._run_id)}
            self.width = min(max(len(name) for name in self._names.values()), LONGEST_NAME)
        return self._names.get(move.entity_id, short(move.entity_id))


async def show_move(engine: Engine, move: Transition, names: Names, *, as_json: bool) -> None:
    """One line: when, what, from which state to which, why."""
    name = await names.find(move)
    if as_json:
        echo(json.dumps(describe_move(move, name)))
        return
    entered = (await engine.get_machine(move)).state(move.to_state)
    label = cut(name, names.width).ljust(names.width)
    label = click.style(label, bold=True) if move.kind == Kind.RUN else label
    left = f"{move.from_state} → " if move.from_state else ""
    state = show_state(entered.name, entered.phase, entered.outcome)
    line = f"{click.style(show_time(move.at), dim=True)}  {label}  {left}{state}"
    why = first_line(move.reason) or (move.trigger if move.from_state else "")
    if columns := terminal_columns():
        why = cut(why, max(columns - len(click.unstyle(line)) - 2, 0))
    echo(f"{line}  {click.style(why, dim=True)}" if why else line)


def show_end(project: Project, run: Run) -> None:
    summary = make_run_summary(run)
    seconds = summary.elapsed_seconds(project.world.clock.now())
    after = f", {show_seconds(seconds)} elapsed" if seconds is not None else ""
    error = first_line(summary.error) if run.outcome == Outcome.FAILURE else ""
    state = show_state(run.state, run.phase, run.outcome)
    echo(f"{run.name} is {state}{after}." + (f" {error}" if error else ""), err=True)
    if run.outcome == Outcome.FAILURE:
        echo(f"More: {project.hint('status', short(run.id))}", err=True)

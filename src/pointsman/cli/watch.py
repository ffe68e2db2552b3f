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
from pointsman.cli.through_server import wait_out_outages
from pointsman.engine.engine import Engine
from pointsman.kernel.machine import Kind, Outcome, Phase
from pointsman.store.rows import Run, Transition
from pointsman.views.find import find_run, short
from pointsman.views.values import RunView, first_line

LONGEST_NAME = 24


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--all", "-a", "from_start", is_flag=True, help="Start with the first transition of the run.")
@project_options
def command(run: str | None, *, from_start: bool, asked: Asked) -> int:
    """Show the transitions of RUN, or of the latest run, until it has ended, and why its tasks wait.

    A run that cannot succeed and of which no task can move any more is not waited for.

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
    wait_out_outages(project)
    if run.phase != Phase.DONE:
        await follow_with_reasons(project, run, position, as_json=as_json)
    elif from_start:
        await follow(project, run, position, as_json=as_json)
    ended = await project.view_run(run.id)
    show_end(project, ended)
    return 0 if ended.outcome == Outcome.SUCCESS else 1


async def follow_with_reasons(project: Project, run: Run, position: str | None, *, as_json: bool) -> None:
    printer = WaitingPrinter(project, tell, run.id)
    await printer.look()
    telling = asyncio.create_task(printer.keep_telling())
    try:
        await follow(project, run, position, as_json=as_json)
    finally:
        telling.cancel()
        await asyncio.wait({telling})


async def follow(project: Project, run: Run, position: str | None, *, as_json: bool) -> None:
    """Show the transitions behind a position until the run has ended, and was not retried since, or is stuck."""
    engine = project.engine
    names, lookout = Names(engine, run), Lookout(project, run.id)
    if not await lookout.is_stuck():
        async with aclosing(engine.watch(after=position, run_id=run.id)) as moves:
            async for move in moves:
                position = move.position
                await show_move(engine, move, names, as_json=as_json)
                await keep_up(project.world.sleep)
                if await lookout.is_over(move):
                    break
    while page := await engine.list_transitions(after=position, run_id=run.id):
        for move in page:
            position = move.position
            await show_move(engine, move, names, as_json=as_json)
            await keep_up(project.world.sleep)


class Lookout:
    """Says after each move whether there is nothing more to wait for."""

    def __init__(self, project: Project, run_id: str) -> None:
        self._project = project
        self._run_id = run_id
        self._has_obstacle = False

    async def is_over(self, move: Transition) -> bool:
        """The whole run is looked at only after a loss: that is too slow for every move of a large one."""
        engine = self._project.engine
        entered = (await engine.get_machine(move)).state(move.to_state)
        if entered.phase is not Phase.DONE:
            return False
        if move.entity_id == self._run_id:
            return (await engine.get_run(self._run_id)).phase == Phase.DONE
        return (self._has_obstacle or entered.outcome is not Outcome.SUCCESS) and await self.is_stuck()

    async def is_stuck(self) -> bool:
        run = await self._project.view_run(self._run_id)
        self._has_obstacle = bool(run.obstacle)
        return run.is_stuck


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


def show_end(project: Project, run: RunView) -> None:
    seconds = run.elapsed_seconds(run.as_of)
    after = f", {show_seconds(seconds)} elapsed" if seconds is not None else ""
    error = first_line(run.error) if run.outcome == Outcome.FAILURE else ""
    why = error or (run.obstacle if run.is_stuck else "")
    state = show_state(run.state, run.phase, run.outcome)
    echo(f"{run.name} is {state}{after}." + (f" {why}" if why else ""), err=True)
    if run.outcome == Outcome.FAILURE or run.is_stuck:
        echo(f"More: {project.hint('status', short(run.id))}", err=True)

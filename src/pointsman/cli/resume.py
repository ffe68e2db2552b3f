"""`pointsman resume`: go on with a run that was interrupted, paused or is to be tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from pointsman.cli.project import Asked, find_run, open_project, person, project_options, short, warn_of_changes, worker_options
from pointsman.kernel.machine import Phase


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@worker_options
@project_options
def command(run: str | None, *, flags: dict[str, Any], asked: Asked) -> int:
    """Go on with RUN (the latest one, if none is named) where it stands.

    What was done stays done. What was interrupted is done again, as another attempt; processes that a killed worker left
    behind here are ended before. A run that was paused goes on.

    \b
    Examples:
      pointsman resume
      pointsman resume 3f9c21ab -j 4
    """
    return asyncio.run(_resume(run, asked, flags))


async def _resume(name: str | None, asked: Asked, flags: dict[str, Any]) -> int:
    from pointsman.cli.describe import read_lanes
    from pointsman.cli.run import declare_tools, warn_of_needs
    from pointsman.cli.run_to_end import run_to_end
    from pointsman.cli.steer import can_retry

    async with open_project(asked, keeps=True, **flags) as project:
        run = await find_run(project.engine, name)
        if run.phase == Phase.DONE:
            name = short(run.id)
            again = f"Try what failed again: {project.hint('retry', name)}"
            words = again if await can_retry(project, run) else "Start a new one: pointsman run"
            click.echo(f"{run.name} ({name}) has ended: {run.state}. {words}", err=True)
            return 0 if run.outcome == "success" else 1
        after = await project.engine.last_position()
        if run.phase == Phase.HELD and (await project.engine.get_machine(run)).moves(run.state, "resume"):
            run = await project.engine.for_tenant(actor=person()).signal_run(run.id, "resume")
        warn_of_changes(run)
        await declare_tools(project)
        unfinished = [task for task in await project.engine.list_tasks(run.id) if task.phase != Phase.DONE]
        warn_of_needs(project.settings, {word for _, words in read_lanes(unfinished).values() for word in words})
        return await run_to_end(project, run, after=after, as_json=asked.as_json)

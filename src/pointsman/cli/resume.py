"""`pointsman resume`: continue a run that was interrupted or paused."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from pointsman.cli.output import echo
from pointsman.cli.project import Asked, open_project, person, project_options, warn_of_changes, worker_options
from pointsman.cli.streams import background_output
from pointsman.kernel.machine import Outcome, Phase
from pointsman.views.find import find_run, short


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@worker_options
@project_options
def command(run: str | None, *, flags: dict[str, Any], asked: Asked) -> int:
    """Continue RUN (by default the latest run) from its present state.

    Tasks that succeeded are not repeated. Interrupted tasks run again, as another attempt; processes that a killed worker left
    behind on this machine are killed first. A paused run is resumed.

    \b
    Examples:
      pointsman resume
      pointsman resume 3f9c21ab -j 4
    """
    with background_output(reserves_stdout=asked.as_json):
        return asyncio.run(_resume(run, asked, flags))


async def _resume(name: str | None, asked: Asked, flags: dict[str, Any]) -> int:
    from pointsman.cli.history import JOURNAL
    from pointsman.cli.run import declare_tools
    from pointsman.cli.run_to_end import finish_log, run_to_end
    from pointsman.worker.leftovers import end_dead_workers

    async with open_project(asked, keeps=True, **flags) as project:
        # Also if the run has ended: another worker may have finished it while the processes of a killed one go on.
        await end_dead_workers(project.engine, project.settings.directory, project.world.sleep)
        run = await find_run(project.engine, name)
        if run.phase == Phase.DONE:
            await finish_log(project.engine, project.settings.directory / JOURNAL)
            view = await project.view_run(run.id)
            retry = f"Retry it: {project.hint('retry', short(run.id))}"
            what = retry if view.find_step("retry") else "Run the flow again."
            echo(f"{run.name} ({short(run.id)}) has ended: {run.state}. {what}", err=True)
            return 0 if run.outcome == Outcome.SUCCESS else 1
        after = await project.engine.last_position()
        if run.phase == Phase.HELD and (await project.engine.get_machine(run)).moves(run.state, "resume"):
            run = await project.engine.for_tenant(actor=person()).signal_run(run.id, "resume")
        warn_of_changes(run)
        await declare_tools(project)
        return await run_to_end(project, run, after=after, as_json=asked.as_json)

"""`pointsman resume`: continue a run that was interrupted or paused."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from pointsman.cli.output import echo
from pointsman.cli.project import Asked, open_project, project_options, warn_of_changes, worker_options
from pointsman.cli.steer import Decision, decision_options, steer, task_argument
from pointsman.cli.streams import background_output
from pointsman.kernel.machine import Outcome, Phase
from pointsman.views.find import find_run, short

OWN_OPTIONS = ("run", "task", "detach", "reason", "actor", "request_id", "as_json")
"""What a worker in the background does not get: it continues a run about which everything is decided."""


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@task_argument
@click.option("--detach", is_flag=True, help="Leave it to other workers, or to a new one in the background, and return.")
@decision_options
@worker_options
@project_options
def command(run: str | None, task: str | None, *, detach: bool, decision: Decision, flags: dict[str, Any], asked: Asked) -> int:
    """Continue RUN (by default the latest run) from its present state.

    Tasks that succeeded are not repeated. Interrupted tasks run again, as another attempt; processes that a killed worker left
    behind on this machine are killed first. A paused run is resumed. With TASK, this task gets another attempt first, which
    continues the session of the last one.

    With --detach, workers that take tasks of the run continue it. If there are none, a worker for this run starts in the
    background; it ends with the run. The answer says how to follow and stop it.

    \b
    Examples:
      pointsman resume
      pointsman resume 3f9c21ab -j 4
      pointsman resume latest draft
      pointsman resume latest --detach
    """
    from pointsman.cli.pool import repeat_options

    background = repeat_options(click.get_current_context(), OWN_OPTIONS) if detach else None
    with background_output(reserves_stdout=asked.as_json):
        return asyncio.run(_resume(run, task, decision, asked, flags, background))


async def _resume(
    name: str | None, task: str | None, decision: Decision, asked: Asked, flags: dict[str, Any], background: list[str] | None
) -> int:
    """With the options for a worker in the `background`, leave the run to that."""
    from pointsman.cli.detach import hand_over
    from pointsman.cli.run import declare_tools
    from pointsman.cli.run_to_end import run_to_end
    from pointsman.cli.through_server import check_scope
    from pointsman.worker.leftovers import end_dead_workers

    async with open_project(asked, keeps=True, **flags) as project:
        if background is None:
            check_scope(project)
        # Also if the run has ended: another worker may have finished it while the processes of a killed one go on.
        await end_dead_workers(project.engine, project.settings.directory, project.world.sleep)
        run = await find_run(project.engine, name)
        after = await project.engine.last_position()
        if task is not None:
            await steer(project, "resume", run.id, task, decision, as_json=False, continues=True)
            run = await project.engine.get_run(run.id)
        if run.phase == Phase.DONE:
            view = await project.view_run(run.id)
            retry = f"Retry it: {project.hint('retry', short(run.id))}"
            what = retry if view.find_step("retry") else "Run the flow again."
            echo(f"{run.name} ({short(run.id)}) has ended: {run.state}. {what}", err=True)
            return 0 if run.outcome == Outcome.SUCCESS else 1
        if run.phase == Phase.HELD and (await project.engine.get_machine(run)).moves(run.state, "resume"):
            run = await project.engine.for_tenant(actor=decision.actor).signal_run(
                run.id, "resume", reason=decision.reason, request_id=decision.request_id
            )
        warn_of_changes(project, run)
        await declare_tools(project)
        if background is not None:
            return await hand_over(project, run, background, as_json=asked.as_json)
        return await run_to_end(project, run, after=after, as_json=asked.as_json)

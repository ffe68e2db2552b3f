"""`pointsman worker`: a worker for every run of a database."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import click

from pointsman.cli.output import count, tell
from pointsman.cli.project import Asked, Project, open_project, project_options, worker_options
from pointsman.cli.streams import background_output


@click.command()
@click.option("--name", help="The name of the worker (default: host and process id).")
@worker_options
@project_options
def command(name: str | None, *, flags: dict[str, Any], asked: Asked) -> int:
    """Run tasks of every run of a database, until stopped.

    Each start and end of a task is a line on stderr, or with --json an object on stdout; so is every reason for which tasks
    wait. SIGTERM or Ctrl-C: finish running tasks and claim no more; a second one: kill them, and leave them to other workers.

    \b
    Examples:
      pointsman worker --store postgresql://user@db/pointsman --slots 8
      pointsman worker --store postgresql://user@db/pointsman --capability gpu --capability docker
    """
    with background_output(reserves_stdout=asked.as_json):
        return asyncio.run(_work(asked, flags, name))


async def _work(asked: Asked, flags: dict[str, Any], name: str | None) -> int:
    async with open_project(asked, creates=True, keeps=True, **flags) as project:
        return await _attend(project, name, as_json=asked.as_json)


async def _attend(project: Project, name: str | None, *, as_json: bool) -> int:
    from pointsman.cli.attempt_printer import AttemptPrinter
    from pointsman.cli.hints import WaitingPrinter
    from pointsman.cli.run import declare_tools
    from pointsman.cli.run_to_end import ENDED, finish_log, leave_soon, worker_name
    from pointsman.worker import journal
    from pointsman.worker.worker import Worker

    settings = project.settings
    await declare_tools(project)
    worker = Worker(
        project.engine,
        settings,
        project.world,
        name=name or worker_name(),
        owns_process=True,
        notify=tell,
        note=AttemptPrinter(project.world.clock, as_json=as_json).note,
    )
    loop = asyncio.get_running_loop()
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        if stops > 1:
            worker.kill()
            leave_soon(ENDED)
            tell("Killing running tasks.")
        else:
            worker.drain()
            tell("Finishing running tasks. Send the signal again to kill them.")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    able = f" and capabilities: {', '.join(settings.capabilities)}" if settings.capabilities else ""
    tell(f"{name or worker_name()} at {project.engine.url} with {count(settings.slots, 'slot')}{able}")
    log = settings.directory / ".state" / "transitions.jsonl"
    project.engine.start_duty(journal.journal_duty(project.engine, log, project.world.sleep))
    reasons = asyncio.create_task(WaitingPrinter(project, tell, works=True).keep_telling())
    try:
        await worker.work()
    finally:
        reasons.cancel()
        await asyncio.wait({reasons})
    await finish_log(project.engine, log)
    return 0

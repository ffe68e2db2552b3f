"""`pointsman up`: the server, a worker and the duties of a project in one process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from pointsman.cli.output import tell
from pointsman.cli.project import Asked, Project, open_project, project_options, worker_options
from pointsman.cli.serve import Front, announce, open_listener, server_options
from pointsman.cli.streams import background_output

if TYPE_CHECKING:
    from pointsman.server.listener import Listener
    from pointsman.worker.worker import Worker


@click.command()
@server_options
@worker_options
@project_options
def command(*, front: Front, flags: dict[str, Any], asked: Asked) -> int:
    """Start the HTTP server and a worker on the database of the project, in one process.

    It prints its URL on stdout when it is ready; with --json, that and each start and end of a task are objects. SIGTERM or
    Ctrl-C: take no more requests, finish running tasks, and stop; a second one: kill them, and leave them to other workers.

    \b
    Examples:
      pointsman up
      pointsman up --port 9000 --slots 4
      curl http://127.0.0.1:8642/runs
    """
    with background_output(reserves_stdout=asked.as_json):
        return asyncio.run(_up(front, flags, asked))


async def _up(front: Front, flags: dict[str, Any], asked: Asked) -> int:
    from pointsman.cli.notifier import flush_notifications
    from pointsman.notify.notifier import ALL_RUNS

    flags["max_queue"] = front.max_queue
    async with open_project(asked, creates=True, keeps=True, needs_database=True, **flags) as project:
        listener = await open_listener(project, front)
        assert project.notifier is not None
        project.notifier.start(commands_of=ALL_RUNS)
        announce(listener, as_json=asked.as_json)
        await _work_and_serve(project, listener, as_json=asked.as_json)
        await flush_notifications(project)
    return 0


async def _work_and_serve(project: Project, listener: Listener, *, as_json: bool) -> None:
    """Both stop together. A worker that was given up, because the process was frozen, is replaced."""
    from pointsman.cli.run_to_end import ENDED, drain_then_kill, leave_soon

    worker = _make_worker(project, as_json=as_json)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        is_stopping = True
        listener.stop()
        worker.drain()

    def kill() -> None:
        listener.kill()
        worker.kill()
        leave_soon(ENDED)

    drain_then_kill(stop, kill, is_idle=lambda: worker.is_idle)
    serving = asyncio.create_task(listener.serve())
    serving.add_done_callback(lambda _: worker.drain())
    await worker.work()
    while worker.was_lost and not is_stopping:
        tell("The worker was silent for too long, so its tasks went to others. It starts again.")
        worker = _make_worker(project, as_json=as_json)
        await worker.work()
    listener.stop()
    await serving


def _make_worker(project: Project, *, as_json: bool) -> Worker:
    from pointsman.cli.attempt_printer import AttemptPrinter
    from pointsman.cli.run_to_end import worker_name
    from pointsman.worker.worker import Worker

    name = worker_name()
    note = AttemptPrinter(project.world.clock, name, as_json=as_json).note
    return Worker(project.engine, project.settings, project.world, name=name, owns_process=True, notify=tell, note=note)

"""`pointsman worker`: a worker for every run of a database, or a pool of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pointsman.cli.output import STDIN, count, silence, tell
from pointsman.cli.project import Asked, Project, open_project, project_options, worker_options
from pointsman.cli.streams import background_output
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Lifecycle
from pointsman.lifecycles import DEFAULT, load_lifecycle

if TYPE_CHECKING:
    from pointsman.worker.worker import Worker

LOST = 1
"""The exit code of a worker that the engine has given up: a supervisor replaces it."""


@click.command()
@click.option("--count", "workers", metavar="N", type=click.IntRange(1), help="Run a pool of so many workers, and keep it.")
@click.option("--name", help="The name of the worker (default: host and process id); in a pool, a number is added.")
@click.option(
    "--lifecycle", metavar="NAME", default=DEFAULT, help=f"The lifecycle that the worker itself follows (default: {DEFAULT})."
)
@click.option(
    "--metadata",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    help="What `pointsman workers` shows of this worker; repeat for more. A value that is JSON stays JSON.",
)
@click.option("--in-pool", is_flag=True, hidden=True)
@worker_options
@project_options
@click.pass_context
def command(
    context: click.Context,
    workers: int | None,
    name: str | None,
    lifecycle: str,
    given: tuple[str, ...],
    *,
    in_pool: bool,
    flags: dict[str, Any],
    asked: Asked,
) -> int:
    """Run tasks of every run of a database, until stopped.

    Each start and end of a task is a line on stderr, or with --json an object on stdout; so is every reason for which tasks
    wait. SIGTERM or Ctrl-C: finish running tasks and claim no more; a second one: kill them, and leave them to other workers.

    With --count N, a supervisor runs N workers, each a process with its own slots. It replaces workers that die, unless they
    die again and again as soon as they have started. It ends with exit code 1 when none is left. Signals count for all workers.

    A worker that runs out of memory, disk space (--max-memory, --min-free-disk) or processes is paused, gives its tasks back,
    and goes on when it has enough again. It follows the lifecycle `standard`, or the one that --lifecycle names, and serves
    tasks of all lifecycles.

    \b
    Examples:
      pointsman worker --store postgresql://user@db/pointsman --slots 8
      pointsman worker --store postgresql://user@db/pointsman --capability gpu --capability docker
      pointsman worker --count 4 --slots 2 --max-memory 4GB
      pointsman worker --metadata rack=7 --metadata owner=ada
    """
    with background_output(reserves_stdout=asked.as_json or in_pool):
        followed, metadata = load_lifecycle(lifecycle), read_metadata(given)
        if workers is None:
            return asyncio.run(_work(asked, flags, name, followed, metadata, in_pool=in_pool))
        return asyncio.run(_supervise(context, asked, flags, name, workers))


async def _supervise(context: click.Context, asked: Asked, flags: dict[str, Any], name: str | None, workers: int) -> int:
    from pointsman.cli.pool import repeat_options, supervise
    from pointsman.cli.run_to_end import worker_name

    async with open_project(asked, creates=True, keeps=True, **flags) as project:
        return await supervise(project, name or worker_name(), workers, repeat_options(context), as_json=asked.as_json)


def read_metadata(given: tuple[str, ...]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for each in given:
        key, separator, value = each.partition("=")
        if not separator or not key:
            raise RequestInvalid([Problem("--metadata", f"'{each}' is not KEY=VALUE. Write for example: --metadata rack=7")])
        try:
            metadata[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            metadata[key] = value
    return metadata


async def _work(
    asked: Asked, flags: dict[str, Any], name: str | None, lifecycle: Lifecycle, metadata: dict[str, Any], *, in_pool: bool
) -> int:
    async with open_project(asked, creates=True, keeps=True, lifecycles=[lifecycle], **flags) as project:
        return await _attend(project, name, lifecycle.name, metadata, as_json=asked.as_json, in_pool=in_pool)


async def _attend(
    project: Project, name: str | None, lifecycle: str, metadata: dict[str, Any], *, as_json: bool, in_pool: bool
) -> int:
    from pointsman.cli.attempt_printer import AttemptPrinter
    from pointsman.cli.hints import WaitingPrinter
    from pointsman.cli.notifier import flush_notifications
    from pointsman.cli.run import declare_tools
    from pointsman.cli.run_to_end import ENDED, drain_then_kill, leave_soon, worker_name
    from pointsman.notify.notifier import ALL_RUNS
    from pointsman.worker.worker import Worker

    settings = project.settings
    await declare_tools(project)
    name = name or worker_name()
    worker = Worker(
        project.engine,
        settings,
        project.world,
        name=name,
        lifecycle=lifecycle,
        metadata=metadata,
        owns_process=True,
        receiver=project.remote,
        notify=tell,
        note=AttemptPrinter(project.world.clock, name, as_json=as_json or in_pool).note,
    )

    def kill() -> None:
        worker.kill()
        leave_soon(ENDED)

    others: set[asyncio.Task[None]] = set()
    if in_pool:
        drain_then_kill(worker.drain, kill, lambda _: None)  # the supervisor says it, once for all
        _watch_supervisor(worker, settings.grace_seconds, kill)
    else:
        drain_then_kill(worker.drain, kill, is_idle=lambda: worker.is_idle)
        able = f" and capabilities: {', '.join(settings.capabilities)}" if settings.capabilities else ""
        tell(f"{name} at {project.engine.url} with {count(settings.slots, 'slot')}{able}")
        others.add(asyncio.create_task(WaitingPrinter(project, tell, works=True).keep_telling()))
    if project.notifier:
        project.notifier.start(commands_of=ALL_RUNS)
    try:
        await worker.work()
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    await flush_notifications(project)
    if worker.was_lost:
        tell("The worker was silent for too long, so its tasks went to others.")
    return LOST if worker.was_lost else 0


def _watch_supervisor(worker: Worker, grace_seconds: float, kill: Callable[[], None]) -> None:
    """Stop the worker when the other end of its stdin is closed: its supervisor has gone. Nothing else reads that pipe."""
    loop = asyncio.get_running_loop()
    lifeline = os.dup(STDIN)
    silence(STDIN)

    def stop() -> None:
        loop.remove_reader(lifeline)
        worker.stop()
        loop.call_later(grace_seconds, kill)
        tell("The supervisor of the pool has gone. Stopping running tasks.")

    loop.add_reader(lifeline, stop)

"""`pointsman serve`: the HTTP server of a project."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from pointsman.cli.output import echo, tell
from pointsman.cli.project import Asked, Project, open_project, project_options
from pointsman.cli.streams import background_output, write_line
from pointsman.errors import Problem, RequestInvalid
from pointsman.settings import FOLDER

if TYPE_CHECKING:
    from pointsman.engine.engine import TenantEngine
    from pointsman.server.auth import Door
    from pointsman.server.listener import Listener
    from pointsman.server.logs import Logs

HOST = "127.0.0.1"
PORT = 8642
Result = TypeVar("Result")


def server_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """--host and --port."""
    command = click.option(
        "--port",
        "-p",
        metavar="N",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="The port to listen on; 0 for any free one.",
    )(command)
    return click.option("--host", metavar="ADDRESS", default=HOST, show_default=True, help="The address to listen on.")(command)


@click.command()
@server_options
@project_options
def command(host: str, port: int, *, asked: Asked) -> int:
    """Serve the HTTP API of a project, until stopped.

    Workers run the tasks: start `pointsman worker` as well, or use `pointsman up`, which does both. Any number of servers and
    workers can share a PostgreSQL database.

    It listens on a loopback address. While there are no API keys, every program of this machine can use it. From the first
    `pointsman key create` on, each request needs a key; addresses that others can reach need one from the beginning.

    It prints its URL on stdout when it is ready, with --json as an object. SIGTERM or Ctrl-C: answer the requests that have
    arrived, and stop; a second one: stop at once.

    \b
    Examples:
      pointsman serve
      pointsman serve --port 0 --json
      pointsman serve --store postgresql://user@db/pointsman
    """
    with background_output(reserves_stdout=asked.as_json):
        return asyncio.run(_serve(host, port, asked))


async def _serve(host: str, port: int, asked: Asked) -> int:
    from pointsman.cli.run_to_end import drain_then_kill

    async with open_project(asked, creates=True, keeps=True) as project:
        listener = await open_listener(project, host, port)
        assert project.notifier is not None
        project.notifier.start(commands_of="")
        drain_then_kill(listener.stop, listener.kill, lambda _: tell("Stopping: no more requests are taken."))
        announce(listener, as_json=asked.as_json)
        await listener.serve()
    return 0


async def make_door(project: Project, host: str) -> Door:
    """Without keys, whoever reaches the server may do everything: so only this machine may reach it."""
    from pointsman.server.auth import Door
    from pointsman.server.listener import is_loopback
    from pointsman.views.keys import KeyState, make_key_view

    if is_loopback(host):
        return Door(project.engine, project.world.clock, project.actor)
    now = await project.engine.now()
    if not any(make_key_view(key, now).state == KeyState.VALID for key in await project.engine.list_all_keys()):
        create = project.hint("key", "create", "--name", "me", "--scope", "read", "--scope", "submit")
        message = f"{host} can be reached from elsewhere, and there is no API key. Leave out --host, or create one: {create}"
        raise RequestInvalid([Problem("--host", message)])
    return Door(project.engine, project.world.clock, project.actor, needs_keys=True)


async def open_listener(project: Project, host: str, port: int) -> Listener:
    """Open the socket before anything else is done, because that may fail."""
    from pointsman.cli.run import declare_tools
    from pointsman.server.application import build_application
    from pointsman.server.listener import Listener, open_socket
    from pointsman.server.live import Live
    from pointsman.server.metrics import Metrics
    from pointsman.server.site import Site
    from pointsman.worker.tools import declare_missing

    async def declare(engine: TenantEngine, used: Iterable[str]) -> None:
        await declare_missing(engine, used, project.settings.all_tools)

    door = await make_door(project, host)
    listening = open_socket(host, port)
    await declare_tools(project)
    site = Site(
        project.engine,
        project.settings,
        project.world,
        door,
        Live(project.engine, project.world),
        make_logs(project),
        declare,
        Metrics(project.engine, project.world.process),
        project.find_dead,
        project.find_bound,
    )
    return Listener(build_application(site), listening, site.end_streams)


def make_logs(project: Project) -> Logs:
    from pointsman.server.logs import Logs
    from pointsman.worker.log import log_parts, log_path

    directory = project.settings.directory

    def find(run_id: str, task: str, epoch: int) -> Path:
        return Path(log_path(directory, run_id, task, epoch))

    return Logs(directory, directory / FOLDER / "logs", find, log_parts)


def announce(listener: Listener, *, as_json: bool) -> None:
    """Say where it is; the socket takes connections already."""
    from pointsman.server.listener import show_url

    url = show_url(listener.listening)
    if as_json:
        write_line(msgspec.json.encode({"url": url}) + b"\n")
    else:
        echo(url)

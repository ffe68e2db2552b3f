"""`pointsman serve`: the HTTP server of a project."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
BURST_SECONDS = 2
"""Requests of so many seconds may come at once, unless a flag says otherwise."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Front:
    """Where clients reach the server, and how."""

    host: str
    port: int
    tls_cert: Path | None
    tls_key: Path | None
    proxies: tuple[str, ...]
    rate_limit: float | None
    rate_burst: int | None
    max_queue: int | None


def server_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """--host, --port, --tls-cert, --tls-key, --proxy, --rate-limit, --rate-burst and --max-queue, as `front`."""

    @wraps(command)
    def with_front(
        *args: Any,
        host: str,
        port: int,
        tls_cert: Path | None,
        tls_key: Path | None,
        proxies: tuple[str, ...],
        rate_limit: float | None,
        rate_burst: int | None,
        max_queue: int | None,
        **options: Any,
    ) -> Result:
        if tls_key is not None and tls_cert is None:
            raise click.UsageError("--tls-key needs --tls-cert, the certificate of that key.")
        if rate_burst is not None and rate_limit is None:
            raise click.UsageError("--rate-burst needs --rate-limit, the rate that it goes beyond.")
        front = Front(host, port, tls_cert, tls_key, proxies, rate_limit, rate_burst, max_queue)
        return command(*args, front=front, **options)

    decorated = click.option(
        "--max-queue",
        metavar="N",
        type=int,
        help="How many changes may wait for the database before more are refused (default: 10000).",
    )(with_front)
    decorated = click.option(
        "--rate-burst",
        metavar="N",
        type=click.IntRange(1, 1_000_000),
        help="How many requests may come at once; by default those of two seconds.",
    )(decorated)
    decorated = click.option(
        "--rate-limit",
        metavar="N",
        type=click.FloatRange(0.001, 1_000_000),
        help="How many requests a second each tenant may send to this server (default: any number).",
    )(decorated)
    decorated = click.option(
        "--proxy",
        "proxies",
        metavar="ADDRESS",
        multiple=True,
        help="Trust what a reverse proxy at this address, or in this network, says of its clients. Repeatable; needs API keys.",
    )(decorated)
    file = click.Path(path_type=Path)
    decorated = click.option(
        "--tls-key", metavar="FILE", type=file, help="The key of the certificate, if it is not in that file."
    )(decorated)
    decorated = click.option("--tls-cert", metavar="FILE", type=file, help="Serve HTTPS with this certificate (PEM).")(
        decorated
    )
    decorated = click.option(
        "--port",
        "-p",
        metavar="N",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="The port to listen on; 0 for any free one.",
    )(decorated)
    return click.option("--host", metavar="ADDRESS", default=HOST, show_default=True, help="The address to listen on.")(
        decorated
    )


@click.command()
@server_options
@project_options
def command(*, front: Front, asked: Asked) -> int:
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
      pointsman serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
    """
    with background_output(reserves_stdout=asked.as_json):
        return asyncio.run(_serve(front, asked))


async def _serve(front: Front, asked: Asked) -> int:
    from pointsman.cli.run_to_end import drain_then_kill

    async with open_project(asked, creates=True, keeps=True, needs_database=True, max_queue=front.max_queue) as project:
        listener = await open_listener(project, front)
        assert project.notifier is not None
        project.notifier.start(commands_of="")
        drain_then_kill(listener.stop, listener.kill, lambda _: tell("Stopping: no more requests are taken."))
        announce(listener, as_json=asked.as_json)
        await listener.serve()
    return 0


async def make_door(project: Project, front: Front) -> Door:
    """Without keys, whoever reaches the server may do everything: so only this machine may reach it, and no proxy."""
    from pointsman.server.auth import Door
    from pointsman.server.listener import is_loopback
    from pointsman.server.rate import RateLimit
    from pointsman.views.keys import KeyState, make_key_view

    clock, rate = project.world.clock, None
    if front.rate_limit is not None:
        burst = front.rate_burst or max(1, round(BURST_SECONDS * front.rate_limit))
        rate = RateLimit(clock, front.rate_limit, burst)
    if is_loopback(front.host) and not front.proxies:
        return Door(project.engine, clock, project.actor, rate=rate)
    now = await project.engine.now()
    if not any(make_key_view(key, now).state == KeyState.VALID for key in await project.engine.list_all_keys()):
        create = project.hint("key", "create", "--name", "me", "--scope", "read", "--scope", "submit")
        option, reached = (
            ("--proxy", "Clients of a proxy come") if front.proxies else ("--host", f"{front.host} can be reached")
        )
        message = f"{reached} from elsewhere, and there is no API key. Leave out {option}, or create one: {create}"
        raise RequestInvalid([Problem(option, message)])
    return Door(project.engine, clock, project.actor, needs_keys=True, rate=rate)


async def open_listener(project: Project, front: Front) -> Listener:
    """Open the socket before anything else is done, because that may fail."""
    from pointsman.cli.run import declare_tools
    from pointsman.server.application import build_application
    from pointsman.server.dispatch import Dispatcher
    from pointsman.server.listener import Listener, check_proxy, load_certificate, open_socket
    from pointsman.server.live import Live
    from pointsman.server.metrics import Metrics
    from pointsman.server.routes import ALL
    from pointsman.server.sent_flows import SentFlows
    from pointsman.server.site import Site
    from pointsman.server.turns import Turns
    from pointsman.server.wakeups import WakeupCounter
    from pointsman.worker.tools import declare_missing

    async def declare(engine: TenantEngine, used: Iterable[str]) -> None:
        await declare_missing(engine, used, project.settings.all_tools)

    proxies = tuple(check_proxy(address) for address in front.proxies)
    tls = load_certificate(front.tls_cert, front.tls_key) if front.tls_cert else None
    door = await make_door(project, front)
    listening = open_socket(front.host, front.port)
    await declare_tools(project)
    turns = Turns(project.engine, project.world.sleep)
    site = Site(
        project.engine,
        project.settings,
        project.world,
        door,
        Live(project.engine, project.world),
        make_logs(project),
        SentFlows(project.settings, project.engine.get_lifecycle),
        declare,
        Metrics(project.engine, project.world.process),
        turns,
        WakeupCounter(project.engine, project.world.process, turns),
        project.find_dead,
        project.find_bound,
    )
    return Listener(Dispatcher(site, ALL, build_application(site)), listening, site.end_streams, tls, proxies)


def make_logs(project: Project) -> Logs:
    from pointsman.server.logs import Logs
    from pointsman.worker.log import log_parts, log_path, name_part

    directory = project.settings.directory

    def find(run_id: str, task: str, epoch: int) -> Path:
        return Path(log_path(directory, run_id, task, epoch))

    settings = project.settings
    folder = directory / FOLDER / "logs"
    return Logs(directory, folder, find, log_parts, name_part, settings.log_bytes, settings.artifact_limits)


def announce(listener: Listener, *, as_json: bool) -> None:
    """Say where it is; the socket takes connections already."""
    if as_json:
        write_line(msgspec.json.encode({"url": listener.url}) + b"\n")
    else:
        echo(listener.url)

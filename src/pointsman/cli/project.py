"""What the commands of a project share: their options, its engine and its settings."""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from pointsman import app
from pointsman.cli.log_output import LEVELS, configure_logging
from pointsman.cli.notifier import make_notifier
from pointsman.cli.output import complete, echo, json_option
from pointsman.engine.engine import Engine
from pointsman.errors import NothingYet, PointsmanError, StoreUnusable
from pointsman.kernel.machine import Lifecycle
from pointsman.settings import FOLDER, SETTINGS, Settings, load_settings
from pointsman.store.rows import Run
from pointsman.store.urls import hide_password
from pointsman.tracing import open_tracing
from pointsman.views import runs
from pointsman.views.values import RunView
from pointsman.worker.journal import JOURNAL
from pointsman.world import World

if TYPE_CHECKING:
    from pointsman.engine.calls import Holder
    from pointsman.notify.notifier import Notifier
    from pointsman.remote.engine import RemoteEngine

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that every command of a project has."""

    store: str | None
    server: str | None
    directory: Path
    as_json: bool

    @property
    def options(self) -> str:
        """The options that another command needs to find the same project, as far as they can be shown."""
        named = ("--store", self.store) if self.store else ("--server", self.server)
        shown = named[1] and not self.hides_password and not self._is_default
        where = f" {shlex.join(map(str, named))}" if shown else ""
        return where + (f" -C {shlex.quote(str(self.directory))}" if self.directory != Path() else "")

    @property
    def hides_password(self) -> bool:
        """Other commands need a database that no hint can name, since a hint never has a password."""
        return bool(self.store) and hide_password(str(self.store)) != self.store and not self._is_default

    @property
    def _is_default(self) -> bool:
        """Commands without --store and --server are about the same runs, too."""
        return self.settings().url == load_settings(self.directory, {}, os.environ).url

    def settings(self, **flags: object) -> Settings:
        return load_settings(self.directory, {"store": self.store, "server": self.server, **flags}, os.environ)


def project_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """--store, --server, --directory and --json, as `asked`; --log-level and --log-json set up the log."""

    @click.option("--store", metavar="URL", help="The database, if not the one of the project.")
    @click.option("--server", metavar="URL", help="A server of Pointsman that has the runs. Its API key: POINTSMAN_API_KEY.")
    @click.option(
        "--directory",
        "-C",
        metavar="FOLDER",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=".",
        help="The folder of the project (default: the current one).",
    )
    @json_option
    @click.option(
        "--log-level", type=click.Choice(LEVELS), help="How much to log to stderr (default: POINTSMAN_LOG, or warning)."
    )
    @click.option("--log-json", is_flag=True, help="Log JSON lines.")
    @wraps(command)
    def with_options(
        *arguments: Any,
        store: str | None,
        server: str | None,
        directory: Path,
        as_json: bool,
        log_level: str | None,
        log_json: bool,
        **options: Any,
    ) -> Result:
        configure_logging(log_level, as_json=log_json)
        return command(*arguments, asked=Asked(store, server, directory, as_json), **options)

    return with_options


def worker_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """The settings of a worker, handed to the command as `flags`."""

    @click.option("--slots", "-j", metavar="N", type=int, help="How many tasks to run at once (default: one per processor).")
    @click.option(
        "--capability", "capabilities", metavar="NAME", multiple=True, help="A capability of this worker; repeat for more."
    )
    @click.option("--workspace", metavar="NAME", help="The workspace of this worker, for jobs that name one.")
    @click.option("--lease", "lease_seconds", metavar="TIME", help="How long the worker may miss heartbeats (default: 30s).")
    @click.option("--grace", "grace_seconds", metavar="TIME", help="Time between SIGTERM and SIGKILL (default: 10s).")
    @click.option("--log-bytes", metavar="SIZE", help="The largest size of the log of an attempt (default: 100MB).")
    @click.option("--artifact-files", metavar="N", type=int, help="How many artifacts an attempt may have (default: 1000).")
    @click.option("--artifact-bytes", metavar="SIZE", help="The largest size of all artifacts of an attempt (default: 1GB).")
    @click.option(
        "--pass-env", metavar="NAME", multiple=True, help="An environment variable that tasks inherit; repeat for more."
    )
    @click.option("--on-pause", metavar="finish|suspend", help="What running tasks do in a pause (default: finish).")
    @click.option(
        "--max-memory", "max_memory_bytes", metavar="SIZE", help="Give tasks back that use more memory (default: no limit)."
    )
    @click.option(
        "--min-free-disk",
        "min_free_disk_bytes",
        metavar="SIZE",
        help="Give tasks back while the disk has less space left (default: no limit).",
    )
    @wraps(command)
    def with_options(*arguments: Any, **options: Any) -> Result:
        flags = {name: options.pop(name) for name in SETTINGS if name in options and name not in ("store", "server")}
        return command(*arguments, flags=flags, **options)

    return with_options


def person() -> str:
    """The name of the user who gives the command, for the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "user"


@dataclass(frozen=True, slots=True)
class Project:
    """An engine on the database of a project, and its settings."""

    engine: Engine
    settings: Settings
    world: World
    options: str = ""
    actor: str = field(default_factory=person)
    """The person whose steps are shown."""
    notifier: Notifier | None = None
    """Of a process that performs duties."""

    @property
    def is_remote(self) -> bool:
        """A server has the runs: it performs the duties, keeps the journal and delivers notifications."""
        return self.settings.server is not None

    @property
    def holder(self) -> Holder | None:
        """For whom the server acts."""
        return self.remote.holder if self.remote else None

    @property
    def has_key(self) -> bool:
        """An API key says who acts."""
        return self.holder is not None and self.holder.has_key

    @property
    def remote(self) -> RemoteEngine | None:
        """The engine of a server, which has logs and artifacts as well."""
        if not self.is_remote:
            return None
        from pointsman.remote.engine import RemoteEngine

        return self.engine if isinstance(self.engine, RemoteEngine) else None

    def hint(self, command: str, *words: str) -> str:
        """A command about the same project, for people to copy."""
        return f"{shlex.join(('pointsman', command, *words))}{self.options}"

    def hint_decision(self, command: str, *words: str) -> str:
        """A command by which this person decides something."""
        speaks = () if self.has_key or self.actor == person() else ("--as", self.actor)
        return self.hint(command, *words, *speaks)

    def find_dead(self) -> set[str]:
        """Workers of this machine that have died, although their leases may last."""
        from pointsman.worker.records import find_dead

        return find_dead(self.settings.directory)

    def find_bound(self) -> dict[str, str]:
        """By worker of this project and machine that serves only one run: that run."""
        from pointsman.worker.records import find_bound

        return find_bound(self.settings.directory)

    def list_protections(self) -> dict[str, str]:
        """By worker of this project and machine: what ends its processes if it is killed."""
        from pointsman.worker.records import list_protections

        return list_protections(self.settings.directory)

    def find_log(self, recorded: str | None) -> Path | None:
        """The log that a worker recorded, which is relative to the project if it is in it.

        Where a server has the runs, a log that is not on this machine has no path: the server has it.
        """
        from pointsman.worker.log import log_parts

        path = self.settings.directory / recorded if recorded else None
        return path if path is None or not self.is_remote or log_parts(path) else None

    def find_attempt_log(self, run_id: str, task: str, epoch: int, recorded: str | None) -> Path | None:
        """The log of an attempt, from the path that its worker recorded at its end.

        While it runs, and after its worker was killed, none is recorded: then it is where workers of this project write.
        """
        from pointsman.worker.log import log_parts, log_path

        if recorded:
            return self.find_log(recorded)
        path = Path(log_path(self.settings.directory, run_id, task, epoch))
        return path if log_parts(path) else None

    async def view_run(self, run_id: str) -> RunView:
        view = await runs.view_run(self.engine, run_id, await self.engine.now(), self.find_dead(), self.find_bound())
        return msgspec.structs.replace(view, obstacle=view.obstacle and self.complete(view.obstacle))

    def complete(self, advice: str) -> str:
        """Advice of a view or of the engine, whose commands lack the options of this project."""
        return complete(advice, self.options)


@asynccontextmanager
async def open_project(
    asked: Asked,
    *,
    settings: Settings | None = None,
    creates: bool = False,
    keeps: bool = False,
    needs_database: bool = False,
    lifecycles: Iterable[Lifecycle] = (),
    **flags: object,
) -> AsyncIterator[Project]:
    """Open the project that a command is about; only a command that `creates` makes a database where there is none."""
    settings = settings or asked.settings(**flags)
    key = None
    if settings.server:
        from pointsman.cli import through_server

        if needs_database:
            through_server.refuse(settings)
        key = through_server.read_key(os.environ)
    file = database_file(settings)
    if file is not None and not file.exists():
        if not creates:
            where = "here" if settings.origins["store"] == "default" else f"in {file}"
            raise NothingYet(where, asked.options)
        _create(file, settings.directory / FOLDER)
    _protect(settings.directory / FOLDER, creates=keeps)
    _tell_of_project(settings.directory, asked.directory)
    _tell_of_password(asked)
    world = World(tracing=open_tracing(os.environ))
    journal = settings.directory / JOURNAL if (settings.directory / FOLDER).exists() else None
    async with app.open(
        settings.url,
        lifecycles=lifecycles,
        keeps=keeps,
        journal=journal,
        world=world,
        key=key,
        max_queue=settings.max_queue,
    ) as engine:
        project = Project(engine, settings, world, asked.options)
        if project.holder and project.holder.has_key:
            through_server.check_name(project.holder)
            project = replace(project, actor=project.holder.actor)
        if project.is_remote:
            await through_server.add_lifecycles(engine, lifecycles)
        if keeps and not settings.server:  # a server delivers them itself
            notifier = make_notifier(project)
            await notifier.open()
            project = replace(project, notifier=notifier)
        try:
            yield project
        except NothingYet:
            if not asked.options:
                raise
            raise NothingYet(options=asked.options) from None
        except PointsmanError as error:
            error.options = asked.options
            raise


def _tell_of_project(directory: Path, asked: Path) -> None:
    """Name the folder of the project where that is another one than the person is in, or has asked for: tasks run there."""
    if directory.resolve() != asked.resolve():
        echo(click.style(f"Project: {directory} (its settings or .pointsman are there)", dim=True), err=True)


def _tell_of_password(asked: Asked) -> None:
    if asked.hides_password:
        advice = "To use the commands that are shown, set POINTSMAN_STORE to the URL of --store: its password is not shown."
        echo(click.style(advice, dim=True), err=True)


def _create(file: Path, folder: Path) -> None:
    """Make the folder of a database; in the folder of the project, only its owner may read either."""
    try:
        if file.parent == folder:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnusable(f"Cannot create {file.parent}: {error.strerror}. Name a writable folder: -C") from None


def _protect(folder: Path, *, creates: bool) -> None:
    """Close the folder of a project to others; one that others may write to is shared on purpose, and stays open."""
    with suppress(OSError):  # there is none yet, or the disk is read-only: then whatever needs it says so
        if creates:
            folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o077 and not status.st_mode & 0o022:
            folder.chmod(0o700)


def in_project(asked: Asked, work: Callable[[Project], Awaitable[Result]], *, creates: bool = False) -> Result:
    """Run an asynchronous command with its project open."""

    async def do() -> Result:
        async with open_project(asked, creates=creates) as project:
            return await work(project)

    return asyncio.run(do())


def database_file(settings: Settings) -> Path | None:
    if settings.server:
        return None
    path = settings.store.removeprefix("sqlite:///")
    return Path(path) if path not in (settings.store, ":memory:") else None


def warn_of_changes(project: Project, run: Run) -> None:
    """A run uses the flow as it was submitted; warn a person who has just edited the file."""
    payload = msgspec.json.decode(run.payload)
    if not isinstance(payload, dict) or not payload.get("file"):
        return
    file = Path(payload.get("directory") or "", payload["file"])
    try:
        is_changed = file.stat().st_mtime > run.created_at.timestamp()
    except OSError:
        return
    if is_changed:
        message = f"{file.name} has changed since this run was submitted. The run keeps the old version. To run the new one:"
        echo(click.style(f"{message} {project.hint('run', payload['file'])}", fg="yellow"), err=True)

"""What commands share that look at a project: their options, its engine, and which run or task is meant."""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from pointsman import app
from pointsman.cli.output import json_option
from pointsman.engine.engine import Engine
from pointsman.errors import NotFound, NothingYet, Problem, RequestInvalid, StoreUnusable, nearest
from pointsman.kernel.machine import Lifecycle, Phase
from pointsman.settings import Settings, hide_password, load_settings
from pointsman.store.rows import Run, Task
from pointsman.world import World

LATEST = "latest"
SHORTEST_PART = 4
"""Less of an id is rather a slip than meant."""
SHORT = 8
PAGE = 1000
FEW = 8

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that every command of a project has."""

    store: str | None
    directory: Path
    as_json: bool

    @property
    def options(self) -> str:
        """What has to be said again for another command to mean the same project; passwords are not repeated."""
        store = f" --store {shlex.quote(hide_password(self.store))}" if self.store else ""
        return store + (f" -C {shlex.quote(str(self.directory))}" if self.directory != Path() else "")

    def settings(self, **flags: object) -> Settings:
        return load_settings(self.directory, {"store": self.store, **flags}, os.environ)


def project_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """--store, --directory and --json, handed to the command as `asked`."""

    @click.option("--store", metavar="URL", help="The database, if not that of the project.")
    @click.option(
        "--directory",
        "-C",
        metavar="FOLDER",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=".",
        help="Where the project is, if not here.",
    )
    @json_option
    @wraps(command)
    def with_options(*arguments: Any, store: str | None, directory: Path, as_json: bool, **options: Any) -> Result:
        return command(*arguments, asked=Asked(store, directory, as_json), **options)

    return with_options


def worker_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """What can be set for whoever does the work, handed to the command as `flags`."""

    @click.option("--slots", "-j", metavar="N", type=int, help="How many tasks to do at once (default: one a processor).")
    @click.option(
        "--capability", "capabilities", metavar="NAME", multiple=True, help="What this machine can do; again for more."
    )
    @click.option("--lease", "lease_seconds", metavar="TIME", help="How long the worker may be silent (default: 30s).")
    @click.option(
        "--grace", "grace_seconds", metavar="TIME", help="Between asking a process to end and killing it (default: 10s)."
    )
    @click.option("--log-bytes", metavar="SIZE", help="The largest log of an attempt (default: 100MB).")
    @click.option("--pass-env", metavar="NAME", multiple=True, help="A variable that tasks inherit; again for more.")
    @click.option("--on-pause", metavar="finish|suspend", help="What becomes of what runs in a pause (default: finish).")
    @wraps(command)
    def with_options(*arguments: Any, **options: Any) -> Result:
        names = ("slots", "capabilities", "lease_seconds", "grace_seconds", "log_bytes", "pass_env", "on_pause")
        flags = {name: options.pop(name) for name in names}
        return command(*arguments, flags=flags, **options)

    return with_options


@dataclass(frozen=True, slots=True)
class Project:
    """An engine on the database of a project, and its settings."""

    engine: Engine
    settings: Settings
    world: World
    options: str = ""

    def hint(self, command: str, *words: str) -> str:
        """A command about the same project, for people to copy."""
        return f"{shlex.join(('pointsman', command, *words))}{self.options}"


@asynccontextmanager
async def open_project(
    asked: Asked,
    *,
    settings: Settings | None = None,
    creates: bool = False,
    keeps: bool = False,
    lifecycles: Iterable[Lifecycle] = (),
    **flags: object,
) -> AsyncIterator[Project]:
    """Open the project of a command; only one that `creates` makes a database where there is none."""
    settings = settings or asked.settings(**flags)
    file = database_file(settings)
    if file is not None and not file.exists():
        if not creates:
            raise NothingYet() if settings.origins["store"] == "default" else NothingYet(f"in {file}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnusable(
                f"Cannot create {file.parent}: {error.strerror}. Name a folder that may be written to: -C"
            ) from None
    world = World()
    async with app.open(settings.store, lifecycles=lifecycles, keeps=keeps, world=world) as engine:
        yield Project(engine, settings, world, asked.options)


def in_project(asked: Asked, work: Callable[[Project], Awaitable[Result]]) -> Result:
    """Do some work with the project and nothing else; where commands become asynchronous."""

    async def do() -> Result:
        async with open_project(asked) as project:
            return await work(project)

    return asyncio.run(do())


def database_file(settings: Settings) -> Path | None:
    path = settings.store.removeprefix("sqlite:///")
    return Path(path) if path not in (settings.store, ":memory:") else None


def short(identity: str) -> str:
    """The end of an id, which is enough to name it; ids that were made together begin alike."""
    return identity[-SHORT:]


async def find_run(engine: Engine, name: str | None) -> Run:
    """The run that a person means: by its id, the beginning or the end of it, or as the latest one."""
    if name is None or name == LATEST:
        newest = await engine.list_runs(limit=1)
        if not newest:
            raise NothingYet
        return newest[0]
    try:
        return await engine.get_run(name)
    except NotFound:
        found = [run async for run in _all_runs(engine) if names_part(name, run.id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _unclear("run", name, found)
    raise await _unknown_run(engine, name)


async def find_task(engine: Engine, run: Run, name: str) -> Task:
    """A task of a run: by its name, its id, or a part of that."""
    tasks = await engine.list_tasks(run.id)
    found = [task for task in tasks if name in (task.name, task.id)] or [task for task in tasks if names_part(name, task.id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _unclear("task", name, found)
    names = [task.name for task in tasks]
    meant = nearest(name, names)
    hint = f"Did you mean {' or '.join(meant)}?" if meant else f"It has: {_few(names)}."
    raise _refusal(f"The run '{run.name}' ({short(run.id)}) has no task '{name}'. {hint}")


def names_part(name: str, identity: str) -> bool:
    """Whether `name` is the beginning or the end of an id; its prefix may be left out."""
    bare = identity.partition("_")[2]
    return len(name) >= SHORTEST_PART and (identity.startswith(name) or bare.startswith(name) or identity.endswith(name))


async def is_attended(project: Project, run: Run) -> bool:
    """Whether a worker is there that may do the tasks of a run; one that was killed here is not, though its lease may last."""
    from pointsman.worker.records import find_dead

    now = project.world.clock.now()
    dead = find_dead(project.settings.directory)
    return any(
        worker.phase != Phase.DONE
        and worker.id not in dead
        and worker.run_id in (None, run.id)
        and (now - worker.heartbeat_at).total_seconds() < worker.lease_seconds
        for worker in await project.engine.list_workers()
    )


async def _all_runs(engine: Engine) -> AsyncIterator[Run]:
    after = None
    while page := await engine.list_runs(after=after, limit=PAGE):
        for run in page:
            yield run
        after = page[-1].id


async def _unknown_run(engine: Engine, name: str) -> Exception:
    runs = await engine.list_runs(limit=PAGE)
    if not runs:
        return NothingYet()
    same_name = [run for run in runs if run.name == name]
    if same_name:
        return _refusal(f"'{name}' is the name of a flow, not of a run. Its runs: {_few(short(run.id) for run in same_name)}.")
    ids = {part: run for run in runs for part in (run.id, short(run.id))}
    meant = [f"{short(ids[part].id)} ({ids[part].name})" for part in nearest(name, ids)]
    hint = f"Did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else ""
    few = f" Write at least {SHORTEST_PART} letters of its id." if len(name) < SHORTEST_PART else ""
    latest = _few(f"{short(run.id)} ({run.name})" for run in runs[:3])
    return _refusal(f"There is no run '{name}'.{few} {hint or f'The latest are: {latest}.'} See: pointsman status")


def _unclear(what: str, name: str, found: Iterable[Run | Task]) -> RequestInvalid:
    some = _few(f"{each.id} ({each.name})" for each in found)
    return _refusal(f"'{name}' could be more than one {what}: {some}. Write more of it.")


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW:,} more" if len(names) > FEW else "")


def _refusal(message: str) -> RequestInvalid:
    return RequestInvalid([Problem("", message)])


def warn_of_changes(run: Run) -> None:
    """A run goes on with the flow as it was submitted, which surprises whoever has just mended the file."""
    payload = msgspec.json.decode(run.payload)
    if not isinstance(payload, dict) or not payload.get("file"):
        return
    file = Path(payload.get("directory") or "", payload["file"])
    try:
        is_changed = file.stat().st_mtime > run.created_at.timestamp()
    except OSError:
        return
    if is_changed:
        message = f"{file.name} has changed since this run was submitted, which goes on as it was. To run it as it is now:"
        click.echo(click.style(f"{message} pointsman run {shlex.quote(payload['file'])}", fg="yellow"), err=True)


def person() -> str:
    """Who gives the command, for the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "user"

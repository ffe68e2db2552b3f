"""`pointsman worker --count N`: the supervisor of a pool, and what it prints of its workers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import click
import msgspec
from click.core import ParameterSource
from msgspec import Struct

from pointsman.cli.attempt_printer import AttemptEvent, show_attempt
from pointsman.cli.hints import WaitingPrinter
from pointsman.cli.output import count, show_time, tell
from pointsman.cli.project import Project
from pointsman.cli.run_to_end import ENDED, LAST_SECONDS, drain_then_kill, leave_soon
from pointsman.cli.streams import write_line
from pointsman.errors import StoreError
from pointsman.worker.leftovers import end_dead_workers
from pointsman.worker.pool import Pool
from pointsman.world import Clock

OWN_OPTIONS = ("workers", "name", "as_json", "in_pool")
"""Options of the supervisor that its workers do not get."""


class PoolEvent(Struct, frozen=True, kw_only=True):
    """What happened to a worker, or what it said, as `--json` prints it."""

    at: datetime
    event: str
    worker: str
    pid: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class PoolPrinter:
    """A line for each event, with the name of its worker."""

    clock: Clock
    as_json: bool

    def started(self, worker: str, pid: int) -> None:
        self._print(worker, "worker_started", f"started (process {pid})", pid=pid)

    def ended(self, worker: str, message: str) -> None:
        self._print(worker, "worker_ended", message)

    def said(self, worker: str, line: bytes) -> None:
        self._print(worker, "message", line.decode("utf-8", "replace"))

    def reported(self, worker: str, line: bytes) -> None:
        if self.as_json:
            write_line(line + b"\n")
            return
        try:
            tell(show_attempt(msgspec.json.decode(line, type=AttemptEvent), worker))
        except msgspec.DecodeError:  # it was killed while it wrote the line, or had to leave some out
            self.said(worker, line)

    def _print(self, worker: str, event: str, message: str, pid: int | None = None) -> None:
        now = self.clock.now()
        if self.as_json:
            told = PoolEvent(at=now, event=event, worker=worker, pid=pid, message=message)
            write_line(msgspec.json.encode(told) + b"\n")
        else:
            tell(f"{show_time(now)}  {worker}  {message}")


def repeat_options(context: click.Context, without: Collection[str] = OWN_OPTIONS) -> list[str]:
    """The options that this command was given, for another process."""
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        if name in without or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if isinstance(option, click.Option) and option.is_flag:
            words.append(option.opts[0])
        else:
            words += [f"{option.opts[0]}={each}" for each in (value if isinstance(value, tuple) else (value,))]
    return words


async def supervise(project: Project, name: str, workers: int, options: Sequence[str], *, as_json: bool) -> int:
    """Run a pool until it is stopped, or none of its workers can live; returns the exit code."""
    settings, world = project.settings, project.world

    async def clean_up() -> None:
        with suppress(StoreError):  # the next worker does it
            await end_dead_workers(project.engine, settings.directory, world.sleep)

    pool = Pool(
        [f"{name}-{number}" for number in range(1, workers + 1)],
        lambda worker: (sys.executable, "-P", "-m", "pointsman", "worker", "--in-pool", f"--name={worker}", *options),
        world.clock,
        PoolPrinter(world.clock, as_json=as_json),
        clean_up,
    )
    _handle_signals(pool)
    able = f" and capabilities: {', '.join(settings.capabilities)}" if settings.capabilities else ""
    slots = count(settings.slots, "slot") + (" each" if workers > 1 else "")
    tell(f"{name} at {project.engine.url}: {count(workers, 'worker')} with {slots}{able}")
    reasons = asyncio.create_task(WaitingPrinter(project, tell, works=True).keep_telling())
    try:
        could_live = await pool.work()
    finally:
        reasons.cancel()
        await asyncio.wait({reasons})
    if not could_live:
        tell("No worker of the pool can live. Repair what ends them, and start the pool again.")
    return 0 if could_live else 1


def _handle_signals(pool: Pool) -> None:
    """Workers that do not answer after the second signal are killed."""

    def kill() -> None:
        pool.kill()
        asyncio.get_running_loop().call_later(2 * LAST_SECONDS, give_up)

    def give_up() -> None:
        pool.kill_workers()
        leave_soon(ENDED)

    drain_then_kill(pool.drain, kill)

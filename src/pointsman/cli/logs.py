"""`pointsman logs`: what the attempts of tasks have written, from their files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from pointsman.cli.describe import find_log, read_error, read_output, read_tail
from pointsman.cli.group import wants_color
from pointsman.cli.project import Asked, Project, find_run, find_task, in_project, project_options
from pointsman.cli.status import arrange
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Phase
from pointsman.store.rows import Run, Task
from pointsman.worker.log import log_parts

BLOCK = 65_536
LONGEST_LINE = 1 << 20
"""What goes on for longer is shown in pieces."""
LOOK_SECONDS = 0.2
PREFIX_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta")


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Attempt N of the task instead of the last one.")
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Only the last N lines of each task.")
@project_options
def command(run: str, task: str | None, attempt: int | None, tail: int | None, *, follow: bool, asked: Asked) -> int:
    """Show what the tasks of RUN have written, or only its TASK: the last attempt of each.

    With several tasks every line begins with the name of its task. With --json every line is an object.

    \b
    Examples:
      pointsman logs latest
      pointsman logs latest -f
      pointsman logs 9ef05a58 fetch --attempt 1
      pointsman logs latest fetch --tail 20
    """
    if attempt is not None and task is None:
        raise click.UsageError("--attempt is about one task: name it.", click.get_current_context())
    return in_project(asked, lambda project: show_logs(project, run, task, attempt, tail, follow=follow, as_json=asked.as_json))


@dataclass(slots=True)
class Log:
    """The log of one attempt: its file and the part that was rotated away, read on from where we were."""

    task: Task
    epoch: int
    path: Path | None
    offsets: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """By file: its identity, and how much of it was shown."""
    rest: bytes = b""
    """The beginning of a line that has not ended."""

    def parts(self) -> tuple[Path, ...]:
        """In the order in which they were written."""
        return tuple(log_parts(self.path)) if self.path else ()

    def read_on(self) -> Iterator[bytes]:
        """What has been written since we looked the last time; a part that was begun anew is shown from its beginning."""
        for part in self.parts():
            with part.open("rb") as file:
                identity, offset = self.offsets.get(part, (0, 0))
                stat = part.stat()
                if identity != stat.st_ino or stat.st_size < offset:
                    offset = 0
                file.seek(offset)
                while block := file.read(BLOCK):
                    offset += len(block)
                    yield block
                self.offsets[part] = (stat.st_ino, offset)

    def skip_to_tail(self, lines: int) -> None:
        """Pass over all but the last lines."""
        wanted = lines
        for part in reversed(self.parts()):
            size = part.stat().st_size
            start, found = find_tail(part, wanted)
            self.offsets[part] = (part.stat().st_ino, start if wanted else size)
            wanted = max(wanted - found, 0)

    def lines(self, *, to_the_end: bool) -> Iterator[bytes]:
        """Whole lines, without their ends; at the end also one that was left open."""
        for block in self.read_on():
            *whole, self.rest = (self.rest + block).split(b"\n")
            yield from whole
            if len(self.rest) > LONGEST_LINE:
                yield self.rest
                self.rest = b""
        if to_the_end and self.rest:
            yield self.rest
            self.rest = b""


def find_tail(path: Path, lines: int) -> tuple[int, int]:
    """Where the last lines of a file begin, and how many there are, read from its end."""
    found = 0
    with path.open("rb") as file:
        position = file.seek(0, 2)
        if not position or not lines:
            return position, 0
        file.seek(position - 1)
        found = -1 if file.read(1) == b"\n" else 0
        while position:
            begin = max(position - BLOCK, 0)
            file.seek(begin)
            block = file.read(position - begin)
            while (at := block.rfind(b"\n")) >= 0:
                found += 1
                if found == lines:
                    return begin + at + 1, lines
                block = block[:at]
            position = begin
    return 0, found + 1


async def show_logs(
    project: Project, name: str, task: str | None, attempt: int | None, tail: int | None, *, follow: bool, as_json: bool
) -> int:
    run = await find_run(project.engine, name)
    only = await find_task(project.engine, run, task) if task is not None else None
    begun = [each for each in arrange(await project.engine.list_tasks(run.id)) if each.epoch]
    tasks = [only] if only else begun
    if only and (parts := [each for each in begun if each.parent_task_id == only.id]):
        only, tasks = None, parts  # it has only been spread over them
    if only and attempt is not None:
        logs = [await find_attempt(project, only, attempt)]
    else:
        logs = [Log(each, each.epoch, last_log(project, each)) for each in tasks]
    printer = Printer([log.task for log in logs], several=only is None, as_json=as_json)
    is_missing = False
    for log in logs:
        if not log.parts() and not (follow and log.task.phase != Phase.DONE):
            show_remains(log, printer, several=only is None)
            is_missing |= log.path is not None
            continue
        if tail is not None:
            log.skip_to_tail(tail)
        printer.show(log, to_the_end=not follow)
    if follow:
        await follow_logs(project, run, only, logs, printer)
    elif not logs:
        click.echo(f"No task of '{run.name}' has begun, so nothing has been written.", err=True)
    return 1 if only and is_missing else 0


async def follow_logs(project: Project, run: Run, only: Task | None, logs: list[Log], printer: Printer) -> None:
    """Show what is written until the run has ended; the database is asked only when something has moved in it."""
    known = {(log.task.id, log.epoch): log for log in logs}
    growing = set(known)
    looked_at: tuple[str | None] | None = None
    while run.phase != Phase.DONE or growing:
        if looked_at != (position := (await project.engine.last_position(),)):
            looked_at = position
            run = await project.engine.get_run(run.id)
            for task in await project.engine.list_tasks(run.id):
                if task.epoch and (only is None or task.id == only.id):
                    key = (task.id, task.epoch)
                    growing |= {key} - set(known)
                    log = known.setdefault(key, Log(task, task.epoch, None))
                    log.task = task
        for key in sorted(growing):
            log = known[key]
            if log.path is None and log.epoch == log.task.epoch:
                log.path = last_log(project, log.task)  # made at the first byte
            # An attempt is over before its task says so, and its log is whole then.
            is_over = log.task.phase != Phase.ACTIVE or log.task.epoch != log.epoch or run.phase == Phase.DONE
            printer.show(log, to_the_end=is_over)
            growing -= {key} if is_over else set()
        if run.phase != Phase.DONE:
            await project.world.sleep(LOOK_SECONDS)


def last_log(project: Project, task: Task) -> Path | None:
    return find_log(project.settings.directory, task, task.epoch, task.attempt_log_path)


async def find_attempt(project: Project, task: Task, number: int) -> Log:
    attempts = await project.engine.list_attempts(task.id)
    for attempt in attempts:
        if attempt.epoch == number:
            return Log(task, number, find_log(project.settings.directory, task, number, attempt.log_path))
    there = ", ".join(str(attempt.epoch) for attempt in attempts) or "none"
    raise RequestInvalid([Problem("", f"'{task.name}' has no attempt {number}. Its attempts: {there}.")])


def show_remains(log: Log, printer: Printer, *, several: bool) -> None:
    """The file is gone, or there never was one: say so, with what the database has kept; silence among others is no news."""
    task = log.task
    kept = read_output(task).get("tail") or read_tail(task.error) or read_error(task.error)
    if several and log.path is None:
        return
    if task.epoch == 0:
        what = f"'{task.name}' has not begun, so it has written nothing."
    elif log.path is None:
        click.echo(f"Attempt {log.epoch} of '{task.name}' has written nothing.", err=True)
        return
    else:
        what = f"The log of attempt {log.epoch} of '{task.name}' is not on this machine: {log.path} does not exist."
    is_last = log.epoch == task.epoch
    click.echo(what + (" This is the end of it, as the database has kept it:" if kept and is_last else ""), err=True)
    if isinstance(kept, str) and is_last:
        printer.show_lines(log, kept.encode().rstrip(b"\n").split(b"\n"))


class Printer:
    """How lines are shown: as objects, behind the name of their task, or just as they were written."""

    def __init__(self, tasks: Sequence[Task], *, several: bool, as_json: bool) -> None:
        self._width = max((len(task.name) for task in tasks), default=0)
        self._several = several
        self._as_json = as_json
        self._colored = sys.stdout is not None and sys.stdout.isatty() and wants_color() is not False

    def show(self, log: Log, *, to_the_end: bool = False) -> None:
        """What has been written since the last time."""
        if self._several or self._as_json:
            self.show_lines(log, log.lines(to_the_end=to_the_end))
            return
        for block in log.read_on():
            click.echo(block, nl=False)

    def show_lines(self, log: Log, lines: Iterable[bytes]) -> None:
        if self._as_json:
            for line in lines:
                text = line.decode("utf-8", "replace")
                click.echo(json.dumps({"task": log.task.name, "attempt": log.epoch, "text": text}))
            return
        prefix = self._prefix(log.task) if self._several else b""
        waiting = bytearray()
        for line in lines:
            waiting += prefix + line + b"\n"
            if len(waiting) >= BLOCK:
                click.echo(bytes(waiting), nl=False)
                waiting.clear()
        if waiting:
            click.echo(bytes(waiting), nl=False)

    def _prefix(self, task: Task) -> bytes:
        label = f"{task.name.ljust(self._width)} | "
        color = PREFIX_COLORS[task.position % len(PREFIX_COLORS)]
        return (click.style(label, fg=color) if self._colored else label).encode()

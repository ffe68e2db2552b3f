"""`pointsman logs`: the output of tasks, from their log files."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

import click

from pointsman.cli.describe import read_tail
from pointsman.cli.group import wants_color
from pointsman.cli.output import TerminalOutput, echo, harmless
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.streams import background_output, keep_up
from pointsman.cli.through_server import wait_out_outages
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Phase
from pointsman.store.rows import Attempt, Run, Task
from pointsman.views.find import find_run, find_task
from pointsman.views.runs import arrange, is_needless
from pointsman.views.values import read_error, read_output
from pointsman.worker.log import log_parts, name_part
from pointsman.world import Sleep

if TYPE_CHECKING:
    from pointsman.cli.log_mirror import Mirror
    from pointsman.settings import AgentProfile
    from pointsman.worker.transcript import TranscriptReader

BLOCK = 65_536
LONGEST_LINE = 1 << 20
"""A longer line is shown in pieces."""
LOOK_SECONDS = 0.1
LOOK_SECONDS_AT_SERVER = 0.5
PREFIX_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta")


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--follow", "-f", is_flag=True, help="Wait for more output until the run has ended.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Show attempt N of the task instead of the last one.")
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Show only the last N lines of each task.")
@click.option("--raw", is_flag=True, help="Show output as it was written: control characters, and the stream of an agent.")
@project_options
def command(run: str, task: str | None, attempt: int | None, tail: int | None, *, follow: bool, raw: bool, asked: Asked) -> int:
    """Show the output of the tasks of RUN, or only of TASK: the last attempt of each.

    With several tasks, each line begins with the name of its task. With --json each line is an object.

    On a terminal, control characters other than colors are shown as text (\\u001b), so that output cannot change the terminal.
    Into a file or a pipe, output is written as it is.

    Of a coding agent, you see what it said, one line for each tool call and its result. With --raw you see its stream.

    \b
    Examples:
      pointsman logs latest
      pointsman logs latest -f
      pointsman logs 9ef05a58 fetch --attempt 1
      pointsman logs latest fetch --tail 20
    """
    if attempt is not None and task is None:
        raise click.UsageError("--attempt needs a TASK.", click.get_current_context())
    form = Form(as_json=asked.as_json, is_raw=raw)
    with background_output(needs_reader=True):
        return in_project(asked, lambda project: show_logs(project, run, task, attempt, tail, follow=follow, form=form))


@dataclass(frozen=True, slots=True)
class Form:
    """How lines are printed."""

    as_json: bool = False
    is_raw: bool = False


@dataclass(slots=True)
class Log:
    """The log of one attempt: its file and the rotated one before it, and how far they have been read."""

    task: Task
    epoch: int
    path: Path | None
    offsets: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """By file: its inode, and how many bytes of it were shown."""
    mirror: Mirror | None = None
    """Of a log that is not on this machine."""
    rest: bytes = b""
    """The beginning of an unfinished line."""
    transcript: TranscriptReader | None = None
    """Makes the stream of an agent readable."""
    is_stream: bool = False
    """It is the stream of an agent."""

    def parts(self) -> tuple[Path, ...]:
        """Oldest first."""
        return tuple(log_parts(self.path)) if self.path else ()

    @property
    def is_written(self) -> bool:
        """The attempt has written something, wherever that is."""
        return self.path is not None or (self.mirror is not None and self.mirror.is_elsewhere)

    def written_at(self) -> int:
        """When it was written to last; 0 before the first byte."""
        return max((part.stat().st_mtime_ns for part in self.parts()), default=0)

    def read_on(self) -> Iterator[bytes]:
        """What was written since the last read; a file that was replaced is read from its beginning."""
        for part in self.parts():
            with open_log(part) as file:
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
        """Skip all but the last lines."""
        wanted = lines
        for part in reversed(self.parts()):
            size = part.stat().st_size
            start, found = find_tail(part, wanted)
            self.offsets[part] = (part.stat().st_ino, start if wanted else size)
            wanted = max(wanted - found, 0)

    def recognize(self, agents: Mapping[str, AgentProfile], *, is_raw: bool) -> None:
        """Find out whether it is the stream of an agent, once its file exists."""
        if self.path is None or self.is_stream or not name_part(self.path, "agent").exists():
            return
        from pointsman.worker.agent_log import read_transcript

        self.is_stream = True
        self.transcript = None if is_raw else read_transcript(self.path, agents)

    def readable_lines(self, *, to_the_end: bool) -> Iterator[bytes]:
        if self.transcript is None:
            return self.lines(to_the_end=to_the_end)
        return self.transcript.read(self.read_on(), to_the_end=to_the_end)

    def lines(self, *, to_the_end: bool) -> Iterator[bytes]:
        """Complete lines without their line breaks; at the end also an unfinished one."""
        for block in self.read_on():
            *whole, self.rest = (self.rest + block).split(b"\n")
            yield from whole
            if len(self.rest) > LONGEST_LINE:
                yield self.rest
                self.rest = b""
        if to_the_end and self.rest:
            yield self.rest
            self.rest = b""


def open_log(path: Path) -> BinaryIO:
    """A link in the place of a log could show any other file."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))


def find_tail(path: Path, lines: int) -> tuple[int, int]:
    """Where the last lines of a file begin, and how many there are; it is read backwards."""
    found = 0
    with open_log(path) as file:
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
    project: Project, name: str, task: str | None, attempt: int | None, tail: int | None, *, follow: bool, form: Form
) -> int:
    run = await find_run(project.engine, name)
    only = await find_task(project.engine, run, task) if task is not None else None
    shelf = Shelf(project)
    begun = [each for each in arrange(await project.engine.list_tasks_in_brief(run.id)) if each.epoch]
    tasks = [only] if only else begun
    if only and (subtasks := [each for each in begun if each.parent_task_id == only.id]):
        only, tasks = None, subtasks  # the task itself only created them
    if only and attempt is not None:
        logs = [await shelf.find_attempt(only, attempt)]
    else:
        logs = [await shelf.find_last(each) for each in tasks]
    if follow:
        logs.sort(key=Log.written_at)
    printer = Printer(
        [log.task for log in logs], project.world.sleep, several=only is None, form=form, agents=project.settings.agents
    )
    is_missing = False
    for log in logs:
        if not log.parts() and not (follow and log.task.phase != Phase.DONE):
            await show_remains(log, printer, several=only is None)
            is_missing |= log.is_written
            continue
        await printer.show(log, to_the_end=not follow, tail=tail)
    if follow:
        wait_out_outages(project)
        await follow_logs(project, shelf, run, only, logs, printer)
    if printer.is_silent and tail != 0:
        nobody = f"No task of '{run.name}' has {'written anything' if begun or follow else 'started, so there is no output'}."
        echo(f"'{only.name}' has written nothing." if only else nobody, err=True)
    return 1 if only and is_missing else 0


async def follow_logs(project: Project, shelf: Shelf, run: Run, only: Task | None, logs: list[Log], printer: Printer) -> None:
    """Show output until the run has ended; the run is queried again only when something has moved."""
    known = {(log.task.id, log.epoch): log for log in logs}
    growing = set(known)
    looked_at: tuple[str | None] | None = None
    while run.phase != Phase.DONE or growing:
        if looked_at != (position := (await project.engine.last_position(),)):
            looked_at = position
            run = await project.engine.get_run(run.id)
            for task in await project.engine.list_tasks_in_brief(run.id):
                if task.epoch and (only is None or task.id == only.id):
                    key = (task.id, task.epoch)
                    growing |= {key} - set(known)
                    log = known.setdefault(key, Log(task, task.epoch, None))
                    log.task = task
        for key in growing:
            await shelf.update(known[key])
        # What was written earlier is shown earlier, as far as the files tell.
        for key in sorted(growing, key=lambda key: (known[key].written_at(), key)):
            log = known[key]
            # The log of an attempt is complete before its task leaves the active state.
            is_over = log.task.phase != Phase.ACTIVE or log.task.epoch != log.epoch or run.phase == Phase.DONE
            await printer.show(log, to_the_end=is_over)
            growing -= {key} if is_over else set()
        if run.phase != Phase.DONE:
            await project.world.sleep(LOOK_SECONDS_AT_SERVER if project.is_remote else LOOK_SECONDS)


async def find_attempt(project: Project, task: Task, number: int) -> Attempt:
    attempts = await project.engine.list_attempts(task.id)
    for attempt in attempts:
        if attempt.epoch == number:
            return attempt
    there = ", ".join(str(attempt.epoch) for attempt in attempts) or "none"
    raise RequestInvalid([Problem("", f"'{task.name}' has no attempt {number}. Its attempts: {there}.")])


class Shelf:
    """Finds the logs of attempts: on this machine, or else at the server that has the runs."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._folder: TemporaryDirectory[str] | None = None

    async def find_last(self, task: Task) -> Log:
        """The log of the last attempt."""
        return await self._open(task, task.epoch, task.attempt_log_path)

    async def find_attempt(self, task: Task, number: int) -> Log:
        attempt = await find_attempt(self._project, task, number)
        return await self._open(task, number, attempt.log_path)

    async def update(self, log: Log) -> None:
        """Look for its file, which is created with the first byte, and copy what is new at the server."""
        if log.path is None and log.epoch == log.task.epoch:
            task = log.task
            log.path = self._project.find_attempt_log(task.run_id, task.name, task.epoch, task.attempt_log_path)
        if self._project.is_remote and (log.mirror or not log.parts()):
            log.mirror = log.mirror or self._make_mirror(log)
            if await log.mirror.update():
                log.path = log.mirror.path

    async def _open(self, task: Task, epoch: int, recorded: str | None) -> Log:
        log = Log(task, epoch, self._project.find_attempt_log(task.run_id, task.name, epoch, recorded))
        await self.update(log)
        return log

    def _make_mirror(self, log: Log) -> Mirror:
        from pointsman.cli.log_mirror import Mirror

        assert self._project.remote
        self._folder = self._folder or TemporaryDirectory(prefix="pointsman-logs-")
        return Mirror(self._project.remote.read_log, log.task, log.epoch, Path(self._folder.name))


async def show_remains(log: Log, printer: Printer, *, several: bool) -> None:
    """There is no file: say so, and show the tail from the database. Among several tasks, those without output are left out."""
    task = log.task
    kept = read_output(task).get("tail") or read_tail(task.error) or read_error(task.error)
    if several and not log.is_written:
        return
    printer.is_silent = False
    if task.epoch == 0:
        what = f"'{task.name}' has not started, so there is no output."
    elif log.epoch > task.epoch:
        what = f"Attempt {log.epoch} of '{task.name}' has not started, so there is no output."
    elif is_needless(task) and log.epoch == task.epoch:
        what = f"'{task.name}' was skipped, so there is no output: {task.reason}."
    elif not log.is_written:
        echo(f"Attempt {log.epoch} of '{task.name}' wrote nothing.", err=True)
        return
    else:
        where = f"on this machine: {log.path} does not exist" if log.path else "at the server. Ask where its worker runs"
        what = f"The log of attempt {log.epoch} of '{task.name}' is not {where}."
    is_last = log.epoch == task.epoch
    echo(what + (" The database has the end of it:" if kept and is_last else ""), err=True)
    if isinstance(kept, str) and is_last:
        await printer.show_lines(log, kept.encode().rstrip(b"\n").split(b"\n"))


class Printer:
    """Prints lines: as objects, behind the name of their task, or as they were written, but harmless on a terminal."""

    def __init__(
        self, tasks: Sequence[Task], sleep: Sleep, *, several: bool, form: Form, agents: Mapping[str, AgentProfile]
    ) -> None:
        self._width = max((len(task.name) for task in tasks), default=0)
        self._sleep = sleep
        self._several = several
        self._form = form
        self._agents = agents
        self._is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._colored = self._is_terminal and wants_color() is not False
        self.is_silent = True
        """Nothing has been shown yet."""
        self._shown: dict[tuple[str, int], TerminalOutput] = {}

    def _is_harmless(self, log: Log) -> bool:
        """Nobody needs the control characters of an agent."""
        return self._is_terminal and (log.is_stream or not self._form.is_raw)

    async def show(self, log: Log, *, to_the_end: bool = False, tail: int | None = None) -> None:
        """What was written since the last call, or only the last lines of it."""
        log.recognize(self._agents, is_raw=self._form.is_raw)
        if tail is not None and not log.transcript:
            log.skip_to_tail(tail)
        if self._several or self._form.as_json or log.transcript:
            lines = log.readable_lines(to_the_end=to_the_end)
            await self.show_lines(log, deque(lines, maxlen=tail) if tail is not None and log.transcript else lines)
            return
        shown = self._shown.setdefault((log.task.id, log.epoch), TerminalOutput(keeps_colors=not log.is_stream))
        is_harmless = self._is_harmless(log)
        for block in log.read_on():
            await self._write(shown.feed(block).encode() if is_harmless else block)
        if to_the_end and is_harmless:
            await self._write(shown.feed(b"", to_the_end=True).encode())

    async def show_lines(self, log: Log, lines: Iterable[bytes]) -> None:
        waiting = bytearray()
        for line in lines:
            waiting += self._format(log, line) + b"\n"
            if len(waiting) >= BLOCK:
                await self._write(bytes(waiting))
                waiting.clear()
        await self._write(bytes(waiting))

    def _format(self, log: Log, line: bytes) -> bytes:
        if self._form.as_json:
            text = line.decode("utf-8", "replace")
            return json.dumps({"task": log.task.name, "attempt": log.epoch, "text": text}).encode()
        is_harmless = self._is_harmless(log)
        prefix = self._prefix(log.task, is_harmless=is_harmless) if self._several else b""
        if is_harmless:
            line = TerminalOutput(keeps_colors=not log.is_stream).feed(line.removesuffix(b"\r"), to_the_end=True).encode()
        return prefix + line

    async def _write(self, data: bytes) -> None:
        if data:
            self.is_silent = False
            click.echo(data, nl=False)
            await keep_up(self._sleep)

    def _prefix(self, task: Task, *, is_harmless: bool) -> bytes:
        label = f"{task.name.ljust(self._width)} | "
        label = harmless(label) if is_harmless else label
        color = PREFIX_COLORS[task.position % len(PREFIX_COLORS)]
        return (click.style(label, fg=color) if self._colored else label).encode()

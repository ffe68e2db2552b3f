"""How the progress of a run is shown: a live display in a terminal, plain lines elsewhere, events for programs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

import click

from pointsman.cli.group import wants_color
from pointsman.cli.live import LiveArea, cut_line, has_terminal
from pointsman.cli.output import harmless, show_seconds, tell
from pointsman.cli.streams import is_idle, write_line
from pointsman.kernel.machine import Outcome, Phase, State
from pointsman.views.progress import SKIP, Change, Line, Progress
from pointsman.worker.journal import as_line
from pointsman.worker.worker import Worker

FRAMES_A_SECOND = 8
MOST_ENDS_SHOWN = 100
"""In a run with more tasks, only failures stay on the screen."""
HOLD_SECONDS = 0.5
"""How long the start of an attempt is not shown while its worker may still find that there is nothing to do."""
LastLine = Callable[[str], str]
"""The last line of output of a task, by its id."""
HasBegun = Callable[[str], bool]
"""Whether the work of a task is running here, by its id."""
Part: TypeAlias = tuple[str, str | None]
"""A piece of a line and its color."""

STYLES: Mapping[Phase | Outcome, str] = {
    Outcome.SUCCESS: "green",
    Outcome.FAILURE: "red",
    Outcome.CANCELED: "bright_black",
    Phase.ACTIVE: "magenta",
    Phase.QUEUED: "blue",
    Phase.HELD: "yellow",
}
MARKS: Mapping[Phase | Outcome, str] = {
    Outcome.SUCCESS: "✓",
    Outcome.FAILURE: "✗",
    Outcome.CANCELED: "–",
    Phase.ACTIVE: "▶",
    Phase.QUEUED: "·",
    Phase.HELD: "○",
}
SKIPPED_MARK = "↷"


class View(Protocol):
    def change(self, change: Change) -> None:
        """A transition has happened."""
        ...

    def tick(self, now: datetime) -> None:
        """Time has passed."""
        ...

    def say(self, message: str) -> None:
        """Show a message to people."""
        ...

    def close(self) -> None: ...


class _Lines:
    """Output that is written once and never redrawn."""

    def tick(self, now: datetime) -> None:
        pass

    def say(self, message: str) -> None:
        tell(message)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _Queued:
    """A line that waits for its turn."""

    text: str
    starts: str | None = None
    """The id of the task whose attempt it announces, until it is known that there is work."""
    queued_at: float = 0.0


class PlainView(_Lines):
    """One line per transition, in their order; those that were read together are written together.

    The start of an attempt is shown when its work has begun, since a condition may exclude the task. What comes later waits.
    """

    def __init__(self, progress: Progress, has_begun: HasBegun) -> None:
        self._progress = progress
        self._has_begun = has_begun
        self._queue: deque[_Queued] = deque()
        self._is_scheduled = False

    def change(self, change: Change) -> None:
        if change.line is None or not _is_worth_a_line(change):
            return
        task_id = change.line.task_id
        for queued in [each for each in self._queue if each.starts == task_id]:
            queued.starts = None
            if change.is_needless:
                self._queue.remove(queued)
        self._put(describe_change(change, self._progress), task_id if change.state.phase is Phase.ACTIVE else None)

    def say(self, message: str) -> None:
        self._put(message)

    def tick(self, now: datetime) -> None:  # noqa: ARG002 - whether it has waited long enough goes by the event loop
        self._write()

    def close(self) -> None:
        for queued in self._queue:
            queued.starts = None
        self._write()

    def _put(self, text: str, starts: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._queue.append(_Queued(text, starts, loop.time()))
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_scheduled = False
        lines: list[str] = []
        while self._queue and not self._is_held(self._queue[0]):
            lines.append(self._queue.popleft().text)
        if lines:
            tell("\n".join(lines))

    def _is_held(self, queued: _Queued) -> bool:
        if queued.starts is None or self._has_begun(queued.starts):
            return False
        return asyncio.get_running_loop().time() < queued.queued_at + HOLD_SECONDS


class JsonView(_Lines):
    """Every transition as an event line, as in the log of transitions."""

    def change(self, change: Change) -> None:
        name = change.line.name if change.line else None
        write_line(as_line(change.transition, change.machine, change.transition.at, name))


class LiveView:
    """Running tasks, failures and progress, redrawn a few times a second however much happens."""

    def __init__(self, progress: Progress, last_line: LastLine, has_begun: HasBegun, title: str) -> None:
        self._progress = progress
        self._last_line = last_line
        self._has_begun = has_begun
        self._title = title
        self._area = LiveArea(color=wants_color() is not False)

    def change(self, change: Change) -> None:
        is_end = change.line is not None and change.state.phase is Phase.DONE
        if is_end and (self._progress.total <= MOST_ENDS_SHOWN or change.state.outcome is Outcome.FAILURE):
            self.say(describe_change(change, self._progress))

    def tick(self, now: datetime) -> None:
        """Draw a frame, unless the terminal has not yet taken the last one."""
        if is_idle():
            self._area.draw(self._draw(now))

    def say(self, message: str) -> None:
        self._area.print(harmless(message))

    def close(self) -> None:
        self._area.close()

    def _draw(self, now: datetime) -> list[str]:
        columns, rows = self._area.size
        room = max(rows - 5, 3)
        active = [line for line in self._progress.active.values() if self._is_shown(line, now)]
        active.sort(key=lambda line: (line.since, line.position))
        lines = [cut_line(self._draw_line(line, now), columns - 1) for line in active[:room]]
        if len(active) > room:
            lines.append(f"  … and {len(active) - room} more")
        return [*lines, cut_line(self._draw_bar(now, columns), columns - 1)]

    def _is_shown(self, line: Line, now: datetime) -> bool:
        """A condition may exclude a task that has just been claimed."""
        return self._has_begun(line.task_id) or (now - line.since).total_seconds() >= HOLD_SECONDS

    def _draw_line(self, line: Line, now: datetime) -> list[Part]:
        style = _style(line.state)
        return [
            (harmless(f" {_mark(line.state)} {line.name:<24} {line.state.name:<12} "), style),
            (f"{show_seconds((now - line.since).total_seconds()):>7}", None),
            (f"  #{line.attempts} " if line.attempts > 1 else "  ", "bright_black"),
            (harmless(self._last_line(line.task_id)), "bright_black"),
        ]

    def _draw_bar(self, now: datetime, columns: int) -> list[Part]:
        progress = self._progress
        width = min(30, max(columns - 50, 10))
        filled = width * progress.done // max(progress.total, 1)
        parts: list[Part] = [
            (harmless(f" {self._title}  "), None),
            ("━" * filled, "green"),
            ("━" * (width - filled), "bright_black"),
            (f" {progress.done}/{progress.total}", None),
        ]
        for key, style in STYLES.items():
            if number := progress.count(key):
                parts.append((f"  {MARKS[key]} {number}", style))
        if progress.started_at:
            parts.append((f"  {show_seconds((now - progress.started_at).total_seconds())}", "bright_black"))
        return parts


def describe_change(change: Change, progress: Progress) -> str:
    """A transition as a line for people."""
    line, state = change.line, change.state
    assert line is not None
    was_skipped = change.transition.trigger == SKIP
    mark, style = (SKIPPED_MARK, "bright_black") if was_skipped else (_mark(state), _style(state))
    parts = [
        f"{change.transition.at.astimezone():%H:%M:%S}",
        click.style(f"{mark} {line.name}", fg=style),
        state.name,
    ]
    if line.took is not None and not change.is_needless:
        parts.append(f"after {show_seconds(line.took)}")
    if line.attempts > 1:
        parts.append(f"(attempt {line.attempts})")
    if line.reason:
        parts.append(f"– {line.reason}")
    if state.phase is Phase.DONE:
        parts.append(click.style(f"[{progress.done}/{progress.total}]", dim=True))
    return "  ".join(parts)


def choose_view(progress: Progress, worker: Worker, title: str, *, as_json: bool) -> View:
    if as_json:
        return JsonView()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and has_terminal(sys.stderr.fileno()):
        return LiveView(progress, worker.last_line, worker.has_begun, title)
    return PlainView(progress, worker.has_begun)


def _is_worth_a_line(change: Change) -> bool:
    """Starts, ends and retries; the first queueing of a task is not shown."""
    return change.state.phase in (Phase.ACTIVE, Phase.DONE) or bool(change.line and change.line.attempts)


def _mark(state: State) -> str:
    return MARKS[state.outcome or state.phase]


def _style(state: State) -> str:
    return STYLES[state.outcome or state.phase]

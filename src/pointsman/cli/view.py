"""How the progress of a run is shown: a live display in a terminal, plain lines elsewhere, events for programs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import click

from pointsman.cli.output import harmless, tell
from pointsman.cli.streams import is_idle, write_line
from pointsman.kernel.machine import Outcome, Phase, State
from pointsman.views.progress import Change, Line, Progress
from pointsman.worker.journal import as_line

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

FRAMES_A_SECOND = 8
MOST_ENDS_SHOWN = 100
"""In a run with more tasks, only failures stay on the screen."""
LastLine = Callable[[str], str]
"""The last line of output of a task, by its id."""

STYLES = {
    Outcome.SUCCESS: "green",
    Outcome.FAILURE: "red",
    Outcome.CANCELED: "bright_black",
    Phase.ACTIVE: "magenta",
    Phase.QUEUED: "blue",
    Phase.HELD: "yellow",
}
MARKS = {
    Outcome.SUCCESS: "✓",
    Outcome.FAILURE: "✗",
    Outcome.CANCELED: "–",
    Phase.ACTIVE: "▶",
    Phase.QUEUED: "·",
    Phase.HELD: "○",
}
SKIP = "skip"
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


class PlainView(_Lines):
    """One line per transition; those that were read together are written together."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lines: list[str] = []

    def change(self, change: Change) -> None:
        if change.line is not None and _is_worth_a_line(change):
            if not self._lines:
                asyncio.get_running_loop().call_soon(self._write)
            self._lines.append(describe_change(change, self._progress))

    def say(self, message: str) -> None:
        self._write()
        tell(message)

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            tell("\n".join(lines))


class JsonView(_Lines):
    """Every transition as an event line, as in the log of transitions."""

    def change(self, change: Change) -> None:
        name = change.line.name if change.line else None
        write_line(as_line(change.transition, change.machine, change.transition.at, name))


class LiveView:
    """Running tasks, failures and progress, redrawn a few times a second however much happens."""

    def __init__(self, progress: Progress, last_line: LastLine, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress = progress
        self._last_line = last_line
        self._title = title
        self._began: datetime | None = None
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def change(self, change: Change) -> None:
        self._began = self._began or change.transition.at
        is_end = change.line is not None and change.state.phase is Phase.DONE
        if is_end and (self._progress.total <= MOST_ENDS_SHOWN or change.state.outcome is Outcome.FAILURE):
            self._live.console.print(_from_ansi(harmless(describe_change(change, self._progress))), soft_wrap=True)

    def tick(self, now: datetime) -> None:
        """Draw a frame, unless the terminal has not yet taken the last one."""
        if is_idle():
            self._live.update(self._draw(now), refresh=True)

    def say(self, message: str) -> None:
        self._console.print(harmless(message), highlight=False, markup=False)

    def close(self) -> None:
        self._live.stop()

    def _draw(self, now: datetime) -> Group:
        from rich.console import Group

        room = max(self._console.height - 5, 3)
        active = sorted(self._progress.active.values(), key=lambda line: (line.since, line.position))
        lines = [self._draw_line(line, now) for line in active[:room]]
        if len(active) > room:
            lines.append(_text(f"  … and {len(active) - room} more", "dim"))
        return Group(*lines, self._draw_bar(now))

    def _draw_line(self, line: Line, now: datetime) -> Text:
        style = _style(line.state)
        text = _text(f" {_mark(line.state)} {line.name:<24} ", style)
        text.append(f"{line.state.name:<12} ", style)
        text.append(f"{format_seconds((now - line.since).total_seconds()):>7}")
        text.append(f"  #{line.attempts} " if line.attempts > 1 else "  ", "dim")
        text.append(harmless(self._last_line(line.task_id)), "dim")
        text.truncate(self._console.width - 1, overflow="ellipsis")
        text.no_wrap = True
        return text

    def _draw_bar(self, now: datetime) -> Text:
        progress = self._progress
        done, total = progress.done, max(progress.total, 1)
        width = min(30, max(self._console.width - 50, 10))
        filled = width * done // total
        text = _text(f" {self._title}  ", "bold")
        text.append("━" * filled, "green").append("━" * (width - filled), "bright_black")
        text.append(f" {done}/{progress.total}")
        for key, style in STYLES.items():
            if count := progress.counts[key.value]:
                text.append(f"  {MARKS[key]} {count}", style)
        if self._began:
            text.append(f"  {format_seconds((now - self._began).total_seconds())}", "dim")
        text.truncate(self._console.width - 1, overflow="ellipsis")
        text.no_wrap = True
        return text


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
    seconds = change.transition.seconds_in_state if line.took is None else line.took
    if seconds is not None and state.phase is not Phase.ACTIVE:
        parts.append(f"after {format_seconds(seconds)}")
    if line.attempts > 1:
        parts.append(f"(attempt {line.attempts})")
    if line.reason:
        parts.append(f"– {line.reason}")
    if state.phase is Phase.DONE:
        parts.append(click.style(f"[{progress.done}/{progress.total}]", dim=True))
    return "  ".join(parts)


def choose_view(progress: Progress, last_line: LastLine, title: str, *, as_json: bool) -> View:
    if as_json:
        return JsonView()
    if sys.stderr.isatty():
        return LiveView(progress, last_line, title)
    return PlainView(progress)


def format_seconds(seconds: float) -> str:
    """0.4 s, 12 s, 3m 05s, 2h 07m."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _is_worth_a_line(change: Change) -> bool:
    """Starts, ends and retries; the first queueing of a task is not shown."""
    return change.state.phase in (Phase.ACTIVE, Phase.DONE) or bool(change.line and change.line.attempts)


def _mark(state: State) -> str:
    return MARKS[state.outcome or state.phase]


def _style(state: State) -> str:
    return STYLES[state.outcome or state.phase]


def _from_ansi(text: str) -> Text:
    from rich.text import Text

    return Text.from_ansi(text)


def _text(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(harmless(text), style)

"""What commands print: findings, tables, states, times, errors."""

from __future__ import annotations

import codecs
import json
import os
import re
import select
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pointsman.errors import Finding
from pointsman.kernel.machine import Outcome, Phase

if TYPE_CHECKING:
    from pointsman.views.values import TaskCounts

PHASE_COLORS = {Phase.HELD: "yellow", Phase.QUEUED: "blue", Phase.ACTIVE: "magenta"}
OUTCOME_COLORS = {Outcome.SUCCESS: "green", Outcome.FAILURE: "red", Outcome.CANCELED: "bright_black"}

FORMS_BY_SUFFIX = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".md": "markdown"}
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".pdf", ".ps", ".eps")
"""Formats that are not supported."""

Decorated = TypeVar("Decorated", bound=Callable[..., object])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


LONGEST_NAME = 32
"""In tables."""
STDIN, STDOUT, STDERR = 0, 1, 2
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
"""What moves the cursor, reorders text or begins a command to the terminal; not the line break and the tab."""
_IN_MESSAGES = re.compile(rf"(?P<kept>\x1b\[(?:0|1|2|3[1-6]|9[0-7])m)|{_CONTROL}")
"""The colors that Pointsman itself uses are kept."""
_IN_OUTPUT = re.compile(rf"(?P<kept>\r?\n|\x1b\[[0-9;:]{{0,32}}m)|{_CONTROL}")
"""Programs may use any color, as with `less -R`."""
_IN_STREAM = re.compile(rf"(?P<kept>\r?\n)|{_CONTROL}")
"""Nobody needs the colors of an agent."""
_UNFINISHED = re.compile(r"(?:\r|\x1b(?:\[[0-9;:]{0,32})?)\Z")

_ADVISED = re.compile(r"(?<=`)pointsman [a-z][^`]*(?=`)|(?<=: )pointsman [a-z][^`\n]*\Z")
"""A command in advice."""


def complete(text: str, options: str) -> str:
    """Advice with the options that its commands need: each command is in backticks, or ends the text behind a colon."""

    def add(found: re.Match[str]) -> str:
        return found[0] if options in found[0] else found[0] + options

    return _ADVISED.sub(add, text)


def harmless(text: str) -> str:
    """Text for a terminal: control characters are shown as `\\u001b`, which JSON understands as well."""
    return _IN_MESSAGES.sub(_show_control, text)


def _show_control(found: re.Match[str]) -> str:
    return found["kept"] or f"\\u{ord(found[0]):04x}"


class TerminalOutput:
    """Output of a program for a terminal, which comes in pieces: colors may be kept, other control characters are shown."""

    def __init__(self, *, keeps_colors: bool = True) -> None:
        self._pattern = _IN_OUTPUT if keeps_colors else _IN_STREAM
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._unfinished = ""
        self._is_colored = False

    def feed(self, data: bytes, *, to_the_end: bool = False) -> str:
        """At the end, or of a whole line, the colors are reset."""
        text = self._unfinished + self._decoder.decode(data, to_the_end)
        unfinished = None if to_the_end else _UNFINISHED.search(text)
        self._unfinished = unfinished[0] if unfinished else ""
        self._is_colored |= self._pattern is _IN_OUTPUT and "\x1b" in text
        shown = self._pattern.sub(_show_control, text.removesuffix(self._unfinished))
        return f"{shown}\x1b[0m" if to_the_end and self._is_colored else shown


def echo(message: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a line, harmless also into a pipe, which often ends at a terminal: `pointsman status latest | head`."""
    click.echo(harmless(message), err=err, nl=nl)


def erase_line() -> None:
    """Erase the line of a terminal that shows progress."""
    click.echo("\r\033[K", nl=False, err=True)


def tell(message: str) -> None:
    """Print a line on stderr; if it can no longer be written to (a closed terminal or pipe), later messages are dropped."""
    try:
        echo(message, err=True)
    except OSError:
        silence(STDERR)


def is_read(descriptor: int) -> bool:
    """Whether a line can be written there without waiting for its reader."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & select.POLLOUT for _, events in poll.poll(0))


def silence(descriptor: int) -> None:
    """Let everything that is still written there vanish; nothing can be read there."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def fail(message: str) -> None:
    """One clear line on stderr."""
    echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)


def describe_finding(finding: Finding) -> dict[str, object]:
    place = finding.place
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "rule": finding.rule,
        "message": finding.message,
        "advice": finding.advice,
    }


def show_finding(finding: Finding) -> None:
    where = click.style(str(finding.place), bold=True)
    echo(f"{where}: {finding.message} {click.style(f'[{finding.rule}]', fg='red')}")
    echo(f"    {finding.advice}")


def show_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, fits: bool = False) -> None:
    """Columns as wide as their widest cell; colours do not count. What `fits` has its last, plain column cut for a terminal."""
    plain = [heads, *([click.unstyle(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in plain) for column in range(len(heads))]
    if fits and (columns := terminal_columns()):
        widths[-1] = max(min(widths[-1], columns - sum(widths[:-1]) - 2 * (len(widths) - 1)), len(heads[-1]))
        rows = [(*row[:-1], cut(row[-1], widths[-1])) for row in rows]
    echo(click.style("  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)).rstrip(), dim=True))
    for row in rows:
        cells = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)]
        echo("  ".join(cells).rstrip())


def format_option(formats: Collection[str]) -> Callable[[Decorated], Decorated]:
    """The format of a drawing, for `choose_form`."""
    text = "The format (default: by the suffix of the output, or text)."
    return click.option("--format", "-f", "form", metavar=f"[{'|'.join(formats)}]", help=text)


def choose_form(form: str | None, output: str | None, formats: Collection[str]) -> str:
    """The format that was asked for, or else that of a file of this name."""
    path = Path(output or "")
    suffix = path.suffix.lower()
    if suffix in PICTURES:
        message = f"{suffix} files are not supported. Draw an SVG, which every browser shows: -o {path.with_suffix('.svg')}"
        raise click.UsageError(message, click.get_current_context())
    by_suffix = FORMS_BY_SUFFIX.get(suffix, "text")
    return form or (by_suffix if by_suffix in formats else "text")


def hand_out(drawing: str, output: str | None, described: Mapping[str, object] | None) -> None:
    """Write a drawing to its file or to stdout; for programs as an object with its description."""
    if output is not None:
        try:
            Path(output).write_text(drawing, "utf-8")
        except OSError as error:
            raise click.FileError(output, hint=error.strerror or str(error)) from None
        echo(f"wrote {output}", err=True)
    if described is not None:
        echo(json.dumps({**described, "drawing": drawing}))
    elif output is None:
        echo(drawing.rstrip("\n"))


def terminal_columns() -> int | None:
    """The width of the terminal; None if stdout is not a terminal, and nothing needs to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def show_state(state: str, phase: str, outcome: str | None) -> str:
    """The name of a state in the color of its outcome or phase."""
    color = OUTCOME_COLORS[Outcome(outcome)] if outcome else PHASE_COLORS.get(Phase(phase))
    return click.style(state, fg=color)


def show_counts(counts: TaskCounts) -> str:
    """`3 of 6 tasks done (1 skipped), 1 failed, 1 canceled`."""
    among = [f"{counts.skipped:,} skipped" if counts.skipped else ""]
    among += [f"{counts.given_up:,} failed, not critical" if counts.given_up else ""]
    beside = [f"{counts.failed:,} failed" if counts.failed else "", f"{counts.canceled:,} canceled" if counts.canceled else ""]
    details = f" ({'; '.join(filter(None, among))})" if any(among) else ""
    return ", ".join(filter(None, (f"{counts.done:,} of {count(counts.total, 'task')} done{details}", *beside)))


def show_seconds(seconds: float) -> str:
    """A duration with its two largest units: 0.4s, 12s, 3m 5s, 2h 7m, 1d 3h."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // part}{smaller}"
    return f"{whole}s"


def show_size(size: int) -> str:
    """1,000 bytes are a kB."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def near(path: Path) -> str:
    """A path relative to the current folder, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def show_time(at: datetime, now: datetime | None = None) -> str:
    """Local time, with the date if `now` is on another day."""
    local = at.astimezone()
    is_today = now is None or now.astimezone().date() == local.date()
    return f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

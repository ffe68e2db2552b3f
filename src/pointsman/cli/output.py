"""What commands print: findings, tables, states, times, errors."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO

import click

from pointsman.errors import Finding
from pointsman.kernel.machine import Outcome, Phase

PHASE_COLORS = {Phase.HELD: "yellow", Phase.QUEUED: "blue", Phase.ACTIVE: "magenta"}
OUTCOME_COLORS = {Outcome.SUCCESS: "green", Outcome.FAILURE: "red", Outcome.CANCELED: "bright_black"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@contextmanager
def lasting() -> Iterator[None]:
    """Keep working when stderr can no longer be written to (a closed terminal or pipe): later messages are dropped."""
    try:
        yield
    except OSError:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, sys.stderr.fileno())
        os.close(silence)


def tell(message: str) -> None:
    """Print a line on stderr, if it is still open."""
    with lasting():
        click.echo(message, err=True)


STDOUT, STDERR = 1, 2
_data: list[TextIO] = []
"""The real stdout, while everything else is sent to stderr."""


@contextmanager
def data_apart() -> Iterator[None]:
    """Reserve stdout for `write_line`: what functions of users, their threads and their programs print goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    with os.fdopen(kept, "w") as stream:
        _data.append(stream)
        try:
            yield
        finally:
            _data.pop()
            os.dup2(kept, STDOUT)


def write_line(line: bytes) -> None:
    """To stdout, for programs. If the reader has closed the pipe, the work goes on."""
    stream = _data[-1] if _data else sys.stdout
    try:
        stream.write(line.decode())
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def fail(message: str) -> None:
    """One clear line on stderr."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)


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
    click.echo(f"{where}: {finding.message} {click.style(f'[{finding.rule}]', fg='red')}")
    click.echo(f"    {finding.advice}")


def show_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, fits: bool = False) -> None:
    """Columns as wide as their widest cell; colours do not count. What `fits` has its last, plain column cut for a terminal."""
    plain = [heads, *([click.unstyle(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in plain) for column in range(len(heads))]
    if fits and (columns := terminal_columns()):
        widths[-1] = max(min(widths[-1], columns - sum(widths[:-1]) - 2 * (len(widths) - 1)), len(heads[-1]))
        rows = [(*row[:-1], cut(row[-1], widths[-1])) for row in rows]
    click.echo(click.style("  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)).rstrip(), dim=True))
    for row in rows:
        cells = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def hand_out(drawing: str, output: str | None, described: Mapping[str, object] | None) -> None:
    """Write a drawing to its file or to stdout; for programs as an object with its description."""
    if output is not None:
        try:
            Path(output).write_text(drawing, "utf-8")
        except OSError as error:
            raise click.FileError(output, hint=error.strerror or str(error)) from None
        click.echo(f"wrote {output}", err=True)
    if described is not None:
        click.echo(json.dumps({**described, "drawing": drawing}))
    elif output is None:
        click.echo(drawing.rstrip("\n"))


def terminal_columns() -> int | None:
    """The width of the terminal; None if stdout is not a terminal, and nothing needs to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def show_state(state: str, phase: str, outcome: str | None) -> str:
    """The name of a state in the color of its outcome or phase."""
    color = OUTCOME_COLORS[Outcome(outcome)] if outcome else PHASE_COLORS.get(Phase(phase))
    return click.style(state, fg=color)


def show_seconds(seconds: float) -> str:
    """A duration with its two largest units."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // part}{smaller}"
    return f"{whole}s"


def near(path: Path) -> str:
    """A path relative to the current folder, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def show_time(at: datetime) -> str:
    """Local time."""
    return f"{at.astimezone():%H:%M:%S}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

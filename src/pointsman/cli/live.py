"""Lines at the end of a terminal that are drawn again and again, below everything that stays.

    12:00:01  ✓ fetch  SUCCEEDED  after 2.1s      stays
    █                                             the cursor rests here, at the beginning of an empty line
     ▶ transform  RUNNING  0.4s                   drawn eight times a second
     nightly  ━━━━━━━━━━━━━━━━━━━━  1/3

A terminal that is resized wraps lines anew, each kind of terminal in its own way. The cursor stays with the line that it is on,
so all that is below it is ours: each frame overwrites it and erases the rest. No other escape sequence leaves a trace, so a
terminal is as it was even after `kill -9`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from unicodedata import east_asian_width

import click

ERASE_LINE, ERASE_BELOW = "\x1b[K", "\x1b[J"
BEGIN, END = "\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h"
"""Without a cursor that jumps, and without wrapping: the terminal may have become narrower since it was measured."""


class LiveArea:
    """The lines at the end of the terminal on stderr."""

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._frame = ""

    @property
    def size(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(sys.stderr.fileno())
        except OSError:  # it was closed
            return os.terminal_size((80, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines, unless another program has the terminal now."""
        if not has_terminal(sys.stderr.fileno()):
            self._frame = ""
            return
        shown = ["", *lines[-max(self.size.lines - 1, 1) :]]
        text = "\n".join(f"{line}{ERASE_LINE}" for line in shown)
        self._frame = f"{BEGIN}\r{text}{ERASE_BELOW}\x1b[{len(shown) - 1}A\r{END}"
        self._write(self._frame)

    def print(self, text: str) -> None:
        """Print text that stays, above the lines."""
        self._write(f"\r{ERASE_BELOW}{text}\n{self._frame}")

    def close(self) -> None:
        """Erase the lines."""
        self._frame = ""
        self._write(f"\r{ERASE_BELOW}")

    def _write(self, text: str) -> None:
        sys.stderr.write(text if self._color else _without_color(text))
        sys.stderr.flush()


def has_terminal(descriptor: int) -> bool:
    """Whether this process is in the foreground of its terminal; in the background (`&`), other programs write there."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # a terminal without job control
        return True


def _without_color(text: str) -> str:
    """`click.unstyle` would remove what moves the cursor as well."""
    first, *rest = text.split("\x1b[")
    return first + "".join(_after_color(each) for each in rest)


def _after_color(piece: str) -> str:
    digits = piece.lstrip("0123456789;")
    return digits[1:] if digits.startswith("m") else f"\x1b[{piece}"


def cut_line(parts: Sequence[tuple[str, str | None]], width: int) -> str:
    """Pieces of a line, each with its color, cut to the width of the terminal."""
    line, room = "", width
    for text, color in parts:
        fitting = _cut(text, room)
        line += click.style(fitting, fg=color) if color else fitting
        room -= _count_cells(fitting)
        if fitting != text:
            break
    return line


def _cut(text: str, cells: int) -> str:
    if _count_cells(text) <= cells:
        return text
    while text and _count_cells(text) >= cells:
        text = text[:-1]
    return f"{text}…" if cells > 0 else ""


def _count_cells(text: str) -> int:
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)

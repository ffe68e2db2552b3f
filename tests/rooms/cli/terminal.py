"""A terminal that wraps its lines anew when it is resized, as most terminals of today do; and a command that runs on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_SECONDS = 60
_PIECE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|(.)", re.DOTALL)


@dataclass
class Row:
    text: str = ""
    is_wrapped: bool = False
    """The next row continues it."""


@dataclass
class Terminal:
    """What a person sees, everything that has scrolled out of sight included."""

    lines: int
    columns: int
    rows: list[Row] = field(default_factory=lambda: [Row()])
    row: int = 0
    column: int = 0
    wraps: bool = True
    _unfinished: str = ""

    def feed(self, text: str) -> None:
        text = self._unfinished + text
        begun = re.search(r"\x1b(?:\[[?0-9;]*)?\Z", text)
        self._unfinished = begun[0] if begun else ""
        for found in _PIECE.finditer(text.removesuffix(self._unfinished)):
            if found[2]:
                self._obey(found[1], found[2])
            else:
                self._put(found[3])

    def resize(self, lines: int, columns: int) -> None:
        """Join what was wrapped, and wrap it again; the cursor stays at its character."""
        rows: list[Row] = []
        cursor, text, offset = (0, 0), "", None
        for number, row in enumerate(self.rows):
            if number == self.row:
                offset = len(text) + self.column
            text += row.text
            if not row.is_wrapped:
                starts = range(0, max(len(text), 1), columns)
                if offset is not None:
                    cursor = (len(rows) + min(offset // columns, len(starts) - 1), offset % columns)
                rows += [Row(text[start : start + columns], is_wrapped=start != starts[-1]) for start in starts]
                text, offset = "", None
        self.lines, self.columns, self.rows = lines, columns, rows
        self.row, self.column = cursor

    @property
    def shown(self) -> str:
        return "\n".join(row.text.rstrip() for row in self.rows)

    def _obey(self, argument: str, command: str) -> None:
        current = self.rows[self.row]
        match command:
            case "A":
                self.row = max(self.row - int(argument or 1), len(self.rows) - self.lines, 0)
            case "K" | "J":
                current.text, current.is_wrapped = current.text[: self.column], False
                if command == "J":
                    del self.rows[self.row + 1 :]
            case "h" | "l" if argument == "?7":
                self.wraps = command == "h"
            case _:
                pass  # colors, and whether the cursor is seen

    def _put(self, letter: str) -> None:
        match letter:
            case "\r":
                self.column = 0
            case "\n":
                self._go_down()
            case _:
                self._write(letter)

    def _write(self, letter: str) -> None:
        if self.column >= self.columns and self.wraps:
            self.rows[self.row].is_wrapped = True
            self._go_down()
            self.column = 0
        self.column = min(self.column, self.columns - 1)
        row = self.rows[self.row]
        row.text = row.text.ljust(self.column)[: self.column] + letter + row.text[self.column + 1 :]
        self.column += 1

    def _go_down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append(Row())


class OnTerminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str, cwd: Path, lines: int, columns: int, script: str = 'exec "$@"') -> None:
        """`script` runs the command, which is "$@", in a shell."""
        self.terminal = Terminal(lines, columns)
        self.received = ""
        """Every character, also those that nobody sees."""
        self._ours, theirs = pty.openpty()
        self._measure(lines, columns)
        self.process = subprocess.Popen(
            ["sh", "-c", script, "sh", sys.executable, "-m", "pointsman", *arguments],
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call, and no lock
        )
        os.close(theirs)

    def resize(self, lines: int, columns: int) -> None:
        self._measure(lines, columns)
        self.terminal.resize(lines, columns)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, is_so: Callable[[str], bool]) -> None:
        """Read until the screen is like that."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so(self.terminal.shown):
            assert time.monotonic() < deadline, self.terminal.shown
            assert self._read(), self.terminal.shown

    def until_it_reads(self) -> None:
        """Until it sleeps, ten times in a row: a signal just before a blocking read would not interrupt that."""
        sleeping = 0
        while sleeping < 10:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            sleeping = sleeping + 1 if state == "S" else 0
            time.sleep(0.02)

    def wait(self) -> int:
        while self._read():
            pass
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        """Whether more may come."""
        if not select.select([self._ours], [], [], PATIENCE_SECONDS)[0]:
            return False
        with contextlib.suppress(OSError):  # Linux says EIO once the other side is closed
            data = os.read(self._ours, 65_536)
            self.received += data.decode("utf-8", "replace")
            self.terminal.feed(data.decode("utf-8", "replace"))
            return bool(data)
        return False

    def _measure(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

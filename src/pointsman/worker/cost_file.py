"""What an attempt costs, as its work says it: amounts of US dollars, one a line, at the end of the file $POINTSMAN_COST."""

from __future__ import annotations

import os
import stat
from decimal import Decimal, InvalidOperation

from pointsman.engine.checks import MAX_USD, SMALLEST_USD
from pointsman.store.rows import ZERO_USD

LONGEST_READ = 65_536
"""How much of the file one look takes in: whoever writes faster than that is looked at again."""


class CostFile:
    """Read as it grows, and never twice."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._wrong: str | None = None
        """The first line that is no amount."""
        self._wrong_lines = 0
        self._total = self._told = ZERO_USD
        self._position = 0

    def look(self, *, at_its_end: bool = False) -> Decimal:
        """What was spent since the engine was last told; a line that is still being written is left for the next time."""
        while text := self._read():
            is_all = len(text) < LONGEST_READ
            end = len(text) if is_all and at_its_end else text.rfind(b"\n") + 1
            if not end and not is_all:
                end = len(text)  # no amount is that long
            self._position += end
            for line in text[:end].splitlines():
                self._add(line)
            if is_all or not at_its_end:
                break
        return self.untold

    @property
    def untold(self) -> Decimal:
        """What the engine does not know of yet, as of the last look."""
        return (self._total - self._told).quantize(SMALLEST_USD)

    def tell(self, amount: Decimal) -> None:
        """The engine knows of so much more."""
        self._told += amount

    def _add(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if not text:
            return
        try:
            amount = Decimal(text)
            is_amount = amount.is_finite() and amount >= 0 and self._total + amount < MAX_USD
        except InvalidOperation:
            is_amount = False
        if is_amount:
            self._total += amount
        else:
            self._wrong = self._wrong or text[:80]
            self._wrong_lines += 1

    @property
    def problem(self) -> str | None:
        """What was not counted, in a sentence."""
        if self._wrong is None:
            return None
        more = f" ({self._wrong_lines - 1} more like it)" if self._wrong_lines > 1 else ""
        return f"{self.path}: {self._wrong!r} is not an amount of dollars, such as 0.25, and was not counted{more}."

    def _read(self) -> bytes:
        try:
            # Nobody waits for the other end of a pipe that stands in the place of a file.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # mostly because nothing was said
            return b""
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return b""
            return os.pread(file, LONGEST_READ, self._position)
        except OSError:
            return b""
        finally:
            os.close(file)

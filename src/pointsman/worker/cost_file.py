"""The cost of an attempt: its work appends amounts in US dollars, one per line, to the file $POINTSMAN_COST.

An agent reports what it uses in its own stream; its runner adds that."""

from __future__ import annotations

import os
import stat
from decimal import Decimal, InvalidOperation

from pointsman.engine.budgets import Usage
from pointsman.engine.checks import MAX_TOKENS, MAX_USD, SMALLEST_USD
from pointsman.store.rows import ZERO_USD

MAX_READ = 65_536
"""How many bytes one call reads; the next call reads more."""


def is_amount(value: Decimal) -> bool:
    """Whether it is an amount in dollars that work can cost."""
    return value.is_finite() and 0 <= value < MAX_USD


class CostFile:
    """Read as it grows; each line counts once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._invalid: str | None = None
        """The first line that is not an amount."""
        self._invalid_lines = 0
        self._total = self._reported = ZERO_USD
        self._tokens_in = self._tokens_out = 0
        """Unreported, like `_estimated`."""
        self._estimated = False
        self._position = 0

    def read(self, *, final: bool = False) -> Usage:
        """Read new lines, and return what is unreported; unless `final`, an incomplete line is left for the next call."""
        while text := self._read_bytes():
            is_all = len(text) < MAX_READ
            end = len(text) if is_all and final else text.rfind(b"\n") + 1
            if not end and not is_all:
                end = len(text)  # no amount is that long
            self._position += end
            for line in text[:end].splitlines():
                self._add(line)
            if is_all or not final:
                break
        return self.unreported

    @property
    def unreported(self) -> Usage:
        """What the engine does not know of, as of the last `read`."""
        cost = (self._total - self._reported).quantize(SMALLEST_USD)
        return Usage(cost, self._tokens_in, self._tokens_out, is_estimated=self._estimated and bool(cost))

    def add(self, usage: Usage) -> None:
        """Add what the work has reported in another way."""
        if self._total + usage.cost_usd < MAX_USD:
            self._total += usage.cost_usd
            self._estimated |= usage.is_estimated
        self._tokens_in = min(self._tokens_in + usage.tokens_in, MAX_TOKENS)
        self._tokens_out = min(self._tokens_out + usage.tokens_out, MAX_TOKENS)

    def mark_reported(self, usage: Usage) -> None:
        self._reported += usage.cost_usd
        self._tokens_in -= usage.tokens_in
        self._tokens_out -= usage.tokens_out

    def _add(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if not text:
            return
        try:
            amount = Decimal(text)
            is_counted = is_amount(amount) and is_amount(self._total + amount)
        except InvalidOperation:
            is_counted = False
        if is_counted:
            self._total += amount
        else:
            self._invalid = self._invalid or text[:80]
            self._invalid_lines += 1

    @property
    def problem(self) -> str | None:
        """What was ignored, in a sentence."""
        if self._invalid is None:
            return None
        more = f" ({self._invalid_lines - 1} more like it)" if self._invalid_lines > 1 else ""
        return f"{self.path}: {self._invalid!r} is not an amount in dollars, such as 0.25, and was ignored{more}."

    def _read_bytes(self) -> bytes:
        try:
            # Neither a named pipe in the place of the file may block the worker, nor a link lead it to another file.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # usually the work reports no costs
            return b""
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return b""
            return os.pread(file, MAX_READ, self._position)
        except OSError:
            return b""
        finally:
            os.close(file)

"""Splits a stream of bytes into lines, without ever holding more than one line of the longest length in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LONGEST_LINE = 1 << 20


class Line(NamedTuple):
    """A line without its line break, or a piece of one that is too long."""

    data: bytes
    is_whole: bool = True
    ends: bool = True
    """A line break, or the end of the stream, follows."""


class LineSplitter:
    """A line that is longer than the limit comes in pieces, as it arrives."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0
        self._in_pieces = False

    def feed(self, data: bytes) -> Iterator[Line]:
        *complete, rest = data.split(b"\n")
        for part in complete:
            yield self._end(part)
        if not rest:
            return
        self._parts.append(rest)
        self._size += len(rest)
        if self._in_pieces or self._size > self._longest:
            self._in_pieces = True
            yield Line(self._take(), is_whole=False, ends=False)

    def end(self) -> Iterator[Line]:
        """The stream has ended: its last line may lack a line break."""
        if self._parts or self._in_pieces:
            yield self._end(b"")

    def _end(self, part: bytes) -> Line:
        self._parts.append(part)
        self._size += len(part)
        is_whole = not self._in_pieces and self._size <= self._longest
        self._in_pieces = False
        return Line(self._take(), is_whole=is_whole)

    def _take(self) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._size = [], 0
        return data

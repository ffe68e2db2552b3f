"""Bytes to lines, however long, torn or empty they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

LONGEST_LINE = 1 << 20
_CHUNK = 1 << 16


def read_lines(stream: BinaryIO, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Every line with its newline; of one that is longer than `longest`, only the first `longest` + 1 bytes."""
    readline = stream.readline
    while line := readline(longest + 1):
        if len(line) > longest and not line.endswith(b"\n"):
            while (rest := readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
        yield line

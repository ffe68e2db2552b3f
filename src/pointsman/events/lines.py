"""Splits bytes into lines, however long, incomplete or empty they are."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedIOBase

LONGEST_LINE = 1 << 20
_CHUNK = 1 << 16


def read_lines(stream: BufferedIOBase, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Every line with its newline; a line that is longer than `longest` is cut after `longest` + 1 bytes."""
    rest = b""
    while chunk := stream.read1(_CHUNK):
        first, *others = chunk.split(b"\n")
        if not others:
            rest = (rest + first)[: longest + 1]
            continue
        yield (rest + first)[: longest + 1] + b"\n"
        rest = others.pop()
        for line in others:
            yield line + b"\n"
    if rest:
        yield rest

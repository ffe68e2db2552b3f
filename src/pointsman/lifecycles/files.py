"""Reads the text of files that people write, and not more than anybody writes."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 1 << 20


def read_text(path: Path) -> str:
    """The text of a file in UTF-8; raises OSError, UnicodeDecodeError, or ValueError if it is too large."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")

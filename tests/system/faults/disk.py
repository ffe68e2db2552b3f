"""Disks that are small, and become full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A disk of its own, in memory; only root can have one."""
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True, capture_output=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> list[Path]:
    """Write until nothing fits any more, not even a little; what was written for that."""
    ballast = []
    for number, size in enumerate((1 << 20, 1 << 12)):
        ballast.append(disk / f"ballast-{number}")
        try:
            with ballast[-1].open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * size)
        except OSError:
            pass
    return ballast

"""Where the socket of a worker is: in a folder of its own, that only its user can enter."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

MAX_PATH_BYTES = 100
"""The address of a Unix socket has at most 108 bytes on Linux, 104 elsewhere. A project may be deeper than that."""
SHORT_PLACE = "/tmp"  # noqa: S108 - a folder in it is created anew, for this user only


def find_socket(worker_id: str) -> Path:
    """Nobody can guess its name before there is a worker, and everybody who knows the worker can find it to remove it."""
    name = f"pointsman-{worker_id[-16:]}/socket"
    place = tempfile.gettempdir()
    return Path(place if len(os.fsencode(place)) + len(name) < MAX_PATH_BYTES else SHORT_PLACE, name)


def remove_socket(worker_id: str) -> None:
    """Remove what a worker has left there."""
    path = find_socket(worker_id)
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()

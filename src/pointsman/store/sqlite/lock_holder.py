"""Who holds the lock of writers of a SQLite file: a process that was stopped within a transaction keeps all others waiting."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LOCKS = Path("/proc/locks")
WRITE_LOCK = "120"
"""The byte of the `-shm` file that a writer locks (WAL_WRITE_LOCK in SQLite's wal.c)."""


def find_lock_holder(database: str) -> int | None:
    """The process that is writing to a database with a write-ahead log; None if there is none, or the system does not tell.

    Asking the file itself (F_GETLK) would need a descriptor, and closing that would release all locks of this process.
    """
    with suppress(OSError):
        inode = str(os.stat(f"{database}-shm").st_ino)  # noqa: PTH116 - the path may be any text
        for line in LOCKS.read_text().splitlines():
            arrow, kind, _, mode, pid, place, first, _ = line.split()[-8:]
            is_waiting = arrow == "->"
            if not is_waiting and (kind, mode, first) == ("POSIX", "WRITE", WRITE_LOCK) and place.rpartition(":")[2] == inode:
                return int(pid)
    return None


def advise(pid: int) -> str:
    """What a person can do about a process that holds the lock for too long."""
    if _is_stopped(pid):
        return (
            f"Process {pid} holds the lock and is stopped. Continue it: kill -CONT {pid}. "
            f"Or end it: kill -9 {pid}. Nothing that was committed is lost."
        )
    return f"Process {pid} holds the lock. Try again, or stop that process."


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False

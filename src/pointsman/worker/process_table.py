"""The processes of this machine as /proc lists them; elsewhere than on Linux, none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

ENDED = frozenset("ZX")
"""States of a process that is over, and only waits for its parent to ask."""


class Process(NamedTuple):
    """One line of the table; `pid` and `started_ticks` together are never given twice."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    threads: int
    started_ticks: int

    @property
    def is_over(self) -> bool:
        """A process whose first thread has ended looks like one that is over, while its other threads go on."""
        return self.state in ENDED and self.threads <= 1


def read_process(pid: int) -> Process | None:
    """What the table says of it now; None when it is gone."""
    line = _read(f"/proc/{pid}/stat")
    if not line:
        return None
    # The name stands in parentheses and may hold any byte, parentheses too: what follows the last one is ours.
    fields = line[line.rindex(b")") + 2 :].split()
    parent, group, session, threads, started_ticks = (int(fields[index]) for index in (1, 2, 3, 17, 19))
    return Process(pid, parent, group, session, chr(fields[0][0]), threads, started_ticks)


def list_processes() -> Iterator[Process]:
    try:
        with os.scandir("/proc") as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError:
        return
    for pid in pids:
        process = read_process(pid)
        if process is not None:
            yield process


def carries(pid: int, marker: str) -> bool:
    """Whether every entry of the marker stands in the environment that the process was started with."""
    environ = b"\0" + _read(f"/proc/{pid}/environ") + b"\0"
    return all(b"\0" + entry.encode() + b"\0" in environ for entry in marker.split("\0"))


def list_own_children() -> list[int] | None:
    """Children of the main thread, to which all orphans come as well; None when the kernel does not say.

    Children of other threads are not ours to judge: code that runs in a thread has started them, and waits for them.
    """
    own = os.getpid()
    try:
        descriptor = os.open(f"/proc/{own}/task/{own}/children", os.O_RDONLY)
    except OSError:
        return None
    try:
        return [int(pid) for pid in _read_all(descriptor).split()]
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """Nothing, when the process has gone or belongs to somebody else."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return _read_all(descriptor)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    content = os.read(descriptor, 16_384)
    if len(content) < 2048:
        return content  # /proc hands out about a page as long as there is more
    while more := os.read(descriptor, 65_536):
        content += more
    return content

"""The processes of this machine, from /proc; empty on systems other than Linux."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

ENDED = frozenset("ZX")
"""States of a process that has ended and waits to be reaped."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One process; `pid` and `started_ticks` together identify it."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    threads: int
    started_ticks: int

    @property
    def has_ended(self) -> bool:
        """A process whose first thread has ended looks dead, but its other threads may run."""
        return self.state in ENDED and self.threads <= 1


def read_process(pid: int) -> Process | None:
    """The process with this number; None if there is none."""
    line = _read(f"/proc/{pid}/stat")
    if not line:
        return None
    # The name is in parentheses and may contain any byte, parentheses too: the fields follow the last one.
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
    """Whether the process was started with every entry of the marker in its environment."""
    environ = b"\0" + _read(f"/proc/{pid}/environ") + b"\0"
    return all(b"\0" + entry.encode() + b"\0" in environ for entry in marker.split("\0"))


def read_limit(pid: int, name: str) -> str | None:
    """A resource limit of a process, the soft one; None if the process has gone."""
    for line in _read(f"/proc/{pid}/limits").decode("ascii", "replace").splitlines():
        if line.startswith(name):
            return line.removeprefix(name).split()[0]
    return None


def read_memory(pid: int) -> int:
    """How many bytes of memory a process uses, without its share of files and of shared memory; 0 if it has gone."""
    pages = _read(f"/proc/{pid}/statm").split()
    return (int(pages[1]) - int(pages[2])) * PAGE_BYTES if pages else 0


def leads_with_pipe(pid: int) -> bool:
    """Whether it leads a session, reads nothing and writes to a pipe: as `spawn` starts processes, and hardly anybody else."""
    process = read_process(pid)
    try:
        streams = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1)]  # noqa: PTH115 - a link to no path
    except OSError:
        return False
    return process is not None and process.session == pid and streams[0] == os.devnull and streams[1].startswith("pipe:")


def list_own_children() -> list[int] | None:
    """The children of the main thread, which also adopts all orphans; None if the kernel does not tell.

    Children of other threads are left alone: the code in that thread has started them and waits for them.
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
    """Empty if the process has gone or belongs to another user."""
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
        return content  # /proc returns about a page per read while there is more
    while more := os.read(descriptor, 65_536):
        content += more
    return content

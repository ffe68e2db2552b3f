"""Holds together what a worker process starts, so that all of it can be ended after the worker was killed.

cgroup   a cgroup of its own (version 2), where the worker may create one: no process leaves it, the kernel kills all at once
mark     elsewhere on Linux, a number in a resource limit that affects no ordinary process: every descendant inherits it,
         whatever it does to its parents, its session and its environment
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from hashlib import sha256
from pathlib import Path
from typing import Literal

from msgspec import Struct

from pointsman.worker.process_table import Process, list_processes, read_limit
from pointsman.world import Sleep

MARKED_LIMIT = "Max realtime timeout"
"""RLIMIT_RTTIME: how long a thread with real-time priority may compute without a pause, in microseconds."""
LOWEST_MARK = 1 << 61
"""More than 70,000 years."""
DELEGATED = {"user.delegate", "trusted.delegate"}
"""What systemd writes on a cgroup that its processes may divide."""
MAX_ROUNDS = 400
PAUSE_SECONDS = 0.005


class Containment(Struct, frozen=True):
    """What holds the processes of a worker together."""

    cgroup: str | None = None
    mark: int | None = None

    @property
    def kind(self) -> Literal["cgroup", "mark", "none"]:
        return "cgroup" if self.cgroup else "mark" if self.mark else "none"


NOTHING = Containment()


def contain(worker_id: str) -> Containment:
    """Hold together what this process starts from now on."""
    if sys.platform != "linux":
        return NOTHING
    return Containment(_enter_cgroup(_name_cgroup(worker_id)), _set_mark(worker_id))


def release(containment: Containment) -> None:
    """Undo `contain`, when the worker ends normally and none of its processes is left."""
    if sys.platform == "linux" and containment.mark:
        resource.setrlimit(resource.RLIMIT_RTTIME, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_RTTIME)[1]))
    if containment.cgroup:
        folder = Path(containment.cgroup)
        with contextlib.suppress(OSError):  # a process that cannot be killed keeps it
            (folder.parent / "cgroup.procs").write_text("0")
            folder.rmdir()


async def kill_cgroup(containment: Containment, worker_id: str, sleep: Sleep) -> None:
    """Kill everything in the cgroup of a dead worker, and remove it."""
    folder, own = Path(containment.cgroup or "/"), _find_own_cgroup()
    # The path comes from a file. Only a cgroup that was made for this worker is killed, and not if we are in it.
    if folder.name != _name_cgroup(worker_id) or own is None or own.is_relative_to(folder):
        return
    with contextlib.suppress(OSError):  # another worker has removed it
        (folder / "cgroup.kill").write_text("1")
        for _ in range(MAX_ROUNDS):
            if "populated 0" in (folder / "cgroup.events").read_text():
                break
            await sleep(PAUSE_SECONDS)
        _remove_cgroup(folder)


def _remove_cgroup(folder: Path) -> None:
    """With those in it: the work may have divided it."""
    for inner in sorted(folder.glob("**/"), reverse=True):
        inner.rmdir()


def find_marked(containment: Containment, worker_id: str) -> list[Process]:
    """The living processes that carry the mark of this worker."""
    if containment.mark != _make_mark(worker_id):
        return []
    mark = str(containment.mark)
    return [each for each in list_processes() if not each.has_ended and read_limit(each.pid, MARKED_LIMIT) == mark]


def _name_cgroup(worker_id: str) -> str:
    return f"pointsman-{worker_id}"


def _enter_cgroup(name: str) -> str | None:
    own = _find_own_cgroup()
    if own is None or not _is_delegated(own):
        return None
    folder = own / name
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        (folder / "cgroup.kill").stat()  # since Linux 5.14
        (folder / "cgroup.procs").write_text("0")
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return str(folder)


def _find_own_cgroup() -> Path | None:
    """The folder of this process in the hierarchy of version 2."""
    try:
        groups = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
        own = next(line.removeprefix("0::") for line in groups if line.startswith("0::"))
        root, folder = next(line.split()[3:5] for line in mounts if " - cgroup2 " in line)
        return Path(folder) / Path(own).relative_to(root)
    except (OSError, StopIteration, ValueError):
        return None


def _is_delegated(folder: Path) -> bool:
    """Whether we may divide a cgroup. Root may write to all of them, so it also needs a sign that this one was given to it."""
    if not os.access(folder, os.W_OK) or sys.platform != "linux":
        return False
    return os.geteuid() != 0 or folder.is_mount() or not DELEGATED.isdisjoint(os.listxattr(folder))


def _set_mark(worker_id: str) -> int | None:
    """Only the soft limit, which a worker within a task can set again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    if soft != resource.RLIM_INFINITY and soft < LOWEST_MARK:
        return None  # this limit is meant
    mark = _make_mark(worker_id)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard))
    except (OSError, ValueError):
        return None
    return mark


def _make_mark(worker_id: str) -> int:
    return LOWEST_MARK + int.from_bytes(sha256(worker_id.encode()).digest()[:6])

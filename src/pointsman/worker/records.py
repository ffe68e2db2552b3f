"""Records of the workers of a project: one file each, so that the next worker can end the processes of a dead one.

    .pointsman/workers/<worker_id>.jsonl
    {"worker_id": …, "host": …, "boot": …, "pid": …, "started_ticks": …, "run_id": …}   the worker itself
    {"pid": …, "started_ticks": …, "task_id": …, "epoch": …}                  each process that it started

Lines are appended, since replacing a file takes much longer than starting a process; now and then the file is rewritten.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from pointsman.worker import processes
from pointsman.worker.containment import NOTHING, Containment, find_marked, kill_cgroup
from pointsman.worker.process_table import Process, carries, leads_with_pipe, list_processes, read_process
from pointsman.worker.socket_folder import remove_socket
from pointsman.world import Sleep


class Child(Struct, frozen=True):
    pid: int
    started_ticks: int
    task_id: str
    epoch: int


class WorkerRecord(Struct, frozen=True):
    worker_id: str
    host: str
    boot: str
    """A pid is valid only within one boot and one pid namespace."""
    pid: int
    started_ticks: int
    containment: Containment = NOTHING
    run_id: str | None = None
    """The only run that it serves."""


MAX_LINES = 1000
"""Then the file is rewritten with the processes that still run."""


class Record:
    """The record of this worker."""

    def __init__(self, directory: Path, worker_id: str, containment: Containment = NOTHING, run_id: str | None = None) -> None:
        own = read_process(os.getpid())
        self._path = _path(directory, worker_id)
        self._children: dict[tuple[str, int], Child] = {}
        self._record = WorkerRecord(
            worker_id=worker_id,
            host=socket.gethostname(),
            boot=_read_boot(),
            pid=os.getpid(),
            started_ticks=own.started_ticks if own else 0,
            containment=containment,
            run_id=run_id,
        )
        for folder in reversed(self._path.parents[:2]):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._file = self._rewrite()
        self._lines = 1

    def add(self, pid: int, started_ticks: int, task_id: str, epoch: int) -> None:
        child = Child(pid, started_ticks, task_id, epoch)
        self._children[task_id, epoch] = child
        with contextlib.suppress(OSError):  # a full disk: the environment of the process still identifies it
            os.write(self._file, msgspec.json.encode(child) + b"\n")
            self._lines += 1
            if self._lines > MAX_LINES:
                before, self._file = self._file, self._rewrite()
                self._lines = 1 + len(self._children)
                os.close(before)

    def remove(self, task_id: str, epoch: int) -> None:
        """Its line may stay: the start time tells whether the pid has been reused."""
        self._children.pop((task_id, epoch), None)

    def close(self) -> None:
        """This worker ends normally."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def _rewrite(self) -> int:
        """Replace the file atomically. No fsync: when the machine loses power, the processes are gone, too."""
        beside = self._path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, b"".join(msgspec.json.encode(each) + b"\n" for each in (self._record, *self._children.values())))
            beside.replace(self._path)
        except BaseException:
            os.close(file)
            raise
        return file


async def end_predecessors(directory: Path, sleep: Sleep) -> list[str]:
    """Kill the processes of dead workers of this machine, and return the ids of these workers.

    Their tasks will be claimed again, so there is no grace period. Call `forget` when the engine knows.
    """
    dead: list[str] = []
    if not processes.HAS_TABLE:
        return dead  # unknown which workers are dead: their leases will expire
    for record, children in _read_records(directory):
        match _judge(record):
            case "dead":
                await kill_cgroup(record.containment, record.worker_id, sleep)
                await processes.kill_all(partial(_find_left, record, children), sleep)
                dead.append(record.worker_id)
            case "gone":
                dead.append(record.worker_id)
    return dead


def find_dead(directory: Path) -> set[str]:
    """The dead workers of this machine, even if their leases have not expired."""
    if not processes.HAS_TABLE:
        return set()
    return {record.worker_id for record, _ in _read_records(directory) if _judge(record) in ("dead", "gone")}


def find_bound(directory: Path) -> dict[str, str]:
    """By worker of this project that serves only one run: that run."""
    return {record.worker_id: record.run_id for record, _ in _read_records(directory) if record.run_id}


def list_protections(directory: Path) -> dict[str, str]:
    """By worker of this machine: what ends its processes if it is killed."""
    found = ((record, _judge(record)) for record, _ in _read_records(directory))
    return {record.worker_id: record.containment.kind for record, verdict in found if verdict == "alive"}


def _judge(record: WorkerRecord) -> Literal["alive", "dead", "gone", "elsewhere"]:
    boot = _read_boot()
    if record.host != socket.gethostname():
        return "elsewhere"
    if record.boot != boot:
        # Nothing is left of another boot; the processes of another container are not visible.
        return "elsewhere" if record.boot.split()[0] == boot.split()[0] else "gone"
    return "dead" if processes.is_gone(record.pid, record.started_ticks) else "alive"


def forget(directory: Path, worker_ids: Iterable[str]) -> None:
    for worker_id in worker_ids:
        remove_socket(worker_id)
        _path(directory, worker_id).unlink(missing_ok=True)


def _path(directory: Path, worker_id: str) -> Path:
    return directory / ".pointsman" / "workers" / f"{worker_id}.jsonl"


@cache
def _read_boot() -> str:
    """The boot and the pid namespace: two containers may share a host name and a directory.

    Read once: if it could not be read later on, for want of a descriptor, living workers would seem to be of another boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


def _read_records(directory: Path) -> list[tuple[WorkerRecord, list[Child]]]:
    found: list[tuple[WorkerRecord, list[Child]]] = []
    for path in sorted((directory / ".pointsman" / "workers").glob("*.jsonl")):
        # An unreadable file was cut by a loss of power, or belongs to a worker that is ending.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            first, *lines = _read_own(path).splitlines() or [b""]
            found.append((msgspec.json.decode(first, type=WorkerRecord), _read_children(lines)))
    return found


def _read_own(path: Path) -> bytes:
    """The content of a file that nobody but us can have written; others must not choose which processes we kill."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{path} may be written by others")
        return file.read()


def _read_children(lines: list[bytes]) -> list[Child]:
    children: list[Child] = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # the last line, if the worker died while writing it
            children.append(msgspec.json.decode(line, type=Child))
    return children


def _find_left(record: WorkerRecord, children: list[Child]) -> list[Process]:
    """By the id of the worker in their environment, by its mark, and by the record."""
    found = {each.pid: each for each in list_processes() if each.started_ticks >= record.started_ticks and not each.has_ended}
    found.pop(os.getpid(), None)
    left = {pid: each for pid, each in found.items() if carries(pid, f"POINTSMAN_WORKER_ID={record.worker_id}")}
    left |= {each.pid: each for each in find_marked(record.containment, record.worker_id) if each.pid in found}
    for child in children:
        # The leader still lives: its pid has not been reused. The record alone is no proof that it was started by a worker.
        if processes.is_alive(child.pid, child.started_ticks) and _is_ours(child.pid, record.worker_id):
            marker = processes.marker_of(child.task_id, child.epoch)
            left |= {each.pid: each for each in processes.find_tree(child.pid, marker, child.started_ticks)}
    return list(left.values())


def _is_ours(pid: int, worker_id: str) -> bool:
    """Whether a worker has started it: it carries the id, or has cleared its environment but is still as workers start it."""
    return carries(pid, f"POINTSMAN_WORKER_ID={worker_id}") or leads_with_pipe(pid)

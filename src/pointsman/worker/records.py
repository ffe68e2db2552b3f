"""Who works here: one file a worker, so that a successor can end what a dead one has left running.

    .pointsman/workers/<worker_id>.jsonl
    {"worker_id": …, "host": …, "boot": …, "pid": …, "started_ticks": …}      the worker itself, then
    {"pid": …, "started_ticks": …, "task_id": …, "epoch": …}                  each process that it started

Lines are added, since to replace a file takes many times as long as to start a process; now and then it is written anew.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from pointsman.worker import processes
from pointsman.worker.process_table import Process, carries, list_processes, read_process
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
    """Numbers of processes mean something only within one boot and one namespace."""
    pid: int
    started_ticks: int


MOST_LINES = 1000
"""Then the file is written anew, with those that still run."""


class Record:
    """The file of this worker."""

    def __init__(self, directory: Path, worker_id: str) -> None:
        own = read_process(os.getpid())
        self._path = _path(directory, worker_id)
        self._children: dict[tuple[str, int], Child] = {}
        self._record = WorkerRecord(
            worker_id=worker_id,
            host=socket.gethostname(),
            boot=_read_boot(),
            pid=os.getpid(),
            started_ticks=own.started_ticks if own else 0,
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._write_anew()
        self._lines = 1

    def add(self, pid: int, started_ticks: int, task_id: str, epoch: int) -> None:
        child = Child(pid, started_ticks, task_id, epoch)
        self._children[task_id, epoch] = child
        with contextlib.suppress(OSError):  # without room for it: the environment of the process still tells whose it is
            os.write(self._file, msgspec.json.encode(child) + b"\n")
            self._lines += 1
            if self._lines > MOST_LINES:
                before, self._file = self._file, self._write_anew()
                self._lines = 1 + len(self._children)
                os.close(before)

    def remove(self, task_id: str, epoch: int) -> None:
        """Its line may stay: a number that is no longer used, or by somebody else, is told by when it was started."""
        self._children.pop((task_id, epoch), None)

    def close(self) -> None:
        """This worker ends well, and leaves nothing behind."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def _write_anew(self) -> int:
        """All or nothing. A machine that loses power loses the processes as well, so nothing need reach the disk."""
        beside = self._path.with_suffix(".new")
        beside.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (self._record, *self._children.values())))
        beside.replace(self._path)
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


async def end_predecessors(directory: Path, sleep: Sleep) -> list[str]:
    """Kill what dead workers of this machine have left running, and tell which workers are dead.

    Their work is claimed anew, so there is no grace: two of it at once is worse. `forget` them when the engine knows.
    """
    dead: list[str] = []
    if not processes.HAS_TABLE:
        return dead  # who is dead cannot be told: their leases will
    for record, children in _read_records(directory):
        match _judge(record):
            case "dead":
                await processes.kill_all(partial(_find_left, record, children), sleep)
                dead.append(record.worker_id)
            case "long gone":
                dead.append(record.worker_id)
    return dead


def find_dead(directory: Path) -> set[str]:
    """The workers of this machine that are known to be gone, whatever their leases say."""
    if not processes.HAS_TABLE:
        return set()
    return {record.worker_id for record, _ in _read_records(directory) if _judge(record) in ("dead", "long gone")}


def _judge(record: WorkerRecord) -> Literal["alive", "dead", "long gone", "elsewhere"]:
    boot = _read_boot()
    if record.host != socket.gethostname():
        return "elsewhere"
    if record.boot != boot:
        # Of another boot nothing is left; in another container of the same name we see nothing.
        return "elsewhere" if record.boot.split()[0] == boot.split()[0] else "long gone"
    return "alive" if processes.is_alive(record.pid, record.started_ticks) else "dead"


def forget(directory: Path, worker_ids: Iterable[str]) -> None:
    for worker_id in worker_ids:
        _path(directory, worker_id).unlink(missing_ok=True)


def _path(directory: Path, worker_id: str) -> Path:
    return directory / ".pointsman" / "workers" / f"{worker_id}.jsonl"


def _read_boot() -> str:
    """Which boot, and which namespace of process numbers: two containers may share a name and a directory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


def _read_records(directory: Path) -> list[tuple[WorkerRecord, list[Child]]]:
    found: list[tuple[WorkerRecord, list[Child]]] = []
    for path in sorted((directory / ".pointsman" / "workers").glob("*.jsonl")):
        # One that cannot be read was torn by a loss of power, or belongs to a worker that ends just now.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            first, *lines = path.read_bytes().splitlines() or [b""]
            found.append((msgspec.json.decode(first, type=WorkerRecord), _read_children(lines)))
    return found


def _read_children(lines: list[bytes]) -> list[Child]:
    children: list[Child] = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # the last one, when its writer died over it
            children.append(msgspec.json.decode(line, type=Child))
    return children


def _find_left(record: WorkerRecord, children: list[Child]) -> list[Process]:
    """By the id of the worker, which all that it started carries, and by what it wrote down."""
    found = {each.pid: each for each in list_processes() if each.started_ticks >= record.started_ticks and not each.is_over}
    found.pop(os.getpid(), None)
    left = {pid: each for pid, each in found.items() if carries(pid, f"POINTSMAN_WORKER_ID={record.worker_id}")}
    for child in children:
        # The leader of a session that is still there: its number has not gone to anybody else.
        if processes.is_alive(child.pid, child.started_ticks):
            marker = processes.marker_of(child.task_id, child.epoch)
            left |= {each.pid: each for each in processes.find_tree(child.pid, marker, child.started_ticks)}
    return list(left.values())

"""The only module that starts processes; also finds, suspends and ends whole process trees.

A process may leave its group (`setpgid`), its session (`setsid`) and its parent (double fork). It is still found:

    by session and group    if it never left
    by parent               if it left, while its parent lives
    by environment          if it lost its parent: every descendant inherits POINTSMAN_TASK_ID and POINTSMAN_EPOCH
    by elimination          if it cleared its environment, while no other task runs (only in a worker process, which is the
                            subreaper of its descendants)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pointsman.worker.process_table import Process, carries, list_own_children, list_processes, read_memory, read_process
from pointsman.world import Sleep

RESERVED_DESCRIPTORS = 64
HAS_TABLE = Path("/proc/self/stat").exists()
PR_SET_CHILD_SUBREAPER = 36
MAX_ROUNDS = 400
"""Rounds of killing before giving up on processes that the kernel cannot end (those that wait for a dead disk)."""


@dataclass(slots=True)
class _Children:
    """The children that this process has started."""

    running: dict[int, Spawned] = field(default_factory=dict)
    adopts_orphans: bool = False


_children = _Children()


@dataclass(slots=True, eq=False)
class Spawned:
    """A process that leads its own session; it keeps its pid until `reap`."""

    pid: int
    started_ticks: int
    stdout: int
    stderr: int | None
    pidfd: int | None
    handle: subprocess.Popen[bytes]


def marker_of(task_id: str, epoch: int) -> str:
    """The entries in the environment of every process of an attempt, separated by NUL."""
    return f"POINTSMAN_TASK_ID={task_id}\0POINTSMAN_EPOCH={epoch}"


def spawn(
    argv: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], separate_stderr: bool, stdin: int | None = None
) -> Spawned:
    """Start a program in its own session, without input unless a descriptor is given; raises OSError.

    No Python code runs between fork and exec, so that Popen can use vfork, whose cost does not depend on our size.
    """
    stdout, stdout_of_child = os.pipe()
    stderr, stderr_of_child = None, stdout_of_child
    try:
        if separate_stderr:
            stderr, stderr_of_child = os.pipe()
        _keep_reserve(max(stdout_of_child, stderr_of_child))
        handle = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout_of_child,
            stderr=stderr_of_child,
            close_fds=True,
            start_new_session=True,
        )
    except BaseException:
        _close(stdout, stderr)
        raise
    finally:
        _close(*{stdout_of_child, stderr_of_child})
    # Even if it has ended already, it keeps its pid until it is reaped.
    process = read_process(handle.pid)
    spawned = Spawned(handle.pid, process.started_ticks if process else 0, stdout, stderr, _open_pidfd(handle.pid), handle)
    _children.running[handle.pid] = spawned
    return spawned


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that has run to its end."""

    code: int
    out: str
    err: str


def run_to_end(argv: Sequence[str], *, cwd: str | Path, env: Mapping[str, str]) -> Ran:
    """Run a program without input and wait for it, in the session of this process; raises OSError.

    Not inside a worker, which looks after all its children: there, a process of the attempt calls this.
    """
    ended = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return Ran(ended.returncode, ended.stdout.decode("utf-8", "surrogateescape"), ended.stderr.decode("utf-8", "replace"))


def start_detached(argv: Sequence[str], output: Path) -> int:
    """Start a program that outlives this one, in its own session, without input; its output is appended to a file. Its pid."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), append, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(argv[0], [*argv], os.environ, file_actions=streams, setsid=True)


def find_exit_code(pid: int) -> int | None:
    """Of a child of this process that was started detached; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _keep_reserve(newest: int) -> None:
    """Raise OSError before the last descriptors are used: those are for results, logs and costs.

    The system gives out the lowest free number, so a high one says how many are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and newest >= limit - min(RESERVED_DESCRIPTORS, limit // 4):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _open_pidfd(pid: int) -> int | None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not supported, or no descriptor left: wait in a thread
            return os.pidfd_open(pid)
    return None


def _close(*descriptors: int | None) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


async def wait_for_end(spawned: Spawned) -> None:
    """Wait until the process ends; with pidfds, it keeps its pid until it is reaped."""
    loop = asyncio.get_running_loop()
    if spawned.pidfd is None:
        await loop.run_in_executor(None, spawned.handle.wait)
        return
    ended = loop.create_future()
    loop.add_reader(spawned.pidfd, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(spawned.pidfd)


def reap(spawned: Spawned) -> int | None:
    """Its exit code, or the negative number of the signal that killed it; None if another part of this process reaped it."""
    code = spawned.handle.returncode
    if code is None:
        # Popen would report a lost exit code as 0.
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(spawned.pid, 0)[1])
        spawned.handle.returncode = code or 0
    _children.running.pop(spawned.pid, None)
    if spawned.pidfd is not None:
        os.close(spawned.pidfd)
        spawned.pidfd = None
    return code


async def can_start() -> bool:
    """Whether this process can start another one, which does nothing."""
    try:
        spawned = spawn(("true",), cwd="/", env={}, separate_stderr=False)
    except OSError:
        return False
    await wait_for_end(spawned)
    _close(spawned.stdout, spawned.stderr)
    reap(spawned)
    return True


def measure_memory() -> int:
    """How many bytes of memory this process and its descendants use."""
    children: dict[int, list[int]] = {}
    for process in list_processes():
        children.setdefault(process.parent, []).append(process.pid)
    waiting, used = [os.getpid()], 0
    while waiting:
        pid = waiting.pop()
        used += read_memory(pid)
        waiting += children.get(pid, ())
    return used


def become_subreaper() -> None:
    """Adopt all orphaned descendants of this process, where the system supports it."""
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
            _children.adopts_orphans = True


def find_tree(pid: int, marker: str, started_ticks: int | None = None) -> list[Process]:
    """The living processes of the attempt whose leader is `pid`."""
    processes = {process.pid: process for process in list_processes()}
    processes.pop(os.getpid(), None)
    leader = processes.get(pid)
    # After the leader is reaped, its pid may be reused: then only the environment counts.
    is_recycled = leader is not None and started_ticks is not None and leader.started_ticks != started_ticks
    since = started_ticks or (leader.started_ticks if leader else 0)
    children: dict[int, list[Process]] = {}
    found: dict[int, Process] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
        if process.started_ticks < since or process.has_ended:
            continue
        if (not is_recycled and pid in {process.pid, process.group, process.session}) or carries(process.pid, marker):
            found[process.pid] = process
    if not is_recycled:
        found |= {process.pid: process for process in children.get(pid, ())}
    waiting = list(found.values())
    while waiting:
        for child in children.get(waiting.pop().pid, ()):
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child)
    return [process for process in found.values() if not process.has_ended]


def find_left_behind(spawned: Spawned, marker: str) -> list[Process]:
    """The processes that an ended, unreaped process has left running; fast if there are none."""
    if _children.adopts_orphans and not _has_orphans():
        return []
    return _find_all(spawned, marker)


def _has_orphans() -> bool:
    if _list_orphans() == []:
        return False
    reap_strays(())
    return _list_orphans() != []


def _list_orphans() -> list[int] | None:
    """Children that this process did not start; None if the kernel does not tell."""
    children = list_own_children()
    return None if children is None else [pid for pid in children if pid not in _children.running]


def _find_all(spawned: Spawned, marker: str) -> list[Process]:
    tree = find_tree(spawned.pid, marker, spawned.started_ticks)
    if tree or not _children.adopts_orphans or _children.running.keys() - {spawned.pid}:
        return tree
    return [
        each
        for each in map(read_process, _list_orphans() or ())
        if each and not each.has_ended and each.started_ticks >= spawned.started_ticks
    ]


def send(processes: Iterable[Process], *signals: signal.Signals) -> None:
    """Signal each process, unless its pid has been reused."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _send_one(process, signals)


def _send_one(process: Process, signals: Sequence[signal.Signals]) -> None:
    if sys.platform == "linux" and (pidfd := _open_pidfd(process.pid)) is not None:
        try:
            if is_alive(process.pid, process.started_ticks):
                for number in signals:
                    signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
    elif is_alive(process.pid, process.started_ticks):
        for number in signals:
            os.kill(process.pid, number)


def is_alive(pid: int, started_ticks: int) -> bool:
    """Whether the process with this pid is the one that was started then, and has not ended."""
    process = read_process(pid)
    return process is not None and process.started_ticks == started_ticks and not process.has_ended


def is_gone(pid: int, started_ticks: int) -> bool:
    """Whether that process has certainly ended; one that cannot be read, for want of a descriptor, may live."""
    process = read_process(pid)
    if process is not None:
        return process.started_ticks != started_ticks or process.has_ended
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


async def end_tree(spawned: Spawned, marker: str, grace_seconds: float, sleep: Sleep) -> list[Process]:
    """Send SIGTERM to all, wait for the grace period, then kill until none is left; returns those that cannot be killed."""
    find = partial(_find_all, spawned, marker)
    signaled = _send_to_group(spawned, signal.SIGTERM, signal.SIGCONT)
    tree = find()
    # Once each: some programs treat a second SIGTERM as a request to quit at once.
    send((each for each in tree if not signaled or each.group != spawned.pid), signal.SIGTERM, signal.SIGCONT)
    waited, pause = 0.0, 0.005
    while (tree or _leads_unseen(spawned)) and waited < grace_seconds:
        await sleep(pause)
        waited, pause = waited + pause, min(pause * 1.5, 0.1)
        # Checking known processes is far cheaper than listing all.
        tree = [each for each in tree if is_alive(each.pid, each.started_ticks)]
        tree = tree or find()
        reap_strays(())
    if not HAS_TABLE:
        _send_to_group(spawned, signal.SIGKILL)
    return await kill_all(find, sleep)


def _leads_unseen(spawned: Spawned) -> bool:
    """Without /proc: whether the leader still runs."""
    return not HAS_TABLE and spawned.pid in _children.running and spawned.handle.returncode is None


async def kill_all(find: Callable[[], list[Process]], sleep: Sleep) -> list[Process]:
    """Kill in rounds until no process is found."""
    pause = 0.002
    for _ in range(MAX_ROUNDS):
        tree = kill_once(find)
        reap_strays(())
        if not tree:
            return []
        await sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return find()


def kill_once(find: Callable[[], list[Process]]) -> list[Process]:
    """Kill all current processes. They are stopped first, since a fork bomb would fork faster than we kill."""
    tree = _halt(find)
    send(tree, signal.SIGKILL)
    return tree


def send_to_leader(spawned: Spawned, number: signal.Signals) -> None:
    """Signal the process itself, unless it was reaped."""
    if spawned.pid in _children.running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(spawned.pid, number)


def kill_tree(spawned: Spawned, marker: str) -> None:
    """Kill without waiting for the result."""
    _send_to_group(spawned, signal.SIGKILL)
    kill_once(partial(_find_all, spawned, marker))


def _halt(find: Callable[[], list[Process]]) -> list[Process]:
    halted: dict[tuple[int, int], Process] = {}
    for _ in range(MAX_ROUNDS):
        fresh = {(each.pid, each.started_ticks): each for each in find()}
        fresh = {key: each for key, each in fresh.items() if key not in halted}
        if not fresh:
            break
        send(fresh.values(), signal.SIGSTOP)
        halted |= fresh
    return list(halted.values())


def _send_to_group(spawned: Spawned, *signals: signal.Signals) -> bool:
    """Signal the group while its leader is unreaped, so that its number is not reused; whether that was so."""
    if spawned.pid not in _children.running:
        return False
    for number in signals:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(spawned.pid, number)
    return True


def suspend_tree(spawned: Spawned, marker: str) -> None:
    _send_to_group(spawned, signal.SIGSTOP)
    _halt(partial(_find_all, spawned, marker))


def resume_tree(spawned: Spawned, marker: str) -> None:
    send(_find_all(spawned, marker), signal.SIGCONT)
    _send_to_group(spawned, signal.SIGCONT)


def reap_strays(known_pids: Collection[int]) -> list[int]:
    """Reap adopted orphans that have ended; does nothing unless this process is a subreaper."""
    if not _children.adopts_orphans:
        return []
    reaped: list[int] = []
    for pid in _list_orphans() or ():
        if pid not in known_pids:
            with contextlib.suppress(ChildProcessError):
                reaped += [pid] if os.waitpid(pid, os.WNOHANG)[0] else []
    return reaped


def end_strays() -> None:
    """Kill every adopted orphan before this process exits."""
    while _children.adopts_orphans:
        living = [each for each in map(read_process, _list_orphans() or ()) if each and not each.has_ended]
        if not living:
            break
        send(living, signal.SIGSTOP)
        send(living, signal.SIGKILL)
        for process in living:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
    reap_strays(())

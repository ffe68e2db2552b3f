"""Processes: the only place that starts them, and where whole trees of them are found, suspended and ended.

A task may leave its group (`setpgid`), its session (`setsid`) and its parent (double fork). It is found all the same:

    by session and group    what never left
    by parent               what left, while its parent lives
    by environment          what left and lost its parent: POINTSMAN_TASK_ID and POINTSMAN_EPOCH go down to every descendant
    by elimination          what threw away its environment, too, when no other task runs (only in a process of our own, which
                            has become the parent of all orphans below it)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pointsman.worker.process_table import Process, carries, list_own_children, list_processes, read_process
from pointsman.world import Sleep

HAS_TABLE = Path("/proc/self/stat").exists()
PR_SET_CHILD_SUBREAPER = 36
MOST_ROUNDS = 400
"""Rounds of killing before we give up on what the kernel itself cannot end (a process that waits for a dead disk)."""


@dataclass(slots=True)
class _Household:
    """Which children are known to this process."""

    running: dict[int, Spawned] = field(default_factory=dict)
    adopts_orphans: bool = False


_household = _Household()


@dataclass(slots=True, eq=False)
class Spawned:
    """A process of ours, at the head of its own session; it holds its number until `reap`."""

    pid: int
    started_ticks: int
    stdout: int
    stderr: int | None
    pidfd: int | None
    handle: subprocess.Popen[bytes]


def marker_of(task_id: str, epoch: int) -> str:
    """What the environment of everything that an attempt starts carries, one entry a line of NUL."""
    return f"POINTSMAN_TASK_ID={task_id}\0POINTSMAN_EPOCH={epoch}"


def spawn(argv: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], separate_stderr: bool) -> Spawned:
    """Start a program in a session of its own, without input. Errors come as the system names them.

    Nothing here runs Python between fork and exec, so that the system may use vfork, whose cost does not grow with ours.
    """
    stdout, stdout_of_child = os.pipe()
    stderr, stderr_of_child = None, stdout_of_child
    try:
        if separate_stderr:
            stderr, stderr_of_child = os.pipe()
        handle = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
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
    # Even if it is over already, its number is its own until it is reaped.
    process = read_process(handle.pid)
    spawned = Spawned(handle.pid, process.started_ticks if process else 0, stdout, stderr, _open_pidfd(handle.pid), handle)
    _household.running[handle.pid] = spawned
    return spawned


def _open_pidfd(pid: int) -> int | None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without it, or no descriptor left: we wait in a thread
            return os.pidfd_open(pid)
    return None


def _close(*descriptors: int | None) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


async def wait_for_end(spawned: Spawned) -> None:
    """Until the process is over; where the system knows pidfds, its number stays its own until it is reaped."""
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
    """Its exit code, or minus the signal that ended it; None when somebody else has asked before us."""
    code = spawned.handle.returncode
    if code is None:
        # The handle would take a code that was lost for a success.
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(spawned.pid, 0)[1])
        spawned.handle.returncode = code or 0
    _household.running.pop(spawned.pid, None)
    if spawned.pidfd is not None:
        os.close(spawned.pidfd)
        spawned.pidfd = None
    return code


def become_subreaper() -> None:
    """Become the parent of all orphans below this process; nothing where the system does not know of it."""
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
            _household.adopts_orphans = True


def find_tree(pid: int, marker: str, started_ticks: int | None = None) -> list[Process]:
    """Everybody who belongs to the attempt that `pid` heads, and is not over yet."""
    everybody = {process.pid: process for process in list_processes()}
    everybody.pop(os.getpid(), None)
    leader = everybody.get(pid)
    # Once the leader is reaped, its number may go to a stranger: then only the environment tells who belongs here.
    is_recycled = leader is not None and started_ticks is not None and leader.started_ticks != started_ticks
    since = started_ticks or (leader.started_ticks if leader else 0)
    children: dict[int, list[Process]] = {}
    found: dict[int, Process] = {}
    for process in everybody.values():
        children.setdefault(process.parent, []).append(process)
        if process.started_ticks < since or process.is_over:
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
    return [process for process in found.values() if not process.is_over]


def find_left_behind(spawned: Spawned, marker: str) -> list[Process]:
    """What a process that is over (and not reaped yet) has left running; quick when that is nothing."""
    if _household.adopts_orphans and not _has_orphans():
        return []
    return _find_all(spawned, marker)


def _has_orphans() -> bool:
    if _list_orphans() == []:
        return False
    reap_strays(())
    return _list_orphans() != []


def _list_orphans() -> list[int] | None:
    """Children that we have not started; None when the kernel does not say."""
    children = list_own_children()
    return None if children is None else [pid for pid in children if pid not in _household.running]


def _find_all(spawned: Spawned, marker: str) -> list[Process]:
    tree = find_tree(spawned.pid, marker, spawned.started_ticks)
    if tree or not _household.adopts_orphans or _household.running.keys() - {spawned.pid}:
        return tree
    return [
        each
        for each in map(read_process, _list_orphans() or ())
        if each and not each.is_over and each.started_ticks >= spawned.started_ticks
    ]


def send(processes: Iterable[Process], *signals: signal.Signals) -> None:
    """Signal each of them, unless its number has gone to somebody else meanwhile."""
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
    """Whether the process of that number is still the one that was started then, and is not over."""
    process = read_process(pid)
    return process is not None and process.started_ticks == started_ticks and not process.is_over


async def end_tree(spawned: Spawned, marker: str, grace_seconds: float, sleep: Sleep) -> list[Process]:
    """Ask everybody to end, wait as long as the grace is, then kill until nobody is left. Who cannot be killed is returned."""
    find = partial(_find_all, spawned, marker)
    told = _send_to_group(spawned, signal.SIGTERM, signal.SIGCONT)
    tree = find()
    # Once each: some programs take a second SIGTERM for impatience.
    send((each for each in tree if not told or each.group != spawned.pid), signal.SIGTERM, signal.SIGCONT)
    waited, pause = 0.0, 0.005
    while (tree or _leads_unseen(spawned)) and waited < grace_seconds:
        await sleep(pause)
        waited, pause = waited + pause, min(pause * 1.5, 0.1)
        # To look at everybody costs far more than to look at those we know.
        tree = [each for each in tree if is_alive(each.pid, each.started_ticks)]
        tree = tree or find()
        reap_strays(())
    if not HAS_TABLE:
        _send_to_group(spawned, signal.SIGKILL)
    return await kill_all(find, sleep)


def _leads_unseen(spawned: Spawned) -> bool:
    """Where there is no table: whether the leader still runs."""
    return not HAS_TABLE and spawned.pid in _household.running and spawned.handle.returncode is None


async def kill_all(find: Callable[[], list[Process]], sleep: Sleep) -> list[Process]:
    """Kill whoever is found, in rounds, until nobody is."""
    pause = 0.002
    for _ in range(MOST_ROUNDS):
        tree = kill_once(find)
        reap_strays(())
        if not tree:
            return []
        await sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return find()


def kill_once(find: Callable[[], list[Process]]) -> list[Process]:
    """Kill all who are there now. They are halted first, or a fork bomb would fork faster than we kill."""
    tree = _halt(find)
    send(tree, signal.SIGKILL)
    return tree


def kill_tree(spawned: Spawned, marker: str) -> None:
    """At once, without waiting for the result."""
    _send_to_group(spawned, signal.SIGKILL)
    kill_once(partial(_find_all, spawned, marker))


def _halt(find: Callable[[], list[Process]]) -> list[Process]:
    halted: dict[tuple[int, int], Process] = {}
    for _ in range(MOST_ROUNDS):
        fresh = {(each.pid, each.started_ticks): each for each in find()}
        fresh = {key: each for key, each in fresh.items() if key not in halted}
        if not fresh:
            break
        send(fresh.values(), signal.SIGSTOP)
        halted |= fresh
    return list(halted.values())


def _send_to_group(spawned: Spawned, *signals: signal.Signals) -> bool:
    """At once and to all who never left, while the leader still holds the number of its group; whether it does."""
    if spawned.pid not in _household.running:
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
    """Orphans that came to us and are over: forget them, or they would fill the table. Nothing but in a process of our own."""
    if not _household.adopts_orphans:
        return []
    reaped: list[int] = []
    for pid in _list_orphans() or ():
        if pid not in known_pids:
            with contextlib.suppress(ChildProcessError):
                reaped += [pid] if os.waitpid(pid, os.WNOHANG)[0] else []
    return reaped


def end_strays() -> None:
    """At the very end of a process of our own: kill every orphan that came to it, whoever it belonged to."""
    while _household.adopts_orphans:
        living = [each for each in map(read_process, _list_orphans() or ()) if each and not each.is_over]
        if not living:
            break
        send(living, signal.SIGSTOP)
        send(living, signal.SIGKILL)
        for process in living:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
    reap_strays(())

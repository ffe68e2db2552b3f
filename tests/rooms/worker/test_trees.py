"""Whatever a task starts ends with it, however it tries to get away."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rooms.worker.workshop import (
    make_job,
    make_python_job,
    make_shell_job,
    members,
    nobody_left,
    run,
    start,
    until,
    written,
)

from pointsman.worker import processes
from pointsman.worker.process_table import Process, list_own_children, read_process
from pointsman.worker.runner import Job

DAEMON = """
import os, sys, time
if os.fork():
    {after}
os.setsid()
if os.fork():
    os._exit(0)
{before}
print("escaped", os.getpid(), flush=True)
time.sleep(1000)
"""
WAIT = "time.sleep(1000)"
LEAVE = "time.sleep(0.2); os._exit(0)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
NAMELESS = (
    "os.execve(sys.executable, [sys.executable, '-c', "
    "'import os, time; print(\"escaped\", os.getpid(), flush=True); time.sleep(1000)'], {})"
)


def escaped(job: Job) -> int:
    return int(job.log.tail().split("escaped ")[1].split()[0])


def is_running(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and not process.has_ended


@pytest.mark.parametrize("before", ["", DEAF, NAMELESS], ids=["plain", "deaf to SIGTERM", "without environment"])
def test_a_daemon_that_a_task_leaves_behind_is_ended_with_it(tmp_path: Path, before: str) -> None:
    job = make_python_job(tmp_path, DAEMON.format(after=LEAVE, before=before), grace_seconds=0.05)
    ending = run(job)
    assert ending.as_expected, ending
    assert not is_running(escaped(job))


@pytest.mark.parametrize("before", ["", DEAF, NAMELESS], ids=["plain", "deaf to SIGTERM", "without environment"])
def test_a_daemon_is_stopped_with_its_task(tmp_path: Path, before: str) -> None:
    async def stop_it() -> None:
        job = make_python_job(tmp_path, DAEMON.format(after=WAIT, before=before))
        with nobody_left(job):
            running = await start(job)
            await written(job, "escaped")
            await running.stop(grace_seconds=0.05)
        assert not is_running(escaped(job))

    asyncio.run(stop_it())


def test_children_in_the_background_are_ended_and_do_not_keep_a_task_open(tmp_path: Path) -> None:
    job = make_shell_job(tmp_path, "sleep 1000 & sleep 1000 & (setsid sleep 1000 &) ; echo done")
    assert run(job).as_expected
    assert job.log.tail() == "done\n"


def test_an_orphan_without_environment_is_known_by_its_session_while_other_tasks_run(tmp_path: Path) -> None:
    async def let_one_end() -> None:
        other = make_shell_job(tmp_path, "sleep 1000")
        script = "(env -i sh -c 'echo escaped $$; sleep 1000; :' &); while [ ! -e seen ]; do sleep 0.01; done"
        job = make_shell_job(tmp_path, script)
        with nobody_left(job, other):
            running = await start(other)
            running_too = await start(job)
            await written(job, "escaped")
            (tmp_path / "seen").touch()
            await running_too.wait()
            assert not is_running(escaped(job))
            await running.stop(grace_seconds=60)

    asyncio.run(let_one_end())


def test_the_daemon_of_one_task_survives_the_end_of_another(tmp_path: Path) -> None:
    async def let_one_end() -> None:
        job = make_python_job(tmp_path, DAEMON.format(after=WAIT, before=""))
        other = make_shell_job(tmp_path, "sleep 1000 & true")
        with nobody_left(job, other):
            running = await start(job)
            await written(job, "escaped")
            await (await start(other)).wait()
            assert is_running(escaped(job))
            await running.stop(grace_seconds=60)
        assert not is_running(escaped(job))

    asyncio.run(let_one_end())


def test_processes_that_ignore_sigterm_are_killed_after_the_grace(tmp_path: Path) -> None:
    async def stop_it() -> None:
        job = make_shell_job(
            tmp_path, "trap '' TERM; (while :; do sleep 0.01; done) & echo ready; while :; do sleep 0.01; done"
        )
        with nobody_left(job):
            running = await start(job)
            await written(job, "ready")
            await running.stop(grace_seconds=0.1)
            ending = await running.wait()
        assert (ending.kind, ending.signal) == ("stopped", signal.SIGKILL)

    asyncio.run(stop_it())


def test_a_process_whose_first_thread_has_ended_is_not_taken_for_dead(tmp_path: Path) -> None:
    program = (
        "import ctypes, platform, signal, threading, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)\n"  # exit, of this thread only
    )

    async def stop_it() -> None:
        job = make_python_job(tmp_path, program)
        with nobody_left(job):
            running = await start(job)
            assert running.pid
            await until(lambda: (read_process(running.pid or 0) or no_process()).state == "Z")
            await running.stop(grace_seconds=0.05)
            assert (await running.wait()).signal == signal.SIGKILL

    asyncio.run(stop_it())


def no_process() -> Process:
    return Process(0, 0, 0, 0, "", 0, 0)


def test_kill_ends_the_whole_tree_without_asking(tmp_path: Path) -> None:
    async def kill_it() -> None:
        job = make_python_job(tmp_path, DAEMON.format(after=WAIT, before=DEAF))
        with nobody_left(job):
            running = await start(job)
            await written(job, "escaped")
            running.kill()
            assert (await running.wait()).signal == signal.SIGKILL
        assert not is_running(escaped(job))

    asyncio.run(kill_it())


def test_everybody_is_asked_to_end_exactly_once(tmp_path: Path) -> None:
    async def stop_it() -> None:
        count = "trap 'echo asked >> $1; sleep 0.2; exit 0' TERM; echo ready >> $1; while :; do sleep 0.01; done"
        (tmp_path / "count.sh").write_text(count)
        script = "sh count.sh child & setsid sh count.sh daemon & trap 'exit 0' TERM; while :; do sleep 0.01; done"
        job = make_shell_job(tmp_path, script)
        with nobody_left(job):
            running = await start(job)
            await until(lambda: (tmp_path / "child").exists() and (tmp_path / "daemon").exists())
            await running.stop(grace_seconds=60)
        assert (tmp_path / "child").read_text() == (tmp_path / "daemon").read_text() == "ready\nasked\n"

    asyncio.run(stop_it())


BOMB = """
import os, sys, time
limit = {limit}
print("lit", flush=True)
counter = os.open("counter", os.O_CREAT | os.O_RDWR | os.O_APPEND)
while True:
    # Bounded, so that a test that fails does not take the machine with it.
    if os.fstat(counter).st_size < limit:
        os.write(counter, b"x")
        if os.fork() == 0 and os.fstat(counter).st_size % 3 == 0:
            os.setsid()
    else:
        time.sleep(0.01)
"""


def test_a_fork_bomb_is_stopped(tmp_path: Path) -> None:
    async def stop_it() -> None:
        job = make_python_job(tmp_path, BOMB.format(limit=300))
        with nobody_left(job):
            running = await start(job)
            await until(lambda: len(members(job)) > 60)
            await running.stop(grace_seconds=0)
            await running.wait()

    asyncio.run(stop_it())


def test_a_suspended_tree_stands_still_and_goes_on(tmp_path: Path) -> None:
    async def suspend_it() -> None:
        job = make_python_job(
            tmp_path, DAEMON.format(after="\n    while True: print('on', flush=True); time.sleep(0.005)", before="")
        )
        with nobody_left(job):
            running = await start(job)
            await written(job, "escaped")
            running.suspend()
            await until(lambda: {process.state for process in members(job)} == {"T"})
            running.resume()
            await until(lambda: "T" not in {process.state for process in members(job)})
            seen = job.log.bytes_seen
            await until(lambda: job.log.bytes_seen > seen)
            await running.stop(grace_seconds=60)

    asyncio.run(suspend_it())


def test_a_suspended_tree_can_be_ended_and_hears_that_it_should(tmp_path: Path) -> None:
    async def stop_it() -> None:
        job = make_shell_job(tmp_path, "trap 'echo heard; exit 4' TERM; echo ready; while :; do sleep 0.01; done")
        with nobody_left(job):
            running = await start(job)
            await written(job, "ready")
            running.suspend()
            await running.stop(grace_seconds=60)
            assert (await running.wait()).exit_code == 4
        assert job.log.last_line() == "heard"

    asyncio.run(stop_it())


def test_a_number_that_went_to_somebody_else_is_never_signalled() -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        seen = read_process(stranger.pid)
        assert seen
        earlier = seen.started_ticks - 1
        assert not processes.is_alive(stranger.pid, earlier)
        assert processes.find_tree(stranger.pid, processes.marker_of("task_gone", 1), earlier) == []
        processes.send([seen._replace(started_ticks=earlier)], signal.SIGKILL)
        assert is_running(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_orphans_that_are_over_do_not_fill_the_table(tmp_path: Path) -> None:
    before = set(list_own_children() or ())
    run(make_shell_job(tmp_path, "for i in 1 2 3 4 5; do (setsid sh -c 'exit 0' &); done; sleep 0.2"))
    processes.reap_strays(before)
    assert set(list_own_children() or ()) <= before


def test_an_exit_code_that_somebody_else_took_is_not_mistaken_for_success(tmp_path: Path) -> None:
    async def steal() -> None:
        running = await start(make_job(tmp_path, "true"))
        assert running.pid
        os.waitid(os.P_PID, running.pid, os.WEXITED)  # noqa: ASYNC222  # it is the point that the loop does not see it
        ending = await running.wait()
        assert not ending.as_expected
        assert "exit code is unknown" in ending.message

    asyncio.run(steal())


def test_work_that_nobody_waits_for_any_more_is_still_reaped(tmp_path: Path) -> None:
    async def give_up() -> None:
        job = make_shell_job(tmp_path, "echo ready; sleep 0.1; echo done")
        running = await start(job)
        await written(job, "ready")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running.wait(), 0)
        await written(job, "done")
        assert (await running.wait()).as_expected
        assert running.pid
        assert read_process(running.pid) is None

    asyncio.run(give_up())


def test_without_pidfds_a_thread_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_open_pidfd", lambda _: None)
    assert run(make_shell_job(tmp_path, "sleep 1000 & (setsid sleep 1000 &); exit 3")).exit_code == 3


def test_without_a_table_the_group_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_open_pidfd", lambda _: None)
    monkeypatch.setattr(processes, "HAS_TABLE", False)
    monkeypatch.setattr(processes, "find_tree", lambda *_: [])
    monkeypatch.setattr(processes, "read_process", lambda _: None)
    monkeypatch.setattr(processes, "list_own_children", lambda: None)

    async def stop_it() -> None:
        job = make_shell_job(tmp_path, "trap '' TERM; sleep 1000 & echo ready; while :; do sleep 0.01; done")
        with nobody_left(job):
            running = await start(job)
            await written(job, "ready")
            await running.stop(grace_seconds=0.05)
            await until(lambda: not members(job))

    asyncio.run(stop_it())


def test_a_hundred_quiet_children_cost_next_to_nothing(tmp_path: Path) -> None:
    async def start_them() -> None:
        jobs = [make_job(tmp_path, "sleep", "1000") for _ in range(100)]
        descriptors = count_descriptors()
        before = resident_bytes()
        with nobody_left(*jobs):
            running = [await start(job) for job in jobs]
            assert resident_bytes() - before < 20_000_000
            await asyncio.gather(*(each.stop(grace_seconds=60) for each in running))
        assert count_descriptors() == descriptors

    asyncio.run(start_them())


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_what_cannot_be_started_leaves_no_descriptor_open(tmp_path: Path) -> None:
    run(make_job(tmp_path, "no-such-program"))
    descriptors = count_descriptors()
    run(make_job(tmp_path, "no-such-program", stdout_wanted=True))
    run(make_job(tmp_path, "true", stdout_wanted=True))
    assert count_descriptors() == descriptors


def test_names_with_parentheses_are_read_correctly(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(Path("/bin/sleep").resolve())
    odd = subprocess.Popen([str(program), "1000"])
    try:
        process = read_process(odd.pid)
        assert isinstance(process, Process)
        assert process.parent == os.getpid()
    finally:
        odd.kill()
        odd.wait()


def test_strays_without_a_name_end_with_the_worker(tmp_path: Path) -> None:
    (tmp_path / "daemon.py").write_text(DAEMON.format(after=LEAVE, before=NAMELESS))
    program = (
        "import subprocess, sys\n"
        "from pointsman.worker import processes\n"
        "processes.become_subreaper()\n"
        "daemon = subprocess.Popen([sys.executable, 'daemon.py'], stdout=subprocess.PIPE, text=True)\n"
        "daemon.wait()\n"
        "print(daemon.stdout.readline(), flush=True)\n"
        "processes.end_strays()\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not is_running(int(result.stdout.split()[1]))

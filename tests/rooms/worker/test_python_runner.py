"""Functions are called in a process or in a thread, and both tell the same story of what came of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.worker.workshop import WORLD, make_job, nobody_left, until, written

from pointsman.flows.model import read_task
from pointsman.worker import call
from pointsman.worker.ending import Ending
from pointsman.worker.runner import Job
from pointsman.worker.runners.python import PythonRunner

FUNCTIONS = """
import asyncio, os, signal, subprocess, sys, threading, time

def add(a, b=2):
    print("adding")
    return {"sum": a + b}

async def add_async(a, b=2):
    await asyncio.sleep(0)
    print("adding")
    return {"sum": a + b}

class Adder:
    @staticmethod
    def add(a):
        return a

def fail():
    raise ValueError("no rows in orders.csv")

def fail_within():
    import not_there_at_all

def unspeakable():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError
    raise Unspeakable

def unserialisable():
    return {"rows": {1, 2}}

def not_a_number():
    return float("nan")

def much():
    return "x" * 2_000_000

def leave(code):
    sys.exit(code)

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def wait_for_cancel(cancel):
    print("ready", flush=True)
    assert not cancel.is_cancelled
    while not cancel.wait(0.01):
        pass
    return cancel.is_cancelled and cancel.wait()

async def wait_forever():
    print("ready", flush=True)
    await asyncio.Event().wait()

released = threading.Event()

def ignore_cancel():
    print("ready", flush=True)
    released.wait()
    print("too late")

meeting = threading.Barrier(20)

def meet():
    return meeting.wait(timeout=30)

def run_a_program():
    return subprocess.run(["sh", "-c", "exit 5"], start_new_session=True).returncode

number = 3
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("functions", None)


@pytest.fixture(params=["process", "thread"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_call(directory: Path, name: str, mode: str, **arguments: Any) -> Job:
    return make_job(directory, task=read_task({"call": name, "with": arguments, "mode": mode}))


def run_call(job: Job) -> Ending:
    runner = PythonRunner(WORLD, job.cwd)

    async def from_start_to_end() -> Ending:
        return await (await runner.start(job)).wait()

    with nobody_left(job):
        ending = asyncio.run(from_start_to_end())
    runner.close()
    job.log.close()
    return ending


@pytest.mark.parametrize("name", ["functions:add", "functions:add_async"])
def test_a_result_comes_back_as_json_and_what_was_printed_is_in_the_log(directory: Path, mode: str, name: str) -> None:
    job = make_call(directory, name, mode, a=1)
    ending = run_call(job)
    assert ending.as_expected
    assert ending.output == {"sum": 3}
    assert job.log.tail() == "adding\n"


def test_a_function_may_stand_in_a_class(directory: Path, mode: str) -> None:
    assert run_call(make_call(directory, "functions:Adder.add", mode, a=[None])).output == [None]


def test_an_exception_is_named_and_its_traceback_shows_the_code_of_the_user_only(directory: Path, mode: str) -> None:
    job = make_call(directory, "functions:fail", mode)
    ending = run_call(job)
    assert (ending.kind, ending.message, ending.retryable) == ("raised", "raised ValueError: no rows in orders.csv", True)
    assert job.log.tail().startswith("Traceback (most recent call last):")
    assert 'functions.py", line' in job.log.tail()
    assert str(call.__file__) not in job.log.tail()


def test_an_exception_that_cannot_be_shown_is_named(directory: Path, mode: str) -> None:
    assert (
        run_call(make_call(directory, "functions:unspeakable", mode)).message
        == "raised Unspeakable, whose message cannot be shown"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("no_such_module:add", {}, "there is no module 'no_such_module'"),
        ("functions.part:add", {}, "there is no module 'functions.part'"),
        ("functions:subtract", {}, "there is no 'subtract' in the module 'functions'"),
        ("functions:number", {}, "is not a function: its type is int"),
        ("functions:add", {}, "missing a required argument: 'a'"),
        ("functions:add", {"a": 1, "c": 3}, "got an unexpected keyword argument 'c'; it takes (a, b=2)"),
    ],
)
def test_what_cannot_be_called_is_not_tried_again(
    directory: Path, mode: str, name: str, arguments: dict[str, Any], said: str
) -> None:
    ending = run_call(make_call(directory, name, mode, **arguments))
    assert (ending.kind, ending.retryable) == ("not_started", False)
    assert said in ending.message


def test_a_module_that_is_missing_within_the_function_is_an_exception_of_the_function(directory: Path, mode: str) -> None:
    ending = run_call(make_call(directory, "functions:fail_within", mode))
    assert (ending.kind, ending.message) == ("raised", "raised ModuleNotFoundError: No module named 'not_there_at_all'")


@pytest.mark.parametrize("name", ["functions:unserialisable", "functions:not_a_number"])
def test_a_result_that_is_no_json_is_not_tried_again(directory: Path, mode: str, name: str) -> None:
    ending = run_call(make_call(directory, name, mode))
    assert (ending.kind, ending.retryable) == ("raised", False)
    assert "cannot be written as JSON" in ending.message


def test_a_function_in_a_process_may_exit_and_crash(directory: Path) -> None:
    assert run_call(make_call(directory, "functions:leave", "process", code=3)).exit_code == 3
    assert "SIGSEGV" in run_call(make_call(directory, "functions:crash", "process")).message


def test_a_result_that_is_too_large_is_refused(directory: Path, mode: str) -> None:
    ending = run_call(make_call(directory, "functions:much", mode))
    assert ending.output is None
    assert "is larger than 1,000,000 bytes" in str(ending.output_problem)


def test_a_function_in_a_thread_that_exits_does_not_end_the_worker(directory: Path) -> None:
    assert run_call(make_call(directory, "functions:leave", "thread", code=3)).message == "raised SystemExit: 3"


def test_a_program_that_a_thread_runs_is_none_of_our_business(directory: Path) -> None:
    assert run_call(make_call(directory, "functions:run_a_program", "thread")).output == 5


@pytest.mark.parametrize("name", ["functions:wait_for_cancel", "functions:wait_forever"])
def test_a_function_that_listens_ends_when_it_is_asked(directory: Path, mode: str, name: str) -> None:
    async def stop_it() -> Ending:
        job = make_call(directory, name, mode)
        with nobody_left(job):
            running = await PythonRunner(WORLD, directory).start(job)
            await written(job, "ready")
            await running.stop(grace_seconds=60)
            return await running.wait()

    ending = asyncio.run(stop_it())
    assert ending.kind == ("stopped" if mode == "process" else "interrupted")
    assert ending.signal is None
    assert "did not stop" not in ending.message


def test_a_thread_that_does_not_end_is_reported_as_such(directory: Path) -> None:
    async def stop_it() -> None:
        job = make_call(directory, "functions:ignore_cancel", "thread")
        running = await PythonRunner(WORLD, directory).start(job)
        await written(job, "ready")
        await running.stop(grace_seconds=0)
        ending = await running.wait()
        assert "its thread did not stop: it still runs in the worker" in ending.message
        job.log.close()
        sys.modules["functions"].released.set()
        await until(lambda: "too late" in job.log.tail())

    asyncio.run(stop_it())


def test_a_function_that_does_not_listen_is_ended_with_its_process(directory: Path) -> None:
    async def stop_it() -> None:
        job = make_call(directory, "functions:ignore_cancel", "process")
        with nobody_left(job):
            running = await PythonRunner(WORLD, directory).start(job)
            await written(job, "ready")
            await running.stop(grace_seconds=60)
            assert (await running.wait()).signal == 15

    asyncio.run(stop_it())


def test_each_call_has_a_thread_of_its_own(directory: Path) -> None:
    async def let_all_meet_twice() -> None:
        runner = PythonRunner(WORLD, directory)
        before = set(threading.enumerate())
        for _ in range(2):
            calls = [await runner.start(make_call(directory, "functions:meet", "thread")) for _ in range(20)]
            endings = await asyncio.gather(*(call.wait() for call in calls))
            assert sorted(ending.output for ending in endings) == list(range(20)), "each waits for the others"
        assert len(set(threading.enumerate()) - before) == 20
        runner.close()

    asyncio.run(let_all_meet_twice())


def test_threads_are_used_again(directory: Path) -> None:
    async def call_often() -> None:
        runner = PythonRunner(WORLD, directory)
        before = threading.active_count()
        for _ in range(20):
            await (await runner.start(make_call(directory, "functions:add", "thread", a=1))).wait()
        assert threading.active_count() <= before + 1
        runner.close()

    asyncio.run(call_often())


def test_it_is_a_program_as_well(directory: Path) -> None:
    job = make_call(directory, "functions:add", "process", a=5)
    env = {**job.env, "PYTHONPATH": f"{Path(call.__file__).parents[2]}:{directory}"}
    request = directory / "request.json"
    request.write_text('{"function": "functions:add", "arguments": {"a": 5}}')
    env["POINTSMAN_CALL"] = str(request)
    subprocess.run([sys.executable, "-m", "pointsman.worker.call"], env=env, check=True, capture_output=True)
    assert Path(job.output_path).read_text() == '{"sum": 7}'

"""Every way in which a program can end has its own sentence."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.rooms.worker.workshop import make_job, make_python_job, make_shell_job, nobody_left, run, start, written

from pointsman.flows.model import FlowTask
from pointsman.worker.runner import parse_output


def test_a_program_that_exits_as_expected_has_nothing_to_explain(tmp_path: Path) -> None:
    ending = run(make_job(tmp_path, "true"))
    assert (ending.kind, ending.exit_code, ending.message) == ("exited", 0, "")
    assert ending.as_expected


def test_another_exit_code_is_named_beside_those_expected(tmp_path: Path) -> None:
    ending = run(make_job(tmp_path, "sh", "-c", "exit 3", task=FlowTask(command=("sh",), expected_exit_codes=(0, 22))))
    assert ending.message == "exited with code 3 (expected 0 or 22)"
    assert ending.retryable
    assert not ending.as_expected
    assert run(
        make_job(tmp_path, "sh", "-c", "exit 22", task=FlowTask(command=("sh",), expected_exit_codes=(0, 22)))
    ).as_expected


def test_a_signal_is_named_and_sigkill_makes_one_think_of_memory(tmp_path: Path) -> None:
    ending = run(make_job(tmp_path, "sh", "-c", "kill -KILL $$"))
    assert (ending.kind, ending.signal) == ("signaled", 9)
    assert ending.message == "was killed by signal SIGKILL (the machine may have run out of memory)"


def test_a_shell_passes_on_what_happened_to_the_program_in_it(tmp_path: Path) -> None:
    killed = run(make_shell_job(tmp_path, "sh -c 'kill -KILL $$'; exit $?"))
    assert "a program in it was killed by signal SIGKILL" in killed.message
    assert "did not find the program" in run(make_shell_job(tmp_path, "no-such-program-here")).message


def test_a_missing_program_is_named_with_the_path_that_was_looked_at(tmp_path: Path) -> None:
    ending = run(make_job(tmp_path, "no-such-program", env={"PATH": "/one:/two"}))
    assert (ending.kind, ending.retryable) == ("not_started", False)
    assert ending.message == "no such program 'no-such-program'; looked in PATH: /one:/two"


def test_a_missing_program_given_by_its_path_is_looked_for_in_the_working_directory(tmp_path: Path) -> None:
    assert run(make_job(tmp_path, "./build")).message == f"no such program './build' (relative to {tmp_path})"


def test_a_file_that_may_not_be_executed_is_told_from_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "build").write_text("#!/bin/sh\n")
    ending = run(make_job(tmp_path, "./build"))
    assert (ending.kind, ending.retryable) == ("not_started", False)
    assert "permission denied: " in ending.message
    assert "chmod +x" in ending.message
    assert "is a directory" in run(make_job(tmp_path, str(tmp_path))).message


def test_a_missing_interpreter_is_not_called_a_missing_program(tmp_path: Path) -> None:
    script = tmp_path / "build"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert "but the interpreter in its first line does not" in run(make_job(tmp_path, "./build")).message


def test_a_file_that_is_no_program_is_called_so(tmp_path: Path) -> None:
    script = tmp_path / "build"
    script.write_bytes(b"\x00\x01\x02")
    script.chmod(0o755)
    ending = run(make_job(tmp_path, "./build"))
    assert "is not a program for this machine" in ending.message
    assert not ending.retryable


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    ending = run(make_job(tmp_path, "true", cwd=tmp_path / "gone"))
    assert ending.message == f"the working directory {tmp_path / 'gone'} does not exist"
    assert not ending.retryable
    (tmp_path / "file").touch()
    assert "is not a directory" in run(make_job(tmp_path, "true", cwd=tmp_path / "file")).message


@pytest.mark.parametrize("argument", ["with\0nul", "x" * 5_000_000], ids=["nul", "too long"])
def test_arguments_that_no_system_takes_are_refused_and_not_tried_again(tmp_path: Path, argument: str) -> None:
    ending = run(make_job(tmp_path, "true", argument, task=FlowTask(command=("true",))))
    assert (ending.kind, ending.retryable) == ("not_started", False)


def test_work_sees_who_it_is_and_only_the_variables_that_it_may_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "x")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    job = make_job(tmp_path, "env", env={"NAMED": "by the flow"})
    run(job)
    seen = dict(line.split("=", 1) for line in job.log.tail().splitlines())
    assert seen["POINTSMAN_TASK_ID"] == job.claim.task_id
    assert seen["POINTSMAN_EPOCH"] == "1"
    assert seen["POINTSMAN_OUTPUT"] == job.output_path
    assert Path(seen["POINTSMAN_LOG_DIR"]).is_dir()
    assert (seen["NAMED"], seen["LC_ALL"], seen["PATH"]) == ("by the flow", "C.UTF-8", os.environ["PATH"])
    assert "SECRET_OF_THE_WORKER" not in seen


def test_work_has_no_input_a_session_of_its_own_and_no_descriptor_of_ours(tmp_path: Path) -> None:
    program = "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd')))"
    job = make_python_job(tmp_path, program)
    run(job)
    assert job.log.tail().split("[")[0].strip() == "'' True"
    assert job.log.tail().count("'") - 2 == 2 * 4, "stdin, stdout, stderr, and the directory that is being read"


def test_output_is_the_json_that_work_wrote(tmp_path: Path) -> None:
    ending = run(make_shell_job(tmp_path, """echo '{"rows": 3}' > "$POINTSMAN_OUTPUT" """))
    assert ending.output == {"rows": 3}
    assert run(make_job(tmp_path, "true")).output is None


@pytest.mark.parametrize("written", ["not json", "NaN", "[" * 100_000, "\\377"])
def test_output_that_is_no_json_is_shown(tmp_path: Path, written: str) -> None:
    (tmp_path / "written").write_text(written)
    script = 'cat written > "$POINTSMAN_OUTPUT"' if "\\" not in written else 'printf "\\377" > "$POINTSMAN_OUTPUT"'
    ending = run(make_shell_job(tmp_path, script))
    assert ending.output is None
    assert "is not JSON" in str(ending.output_problem)


def test_output_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    ending = run(make_shell_job(tmp_path, 'head -c 2000000 /dev/zero > "$POINTSMAN_OUTPUT"'))
    assert "is larger than 1,000,000 bytes" in str(ending.output_problem)


def test_stdout_that_is_too_large_is_no_output(tmp_path: Path) -> None:
    job = make_shell_job(tmp_path, "head -c 2000000 /dev/zero | tr '\\0' 1", stdout_wanted=True)
    ending = run(job)
    assert ending.stdout is not None
    assert parse_output(ending.stdout, "stdout") == (
        None,
        "its output (stdout) is larger than 1,000,000 bytes; write large results to a file and output its path",
    )


def test_stdout_is_told_from_stderr_when_it_is_wanted(tmp_path: Path) -> None:
    job = make_shell_job(tmp_path, "echo out; echo err >&2", stdout_wanted=True)
    ending = run(job)
    assert ending.stdout == b"out\n"
    assert sorted(job.log.tail().split()) == ["err", "out"]


def test_what_was_stopped_says_so_and_how_it_ended(tmp_path: Path) -> None:
    async def stop_it() -> None:
        job = make_shell_job(tmp_path, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done")
        with nobody_left(job):
            running = await start(job)
            await written(job, "ready")
            await running.stop(grace_seconds=60)
            ending = await running.wait()
        assert (ending.kind, ending.exit_code) == ("stopped", 7)
        assert ending.message == "was stopped and exited with code 7 (expected 0)"

    asyncio.run(stop_it())

"""Text of others on a terminal: it is shown, and never obeyed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.rooms.cli.scene import Scene
from tests.system.faults.project import Project

from pointsman.cli.output import TerminalOutput, harmless
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask

NASTY = "\x1b]52;c;aGk=\x07\x1b[2J\x9b5mA\u202e\r"
OWN = re.compile(r"\x1b\[(?:0|1|2|3[1-6]|9[0-7])m|\r\n")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def call_on_terminal(*arguments: str, cwd: Path, until: bytes | None = None) -> str:
    """What a command sends to the terminal that it runs on; SIGTERM ends it when it has sent `until`."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pointsman", *arguments]
    with subprocess.Popen(command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        got = b""
        with suppress(OSError):  # the command has ended
            while data := os.read(ours, 65_536):
                got += data
                if until is not None and until in got:
                    process.terminate()
                    until = None
    os.close(ours)
    return got.decode()


@pytest.fixture
def nasty(scene: Scene) -> Scene:
    """A run in which everything that people or programs can choose is nasty."""
    run = scene.submit(NewTask(name=f"task{NASTY}"), NewTask(name="other"), name=f"run{NASTY}")
    (claim,) = scene.claim()
    path = scene.write_log(run, claim, f"out{NASTY}\x1b[1;38;5;196mred\n".encode() + b"\x1b]0;cut")
    report = AttemptReport(error=f"error{NASTY}", exit_code=1, log_path=path, retryable=False)
    other = scene.tasks(run)["other"].id
    scene.do(lambda engine: engine.for_tenant(actor=f"me{NASTY}").signal_task(other, "skip", reason=f"reason{NASTY}"))
    scene.do(lambda engine: engine.fail_task(claim.task_id, claim.epoch, report))
    return scene


@pytest.mark.parametrize(
    "command", ["status", "status latest", "history latest other", "watch --all", "logs latest", "retry latest"]
)
def test_no_command_lets_text_of_others_control_the_terminal(nasty: Scene, command: str) -> None:
    shown = call_on_terminal(*command.split(), cwd=nasty.folder)
    assert "u001b" in shown
    assert not CONTROL.search(OWN.sub("", shown.replace("\x1b[1;38;5;196m", "")))


def test_logs_of_one_task_keep_their_colors_and_are_raw_if_asked(nasty: Scene) -> None:
    task = ("latest", f"task{NASTY}")
    shown = call_on_terminal("logs", *task, cwd=nasty.folder)
    assert shown == "out\\u001b]52;c;aGk=\\u0007\\u001b[2J\\u009b5mA\\u202e\\u000d\x1b[1;38;5;196mred\r\n\\u001b]0;cut\x1b[0m"
    raw = f"out{NASTY}\x1b[1;38;5;196mred\r\n\x1b]0;cut"
    assert call_on_terminal("logs", *task, "--raw", cwd=nasty.folder) == raw
    assert nasty.call("logs", *task).out == raw.replace("\r\n", "\n"), "as it was written, if not on a terminal"


@pytest.mark.parametrize("command", ["run", "worker"])
def test_work_lets_output_of_tasks_not_control_the_terminal(tmp_path: Path, command: str) -> None:
    project = Project(tmp_path)
    script = "printf '\\\\033]52;c;aGk=\\\\007\\\\033[2J\\\\n'; sleep 0.5; exit 1"
    flow = project.write_flow(f'{{name: f, tasks: {{a: {{run: "{script}"}}}}}}')
    if command == "run":
        shown = call_on_terminal("run", flow, cwd=tmp_path)
    else:
        call_on_terminal("run", flow, "--detach", cwd=tmp_path)
        shown = call_on_terminal("worker", cwd=tmp_path, until=b"failure after")
    assert "\\u001b]52;c;aGk=" in shown
    assert not re.search(r"\x1b\]|\x07|\x1b\[2J", shown)


def test_pieces_of_output_are_put_together() -> None:
    """An escape sequence, a character and a line break may arrive in two pieces."""
    text = "é\x1b[31mred\x1b[0m\r\n\x1b]52;é\n".encode()
    whole = TerminalOutput().feed(text, to_the_end=True)
    assert whole == "é\x1b[31mred\x1b[0m\r\n\\u001b]52;é\n\x1b[0m"
    for at in range(len(text)):
        output = TerminalOutput()
        assert output.feed(text[:at]) + output.feed(text[at:], to_the_end=True) == whole


def test_messages_keep_only_the_colors_of_pointsman() -> None:
    assert harmless("\x1b[31mred\x1b[0m\n\t") == "\x1b[31mred\x1b[0m\n\t"
    assert harmless("\x1b[8mhidden\x1b[41m\x9b2J\u2066\x7f") == "\\u001b[8mhidden\\u001b[41m\\u009b2J\\u2066\\u007f"

"""Advice that the command line prints over a server: its commands are executed as they are."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.system.server.harness import start
from tests.system.server.test_remote import home, submit, wait_for

SPENDS = "name: dear\nbudget_usd: 1\ntasks: {a: {run: 'echo 1.5 >> $POINTSMAN_COST; test -e go'}}"
ADVISED = re.compile(r"`(pointsman budget set [^`]+)`|See: (pointsman status.*)")


def execute(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command as a person copies it, in a shell that knows no server."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    program, *words = shlex.split(command)
    assert program == "pointsman"
    asked = [sys.executable, "-m", "pointsman", *words]
    return subprocess.run(asked, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)


def find_advice(text: str) -> str:
    (found,) = ADVISED.finditer(text)
    return str(next(filter(None, found.groups())))


def test_commands_in_advice_over_a_server_are_about_that_server(tmp_path: Path, database_url: str) -> None:
    folder = tmp_path / "client"
    folder.mkdir()
    project = home(tmp_path)
    with start("up", project, database_url) as (client, _):
        run = submit(client, SPENDS)
        wait_for(client, run, "FAILED")
        at = f"--server {client.url}"
        status, retry, unknown = (
            execute(folder, f"pointsman {words} {at}") for words in (f"status {run}", f"retry {run}", "status run_unknown")
        )
        assert (status.returncode, retry.returncode, unknown.returncode) == (0, 2, 2), (status, retry, unknown)
        raises = find_advice(status.stdout)
        assert find_advice(retry.stderr) == raises
        sees = find_advice(unknown.stderr)
        for command in (raises, sees):
            assert command.endswith(at), command
            said = execute(folder, command)
            assert said.returncode == 0, (command, said)
        assert run[-8:] in said.stdout, "the list of the runs of that server"
        (project / "go").touch()
        assert execute(folder, f"pointsman retry {run} {at}").returncode == 0, "there is enough money now"
        wait_for(client, run, "SUCCEEDED")

"""The process of the server: how it starts and stops, and what it says while its database is away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests import databases
from tests.system.server.harness import PATIENCE_SECONDS, start, until
from tests.system.server.test_keys import serve


def test_a_port_that_is_taken_is_named(tmp_path: Path, sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = serve(tmp_path, sqlite_url, "--port", str(taken.getsockname()[1]))
    assert refused.returncode == 2
    assert "Cannot listen on 127.0.0.1 port" in refused.stderr


@pytest.mark.parametrize("command", ["serve", "up"])
def test_sigterm_ends_it_with_0_after_the_requests_under_way(tmp_path: Path, sqlite_url: str, command: str) -> None:
    with start(command, tmp_path, sqlite_url) as (client, process):
        assert client.get("/readyz").status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in (tmp_path / f"{command}.txt").read_text()


def test_what_runs_is_finished_before_up_ends(tmp_path: Path, sqlite_url: str) -> None:
    with start("up", tmp_path, sqlite_url) as (client, process):
        flow = "name: a\ntasks: {a: {run: 'touch begun; until [ -e go ]; do sleep 0.05; done; touch done'}}"
        assert client.post("/runs", {"flow": flow}).status == 201
        until((tmp_path / "begun").exists)
        process.send_signal(signal.SIGTERM)
        until(lambda: "Finishing running tasks" in (tmp_path / "up.txt").read_text())
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "done").exists()


def test_while_the_database_is_away_every_answer_says_when_to_try_again(tmp_path: Path, postgres_url: str) -> None:
    with start("serve", tmp_path, postgres_url) as (client, _):
        assert client.get("/readyz").status == 200
        databases._drop(databases.postgres_server(), urlsplit(postgres_url).path.strip("/"))
        replies = [client.get("/runs"), client.get("/readyz"), client.post("/api/workers", {"workspace_id": "w"})]
        assert [reply.status for reply in replies] == [503] * 3
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies)
        assert not any(b"postgres" in reply.text or str(tmp_path).encode() in reply.text for reply in replies)
        assert client.get("/healthz").status == 200


def test_other_commands_do_not_load_the_server() -> None:
    code = "import sys; from pointsman.cli.group import root; import click; context = click.Context(root)\n"
    code += "for name in root.list_commands(context): root.get_command(context, name)\n"
    code += "print([name for name in ('fastapi', 'starlette', 'uvicorn', 'pointsman.server') if name in sys.modules])"
    env = {**os.environ, "POINTSMAN_LOG": "warning"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert result.stdout.strip() == "[]"

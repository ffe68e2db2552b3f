"""Logs of attempts, over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.system.server.harness import PATIENCE_SECONDS, Client, start

from pointsman import app
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewRun, NewTask

WRITTEN = b"<script>alert(1)</script>\n\x1b[31mred\x1b[0m \xff\n"
FLOW = r"""
name: writes
tasks:
  a: {run: 'printf "<script>alert(1)</script>\n\033[31mred\033[0m \377\n"'}
"""
SLOW = "name: slow\ntasks:\n  a: {run: 'echo one; until [ -e %s ]; do sleep 0.05; done; echo two'}\n"


def start_task(client: Client, flow: str) -> str:
    run_id = client.post("/api/v1/flows/run", {"flow": flow}).json["id"]
    return str(client.get(f"/api/v1/runs/{run_id}/tasks").json["items"][0]["id"])


def write_log(client: Client) -> tuple[str, Path]:
    """The route of the log of a task that has succeeded, and its file."""
    task_id = start_task(client, FLOW)
    client.until(f"/api/v1/tasks/{task_id}", lambda task: task["outcome"] == "success")
    (attempt,) = client.get(f"/api/v1/tasks/{task_id}/attempts").json["items"]
    return f"/api/v1/tasks/{task_id}/attempts/1/log", Path(attempt["log_path"])


@contextmanager
def follow(client: Client, route: str) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(client.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", f"{route}?follow=true", headers=client.headers)
        yield connection.getresponse()
    finally:
        connection.close()


def test_a_log_is_text_that_no_browser_renders(client: Client) -> None:
    reply = client.get(write_log(client)[0])
    assert reply.text == WRITTEN
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in reply.headers["content-security-policy"]
    assert reply.headers["content-length"] == str(len(WRITTEN))


def test_ranges_of_a_log_are_parts_of_it(client: Client) -> None:
    route, _ = write_log(client)
    size = len(WRITTEN)
    for asked, part in {
        "bytes=0-6": slice(0, 7),
        "bytes=8-": slice(8, None),
        "bytes=-5": slice(-5, None),
        "bytes=8-9999": slice(8, None),
        f"bytes=-{size + 9}": slice(None),
    }.items():
        reply = client.get(route, range=asked)
        first = part.indices(size)[0]
        assert (reply.status, reply.text) == (206, WRITTEN[part]), asked
        assert reply.headers["content-range"] == f"bytes {first}-{first + len(reply.text) - 1}/{size}"
    for whole in ("bytes=5-2", "bytes=-", "lines=1-2", "bytes=0-1,3-4", "bytes=a-b", f"bytes={'9' * 30}-"):
        assert (client.get(route, range=whole).status, client.get(route, range=whole).text) == (200, WRITTEN), whole
    for behind in (f"bytes={size}-", "bytes=-0"):
        refused = client.get(route, range=behind)
        assert (refused.problem, refused.headers["content-range"]) == ("range-not-satisfiable", f"bytes */{size}")


def test_a_log_is_followed_until_its_attempt_ends(client: Client, tmp_path: Path) -> None:
    task_id = start_task(client, SLOW % (tmp_path / "go"))
    client.until(f"/api/v1/tasks/{task_id}/attempts", lambda attempts: bool(attempts["items"]))
    with follow(client, f"/api/v1/tasks/{task_id}/attempts/1/log") as stream:
        assert stream.headers["Transfer-Encoding"] == "chunked"
        assert stream.readline() == b"one\n"
        (tmp_path / "go").touch()
        assert stream.read() == b"two\n"
    assert client.get(f"/api/v1/tasks/{task_id}").json["outcome"] == "success"
    assert client.get(f"/api/v1/tasks/{task_id}/attempts/1/log?follow=true", range="bytes=1-").text == b"one\ntwo\n"


def test_a_server_that_stops_does_not_wait_for_followers(tmp_path: Path, sqlite_url: str) -> None:
    with start("serve", tmp_path, sqlite_url) as (client, process):
        task_id = asyncio.run(begin_attempt(sqlite_url))
        with follow(client, f"/api/v1/tasks/{task_id}/attempts/1/log") as stream:
            process.send_signal(signal.SIGTERM)
            assert stream.read() == b""
        assert process.wait(PATIENCE_SECONDS) == 0


def test_what_does_not_exist_is_not_found(client: Client) -> None:
    route, _ = write_log(client)
    for number in ("2", "0", "01", "x", "-1", "%2e%2e"):
        assert client.get(route.replace("/1/", f"/{number}/")).status == 404, number
    assert client.get("/api/v1/tasks/task_1/attempts/1/log").problem == "not-found"


def test_a_log_that_is_removed_or_replaced_is_not_served(client: Client) -> None:
    route, path = write_log(client)
    foreign = write_log(client)[1]
    for target in (Path("/etc/passwd"), foreign):
        path.unlink()
        path.symlink_to(target)
        assert client.get(route).problem == client.get(f"{route}?follow=true").problem == "log-elsewhere", target
    path.unlink()
    assert client.get(route).problem == "log-elsewhere"
    os.mkfifo(path)
    assert client.get(route).problem == "log-elsewhere"
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(foreign.parent)
    assert client.get(route).problem == "log-elsewhere"


async def begin_attempt(url: str, log_path: str | None = None) -> str:
    """The id of a task that another worker runs, or has ended with that log."""
    async with app.open(url, keeps=False) as engine:
        run = await engine.submit_run(NewRun(name="elsewhere", tasks=(NewTask(name="a"),)))
        worker = await engine.register_worker("box")
        (claim,) = await engine.claim_tasks(worker.id, limit=1)
        if log_path is not None:
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(log_path=log_path))
        assert claim.run_id == run.id
        return claim.task_id


def test_no_path_that_a_worker_reports_is_served(tmp_path: Path, database_url: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    with start("serve", tmp_path, database_url) as (client, _):
        for path in (str(outside), "/etc/passwd", "../../etc/passwd", ".pointsman/logs/../../outside", "\u202e", "x" * 5000):
            task_id = asyncio.run(begin_attempt(database_url, path))
            reply = client.get(f"/api/v1/tasks/{task_id}/attempts/1/log")
            assert (reply.problem, b"secret" in reply.text) == ("log-elsewhere", False), path


def test_the_log_of_an_attempt_that_has_written_nothing_is_empty(tmp_path: Path, sqlite_url: str) -> None:
    with start("serve", tmp_path, sqlite_url) as (client, _):
        reply = client.get(f"/api/v1/tasks/{asyncio.run(begin_attempt(sqlite_url))}/attempts/1/log")
        assert (reply.status, reply.text) == (200, b"")

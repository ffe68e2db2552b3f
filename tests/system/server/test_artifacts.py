"""Artifacts: the files that attempts leave, of workers beside the server and elsewhere, over HTTP and by the command line."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system.server.harness import Client, start, until
from tests.system.server.test_keys import EVERY, create_keys, with_key
from tests.system.server.test_remote import call, home, list_tasks, submit, wait_for, work

from pointsman import artifacts
from pointsman.artifacts import ArtifactFolder, ArtifactLimits
from pointsman.cli import main
from pointsman.client import Client as Python
from pointsman.remote.line import Line

LEAVES = """
name: leaves
tasks:
  report:
    run: |
      mkdir -p "$POINTSMAN_ARTIFACTS/pages/ä b"
      cd "$POINTSMAN_ARTIFACTS"
      echo hello > "pages/ä b/index.html"
      : > empty
      head -c 700000 /dev/zero > large
      ln -s /etc/passwd link
      ln -s /etc linked
      mkfifo pipe
  nothing: {run: "true"}
"""
LEFT: list[dict[str, Any]] = [
    {"name": "empty", "size": 0},
    {"name": "large", "size": 700_000},
    {"name": "pages/ä b/index.html", "size": 6},
]
PAGE = "pages/%C3%A4%20b/index.html"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the client; the project of the server is elsewhere."""
    made = tmp_path / "client"
    made.mkdir()
    return made


def route_of(task: dict[str, Any], attempt: int = 1) -> str:
    return f"/api/v1/tasks/{task['id']}/attempts/{attempt}"


def check_left(client: Client, route: str) -> None:
    assert client.get(f"{route}/artifacts").json["items"] == LEFT
    page = client.get(f"{route}/artifact?name={PAGE}")
    assert (page.status, page.text) == (200, b"hello\n")
    assert page.headers["content-type"] == "application/octet-stream"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["content-disposition"] == "attachment; filename*=UTF-8''index.html"
    assert "sandbox" in page.headers["content-security-policy"]
    assert client.get(f"{route}/artifact?name=empty").text == b""
    assert client.get(f"{route}/artifact?name=large").text == bytes(700_000)
    part = client.get(f"{route}/artifact?name={PAGE}", range="bytes=1-2")
    assert (part.status, part.text, part.headers["content-range"]) == (206, b"el", "bytes 1-2/6")
    assert client.get(f"{route}/artifact?name={PAGE}", range="bytes=6-").problem == "range-not-satisfiable"
    for name in ("link", "linked/hosts", "pipe", "pages", "missing", "large/x"):
        assert client.get(f"{route}/artifact?name={name}").problem == "not-found", name
    for name in ("../1.log", "pages/../empty", "/etc/passwd", ".", "pages/", "a//b", "", "%00", "x" * 1001, "a%0Ab"):
        assert client.get(f"{route}/artifact?name={name}").problem == "invalid-request", name


def test_a_worker_beside_the_server_leaves_files_that_the_server_has(tmp_path: Path, database_url: str) -> None:
    with start("up", tmp_path, database_url) as (client, _):
        run = submit(client, LEAVES)
        wait_for(client, run, "SUCCEEDED")
        tasks = list_tasks(client, run)
        check_left(client, route_of(tasks["report"]))
        assert client.get(f"{route_of(tasks['report'])}/artifacts").json["left_out"] == 3
        assert client.get(f"{route_of(tasks['nothing'])}/artifacts").json == {"items": [], "left_out": 0}
        assert client.get(f"{route_of(tasks['nothing'], 2)}/artifacts").problem == "not-found"
        of_run = client.get(f"/api/v1/runs/{run}/artifacts").json
        assert of_run == {
            "items": [
                {"task_id": tasks["report"]["id"], "attempt": 1, "items": LEFT, "left_out": 3},
                {"task_id": tasks["nothing"]["id"], "attempt": 1, "items": [], "left_out": 0},
            ],
            "next": None,
        }
        with Python(client.url) as python:
            assert python.read_artifact(tasks["report"]["id"], 1, LEFT[2]["name"], start=-3) == b"lo\n"
            assert [each.name for each in python.list_artifacts(tasks["report"]["id"], "1").items] == [
                each["name"] for each in LEFT
            ]


def test_a_worker_elsewhere_sends_its_files_before_it_reports(tmp_path: Path, folder: Path, database_url: str) -> None:
    root, box = create_keys(database_url, [("default", "root", EVERY), ("default", "box", ("worker",))])
    with start("serve", home(tmp_path), database_url) as (anybody, _), work(folder / "box", anybody.url, box):
        client = with_key(anybody, root)
        run = submit(client, LEAVES)
        wait_for(client, run, "SUCCEEDED")
        route = route_of(list_tasks(client, run)["report"])
        check_left(client, route)
        assert client.get(f"{route}/artifacts").json["left_out"] == 0, "nothing else was sent"
        until(lambda: "3 files" in (folder / "box" / "worker.txt").read_text())
        said = call(folder, client.url, "artifacts", run, "--json", "--copy-to", "copies", key=root)
        listed = json.loads(said.stdout)
        assert [{"name": each["name"], "size": each["size"]} for each in listed] == LEFT, said
        assert {(each["task"], each["attempt"], each["path"]) for each in listed} == {("report", 1, None)}
        copies = folder / "copies" / "report"
        assert {str(path.relative_to(copies)): path.stat().st_size for path in copies.rglob("*") if path.is_file()} == {
            each["name"]: each["size"] for each in LEFT
        }
        assert (copies / "pages/ä b/index.html").read_text() == "hello\n"
        assert "at the server" in call(folder, client.url, "artifacts", run, "report", key=root).stdout
        none = call(folder, client.url, "artifacts", run, "nothing", key=root)
        assert (none.returncode, none.stdout) == (0, "")
        assert "There are no artifacts." in none.stderr


def test_the_artifacts_of_a_run_are_one_request(
    tmp_path: Path, folder: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[str] = []
    send = Line.send

    async def count(line: Line, method: str, path: str, *arguments: Any, **named: Any) -> Any:
        sent.append(f"{method} {path}")
        return await send(line, method, path, *arguments, **named)

    leave = 'mkdir -p "$POINTSMAN_ARTIFACTS"; echo {item} > "$POINTSMAN_ARTIFACTS/item"'
    flow = f"name: many\ntasks: {{each: {{foreach: {{items: [1, 2, 3]}}, run: '{leave}'}}}}"
    with start("up", tmp_path, sqlite_url, "--slots", "4") as (client, _):
        run = submit(client, flow)
        wait_for(client, run, "SUCCEEDED")
        monkeypatch.setattr(Line, "send", count)
        assert main(["artifacts", run, "--json", "--server", client.url, "-C", str(folder)]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["item"] * 3
    assert [each for each in sent if "artifact" in each] == [f"GET /api/v1/runs/{run}/artifacts?limit=1000"]


def test_what_a_lost_attempt_still_sends_is_refused(tmp_path: Path, folder: Path, database_url: str) -> None:
    run_it = 'mkdir -p "$POINTSMAN_ARTIFACTS"; echo $POINTSMAN_EPOCH > "$POINTSMAN_ARTIFACTS/epoch"; echo >> starts; '
    flow = f"name: hold\ntasks: {{hold: {{run: '{run_it} test $POINTSMAN_EPOCH = 2 || sleep 600'}}}}"
    box = folder / "box"
    box.mkdir()
    (box / "hold.yaml").write_text(flow)
    with start("serve", home(tmp_path), database_url) as (client, _):
        with work(box, client.url) as first:
            run = call(box, client.url, "run", "hold.yaml", "--detach").stdout.strip()
            until((box / "starts").exists)
            first.kill()
            first.wait()
        task = dict(list_tasks(client, run)["hold"])
        with work(box, client.url):
            wait_for(client, run, "SUCCEEDED")
        for number in (1, 2):
            late = client.post(f"{route_of(task, number)}/artifact", {"name": "epoch", "offset": 0, "data": "bGF0ZQ=="})
            assert late.problem == "lease-lost", number
        assert client.get(f"{route_of(task)}/artifacts").json["items"] == [], "the worker was killed before it could send it"
        assert client.get(f"{route_of(task, 2)}/artifact?name=epoch").text == b"2\n"


def test_nothing_is_written_outside_the_folder_of_an_attempt(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "pointsman.toml").write_text('artifact_bytes = "5 kB"')
    with start("serve", tmp_path, database_url) as (client, _):
        worker = client.post("/api/v1/workers", {"name": "curl", "capabilities": ["files"]}).json["id"]
        client.post("/api/v1/runs", {"name": "hand", "tasks": [{"name": "t", "capabilities": ["files"]}]})
        (claim,) = client.post(f"/api/v1/workers/{worker}/claims", {"wait_seconds": 20}).json["items"]
        route = f"/api/v1/tasks/{claim['task_id']}/attempts/1/artifact"

        def send(name: str, offset: int = 0, data: bytes = b"abc") -> Any:
            return client.post(route, {"name": name, "offset": offset, "data": base64.b64encode(data).decode()})

        sent = [("a/b", 5, 0), ("a/b", 0, 3), ("a/b", 0, 3), ("a/b", 3, 6), ("a/b", 99, 6)]
        assert [send(name, offset).json["size"] for name, offset, _ in sent] == [size for *_, size in sent]
        assert client.get(f"{route}?name=a/b").text == b"abcabc"
        for name in ("../x", "a/../../x", "/tmp/x", "", "a//b", "..", "x\n", "\u202ex", "a/./b"):
            assert send(name).problem == "invalid-request", name
        assert client.post(route, {"name": "a", "offset": 0, "data": "no base64!"}).problem == "invalid-request"
        (place,) = (tmp_path / ".pointsman" / "logs").glob("*/t/1.artifacts")
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("mine")
        (place / "linked").symlink_to(outside)
        (place / "link").symlink_to(outside / "file")
        os.mkfifo(place / "pipe")
        for name in ("linked/new", "link", "pipe", "a", "a/b/c"):
            assert send(name).problem == "artifact-refused", name
        assert "at most 1,000 artifacts with 5,000 bytes together" in send("big", 5_000).json["detail"]
        place.rename(place.with_name("moved"))
        place.symlink_to(outside)
        assert send("file").problem == "artifact-refused"
        assert client.get(f"{route}s").json["items"] == []
        assert client.get(f"{route}?name=file").problem == "not-found"
        assert sorted(path.name for path in outside.iterdir()) == ["file"]
        assert (outside / "file").read_text() == "mine"


def test_an_attempt_has_so_many_artifacts_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, limits = tmp_path / "1.artifacts", ArtifactLimits(files=20, bytes=1_000)
    place.mkdir()
    with (place / "0").open("wb") as file:
        file.truncate(limits.bytes + 1)
    for number in range(1, limits.files + 3):
        (place / f"{number:06}").touch()
    found = ArtifactFolder.beside(tmp_path / "1.log", limits).list_files()
    assert (len(found.items), found.items[0].name, found.left_out) == (limits.files, "000001", 3)
    monkeypatch.setattr(artifacts, "MAX_ENTRIES", 10)
    few = ArtifactFolder.beside(tmp_path / "1.log", limits).list_files()
    assert len(few.items) + few.left_out >= 11
    assert len(few.items) <= 11


def test_the_command_line_lists_and_copies_what_is_on_this_machine(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "flow.yaml").write_text(
        "name: twice\ntasks: {t: {max_attempts: 2, backoff: 0.1s, run: "
        "'mkdir -p $POINTSMAN_ARTIFACTS; echo $POINTSMAN_EPOCH > $POINTSMAN_ARTIFACTS/n; test $POINTSMAN_EPOCH = 2'}}"
    )
    store = ("--store", database_url)
    assert call_here(tmp_path, "run", "flow.yaml", *store).returncode == 0
    (listed,) = json.loads(call_here(tmp_path, "artifacts", "latest", "--json", *store).stdout)
    assert (listed["attempt"], Path(listed["path"]).read_text()) == (2, "2\n")
    said = call_here(tmp_path, "artifacts", "latest", "t", "--attempt", "1", "--copy-to", "out", *store)
    assert said.stdout.splitlines()[1].split()[:4] == ["t", "1", "2", "B"], said
    assert (tmp_path / "out" / "t" / "n").read_text() == "1\n"
    assert "has no attempt 3" in call_here(tmp_path, "artifacts", "latest", "t", "--attempt", "3", *store).stderr
    assert call_here(tmp_path, "artifacts", "latest", "--attempt", "1", *store).returncode == 2


def call_here(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    command = [sys.executable, "-m", "pointsman", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)

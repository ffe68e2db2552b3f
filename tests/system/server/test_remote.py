"""An engine over HTTP: workers and the command line on machines without access to the database."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.system.server.harness import Client, start, until
from tests.system.server.test_keys import EVERY, create_keys, with_key

from pointsman import app, lifecycles
from pointsman.engine.calls import SPOKEN
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import AuthenticationFailed, CallRefused, NotFound, ServerUnavailable, TransitionRefused
from pointsman.kernel.machine import Case, Refusal
from pointsman.remote.engine import RemoteEngine

FLOW = 'name: remote\ntasks: {say: {run: \'for i in $(seq 300); do echo line $i; done; echo "{}" > "$POINTSMAN_OUTPUT"\'}}'


PEOPLE = "name: words\ntasks:\n  a: {run: echo hello}\n  ok: {needs: a, approval: {prompt: Fine?}}\n"
OF_RUNS = ("status", "history", "logs")
OF_PROJECTS = ("budget", "workers", "breakers", "notices", "notify", "inbox")


def environment(url: str, key: str | None = None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    return env | {"POINTSMAN_SERVER": url} | ({"POINTSMAN_API_KEY": key} if key else {})


def call(folder: Path, url: str, *words: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a folder that knows nothing but the server."""
    command = [sys.executable, "-m", "pointsman", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(url, key), capture_output=True, text=True, check=False, timeout=120
    )


@contextmanager
def work(folder: Path, url: str, key: str | None = None, lease: str = "6s") -> Iterator[subprocess.Popen[bytes]]:
    """A worker that reaches the database through the server only; it drains when the block is left."""
    folder.mkdir(exist_ok=True)
    with (folder / "worker.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "pointsman", "worker", "--slots", "2", "--lease", lease],
            cwd=folder,
            env=environment(url, key),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the client; the project of the server is elsewhere."""
    made = tmp_path / "client"
    made.mkdir()
    return made


def home(folder: Path, name: str = "server") -> Path:
    """A folder for a server, so that the client is in no folder below it."""
    made = folder / name
    made.mkdir()
    return made


def submit(client: Client, flow: str = FLOW) -> str:
    run: str = client.post("/api/v1/flows/run", {"flow": flow}).json["id"]
    return run


def wait_for(client: Client, run: str, state: str) -> Any:
    return client.until(f"/api/v1/runs/{run}", lambda found: found["state"] == state)


def list_tasks(client: Client, run: str) -> Mapping[str, Any]:
    return {task["name"]: task for task in client.get(f"/api/v1/runs/{run}/tasks").json["items"]}


def test_a_worker_with_its_own_scope_does_the_work_and_the_server_has_its_log(
    tmp_path: Path, folder: Path, database_url: str
) -> None:
    keys = create_keys(database_url, [("default", "root", EVERY), ("default", "box", ("worker",))])
    with start("serve", home(tmp_path), database_url) as (anybody, _), work(folder / "box", anybody.url, keys[1]) as worker:
        client = with_key(anybody, keys[0])
        run = submit(client)
        wait_for(client, run, "SUCCEEDED")
        task = list_tasks(client, run)["say"]
        log = client.send("GET", f"/api/v1/tasks/{task['id']}/attempts/1/log")
        assert log.text.splitlines() == [f"line {i}".encode() for i in range(1, 301)]
        said = call(folder, client.url, "logs", run, "--tail", "1", key=keys[0])
        assert (said.returncode, said.stdout) == (0, "say | line 300\n")
        assert worker.poll() is None
        refused = call(folder, client.url, "cancel", run, key=keys[1])
        assert refused.returncode == 2
        assert "This needs the scope read. The key 'box' has: worker." in refused.stderr


def test_a_log_is_followed_while_its_worker_elsewhere_writes(tmp_path: Path, folder: Path, database_url: str) -> None:
    flow = "name: slow\ntasks: {say: {run: 'echo one; until test -e go; do sleep 0.1; done; echo two'}}"
    with start("serve", home(tmp_path), database_url) as (client, _), work(folder / "box", client.url):
        (folder / "slow.yaml").write_text(flow)
        box = folder / "box"
        (box / "slow.yaml").write_text(flow)
        run = call(box, client.url, "run", "slow.yaml", "--detach").stdout.strip()
        task = list_tasks(client, run)["say"]
        until(lambda: client.send("GET", f"/api/v1/tasks/{task['id']}/attempts/1/log").text == b"one\n")
        follow = [sys.executable, "-m", "pointsman", "logs", run, "--follow"]
        with subprocess.Popen(follow, cwd=folder, env=environment(client.url), stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"say | one\n"
            (box / "go").touch()
            assert following.stdout.read() == b"say | two\n"
        assert following.returncode == 0


def test_a_killed_server_costs_nothing(tmp_path: Path, folder: Path, database_url: str) -> None:
    """The worker waits, keeps its task, and reports when a server answers at the same address again."""
    flow = "name: long\ntasks: {hold: {run: 'echo start >> starts; until test -e go; do sleep 0.1; done'}}"
    box = folder / "box"
    box.mkdir()
    (box / "long.yaml").write_text(flow)
    with start("serve", home(tmp_path), database_url) as (client, server):
        port = client.url.rpartition(":")[2]
        with work(box, client.url, lease="60s"):  # longer than the slowest start of a server
            run = call(box, client.url, "run", "long.yaml", "--detach").stdout.strip()
            until((box / "starts").exists)
            server.kill()
            server.wait()
            said = call(folder, client.url, "status")
            assert said.returncode == 2
            assert "Cannot connect to" in said.stderr
            assert "Traceback" not in said.stderr
            (box / "go").touch()
            with start("serve", home(tmp_path, "again"), database_url, "--port", port) as (again, _):
                wait_for(again, run, "SUCCEEDED")
                assert list_tasks(again, run)["hold"]["attempts"] == 1
    assert (box / "starts").read_text() == "start\n"


def test_a_killed_worker_is_replaced_after_its_lease_and_what_it_still_says_counts_no_more(
    tmp_path: Path, folder: Path, database_url: str
) -> None:
    flow = "name: hold\ntasks: {hold: {run: 'echo $POINTSMAN_EPOCH >> starts; test $POINTSMAN_EPOCH = 2 || sleep 600'}}"
    box = folder / "box"
    box.mkdir()
    (box / "hold.yaml").write_text(flow)
    with start("serve", home(tmp_path), database_url) as (client, _):
        with work(box, client.url) as first:
            run = call(box, client.url, "run", "hold.yaml", "--detach").stdout.strip()
            until((box / "starts").exists)
            first.kill()
            first.wait()
        task = list_tasks(client, run)["hold"]
        with work(box, client.url):
            wait_for(client, run, "SUCCEEDED")
        late = client.post(f"/api/v1/tasks/{task['id']}/reports", {"epoch": 1, "signal": "complete"})
        assert late.problem == "lease-lost"
        part = client.post(f"/api/v1/tasks/{task['id']}/attempts/1/log", {"offset": 0, "data": "bGF0ZQ=="})
        assert part.problem == "lease-lost"
    assert (box / "starts").read_text() == "1\n2\n"


def test_a_worker_in_another_language_claims_by_a_long_poll_reports_and_is_fenced(client: Client) -> None:
    worker = client.post("/api/v1/workers", {"name": "curl", "capabilities": ["by-hand"]}).json["id"]
    body = {"name": "hand", "tasks": [{"name": "t", "capabilities": ["by-hand"], "payload": {"x": 1}}]}
    run = client.post("/api/v1/runs", body).json["id"]
    wanted = {"wait_seconds": 20, "run_id": run}  # other tests have left tasks, too
    (claim,) = client.post(f"/api/v1/workers/{worker}/claims", wanted).json["items"]
    assert (claim["name"], claim["epoch"], claim["payload"]) == ("t", 1, {"x": 1})
    beat = client.post(f"/api/v1/workers/{worker}/heartbeats", {"attempts": [[claim["task_id"], 1], [claim["task_id"], 7]]})
    assert beat.json["lost"] == [{"task_id": claim["task_id"], "epoch": 7}]
    done = client.post(f"/api/v1/tasks/{claim['task_id']}/reports", {"epoch": 1, "signal": "complete", "output": {"y": 2}})
    assert (done.json["state"], done.json["output"]) == ("SUCCEEDED", {"y": 2})
    assert client.get(f"/api/v1/runs/{run}").json["state"] == "SUCCEEDED"
    assert client.post(f"/api/v1/workers/{worker}/claims", {"wait_seconds": 0.1, "run_id": run}).json["items"] == []
    for offset, data, size in ((0, "YWJj", None), (9, "YWJj", None)):
        refused = client.post(f"/api/v1/tasks/{claim['task_id']}/attempts/1/log", {"offset": offset, "data": data})
        assert (refused.problem, size) == ("lease-lost", None), "the attempt has ended"


def test_a_log_has_no_gaps_whatever_is_sent(client: Client) -> None:
    worker = client.post("/api/v1/workers", {"name": "curl", "capabilities": ["logs"]}).json["id"]
    run = client.post("/api/v1/runs", {"name": "hand", "tasks": [{"name": "t", "capabilities": ["logs"]}]}).json["id"]
    (claim,) = client.post(f"/api/v1/workers/{worker}/claims", {"wait_seconds": 20, "run_id": run}).json["items"]
    log = f"/api/v1/tasks/{claim['task_id']}/attempts/1/log"
    sent = [(5, "YWJj", 0), (0, "YWJj", 3), (0, "YWJj", 3), (3, "ZGVm", 6), (99, "ZGVm", 6)]
    assert [client.post(log, {"offset": at, "data": data}).json["size"] for at, data, _ in sent] == [size for *_, size in sent]
    assert client.send("GET", log).text == b"abcdef"
    assert client.post(log, {"offset": 0, "data": "no base64!"}).problem == "invalid-request"
    assert client.post(log, {"offset": 10**9, "data": "YWJj"}).problem == "body-too-large"


async def test_an_engine_of_a_server_is_an_engine(client: Client) -> None:
    async with app.open(client.url) as engine:
        person = engine.for_tenant(actor="Zoë")
        run = await person.submit_run(
            NewRun(name="python", tasks=(NewTask(name="a", capabilities=("nobody",)),)), request_id="once"
        )
        assert (
            await person.submit_run(
                NewRun(name="python", tasks=(NewTask(name="a", capabilities=("nobody",)),)), request_id="once"
            )
        ).id == run.id
        assert [task.name for task in await engine.list_tasks(run.id)] == ["a"]
        machine = await engine.get_machine(run)
        assert machine.name in {each.name for each in await engine.list_machines()}
        assert (await person.signal_run(run.id, "cancel", reason="enough")).state == "CANCELED"
        move = (await engine.list_history(run.id))[-1]
        assert (move.actor, move.reason) == ("Zoë", "enough")
        with pytest.raises(TransitionRefused) as refused:
            await person.signal_run(run.id, "pause")
        assert isinstance(refused.value.refusal, Refusal)
        assert refused.value.refusal.case is Case.TERMINAL
        with pytest.raises(NotFound):
            await engine.get_run("run_unknown")
        with pytest.raises(CallRefused, match="use an API key of 'acme'"):
            await engine.for_tenant("acme").list_runs()
        async for transition in engine.watch(run_id=run.id):
            assert transition.run_id == run.id
            break


async def test_a_wrong_key_another_version_and_an_absent_server_are_said_at_once(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(create_keys, database_url, [("default", "root", EVERY)])
    with start("serve", home(tmp_path), database_url) as (client, _), pytest.raises(AuthenticationFailed):
        async with app.open(client.url, key="pm_wrong"):
            raise AssertionError
    with pytest.raises(ServerUnavailable, match="Cannot connect"):
        async with app.open(client.url):
            raise AssertionError
    with start("serve", home(tmp_path, "other"), f"sqlite:///{tmp_path}/other.db") as (client, _):
        version, digest = SPOKEN.split()
        minor = version.rpartition(".")[0]
        for other in (f"0.0.1 {digest}", f"{minor}.99 0000", f"{version} 0000", version):
            monkeypatch.setattr("pointsman.remote.line.SPOKEN", other)
            with pytest.raises(CallRefused, match="Install the same version on both sides") as refused:
                async with app.open(client.url):
                    raise AssertionError
            assert refused.value.problem == "version-mismatch"
        monkeypatch.setattr("pointsman.remote.line.SPOKEN", f"{minor}.99 {digest}")
        async with app.open(client.url) as engine:
            assert await engine.list_runs() == []


def test_a_person_uses_the_command_line_with_a_key(tmp_path: Path, folder: Path, database_url: str) -> None:
    (key,) = create_keys(database_url, [("acme", "ada", EVERY)])
    (folder / "flow.yaml").write_text(
        "name: words\ntasks:\n  a: {run: echo hello}\n  ok: {needs: a, approval: {prompt: Fine?}}\n"
    )
    with start("serve", home(tmp_path), database_url) as (client, _):
        run = call(folder, client.url, "run", "flow.yaml", "--detach", key=key).stdout.strip()
        with work(folder, client.url, key):
            mine = with_key(client, key)
            wait_for(mine, run, "WAITING")
            inbox = call(folder, client.url, "inbox", "--json", key=key)
            assert [item["task"] for item in json.loads(inbox.stdout)] == ["ok"], inbox
            assert "approve" in call(folder, client.url, "inbox", "--list", key=key).stdout
            assert call(folder, client.url, "approve", run, key=key).returncode == 0
            wait_for(mine, run, "SUCCEEDED")
        for words in [*((name, run) for name in OF_RUNS), *((name,) for name in OF_PROJECTS)]:
            said = call(folder, client.url, *words, key=key)
            assert said.returncode == 0, (words, said)
        refused = call(folder, client.url, "doctor", "--audit", key=key)
        assert refused.returncode == 2
        assert "all tenants, however long that takes, and an API key is about one" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not (folder / ".state").exists(), "the journal is up to the server"


def test_every_method_of_an_engine_is_asked_of_the_server_or_refused() -> None:
    """What it would inherit needs a database, and there is none."""
    needed = [name for name, each in vars(Engine).items() if inspect.iscoroutinefunction(each) and name[0] != "_"]
    assert "measure_tenants" in needed
    assert [name for name in needed if name not in vars(RemoteEngine)] == []


def test_mistakes_with_a_key_are_refused_before_anything_is_done(tmp_path: Path, folder: Path, database_url: str) -> None:
    root, ada = create_keys(database_url, [("default", "root", EVERY), ("default", "ada", ("read", "submit", "approve"))])
    (folder / "flow.yaml").write_text(PEOPLE)
    with start("serve", home(tmp_path), database_url) as (client, _):
        mistakes = {
            ("run", "flow.yaml"): "the API key 'ada' needs the scope worker. To leave them to other workers: --detach",
            ("run", "flow.yaml", "--detach", "--as", "ben"): "acts in its own name, here 'ada', and not as 'ben'",
            ("inbox", "--list", "--as", "ben"): "Leave --as out",
            ("key",): "This needs the scope admin. The key 'ada' has: approve, read, submit.",
            ("serve",): "POINTSMAN_SERVER: This command needs a database, not a server.",
        }
        for words, advice in mistakes.items():
            refused = call(folder, client.url, *words, key=ada)
            assert (refused.returncode, advice in refused.stderr) == (2, True), refused
        for unreadable in (ada[:-1], f"{ada} ", f"x{ada}", "pm_é", "pm_1\n2"):
            refused = call(folder, client.url, "status", key=unreadable)
            assert (refused.returncode, "POINTSMAN_API_KEY: This is no API key." in refused.stderr) == (2, True), refused
            assert ada[10:-1] not in refused.stderr
        without = call(folder, client.url, "status")
        assert "needs an API key: POINTSMAN_API_KEY." in without.stderr
        lost = call(folder, f"{client.url}/api/v1", "status", key=ada)
        assert "There is no server of Pointsman at" in lost.stderr
        assert with_key(client, root).get("/api/v1/runs").json["items"] == []
        as_herself = call(folder, client.url, "run", "flow.yaml", "--detach", "--as", "ada", key=ada)
        assert as_herself.returncode == 0, as_herself


def write_own(folder: Path, version: int = 1) -> str:
    """A lifecycle of one's own with a flow that follows it; the text of the lifecycle."""
    shipped = Path(inspect.getfile(lifecycles)).with_name("approval.yaml").read_text()
    text = shipped.replace("lifecycle: approval\n", "lifecycle: mine\n").replace("version: 2\n", f"version: {version}\n")
    (folder / "mine.yaml").write_text(text)
    (folder / "flow.yaml").write_text("name: own\nlifecycle: ./mine.yaml\ntasks: {DRAFT: {run: echo drafted}}\n")
    return text


def test_a_lifecycle_of_your_own_is_followed_over_a_server(tmp_path: Path, folder: Path, database_url: str) -> None:
    write_own(folder)
    with (
        start("serve", home(tmp_path), database_url) as (client, _),
        start("up", home(tmp_path, "other"), database_url) as (other, _),
    ):
        assert call(folder, client.url, "run", "flow.yaml").returncode == 0
        for server in (client, other):  # the other one has it from the database
            run = call(folder, server.url, "run", "flow.yaml", "--detach").stdout.strip()
            wait_for(server, run, "SUCCEEDED")
            sent = server.post("/runs", {"flow": "name: sent\nlifecycle: mine\ntasks: {DRAFT: {run: echo drafted}}"})
            assert (sent.status, sent.json["lifecycle"]) == (201, "mine")
            wait_for(server, sent.json["id"], "SUCCEEDED")
        versions = {each["name"]: each["version"] for each in other.get("/api/v1/machines").json["items"]}
        assert versions["mine.run"] == 1
        write_own(folder, 2)
        assert call(folder, client.url, "run", "flow.yaml", "--detach").returncode == 0
        write_own(folder)
        for words in (("run", "flow.yaml", "--detach"), ("worker", "--lifecycle", "./mine.yaml")):
            older = call(folder, other.url, *words)
            assert "The server has version 2 of 'mine', and this file is version 1." in older.stderr, older
            assert older.returncode == 2


def test_only_the_operator_adds_lifecycles(tmp_path: Path, folder: Path, database_url: str) -> None:
    text = write_own(folder)
    keys = [("default", "root", EVERY), ("default", "ada", ("read", "submit")), ("acme", "bob", EVERY)]
    root, *others = create_keys(database_url, keys)
    with start("serve", home(tmp_path), database_url) as (anybody, _):
        for key in others:
            refused = call(folder, anybody.url, "run", "flow.yaml", "--detach", key=key)
            assert (refused.returncode, "does not have version 1 of 'mine'" in refused.stderr) == (2, True), refused
        for key, problem in zip(others, ("forbidden", "operator-only"), strict=True):
            assert with_key(anybody, key).post("/api/v1/lifecycles", {"text": text}).problem == problem
        named = {"flow": "name: sent\nlifecycle: mine\ntasks: {a: {run: 'true'}}"}
        client = with_key(anybody, root)
        unknown = client.post("/runs", named)
        assert (unknown.problem, "There is no lifecycle called 'mine'." in unknown.json["detail"]) == ("invalid-request", True)
        first, again = (client.post("/api/v1/lifecycles", {"text": text}, idempotency_key="k") for _ in range(2))
        assert (first.status, first.json["name"], first.json["version"]) == (201, "mine", 1)
        assert (again.text, again.headers["idempotent-replayed"]) == (first.text, "true")
        invalid = client.post("/api/v1/lifecycles", {"text": "lifecycle: approval\nmachines: {}"})
        assert (invalid.status, invalid.problem) == (422, "flow-invalid")
        changed = client.post("/api/v1/lifecycles", {"text": text.replace("-> CANCELED", "-> FAILED")})
        assert changed.status == 422
        for key in others:
            run = call(folder, anybody.url, "run", "flow.yaml", "--detach", key=key)
            assert run.returncode == 0, run
            assert with_key(anybody, key).post("/runs", named).status == 201


def test_hints_name_the_server(tmp_path: Path, folder: Path, database_url: str) -> None:
    with start("serve", home(tmp_path), database_url) as (client, _):
        env = {name: value for name, value in environment(client.url).items() if name != "POINTSMAN_SERVER"}
        command = [sys.executable, "-m", "pointsman", "status", "latest", "--server", client.url]
        empty = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert f"Start one: pointsman run flow.yaml --server {client.url}" in empty.stderr
        assert call(folder, client.url, "tenant").returncode == 0


def test_those_who_follow_wait_for_a_server_that_starts_anew(tmp_path: Path, folder: Path, database_url: str) -> None:
    box = folder / "box"
    box.mkdir()
    (box / "long.yaml").write_text(
        "name: long\ntasks: {hold: {run: 'echo one; until test -e go; do sleep 0.1; done; echo two'}}"
    )
    with start("serve", home(tmp_path), database_url) as (client, server):
        port = client.url.rpartition(":")[2]
        with work(box, client.url, lease="60s"):  # longer than the slowest start of a server
            run = call(box, client.url, "run", "long.yaml", "--detach").stdout.strip()
            wait_for(client, run, "RUNNING")
            said = [follow(folder, client.url, words, run) for words in (("logs", "-f"), ("watch", "--all"))]
            until(lambda: all(file.exists() and file.stat().st_size for _, file, _ in said))
            server.kill()
            server.wait()
            until(lambda: all("The server does not answer. Waiting for it." in errors.read_text() for *_, errors in said))
            (box / "go").touch()
            with start("serve", home(tmp_path, "again"), database_url, "--port", port):
                assert [process.wait(60) for process, *_ in said] == [0, 0]
    (_, log, _), (_, moves, _) = said
    assert log.read_text() == "hold | one\nhold | two\n"
    assert moves.read_text().count("RUNNING → SUCCEEDED") == 2


def test_status_names_the_command_for_a_log_that_is_elsewhere(tmp_path: Path, folder: Path, database_url: str) -> None:
    box = folder / "box"
    with start("serve", home(tmp_path), database_url) as (client, _), work(box, client.url):
        run = submit(client, "name: broken\ntasks: {burst: {run: 'echo why; exit 1'}}")
        wait_for(client, run, "FAILED")
        shutil.rmtree(box / ".pointsman" / "logs")  # as if it were another machine
        said = call(folder, client.url, "status", run).stdout
        short = run.removeprefix("run_")[-8:]
        assert f"  log: pointsman logs {short} burst\n" in said
        assert f"\nLogs: pointsman logs {short}\n" in said
        assert str(box) not in said
        assert call(folder, client.url, "logs", run, "burst").stdout == "why\n"


def test_of_a_log_that_the_server_does_not_have_the_end_is_shown_from_the_database(
    tmp_path: Path, folder: Path, database_url: str
) -> None:
    flow = "name: lost\ntasks: {say: {run: 'echo one; echo two'}, quiet: {run: 'true', needs: say}}"
    with start("up", home(tmp_path), database_url) as (client, _):
        run = submit(client, flow)
        wait_for(client, run, "SUCCEEDED")
        shutil.rmtree(tmp_path / "server" / ".pointsman" / "logs")  # as if another server had it
        said = call(folder, client.url, "logs", run, "say")
        assert (said.returncode, said.stdout) == (1, "one\ntwo\n"), said
        assert "The log of attempt 1 of 'say' is not at the server." in said.stderr
        assert call(folder, client.url, "logs", run).stdout == "say   | one\nsay   | two\n"
        quiet = call(folder, client.url, "logs", run, "quiet")
        assert (quiet.returncode, quiet.stderr) == (0, "Attempt 1 of 'quiet' wrote nothing.\n")


def follow(folder: Path, url: str, words: tuple[str, ...], run: str) -> tuple[subprocess.Popen[bytes], Path, Path]:
    """A command in the background, and the files of its output and its errors."""
    out, errors = folder / f"{words[0]}.out", folder / f"{words[0]}.err"
    command = [sys.executable, "-m", "pointsman", words[0], run, *words[1:]]
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        return subprocess.Popen(command, cwd=folder, env=environment(url), stdout=stdout, stderr=stderr), out, errors


def test_workers_with_and_without_the_database_share_a_run(tmp_path: Path, folder: Path, database_url: str) -> None:
    flow = "name: shared\ntasks: {each: {foreach: range(12), run: 'sleep 0.3; echo ${{ item }}'}}"
    with start("up", home(tmp_path), database_url, "--slots", "1") as (client, _), work(folder / "box", client.url):
        until(lambda: len(client.get("/api/v1/workers").json["items"]) == 2)
        run = submit(client, flow)
        wait_for(client, run, "SUCCEEDED")
        tasks = list_tasks(client, run)
        ids = [tasks[f"each[{number}]"]["id"] for number in range(12)]
        attempts = [client.get(f"/api/v1/tasks/{each}/attempts").json["items"] for each in ids]
        assert [len(each) for each in attempts] == [1] * 12
        assert len({each[0]["worker_id"] for each in attempts}) == 2
        logs = [client.send("GET", f"/api/v1/tasks/{each}/attempts/1/log").text for each in ids]
        assert logs == [f"{number}\n".encode() for number in range(12)]

"""Two servers and three workers on PostgreSQL: one of each is killed while clients go on, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.system.faults.inquest import check_folding, find_inhabitants
from tests.system.server.harness import PATIENCE_SECONDS, Alternating, Client, Reply, start, start_worker, until
from tests.system.server.test_tasks_004 import ASKS

from pointsman import app
from pointsman.server.application import name_operation
from pointsman.server.routes import ALL

CLIENTS, RUNS_EACH = 3, 12
BEFORE_THE_KILL = 8
"""So many runs are submitted when the first server is killed; the others follow."""
FLOW = """
name: counted
lifecycle: standard
inputs: {seconds: {type: number}}
tasks: {counted: {run: 'echo $POINTSMAN_EPOCH >> $POINTSMAN_RUN_ID.txt; sleep ${{ inputs.seconds }}'}}
"""
LETTER = "name: letter\nlifecycle: approval\nordered: true\ntasks: {GATE: {approval: {prompt: Go?}}, SEND: {run: 'true'}}"


@dataclass
class Persistent(Alternating):
    """Sends a request again, with its idempotency key, to one server after the other until it has an answer."""

    answered: set[str] = field(default_factory=set)
    """The operations of the OpenAPI document that have succeeded."""
    failed: int = 0
    """How often there was no answer."""
    _keys: count[int] = field(default_factory=count)

    def send(self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        sent = dict(headers or {})
        if method != "GET":
            sent.setdefault("idempotency-key", f"{id(self)}-{next(self._keys)}")
        reply = until(lambda: self._try(method, path, content, sent), lambda: f"{method} {path} gets no answer")
        assert reply
        if path != "/openapi.json" and reply.status < 400 and (route := self.find_route(method, path.partition("?")[0])):
            self.answered.add(route["operationId"])
        return reply

    def _try(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> Reply | None:
        try:
            reply = super().send(method, path, content, headers)
        except OSError:
            self.failed += 1
            return None
        return None if reply.status == 503 else reply

    def do(self, path: str, **body: object) -> Any:
        reply = self.post(path, body)
        assert reply.status in (200, 201), reply
        return reply.json

    def reach(self, path: str, *states: str) -> Any:
        return self.until(path, lambda found: (found.get("status") or found.get("state")) in states)


def submit(client: Client, key: str, seconds: float) -> Reply:
    reply = client.post("/runs", {"template": "counted", "inputs": {"seconds": seconds}}, idempotency_key=key)
    assert reply.status == 201, reply
    return reply


def find_seconds(key: str) -> float:
    """The first runs take so long that the worker which has one of them can be killed, and fill the slots of all workers."""
    return 5 if key.endswith(("-0", "-1")) else 0


def drive_document_000(client: Persistent) -> None:
    worker = client.do("/api/workers", workspace_id="ws_by_hand")["id"]
    client.do(f"/api/workers/{worker}/start")
    for signal_name, state in (("pause", "PAUSED"), ("resume", "RUNNING"), ("terminate", "TERMINATED")):
        assert client.do(f"/api/supervisor/workers/{worker}/{signal_name}", reason="test")["status"] == state
    other = client.do("/api/workers", workspace_id="ws_by_hand")["id"]
    moved = client.do("/api/v1/transitions", kind="worker", entity_id=other, to_state="TERMINATED")
    assert moved["success"]
    waiting = client.do("/api/jobs", task_description="wait", workspace_id="ws_nowhere")["id"]
    assert client.do(f"/api/jobs/{waiting}/cancel")["status"] == "CANCELED"
    job = client.do("/api/jobs", task_description="work", tasks={"a": {"run": "true"}})["id"]
    done = client.reach(f"/api/jobs/{job}", "COMPLETED", "FAILED")
    assert done["status"] == "COMPLETED" or "worker" in done["error"], "its worker may be the one that is killed"


def drive_document_003(client: Persistent) -> None:
    sent, withdrawn = (client.do("/runs", flow=LETTER)["id"] for _ in range(2))
    client.reach(f"/runs/{sent}", "WAITING_APPROVAL")
    client.do(f"/runs/{sent}/approve", reason="read it")
    assert client.do(f"/runs/{withdrawn}/cancel")["status"] == "CANCELED"
    assert {sent, withdrawn} <= {run["id"] for run in client.get("/runs?name=letter").json["runs"]}
    client.reach(f"/runs/{sent}", "SUCCEEDED")


class WorkerKilled(Exception):
    """A task of document 004 has failed with its worker."""


def reach(client: Persistent, path: str, state: str) -> None:
    found = client.reach(path, state, "FAILED")
    if found["state"] == "FAILED":
        assert "worker" in found["reason"], found
        raise WorkerKilled


def drive_document_004(client: Persistent) -> None:
    """It begins anew if a task of it had the worker that is killed."""
    try:
        drive_tasks(client)
    except WorkerKilled:
        drive_tasks(client)


def drive_tasks(client: Persistent) -> None:
    path = f"/api/tasks/{client.do('/api/tasks', name='asks', task={'run': ASKS})['id']}"
    client.do(f"{path}/run")
    reach(client, path, "BLOCKED")
    client.do(f"{path}/answer", answer="sqlite")
    reach(client, path, "READY")
    assert client.do(f"{path}/reject", comment="once more")["state"] == "PENDING"
    client.do(f"{path}/run")
    reach(client, path, "READY")
    assert client.do(f"{path}/accept")["state"] == "COMPLETED"
    slow = f"/api/tasks/{client.do('/api/tasks', name='slow', task={'command': ['sleep', '60'], 'timeout': '0.2s'})['id']}"
    client.do(f"{slow}/run")
    reach(client, slow, "TIMED_OUT")
    client.do(f"{slow}/resume")
    reach(client, slow, "TIMED_OUT")
    canceled = f"/api/tasks/{client.do('/api/tasks', name='canceled', task={'command': ['sleep', '60']})['id']}"
    client.do(f"{canceled}/run")
    client.do(f"{canceled}/cancel")
    client.reach(canceled, "CANCELLED")
    assert client.call("DELETE", canceled).status == 200
    assert client.get("/api/tasks").status == 200


def test_one_server_and_one_worker_are_killed_and_nothing_is_lost_or_done_twice(tmp_path: Path, postgres_url: str) -> None:
    with ExitStack() as stack:
        (first, doomed_server), (second, server) = (
            stack.enter_context(start("serve", tmp_path, postgres_url)) for _ in range(2)
        )
        doomed = stack.enter_context(start_worker(tmp_path, postgres_url, "--name", "doomed", "--lease", "3s"))
        workers = [stack.enter_context(start_worker(tmp_path, postgres_url, "--lease", "3s")) for _ in range(2)]
        first.call("PUT", "/api/v1/templates/counted", {"text": FLOW})
        until(lambda: find_worker(first, "doomed"))
        clients = [Persistent(first.url, others=(second.url,)) for _ in range(CLIENTS)]
        documents = [Persistent(first.url, others=(second.url,)) for _ in range(3)]
        answers: dict[str, Reply] = {}

        def submit_runs(number: int) -> None:
            for turn in range(RUNS_EACH):
                key = f"run-{number}-{turn}"
                answers[key] = submit(clients[number], key, find_seconds(key))

        with ThreadPoolExecutor() as pool:
            submitting = [pool.submit(submit_runs, number) for number in range(CLIENTS)]
            driving = [
                pool.submit(drive, client)
                for drive, client in zip((drive_document_000, drive_document_003, drive_document_004), documents, strict=True)
            ]
            until(lambda: len(answers) >= BEFORE_THE_KILL)
            doomed_server.kill()
            until(lambda: any(held["name"] == "counted" for held in find_worker(second, "doomed")["holds"]))
            doomed.kill()
            for each in (*submitting, *driving):
                each.result()
        check_routes(documents)
        assert sum(client.failed for client in (*clients, *documents)), "somebody has noticed"
        check_runs(second, tmp_path, answers)
        for process in (server, *workers):
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
    check_database(tmp_path, postgres_url)
    assert not find_inhabitants(tmp_path)
    assert "Traceback" not in (tmp_path / "serve.txt").read_text() + (tmp_path / "worker.txt").read_text()


def find_worker(client: Client, name: str) -> Any:
    return next((each for each in client.get("/api/v1/workers").json["items"] if each["name"] == name), None)


def check_routes(documents: list[Persistent]) -> None:
    of_documents = {name_operation(route) for route in ALL if route.tag.startswith("document")}
    assert of_documents <= set().union(*(client.answered for client in documents))


def check_runs(client: Client, folder: Path, answers: Mapping[str, Reply]) -> None:
    """One run for each key, and one effect for each attempt, the last of which has succeeded."""
    ids = {reply.json["id"] for reply in answers.values()}
    assert len(ids) == len(answers) == CLIENTS * RUNS_EACH
    for run_id in ids:
        client.until(f"/api/v1/runs/{run_id}", lambda run: run["outcome"] == "success")
    assert {run["id"] for run in client.get("/api/v1/runs?name=counted&limit=1000").json["items"]} == ids
    interrupted = 0
    for run_id in ids:
        (task,) = client.get(f"/api/v1/runs/{run_id}/tasks").json["items"]
        attempts = client.get(f"/api/v1/tasks/{task['id']}/attempts").json["items"]
        effects = [int(line) for line in (folder / f"{run_id}.txt").read_text().split()]
        assert effects == sorted(set(effects))
        assert effects[-1] == task["attempts"] == len(attempts)
        cut_short = {each["attempt"] for each in attempts if each["ended_by"] == "lease_lost"}
        assert {each["attempt"] for each in attempts} - set(effects) <= cut_short
        assert len(attempts) == len(cut_short) + 1
        interrupted += len(cut_short)
    assert interrupted, "the worker that was killed held a task"
    for key, reply in answers.items():
        again = submit(client, key, find_seconds(key))
        assert (again.text, again.headers["idempotent-replayed"]) == (reply.text, "true")


def check_database(folder: Path, url: str) -> None:
    """The audit trail leads to where everything stands, and the journal is clean."""

    async def check() -> None:
        async with app.open(url, keeps=False) as engine:
            await check_folding(engine)

    asyncio.run(check())
    for arguments in (["doctor", "--audit", "--store", url], ["validate", ".state/transitions.jsonl"]):
        command = [sys.executable, "-m", "pointsman", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-2000:])

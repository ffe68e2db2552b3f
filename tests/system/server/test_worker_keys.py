"""As which workers an API key acts: those that it has registered, and no others, not even of its own tenant."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

from tests.system.server.harness import Client, Reply
from tests.system.server.test_engine_calls import ask, serve, succeed
from tests.system.server.test_keys import EVERY

from pointsman import app
from pointsman.engine.operations.keys import Scope
from pointsman.store.rows import Attempt

PART: dict[str, Any] = {"offset": 0, "data": base64.b64encode(b"forged").decode()}


def act_as(client: Client, worker: str, task: str, epoch: int = 1) -> list[tuple[str, Reply]]:
    """Everything that a worker says about itself and its attempts."""
    attempts = [[task, epoch]]
    report = {"task_id": task, "epoch": epoch, "signal": "complete"}
    return [
        ("claim", client.post(f"/api/v1/workers/{worker}/claims", {})),
        ("heartbeat", client.post(f"/api/v1/workers/{worker}/heartbeats", {"attempts": attempts})),
        ("report", client.post(f"/api/v1/tasks/{task}/reports", {"epoch": epoch, "signal": "complete"})),
        ("costs", client.post(f"/api/v1/tasks/{task}/reports", {"epoch": epoch, "cost_usd": "1"})),
        ("log", client.post(f"/api/v1/tasks/{task}/attempts/{epoch}/log", PART)),
        ("artifact", client.post(f"/api/v1/tasks/{task}/attempts/{epoch}/artifact", {**PART, "name": "x"})),
        ("call claim", ask(client, "claim_tasks", {"worker_id": worker})),
        ("call heartbeat", ask(client, "send_heartbeat", {"worker_id": worker, "attempts": attempts})),
        ("call give up", ask(client, "give_up_tasks", {"worker_id": worker, "attempts": attempts})),
        ("call report", ask(client, "report_attempt", report)),
    ]


def leave(client: Client, worker: str) -> list[tuple[str, Reply]]:
    """Everything by which a worker ends."""
    signals: list[dict[str, Any]] = [
        {"signal": "fail"},
        {"signal": "drain"},
        {"signal": "terminate"},
        {"signal": "terminate", "ended": True},
    ]
    return [(str(each), ask(client, "signal_worker", {"worker_id": worker, **each})) for each in signals]


def refuse_all(told: list[tuple[str, Reply]], problem: str) -> None:
    assert {name: (reply.status, reply.problem if reply.status >= 400 else None) for name, reply in told} == {
        name: (404 if problem == "not-found" else 403, problem) for name, _ in told
    }


def submit(client: Client, count: int = 1) -> str:
    tasks = [{"name": f"t{number}", "capabilities": ["x"]} for number in range(count)]
    return str(succeed(client, "submit_run", {"name": "r", "tasks": tasks})["id"])


def register(client: Client, **more: object) -> str:
    return str(succeed(client, "register_worker", {"name": "w", "capabilities": ["x"], **more})["id"])


def claim(client: Client, worker: str, limit: int = 1) -> list[str]:
    claims, _ = succeed(client, "claim_tasks", {"worker_id": worker, "limit": limit})
    return [each["task_id"] for each in claims]


def list_attempts(client: Client, task: str) -> list[Any]:
    return list(succeed(client, "list_attempts", {"task_id": task}))


def test_a_key_acts_only_as_the_workers_that_it_has_registered(tmp_path: Path, database_url: str) -> None:
    keys: list[tuple[str, str, tuple[Scope, ...]]] = [("acme", "root", EVERY)]
    keys += [("acme", name, ("worker",)) for name in ("box", "other")]
    with serve(tmp_path, database_url, keys) as (root, box, other):
        run = submit(root, 2)
        worker = register(box, max_concurrent_tasks=2)
        (task,) = claim(box, worker)
        before = (root.get(f"/api/v1/workers/{worker}").json, list_attempts(root, task))
        refuse_all(act_as(other, worker, task) + leave(other, worker), "not-your-worker")
        refuse_all(act_as(root, worker, task), "not-your-worker")  # no scope makes a key another one
        reports = {"reports": [{"task_id": task, "epoch": 1, "signal": "complete"}]}
        assert [each["type"] for each in succeed(other, "report_attempts", reports)] == ["/problems/not-your-worker"]
        held = list_attempts(root, task)
        assert (held, held[0]["ended_at"], held[0]["cost_usd"]) == (before[1], None, "0")
        assert b"forged" not in root.send("GET", f"/api/v1/tasks/{task}/attempts/1/log").text

        # The same key from another connection is the same box, and an operator steers every worker.
        sent = box.post(f"/api/v1/tasks/{task}/attempts/1/log", PART)
        assert (sent.status, sent.json["size"]) == (200, 6)
        assert box.post(f"/api/v1/tasks/{task}/reports", {"epoch": 1, "signal": "complete"}).status == 200
        assert root.post(f"/api/v1/workers/{worker}/signals", {"signal": "pause"}).status == 200
        assert root.get(f"/api/v1/runs/{run}").json["state"] == "RUNNING"


def test_a_rotated_key_keeps_its_workers(tmp_path: Path, database_url: str) -> None:
    with serve(tmp_path, database_url, [("acme", "root", EVERY), ("acme", "box", ("worker",))]) as (root, box):
        submit(root)
        worker = register(box)
        (task,) = claim(box, worker)
        key = next(each["id"] for each in root.get("/api/v1/keys").json["items"] if each["name"] == "box")
        text = root.post(f"/api/v1/keys/{key}/rotate").json["text"]
        rotated = Client(box.url, {"Authorization": f"Bearer {text}"})
        assert rotated.post(f"/api/v1/workers/{worker}/heartbeats", {"attempts": [[task, 1]]}).json["lost"] == []
        assert rotated.post(f"/api/v1/tasks/{task}/reports", {"epoch": 1, "signal": "complete"}).status == 200


def test_no_key_acts_as_a_worker_of_the_operator_for_all_tenants(tmp_path: Path, database_url: str) -> None:
    """Such a worker has the database. A key that could claim with its id would get the tasks of every tenant."""

    async def open_shared() -> str:
        async with app.open(database_url, keeps=False) as engine:
            return (await engine.register_worker("shared", ["x"], serves="all", lease_seconds=600)).id

    async def take(worker: str) -> str:
        async with app.open(database_url, keeps=False) as engine:
            return (await engine.claim_tasks(worker))[0].task_id

    async def look(task: str) -> list[Attempt]:
        async with app.open(database_url, keeps=False) as engine:
            return await engine.for_tenant("acme").list_attempts(task)

    shared = asyncio.run(open_shared())
    keys: list[tuple[str, str, tuple[Scope, ...]]] = [("default", "op", EVERY), ("default", "box", ("worker",))]
    keys += [("acme", "ada", EVERY), ("globex", "bob", EVERY), ("globex", "box", ("worker",))]
    with serve(tmp_path, database_url, keys) as (op, box, acme, globex, globex_box):
        submit(acme, 2)
        for client in (op, box):
            told = ask(client, "claim_tasks", {"worker_id": shared})
            assert (told.status, told.problem) == (403, "not-your-worker")
        task = asyncio.run(take(shared))
        refuse_all(leave(box, shared), "not-your-worker")
        refuse_all(leave(globex_box, shared), "not-your-worker")  # it serves globex, too, which sees it
        about_tasks = ("report", "costs", "log", "artifact", "call report")
        for client in (op, box, globex):
            refuse_all([each for each in act_as(client, shared, task) if each[0] in about_tasks], "not-found")
        refuse_all([each for each in act_as(acme, shared, task) if each[0] in about_tasks], "not-your-worker")
        assert [(each.worker_id, each.ended_at) for each in asyncio.run(look(task))] == [(shared, None)]


def test_without_keys_the_machine_of_the_server_acts_as_any_worker(client: Client) -> None:
    submit(client)
    worker = register(client)
    (task,) = claim(client, worker)
    assert client.post(f"/api/v1/tasks/{task}/reports", {"epoch": 1, "signal": "complete"}).status == 200
    assert ask(client, "signal_worker", {"worker_id": worker, "signal": "terminate", "ended": True}).status == 200

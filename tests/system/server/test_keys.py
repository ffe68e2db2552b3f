"""API keys and tenants, over HTTP; and what the server does without any."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.system.server.harness import PATIENCE_SECONDS, Client, start, until

from pointsman import app
from pointsman.engine.operations.keys import CreateKey, Scope
from pointsman.engine.operations.tenants import AddTenant
from pointsman.server.openapi import list_problems
from pointsman.server.routes import ALL

FLOW = "name: secret-project\nlifecycle: approval\ntasks: {a: {run: 'true'}}"
EVERY: tuple[Scope, ...] = ("read", "submit", "operate", "approve", "worker", "admin")


def create_keys(url: str, wanted: Iterable[tuple[str, str, tuple[Scope, ...]]]) -> list[str]:
    """The texts of new keys, each with its tenant, name and scopes."""

    async def create() -> list[str]:
        texts = []
        async with app.open(url, keeps=False) as engine:
            known = {tenant.id for tenant in await engine.list_tenants()}
            for tenant, name, scopes in wanted:
                if tenant not in known:
                    await engine.for_tenant(tenant).perform(AddTenant())
                    known.add(tenant)
                issued = await engine.for_tenant(tenant).perform(CreateKey(name=name, scopes=scopes))
                assert issued.text
                texts.append(issued.text)
        return texts

    return asyncio.run(create())


def with_key(client: Client, text: str) -> Client:
    return Client(client.url, {"Authorization": f"Bearer {text}"})


def test_a_tenant_sees_and_moves_nothing_of_another_and_cannot_tell_it_from_nothing(tmp_path: Path, database_url: str) -> None:
    ada, bob, reader = create_keys(
        database_url, [("acme", "ada", EVERY), ("globex", "bob", EVERY), ("acme", "reader", ("read",))]
    )
    with start("serve", tmp_path, database_url) as (client, _):
        assert client.get("/runs").problem == "unauthenticated"
        assert client.get("/healthz").status == 200
        wrong = ada[:-1] + ("0" if ada[-1] != "0" else "1")
        assert client.get("/runs", Authorization=f"Bearer {wrong}").problem == "unauthenticated"
        assert client.get("/runs", Authorization="Basic YTpi").headers["www-authenticate"] == "Bearer"
        acme, globex = with_key(client, ada), with_key(client, bob)
        ids = {
            "run_id": acme.post("/runs", {"flow": FLOW}, idempotency_key="same").json["id"],
            "job_id": acme.post("/api/jobs", {"task_description": "x"}).json["id"],
            "task_id": acme.post("/api/tasks", {"name": "t", "task": {"run": "true"}}).json["id"],
            "worker_id": acme.post("/api/workers", {"workspace_id": "w"}).json["id"],
            "tool": acme.call("PUT", "/api/v1/breakers/acme-tool", {}).json["name"],
            "tenant": "acme",
            "key_id": acme.get("/api/v1/keys").json["items"][0]["id"],
        }
        ids["entity_id"] = ids["run_id"]
        compare_with_nothing(globex, ids)
        assert b"secret-project" not in globex.get("/runs").text + globex.get("/api/v1/events").text
        assert globex.get("/api/v1/inbox").json["items"] == globex.get("/api/v1/workers").json["items"] == []
        own = globex.post("/runs", {"flow": FLOW}, idempotency_key="same")
        assert (own.status, own.headers.get("idempotent-replayed")) == (201, None), "a key of another tenant is none of its own"
        check_scopes(with_key(client, reader), ids["run_id"])
        moved = acme.post(f"/runs/{ids['run_id']}/cancel")
        assert moved.json["status"] == "CANCELED"
        assert acme.get(f"/api/v1/history/{ids['run_id']}").json["items"][-1]["actor"] == "ada"
        revoke(acme, acme.get("/api/v1/keys").json["items"], "reader")
        until(lambda: with_key(client, reader).get("/runs").status == 401)  # a wake-up tells the server


def compare_with_nothing(globex: Client, ids: dict[str, str]) -> None:
    """Every route that names something: its answer about a thing of another tenant is that about nothing, byte for byte."""
    for route in ALL:
        names = [name for name in route.parameters if name in ids]
        if not names or (route.method, route.path) == ("PUT", "/api/v1/breakers/{tool}"):
            continue
        (name,) = names
        unknown = ids[name][:-1] + ("0" if ids[name][-1] != "0" else "1")
        body = BODIES.get(route.path, {})
        content, headers = (json.dumps(body).encode(), JSON) if body else (None, {})
        path = route.path + QUERIES.get(f"{route.method} {route.path}", "")
        theirs, nothing = (
            globex.send(route.method, path.replace(f"{{{name}}}", each), content, headers) for each in (ids[name], unknown)
        )
        assert (theirs.status, nothing.status) == (404, 404), (route, theirs)
        assert theirs.text == nothing.text.replace(unknown.encode(), ids[name].encode()), route
        assert "not-found" in {problem.name for problem in list_problems(route)}


JSON = {"Content-Type": "application/json"}
BODIES: dict[str, dict[str, object]] = {
    "/api/v1/tasks/{task_id}/reports": {"epoch": 1},
    "/api/v1/runs/{run_id}/signals": {"signal": "cancel"},
    "/api/v1/runs/{run_id}/tasks": {"tasks": [{"name": "x"}]},
    "/api/v1/runs/{run_id}/budget": {"budget_usd": None},
    "/api/v1/tenants/{tenant}/budget": {"budget_usd": None},
    "/api/v1/tasks/{task_id}/signals": {"signal": "cancel"},
    "/api/tasks/{task_id}/answer": {"answer": "x"},
    "/api/v1/workers/{worker_id}/signals": {"signal": "pause"},
}
QUERIES = {"GET /api/v1/tasks/{task_id}/attempts/{attempt}/artifact": "?name=x"}
"""What these routes need to be asked for anything."""


def check_scopes(reader: Client, run_id: str) -> None:
    assert reader.get(f"/runs/{run_id}").status == 200
    refused = reader.post(f"/runs/{run_id}/cancel")
    assert (refused.status, refused.problem, refused.json["scope"]) == (403, "forbidden", "operate")
    for route in ALL:
        if route.scope == "read" or route.is_open:
            continue
        path = route.path
        for name in route.parameters:
            path = path.replace(f"{{{name}}}", "x")
        assert reader.send(route.method, path).problem == "forbidden", route


def revoke(admin: Client, keys: Iterable[dict[str, str]], name: str) -> None:
    (key,) = [key for key in keys if key["name"] == name]
    assert admin.post(f"/api/v1/keys/{key['id']}/revoke").json["state"] == "revoked"


def test_keys_are_made_and_rotated_over_http_and_their_text_is_shown_once(tmp_path: Path, sqlite_url: str) -> None:
    (text,) = create_keys(sqlite_url, [("default", "root", EVERY)])
    with start("serve", tmp_path, sqlite_url) as (client, _):
        admin = with_key(client, text)
        made = admin.post("/api/v1/keys", {"name": "ci", "scopes": ["read"]}, idempotency_key="k")
        assert with_key(client, made.json["text"]).get("/runs").status == 200
        assert admin.post("/api/v1/keys", {"name": "ci", "scopes": ["read"]}, idempotency_key="k").json["text"] is None
        assert admin.post("/api/v1/keys", {"name": "ci", "scopes": ["read"]}).problem == "already-exists"
        rotated = admin.post(f"/api/v1/keys/{made.json['key']['id']}/rotate")
        until(lambda: with_key(client, made.json["text"]).get("/runs").status == 401)
        assert with_key(client, rotated.json["text"]).get("/runs").status == 200
        assert made.json["text"].encode() not in admin.get("/api/v1/keys").text


def test_an_idempotency_key_belongs_to_the_api_key_that_it_came_with(tmp_path: Path, database_url: str) -> None:
    wanted: list[tuple[str, str, tuple[Scope, ...]]] = [("default", name, ("submit", "read")) for name in ("one", "two")]
    one, two = create_keys(database_url, wanted)
    with start("serve", tmp_path, database_url) as (client, _):
        replies = [with_key(client, key).post("/runs", {"flow": FLOW}, idempotency_key="7") for key in (one, two, one)]
        assert [reply.headers.get("idempotent-replayed") for reply in replies] == [None, None, "true"]
        assert len({reply.json["id"] for reply in replies}) == 2
        assert replies[0].text == replies[2].text


def serve(folder: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pointsman", "serve", "--store", url, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def test_without_a_key_no_address_that_others_can_reach_is_served(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / ".pointsman").mkdir()
    refused = serve(tmp_path, sqlite_url, "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "pointsman key create" in refused.stderr
    create_keys(sqlite_url, [("default", "ci", ("read",))])
    with start("serve", tmp_path, sqlite_url, "--host", "0.0.0.0") as (client, _):
        assert client.get("/runs").problem == "unauthenticated"
        assert client.send("GET", "/healthz", headers={"Host": "example.org"}).status == 200

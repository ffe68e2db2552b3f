"""Tenants, quotas and rates over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.system.server.harness import start
from tests.system.server.test_engine_calls import ask, succeed
from tests.system.server.test_keys import EVERY, create_keys, with_key
from tests.system.server.test_remote import call, work

from pointsman import app
from pointsman.engine.calls import TENANT_HEADER, list_queries
from pointsman.engine.operations import OPERATIONS
from pointsman.engine.operations.keys import Scope
from pointsman.store.rows import ApiKey

BODY = {"name": "r", "tasks": [{"name": "a", "capabilities": ["elsewhere"]}]}


def test_the_operator_adds_tenants_and_sets_quotas_that_hold_on_every_server(tmp_path: Path, database_url: str) -> None:
    root, ada = create_keys(database_url, [("default", "root", EVERY), ("acme", "ada", EVERY)])
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with start("serve", folders[0], database_url) as (one, _), start("serve", folders[1], database_url) as (two, _):
        operator = with_key(one, root)
        added = operator.post("/api/v1/tenants", {"name": "globex"}, idempotency_key="k")
        assert (added.status, added.json["id"]) == (201, "globex")
        assert operator.post("/api/v1/tenants", {"name": "globex"}, idempotency_key="k").text == added.text
        assert operator.post("/api/v1/tenants", {"name": "globex"}).problem == "already-exists"
        quotas = operator.call("PUT", "/api/v1/tenants/acme/quotas", {"max_runs": 2, "reason": "as agreed"})
        assert quotas.json == {"tenant": "acme", "max_runs": 2, "max_tasks": None, "max_bytes": None}
        assert operator.call("PUT", "/api/v1/tenants/acne/quotas", {"max_runs": 2}).problem == "not-found"
        answers = [with_key(each, ada).post("/api/v1/runs", BODY, idempotency_key=str(each.url)) for each in (one, two)]
        assert [answer.status for answer in answers] == [201, 201]
        for path, body in (("/api/v1/runs", BODY), ("/api/jobs", {"task_description": "x"})):
            refused = with_key(two, ada).post(path, body)
            assert (refused.problem, refused.status) == ("quota-exceeded", 409)
            assert [refused.json[name] for name in ("quota", "limit", "used", "wanted")] == ["max_runs", 2, 2, 1]
        again = with_key(two, ada).post("/api/v1/runs", BODY, idempotency_key=str(two.url))
        assert (again.status, again.headers["idempotent-replayed"]) == (201, "true"), "an answer that is there costs nothing"
        listed = operator.get("/api/v1/tenants").json["items"]
        assert [(each["id"], each["unfinished_runs"], each["max_runs"]) for each in listed] == [
            ("acme", 2, 2),
            ("default", 0, None),
            ("globex", 0, None),
        ]


def test_a_tenant_sees_its_own_quotas_and_sets_none(tmp_path: Path, database_url: str) -> None:
    ada, _ = create_keys(database_url, [("acme", "ada", EVERY), ("globex", "bob", EVERY)])
    with start("serve", tmp_path, database_url) as (client, _):
        acme = with_key(client, ada)
        assert [each["id"] for each in acme.get("/api/v1/tenants").json["items"]] == ["acme"]
        assert acme.call("PUT", "/api/v1/tenants/acme/quotas", {}).problem == "operator-only"
        assert acme.call("PUT", "/api/v1/tenants/globex/quotas", {}).problem == "not-found"
        assert acme.call("PUT", "/api/v1/tenants/acme/budget", {"budget_usd": None}).problem == "operator-only"
        assert acme.call("PUT", "/api/v1/tenants/globex/budget", {"budget_usd": "1"}).problem == "not-found"
        assert acme.post("/api/v1/tenants", {"name": "initech"}).problem == "operator-only"


def test_a_tenant_does_not_lift_the_budget_that_the_operator_has_set(tmp_path: Path, database_url: str) -> None:
    root, ada = create_keys(database_url, [("default", "root", EVERY), ("acme", "ada", EVERY)])
    with start("serve", tmp_path, database_url) as (client, _):
        operator, acme = with_key(client, root), with_key(client, ada)
        budget = operator.call("PUT", "/api/v1/tenants/acme/budget", {"budget_usd": "5", "reason": "as agreed"})
        assert (budget.json["tenant"], budget.json["budget_usd"]) == ("acme", "5")
        for amount in ("1000", None):
            for told in (
                acme.call("PUT", "/api/v1/tenants/acme/budget", {"budget_usd": amount}),
                ask(acme, "set_tenant_budget", {"budget_usd": amount}),
            ):
                assert (told.status, told.problem) == (403, "operator-only")
        assert acme.get("/api/v1/account").json["budget_usd"] == "5"
        assert operator.get("/api/v1/account").json["budget_usd"] is None
        assert operator.call("PUT", "/api/v1/tenants/acne/budget", {"budget_usd": "5"}).problem == "not-found"


def test_a_call_is_about_another_tenant_only_for_the_operator_and_what_limits_it(tmp_path: Path, database_url: str) -> None:
    wanted: list[tuple[str, str, tuple[Scope, ...]]] = [("default", "root", EVERY), ("default", "reader", ("read",))]
    texts = create_keys(database_url, [*wanted, ("acme", "ada", EVERY), ("globex", "bob", EVERY)])
    with start("serve", tmp_path, database_url) as (client, _):
        root, reader, ada, globex = (with_key(client, text) for text in texts)
        assert globex.post("/api/v1/runs", BODY).status == 201
        for each in (root, ada, reader):
            each.headers[TENANT_HEADER] = "globex"
        limits: dict[str, dict[str, Any]] = {
            "set_quotas": {"max_runs": 1},
            "set_tenant_budget": {"budget_usd": "1"},
            "add_tenant": {},
        }
        for name, body in limits.items():
            assert ask(ada, name, body).problem == "operator-only"
            assert ask(reader, name, body).problem == "forbidden"
            assert (ask(root, name, body).status == 200) == (name != "add_tenant"), "it exists"
        assert globex.get("/api/v1/account").json["budget_usd"] == "1"
        assert succeed(root, "measure_tenant", {})["quota"]["max_runs"] == 1
        for name in sorted({*OPERATIONS, *list_queries()} - {*limits, "measure_tenant"}):
            about_all = name in list_queries() and list_queries()[name].is_of_all
            told = ask(ada, name, {}).status, ask(root, name, {})
            assert about_all or (told[0] == 403 and told[1].problem == "forbidden"), (name, told)
            assert b"elsewhere" not in told[1].text, name


def test_the_operator_looks_after_tenants_from_the_command_line(tmp_path: Path, database_url: str) -> None:
    root, ada = create_keys(database_url, [("default", "root", EVERY), ("acme", "ada", EVERY)])
    folder = tmp_path / "client"
    folder.mkdir()
    with start("serve", tmp_path, database_url) as (client, _):
        added = call(folder, client.url, "tenant", "add", "globex", "--request-id", "k", "--json", key=root)
        assert (added.returncode, json.loads(added.stdout)["id"]) == (0, "globex"), added
        advice = call(folder, client.url, "tenant", "add", "initech", key=root).stderr
        assert "where the database of the server is: pointsman key create --tenant initech" in advice
        assert call(folder, client.url, "tenant", "add", "globex", "--request-id", "k", key=root).returncode == 0
        assert "since" in call(folder, client.url, "tenant", "add", "globex", key=root).stderr
        limited = call(folder, client.url, "tenant", "set", "globex", "--max-runs", "1", "--reason", "agreed", key=root)
        assert limited.stdout == "globex: max-runs is 1\n", limited
        unknown = call(folder, client.url, "tenant", "set", "globe", "--max-runs", "1", key=root)
        assert (unknown.returncode, "Did you mean globex?" in unknown.stderr) == (2, True), unknown
        listed = call(folder, client.url, "tenant", "list", "--json", key=root)
        assert {each["id"]: each["max_runs"] for each in json.loads(listed.stdout)} == {
            "acme": None,
            "default": None,
            "globex": 1,
            "initech": None,
        }
        own = call(folder, client.url, "tenant", "list", "--json", key=ada)
        assert [each["id"] for each in json.loads(own.stdout)] == ["acme"]
        refused = {
            ("tenant", "add", "hooli"): "not for 'hooli'",
            ("tenant", "set", "acme", "--max-runs", "none"): "The operator does this",
            (
                "doctor",
                "--audit",
            ): "An audit reads what belongs to all tenants, however long that takes, and an API key is about one.",
            ("doctor", "--fix"): "A repair may change what belongs to all tenants, and an API key is about one.",
        }
        for words, why in refused.items():
            said = call(folder, client.url, *words, key=ada)
            assert (said.returncode, why in said.stderr) == (2, True), (words, said)
        elsewhere = call(folder, client.url, "key", "create", "--tenant", "globex", "--name", "x", "--scope", "read", key=root)
        assert (elsewhere.returncode, "use an API key of 'globex', or the database" in elsewhere.stderr) == (2, True), elsewhere


def test_a_tenant_looks_after_its_own_keys_from_the_command_line(tmp_path: Path, database_url: str) -> None:
    root, _ = create_keys(database_url, [("acme", "root", ("admin",)), ("globex", "bob", EVERY)])
    folder = tmp_path / "client"
    folder.mkdir()
    with start("serve", tmp_path, database_url) as (client, _):

        def type_(*words: str) -> str:
            said = call(folder, client.url, "key", *words, key=root)
            assert said.returncode == 0, (words, said)
            return said.stdout

        first = type_("create", "--name", "ci", "--scope", "read").strip()
        assert with_key(client, first).get("/runs").status == 200
        assert {each["name"]: each["tenant"] for each in json.loads(type_("list", "--json"))} == {"root": "acme", "ci": "acme"}
        second = type_("rotate", first.split("_")[1]).strip()
        assert with_key(client, second).get("/runs").status == 200
        assert type_("revoke", first.split("_")[1]).endswith("valid → revoked\n")
        assert with_key(client, second).get("/runs").status == 401
        (theirs,) = (each for each in list_all_keys(database_url) if each.tenant == "globex")
        unknown = call(folder, client.url, "key", "revoke", theirs.id, key=root)
        assert (unknown.returncode, f"There is no key '{theirs.id}'" in unknown.stderr) == (2, True), unknown


def test_a_worker_and_a_command_of_a_tenant_that_asks_too_often_wait(tmp_path: Path, sqlite_url: str) -> None:
    (key,) = create_keys(sqlite_url, [("acme", "ada", EVERY)])
    flow = {"flow": "name: many\ntasks: {each: {foreach: range(3), run: 'true'}}"}
    folder = tmp_path / "client"
    folder.mkdir()
    with start("serve", tmp_path, sqlite_url, "--rate-limit", "20", "--rate-burst", "10") as (client, _):
        ada = with_key(client, key)
        run = ada.post("/runs", flow).json["id"]
        while ada.get(f"/runs/{run}").status == 200:
            pass  # until nothing is left for the worker
        with work(folder, client.url, key, lease="60s"):
            said = call(folder, client.url, "watch", run, key=key)
            assert (said.returncode, "many is SUCCEEDED" in said.stdout + said.stderr) == (0, True), said
            status = call(folder, client.url, "status", run, "--json", key=key)
            assert status.returncode == 0, status
            assert {each["attempts"] for each in json.loads(status.stdout)["tasks"]} == {1}
        assert "more than 20 requests" not in (folder / "worker.txt").read_text()


def list_all_keys(url: str) -> list[ApiKey]:
    async def read() -> list[ApiKey]:
        async with app.open(url, keeps=False) as engine:
            return await engine.list_all_keys()

    return asyncio.run(read())


def test_without_keys_the_machine_of_the_server_is_the_operator(tmp_path: Path, database_url: str) -> None:
    folder = tmp_path / "client"
    folder.mkdir()
    with start("serve", tmp_path, database_url) as (client, _):
        assert call(folder, client.url, "tenant", "add", "globex", "--as", "ada").stdout == "added globex\n"
        assert call(folder, client.url, "tenant", "set", "globex", "--max-runs", "1").returncode == 0
        assert "globex" in call(folder, client.url, "tenant").stdout


def test_a_tenant_that_asks_too_often_is_told_when_to_come_back_and_no_other_one(tmp_path: Path, sqlite_url: str) -> None:
    ada, spare, bob = create_keys(sqlite_url, [("acme", "ada", EVERY), ("acme", "spare", EVERY), ("globex", "bob", EVERY)])
    limits = ("--rate-limit", "0.01", "--rate-burst", "3")
    with start("serve", tmp_path, sqlite_url, *limits) as (client, _):
        answers = [with_key(client, ada).get("/api/v1/account").status for _ in range(3)]
        assert answers == [200, 200, 200]
        for key in (ada, spare):
            refused = with_key(client, key).post("/api/v1/runs", BODY)
            assert (refused.problem, refused.status) == ("rate-limited", 429)
            assert 90 <= int(refused.headers["retry-after"]) <= 100
        assert with_key(client, bob).get("/api/v1/runs").json["items"] == []
        assert client.get("/healthz").status == 200

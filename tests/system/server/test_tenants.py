"""Tenants, quotas and rates over HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.system.server.harness import start
from tests.system.server.test_keys import EVERY, create_keys, with_key

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
        assert acme.post("/api/v1/tenants", {"name": "initech"}).problem == "operator-only"


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

"""Lists with filters and pages, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from tests.system.server.harness import Client


def submit(client: Client, name: str) -> dict[str, Any]:
    body = {"name": name, "tasks": [{"name": f"{name} step", "capabilities": ["elsewhere"]}]}
    created: dict[str, Any] = client.post("/api/v1/runs", body).json
    return created


def read_pages(client: Client, path: str, **query: object) -> Iterator[list[dict[str, Any]]]:
    after: dict[str, object] = {}
    while True:
        page = client.get(f"{path}?{urlencode({**query, **after})}").json
        yield page["items"]
        if page["next"] is None:
            return
        after = {"after": page["next"]}


def find_ids(client: Client, path: str = "/api/v1/runs", **query: object) -> list[str]:
    return [item["id"] for items in read_pages(client, path, **query) for item in items]


def test_runs_are_filtered_by_state_phase_outcome_lifecycle_name_text_and_time(client: Client) -> None:
    waiting, paused, canceled = (submit(client, name) for name in ("lists a", "lists b", "lists b"))
    client.post(f"/api/v1/runs/{paused['id']}/signals", {"signal": "pause", "reason": "the 100% crane"})
    client.post(f"/api/v1/runs/{canceled['id']}/signals", {"signal": "cancel"})
    newest = [canceled["id"], paused["id"], waiting["id"]]
    assert find_ids(client, text="lists ") == newest
    assert find_ids(client, text="lists ", limit=1) == newest
    assert find_ids(client, text="lists ", lifecycle="approval") == []
    assert find_ids(client, name="lists b") == newest[:2]
    assert find_ids(client, name="lists b", state="PAUSED") == find_ids(client, text="100% crane") == [paused["id"]]
    assert find_ids(client, text="lists ", phase="held") == find_ids(client, state="PAUSED", text="lists") == [paused["id"]]
    assert find_ids(client, text="lists ", outcome="canceled") == [canceled["id"]]
    assert find_ids(client, text="lists ", created_after=paused["created_at"]) == newest[:2]
    assert find_ids(client, text="lists ", created_before=paused["created_at"]) == newest[2:]
    assert [run["id"] for run in client.get("/runs?name=lists%20a").json["runs"]] == [waiting["id"]]


def test_pages_are_stable_while_runs_are_submitted(client: Client) -> None:
    runs = [submit(client, "stable")["id"] for _ in range(7)]
    seen: list[str] = []
    for page in read_pages(client, "/api/v1/runs", name="stable", limit=2):
        seen += [run["id"] for run in page]
        submit(client, "stable")
    assert seen == runs[::-1]


def test_tasks_of_all_runs_are_filtered(client: Client) -> None:
    runs = [submit(client, "tasks") for _ in range(3)]
    pages = list(read_pages(client, "/api/v1/tasks", name="tasks step", limit=2))
    assert [[task["run_id"] for task in page] for page in pages] == [[runs[2]["id"], runs[1]["id"]], [runs[0]["id"]]]
    (task,) = pages[1]
    assert task["state"] == client.get(f"/api/v1/tasks/{task['id']}").json["state"]
    client.post(f"/api/v1/tasks/{task['id']}/signals", {"signal": "cancel"})
    assert find_ids(client, "/api/v1/tasks", name="tasks step", outcome="canceled") == [task["id"]]
    assert find_ids(client, "/api/v1/tasks", name="tasks step", phase="queued", limit=1) == [each["id"] for each in pages[0]]
    assert find_ids(client, "/api/v1/tasks", flow="tasks") == [each["id"] for page in pages for each in page]
    assert find_ids(client, "/api/v1/tasks", flow="tasks step") == []


def test_every_wrong_condition_is_named(client: Client) -> None:
    wrong = {
        "phase": "runing",
        "outcome": "",
        "created_after": "yesterday",
        "label": "x",
        "tag": "",
        "limit": "0",
        "text": "a\0",
    }
    for path in ("/api/v1/runs", "/api/v1/tasks"):
        refused = client.get(f"{path}?{urlencode(wrong)}")
        assert refused.problem == "invalid-request"
        assert {error["path"] for error in refused.json["errors"]} == set(wrong)
    assert client.get("/api/v1/runs?created_after=0001-01-01T00:00:00%2B14:00&limit=1").status == 200
    assert client.get("/api/v1/runs?created_before=9999-12-31T23:59:59-14:00&limit=1").status == 200
    for path in ("/api/v1/runs", "/api/v1/tasks", "/api/v1/notices"):
        far = quote("2026-01-01T00:00:00-23:59")
        assert client.get(f"{path}?created_after={far}&created_before={far}").json["items"] == [], "a time zone far away"


def test_runs_are_found_by_their_tags(client: Client) -> None:
    flow = "name: tagged\ntags: [nightly]\ntasks: {a: {run: 'true', needs_capabilities: [elsewhere]}}"
    first = client.post("/runs", {"flow": flow, "tags": ["team a", "nightly"]}).json
    assert first["tags"] == ["nightly", "team a"]
    second = client.post("/api/v1/flows/run", {"flow": flow}).json
    body = {"name": "plain", "tasks": [{"name": "a", "capabilities": ["elsewhere"]}], "tags": ["team a"]}
    third = client.post("/api/v1/runs", body).json
    assert third["tags"] == ["team a"]
    assert find_ids(client, tag="team a") == [third["id"], first["id"]]
    assert find_ids(client, tag="nightly", limit=1) == [second["id"], first["id"]]
    assert [run["id"] for run in client.get("/runs?tag=nightly&name=plain").json["runs"]] == []
    assert (
        find_ids(client, "/api/v1/tasks", tag="team a", name="a")[0]
        == client.get(f"/api/v1/runs/{third['id']}/tasks").json["items"][0]["id"]
    )
    bulk = client.post("/api/v1/runs/bulk", {"action": "cancel", "filter": {"tag": "team a"}}).json
    assert [item["run_id"] for item in bulk["items"]] == [third["id"], first["id"]]
    assert client.get(f"/api/v1/runs/{second['id']}").json["outcome"] is None
    assert client.post("/api/v1/runs", {**body, "tags": [""]}).problem == "invalid-request"


def test_an_action_on_a_filter_is_foreseen_performed_once_and_answered_for_each_run(client: Client) -> None:
    ids = [submit(client, "bulk")["id"] for _ in range(3)][::-1]
    client.post(f"/api/v1/runs/{ids[0]}/signals", {"signal": "cancel"})
    body = {"action": "cancel", "filter": {"name": "bulk"}, "reason": "moved"}
    foreseen = client.post("/api/v1/runs/bulk", {**body, "dry_run": True}).json
    assert [(item["run_id"], item["success"]) for item in foreseen["items"]] == list(zip(ids, (False, True, True), strict=True))
    assert find_ids(client, name="bulk", outcome="canceled") == ids[:1]
    done = client.post("/api/v1/runs/bulk", body, idempotency_key="bulk-1")
    assert done.json == {**foreseen, "dry_run": False}
    assert find_ids(client, name="bulk", outcome="canceled") == ids
    late = submit(client, "bulk")["id"]
    repeated = client.post("/api/v1/runs/bulk", body, idempotency_key="bulk-1")
    assert (repeated.text, repeated.headers["idempotent-replayed"]) == (done.text, "true")
    assert client.get(f"/api/v1/runs/{late}").json["outcome"] is None
    assert client.post("/api/v1/runs/bulk", {**body, "limit": 5}, idempotency_key="bulk-1").problem == "key-reused"


def test_an_action_without_a_condition_is_refused(client: Client) -> None:
    for body, path in (
        ({"action": "cancel", "filter": {}}, "filter"),
        ({"action": "cancel"}, "filter"),
        ({"action": "complete", "filter": {"name": "x"}}, "action"),
        ({"action": "cancel", "filter": {"nme": "x"}}, "filter.nme"),
        ({"action": "cancel", "filter": {"name": "x"}, "limit": 1001}, "limit"),
    ):
        refused = client.post("/api/v1/runs/bulk", body)
        assert (refused.problem, [error["path"] for error in refused.json["errors"]]) == ("invalid-request", [path])

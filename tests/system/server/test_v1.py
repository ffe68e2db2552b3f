"""/api/v1, over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.system.server.harness import Client

FLOW = "name: release\ntasks:\n  build: {run: 'true'}\n  publish: {approval: {prompt: Publish?}, needs: [build]}\n"


def waits_for(task: dict[str, Any], kind: str) -> bool:
    return bool(task["waiting"]) and task["waiting"]["kind"] == kind


def test_a_run_of_a_flow_is_shown_with_its_tasks_what_it_waits_for_and_what_can_be_done(client: Client) -> None:
    created = client.post("/api/v1/flows/run", {"flow": FLOW})
    path = f"/api/v1/runs/{created.json['id']}"
    assert created.headers["location"] == path
    status = client.until(f"{path}/status", lambda run: waits_for(run["tasks"][1], "approval"))
    steps = {(step["operation"], step["target"]) for step in status["next_steps"]}
    (build, publish) = client.get(f"{path}/tasks").json["items"]
    assert ("approve", publish["id"]) in steps
    assert (publish["id"], "Publish?") in {
        (item["task_id"], item["text"]) for item in client.get("/api/v1/inbox").json["items"]
    }
    assert [attempt["exit_code"] for attempt in client.get(f"/api/v1/tasks/{build['id']}/attempts").json["items"]] == [0]
    approved = client.post(f"/api/v1/tasks/{publish['id']}/signals", {"signal": "approve", "reason": "fine"})
    assert (approved.json["state"], approved.json["reason"]) == ("SUCCEEDED", "fine")
    assert client.until(path, lambda run: run["outcome"])["outcome"] == "success"
    history = client.get(f"/api/v1/tasks/{publish['id']}/history").json["items"]
    assert history[-1]["to_state"] == "SUCCEEDED"
    assert client.get(f"/api/v1/history/{created.json['id']}").json["items"][-1]["to_state"] == client.get(path).json["state"]


def test_a_run_of_tasks_for_other_workers_is_submitted_extended_budgeted_paused_and_canceled(client: Client) -> None:
    body = {"name": "plain", "tasks": [{"name": "a", "capabilities": ["elsewhere"], "payload": {"x": 1}}]}
    created = client.post("/api/v1/runs", body, idempotency_key="plain-1")
    path = f"/api/v1/runs/{created.json['id']}"
    added = client.post(f"{path}/tasks", {"tasks": [{"name": "b", "depends_on": ["a"], "capabilities": ["elsewhere"]}]})
    assert [task["name"] for task in added.json["items"]] == ["b"]
    assert client.call("PUT", f"{path}/budget", {"budget_usd": "2.5"}).json["budget_usd"] == "2.5"
    assert client.get(f"{path}/budget").json["left_usd"] in ("2.5", "2.500000")
    assert client.post(f"{path}/signals", {"signal": "pause"}).json["state"] == "PAUSED"
    refused = client.post(f"{path}/signals", {"signal": "complete"})
    assert (refused.status, refused.json["errors"][0]["path"]) == (422, "signal")
    canceled = client.post(f"{path}/signals", {"signal": "cancel"})
    assert canceled.json["outcome"] == "canceled"
    notices = client.get(f"/api/v1/notices?about={created.json['id']}").json["items"]
    assert any(notice["subject"] == "budget" for notice in notices)
    assert client.post("/api/v1/runs", body, idempotency_key="plain-1").text == created.text


def test_events_are_read_in_pages_each_once(client: Client) -> None:
    run_id = client.post("/api/v1/flows/run", {"flow": FLOW}).json["id"]
    client.until(f"/api/v1/runs/{run_id}/status", lambda run: run["tasks"][0]["outcome"] == "success")
    positions: list[str] = []
    after = ""
    while items := (page := client.get(f"/api/v1/events?run_id={run_id}&limit=2{after}").json)["items"]:
        positions += [item["position"] for item in items]
        after = f"&after={page['next']}"
    assert len(positions) == len(set(positions)) > 4
    assert positions == sorted(positions, key=int)
    assert client.get("/api/v1/events?after=nonsense").status == 422


def test_a_flow_is_checked_without_being_run(client: Client) -> None:
    assert client.post("/api/v1/flows/check", {"flow": FLOW}).json["tasks"] == ["build", "publish"]
    invalid = client.post("/api/v1/flows/check", {"flow": "name: a\ntasks: {b: {needs: [c], run: x}}"}).json
    assert (invalid["valid"], invalid["findings"][0]["line"]) == (False, 2)
    foreign = client.post("/api/v1/flows/check", {"flow": "name: a\nlifecycle: /etc/passwd\ntasks: {b: {run: x}}"})
    assert foreign.json["errors"][0]["path"] == "flow.lifecycle"


def test_breakers_are_declared_tripped_and_reset(client: Client) -> None:
    path = "/api/v1/breakers/curl%20v2"
    assert client.get(path).problem == "not-found"
    declared = client.call("PUT", path, {"failure_threshold": 3})
    assert (declared.status, declared.json["name"], declared.json["failure_threshold"]) == (200, "curl v2", 3)
    assert client.post(f"{path}/trip", {"reason": "maintenance", "seconds": 600}).json["state"] == "OPEN"
    assert [move["trigger"] for move in client.get(path).json["allowed"]] == ["reset"]
    assert client.post(f"{path}/reset").json["state"] == "CLOSED"
    assert any(item["name"] == "curl v2" for item in client.get("/api/v1/breakers").json["items"])


def test_machines_are_listed_shown_and_drawn(client: Client) -> None:
    assert {"standard.task", "approval.run"} <= {item["name"] for item in client.get("/api/v1/machines").json["items"]}
    shown = client.get("/api/v1/machines/supervised.worker").json
    assert [state["name"] for state in shown["states"]][:3] == ["IDLE", "RUNNING", "PAUSED"]
    drawn = client.get("/api/v1/machines/supervised.worker/svg?state=PAUSED")
    assert drawn.text.startswith(b"<svg")
    assert "default-src 'none'" in drawn.headers["content-security-policy"]
    assert client.get("/api/v1/machines/supervised.worker/svg?state=NOWHERE").problem == "unknown-name"
    assert client.get("/api/v1/machines/none").problem == "not-found"


def test_workers_are_shown_with_what_they_can_be_told(client: Client) -> None:
    (up, *_) = [worker for worker in client.get("/api/v1/workers").json["items"] if worker["slots"] == 4]
    assert up["alive"]
    body = {"name": "box", "lifecycle": "standard", "capabilities": ["gpu"], "lease_seconds": 60}
    made = client.post("/api/v1/workers", body)
    path = f"/api/v1/workers/{made.json['id']}"
    assert made.status == 201
    assert client.post(f"{path}/signals", {"signal": "pause", "reason": "noise"}).json["reason"] == "noise"
    assert client.post(f"{path}/signals", {"signal": "terminate"}).json["allowed"] == []
    assert client.get(path).json["phase"] == "done"


def test_the_account_and_the_doctor_answer(client: Client) -> None:
    assert client.get("/api/v1/account").json["tenant"] == "default"
    budget = "/api/v1/tenants/default/budget"
    assert client.call("PUT", budget, {"budget_usd": "1000"}).json["budget_usd"] == "1000"
    assert client.call("PUT", budget, {"budget_usd": None}).json["budget_usd"] is None
    assert client.get("/api/v1/doctor").json["failing_duties"] == []


def test_names_with_slashes_are_addressed(client: Client) -> None:
    tool, template, tenant = (quote(name, safe="") for name in ("vendor/a tool", "../mail", "acme/eu"))
    assert client.call("PUT", f"/api/v1/breakers/{tool}", {}).json["name"] == "vendor/a tool"
    assert client.post(f"/api/v1/breakers/{tool}/trip").json["phase"] == "held"
    assert client.post(f"/api/v1/breakers/{tool}/reset").json["name"] == "vendor/a tool"
    assert client.call("PUT", f"/api/v1/templates/{template}", {"text": FLOW}).json["name"] == "../mail"
    assert client.get(f"/api/v1/templates/{template}").json["text"] == FLOW
    assert client.post("/api/v1/tenants", {"name": "acme/eu"}).status == 201
    assert client.call("PUT", f"/api/v1/tenants/{tenant}/quotas", {"max_runs": 7}).json["max_runs"] == 7
    assert client.get("/api/v1/breakers/vendor/a%20tool").problem == "no-such-route"

"""The routes of document 003, over HTTP: runs, their steps, approvals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.system.server.harness import Client

NEWSLETTER = """
name: newsletter
lifecycle: approval
ordered: true
inputs: {subject: {type: string, default: trains}}
tasks:
  TOOL:
    run: |
      echo 0.02 >> "$POINTSMAN_COST"
      echo '{"subject": "trains"}' > "$POINTSMAN_OUTPUT"
  APPROVAL:
    approval: {prompt: Send it?, self_approval: false}
  SEND:
    run: "true"
"""
AT_ONCE = 8
UNKNOWN = "run_00000000000000000000000000000000"


@pytest.fixture
def client(fleet: Client) -> Client:
    """Of several servers and workers, where the database takes them."""
    return fleet


def submit(client: Client, **headers: str) -> str:
    reply = client.post("/runs", {"flow": NEWSLETTER}, **headers)
    assert reply.status == 201, reply
    return str(reply.json["id"])


def reach_gate(client: Client, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = client.until(f"/runs/{run_id}", lambda run: run["status"] == "WAITING_APPROVAL")
    return found


def test_a_run_is_submitted_approved_and_succeeds_with_the_output_and_cost_of_its_steps(client: Client) -> None:
    run_id = submit(client)
    waiting = reach_gate(client, run_id)
    assert [step["status"] for step in waiting["steps"]] == ["SUCCEEDED", "WAITING_APPROVAL", "PENDING"]
    assert client.post(f"/runs/{run_id}/approve").problem == "not-allowed"
    approved = client.post(f"/runs/{run_id}/approve", {"reason": "read it"}, pointsman_actor="ada")
    assert approved.status == 200
    done = client.until(f"/runs/{run_id}", lambda run: run["status"] == "SUCCEEDED")
    tool, gate, _ = done["steps"]
    assert tool["output"] == {"subject": "trains"}
    assert float(tool["cost_usd"]) == float(done["spent_usd"]) == 0.02
    assert gate["reason"] == "read it"
    assert done["allowed"] == []


def test_to_approve_again_changes_nothing(client: Client) -> None:
    run_id = submit(client)
    reach_gate(client, run_id)
    for _ in range(2):
        assert client.post(f"/runs/{run_id}/approve", pointsman_actor="ada").status == 200
    client.until(f"/runs/{run_id}", lambda run: run["status"] == "SUCCEEDED")
    after = client.post(f"/runs/{run_id}/approve", pointsman_actor="ada")
    assert (after.status, after.json["status"]) == (200, "SUCCEEDED")


def test_a_run_is_canceled_once_and_a_second_time_is_refused(client: Client) -> None:
    run_id = submit(client)
    reach_gate(client, run_id)
    canceled = client.post(f"/runs/{run_id}/cancel", {"reason": "superseded"})
    assert (canceled.json["status"], canceled.json["reason"]) == ("CANCELED", "superseded")
    again = client.post(f"/runs/{run_id}/cancel")
    assert (again.status, again.problem) == (409, "transition-refused")
    assert (again.json["current_state"], again.json["case"], again.json["allowed"]) == ("CANCELED", "already_there", [])
    steps = client.get(f"/runs/{run_id}").json["steps"]
    assert [step["status"] for step in steps] == ["SUCCEEDED", "CANCELED", "CANCELED"]


def test_one_key_is_one_run_and_the_repetition_gets_the_same_bytes(client: Client) -> None:
    first = client.post("/runs", {"flow": NEWSLETTER}, idempotency_key="nightly-1")
    reach_gate(client, first.json["id"])
    second = client.post("/runs", {"flow": NEWSLETTER}, idempotency_key="nightly-1")
    assert (second.status, second.text) == (201, first.text)
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    in_body = client.post("/runs", {"request_id": "nightly-1", "flow": NEWSLETTER})
    assert in_body.text == first.text
    other = client.post("/runs", {"flow": NEWSLETTER, "reason": "again"}, idempotency_key="nightly-1")
    assert (other.status, other.problem) == (422, "key-reused")


def test_requests_with_one_key_that_come_at_once_are_one_run_on_every_server(client: Client) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        replies = list(
            threads.map(lambda _: client.post("/runs", {"flow": NEWSLETTER}, idempotency_key="at once"), range(AT_ONCE))
        )
    assert {(reply.status, reply.text) for reply in replies} == {(201, replies[0].text)}
    assert [reply.headers.get("idempotent-replayed") for reply in replies].count(None) == 1


def test_a_key_counts_for_its_route_and_the_run_that_it_was_used_on(client: Client) -> None:
    run_id = submit(client, idempotency_key="scoped")
    canceled = client.post(f"/runs/{run_id}/cancel", idempotency_key="scoped")
    assert canceled.status == 200
    assert client.post(f"/runs/{run_id}/cancel", idempotency_key="scoped").text == canceled.text
    other = submit(client)
    assert client.post(f"/runs/{other}/cancel", idempotency_key="scoped").problem == "key-reused"


def test_two_keys_that_differ_are_refused(client: Client) -> None:
    reply = client.post("/runs", {"flow": NEWSLETTER, "request_id": "a"}, idempotency_key="b")
    assert (reply.status, reply.json["errors"][0]["path"]) == (422, "request_id")


def test_runs_are_listed_in_pages_newest_first_and_each_once(client: Client) -> None:
    submitted = [submit(client) for _ in range(3)]
    seen: list[str] = []
    after = ""
    while True:
        page = client.get(f"/runs?limit=2{after}").json
        seen += [run["id"] for run in page["runs"]]
        if len(seen) == 2:
            submit(client)  # what comes later does not shift the pages
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen[:3] == submitted[::-1]
    assert len(seen) == len(set(seen))


def test_an_unknown_run_is_not_found_whatever_is_asked_of_it(client: Client) -> None:
    replies = [client.get(f"/runs/{UNKNOWN}"), client.post(f"/runs/{UNKNOWN}/approve"), client.post(f"/runs/{UNKNOWN}/cancel")]
    assert {reply.problem for reply in replies} == {"not-found"}
    assert {reply.text for reply in replies} == {replies[0].text}


def test_an_invalid_flow_is_refused_with_every_finding(client: Client) -> None:
    flow = "name: broken\nlifecycle: approval\ntasks:\n  a: {run: 'true', needs: [b]}\n  c: {run: 'true', retry: 3}\n"
    reply = client.post("/runs", {"flow": flow})
    assert (reply.status, reply.problem) == (422, "flow-invalid")
    assert [finding["line"] for finding in reply.json["findings"]] == [4, 5]


def test_a_stored_template_is_named_and_a_repeated_request_keeps_its_run_when_the_template_has_changed(client: Client) -> None:
    unknown = client.post("/runs", {"template": "newsletter-7"})
    assert (unknown.status, unknown.json["errors"][0]["path"]) == (422, "template")
    stored = client.call("PUT", "/api/v1/templates/newsletter-7", {"text": NEWSLETTER})
    assert (stored.status, stored.json["text"]) == (200, NEWSLETTER)
    body = {"template": "newsletter-7", "inputs": {"subject": "points"}}
    first = client.post("/runs", body, idempotency_key="template-1")
    assert (first.status, first.json["name"]) == (201, "newsletter")
    changed = NEWSLETTER.replace("name: newsletter", "name: other")
    assert client.call("PUT", "/api/v1/templates/newsletter-7", {"text": changed}).status == 200
    assert client.post("/runs", body, idempotency_key="template-1").text == first.text
    assert client.post("/runs", body).json["name"] == "other"
    assert client.get("/api/v1/templates/newsletter-7").json["text"] == changed
    assert client.post("/runs", {**body, "inputs": {"colour": "red"}}).status == 422
    assert client.post("/runs", {**body, "flow": NEWSLETTER}).json["errors"][0]["path"] == "template"
    assert client.call("PUT", "/api/v1/templates/broken", {"text": "name: a"}).problem == "flow-invalid"

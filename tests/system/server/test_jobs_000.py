"""The routes of document 000, over HTTP: workers, their supervisor, jobs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.system.server.harness import Client

UNKNOWN = "worker_00000000000000000000000000000000"


@pytest.fixture
def client(fleet: Client) -> Client:
    """Of several servers and workers, where the database takes them."""
    return fleet


def register(client: Client, **more: object) -> str:
    reply = client.post("/api/workers", {"workspace_id": "ws_test", **more})
    assert (reply.status, reply.json["status"]) == (201, "IDLE"), reply
    return str(reply.json["id"])


def supervise(client: Client, worker_id: str, signal: str, **body: object) -> Any:
    return client.post(f"/api/supervisor/workers/{worker_id}/{signal}", body)


def test_the_test_of_the_document_goes_as_it_says(client: Client) -> None:
    worker_id = register(client, capabilities=["gpu"], metadata={"rack": 7})
    started = client.post(f"/api/workers/{worker_id}/start")
    assert started.json["status"] == "RUNNING"
    paused = supervise(client, worker_id, "pause", reason="Test pause")
    assert (paused.status, paused.json["status"], paused.json["reason"]) == (200, "PAUSED", "Test pause")
    assert (paused.json["workspace_id"], paused.json["capabilities"], paused.json["metadata"]) == (
        "ws_test",
        ["gpu"],
        {"rack": 7},
    )
    assert {move["to_state"] for move in paused.json["allowed"]} == {"RUNNING", "TERMINATED"}
    assert supervise(client, worker_id, "resume").json["status"] == "RUNNING"
    assert supervise(client, worker_id, "terminate").json["status"] == "TERMINATED"


def test_the_same_request_id_gets_the_same_answer(client: Client) -> None:
    worker_id = register(client)
    client.post(f"/api/workers/{worker_id}/start")
    first = supervise(client, worker_id, "pause", request_id="req_abc123")
    supervise(client, worker_id, "resume")
    second = supervise(client, worker_id, "pause", request_id="req_abc123")
    assert second.text == first.text
    assert second.headers["idempotent-replayed"] == "true"
    assert client.get(f"/api/v1/workers/{worker_id}").json["state"] == "RUNNING"
    reused = supervise(client, worker_id, "pause", request_id="req_abc123", reason="another")
    assert (reused.status, reused.problem) == (422, "key-reused")
    supervise(client, worker_id, "terminate")


@pytest.mark.parametrize(
    ("before", "asked", "case", "words"),
    [
        ((), "pause", "not_allowed", "'pause' is not allowed from here"),
        (("start", "pause"), "pause", "already_there", "is already PAUSED"),
        (("terminate",), "resume", "terminal", "has ended in TERMINATED"),
    ],
)
def test_a_refusal_says_which_of_three_cases_it_is_the_state_and_what_is_allowed(
    client: Client, before: tuple[str, ...], asked: str, case: str, words: str
) -> None:
    worker_id = register(client)
    for signal in before:
        path = f"/api/workers/{worker_id}/start" if signal == "start" else f"/api/supervisor/workers/{worker_id}/{signal}"
        assert client.post(path).status == 200
    refused = supervise(client, worker_id, asked)
    assert (refused.status, refused.problem, refused.json["case"]) == (409, "transition-refused", case)
    assert words in refused.json["detail"]
    worker = client.get(f"/api/v1/workers/{worker_id}").json
    assert refused.json["current_state"] == worker["state"]
    assert {move["to_state"] for move in refused.json["allowed"]} == {move["to_state"] for move in worker["allowed"]}
    if case != "terminal":
        supervise(client, worker_id, "terminate")


def test_a_job_runs_with_workers_of_its_own_and_keeps_its_result_and_history(client: Client) -> None:
    tasks = {"count": {"run": """echo '{"words": 4}' > "$POINTSMAN_OUTPUT" """}}
    created = client.post("/api/jobs", {"task_description": "Count ${{ words }}", "tasks": tasks})
    assert created.status == 201
    assert len(created.json["id"]) == len("j_0123456789ab")
    assert created.json["depth"] == 0
    path = f"/api/jobs/{created.json['id']}"
    done = client.until(path, lambda job: job["status"] == "COMPLETED")
    assert [move["to_state"] for move in done["state_history"]] == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
    assert done["task_description"] == "Count ${{ words }}"
    assert done["result"]["count"]["outputs"] == {"words": 4} or done["result"] == {"count": {"words": 4}}
    assert done["started_at"] < done["completed_at"]
    refused = client.post(f"{path}/cancel")
    assert (refused.problem, refused.json["case"]) == ("transition-refused", "terminal")


def test_a_job_waits_for_its_workers_and_is_canceled_once_for_each_key(client: Client) -> None:
    body = {"task_description": "wait", "worker_count": 10, "workspace_id": "ws_nowhere"}
    first = client.post("/api/jobs", body, idempotency_key="job-1")
    assert first.json["status"] == "PENDING"
    path = f"/api/jobs/{first.json['id']}"
    canceled = client.post(f"{path}/cancel", {"reason": "no longer wanted"}, idempotency_key="cancel-1")
    assert canceled.json["status"] == "CANCELED"
    assert client.post(f"{path}/cancel", {"reason": "no longer wanted"}, idempotency_key="cancel-1").text == canceled.text
    assert client.post("/api/jobs", body, idempotency_key="job-1").text == first.text, "as it was then"


def test_jobs_nest_and_their_depth_follows_from_their_parent(client: Client) -> None:
    plain = {"task_description": "wait", "workspace_id": "ws_nowhere"}
    parent = client.post("/api/jobs", plain).json["id"]
    child = client.post("/api/jobs", {**plain, "parent_job_id": parent, "depth": 1})
    assert (child.status, child.json["depth"], child.json["parent_job_id"]) == (201, 1, parent)
    wrong = client.post("/api/jobs", {**plain, "depth": 3})
    assert (wrong.status, wrong.json["errors"][0]["path"]) == (422, "depth")
    for job_id in (child.json["id"], parent):
        assert client.post(f"/api/jobs/{job_id}/cancel").status == 200


def test_an_invalid_job_is_refused_with_every_problem(client: Client) -> None:
    reply = client.post("/api/jobs", {"worker_count": 11, "depth": 6, "speed": 1})
    assert (reply.status, reply.problem) == (422, "invalid-request")
    assert {error["path"] for error in reply.json["errors"]} == {"task_description", "worker_count", "depth", "speed"}


def test_what_is_not_there_is_not_found(client: Client) -> None:
    run_id = client.post("/runs", {"flow": "name: a\ntasks: {a: {run: 'true'}}"}).json["id"]
    replies = [client.get("/api/jobs/j_000000000000"), client.get(f"/api/jobs/{run_id}"), supervise(client, UNKNOWN, "pause")]
    assert [reply.problem for reply in replies] == ["not-found"] * 3


def test_a_transition_is_asked_for_by_state_or_by_trigger(client: Client) -> None:
    worker_id = register(client)
    body = {"kind": "worker", "entity_id": worker_id, "to_state": "RUNNING", "reason": "go"}
    moved = client.post("/api/v1/transitions", body)
    assert (moved.json["from_state"], moved.json["to_state"], moved.json["success"]) == ("IDLE", "RUNNING", True)
    refused = client.post("/api/v1/transitions", {"kind": "worker", "entity_id": worker_id, "to_state": "IDLE"})
    assert (refused.status, refused.json["case"], refused.json["current_state"]) == (409, "not_allowed", "RUNNING")
    triggered = client.post("/api/v1/transitions", {"kind": "worker", "entity_id": worker_id, "trigger": "terminate"})
    assert triggered.json["to_state"] == "TERMINATED"

"""The routes of document 004, over HTTP: tasks that people start, answer and review."""

from __future__ import annotations

from typing import Any

import pytest
from tests.system.server.harness import Client

ASKS = """
if [ -z "$POINTSMAN_ANSWER" ]; then
  echo '{"text": "Which database?", "choices": ["sqlite", "postgres"]}' > "$POINTSMAN_QUESTION"
  exit 0
fi
echo "{\\"chosen\\": \\"$POINTSMAN_ANSWER\\", \\"comment\\": \\"$POINTSMAN_COMMENT\\"}" > "$POINTSMAN_OUTPUT"
"""


@pytest.fixture
def client(fleet: Client) -> Client:
    """Of several servers and workers, where the database takes them."""
    return fleet


def create(client: Client, **task: object) -> str:
    reply = client.post("/api/tasks", {"name": "implement", "task": task})
    assert (reply.status, reply.json["state"]) == (201, "PENDING"), reply
    return f"/api/tasks/{reply.json['id']}"


def reach(client: Client, path: str, state: str) -> Any:
    return client.until(path, lambda task: task["state"] == state)


def test_a_task_is_run_answered_rejected_and_accepted(client: Client) -> None:
    path = create(client, run=ASKS)
    assert client.post(f"{path}/run", {"reason": "now"}).json["state"] == "QUEUED"
    blocked = reach(client, path, "BLOCKED")
    assert blocked["question"]["text"] == "Which database?"
    misfit = client.post(f"{path}/answer", {"answer": "mysql"})
    assert (misfit.status, misfit.json["errors"][0]["path"]) == (422, "answer")
    assert client.post(f"{path}/answer", {"answer": "sqlite"}).json["state"] == "QUEUED"
    ready = reach(client, path, "READY")
    assert ready["output"]["chosen"] == "sqlite"
    assert {move["trigger"] for move in ready["allowed"]} == {"accept", "reject"}
    rejected = client.post(f"{path}/reject", {"comment": "add an index"})
    assert (rejected.json["state"], rejected.json["comment"]) == ("PENDING", "add an index")
    client.post(f"{path}/run")
    reach(client, path, "READY")
    assert client.post(f"{path}/accept").json["state"] == "COMPLETED"
    assert client.post(f"{path}/accept").json["case"] == "already_there"
    attempts = client.get(path.replace("/api/", "/api/v1/") + "/attempts").json["items"]
    assert [attempt["ended_by"] for attempt in attempts] == ["ask", "exit_ok", "exit_ok"]


def test_a_failed_task_is_run_again_and_a_timed_out_one_resumed(client: Client) -> None:
    failing = create(client, command=["false"])
    client.post(f"{failing}/run")
    reach(client, failing, "FAILED")
    assert client.post(f"{failing}/resume").json["current_state"] == "FAILED"
    assert client.post(f"{failing}/run").status in (200, 409)  # as its attempts allow
    slow = create(client, command=["sleep", "60"], timeout="0.2s")
    client.post(f"{slow}/run")
    reach(client, slow, "TIMED_OUT")
    assert {move["trigger"] for move in client.get(slow).json["allowed"]} == {"resume"}


def test_a_running_task_is_canceled_when_its_process_has_ended(client: Client) -> None:
    path = create(client, command=["sleep", "60"])
    client.post(f"{path}/run")
    reach(client, path, "RUNNING")
    assert client.post(f"{path}/cancel", {"reason": "enough"}).status == 200
    assert reach(client, path, "CANCELLED")["phase"] == "done"


def test_one_key_creates_one_task_and_its_answer_stays_the_same(client: Client) -> None:
    body = {"name": "once", "task": {"command": ["true"]}}
    first = client.post("/api/tasks", body, idempotency_key="task-1")
    client.post(f"/api/tasks/{first.json['id']}/run")
    reach(client, f"/api/tasks/{first.json['id']}", "READY")
    again = client.post("/api/tasks", body, idempotency_key="task-1")
    assert (again.text, again.headers["idempotent-replayed"]) == (first.text, "true")


def test_tasks_of_other_lifecycles_are_not_found_here(client: Client) -> None:
    run_id = client.post("/runs", {"flow": "name: a\ntasks: {a: {run: 'true'}}"}).json["id"]
    (task,) = client.get(f"/api/v1/runs/{run_id}/tasks").json["items"]
    assert client.get(f"/api/tasks/{task['id']}").problem == "not-found"
    assert client.post(f"/api/tasks/{task['id']}/cancel").problem == "not-found"


def test_a_task_is_deleted_unless_it_runs_or_is_queued_and_its_history_stays(client: Client) -> None:
    path = create(client, command=["sleep", "60"])
    client.post(f"{path}/run")
    reach(client, path, "RUNNING")
    refused = client.call("DELETE", path)
    assert (refused.status, refused.problem, refused.json["current_state"]) == (409, "transition-refused", "RUNNING")
    client.post(f"{path}/cancel")
    reach(client, path, "CANCELLED")
    deleted = client.call("DELETE", path, idempotency_key="delete-1")
    assert (deleted.status, deleted.json["state"]) == (200, "CANCELLED")
    assert client.call("DELETE", path, idempotency_key="delete-1").text == deleted.text
    assert client.call("DELETE", path).problem == client.get(path).problem == client.post(f"{path}/run").problem == "not-found"
    assert deleted.json["id"] not in {task["id"] for task in client.get("/api/tasks").json["tasks"]}
    assert client.get(path.replace("/api/", "/api/v1/") + "/history").json["items"][-1]["to_state"] == "CANCELLED"


def test_nobody_waits_for_a_task_that_was_deleted(client: Client) -> None:
    path = create(client, command=["true"])
    client.post(f"{path}/run")
    task = reach(client, path, "READY")
    assert client.call("DELETE", path, {"reason": "not needed"}).status == 200
    assert client.get(f"/api/v1/runs/{task['run_id']}").json["outcome"] == "canceled"
    assert task["id"] not in {item["task_id"] for item in client.get("/api/v1/inbox").json["items"]}


def test_tasks_are_listed_newest_first_in_pages(client: Client) -> None:
    created = [create(client, command=["true"]).rpartition("/")[2] for _ in range(3)]
    first = client.get("/api/tasks?limit=2").json
    second = client.get(f"/api/tasks?limit=2&after={first['next']}").json
    assert [task["id"] for task in (*first["tasks"], *second["tasks"])][:3] == created[::-1]


def test_tasks_are_filtered(client: Client) -> None:
    first, second = (
        client.post("/api/tasks", {"name": name, "task": {"run": "true"}}).json for name in ("filter a", "filter b")
    )
    client.post(f"/api/tasks/{second['id']}/cancel")
    for query, expected in {
        "text=filter%20": [second, first],
        "name=filter%20a": [first],
        "text=filter%20&state=CANCELLED": [second],
        f"name=filter%20b&created_before={first['created_at']}": [],
    }.items():
        assert [each["id"] for each in client.get(f"/api/tasks?{query}").json["tasks"]] == [each["id"] for each in expected]
    assert client.get("/api/tasks?lifecycle=standard").problem == "invalid-request"

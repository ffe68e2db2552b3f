"""A server whose database is busy: it takes as many changes as its queue has room for, and refuses the others."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from tests.system.server.harness import Client, Reply, start, until

MAX_QUEUE = 10
REQUESTS = 60


@contextmanager
def locked(url: str) -> Iterator[None]:
    """No other process can write, but all can read."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
    else:
        with psycopg.connect(url) as session:
            session.execute("LOCK TABLE run IN EXCLUSIVE MODE")
            yield
            session.rollback()


def submit(client: Client, number: int) -> Reply:
    body = {"name": f"run-{number}", "tasks": [{"name": "a", "capabilities": ["elsewhere"]}]}
    return client.post("/api/v1/runs", body, idempotency_key=str(number))


def list_names(client: Client) -> Counter[str]:
    return Counter(run["name"] for run in client.get("/api/v1/runs?limit=1000").json["items"])


def test_a_full_queue_refuses_changes_for_now_and_loses_none_that_it_took(tmp_path: Path, database_url: str) -> None:
    with (
        start("serve", tmp_path, database_url, "--max-queue", str(MAX_QUEUE)) as (client, _),
        ThreadPoolExecutor(REQUESTS) as pool,
    ):
        assert submit(client, -1).status == 201
        with locked(database_url):
            replies: list[Future[Reply]] = [pool.submit(submit, client, number) for number in range(REQUESTS)]
            until(lambda: any(each.done() for each in replies), lambda: replies)
            assert list_names(client) == {"run--1": 1}, "reads go on"
            refused = until(lambda: [each.result() for each in replies if each.done()])
            assert {each.problem for each in refused} == {"overloaded"}
        answers = [each.result() for each in replies]
        taken = [number for number, each in enumerate(answers) if each.status == 201]
        refused = [each for each in answers if each.status != 201]
        assert len(taken) >= MAX_QUEUE, "what had a place in the queue was written"
        assert {(each.status, each.problem) for each in refused} == {(503, "overloaded")}
        assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
        assert list_names(client) == Counter(["run--1", *(f"run-{number}" for number in taken)])
        assert {client.get(f"/api/v1/runs/{answers[number].json['id']}").json["name"] for number in taken} == {
            f"run-{number}" for number in taken
        }
        again = [submit(client, number) for number in range(REQUESTS)]
        assert {each.status for each in again} == {201}
        assert [each.headers.get("idempotent-replayed") == "true" for each in again] == [
            each.status == 201 for each in answers
        ], "the client sends each again with its key"
        assert list_names(client) == Counter(["run--1", *(f"run-{number}" for number in range(REQUESTS))])

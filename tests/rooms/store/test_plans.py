"""Query plans of claims: an index finds the rows, however many tasks there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apsw
import psycopg
from tests.databases import open_store
from tests.rooms.store.store_fixture import ACME, open_store_fixture

from pointsman.store.clock import NEVER
from pointsman.store.columns import RUN_CONDITIONS, TASK_CONDITIONS
from pointsman.store.contract import FOREVER
from pointsman.store.postgres.connections import READER_SESSION, WRITER_SESSION
from pointsman.store.postgres.store import QUERIES as POSTGRES
from pointsman.store.rows import Dependency
from pointsman.store.sqlite.store import QUERIES as SQLITE


def test_claims_of_a_run_sort_nothing_but_the_heads_of_lanes(database_url: str) -> None:
    open_store(database_url).close()
    for query in ("select_claimable_of_run", "select_allocated"):
        lanes = {"lane_id": 1} if database_url.startswith("sqlite") else {"lane_ids": [1, 2]}
        plan = explain(database_url, query, {"run_id": "run_1", "limit": 10, **lanes})
        assert "task_claimable_of_run" in plan, plan
        if database_url.startswith("sqlite"):
            assert "TEMP B-TREE" not in plan
        else:
            below = plan[plan.index("task_claimable_of_run") :]
            assert "Sort" not in below
            assert "Index Cond: ((run_id = " in below
            assert "lane_id = lane.id" in below.split("Filter:")[0]


def test_what_counts_towards_a_quota_is_found_without_what_has_ended(database_url: str) -> None:
    open_store(database_url).close()
    plan = explain(database_url, "measure_use", {"tenant": "acme"})
    assert "run_in_progress" in plan, plan
    assert plan.count("task_unfinished") == 2, plan


def test_attempts_of_a_tool_are_counted_among_the_current_ones(database_url: str) -> None:
    open_store(database_url).close()
    plan = explain(database_url, "count_at_work", {"tenant": "acme", "tool": "git"})
    assert "task_held" in plan, plan


def test_tenants_with_tasks_to_claim_are_found_without_reading_their_tasks(database_url: str) -> None:
    open_store(database_url).close()
    plan = explain(database_url, "find_waiting_tenants", {"after": "acme", "limit": 10})
    for index in ("task_claimable", "task_reclaimable"):
        assert f"{index} (tenant>?)" in plan or f"{index} on task" in plan, plan
    assert "SCAN task" not in plan
    assert "Seq Scan" not in plan


def test_free_workers_are_found_among_those_of_a_tenant_and_the_shared_ones(database_url: str) -> None:
    open_store(database_url).close()
    plan = explain(database_url, "find_free_workers", {"tenant": "acme", "limit": 10, "needed": "[]", "run_id": None})
    assert "worker_alive" in plan, plan
    assert "worker_shared" in plan, plan


def test_the_newest_runs_are_read_from_an_index(database_url: str) -> None:
    open_store(database_url).close()
    indexes = {"list_runs": "run_of_tenant", "list_unfinished_runs": "run_unfinished", "list_runs_of_name": "run_of_name"}
    for query, index in indexes.items():
        name = "nightly" if query == "list_runs_of_name" else None
        plan = explain(database_url, query, {**dict.fromkeys(RUN_CONDITIONS), **between(database_url), "name": name})
        assert index in plan, plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan
        assert "created_at" in plan.split("Index Cond:")[-1].split(index)[-1], plan


def test_the_newest_runs_with_a_tag_are_read_from_its_key(database_url: str) -> None:
    open_store(database_url).close()
    values = {**dict.fromkeys(RUN_CONDITIONS), **between(database_url), "tag": "nightly"}
    plan = explain(database_url, "list_runs_of_tag", values)
    assert "SEARCH run_tag USING PRIMARY KEY" in plan or "run_tag_pkey on run_tag" in plan, plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan
    assert "SCAN run" not in plan
    assert "Seq Scan" not in plan


def test_tasks_of_all_runs_are_searched_run_by_run(database_url: str) -> None:
    open_store(database_url).close()
    for query, index in {"search_tasks": "", "search_unfinished_tasks": "task_unfinished"}.items():
        plan = explain(database_url, query, {**dict.fromkeys(TASK_CONDITIONS), **between(database_url), "before_task": ""})
        assert "run_of_tenant" in plan, plan
        assert index in plan, plan
        assert "USE TEMP B-TREE FOR LAST TERM OF ORDER BY" in plan or "Presorted Key: run.created_at" in plan, plan
        assert "SCAN task" not in plan
        assert "Seq Scan" not in plan


def between(url: str) -> dict[str, Any]:
    is_sqlite = url.startswith("sqlite")
    since, before = (0, 2**53) if is_sqlite else (NEVER, FOREVER)
    return {"tenant": "acme", "since": since, "before": before, "before_id": "", "tag": None, "text": None, "limit": 10}


def explain(url: str, query: str, values: Mapping[str, Any]) -> str:
    if url.startswith("sqlite:///"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        return "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {SQLITE[query]}", values))
    with psycopg.connect(url, autocommit=True) as postgres:
        postgres.execute(WRITER_SESSION.encode())
        statement = POSTGRES[query]
        bound = [values[name] for name in statement.names]
        return "\n".join(row[0] for row in psycopg.RawCursor(postgres).execute(b"EXPLAIN " + statement.text, bound))


def test_metrics_read_no_task_and_no_worker_that_has_ended(database_url: str) -> None:
    open_store(database_url).close()
    queues = explain(database_url, "measure_queues", {})
    assert "task_claimable" in queues, queues
    assert "task_reclaimable" in queues, queues
    workers = explain(database_url, "measure_workers", {})
    assert "task_held" in workers, workers
    tallied = explain(database_url, "tally_transitions", {"after": 10, "end": 20})
    assert "rowid>?" in tallied or 'Index Cond: (("position" > ' in tallied.replace("10", ""), tallied


def test_tasks_end_by_their_ids_although_statistics_were_taken_while_none_was_held(sqlite_url: str) -> None:
    open_store(sqlite_url).close()
    with apsw.Connection(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("ANALYZE sqlite_schema")
        statistics = [("task", "sqlite_autoindex_task_1", "1000000 1"), ("task", "task_held", "0 0")]
        connection.executemany("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", statistics)
    plan = explain(sqlite_url, "end_plain_tasks", dict.fromkeys(("reports", "moves", "now", "tenant", "key_id")))
    assert "SEARCH task USING INDEX sqlite_autoindex_task_1 (id=?)" in plan, plan
    assert "task_held" not in plan


def test_a_page_of_the_events_of_a_tenant_reads_no_more_than_the_page(postgres_url: str) -> None:
    with open_store_fixture(postgres_url) as db:
        with db.transaction() as begun:
            begun.insert_runs([db.run() for _ in range(3_000)])
        with psycopg.connect(postgres_url, autocommit=True) as session:
            session.execute("ANALYZE")
        statement = POSTGRES["list_transitions"]
        values = {"tenant": ACME, "after": 0, "end": 10**9, "limit": 100}
        with psycopg.connect(postgres_url) as session:
            session.execute(f"{READER_SESSION}; SELECT 1".encode())
            before = count_read(session)
            rows = psycopg.RawCursor(session).execute(statement.text, [values[name] for name in statement.names]).fetchall()
            assert len(rows) == 100
            assert count_read(session) - before < 500


def test_the_law_probes_other_rows_by_an_index(postgres_url: str) -> None:
    """Also with plans that were made while the tables were empty, and with those of another session."""
    with open_store_fixture(postgres_url) as db:
        run = db.put(db.run())
        first = db.put_task(run, state="RUNNING")
        with db.transaction() as begun:
            others = [db.task(run, open_dependencies=1) for _ in range(1_000)]
            begun.insert_tasks(others)
            begun.insert_dependencies([Dependency(task.id, first.id) for task in others])
            begun.insert_runs([db.run() for _ in range(1_000)])
        db.move(first, "SUCCEEDED")
        with db.transaction() as begun:
            begun.insert_workers([db.worker(id="worker_idle"), db.worker(id="worker_done")])
        new = "jsonb_populate_record(task, jsonb_build_object('id', 'task_new', 'name', 'new', 'open_dependencies', 0))"
        statements = (
            f"UPDATE task SET open_dependencies = 0 WHERE id = '{others[7].id}'",
            f"UPDATE task SET state = 'QUEUED' WHERE id = '{others[7].id}'",
            f"INSERT INTO task OVERRIDING USER VALUE SELECT ({new}).* FROM task WHERE id = '{others[8].id}'",
            f"UPDATE worker SET run_id = '{run.id}' WHERE id = 'worker_idle'",
            "UPDATE worker SET state = 'TERMINATED' WHERE id = 'worker_done'",
            f"UPDATE run SET state = 'RUNNING' WHERE id = '{run.id}'",
        )
        for settings in ("", WRITER_SESSION):
            with psycopg.connect(postgres_url) as session:
                session.execute(f"{settings or 'SELECT 1'}; SELECT 1".encode())
                for statement in statements:
                    before = count_read(session)
                    session.execute(statement.encode())
                    assert count_read(session) - before < 100, statement
                session.rollback()


def count_read(session: psycopg.Connection[Any]) -> int:
    """How many rows of these tables the transaction has read."""
    asked = b"""
        SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::integer FROM pg_stat_xact_user_tables
         WHERE relname IN ('run', 'task', 'dependency', 'trail')
    """
    ((read,),) = session.execute(asked).fetchall()
    return int(read)

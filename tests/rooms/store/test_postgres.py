"""What only PostgreSQL has: concurrent writers, notifications, lost connections, and a schema beside others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from tests.rows import each_row

from pointsman import app
from pointsman.errors import (
    Conflict,
    LawBroken,
    RequestInvalid,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreTooNew,
    StoreUnavailable,
    StoreUnusable,
)
from pointsman.lifecycles import load_machine
from pointsman.store.contract import Wakeup
from pointsman.store.postgres import store as postgres
from pointsman.store.postgres.connections import explain, show
from pointsman.store.postgres.listener import EVERYTHING
from pointsman.store.postgres.statements import Statement
from pointsman.store.postgres.store import MIGRATION_LOCK, PostgresStore, PostgresTransaction
from pointsman.store.rows import Breaker, Entity, Run, Task, Timer, Worker
from pointsman.store.scripts import read_migrations
from pointsman.world import RandomIds, World

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PATIENCE_SECONDS = 20
MOVED = Entity.CHANGING
"""The columns that any move may change."""


def open_store(url: str) -> PostgresStore:
    return PostgresStore(url, clock=None, ids=RandomIds())


@contextmanager
def connect(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(open_store(postgres_url)) as store:
        yield store


@pytest.fixture
def other(postgres_url: str) -> Iterator[PostgresStore]:
    """A second store, which is another process to the database."""
    with closing(open_store(postgres_url)) as store:
        yield store


@contextmanager
def transaction(store: PostgresStore, wakeup: Wakeup = Wakeup.NOTHING) -> Iterator[PostgresTransaction]:
    begun = store.begin()
    try:
        yield begun
    except BaseException:
        begun.rollback()
        raise
    begun.commit(wakeup)


def prepare(store: PostgresStore) -> tuple[int, int]:
    """A tenant, the machines of runs and tasks, and a lane with the first id."""
    with transaction(store) as begun:
        begun.ensure_tenant("acme", AT)
        for name in ("standard.run", "standard.task"):
            begun.insert_machine(load_machine(name), fingerprint="f", definition="d")
        begun.insert_lane("acme", None, "[]", fails_fast=False)
        machines = {machine.name: machine.id for machine in begun.list_machines()}
    return machines["standard.run"], machines["standard.task"]


def a_run(name: str, **columns: Any) -> Run:
    law = {"tenant": "acme", "machine_id": 1, "state": "PENDING", "phase": "queued", "entered_at": AT, "created_at": AT}
    return Run(**{**law, "id": name, "name": name, "lifecycle": "standard", **columns})


def a_task(name: str, run_id: str, **columns: Any) -> Task:
    law = {"tenant": "acme", "machine_id": 2, "state": "PENDING", "phase": "held", "entered_at": AT, "created_at": AT}
    return Task(**{**law, "id": name, "name": name, "run_id": run_id, "lane_id": 1, "payload": "null", **columns})


def queued(task: Task) -> Task:
    return replace(task, state="QUEUED", phase="queued", trigger="ready", revision=task.revision + 1)


def insert_run(store: PostgresStore, name: str, tasks: int = 0) -> None:
    """An open run whose tasks are all claimable."""
    rows = [a_task(f"task_of_{name}_{number}", name, run_open=True) for number in range(tasks)]
    with transaction(store) as begun:
        begun.insert_runs([a_run(name)])
        begun.insert_tasks(rows)
        begun.move([queued(row) for row in rows], MOVED)


def read_stream(store: PostgresStore, after: str | None = None) -> tuple[list[str], str | None]:
    """The entities in the stream after a position, and its new position."""
    with store.read() as reader:
        found = reader.list_transitions("acme", after=after, limit=100, run_id=None)
    return [transition.entity_id for transition in found], found[-1].position if found else after


def kill(url: str, application: str = "pointsman") -> None:
    """Terminate every connection of Pointsman to this database, as an administrator would."""
    with connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s AND pid <> pg_backend_pid()",
            [application],
        )


# the schema


def test_migrations_are_applied_once(empty_postgres_url: str) -> None:
    for _ in range(2):
        open_store(empty_postgres_url).close()
    with connect(empty_postgres_url) as connection:
        numbers = connection.execute("SELECT number FROM migration ORDER BY number").fetchall()
        assert numbers == [(number,) for number in range(1, len(read_migrations("pointsman.store.postgres")) + 1)]


def test_processes_that_start_together_migrate_once(empty_postgres_url: str) -> None:
    failures: list[StoreError] = []

    def start() -> None:
        try:
            open_store(empty_postgres_url).close()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        connection.execute("INSERT INTO migration VALUES (99, 'of_tomorrow', now())")
    with pytest.raises(StoreTooNew, match="schema 99"):
        open_store(postgres_url)


def test_tables_of_another_program_are_left_alone(empty_postgres_url: str) -> None:
    with connect(empty_postgres_url) as connection:
        connection.execute("CREATE TABLE task (title text)")
    with pytest.raises(StoreUnusable, match="another program"):
        open_store(empty_postgres_url)
    with connect(empty_postgres_url) as connection:
        connection.execute("CREATE SCHEMA pointsman")
    with closing(open_store(f"{empty_postgres_url}&options=-csearch_path%3Dpointsman")) as store:
        prepare(store)
        insert_run(store, "run_1", tasks=1)
    # The law also holds in a session with another search path.
    with connect(empty_postgres_url) as connection:
        connection.execute("CREATE TEMPORARY TABLE rule AS SELECT * FROM pointsman.rule WITH NO DATA")
        connection.execute("UPDATE pointsman.task SET state = 'CANCELED'")
        assert connection.execute("SELECT actor FROM pointsman.transition ORDER BY position DESC LIMIT 1").fetchall() == [
            ("sql",)
        ]


def test_a_migration_table_of_another_program_is_left_alone(empty_postgres_url: str) -> None:
    with connect(empty_postgres_url) as connection:
        connection.execute("CREATE TABLE migration (version text, apply_time integer)")
    with pytest.raises(StoreUnusable, match="belongs to another program"):
        open_store(empty_postgres_url)


def test_a_schema_that_does_not_exist_is_explained(empty_postgres_url: str) -> None:
    with pytest.raises(StoreUnusable, match="CREATE SCHEMA"):
        open_store(f"{empty_postgres_url}&options=-csearch_path%3Dnowhere")


# the stream


def test_the_stream_waits_for_late_commits(store: PostgresStore, other: PostgresStore) -> None:
    prepare(store)
    late = other.begin()
    late.insert_runs([a_run("run_late")])
    late._session.settle()
    insert_run(store, "run_early")
    assert read_stream(store) == ([], None)
    late.commit()
    assert read_stream(store)[0] == ["run_late", "run_early"]


def test_no_reader_misses_or_repeats_a_row(store: PostgresStore, other: PostgresStore) -> None:
    prepare(store)
    seen, position = [], None
    for number in range(6):
        late = other.begin()
        late.insert_runs([a_run(f"run_{number}_late")])
        late._session.settle()
        insert_run(store, f"run_{number}_early")
        for is_committed in (False, True):
            if is_committed:
                late.commit()
            found, position = read_stream(store, position)
            seen += found
    assert seen == [f"run_{number}_{when}" for number in range(6) for when in ("late", "early")]
    with store.read() as reader:
        assert reader.last_position() == position


def test_the_stream_does_not_wait_for_other_databases(store: PostgresStore, empty_postgres_url: str) -> None:
    prepare(store)
    with connect(empty_postgres_url) as connection, connection.transaction():
        connection.execute("SELECT pg_current_xact_id()")
        insert_run(store, "run_1")
        assert read_stream(store)[0] == ["run_1"]


def test_the_moves_of_an_entity_are_in_order(store: PostgresStore, other: PostgresStore, postgres_url: str) -> None:
    """The transaction that began first may make the last move."""
    prepare(store)
    early = other.begin()
    early.insert_runs([a_run("run_early")])
    insert_run(store, "run_1")
    with connect(postgres_url) as connection:
        connection.execute("UPDATE run SET state = 'PAUSED' WHERE id = 'run_1'")
    (run,) = early.lock_runs(["run_1"])
    run.state, run.phase, run.trigger, run.revision = "RUNNING", "active", "resume", run.revision + 1
    run.started_at = run.entered_at
    early.move([run], MOVED)
    early.commit()
    with store.read() as reader:
        stream = reader.list_transitions("acme", after=None, limit=10, run_id=None)
        assert [move.to_state for move in stream if move.entity_id == "run_1"] == ["PENDING", "PAUSED", "RUNNING"]


def test_the_stream_waits_for_an_open_transaction_at_a_prompt(store: PostgresStore, postgres_url: str) -> None:
    prepare(store)
    insert_run(store, "run_1")
    with connect(postgres_url) as connection:
        with connection.transaction():
            connection.execute("UPDATE run SET state = 'PAUSED' WHERE id = 'run_1'")
            insert_run(store, "run_2")
            seen, position = read_stream(store)
            assert seen == ["run_1"]
        assert read_stream(store, position)[0] == ["run_1", "run_2"]


@contextmanager
def outsider(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session in a transaction, of a role that has no privilege on any table."""
    with psycopg.connect(url) as session:
        name = f"outsider_{session.info.backend_pid}"
        session.execute(f"CREATE ROLE {name}".encode())
        session.execute(f"SET LOCAL ROLE {name}".encode())
        yield session
        session.rollback()


@pytest.mark.parametrize("kind", ["pg_advisory_lock_shared", "pg_advisory_lock"])
def test_advisory_locks_of_outsiders_hold_up_neither_the_stream_nor_writers(
    store: PostgresStore, postgres_url: str, kind: str
) -> None:
    prepare(store)
    insert_run(store, "run_1", tasks=3)
    with connect(postgres_url) as session:
        ((key, last),) = session.execute("SELECT stream_lock(), max(position) FROM transition").fetchall()
    with outsider(postgres_url) as session:
        for position in (0, 1, last - 1, last):
            session.execute(f"SELECT {kind}(%s)".encode(), [key + position])
        insert_run(store, "run_2")
        assert read_stream(store)[0][-1] == "run_2"
        with store.read() as reader:
            assert not reader.is_held_back()


def test_a_database_that_is_up_to_date_opens_while_an_outsider_holds_the_lock_of_migrations(postgres_url: str) -> None:
    with outsider(postgres_url) as session:
        session.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        session.execute("SET LOCAL statement_timeout = 0")
        open_store(postgres_url).close()


@pytest.mark.parametrize(("own", "limit"), [("0", "10s"), ("1h", "10s"), ("500ms", "500ms")])
def test_a_transaction_that_moves_something_must_not_stay_idle(
    store: PostgresStore, postgres_url: str, own: str, limit: str
) -> None:
    prepare(store)
    insert_run(store, "run_1", tasks=1)
    with connect(postgres_url) as session:
        session.execute(f"SET idle_in_transaction_session_timeout = '{own}'".encode())
        with session.transaction():
            session.execute("UPDATE task SET state = 'CANCELED'")
            assert session.execute("SHOW idle_in_transaction_session_timeout").fetchall() == [(limit,)]
        assert session.execute("SHOW idle_in_transaction_session_timeout").fetchall() == [(own,)]


@pytest.mark.parametrize("cursor", ["", "-", "7-", "7-x", "-7", "9999999999999999999", "1 - 2", "1.5"])
def test_a_malformed_position_is_refused(store: PostgresStore, cursor: str) -> None:
    with store.read() as reader, pytest.raises(RequestInvalid, match="after"):
        reader.list_transitions("acme", after=cursor, limit=1, run_id=None)


# wake-ups


class Ear:
    """Collects wake-ups, and waits for those that are still to come."""

    def __init__(self) -> None:
        self._heard: queue.Queue[Wakeup] = queue.Queue()

    def __call__(self, wakeup: Wakeup) -> None:
        self._heard.put(wakeup)

    def next(self) -> Wakeup:
        return self._heard.get(timeout=PATIENCE_SECONDS)

    def is_silent(self) -> bool:
        return self._heard.empty()


def test_wakeups_reach_every_process_with_the_commit(store: PostgresStore, other: PostgresStore) -> None:
    here, there = Ear(), Ear()
    store.listen(here)
    other.listen(there)
    begun = store.begin()
    begun.ensure_tenant("acme", AT)
    begun.rollback()
    with transaction(store, Wakeup.TASKS | Wakeup.EVENTS) as begun:
        begun.ensure_tenant("acme", AT)
    assert (here.next(), there.next()) == (Wakeup.TASKS | Wakeup.EVENTS, Wakeup.TASKS | Wakeup.EVENTS)
    assert here.is_silent()


def test_a_listener_that_lost_its_connection_gets_every_wakeup(postgres_url: str, store: PostgresStore) -> None:
    ear = Ear()
    store.listen(ear)
    kill(postgres_url)
    assert ear.next() == EVERYTHING
    with transaction(store, Wakeup.TIMERS):
        pass
    assert ear.next() == Wakeup.TIMERS


def test_a_closed_store_leaves_no_connection(postgres_url: str) -> None:
    store = open_store(postgres_url)
    stop = store.listen(Ear())
    with store.read(), store.read():
        pass
    stop()
    store.listen(Ear())
    store.close()
    assert "pointsman-listener" not in {thread.name for thread in threading.enumerate()}
    with connect(postgres_url) as connection:
        # A backend ends a moment after its client.
        left = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pointsman'"
        assert all(connection.execute("SELECT pg_terminate_backend(%s, 5000)", row) for row in connection.execute(left))
        assert connection.execute(left).fetchall() == []


# connections


def test_a_lost_writer_is_unavailable_once_and_then_works(postgres_url: str, store: PostgresStore) -> None:
    begun = store.begin()
    begun.ensure_tenant("acme", AT)
    kill(postgres_url)
    begun.ensure_tenant("beta", AT)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        begun.count_held(["worker_1"])
    begun.rollback()
    with transaction(store) as begun:
        begun.ensure_tenant("gamma", AT)
    with connect(postgres_url) as connection:
        assert connection.execute("SELECT id FROM tenant").fetchall() == [("gamma",)]


def test_a_connection_lost_at_the_commit_is_unavailable(postgres_url: str, store: PostgresStore) -> None:
    begun = store.begin()
    begun.ensure_tenant("acme", AT)
    kill(postgres_url)
    with pytest.raises(StoreUnavailable):
        begun.commit(Wakeup.TASKS)
    store.begin().rollback()


def test_connections_that_died_while_idle_are_replaced(postgres_url: str, store: PostgresStore) -> None:
    store.begin().rollback()
    with store.read(), store.read():
        pass
    kill(postgres_url)
    store.begin().rollback()
    with store.read() as reader:
        assert reader.list_workers("acme") == []


def test_a_reader_that_dies_is_replaced(postgres_url: str, store: PostgresStore) -> None:
    with store.read() as reader:
        kill(postgres_url)
        with pytest.raises(StoreUnavailable):
            reader.list_workers("acme")
    with store.read() as reader:
        assert reader.list_workers("acme") == []


def test_a_reader_sees_one_snapshot(store: PostgresStore) -> None:
    prepare(store)
    with store.read() as reader:
        assert reader.list_runs("acme", phase=None, after=None, limit=9) == []
        insert_run(store, "run_1")
        assert reader.list_runs("acme", phase=None, after=None, limit=9) == []


def test_a_server_that_is_away_is_explained_without_the_password() -> None:
    with pytest.raises(StoreUnavailable, match="does not answer") as raised:
        open_store("postgresql://ann:s3cret@127.0.0.1:1/pointsman?connect_timeout=2")
    assert "s3cret" not in str(raised.value)


def test_a_database_that_does_not_exist_is_explained(postgres_url: str) -> None:
    with pytest.raises(StoreUnusable, match="does not exist"):
        open_store(postgres_url.replace("/pointsman_", "/no_such_"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3cret@db:5432/jobs", "postgresql://ann@db:5432/jobs"),
        ("postgresql://ann:s3c%40ret@db/jobs?sslmode=require&password=s3cret", "postgresql://ann@db/jobs?sslmode=require"),
        ("postgresql://db/jobs?user=ann&host=/run/pg", "postgresql://db/jobs?user=ann&host=/run/pg"),
        ("postgresql://ann:s3?c#ret@db/jobs", "postgresql://ann@db/jobs"),
        ("postgresql://db/jobs?user=ann&passw%6frd=s3cret", "postgresql://db/jobs?user=ann"),
        ("postgresql://db/jobs?user=ann&%70%61%73sword=s3cret", "postgresql://db/jobs?user=ann"),
        ("postgresql://ann:s3cret@one:5432,[::1]:5433/jobs", "postgresql://ann@one:5432,[::1]:5433/jobs"),
        ("postgresql:///jobs", "postgresql:///jobs"),
        ("host=db user=ann password=s3cret dbname=jobs", "user=ann dbname=jobs host=db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert show(url) == shown


@each_row(
    "url",
    [
        "postgresql://ann:s3cret@db:port/jobs",
        "s3cret",
        "postgresql://ann:s3%zzcret@db/jobs",
        "postgresql://ann:s3/cret@db/jobs",
        "postgresql://ann:12/s3cret@db/jobs",
        "postgresql://ann:p@s3cret@db/jobs",
        "postgresql://ann:s3cret",
        "host=db passw%6frd=s3cret",
        "postgresql://ann@db/jobs?password=a&s3cret",
    ],
)
def test_text_that_is_not_a_url_is_not_repeated(url: str) -> None:
    with pytest.raises(StoreUnusable) as raised:
        open_store(url)
    assert "s3" not in str(raised.value)
    assert "cret" not in str(raised.value)


@each_row(
    "url",
    [
        "postgresql+psycopg://ann:s3cret@db/jobs",
        "postgresql:/ann:s3cret@db/jobs",
        "host=db user=ann password = 's3cret'",
        "ann:s3cret@db/jobs",
        "mysql://ann:s3/cr@s3cret@db/jobs?passw%6frd=s3cret",
    ],
)
def test_a_url_of_another_kind_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreUnusable, match="not the URL of a database") as raised:
        app.open_store(url, World())
    assert "s3" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        (psycopg.errors.DeadlockDetected, StoreBusy),
        (psycopg.errors.SerializationFailure, StoreBusy),
        (psycopg.errors.LockNotAvailable, StoreBusy),
        (psycopg.errors.DiskFull, StoreFull),
        (psycopg.errors.AdminShutdown, StoreUnavailable),
        (psycopg.errors.CannotConnectNow, StoreUnavailable),
        (psycopg.errors.TooManyConnections, StoreUnavailable),
        (psycopg.errors.IdleInTransactionSessionTimeout, StoreUnavailable),
        (psycopg.errors.ReadOnlySqlTransaction, StoreUnavailable),
        (psycopg.InterfaceError, StoreUnavailable),
        (psycopg.errors.RaiseException, LawBroken),
        (psycopg.errors.CheckViolation, LawBroken),
        (psycopg.errors.UniqueViolation, LawBroken),
        (psycopg.errors.ForeignKeyViolation, LawBroken),
        (psycopg.errors.NotNullViolation, LawBroken),
        (psycopg.errors.NumericValueOutOfRange, LawBroken),
        (psycopg.errors.InsufficientPrivilege, StoreUnusable),
        (psycopg.errors.UndefinedTable, StoreError),
    ],
)
def test_every_error_is_one_of_the_contract(error: type[psycopg.Error], explained: type[StoreError]) -> None:
    assert type(explain(error("it said so"), "a database")) is explained


def test_text_that_cannot_be_stored_is_not_found(store: PostgresStore) -> None:
    with store.read() as reader:
        assert reader.find_run("acme", "run\0") is None
        assert reader.list_tasks("acme", "run\0") == []
    with pytest.raises(LawBroken), transaction(store) as begun:
        begun.ensure_tenant("acme\0", AT)


# locks


def test_the_tasks_of_a_locked_run_are_skipped(store: PostgresStore, other: PostgresStore) -> None:
    prepare(store)
    insert_run(store, "run_1", tasks=2)
    insert_run(store, "run_2", tasks=2)
    begun, second = store.begin(), other.begin()
    assert [run.id for run in begun.lock_runs(["run_1"])] == ["run_1"]
    assert [task.run_id for task in second.select_claimable([1], 3)] == ["run_2", "run_2"]
    assert begun.select_allocated("run_2", [1], 1) == []
    assert set(second.find_claimable_runs([1], 5)) == {"run_1", "run_2"}
    begun.rollback()
    second.rollback()


def test_an_allocation_passes_over_what_others_have_locked(store: PostgresStore, other: PostgresStore) -> None:
    prepare(store)
    insert_run(store, "run_1")
    begun, second = store.begin(), other.begin()
    begun.insert_machine(load_machine("standard.worker"), fingerprint="f", definition="d")
    law: dict[str, Any] = {"tenant": "acme", "machine_id": 3, "state": "INITIALIZING", "phase": "held", "entered_at": AT}
    law |= {"created_at": AT, "name": "bob", "lifecycle": "standard", "heartbeat_at": AT}
    begun.insert_workers([Worker(**law, id=f"worker_{number}") for number in range(4)])
    begun.commit()
    begun = store.begin()
    names = [worker.id for worker in begun.lock_workers(["worker_0", "worker_2"])]
    assert [worker.id for worker in second.try_lock_workers(["worker_3", *names, "worker_1"], 2)] == ["worker_1", "worker_3"]
    assert begun.try_lock_run("run_1")
    assert begun.try_lock_run("run_1"), "its own lock"
    assert second.try_lock_run("run_1") is None
    begun.rollback()
    assert second.try_lock_run("run_1")
    second.rollback()


def test_the_runs_of_tasks_are_locked_with_those_that_are_named(store: PostgresStore, other: PostgresStore) -> None:
    prepare(store)
    for name in ("run_1", "run_2", "run_3"):
        insert_run(store, name, tasks=2)
    begun, second = store.begin(), other.begin()
    assert [run.id for run in begun.lock_runs(["run_3"], of_tasks=["task_of_run_1_0", "unknown"])] == ["run_1", "run_3"]
    assert [task.run_id for task in second.select_claimable([1], 9)] == ["run_2", "run_2"]
    begun.commit()
    second.commit()
    with transaction(other) as third:
        assert len(third.select_claimable([1], 9)) == 6


def test_lanes_are_counted_as_of_the_start_of_the_transaction(store: PostgresStore, other: PostgresStore) -> None:
    """A list shows lanes that others add meanwhile, and a transaction counts them when it meets one."""
    prepare(store)
    early = store.begin()
    with transaction(other) as begun:
        begun.insert_lane("acme", "git", "[]", fails_fast=False)
    assert early.count_lanes() == 1
    assert len(early.list_lanes()) == 2
    early.insert_lane("acme", "git", "[]", fails_fast=False)
    assert early.count_lanes() == 2, "it was there, so all are counted anew"
    early.insert_lane("acme", "npm", "[]", fails_fast=False)
    assert early.count_lanes() == 3
    early.commit()
    with transaction(other) as begun:
        assert begun.count_lanes() == len(begun.list_lanes()) == 3


def test_only_the_runs_of_returned_tasks_are_locked(store: PostgresStore, other: PostgresStore) -> None:
    prepare(store)
    insert_run(store, "run_1", tasks=2)
    insert_run(store, "run_2", tasks=2)
    begun, second = store.begin(), other.begin()
    assert [task.run_id for task in begun.select_claimable([1], 2)] == ["run_1", "run_1"]
    assert [task.run_id for task in second.select_claimable([1], 2)] == ["run_2", "run_2"]
    begun.rollback()
    second.rollback()


def test_a_lock_that_is_held_too_long_is_busy(postgres_url: str, store: PostgresStore) -> None:
    prepare(store)
    insert_run(store, "run_1")
    with connect(postgres_url) as connection, connection.transaction():
        connection.execute("SELECT 1 FROM run FOR UPDATE")
        begun = store.begin()
        begun._session.script("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(StoreBusy):
            begun.lock_runs(["run_1"])
        begun.rollback()


def test_a_timer_is_taken_once(store: PostgresStore, other: PostgresStore) -> None:
    timer = Timer(entity_id="run_1", purpose="retry", kind="run", tenant="acme", run_id="run_1", revision=0, due_at=AT)
    with transaction(store) as begun:
        begun.set_timers([timer])
    first, second = store.begin(), other.begin()
    taken: list[list[Timer]] = []
    assert first.take_timers([timer]) == [timer]
    waiting = threading.Thread(target=lambda: taken.append(second.take_timers([timer])))
    waiting.start()
    first.commit()
    waiting.join()
    second.commit()
    assert taken == [[]]


def test_servers_that_start_together_share_their_machines(store: PostgresStore, other: PostgresStore) -> None:
    machine = load_machine("standard.run")
    first, second = store.begin(), other.begin()
    row = first.insert_machine(machine, fingerprint="f", definition="d")
    rows = []
    waiting = threading.Thread(target=lambda: rows.append(second.insert_machine(machine, fingerprint="f", definition="d")))
    waiting.start()
    first.commit()
    waiting.join()
    second.commit()
    assert rows == [row]


def test_the_second_of_two_writers_gets_a_conflict(store: PostgresStore, other: PostgresStore) -> None:
    prepare(store)
    insert_run(store, "run_1", tasks=1)
    with transaction(store) as begun:
        (task,) = begun.select_tasks(["task_of_run_1_0"])
    canceled = replace(task, state="CANCELED", phase="done", outcome="canceled", trigger="cancel", revision=2, completed_at=AT)
    with transaction(other) as begun:
        begun.move([canceled], MOVED)
    with pytest.raises(Conflict, match="task_of_run_1_0"), transaction(store) as begun:
        begun.move([canceled], MOVED)


def test_a_transaction_that_has_failed_cannot_be_committed(store: PostgresStore) -> None:
    begun = store.begin()
    begun.insert_runs([a_run("run_1")])
    with pytest.raises(LawBroken):
        begun.list_lanes()
    with pytest.raises(StoreError, match="rolled the transaction back"):
        begun.commit()
    store.begin().rollback()


def test_a_row_that_moves_twice_in_a_batch_is_audited_twice(store: PostgresStore) -> None:
    prepare(store)
    task = a_task("task_1", "run_1")
    ready = queued(task)
    canceled = replace(ready, state="CANCELED", phase="done", outcome="canceled", trigger="cancel", revision=2, completed_at=AT)
    with transaction(store) as begun:
        begun.insert_runs([a_run("run_1")])
        begun.insert_tasks([task])
        begun.move([ready, canceled], MOVED)
        assert [step.to_state for step in begun.list_history("acme", "task_1")] == ["PENDING", "QUEUED", "CANCELED"]


# by hand


@pytest.mark.parametrize(("rows", "characters"), [(3, 1 << 20), (100, 3_000)])
def test_a_batch_that_is_too_large_for_a_statement_is_written_in_several(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, rows: int, characters: int
) -> None:
    """One that PostgreSQL does not take closes the connection, and the batch would be sent again and again."""
    monkeypatch.setattr(postgres, "MOST_ROWS", rows)
    monkeypatch.setattr(postgres, "MOST_CHARACTERS", characters)
    prepare(store)
    insert_run(store, "run_1")
    parent = a_task("parent", "run_1", run_open=True)
    tasks = [a_task(f"task_{n}", "run_1", parent_task_id="parent", depth=1, payload=f'"{"x" * 500}"') for n in range(10)]
    sizes: list[int] = []
    encode = Statement.encode

    def measure(statement: Statement, values: Mapping[str, Any]) -> Any:
        sizes.append(len(str(values)))
        return encode(statement, values)

    with transaction(store) as begun:
        monkeypatch.setattr(Statement, "encode", measure)
        begun.insert_tasks([*tasks, parent])
        inserted = len(sizes)
        begun.move([queued(replace(task, output=f'"{task.id}{"y" * 494}"')) for task in tasks], (*MOVED, "output"))
        moved = len(sizes) - inserted
        monkeypatch.undo()
    assert (inserted > 3, moved > 1) == (True, characters < 1 << 20), "only the size of a statement limits what moves"
    assert max(sizes) < 2 * 3_000
    with store.read() as reader:
        stored = {task.id: task for task in reader.list_tasks("acme", "run_1")}
        assert {len(task.output or "") for task in stored.values()} == {0, 502}
        assert [each.to_state for task in tasks for each in reader.list_history("acme", task.id)] == ["PENDING", "QUEUED"] * 10


def test_a_legal_update_by_hand_is_audited_and_completed(postgres_url: str, store: PostgresStore) -> None:
    prepare(store)
    insert_run(store, "run_1", tasks=3)
    with connect(postgres_url) as connection:
        connection.execute("UPDATE task SET state = 'CANCELED', reason = 'no longer wanted'")
    with store.read() as reader:
        assert len(reader.list_tasks("acme", "run_1")) == 3
        for task in reader.list_tasks("acme", "run_1"):
            assert (task.phase, task.outcome, task.revision, task.completed_at) == ("done", "canceled", 2, task.entered_at)
            last = reader.list_history("acme", task.id)[-1]
            assert (last.from_state, last.to_state, last.trigger) == ("QUEUED", "CANCELED", "cancel")
            assert (last.actor, last.reason, last.at) == ("sql", "no longer wanted", task.entered_at)
        assert reader.list_disagreements() == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE task SET state = 'SUCCEEDED'", r"machine standard.task 4 allows task_of_run_1_0 to move QUEUED -> SUCCEEDED"),
        ("UPDATE task SET state = 'RUNNING'", r"QUEUED -> RUNNING : by hand with this"),
        ("UPDATE task SET state = 'CANCELED', revision = 7", r"QUEUED -> CANCELED"),
        ("UPDATE task SET state = 'CANCELED', revision = 2, trigger = 'shrug'", r"QUEUED -> CANCELED : shrug \(allowed: CANC"),
        ("UPDATE task SET phase = 'held'", "only a move changes the phase of a task"),
        ("UPDATE task SET epoch = 1", "only a move changes the worker, attempt and epoch"),
        (
            "UPDATE task SET revision = revision + 1, actor = 'sql'",
            "no rule of machine standard.task 4 allows task_of_run_1_0 to move",
        ),
        ("UPDATE task SET number = DEFAULT", "a task keeps its number"),
        ("UPDATE task SET id = 'x'", "keeps its id"),
        ("UPDATE run SET tenant = 'x'", "a run keeps its id, machine, tenant"),
        ("UPDATE transition SET actor = 'unknown'", "only the law writes the audit trail"),
        ("UPDATE trail SET actor = 'unknown'", "the audit trail cannot be changed"),
        ("DELETE FROM trail", "the audit trail cannot be deleted"),
        ("TRUNCATE trail", "the audit trail cannot be deleted"),
        ("TRUNCATE rule", "a rule cannot be deleted"),
        ("TRUNCATE machine CASCADE", "cannot be deleted"),
        ("UPDATE rule SET to_state = 'SUCCEEDED'", "a rule cannot be changed"),
        ("INSERT INTO rule OVERRIDING USER VALUE SELECT * FROM rule_of_another", "a rule cannot be added to a machine"),
        (
            "INSERT INTO run OVERRIDING USER VALUE SELECT * FROM run_of_another",
            "is created once, in the initial state of a run machine",
        ),
    ],
)
def test_the_law_refuses(postgres_url: str, store: PostgresStore, statement: str, message: str) -> None:
    prepare(store)
    insert_run(store, "run_1", tasks=1)
    with connect(postgres_url) as connection:
        connection.execute("CREATE TEMPORARY TABLE run_of_another AS SELECT * FROM run")
        connection.execute("UPDATE run_of_another SET id = 'run_2', state = 'RUNNING', phase = 'active'")
        connection.execute("CREATE TEMPORARY TABLE rule_of_another AS SELECT * FROM rule LIMIT 1")
        connection.execute("UPDATE rule_of_another SET trigger = 'shrug'")
        with pytest.raises(psycopg.errors.RaiseException, match=message) as raised:
            connection.execute(statement.encode())
    assert isinstance(explain(raised.value, "a database"), LawBroken)


def test_a_broken_constraint_is_named(store: PostgresStore) -> None:
    prepare(store)
    with pytest.raises(LawBroken, match="run_reservation_fits"), transaction(store) as begun:
        begun.insert_runs([a_run("run_1", budget_usd=1, reserved_usd=2)])


def test_a_breaker_follows_the_law_too(store: PostgresStore) -> None:
    prepare(store)
    with transaction(store) as begun:
        begun.insert_machine(load_machine("standard.breaker"), fingerprint="f", definition="d")
    machine = load_machine("standard.breaker")
    first = next(state for state in machine.states if state.initial)
    breaker = Breaker(
        id="breaker_1",
        tenant="acme",
        machine_id=3,
        state=first.name,
        phase=first.phase,
        entered_at=AT,
        created_at=AT,
        tool="git",
    )
    with transaction(store) as begun:
        begun.insert_breakers([breaker])
    with pytest.raises(LawBroken, match=r"no rule of machine standard\.breaker"), transaction(store) as begun:
        begun.move([replace(breaker, revision=1, trigger="shrug")], MOVED)

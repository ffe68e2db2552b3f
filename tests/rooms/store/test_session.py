"""The session of PostgreSQL: what is sent together, whose error comes when, and what it leaves behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from types import FrameType
from typing import Any

import psycopg
import pytest

from pointsman.errors import Conflict, LawBroken, StoreError
from pointsman.store.contract import Query
from pointsman.store.postgres import session as sessions
from pointsman.store.postgres.connections import WRITER_SESSION
from pointsman.store.postgres.queries import QUERIES, SHARED
from pointsman.store.postgres.session import Session
from pointsman.store.postgres.statements import Statement
from pointsman.store.postgres.store import PostgresStore
from pointsman.store.rows import Tenant
from pointsman.world import RandomIds

PATIENCE_SECONDS = 20
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ADD = Statement("INSERT INTO number (value) VALUES (:value)")
CHANGE = Statement("UPDATE number SET value = value + :more WHERE value = :value")
LIST = Statement("SELECT value FROM number ORDER BY value")


@pytest.fixture
def session(empty_postgres_url: str) -> Iterator[Session]:
    with closing(Session(empty_postgres_url, WRITER_SESSION)) as session:
        session.script("CREATE TABLE number (value integer CHECK (value > 0))")
        yield session


def test_writes_wait_for_the_next_question(session: Session, empty_postgres_url: str) -> None:
    session.later(ADD, {"value": 1})
    session.later(ADD, {"value": 2})
    with psycopg.connect(empty_postgres_url) as other:
        assert other.execute("SELECT count(*) FROM number").fetchall() == [(0,)]
        assert session.ask(LIST, {}) == [(1,), (2,)]
        assert other.execute("SELECT count(*) FROM number").fetchall() == [(2,)]


def test_questions_that_are_sent_together_are_answered_in_their_order(session: Session) -> None:
    session.later(ADD, {"value": 3})
    text = Statement("SELECT :text")
    answers = session.ask_together([(LIST, {}, None), (ADD, {"value": 4}, None), (text, {"text": "ü"}, None), (LIST, {}, None)])
    assert answers == [[(3,)], [], [("ü",)], [(3,), (4,)]]


def test_the_error_of_the_first_statement_that_fails_is_raised_and_the_session_works_on(session: Session) -> None:
    nowhere = Statement("INSERT INTO nowhere VALUES (1)")
    session.script("BEGIN")
    session.later(ADD, {"value": 1})
    session.later(nowhere, {})
    session.later(ADD, {"value": -1})
    with pytest.raises(StoreError, match='"nowhere" does not exist'):
        session.ask(LIST, {})
    session.script("ROLLBACK; BEGIN")
    session.later(ADD, {"value": -1})
    session.later(nowhere, {})
    with pytest.raises(LawBroken, match="number_value_check"):
        session.ask(LIST, {})
    with pytest.raises(StoreError, match="aborted"):
        session.ask(LIST, {})
    session.script("ROLLBACK")
    assert session.is_idle
    assert session.ask(LIST, {}) == []


def test_what_changes_too_few_rows_comes_before_the_error_that_follows_from_it(session: Session) -> None:
    session.later(CHANGE, {"value": 7, "more": 1}, ["seven"])
    session.later(ADD, {"value": -1})
    with pytest.raises(Conflict, match="changed some of these rows: seven"):
        session.ask(LIST, {})
    session.later(ADD, {"value": -1})
    session.later(CHANGE, {"value": 7, "more": 1}, ["seven"])
    with pytest.raises(LawBroken):
        session.settle()
    session.later(ADD, {"value": 7})
    session.later(CHANGE, {"value": 7, "more": 1}, ["seven"])
    assert session.ask(LIST, {}) == [(8,)]


def test_a_statement_may_refer_to_what_the_one_before_it_has_made(session: Session) -> None:
    session.later(Statement("CREATE TABLE made (value integer)"), {})
    assert session.ask(Statement("SELECT value FROM made"), {}) == []
    begin, isolation = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ"), Statement("SHOW transaction_isolation")
    session.later(begin, {})
    assert session.ask(isolation, {}) == [("repeatable read",)]


def test_what_is_discarded_is_never_sent(session: Session) -> None:
    session.later(ADD, {"value": 1})
    session.discard()
    assert session.ask(LIST, {}) == []


def test_large_writes_are_sent_at_once_and_a_large_statement_arrives(session: Session) -> None:
    session.script("CREATE TABLE page (text text)")
    insert, lengths = Statement("INSERT INTO page VALUES (:text)"), Statement("SELECT length(text) FROM page ORDER BY 1")
    session.later(insert, {"text": "x" * (sessions.MOST_WAITING_BYTES + 1)})
    assert not session._waiting
    for _ in range(2):
        session.later(insert, {"text": "x" * 20_000_000})
    assert session.ask(lengths, {}) == [(sessions.MOST_WAITING_BYTES + 1,), (20_000_000,), (20_000_000,)]


def test_more_statements_than_a_connection_keeps_are_prepared_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_PREPARED", 3)
    statements = [Statement(f"SELECT {number}") for number in range(10)]
    for _ in range(2):
        assert [session.ask(statement, {}) for statement in statements] == [[(number,)] for number in range(10)]
    ((kept,),) = session.ask(Statement("SELECT count(*) FROM pg_prepared_statements"), {})
    assert kept <= 5


def test_a_statement_that_failed_when_it_was_new_can_be_repeated(session: Session) -> None:
    for _ in range(2):
        with pytest.raises(LawBroken):
            session.ask(ADD, {"value": -1})
    late = Statement("SELECT value FROM later")
    with pytest.raises(StoreError):
        session.ask(late, {})
    session.script("CREATE TABLE later AS SELECT 1 AS value")
    assert session.ask(late, {}) == [(1,)]


def test_values_arrive_as_they_are(session: Session) -> None:
    values: dict[str, Any] = {
        "text": "a'b\\c\u00e4 {}\n",
        "number": -(2**62),
        "fraction": 0.1,
        "amount": Decimal("1.5"),
        "yes": True,
        "no": False,
        "instant": AT,
        "nothing": None,
    }
    types = ("text", "bigint", "double precision", "numeric(14, 6)", "boolean", "boolean", "timestamptz", "text")
    columns = ", ".join(f":{name}::{kind}" for name, kind in zip(values, types, strict=True))
    ((*found,),) = session.ask(Statement(f"SELECT {columns}"), values)
    assert found == list(values.values())
    assert [type(value) for value in found] == [type(value) for value in values.values()]


@pytest.mark.parametrize("value", ["a\0b", "\0"])
def test_text_that_postgresql_cannot_store_is_refused_before_it_is_sent(session: Session, value: str) -> None:
    with pytest.raises(LawBroken, match="NUL"):
        session.later(Statement("SELECT :text"), {"text": value})
    with pytest.raises(UnicodeEncodeError):
        session.ask(Statement("SELECT :text"), {"text": "\ud800"})
    assert session.ask(LIST, {}) == []


def test_other_threads_run_while_an_answer_is_awaited(session: Session) -> None:
    thread = threading.Thread(target=session.ask, args=(Statement("SELECT pg_sleep(0.3)"), {}))
    thread.start()
    turns = 0
    while thread.is_alive():
        thread.join(0.01)
        turns += 1
    assert turns > 3


def test_an_interrupted_statement_is_canceled(session: Session, empty_postgres_url: str) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with alarm_handler(interrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            session.ask(Statement("SELECT pg_sleep(600)"), {})
    assert session.is_closed
    with psycopg.connect(empty_postgres_url, autocommit=True) as other:
        # A backend ends a moment after its client; one that still works would not.
        left = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        for _ in range(PATIENCE_SECONDS * 50):
            if not other.execute(left).fetchall():
                return
            other.execute("SELECT pg_sleep(0.02)")
    raise AssertionError("the server works on")


@contextmanager
def alarm_handler(handle: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def test_postgresql_finds_out_the_types_of_all_parameters(postgres_url: str) -> None:
    with closing(Session(postgres_url, WRITER_SESSION)) as session:
        for name, statement in (*QUERIES.items(), *((f"shared_{name}", statement) for name, statement in SHARED.items())):
            if name != "create_migrations":
                session.script(f"PREPARE {name} AS {statement.text.decode()}")
        types = session.ask(Statement("SELECT DISTINCT unnest(parameter_types)::text FROM pg_prepared_statements"), {})
        assert ("unknown",) not in types


def test_a_transaction_runs_queries_together(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url, clock=None, ids=RandomIds())) as store:
        begun = store.begin()
        begun.ensure_tenant("acme", AT)
        counted, tenants = begun._together([Query("count_lanes", {}), Query("find_tenant", {"id": "acme"}, Tenant)])
        assert (counted, tenants) == ([(0,)], [Tenant(id="acme", created_at=AT)])
        begun.rollback()


def test_a_write_that_fails_late_commits_nothing(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url, clock=None, ids=RandomIds())) as store:
        begun = store.begin()
        begun.ensure_tenant("acme", AT)
        begun._session.later(Statement("UPDATE tenant SET id = NULL"), {})
        with pytest.raises(LawBroken, match="a tenant cannot be changed"):
            begun.commit()
        begun = store.begin()
        begun.ensure_tenant("beta", AT)
        begun._session.later(Statement("DELETE FROM timer"), {}, ["timer_1"])
        with pytest.raises(Conflict):
            begun.commit()
        with store.read() as reader:
            assert reader.list_tenants() == []
        begun = store.begin()
        begun.ensure_tenant("acme", AT)
        begun.commit()
        with store.read() as reader:
            assert [tenant.id for tenant in reader.list_tenants()] == ["acme"]

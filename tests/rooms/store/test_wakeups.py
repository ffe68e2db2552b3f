"""Wake-ups of PostgreSQL: a process tells itself, announces events to others now and then, and always the last of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from queue import Queue
from typing import Any

import psycopg
import pytest
from tests.rooms.store.store_fixture import AT, transaction

from pointsman.errors import StoreError, StoreUnavailable
from pointsman.store.contract import Wakeup
from pointsman.store.postgres import listener
from pointsman.store.postgres.listener import EVERYTHING
from pointsman.store.postgres.statements import Statement
from pointsman.store.postgres.store import PostgresStore
from pointsman.world import RandomIds

PATIENCE_SECONDS = 20
FOR_EVER = 3600.0
Ear = Queue[Wakeup]


def open_store(url: str) -> PostgresStore:
    return PostgresStore(url, clock=None, ids=RandomIds())


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    """It is listened to: only then does it let announcements wait."""
    with closing(open_store(postgres_url)) as store:
        hear(store)
        yield store


@pytest.fixture
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest ends only when a test says so."""
    monkeypatch.setattr(listener, "REST_SECONDS", FOR_EVER)


@contextmanager
def stranger(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another program that listens at the same channel."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN pointsman")
        yield connection


def hear(store: PostgresStore) -> Ear:
    ear: Ear = Queue()
    store.listen(ear.put)
    return ear


def commit(store: PostgresStore, wakeup: Wakeup, *, count: int = 1) -> None:
    for _ in range(count):
        with transaction(store, wakeup) as begun:
            begun.ensure_tenant("acme", AT)


def announced(connection: psycopg.Connection[Any]) -> list[Wakeup]:
    """What was announced since the last call."""
    connection.execute("NOTIFY pointsman, 'now'")
    found: list[Wakeup] = []
    for notification in connection.notifies(timeout=PATIENCE_SECONDS):
        if notification.payload == "now":
            return found
        found.append(Wakeup(int(notification.payload.split()[0])))
    raise AssertionError("it does not hear itself")


def next_word(connection: psycopg.Connection[Any]) -> str:
    for notification in connection.notifies(timeout=PATIENCE_SECONDS, stop_after=1):
        return notification.payload
    raise AssertionError("nothing was announced")


def end_listener(url: str, other: psycopg.Connection[Any]) -> None:
    """End the connection of the one store that listens, and not the other one."""
    with psycopg.connect(url, autocommit=True) as administrator:
        ended = administrator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE %s AND pid <> %s",
            ("LISTEN pointsman;%", other.info.backend_pid),
        )
        assert ended.fetchall() == [(True,)]


def test_a_process_tells_itself_without_the_database(store: PostgresStore) -> None:
    ear = hear(store)
    commit(store, Wakeup.TASKS)
    assert ear.get_nowait() == Wakeup.TASKS, "it was told before the commit returned"


def test_a_process_does_not_hear_itself(store: PostgresStore, postgres_url: str) -> None:
    ear = hear(store)
    commit(store, Wakeup.TASKS, count=3)
    assert [ear.get_nowait() for _ in range(3)] == [Wakeup.TASKS] * 3
    with closing(open_store(postgres_url)) as other:
        commit(other, Wakeup.TIMERS)
    assert ear.get(timeout=PATIENCE_SECONDS) == Wakeup.TIMERS, "what it has announced itself would have come before"


@pytest.mark.parametrize("word", ["hello", "4 of ours", ""])
def test_a_word_of_another_program_is_every_wakeup_or_what_it_says(store: PostgresStore, postgres_url: str, word: str) -> None:
    ear = hear(store)
    with stranger(postgres_url) as other:
        other.execute("SELECT pg_notify('pointsman', %s)", (word,))
    assert Wakeup.EVENTS in ear.get(timeout=PATIENCE_SECONDS)


@pytest.mark.usefixtures("long_rest")
def test_events_are_announced_once_in_a_rest(store: PostgresStore, postgres_url: str) -> None:
    with stranger(postgres_url) as other:
        commit(store, Wakeup.EVENTS, count=50)
        assert announced(other) == [Wakeup.EVENTS]
        store.close()
        assert announced(other) == [Wakeup.EVENTS], "the last ones are not forgotten when the store is closed"


@pytest.mark.usefixtures("long_rest")
def test_nobody_waits_for_a_rest_who_waits_for_work(store: PostgresStore, postgres_url: str) -> None:
    with stranger(postgres_url) as other:
        commit(store, Wakeup.EVENTS, count=2)
        for wakeup in (Wakeup.TASKS | Wakeup.EVENTS, Wakeup.TIMERS, Wakeup.WORKERS):
            commit(store, wakeup)
        assert announced(other) == [Wakeup.EVENTS, Wakeup.TASKS | Wakeup.EVENTS, Wakeup.TIMERS, Wakeup.WORKERS]
        store.close()
        assert announced(other) == [], "the events were announced together with the tasks"


@pytest.mark.usefixtures("long_rest")
def test_a_listener_that_loses_its_connection_in_a_rest_announces_the_events_afterwards(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear = hear(store)
    with stranger(postgres_url) as other:
        commit(store, Wakeup.EVENTS, count=3)
        assert announced(other) == [Wakeup.EVENTS]
        monkeypatch.setattr(listener, "REST_SECONDS", 0.01)
        end_listener(postgres_url, other)
        while ear.get(timeout=PATIENCE_SECONDS) != EVERYTHING:
            pass
        assert next_word(other).startswith(f"{int(Wakeup.EVENTS)} ")
        for _ in range(3):
            commit(store, Wakeup.EVENTS, count=3)
            assert next_word(other).startswith(f"{int(Wakeup.EVENTS)} ")
            while announced(other):
                pass


@pytest.mark.usefixtures("long_rest")
def test_without_listeners_every_commit_announces(postgres_url: str) -> None:
    with stranger(postgres_url) as other, closing(open_store(postgres_url)) as store:
        commit(store, Wakeup.EVENTS, count=3)
        assert announced(other) == [Wakeup.EVENTS] * 3


def test_a_commit_that_fails_is_not_announced_and_loses_nothing(store: PostgresStore, postgres_url: str) -> None:
    with stranger(postgres_url) as other:
        begun = store.begin()
        with pytest.raises(StoreError):
            begun._ask(Statement("SELECT 1 / 0"))
        with pytest.raises(StoreError):
            begun.commit(Wakeup.TASKS)
        assert Wakeup.TASKS not in announced(other)
        commit(store, Wakeup.TASKS)
        assert Wakeup.TASKS in announced(other)


def test_a_commit_whose_answer_was_lost_wakes_everybody(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = hear(store)
    with closing(open_store(postgres_url)) as other:
        there = hear(other)
        begun, session = store.begin(), store._reach()
        commit_it = session.commit

        def lose_answer() -> None:
            commit_it()
            session.close()
            raise StoreUnavailable("The answer is lost.")

        monkeypatch.setattr(session, "commit", lose_answer)
        begun.ensure_tenant("acme", AT)
        begun.commit(Wakeup.TASKS)
        assert here.get_nowait() == Wakeup.TASKS
        assert Wakeup.TASKS in there.get(timeout=PATIENCE_SECONDS)


def test_a_closed_store_ends_its_listener(postgres_url: str) -> None:
    store = open_store(postgres_url)
    hear(store)
    commit(store, Wakeup.EVENTS, count=5)
    store.close()
    assert "pointsman-listener" not in {thread.name for thread in threading.enumerate()}

"""Somebody at an SQL prompt while engines of this very process are at work.

For SQLite this must be the library that the engine uses, too: two of them in one process do not see each other's locks, and the
first that closes its file takes away those of the other, and its log (https://sqlite.org/howtocorrupt.html, 2.2.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import apsw
import psycopg
from tests.rooms.store.outsider import TABLES_OF

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Prompt(Protocol):
    dialect: str

    def ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run one statement, with `:name` for each value, and commit it."""
        ...

    def suspend_law(self, table: str) -> None:
        """Take the triggers of a table away, as only its owner can."""
        ...

    def lawless(self, table: str) -> AbstractContextManager[None]:
        """The same for a while, and for this connection."""
        ...


class SqlitePrompt:
    dialect = "sqlite"

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        bound = {
            name: (value - EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value
            for name, value in values.items()
        }
        return self._connection.execute(sql, bound).fetchall()

    def suspend_law(self, table: str) -> None:
        for each in TABLES_OF.get(table, (table,)):
            for (name,) in self.ask("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = :table", table=each):
                self.ask(f"DROP TRIGGER {name}")

    @contextmanager
    def lawless(self, table: str) -> Iterator[None]:  # noqa: ARG002 - of all tables at once
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        yield
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)


class PostgresPrompt:
    dialect = "postgres"

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        text = re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql.replace("%", "%%"))
        cursor = self._connection.execute(text.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def suspend_law(self, table: str) -> None:
        for each in TABLES_OF.get(table, (table,)):
            self.ask(f"ALTER TABLE {each} DISABLE TRIGGER USER")

    @contextmanager
    def lawless(self, table: str) -> Iterator[None]:
        self.suspend_law(table)
        yield
        for each in TABLES_OF.get(table, (table,)):
            self.ask(f"ALTER TABLE {each} ENABLE TRIGGER USER")


@contextmanager
def prompt(url: str) -> Iterator[Prompt]:
    """Whoever has the URL of a database, and types."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(5000)
        try:
            yield SqlitePrompt(connection)
        finally:
            connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as session:
            yield PostgresPrompt(session)

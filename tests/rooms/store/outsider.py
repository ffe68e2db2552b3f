"""An SQL prompt: a plain connection to the database that bypasses the store."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import psycopg
from msgspec.structs import asdict

from pointsman.store.rows import Attempt, Entity, Task, Transition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER = "infinity"
"""An instant that is in no calendar, as PostgreSQL writes it."""
TABLES_OF = {"task": ("task_spec", "task_state")}
"""The tables of a view, which have its triggers and constraints."""
_VIEW_OF = {table: view for view, tables in TABLES_OF.items() for table in tables}
_TABLE = re.compile(r"(?:UPDATE|INTO) (\w+)")


class Refused(Exception):
    """The database refused a statement."""

    def __init__(self, message: str, check: str | None = None) -> None:
        super().__init__(message)
        self.check = check
        """The constraint that refused it, by its name in `checks`."""


class Outsider(Protocol):
    dialect: str

    def ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run one statement, with `:name` for each value, and commit it; `Refused` when a constraint or the law forbids it."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """One transaction for several statements."""
        ...

    def suspend_law(self, table: str) -> None:
        """Remove the triggers of a table, as only its owner can."""
        ...

    def lawless(self, table: str) -> AbstractContextManager[None]:
        """Remove the triggers for a while."""
        ...

    def unguarded(self, table: str) -> AbstractContextManager[None]:
        """Remove what keeps columns from changes for a while, but not what every row must fulfill."""
        ...

    def checks(self) -> set[str]:
        """Every CHECK constraint, after the name of its table."""
        ...


class SqliteOutsider:
    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, {name: _plain(value) for name, value in values.items()}).fetchall()
        except sqlite3.IntegrityError as error:
            failed = re.fullmatch(r"CHECK constraint failed: (.*)", str(error), re.DOTALL)
            table = _TABLE.search(sql)
            raise Refused(str(error), f"{table[1]}: {failed[1]}" if failed and table else None) from error

    @contextmanager
    def together(self) -> Iterator[None]:
        self.ask("BEGIN")
        yield
        self.ask("COMMIT")

    def suspend_law(self, table: str) -> None:
        for name, _ in self._triggers(table):
            self.ask(f"DROP TRIGGER {name}")

    @contextmanager
    def lawless(self, table: str) -> Iterator[None]:
        triggers = self._triggers(table)
        self.suspend_law(table)
        try:
            yield
        finally:
            for _, sql in triggers:
                self.ask(sql)

    unguarded = lawless
    """Here constraints are kept by the table."""

    def _triggers(self, table: str) -> list[tuple[str, str]]:
        found = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = :table"
        return [(name, sql) for each in TABLES_OF.get(table, (table,)) for name, sql in self.ask(found, table=each)]

    def checks(self) -> set[str]:
        tables = self.ask("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
        return {f"{_VIEW_OF.get(name, name)}: {check}" for name, sql in tables for check in _parenthesized(sql, "CHECK (")}


class PostgresOutsider:
    dialect = "postgres"

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def ask(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        text = re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql.replace("%", "%%"))
        try:
            cursor = self._connection.execute(text.encode(), values)
        except (psycopg.IntegrityError, psycopg.errors.RaiseException) as error:
            is_check = isinstance(error, psycopg.errors.CheckViolation)
            raise Refused(str(error), f"{error.diag.table_name}: {error.diag.constraint_name}" if is_check else None) from error
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._connection.transaction():
            yield

    def suspend_law(self, table: str) -> None:
        for each in TABLES_OF.get(table, (table,)):
            self.ask(f"ALTER TABLE {each} DISABLE TRIGGER USER")

    @contextmanager
    def lawless(self, table: str) -> Iterator[None]:
        self.suspend_law(table)
        try:
            yield
        finally:
            self._restore_law(table)

    def _restore_law(self, table: str) -> None:
        for each in TABLES_OF.get(table, (table,)):
            self.ask(f"ALTER TABLE {each} ENABLE TRIGGER USER")

    @contextmanager
    def unguarded(self, table: str) -> Iterator[None]:
        guards = (
            "SELECT tgname FROM pg_trigger WHERE tgrelid = CAST(:table AS regclass) AND NOT tgisinternal AND tgtype & 1 = 1"
        )
        for each in TABLES_OF.get(table, (table,)):
            for (name,) in self.ask(guards, table=each):
                self.ask(f"ALTER TABLE {each} DISABLE TRIGGER {name}")
        try:
            yield
        finally:
            self._restore_law(table)

    def checks(self) -> set[str]:
        found = self.ask(
            "SELECT relname, conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE contype = 'c'"
        )
        return {f"{_VIEW_OF.get(table, table)}: {name}" for table, name in found}


@contextmanager
def outsider(url: str) -> Iterator[Outsider]:
    """A connection with nothing but the URL of a database."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            yield SqliteOutsider(file)
        finally:
            file.close()
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            yield PostgresOutsider(connection)


def kind_of(row: Entity | Attempt | Transition) -> str:
    return type(row).__name__.lower()


def type_columns(prompt: Outsider, row: Entity, **columns: Any) -> None:
    """Run UPDATE … SET … WHERE id = …"""
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    prompt.ask(f"UPDATE {kind_of(row)} SET {changes} WHERE id = :known_id", known_id=row.id, **columns)


def type_spec(prompt: Outsider, task: Task, **columns: Any) -> None:
    """The same for what was asked for, which only the owner of the tables can change."""
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    prompt.ask(f"UPDATE task_spec SET {changes} WHERE id = :known_id", known_id=task.id, **columns)


def type_row(prompt: Outsider, row: Entity | Attempt | Transition, insertion: str = "INSERT") -> None:
    type_values(prompt, kind_of(row), asdict(row), insertion)


def type_values(prompt: Outsider, table: str, columns: dict[str, Any], insertion: str = "INSERT") -> None:
    names, values = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    numbered = "OVERRIDING SYSTEM VALUE " if prompt.dialect == "postgres" else ""
    prompt.ask(f"{insertion} INTO {table} ({names}) {numbered}VALUES ({values})", **columns)


def _plain(value: Any) -> Any:
    """SQLite has neither instants nor money: both are whole millionths."""
    match value:
        case "infinity":
            return 2**62
        case datetime():
            return (value - EPOCH) // timedelta(microseconds=1)
        case Decimal():
            return int(value * 1_000_000)
        case _:
            return value


def _parenthesized(text: str, opening: str) -> Iterator[str]:
    """The text between each `opening` and its closing parenthesis."""
    for piece in text.split(opening)[1:]:
        depth, end = 1, 0
        while depth:
            depth += {"(": 1, ")": -1}.get(piece[end], 0)
            end += 1
        yield piece[: end - 1]

"""Multiplies the finished tasks of a database, in SQL, with everything that belongs to them.

The copies are older than what they are copied from, and are written from the oldest to the newest: their ids, which sort by
time, arrive in order, as they would have. Only for this are the triggers off that let nothing be written but by a move.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
import psycopg
from bench.databases import closed_after, file_of
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

# In the order in which they refer to each other.
TABLES = ("run", "task_spec", "task_state", "dependency", "trail")
IDS = frozenset({"id", "run_id", "task_id", "entity_id", "depends_on_id", "parent_run_id", "parent_task_id"})
NUMBERS = frozenset({"number", "run_number", "parent_number"})
NUMBERED_BY_THE_DATABASE = frozenset({"position"})
OF_TASKS = "kind IN (0, 1)"  # runs and tasks
LAST_NUMBER = "SELECT max(number) FROM (SELECT number FROM run UNION ALL SELECT number FROM task_spec) AS entity"
APART_MILLISECONDS = 3_600_000
"""Between one copy and the next: nothing that is copied took longer."""


def multiply(url: str, copies: int) -> None:
    """So that there is as much of everything as `copies` times what is there now."""
    if url.startswith("sqlite:///"):
        _multiply_in_sqlite(url, copies)
    else:
        _multiply_in_postgres(url, copies)


def earlier(*values: Any) -> str | None:
    """The id that would have been given so many milliseconds earlier: its last 32 digits begin with 12 of time."""
    name, milliseconds = values
    if name is None:
        return None
    prefix, number = name[:-32], name[-32:]
    return f"{prefix}{int(number[:12], 16) - milliseconds:012x}{number[12:]}"


def copied(columns: Iterable[str], table: str) -> list[str]:
    """`position` of a line of the trail is given out anew, that of a task is its place in the run."""
    return [column for column in columns if table != "trail" or column not in NUMBERED_BY_THE_DATABASE]


def _multiply_in_sqlite(url: str, copies: int) -> None:
    with closed_after(apsw.Connection(str(file_of(url)))) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.create_scalar_function("earlier", earlier, 2, deterministic=True)
        columns = {}
        ((last,),) = connection.execute(LAST_NUMBER).fetchall()
        assert isinstance(last, int)
        connection.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            columns[table] = copied(found, table)
            chosen = f"WHERE {OF_TASKS}" if table == "trail" else ""
            order = "ORDER BY position" if table == "trail" else ""
            connection.execute(f"CREATE TEMP TABLE sample_{table} AS SELECT * FROM main.{table} {chosen} {order}")
        for table in reversed(TABLES):
            connection.execute(f"DELETE FROM main.{table} {f'WHERE {OF_TASKS}' if table == 'trail' else ''}")
        connection.execute("COMMIT")
        for copy in reversed(range(copies)):
            connection.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                names = ", ".join(f'"{column}"' for column in columns[table])
                values = ", ".join(
                    f'earlier("{column}", :by)'
                    if column in IDS
                    else f'"{column}" + :later'
                    if column in NUMBERS
                    else f'"{column}"'
                    for column in columns[table]
                )
                statement = f"INSERT INTO main.{table} ({names}) SELECT {values} FROM sample_{table}"
                connection.execute(statement, {"by": copy * APART_MILLISECONDS, "later": (copies - 1 - copy) * last})
            connection.execute("COMMIT")
        connection.execute("ANALYZE main")
        # The checkpoint waits until the disk has the file; otherwise those that are measured would.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _multiply_in_postgres(url: str, copies: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        # Of all triggers, those of foreign keys too; the server is ours.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        columns = {}
        ((last,),) = connection.execute(LAST_NUMBER).fetchall()
        for table in TABLES:
            found = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = %s "
                "ORDER BY ordinal_position",
                (table,),
            )
            columns[table] = copied([name for (name,) in found], table)
            chosen = SQL(f"WHERE {OF_TASKS} ORDER BY position") if table == "trail" else SQL("")
            sample, source = Identifier(f"sample_{table}"), Identifier(table)
            connection.execute(SQL("CREATE TEMP TABLE {} AS SELECT * FROM {} {}").format(sample, source, chosen))
        for table in reversed(TABLES):
            chosen = SQL(f"WHERE {OF_TASKS}") if table == "trail" else SQL("")
            connection.execute(SQL("DELETE FROM {} {}").format(Identifier(table), chosen))
        for copy in reversed(range(copies)):
            with connection.transaction():
                for table in TABLES:
                    later = (copies - 1 - copy) * last
                    connection.execute(_copy_statement(table, columns[table], copy * APART_MILLISECONDS, later))
        for kind, table in (("run", "run"), ("task", "task_spec")):
            connection.execute(f"SELECT setval('{kind}_number_seq', max(number)) FROM {table}".encode())
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")


def _copy_statement(table: str, columns: list[str], by: int, later: int) -> Composed:
    names = SQL(", ").join(map(Identifier, columns))
    values = SQL(", ").join(
        _earlier(column, by)
        if column in IDS
        else SQL("{} + {}").format(Identifier(column), later)
        if column in NUMBERS
        else Identifier(column)
        for column in columns
    )
    statement = SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}")
    return statement.format(Identifier(table), names, values, Identifier(f"sample_{table}"))


def _earlier(column: str, by: int) -> Composable:
    """`earlier`, in PostgreSQL."""
    moved = SQL(
        "left({id}, -32) || lpad(to_hex(('x' || left(right({id}, 32), 12))::bit(48)::bigint - {by}), 12, '0') "
        "|| right({id}, 20)"
    )
    return moved.format(id=Identifier(column), by=Literal(by))

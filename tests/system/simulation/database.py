"""One real SQLite database in memory with a connection for each simulated process, copied from a template that is migrated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from itertools import count

import apsw

from pointsman.engine.machines import Machines
from pointsman.lifecycles import SHIPPED, load_lifecycle
from pointsman.store.contract import Wakeup
from pointsman.store.sqlite.store import SqliteStore
from pointsman.world import Clock, Ids, RandomIds

Watch = Callable[[int, str, str, int], None]
Hear = Callable[[Wakeup], None]
_names = count(1)


class StillClock:
    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    def boottime(self) -> float:
        return 0.0


class SharedStore(SqliteStore):
    """The real store, on a database that several connections of this process share."""

    def __init__(self, name: str, *, clock: Clock, ids: Ids, watch: Watch, hear: Hear) -> None:
        self._name = name
        super().__init__(":memory:", clock=clock, ids=ids)
        self.writer.set_update_hook(watch)
        self._told = Wakeup.NOTHING
        self._hear = hear
        self.listen(self._note)

    def end(self, word: str, news: Wakeup) -> None:
        """Pass on what listeners have heard of a commit, and be it nothing."""
        self._told = Wakeup.NOTHING
        super().end(word, news)
        if word == "COMMIT":
            self._hear(self._told)

    def _note(self, news: Wakeup) -> None:
        self._told |= news

    def _connect(self, *, read_only: bool = False) -> apsw.Connection:  # noqa: ARG002 - readers share the writer's here
        return connect(self._name)

    def _migrate(self) -> None:
        """The template was migrated, and nobody changes the schema afterwards."""


@cache
def template() -> tuple[SqliteStore, Machines]:
    """An empty database that knows every shipped machine; made once, because that takes longer than many steps."""
    store = SqliteStore(":memory:", clock=StillClock(), ids=RandomIds())
    machines = Machines([load_lifecycle(name) for name in SHIPPED])
    transaction = store.begin()
    machines.register(transaction)
    transaction.commit()
    return store, machines


def new_database() -> tuple[str, apsw.Connection]:
    """A copy of the template that lives as long as somebody is connected; its name, and a connection to look at it."""
    name = f"/simulation-{next(_names)}"
    connection = connect(name)
    store, _ = template()
    with connection.backup("main", store.writer, "main") as backup:
        backup.step(-1)
    return name, connection


def connect(name: str) -> apsw.Connection:
    connection = apsw.Connection(name, vfs="memdb", statementcachesize=400)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = OFF")
    return connection

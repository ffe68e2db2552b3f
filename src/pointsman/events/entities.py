"""The state of each entity of a log: recent ones in memory, the rest in a scratch file.

Memory use does not depend on the number of entities.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from operator import itemgetter

import msgspec
from msgspec import Struct

RECENT = 4_096
DEPENDENCIES = 4 * RECENT
_FILTER_BITS = 1 << 23
"""A bit is unset if no name with that hash is in the scratch file, which saves most lookups of new names."""


class Entity(Struct, array_like=True, omit_defaults=True, gc=False):
    """The state of an entity, and what its events have said so far."""

    state: str = ""
    """Empty while only other entities have mentioned it."""
    line: int = 0
    machine: str = ""
    # a task
    retries: int = 0
    max_retries: int | None = None
    worker: str | None = None
    run: str | None = None
    critical: bool = False
    depends_on: tuple[str, ...] = ()
    # UTC
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    # a worker
    tasks_held: int = 0
    max_concurrent_tasks: int | None = None
    # a run
    unfinished: int = 0
    critical_failure: str | None = None


class Entities:
    """A mapping from id to entity that keeps a bounded number of them in memory.

    `overfull` is shared: a mapping that exceeds its limit adds itself there, and the validator calls `spill` between two
    lines, when no entity is in use.
    """

    def __init__(self, overfull: list[Entities], recent: int = RECENT) -> None:
        self._overfull = overfull
        self._limit = recent
        self._recent: dict[str, Entity] = {}
        self._dependencies = 0
        self._scratch: sqlite3.Connection | None = None
        self._spilled = bytearray()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Entity).decode

    def get(self, name: str) -> Entity | None:
        entity = self._recent.get(name)
        if entity is None and self._scratch is not None and self._may_be_spilled(name):
            row = self._scratch.execute("SELECT entity FROM entity WHERE name = ?", (name,)).fetchone()
            if row is not None:
                entity = self._decode(row[0])
                self._keep(name, entity)
        return entity

    def add(self, name: str) -> Entity:
        """Add a blank entity under a new name."""
        entity = Entity()
        self._keep(name, entity)
        return entity

    def depend(self, entity: Entity, depends_on: tuple[str, ...]) -> None:
        """Set the dependencies of an entity; long lists count towards the memory limit, too."""
        self._dependencies += len(depends_on) - len(entity.depends_on)
        entity.depends_on = depends_on
        self._check_bound()

    def spill(self) -> None:
        """Move older entities to the scratch file, which the system removes when it is closed."""
        if self._scratch is None:
            self._scratch = _open_scratch()
            self._spilled = bytearray(_FILTER_BITS // 8)
        older = self._take_older()
        older.sort(key=itemgetter(0))  # neighbours share pages
        self._scratch.execute("BEGIN")
        rows = ((name, self._encode(entity)) for name, entity in older)
        self._scratch.executemany("INSERT OR REPLACE INTO entity VALUES (?, ?)", rows)
        self._scratch.execute("COMMIT")
        for name, _ in older:
            bit = hash(name) % _FILTER_BITS
            self._spilled[bit >> 3] |= 1 << (bit & 7)

    def _take_older(self) -> list[tuple[str, Entity]]:
        """Remove the oldest entities until an eighth of either limit is left."""
        older: list[tuple[str, Entity]] = []
        for name, entity in self._recent.items():
            if len(self._recent) - len(older) <= self._limit // 8 and self._dependencies <= DEPENDENCIES // 8:
                break
            older.append((name, entity))
            self._dependencies -= len(entity.depends_on)
        for name, _ in older:
            del self._recent[name]
        return older

    def _may_be_spilled(self, name: str) -> bool:
        bit = hash(name) % _FILTER_BITS
        return bool(self._spilled[bit >> 3] & 1 << (bit & 7))

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _keep(self, name: str, entity: Entity) -> None:
        self._recent[name] = entity
        self._dependencies += len(entity.depends_on)
        self._check_bound()

    def _check_bound(self) -> None:
        if (len(self._recent) > self._limit or self._dependencies > DEPENDENCIES) and self not in self._overfull:
            self._overfull.append(self)


def _open_scratch() -> sqlite3.Connection:
    """A private database that need not survive a crash."""
    scratch = sqlite3.connect("", isolation_level=None)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", "cache_size = -1024"):
        scratch.execute(f"PRAGMA {pragma}")
    scratch.execute("CREATE TABLE entity (name TEXT PRIMARY KEY, entity BLOB NOT NULL) WITHOUT ROWID")
    return scratch

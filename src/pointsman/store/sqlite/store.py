"""SQLite: one file, one writer at a time, any number of readers."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from heapq import merge
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any

import apsw
from msgspec import Struct

from pointsman.errors import Conflict, LawBroken, StoreBusy, StoreError, StoreFull, StoreGone, StoreUnusable
from pointsman.store.clock import DatabaseTime
from pointsman.store.columns import Row, to_json
from pointsman.store.contract import Foresee, Reader, Transaction, Wakeup
from pointsman.store.rows import BegunTask, EndedTask, Entity, PlainMove, PlainReport, Task
from pointsman.store.scripts import check_version, read_migrations, read_queries, refuse_conversion
from pointsman.store.sqlite.bell import Bell
from pointsman.store.sqlite.lock_holder import advise, find_lock_holder
from pointsman.store.sqlite.schema import find_schema
from pointsman.store.sqlite.values import (
    AT_ONCE,
    DIALECT,
    encoder_of,
    from_instant,
    insert_several,
    reader_of,
    to_instant,
    update_of,
)
from pointsman.world import Clock, Ids

QUERIES = {name: DIALECT.write(text) for name, text in read_queries(__package__).items()}
LAST_POSITION = 2**63 - 1
BUSY_TIMEOUT_SECONDS = 5.0
SWITCH_TRIES = 500
CACHE_KIB = 65_536
CHECKPOINT_PAGES = 4_000
to_ended = reader_of(EndedTask, len(EndedTask.__struct_fields__))

if not apsw.connections():
    # Otherwise SQLite counts its memory, and each allocation waits for one lock. That can only be set before its first use.
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, 0)
    apsw.initialize()


class SqliteStore:
    """A database file, or `:memory:` for one that lives as long as this object."""

    is_remote = False

    def __init__(self, path: str, *, clock: Clock, ids: Ids) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._file = Path(path)
        self._explained = _Explained(self.url)
        self._clock = clock
        self._in_memory = path == ":memory:"
        self._lock = threading.RLock()
        self._idle: list[apsw.Connection] = []
        self._writer = self._connect()
        with self._explained:
            self._migrate()
        self._identity = self._identify()
        self._bell = Bell(None if self._in_memory else Path(path), ids.new("bell", clock.now()))

    def begin(self, foresee: Foresee | None = None) -> SqliteTransaction:  # noqa: ARG002 - without a network, nothing is gained
        # Readers of a database in memory share the writer's connection, so they wait for it.
        if self._in_memory:
            self._lock.acquire()
        try:
            self._check_presence()
            with self._explained:
                self._writer.execute("BEGIN IMMEDIATE")
                return SqliteTransaction(self)
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            if self._in_memory:
                self._lock.release()
            raise

    @contextmanager
    def read(self) -> Iterator[SqliteReader]:
        if self._in_memory:
            with self._lock, self._explained:
                yield SqliteReader(self._writer, self._clock)
            return
        self._check_presence()
        with self._explained:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect(read_only=True)
            try:
                connection.execute("BEGIN")
                yield SqliteReader(connection, self._clock)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._idle.append(connection)

    def listen(self, heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        return self._bell.listen(heard)

    def close(self) -> None:
        self._bell.close()
        while self._idle:
            self._idle.pop().close()
        self._writer.close()

    def end(self, word: str, wakeup: Wakeup) -> None:
        """Commit or roll back, and send the wake-up once the changes are durable."""
        try:
            # Some errors have ended the transaction already.
            if word == "COMMIT" or self._writer.in_transaction:
                with self._explained:
                    self._writer.execute(word)
        except StoreError:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        finally:
            if self._in_memory:
                self._lock.release()
        if wakeup:
            self._bell.ring(wakeup)

    @property
    def writer(self) -> apsw.Connection:
        return self._writer

    @property
    def clock(self) -> Clock:
        return self._clock

    def _connect(self, *, read_only: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        with self._explained:
            self._check_place()
            connection = apsw.Connection(self._path, flags=flags)
            connection.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))
            connection.execute("PRAGMA foreign_keys = ON")
            # Otherwise SQLite plans a query with a bound LIMIT again each time that it runs.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            if not read_only:
                self._check_owner(connection)
                self._keep_log(connection)
                connection.execute("PRAGMA synchronous = FULL")
                # The working set stays in memory, and a page that changes often is copied to the file once for many changes.
                connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                # Otherwise the journal of a statement goes to a file when it has 64 KiB.
                connection.execute("PRAGMA temp_store = MEMORY")
                connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
        return connection

    def _keep_log(self, connection: apsw.Connection) -> None:
        """Switch to a write-ahead log.

        When several processes switch a new file, SQLite refuses all but one at once, so that they cannot wait for each other.
        This tries again for as long as SQLite waits elsewhere.
        """
        for remaining in reversed(range(SWITCH_TRIES)):
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            except apsw.BusyError:
                if not remaining:
                    raise
                threading.Event().wait(BUSY_TIMEOUT_SECONDS / SWITCH_TRIES)
            else:
                return

    def _check_owner(self, connection: apsw.Connection) -> None:
        """Refuse a database of another program before anything in it is changed."""
        tables = _tables(connection)
        if tables and not {"migration", "machine"} <= tables:
            connection.close()
            raise StoreUnusable(f"{self.url} is a database of another program. Choose a file that does not exist yet.")

    def _check_place(self) -> None:
        """Say why a file cannot be opened: SQLite itself says only 'unable to open'."""
        if self._in_memory:
            return
        path = Path(self._path)
        try:
            self._check_path(path)
        except OSError as error:
            raise StoreUnusable(
                f"{path} cannot be accessed ({error.strerror}). Check the permissions of its folders."
            ) from None

    def _check_path(self, path: Path) -> None:
        if path.is_dir():
            raise StoreUnusable(f"{path} is a folder. Choose a file in it: sqlite:///{path}/pointsman.db")
        if not path.parent.is_dir():
            raise StoreUnusable(f"The folder {path.parent} does not exist. Create it first, or choose another path.")
        if not os.access(path.parent, os.W_OK):
            raise StoreUnusable(
                f"SQLite cannot write to the folder {path.parent}. Change its permissions, or choose another path."
            )
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise StoreUnusable(f"The file {path} cannot be read and written. Change its permissions, or choose another path.")

    def _check_presence(self) -> None:
        """SQLite goes on with a file that was deleted, and everybody else with a new one of the same name."""
        if self._identify() != self._identity:
            raise StoreGone(
                f"The database {self.url} was deleted or replaced while it was in use. "
                "What it has stored is lost. Run the flow again, or restore a backup."
            )

    def _identify(self) -> tuple[int, int] | None:
        """The file that is there now; its number is not given to another file while we have it open."""
        if self._in_memory:
            return None
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _migrate(self) -> None:
        """Bring the schema up to date; a second process waits for the lock and finds it done."""
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            applied = self._find_version()
            missing = read_migrations(__package__)[applied:]
            schema = None if applied else find_schema(missing)
            for script in [schema] if schema else [each.sql for each in missing]:
                connection.execute(script).fetchall()
            for migration in missing:
                row = (migration.number, migration.name, from_instant(self._clock.now()))
                connection.execute("INSERT INTO migration VALUES (?, ?, ?)", row)
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, apsw.ConstraintError):
                raise refuse_conversion(self.url, str(error)) from error
            raise

    def _find_version(self) -> int:
        """The number of the last migration that was applied."""
        if not _tables(self._writer):
            self._writer.execute(QUERIES["create_migrations"])
        ((applied,),) = self._writer.execute(QUERIES["find_version"]).fetchall()
        assert isinstance(applied, int)
        check_version(applied, read_migrations(__package__), self.url)
        return applied


class SqliteReader(Reader):
    _list = staticmethod(to_json)
    _from_instant = staticmethod(from_instant)
    _to_instant = staticmethod(to_instant)

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def time(self) -> DatabaseTime:
        return self._open()[-1]

    def _open(self) -> tuple[bool, int, DatabaseTime]:
        """Whether any tenant has a quota, the number of lanes, and the time."""
        ((has_quotas, lanes, revision, offset_seconds, corrected_at),) = self._rows("read_clock")
        if revision is None:
            return bool(has_quotas), lanes, DatabaseTime(self._clock.now())
        return bool(has_quotas), lanes, DatabaseTime(self._clock.now(), revision, offset_seconds, to_instant(corrected_at))

    def is_held_back(self) -> bool:
        return False  # writers take turns, so positions are committed in their order

    def _stream_end(self) -> int:
        return LAST_POSITION

    def _rows(self, query: str, **values: Any) -> list[Any]:
        try:
            return self._connection.execute(QUERIES[query], values).fetchall()
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error

    def _all(self, row_type: type[Row], query: str, **values: Any) -> list[Row]:
        rows = self._rows(query, **values)
        return list(map(reader_of(row_type, len(rows[0])), rows)) if rows else []


class SqliteTransaction(Transaction, SqliteReader):
    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store.writer, store.clock)
        self._store = store
        self.has_quotas, self._lanes, self._time = self._open()

    def _end(self, word: str, wakeup: Wakeup) -> None:
        self._store.end(word, wakeup)

    def move(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._change_each(rows, columns, moved=1)

    def update(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._change_each(rows, columns, moved=0)

    @contextmanager
    def _lawless(self, table: str) -> Iterator[None]:  # noqa: ARG002 - SQLite switches the triggers of a connection, not of a table
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        try:
            yield
        finally:
            self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)

    def _next_machine_id(self) -> int:
        machine_id = super()._next_machine_id()
        for query in ("drop_stray_rules", "drop_stray_states"):
            self._rows(query, machine_id=machine_id)
        return machine_id

    def select_claimable(self, lane_ids: Sequence[int], limit: int) -> list[Task]:
        return self._select_first("select_claimable", lane_ids, limit)

    def select_claimable_of_run(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        return self._select_first("select_claimable_of_run", lane_ids, limit, run_id=run_id)

    def select_allocated(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        return self._select_first("select_allocated", lane_ids, limit, run_id=run_id)

    def select_reclaimable(self, lane_ids: Sequence[int], limit: int, run_id: str | None = None) -> list[Task]:
        return self._all(Task, "select_reclaimable", lane_ids=to_json(lane_ids), limit=limit, run_id=run_id)

    def _select_first(self, query: str, lane_ids: Sequence[int], limit: int, **values: Any) -> list[Task]:
        numbers = self._find_first(query, lane_ids, limit, **values)
        return self._all(Task, "select_numbered", numbers=to_json(numbers)) if numbers else []

    def _find_first(self, query: str, lane_ids: Sequence[int], limit: int, **values: Any) -> list[int]:
        """The numbers of the first tasks of several lanes, each of which is in order."""
        lanes = [self._rows(query, lane_id=lane_id, limit=limit, **values) for lane_id in lane_ids]
        first = lanes[0] if len(lanes) == 1 else islice(merge(*lanes, key=lambda row: (-row[1], row[0])), limit)
        return [number for number, _ in first]

    def end_plain_tasks(
        self, tenant: str, reports: Sequence[PlainReport], moves: Sequence[PlainMove], now: datetime, key_id: str | None = None
    ) -> list[EndedTask]:
        if not reports or not moves:
            return []
        told = {report.task_id: report for report in reports}
        attempts = to_json([(report.task_id, report.epoch) for report in reports])
        by_state: dict[tuple[int, str], list[Any]] = defaultdict(list)
        for row in self._rows("find_plain_to_end", reports=attempts, tenant=tenant, key_id=key_id):
            by_state[row[:2]].append(row[2:])
        ended: list[EndedTask] = []
        for move in moves:
            if rows := by_state.get((move.machine_id, move.from_state)):
                ends = [_end(number, told[task_id], move) for number, task_id, *_ in rows]
                values = {"to_state": move.to_state, "trigger": move.trigger, "now": self._from_instant(now)}
                self._rows("end_plain_tasks", ends=to_json(ends), **values)
                ended += [to_ended(row[1:]) for row in rows]
        return ended

    def _begin_plain(
        self, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None, told: dict[str, Any]
    ) -> list[BegunTask]:
        if run_id is None:
            due = self._find_first("select_claimable", lane_ids, limit)
        else:
            due = self._find_first("select_claimable_of_run", lane_ids, limit, run_id=run_id)
        if not due:
            return []
        told |= {"tenant": tenant, "run_id": run_id, "lane_ids": to_json(lane_ids), "numbers": to_json(due)}
        begun = {number for (number,) in self._rows("begin_plain_tasks", **told)}
        return self._all(BegunTask, "tell_begun", numbers=to_json([number for number in due if number in begun]))

    def _write(self, query: str, rows: Sequence[Struct]) -> list[Any]:
        if not rows:
            return []
        statement = QUERIES[query]
        values = list(map(encoder_of(statement, type(rows[0])), rows))
        several = insert_several(statement)
        whole = len(values) // AT_ONCE * AT_ONCE if several else 0
        try:
            if several and whole:
                groups = (values[first : first + AT_ONCE] for first in range(0, whole, AT_ONCE))
                self._connection.executemany(several, (tuple(chain.from_iterable(group)) for group in groups)).fetchall()
            return self._connection.executemany(statement, values[whole:]).fetchall()
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error

    def _change_each(self, rows: Sequence[Entity], columns: Sequence[str], *, moved: int) -> None:
        """Change rows that are as they were read. `changes` does not count the rows that triggers change."""
        if not rows:
            return
        statement, encoder = update_of(type(rows[0]), tuple(columns), moved=moved)
        execute, changes = self._connection.execute, self._connection.changes
        try:
            for row in rows:
                execute(statement, encoder(row))
                if changes() != 1:
                    raise Conflict(f"Another process has moved {row.id}.")
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error


def _end(number: int, report: PlainReport, move: PlainMove) -> tuple[Any, ...]:
    """What `end_plain_tasks` reads about one task."""
    output = report.output if move.stores_output else None
    return number, report.session_id, report.exit_code, report.log_path, output


def explain(error: apsw.Error, url: str) -> StoreError:
    """An error of SQLite as an error of the contract."""
    match error:
        case apsw.BusyError():
            holder = find_lock_holder(url.removeprefix("sqlite:///"))
            advice = advise(holder) if holder else "Try again, or stop that process."
            return StoreBusy(f"Another process has locked {url} for more than {BUSY_TIMEOUT_SECONDS:g} seconds. {advice}")
        case apsw.FullError():
            return StoreFull(
                f"The disk is full: {url} cannot be written. Free some space. Nothing was lost, and work continues then."
            )
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreUnusable(
                f"{url} is not a SQLite database ({error}). Choose a file that does not exist yet, or restore a backup."
            )
        case apsw.ReadOnlyError() | apsw.CantOpenError():
            return StoreUnusable(
                f"{url} cannot be opened for writing ({error}). Check the permissions of the file and its folder."
            )
        case apsw.ConstraintError():
            return LawBroken(f"The database refused the change: {error}")
        case apsw.IOError() if "full" in str(error) or "disk I/O" in str(error):
            return StoreFull(
                f"{url} could not be written ({error}). Check the disk; work continues when it can be written again."
            )
        case _:
            return StoreError(f"{url}: {error}")


class _Explained:
    """Turns errors of SQLite into those of the contract. A generator would take several times as long, at each statement."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, apsw.Error):
            raise explain(error, self._url) from error


def _tables(connection: apsw.Connection) -> set[str]:
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()}

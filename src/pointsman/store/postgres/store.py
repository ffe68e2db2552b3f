"""PostgreSQL: any number of servers and workers on one database, with row locks and notifications."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from operator import attrgetter
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.pq import TransactionStatus

from pointsman.errors import Conflict, OutcomeUnknown, StoreError, StoreUnavailable, StoreUnusable
from pointsman.kernel.machine import Machine
from pointsman.store.clock import DatabaseTime
from pointsman.store.columns import Row, to_json
from pointsman.store.contract import Reader, Transaction, Wakeup
from pointsman.store.postgres.connections import (
    IDLE_TIMEOUT_SECONDS,
    OLDEST_SERVER,
    READER_SESSION,
    WRITER_SESSION,
    connect,
    explained,
    show,
)
from pointsman.store.postgres.listener import Listener
from pointsman.store.postgres.values import DIALECT, in_turns, row_factory_of, to_array, update_of
from pointsman.store.rows import Entity, Lane, MachineRow, Task, TaskKey
from pointsman.store.scripts import Migration, check_version, read_migrations, read_queries
from pointsman.world import Clock, Ids

QUERIES = {name: DIALECT.write(text).encode() for name, text in read_queries(__package__).items()}
PAUSES_SECONDS = (0.0, 0.2, 0.5)
"""The pauses between tries to reach a lost database."""
SHORTEST_IDLE_SECONDS = 5.0
"""A large batch keeps its transaction idle while it builds the rows."""
MOST_IDLE_READERS = 8
MOST_ROWS = 2_000
MOST_CHARACTERS = 16 << 20
"""Of one statement: PostgreSQL takes a message of at most a gigabyte, and closes the connection for a larger one."""
MIGRATION_LOCK = 0x706F696E7473
BEGIN = (
    b"BEGIN; SELECT pg_current_xact_id()::text, (SELECT count(*) FROM lane), EXISTS (SELECT FROM quota), "
    b"clock_timestamp(), clock.* FROM (VALUES (0)) AS now LEFT JOIN clock ON true"
)
READ = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
OUTCOME = b"SELECT pg_xact_status(%s::xid8)"
STREAM_END = b"SELECT stream_end()"
HELD_BACK = b"SELECT stream_end() < last_value - (NOT is_called)::integer FROM transition_position_seq"
_TABLE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)


class PostgresStore:
    """A database of a PostgreSQL server, in the schema that its search_path names first."""

    def __init__(self, url: str, *, clock: Clock | None, ids: Ids) -> None:
        """Without a clock, the store uses the time of the database, which all processes share."""
        self.url = show(url)
        self._secret_url = url
        self._clock = clock
        self._listener = Listener(url, ids)
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._writer: psycopg.Connection[Any] | None = None
        self._transaction_id = ""
        self._idle_seconds: float = IDLE_TIMEOUT_SECONDS
        with explained(self.url):
            writer = self._reach()
            try:
                _migrate(writer, self.url)
            except BaseException:
                self._forget()
                raise

    def begin(self) -> PostgresTransaction:
        for pause in PAUSES_SECONDS:
            try:
                return self._begin()
            except StoreUnavailable as error:
                if isinstance(error.__cause__, psycopg.errors.ConnectionTimeout):
                    raise  # it took long enough: a caller has to hear of it
                self._closed.wait(pause)
        return self._begin()

    @contextmanager
    def read(self) -> Iterator[PostgresReader]:
        with explained(self.url):
            connection = self._borrow()
        try:
            yield PostgresReader(connection, self.url, self._clock)
        finally:
            self._give_back(connection)

    def listen(self, heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        return self._listener.listen(heard)

    def close(self) -> None:
        self._closed.set()
        self._listener.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._forget()

    def end(self, word: str, wakeup: Wakeup) -> None:
        """Commit or roll back; the wake-up is sent with the commit, or not at all."""
        writer = self._writer
        if writer is None or writer.closed:
            self._forget()
            if word == "ROLLBACK":
                return
            raise StoreUnavailable(f"The connection to {self.url} was lost before the commit. Nothing was changed; try again.")
        try:
            with explained(self.url):
                # One round trip for both.
                cursor = writer.execute(
                    (f"SELECT pg_notify('pointsman', '{int(wakeup)}'); {word}" if wakeup else word).encode()
                )
                while cursor.nextset():
                    pass
        except StoreError:
            if writer.closed:
                self._forget()
                if word == "COMMIT" and self._was_committed():
                    return
            elif writer.pgconn.transaction_status != TransactionStatus.IDLE:
                with suppress(psycopg.Error):
                    writer.execute(b"ROLLBACK")
            if word != "ROLLBACK":
                raise
            return
        if cursor.statusmessage != word:  # PostgreSQL reports no error for the commit of a transaction that has failed
            raise StoreError(f"{self.url} rolled the transaction back, because one of its statements had failed.")

    def _was_committed(self) -> bool:
        """Whether a commit succeeded whose answer was lost: the server knows, once it is back."""
        for pause in PAUSES_SECONDS:
            try:
                ((status,),) = self._reach().execute(OUTCOME, (self._transaction_id,)).fetchall()
                self._reach().execute(b"ROLLBACK")
            except psycopg.Error:
                self._forget()
                self._closed.wait(pause)
                continue
            if status in ("committed", "aborted"):
                return bool(status == "committed")
            self._closed.wait(pause)
        raise OutcomeUnknown(
            f"The connection to {self.url} was lost during a commit, and the database cannot tell whether it succeeded. "
            "Repeat the request with the same request_id, or check whether it took effect."
        )

    def _begin(self) -> PostgresTransaction:
        try:
            with explained(self.url):
                writer = self._reach()
                if writer.pgconn.transaction_status != TransactionStatus.IDLE:
                    writer.execute(b"ROLLBACK")
                cursor = writer.execute(BEGIN)
                cursor.nextset()
                self._transaction_id, lanes, has_quotas, *clock = cursor.fetchall()[0]
                time = _read_time(clock, self._clock)
                return PostgresTransaction(self, writer, time, lanes=lanes, has_quotas=has_quotas)
        except StoreError:
            self._forget()
            raise

    def _reach(self) -> psycopg.Connection[Any]:
        if self._closed.is_set():
            raise StoreError(f"{self.url} was closed.")
        if self._writer is None or self._writer.closed:
            self._writer = connect(self._secret_url, f"{WRITER_SESSION}; {_limit_idle(self._idle_seconds)}")
        return self._writer

    def limit_idle(self, seconds: float) -> None:
        """For this connection of the writer, and for those that replace it."""
        if self._writer and seconds < self._idle_seconds:
            self._idle_seconds = max(seconds, SHORTEST_IDLE_SECONDS)
            with explained(self.url):
                self._writer.execute(_limit_idle(self._idle_seconds).encode())

    def _forget(self) -> None:
        writer, self._writer = self._writer, None
        if writer:
            writer.close()

    def _borrow(self) -> psycopg.Connection[Any]:
        """A connection with one snapshot; connections that died while idle are skipped."""
        while True:
            if self._closed.is_set():
                raise StoreError(f"{self.url} was closed.")
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            connection = idle or connect(self._secret_url, READER_SESSION)
            try:
                connection.execute(READ)
            except psycopg.Error:
                connection.close()
                if idle is None:
                    raise
            else:
                return connection

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        try:
            connection.execute(b"ROLLBACK")
        except psycopg.Error:
            connection.close()
        with self._lock:
            keep = not connection.closed and not self._closed.is_set() and len(self._idle) < MOST_IDLE_READERS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()


class PostgresReader(Reader):
    _list = staticmethod(to_array)

    def __init__(self, connection: psycopg.Connection[Any], url: str, clock: Clock | None) -> None:
        self._connection = connection
        self._url = url
        self._clock = clock

    def time(self) -> DatabaseTime:
        return _read_time(self._rows("read_clock")[0], self._clock)

    def is_held_back(self) -> bool:
        return bool(self._ask(HELD_BACK))

    def _stream_end(self) -> int:
        """The end has to be read before the snapshot in which the stream is read, so this begins a new snapshot."""
        with explained(self._url):
            self._connection.execute(b"ROLLBACK")
            end = int(self._ask(STREAM_END))
            if self._connection.pgconn.transaction_status != TransactionStatus.IDLE:
                self._connection.execute(b"ROLLBACK")
            self._connection.execute(READ)
        return end

    def _ask(self, statement: bytes) -> Any:
        """The one value that a statement returns."""
        with explained(self._url):
            ((value,),) = self._connection.execute(statement).fetchall()
        return value

    def _rows(self, query: str, **values: Any) -> list[Any]:
        with explained(self._url):
            cursor = self._connection.execute(QUERIES[query], values)
            return cursor.fetchall() if cursor.description else []

    def _all(self, row_type: type[Row], query: str, **values: Any) -> list[Row]:
        with explained(self._url):
            try:
                cursor = self._connection.cursor(binary=True, row_factory=row_factory_of(row_type))
                return cursor.execute(QUERIES[query], values).fetchall()
            except psycopg.DataError:
                if any("\0" in value for value in values.values() if isinstance(value, str)):
                    return []  # PostgreSQL cannot store such text, so no row has it
                raise

    @staticmethod
    def _from_instant(instant: datetime) -> datetime:
        return instant

    @staticmethod
    def _to_instant(value: datetime) -> datetime:
        return value


class PostgresTransaction(Transaction, PostgresReader):
    def __init__(
        self, store: PostgresStore, connection: psycopg.Connection[Any], time: DatabaseTime, *, lanes: int, has_quotas: bool
    ) -> None:
        super().__init__(connection, store.url, None)
        self._lanes = lanes
        self.has_quotas = has_quotas
        self._store = store
        self._time = time

    def _end(self, word: str, wakeup: Wakeup) -> None:
        self._store.end(word, wakeup)

    def _stream_end(self) -> int:
        """Each statement of a transaction has its own snapshot."""
        return int(self._ask(STREAM_END))

    def limit_idle(self, seconds: float) -> None:
        self._store.limit_idle(seconds)

    def move(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._update(rows, columns, moved=1)

    def update(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._update(rows, columns, moved=0)

    def move_in_bulk(self, row: Entity, ids: Sequence[str], columns: Sequence[str]) -> None:
        statement, values = update_of([row], columns, moved=1)
        with explained(self._url):
            changed = self._connection.execute(statement, {**values, "id": to_array(ids)}).rowcount
        if changed != len(ids):
            raise Conflict(f"Another process has changed {len(ids) - changed} of {len(ids)} rows like {row.id}.")

    @contextmanager
    def _lawless(self, table: str) -> Iterator[None]:
        """A transaction that fails leaves the triggers as they were."""
        with explained(self._url):
            self._connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER".encode())
        yield
        with explained(self._url):
            self._connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER".encode())

    def insert_machine(self, machine: Machine, *, fingerprint: str, definition: str) -> MachineRow:
        """Servers that start together load the same machines: the second gets the row that the first has stored."""
        with explained(self._url):
            self._connection.execute(b"LOCK TABLE machine IN SHARE ROW EXCLUSIVE MODE")
        for known in self.list_machines():
            if (known.name, known.version, known.fingerprint) == (machine.name, machine.version, fingerprint):
                return known
        return super().insert_machine(machine, fingerprint=fingerprint, definition=definition)

    def count_lanes(self) -> int:
        return self._lanes  # the lanes when the transaction began, and those that it has added

    def insert_lane(self, tenant: str, tool: str | None, capabilities: str, *, fails_fast: bool) -> Lane:
        lane = {"tenant": tenant, "tool": tool, "capabilities": capabilities, "fails_fast": fails_fast}
        if self._rows("insert_lane", **lane):
            self._lanes += 1
        else:
            self._lanes = super().count_lanes()  # another transaction has added it, perhaps since this one began
        return self._all(Lane, "find_lane", **lane)[0]

    def select_claimable(self, tenant: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        locked = self._column("select_claimable", tenant=tenant, lane_ids=to_array(lane_ids), limit=limit)
        return self._of(TaskKey, "select_claimable_keys", locked)

    def select_claimable_of_run(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        return self._all(TaskKey, "select_claimable_of_run", run_id=run_id, lane_ids=to_array(lane_ids), limit=limit)

    def select_allocated(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        locked = self._column("select_allocated", run_id=run_id, lane_ids=to_array(lane_ids), limit=limit)
        return [task for task in self._in_order(locked) if _may_begin(task) and task.allocated]

    def select_reclaimable(self, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None = None) -> list[Task]:
        locked = self._column("select_reclaimable", tenant=tenant, lane_ids=to_array(lane_ids), limit=limit, run_id=run_id)
        return [task for task in self._in_order(locked) if task.lease_expired and task.run_open]

    def _in_order(self, ids: Sequence[str]) -> Iterator[Task]:
        """Tasks as they are now that their runs are locked, in the order in which they were found."""
        tasks = {task.id: task for task in self.select_to_claim(ids)}
        return (tasks[task_id] for task_id in ids)

    def insert_tasks(self, tasks: Sequence[Task]) -> None:
        """Parents first: a large batch needs several statements, and each refers only to rows that are there."""
        super().insert_tasks(sorted(tasks, key=attrgetter("depth")))

    def _write(self, query: str, rows: Sequence[Struct]) -> list[Any]:
        """One statement for the whole batch, unless it is too large."""
        if len(rows) <= MOST_ROWS:
            encoded = to_json(rows)
            if len(encoded) <= MOST_CHARACTERS or len(rows) == 1:
                return self._rows(query, rows=encoded) if rows else []
        middle = len(rows) // 2
        return self._write(query, rows[:middle]) + self._write(query, rows[middle:])

    def _update(self, rows: Sequence[Entity], columns: Sequence[str], *, moved: int) -> None:
        for turn in in_turns(rows) if rows else ():
            self._update_once(turn, columns, moved=moved)

    def _update_once(self, rows: Sequence[Entity], columns: Sequence[str], *, moved: int) -> None:
        statement, values = update_of(rows, columns, moved=moved)
        if len(rows) > 1 and sum(len(value) for value in values.values() if isinstance(value, str)) > MOST_CHARACTERS:
            middle = len(rows) // 2
            self._update_once(rows[:middle], columns, moved=moved)
            self._update_once(rows[middle:], columns, moved=moved)
            return
        with explained(self._url):
            changed = self._connection.execute(statement, values).rowcount
        if changed != len(rows):
            names = ", ".join(row.id for row in rows)
            raise Conflict(f"Another process has changed {len(rows) - changed} of these rows: {names}.")


def _read_time(row: Sequence[Any], clock: Clock | None) -> DatabaseTime:
    """A reading of the clock of the server, unless another clock was passed in."""
    wall, *correction = row
    wall = clock.now() if clock else wall
    return DatabaseTime(wall) if correction[0] is None else DatabaseTime(wall, *correction[1:])


def _may_begin(task: Task) -> bool:
    """Whether a task is still in the partial indexes of claims: it may have changed before its run was locked."""
    waits = task.open_dependencies or task.available_at or task.is_gate
    return task.phase == "queued" and task.run_open and not waits


def _limit_idle(seconds: float) -> str:
    return f"SET idle_in_transaction_session_timeout = '{round(seconds * 1000)}ms'"


def _migrate(connection: psycopg.Connection[Any], url: str) -> None:
    """Bring the schema up to date; a second process waits for the lock and finds it done."""
    version = connection.info.server_version
    if version < OLDEST_SERVER:
        raise StoreUnusable(f"{url} is PostgreSQL {version // 10000}. Use PostgreSQL {OLDEST_SERVER // 10000} or later.")
    migrations = read_migrations(__package__)
    if _find_version(connection, url, migrations) == len(migrations):
        return  # without the lock: every role of the database could hold it
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = 0")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
        applied = _find_version(connection, url, migrations)
        if applied is None:
            connection.execute(QUERIES["create_migrations"])
        # The functions of the law keep this path: our schema comes before the temporary tables of the session that calls them.
        connection.execute("SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)")
        for migration in migrations[applied or 0 :]:
            connection.execute(migration.sql.encode())
            connection.execute("INSERT INTO migration VALUES (%s, %s, clock_timestamp())", [migration.number, migration.name])


def _find_version(connection: psycopg.Connection[Any], url: str, migrations: list[Migration]) -> int | None:
    """The number of the last migration that was applied; None in an empty schema. Refuses tables of another program."""
    ((schema,),) = connection.execute("SELECT current_schema()").fetchall()
    if schema is None:
        raise StoreUnusable(f"No schema in the search_path of {url} exists. Create it: CREATE SCHEMA pointsman.")
    advice = "Create a schema for Pointsman, and put it into the URL: ?options=-csearch_path%3Dpointsman"
    tables = {name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])}
    if "migration" not in tables:
        if taken := tables & {name for migration in migrations for name in _TABLE.findall(migration.sql)}:
            raise StoreUnusable(
                f"The schema {schema} of {url} has tables of another program ({', '.join(sorted(taken))}). {advice}"
            )
        return None
    try:
        ((applied,),) = connection.execute(QUERIES["find_version"]).fetchall()
    except psycopg.errors.UndefinedColumn:
        raise StoreUnusable(
            f"The table migration in the schema {schema} of {url} belongs to another program. {advice}"
        ) from None
    assert isinstance(applied, int)
    check_version(applied, migrations, url)
    return applied

"""PostgreSQL: any number of servers and workers on one database, with row locks and notifications."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from operator import attrgetter
from typing import Any, cast

import psycopg
from msgspec import Struct

from pointsman.errors import (
    Conflict,
    LawBroken,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    Unforeseen,
)
from pointsman.kernel.machine import Kind, Machine
from pointsman.store.clock import DatabaseTime
from pointsman.store.columns import Row, to_json
from pointsman.store.contract import Foresee, Query, Reader, Transaction, Wakeup
from pointsman.store.postgres import turns
from pointsman.store.postgres.connections import (
    IDLE_TIMEOUT_SECONDS,
    OLDEST_SERVER,
    READER_SESSION,
    WRITER_SESSION,
    show,
)
from pointsman.store.postgres.foreseen import NOW, Recorder, put_instant
from pointsman.store.postgres.listener import NOTIFY, Listener
from pointsman.store.postgres.queries import QUERIES, SHARED, START_COLUMNS
from pointsman.store.postgres.session import Question, Session
from pointsman.store.postgres.statements import Statement
from pointsman.store.postgres.values import in_turns, to_array, update_of
from pointsman.store.rows import BegunTask, Entity, MachineRow, Task, Worker
from pointsman.store.scripts import Migration, check_version, read_migrations, refuse_conversion
from pointsman.world import Clock, Ids, SystemClock

PAUSES_SECONDS = (0.0, 0.2, 0.5)
"""The pauses between tries to reach a lost database."""
SHORTEST_IDLE_SECONDS = 5.0
"""A large batch keeps its transaction idle while it builds the rows."""
MOST_IDLE_READERS = 8
MOST_ROWS = 2_000
MOST_CHARACTERS = 16 << 20
"""Of one statement: PostgreSQL takes a message of at most a gigabyte, and closes the connection for a larger one."""
MIGRATION_LOCK = 0x706F696E7473
BEGIN = Statement("BEGIN")
START = Statement(f"SELECT {', '.join(START_COLUMNS)}")
READ = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
ROLLBACK = Statement("ROLLBACK")
GIVE_UP = Statement("ROLLBACK", then=Statement("SELECT pg_advisory_unlock_all()"))
"""Also of waiting."""
OUTCOME = Statement("SELECT pg_xact_status(:transaction_id::xid8), pg_postmaster_start_time()::text = :server")
STREAM_END = Statement("SELECT stream_end()")
SCHEMA = Statement("SELECT current_schema()")
TABLES = Statement("SELECT tablename FROM pg_tables WHERE schemaname = :schema")
MIGRATED = Statement("INSERT INTO migration VALUES (:number, :name, clock_timestamp())")
HELD_BACK = Statement("SELECT stream_end() < last_value - (NOT is_called)::integer FROM trail_position_seq")
_TABLE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)


class PostgresStore:
    """A database of a PostgreSQL server, in the schema that its search_path names first."""

    is_remote = True

    def __init__(self, url: str, *, clock: Clock | None, ids: Ids) -> None:
        """Without a clock, the store uses the time of the database, which all processes share."""
        self.url = show(url)
        self._secret_url = url
        self._clock = clock
        self._listener = Listener(url, clock or SystemClock(), ids)
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._writer: Session | None = None
        self._transaction_id = self._server = ""
        self._idle_seconds: float = IDLE_TIMEOUT_SECONDS
        try:
            _migrate(self._reach(), self.url)
        except BaseException:
            self._forget()
            raise

    def begin(self, foresee: Foresee | None = None) -> PostgresTransaction:
        for pause in PAUSES_SECONDS:
            try:
                return self._begin(foresee)
            except StoreUnavailable as error:
                if isinstance(error.__cause__, psycopg.errors.ConnectionTimeout):
                    raise  # it took long enough: a caller has to hear of it
                self._closed.wait(pause)
        return self._begin(foresee)

    @contextmanager
    def read(self) -> Iterator[PostgresReader]:
        session = self._borrow()
        try:
            yield PostgresReader(session, self._clock)
        finally:
            self._give_back(session)

    def listen(self, heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        return self._listener.listen(heard)

    def close(self) -> None:
        self._closed.set()
        self._listener.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()
        if self._writer and (announcement := self._listener.take_held()):
            with suppress(StoreError):
                self._writer.ask(NOTIFY, {"announcement": announcement})
        self._forget()

    def commit(self, wakeup: Wakeup) -> None:
        """Everything that waits, the wake-up and the commit are one round trip."""
        writer = self._writer
        if writer is None or writer.is_closed:
            self._forget()
            raise StoreUnavailable(f"The connection to {self.url} was lost before the commit. Nothing was changed; try again.")
        announcement = self._listener.announce(wakeup)
        try:
            if announcement:
                writer.later(NOTIFY, {"announcement": announcement})
            writer.commit()
        except StoreError:
            if not writer.is_closed:
                self.rollback()
                raise
            self._forget()
            try:
                was_committed = self._was_committed()
            finally:  # also if nobody knows: a wake-up too many does no harm
                self._listener.committed(wakeup, is_announced=False)
            if not was_committed:
                raise
        else:
            self._listener.committed(wakeup, is_announced=announcement is not None)

    def rollback(self) -> None:
        writer = self._writer
        if writer is None or writer.is_closed:
            self._forget()
            return
        writer.discard()
        if not writer.is_idle:
            with suppress(StoreError):
                writer.ask(GIVE_UP, {})

    def _was_committed(self) -> bool:
        """Whether a commit succeeded whose answer was lost: the server knows, once it is back.

        A server that was killed may have given the number of a lost transaction to another one, which has committed since.
        """
        for pause in PAUSES_SECONDS:
            try:
                asked = {"transaction_id": self._transaction_id, "server": self._server}
                ((status, is_same_server),) = self._reach().ask(OUTCOME, asked)
            except StoreError:
                self._forget()
                self._closed.wait(pause)
                continue
            if status == "aborted" or (status == "committed" and is_same_server):
                return bool(status == "committed")
            if not is_same_server:
                break
            self._closed.wait(pause)
        raise OutcomeUnknown(
            f"The connection to {self.url} was lost during a commit, and the database cannot tell whether it succeeded. "
            "Repeat the request with the same request_id, or check whether it took effect."
        )

    def _begin(self, foresee: Foresee | None) -> PostgresTransaction:
        foreseen = self._list_foreseen(foresee) if foresee else []
        shares = foresee is not None and foresee.shares
        instant = self._clock.now() if self._clock else "now"  # PostgreSQL reads this word as the beginning of the transaction
        try:
            writer = self._reach()
            writer.discard()
            if not writer.is_idle:
                writer.ask(GIVE_UP, {})
            start, answers = self._open(writer, put_instant(foreseen, instant), shares=shares)
        except StoreError as error:
            if not foreseen or self._writer is None or self._writer.is_closed:
                self._forget()
                raise
            self.rollback()
            if shares and isinstance(error.__cause__, psycopg.errors.DivisionByZero):
                raise StoreBusy(f"Another transaction in {self.url} waits for a run that others share.") from error
            if isinstance(error, StoreBusy):
                raise
            raise Unforeseen(None if shares else 0) from error
        self._transaction_id, self._server, lanes, has_quotas, *clock = start
        time = _read_time(clock, self._clock)
        if time.now == time.wall and instant in ("now", time.wall):  # otherwise, no question with the time in it is right
            foreseen = put_instant(foreseen, time.wall)
        writer.remember(zip(foreseen, answers, strict=True), are_all=shares)
        kind = SharingTransaction if shares else PostgresTransaction
        return kind(self, writer, time, lanes=lanes, has_quotas=has_quotas)

    def _open(
        self, writer: Session, foreseen: Sequence[Question], *, shares: bool
    ) -> tuple[Sequence[Any], Sequence[list[Any]]]:
        """Begin, and ask what is foreseen: what START says, and the answers."""
        begin: Question = BEGIN, {}, None
        if shares and (turn := turns.pack(foreseen)):
            _, *answers = writer.ask_together([begin, *turn.sent])
            if dealt := turn.deal(answers):
                return dealt
            raise Conflict("There are no such runs.")
        _, (start,), *answers = writer.ask_together([begin, (turns.START if shares else START, {}, None), *foreseen])
        return start, answers

    def _list_foreseen(self, foresee: Foresee) -> list[Question]:
        recorder = Recorder()
        kind = SharingTransaction if foresee.shares else PostgresTransaction
        foresee.ask(kind(self, cast("Session", recorder), DatabaseTime(NOW), lanes=0, has_quotas=False), NOW)
        return recorder.questions[: foresee.most]

    def _reach(self) -> Session:
        if self._closed.is_set():
            raise StoreError(f"{self.url} was closed.")
        if self._writer is None or self._writer.is_closed:
            self._writer = Session(self._secret_url, f"{WRITER_SESSION}; {_limit_idle(self._idle_seconds)}")
        return self._writer

    def limit_idle(self, seconds: float) -> None:
        """For this connection of the writer, and for those that replace it."""
        if self._writer and seconds < self._idle_seconds:
            self._idle_seconds = max(seconds, SHORTEST_IDLE_SECONDS)
            self._writer.script(_limit_idle(self._idle_seconds))

    def _forget(self) -> None:
        writer, self._writer = self._writer, None
        if writer:
            writer.close()

    def _borrow(self) -> Session:
        """A session with one snapshot; those that died while idle are skipped."""
        while True:
            if self._closed.is_set():
                raise StoreError(f"{self.url} was closed.")
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            session = idle or Session(self._secret_url, READER_SESSION)
            try:
                session.ask(READ, {})
            except StoreError:
                session.close()
                if idle is None:
                    raise
            else:
                return session

    def _give_back(self, session: Session) -> None:
        try:
            session.ask(ROLLBACK, {})
        except StoreError:
            session.close()
        with self._lock:
            keep = not session.is_closed and not self._closed.is_set() and len(self._idle) < MOST_IDLE_READERS
            if keep:
                self._idle.append(session)
        if not keep:
            session.close()


class PostgresReader(Reader):
    _list = staticmethod(to_array)

    def __init__(self, session: Session, clock: Clock | None) -> None:
        self._session = session
        self._clock = clock

    def time(self) -> DatabaseTime:
        return _read_time(self._rows("read_clock")[0], self._clock)

    def is_held_back(self) -> bool:
        return bool(self._ask(HELD_BACK))

    def _stream_end(self) -> int:
        """The end has to be read before the snapshot in which the stream is read, so this begins a new snapshot."""
        self._session.ask(ROLLBACK, {})
        end = int(self._ask(STREAM_END))
        self._session.ask(READ, {})
        return end

    def _ask(self, statement: Statement) -> Any:
        """The one value that a statement returns."""
        ((value,),) = self._session.ask(statement, {})
        return value

    def _statement(self, query: str) -> Statement:
        return QUERIES[query]

    def _rows(self, query: str, **values: Any) -> list[Any]:
        """A write without results is executed together with the next statement that has some, or with the commit."""
        statement = self._statement(query)
        if statement.returns:
            return self._session.ask(statement, values)
        self._session.later(statement, values)
        return []

    def _all(self, row_type: type[Row], query: str, **values: Any) -> list[Row]:
        try:
            return self._session.ask(self._statement(query), values, row_type)
        except LawBroken:
            if any("\0" in value for value in values.values() if isinstance(value, str)):
                return []  # PostgreSQL cannot store such text, so no row has it
            raise

    def _together(self, queries: Sequence[Query]) -> list[list[Any]]:
        return self._session.ask_together([(QUERIES[name], values, row_type) for name, values, row_type in queries])

    @staticmethod
    def _from_instant(instant: datetime) -> datetime:
        return instant

    @staticmethod
    def _to_instant(value: datetime) -> datetime:
        return value


class PostgresTransaction(Transaction, PostgresReader):
    def __init__(self, store: PostgresStore, session: Session, time: DatabaseTime, *, lanes: int, has_quotas: bool) -> None:
        super().__init__(session, None)
        self._lanes = lanes
        self.has_quotas = has_quotas
        self._store = store
        self._time = time

    def _end(self, word: str, wakeup: Wakeup) -> None:
        if word == "COMMIT":
            self._store.commit(wakeup)
        else:
            self._store.rollback()

    def _stream_end(self) -> int:
        """Each statement of a transaction has its own snapshot."""
        return int(self._ask(STREAM_END))

    def limit_idle(self, seconds: float) -> None:
        self._store.limit_idle(seconds)

    def move(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._update(rows, columns, moved=1)

    def update(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._update(rows, columns, moved=0)

    def restore(self, kind: Kind, ids: Collection[str]) -> None:
        super().restore(kind, ids)
        self._rows_of(f"check_{kind}s", ids)

    @contextmanager
    def _lawless(self, table: str) -> Iterator[None]:
        """A transaction that fails leaves the triggers as they were."""
        self._session.script(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        self._session.script(f"ALTER TABLE {table} ENABLE TRIGGER USER")

    def insert_machine(self, machine: Machine, *, fingerprint: str, definition: str) -> MachineRow:
        """Servers that start together load the same machines: the second gets the row that the first has stored."""
        self._session.script("LOCK TABLE machine IN SHARE ROW EXCLUSIVE MODE")
        for known in self.list_machines():
            if (known.name, known.version, known.fingerprint) == (machine.name, machine.version, fingerprint):
                return known
        return super().insert_machine(machine, fingerprint=fingerprint, definition=definition)

    def _begin_plain(
        self, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None, told: dict[str, Any]
    ) -> list[BegunTask]:
        told |= {"tenant": tenant, "lane_ids": to_array(lane_ids), "limit": limit}
        if run_id is None:
            return self._all(BegunTask, "begin_plain_tasks", **told)
        return self._all(BegunTask, "begin_plain_tasks_of_run", **told, run_id=run_id)

    def select_claimable(self, lane_ids: Sequence[int], limit: int) -> list[Task]:
        locked = self._column("select_claimable", lane_ids=to_array(lane_ids), limit=limit)
        return [task for task in self._in_order(locked) if _may_begin(task) and not task.allocated]

    def select_claimable_of_run(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        return self._all(Task, "select_claimable_of_run", run_id=run_id, lane_ids=to_array(lane_ids), limit=limit)

    def select_allocated(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        locked = self._column("select_allocated", run_id=run_id, lane_ids=to_array(lane_ids), limit=limit)
        return [task for task in self._in_order(locked) if _may_begin(task) and task.allocated]

    def select_reclaimable(self, lane_ids: Sequence[int], limit: int, run_id: str | None = None) -> list[Task]:
        locked = self._column("select_reclaimable", lane_ids=to_array(lane_ids), limit=limit, run_id=run_id)
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
        self._session.later(statement, values, [row.id for row in rows])


class SharingTransaction(PostgresTransaction):
    """A turn of a worker that goes on beside others in the same runs. Whatever it does not know needs the run for itself.

    A lock that is shared is never made exclusive: two transactions that did so would wait for each other.
    """

    shares_runs = True

    def _statement(self, query: str) -> Statement:
        if query not in SHARED:
            raise Unforeseen(None)
        return SHARED[query]

    def _update(self, rows: Sequence[Entity], columns: Sequence[str], *, moved: int) -> None:
        if not all(isinstance(row, Worker) for row in rows):
            raise Unforeseen(None)
        super()._update(rows, columns, moved=moved)


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


def _migrate(session: Session, url: str) -> None:
    """Bring the schema up to date; a second process waits for the lock and finds it done."""
    version = session.server_version
    if version < OLDEST_SERVER:
        raise StoreUnusable(f"{url} is PostgreSQL {version // 10000}. Use PostgreSQL {OLDEST_SERVER // 10000} or later.")
    migrations = read_migrations(__package__)
    if _find_version(session, url, migrations) == len(migrations):
        return  # without the lock: every role of the database could hold it
    session.script(f"BEGIN; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
    applied = _find_version(session, url, migrations)
    if applied is None:
        session.later(QUERIES["create_migrations"], {})
    # The functions of the law keep this path: our schema comes before the temporary tables of the session that calls them.
    session.script("SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)")
    try:
        for migration in migrations[applied or 0 :]:
            session.script(migration.sql)
            session.later(MIGRATED, {"number": migration.number, "name": migration.name})
    except LawBroken as error:
        raise refuse_conversion(url, str(error)) from error
    session.script("COMMIT")


def _find_version(session: Session, url: str, migrations: list[Migration]) -> int | None:
    """The number of the last migration that was applied; None in an empty schema. Refuses tables of another program."""
    ((schema,),) = session.ask(SCHEMA, {})
    if schema is None:
        raise StoreUnusable(f"No schema in the search_path of {url} exists. Create it: CREATE SCHEMA pointsman.")
    advice = "Create a schema for Pointsman, and put it into the URL: ?options=-csearch_path%3Dpointsman"
    tables = {name for (name,) in session.ask(TABLES, {"schema": schema})}
    if "migration" not in tables:
        if taken := tables & {name for migration in migrations for name in _TABLE.findall(migration.sql)}:
            raise StoreUnusable(
                f"The schema {schema} of {url} has tables of another program ({', '.join(sorted(taken))}). {advice}"
            )
        return None
    try:
        ((applied,),) = session.ask(QUERIES["find_version"], {})
    except StoreError as error:
        if not isinstance(error.__cause__, psycopg.errors.UndefinedColumn):
            raise
        raise StoreUnusable(
            f"The table migration in the schema {schema} of {url} belongs to another program. {advice}"
        ) from None
    assert isinstance(applied, int)
    check_version(applied, migrations, url)
    return applied

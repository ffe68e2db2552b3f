"""SQLite: one file, one writer at a time, any number of readers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec
from msgspec import Struct

from pointsman.errors import (
    Conflict,
    LawBroken,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreTooNew,
    StoreUnusable,
)
from pointsman.kernel.machine import Machine
from pointsman.store.contract import Wakeup, read_position
from pointsman.store.law import rule_rows, state_rows
from pointsman.store.rows import (
    Attempt,
    Breaker,
    Dependency,
    Entity,
    Lane,
    MachineRow,
    Notice,
    Result,
    Run,
    Situation,
    StoredResponse,
    Subtasks,
    Task,
    TaskKey,
    Timer,
    Transition,
    Worker,
)
from pointsman.store.scripts import read_migrations, read_queries
from pointsman.store.sqlite.bell import Bell
from pointsman.store.sqlite.values import (
    Decoder,
    Encoder,
    compile_decoder,
    compile_encoder,
    from_instant,
    to_instant,
    update_of,
    update_of_alike,
)
from pointsman.world import Clock, Ids

QUERIES = read_queries(__package__)
_DECODERS: dict[tuple[str, int], Decoder[Any]] = {}
_ENCODERS: dict[tuple[str, type[Struct]], Encoder] = {}
BUSY_TIMEOUT_SECONDS = 5.0
SWITCH_TRIES = 500
CACHE_KIB = 65_536
CHECKPOINT_PAGES = 4_000
Row = TypeVar("Row", bound=Struct)
Found = TypeVar("Found", Task, TaskKey)


class SqliteStore:
    """A database file, or `:memory:` for one that lives as long as this object."""

    def __init__(self, path: str, *, clock: Clock, ids: Ids) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._clock = clock
        self._in_memory = path == ":memory:"
        self._lock = threading.RLock()
        self._idle: list[apsw.Connection] = []
        self._writer = self._connect()
        with _explained(self.url):
            self._migrate()
        self._bell = Bell(None if self._in_memory else Path(path), ids.new("bell", clock.now()))

    def begin(self) -> SqliteTransaction:
        # Readers of a database in memory share the writer's connection, so they have to wait for it.
        if self._in_memory:
            self._lock.acquire()
        try:
            with _explained(self.url):
                self._writer.execute("BEGIN IMMEDIATE")
        except BaseException:
            if self._in_memory:
                self._lock.release()
            raise
        return SqliteTransaction(self)

    @contextmanager
    def read(self) -> Iterator[SqliteReader]:
        if self._in_memory:
            with self._lock, _explained(self.url):
                yield SqliteReader(self._writer, self._clock)
            return
        with _explained(self.url):
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

    def end(self, word: str, news: Wakeup) -> None:
        """Commit or roll back, and tell the news once they are true."""
        try:
            # Some errors have ended the transaction already.
            if word == "COMMIT" or self._writer.in_transaction:
                with _explained(self.url):
                    self._writer.execute(word)
        except StoreError:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        finally:
            if self._in_memory:
                self._lock.release()
        if news:
            self._bell.ring(news)

    @property
    def writer(self) -> apsw.Connection:
        return self._writer

    @property
    def clock(self) -> Clock:
        return self._clock

    def _connect(self, *, read_only: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        with _explained(self.url):
            self._check_place()
            connection = apsw.Connection(self._path, flags=flags)
            connection.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))
            connection.execute("PRAGMA foreign_keys = ON")
            # Otherwise a query with a bound LIMIT is planned anew each time that it is asked.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            if not read_only:
                self._check_owner(connection)
                self._keep_log(connection)
                connection.execute("PRAGMA synchronous = FULL")
                # What is worked on stays in memory; a page that changes often is copied to the file once for many changes.
                connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
        return connection

    def _keep_log(self, connection: apsw.Connection) -> None:
        """Switch to a write-ahead log. Where several switch a new file, SQLite refuses all but one at once, lest they wait for
        each other: so it is tried again here, for as long as SQLite waits elsewhere.
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
        """A database that is not ours is left exactly as it is."""
        tables = _tables(connection)
        if tables and not {"migration", "transition"} <= tables:
            connection.close()
            raise StoreUnusable(f"{self.url} is a database of another program. Name a file that does not exist yet.")

    def _check_place(self) -> None:
        """SQLite says only 'unable to open'; a person needs to know what is in the way."""
        if self._in_memory:
            return
        path = Path(self._path)
        try:
            self._check_path(path)
        except OSError as error:
            raise StoreUnusable(
                f"{path} cannot be looked at ({error.strerror}). Check the permissions of its folders."
            ) from None

    def _check_path(self, path: Path) -> None:
        if path.is_dir():
            raise StoreUnusable(f"{path} is a folder. Name a file in it: sqlite:///{path}/pointsman.db")
        if not path.parent.is_dir():
            raise StoreUnusable(f"There is no folder {path.parent}. Create it first, or name another place.")
        if not os.access(path.parent, os.W_OK):
            raise StoreUnusable(
                f"The folder {path.parent} cannot be written, and SQLite needs to: allow it, or name another place."
            )
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise StoreUnusable(f"The file {path} cannot be read and written. Change its permissions, or name another place.")

    def _migrate(self) -> None:
        """Bring the schema up to date; whoever comes second waits for the lock and finds it done."""
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            applied = self._find_version()
            for migration in read_migrations(__package__)[applied:]:
                for _ in connection.execute(migration.sql):
                    pass
                row = (migration.number, migration.name, from_instant(self._clock.now()))
                connection.execute("INSERT INTO migration VALUES (?, ?, ?)", row)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _find_version(self) -> int:
        """The number of the last migration that was applied."""
        if not _tables(self._writer):
            self._writer.execute(QUERIES["create_migrations"])
        ((applied,),) = self._writer.execute(QUERIES["find_version"]).fetchall()
        assert isinstance(applied, int)
        newest = read_migrations(__package__)[-1].number
        if applied > newest:
            raise StoreTooNew(
                f"{self.url} has schema {applied}, and this version of Pointsman knows only {newest}. "
                "Install the version that wrote it, or a newer one."
            )
        return applied


class SqliteReader:
    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def find_run(self, tenant: str, run_id: str) -> Run | None:
        return self._one(Run, "find_run", tenant=tenant, id=run_id)

    def find_task(self, tenant: str, task_id: str) -> Task | None:
        return self._one(Task, "find_task", tenant=tenant, id=task_id)

    def find_worker(self, tenant: str, worker_id: str) -> Worker | None:
        return self._one(Worker, "find_worker", tenant=tenant, id=worker_id)

    def find_breaker(self, tenant: str, tool: str) -> Breaker | None:
        return self._one(Breaker, "find_breaker", tenant=tenant, tool=tool)

    def list_runs(self, tenant: str, *, phase: str | None, after: str | None, limit: int) -> list[Run]:
        return self._all(Run, "list_runs", tenant=tenant, phase=phase, after=after, limit=limit)

    def list_tasks(self, tenant: str, run_id: str) -> list[Task]:
        return self._all(Task, "list_tasks", tenant=tenant, run_id=run_id)

    def count_tasks(self, tenant: str, run_ids: Collection[str]) -> list[tuple[str, str, str | None, int]]:
        return list(self._rows("count_tasks", tenant=tenant, run_ids=_json(run_ids)))

    def list_machines(self) -> list[MachineRow]:
        return self._all(MachineRow, "list_machines")

    def list_workers(self, tenant: str) -> list[Worker]:
        return self._all(Worker, "list_workers", tenant=tenant)

    def list_breakers(self, tenant: str) -> list[Breaker]:
        return self._all(Breaker, "list_breakers", tenant=tenant)

    def list_results(self, tenant: str, run_id: str, names: Collection[str]) -> list[Result]:
        return self._all(Result, "list_results", tenant=tenant, run_id=run_id, names=_json(names))

    def list_attempts(self, tenant: str, task_id: str) -> list[Attempt]:
        return self._all(Attempt, "list_attempts", tenant=tenant, task_id=task_id)

    def list_dependencies(self, tenant: str, run_id: str) -> list[Dependency]:
        return self._all(Dependency, "list_dependencies", tenant=tenant, run_id=run_id)

    def list_timers(self, tenant: str) -> list[Timer]:
        return self._all(Timer, "list_timers", tenant=tenant)

    def list_history(self, tenant: str, entity_id: str) -> list[Transition]:
        return self._transitions("list_history", tenant=tenant, entity_id=entity_id)

    def list_transitions(self, tenant: str, *, after: str | None, limit: int, run_id: str | None) -> list[Transition]:
        position = read_position(after)
        if run_id is None:
            return self._transitions("list_transitions", tenant=tenant, after=position, limit=limit)
        return self._transitions("list_run_transitions", tenant=tenant, after=position, limit=limit, run_id=run_id)

    def is_held_back(self) -> bool:
        return False  # the writers take turns

    def list_notices(self, tenant: str, *, limit: int) -> list[Notice]:
        return self._all(Notice, "list_notices", tenant=tenant, limit=limit)

    def last_position(self) -> str | None:
        position = self._value("last_position")
        return None if position is None else str(position)

    def count_overstayed(self, now: datetime, limits: Sequence[tuple[int, str, float]]) -> list[tuple[str, str, str, datetime]]:
        rows = self._rows("count_overstayed", now=from_instant(now), limits=_json(limits))
        return [(kind, name, state, to_instant(entered)) for kind, name, state, entered in rows]

    def next_due(self) -> datetime | None:
        due = self._value("next_due")
        return None if due is None else to_instant(due)

    def next_silence(self) -> datetime | None:
        silence = self._value("next_silence")
        return None if silence is None else to_instant(silence)

    def list_stalled_runs(self) -> list[tuple[str, str]]:
        return list(self._rows("list_stalled_runs"))

    def list_unended_runs(self) -> list[tuple[str, int, str]]:
        return list(self._rows("list_unended_runs"))

    def list_failed_tasks(self, limit: int) -> list[Task]:
        return self._all(Task, "list_failed_tasks", limit=limit)

    def find_tool(self, lane_id: int) -> str | None:
        tool: str | None = self._value("find_tool", id=lane_id)
        return tool

    def list_tripped_breakers(self) -> list[Breaker]:
        return self._all(Breaker, "list_tripped_breakers")

    def list_disagreements(self) -> list[tuple[str, str, str]]:
        return list(self._rows("list_disagreements"))

    def measure_transitions(self, tenant: str) -> list[tuple[str, str | None, str, int, float]]:
        return list(self._rows("measure_transitions", tenant=tenant))

    def _rows(self, query: str, **values: Any) -> list[Any]:
        try:
            return self._connection.execute(QUERIES[query], values).fetchall()
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error

    def _value(self, query: str, **values: Any) -> Any:
        return self._rows(query, **values)[0][0]

    def _all(self, row_type: type[Row], query: str, **values: Any) -> list[Row]:
        try:
            rows = self._connection.execute(QUERIES[query], values).fetchall()
            if not rows:
                return []
            decoder = _DECODERS.get((query, len(rows[0])))
            if decoder is None:
                decoder = self._describe(row_type, query, values)
            return list(map(decoder, rows))
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error

    def _describe(self, row_type: type[Row], query: str, values: dict[str, Any]) -> Decoder[Row]:
        """How to read what a query returns. Known by the number of columns, too: another process may add one by a migration."""
        cursor = self._connection.execute(QUERIES[query], values)
        columns = [column[0] for column in cursor.get_description()]
        cursor.close()
        decoder = _DECODERS[query, len(columns)] = compile_decoder(row_type, columns)
        return decoder

    def _one(self, row_type: type[Row], query: str, **values: Any) -> Row | None:
        found = self._all(row_type, query, **values)
        return found[0] if found else None

    def _transitions(self, query: str, **values: Any) -> list[Transition]:
        return [msgspec.structs.replace(row, position=str(row.position)) for row in self._all(Transition, query, **values)]


class SqliteTransaction(SqliteReader):
    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store.writer, store.clock)
        self._store = store
        self._now = store.clock.now()
        self._is_over = False

    def now(self) -> datetime:
        return self._now

    def commit(self, news: Wakeup = Wakeup.NOTHING) -> None:
        self._is_over = True
        self._store.end("COMMIT", news)

    def rollback(self) -> None:
        """Undo everything; a transaction whose commit failed has been rolled back already."""
        if not self._is_over:
            self._is_over = True
            self._store.end("ROLLBACK", Wakeup.NOTHING)

    def move(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        if not rows:
            return
        statement, encoder = update_of(type(rows[0]), tuple(columns), moved=1)
        self._change_each(statement, encoder, rows)

    def move_in_bulk(self, row: Entity, ids: Sequence[str], columns: Sequence[str]) -> None:
        statement, encoder = update_of_alike(type(row), tuple(columns))
        self._run_many(statement, [(_json(ids), *encoder(row))])
        if self._connection.changes() != len(ids):
            raise Conflict("A row was moved by somebody else.")

    def update(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        if not rows:
            return
        statement, encoder = update_of(type(rows[0]), tuple(columns), moved=0)
        self._change_each(statement, encoder, rows)

    def insert_machine(self, machine: Machine, *, fingerprint: str, definition: str) -> MachineRow:
        row = MachineRow(
            id=self._value("next_machine_id"),
            name=machine.name,
            version=machine.version,
            kind=machine.kind.value,
            fingerprint=fingerprint,
            lifecycle=machine.lifecycle,
            definition=definition,
        )
        self._write("insert_states", state_rows(row.id, machine))
        self._write("insert_rules", rule_rows(row.id, machine))
        self._write("insert_machine", [row])
        return row

    def count_lanes(self) -> int:
        return int(self._value("count_lanes"))

    def list_lanes(self) -> list[Lane]:
        return self._all(Lane, "list_lanes")

    def insert_lane(self, tenant: str, tool: str | None, capabilities: str, *, fails_fast: bool) -> Lane:
        described = {"tenant": tenant, "tool": tool, "capabilities": capabilities, "fails_fast": fails_fast}
        self._rows("insert_lane", **described)
        return self._all(Lane, "find_lane", **described)[0]

    def ensure_tenant(self, tenant: str, now: datetime) -> None:
        self._rows("ensure_tenant", id=tenant, now=from_instant(now))

    def lock_runs(self, run_ids: Collection[str], of_tasks: Collection[str] = ()) -> list[Run]:
        return self._all(Run, "lock_runs", ids=_json(run_ids), task_ids=_json(of_tasks))

    def insert_runs(self, runs: Sequence[Run]) -> None:
        self._write("insert_runs", runs)

    def list_allocatable_runs(self, limit: int) -> list[str]:
        return [run_id for (run_id,) in self._rows("list_allocatable_runs", limit=limit)]

    def assess_runs(self, run_ids: Collection[str]) -> list[Situation]:
        return self._all(Situation, "assess_runs", ids=_json(run_ids))

    def open_runs(self, run_ids: Collection[str], *, is_open: bool) -> None:
        self._rows("open_runs", ids=_json(run_ids), is_open=is_open)

    def select_tasks(self, task_ids: Collection[str]) -> list[Task]:
        return self._all(Task, "select_tasks", ids=_json(task_ids))

    def select_run_tasks(self, run_id: str, phases: Collection[str]) -> list[Task]:
        return self._all(Task, "select_run_tasks", run_id=run_id, phases=_json(phases))

    def find_task_names(self, run_id: str) -> dict[str, str]:
        return dict(self._rows("find_task_names", run_id=run_id))

    def select_task_keys(self, task_ids: Collection[str]) -> list[TaskKey]:
        return self._all(TaskKey, "select_task_keys", ids=_json(task_ids))

    def select_to_claim(self, task_ids: Collection[str]) -> list[Task]:
        return self._all(Task, "select_to_claim", ids=_json(task_ids))

    def select_claimable(self, tenant: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        return _first(
            [self._all(TaskKey, "select_claimable", tenant=tenant, lane_id=lane_id, limit=limit) for lane_id in lane_ids], limit
        )

    def select_claimable_of_run(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        return _first(
            [
                self._all(TaskKey, "select_claimable_of_run", run_id=run_id, lane_id=lane_id, limit=limit)
                for lane_id in lane_ids
            ],
            limit,
        )

    def select_allocated(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        return _first(
            [self._all(Task, "select_allocated", run_id=run_id, lane_id=lane_id, limit=limit) for lane_id in lane_ids], limit
        )

    def select_reclaimable(self, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None = None) -> list[Task]:
        return self._all(Task, "select_reclaimable", tenant=tenant, lane_ids=_json(lane_ids), limit=limit, run_id=run_id)

    def find_claimable_runs(self, tenant: str, lane_ids: Sequence[int], limit: int) -> list[str]:
        rows = self._rows("find_claimable_runs", tenant=tenant, lane_ids=_json(lane_ids), limit=limit)
        return [run_id for (run_id,) in rows]

    def insert_tasks(self, tasks: Sequence[Task]) -> None:
        self._write("insert_tasks", tasks)

    def insert_dependencies(self, dependencies: Sequence[Dependency]) -> None:
        self._write("insert_dependencies", dependencies)

    def release_dependents(self, task_ids: Collection[str]) -> list[str]:
        free = []
        for task_id, released in self._rows("count_dependents", ids=_json(task_ids)):
            ((_, still_open),) = self._rows("release_dependents", id=task_id, released=released)
            if still_open == 0:
                free.append(task_id)
        return free

    def find_doomed(self, task_ids: Collection[str]) -> list[str]:
        return [task_id for (task_id,) in self._rows("find_doomed", ids=_json(task_ids))]

    def find_dependents(self, task_ids: Collection[str]) -> list[str]:
        return [task_id for (task_id,) in self._rows("find_dependents", ids=_json(task_ids))]

    def assess_subtasks(self, parent_ids: Collection[str]) -> list[Subtasks]:
        return self._all(Subtasks, "assess_subtasks", ids=_json(parent_ids))

    def lock_workers(self, worker_ids: Collection[str]) -> list[Worker]:
        return self._all(Worker, "lock_workers", ids=_json(worker_ids))

    def insert_workers(self, workers: Sequence[Worker]) -> None:
        self._write("insert_workers", workers)

    def count_held(self, worker_ids: Collection[str]) -> dict[str, int]:
        return dict(self._rows("count_held", ids=_json(worker_ids)))

    def find_held_tasks(self, worker_ids: Collection[str]) -> list[tuple[str, str, str]]:
        return list(self._rows("find_held_tasks", ids=_json(worker_ids)))

    def find_silent_workers(self, now: datetime, limit: int) -> list[str]:
        return [name for (name,) in self._rows("find_silent_workers", now=from_instant(now), limit=limit)]

    def find_free_workers(self, tenant: str, limit: int) -> list[str]:
        return [name for (name,) in self._rows("find_free_workers", tenant=tenant, limit=limit)]

    def find_run_workers(self, run_ids: Collection[str]) -> list[str]:
        return [name for (name,) in self._rows("find_run_workers", ids=_json(run_ids))]

    def lock_breakers(self, tenant: str, tools: Collection[str]) -> list[Breaker]:
        return self._all(Breaker, "lock_breakers", tenant=tenant, tools=_json(tools))

    def list_guarded_breakers(self, tenant: str) -> list[Breaker]:
        return self._all(Breaker, "list_guarded_breakers", tenant=tenant)

    def count_at_work(self, tenant: str, tool: str) -> int:
        return int(self._value("count_at_work", tenant=tenant, tool=tool))

    def insert_breakers(self, breakers: Sequence[Breaker]) -> None:
        self._write("insert_breakers", breakers)

    def set_timers(self, timers: Sequence[Timer]) -> None:
        self._write("set_timers", timers)

    def drop_timers(self, entity_ids: Collection[str]) -> None:
        self._rows("drop_timers", ids=_json(entity_ids))

    def find_due_timers(self, now: datetime, limit: int) -> list[Timer]:
        return self._all(Timer, "find_due_timers", now=from_instant(now), limit=limit)

    def take_timers(self, timers: Sequence[Timer]) -> list[Timer]:
        return [timer for timer in timers if self._bound("take_timers", timer)]

    def recount_dependencies(self, task_ids: Collection[str]) -> None:
        self._rows("recount_dependencies", ids=_json(task_ids))

    def insert_notices(self, notices: Sequence[Notice]) -> None:
        self._write("insert_notices", notices)

    def find_response(self, tenant: str, endpoint: str, key: str) -> StoredResponse | None:
        return self._one(StoredResponse, "find_response", tenant=tenant, endpoint=endpoint, key=key)

    def insert_response(self, response: StoredResponse) -> bool:
        return bool(self._bound("insert_response", response))

    def purge_responses(self, now: datetime, limit: int) -> int:
        return len(self._rows("purge_responses", now=from_instant(now), limit=limit))

    def _write(self, query: str, rows: Sequence[Struct]) -> None:
        if rows:
            self._run_many(QUERIES[query], map(_encoder(query, type(rows[0])), rows))

    def _run_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """One statement for each row; there is no network between, so nothing is gained by fewer."""
        try:
            self._connection.executemany(statement, rows)
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error

    def _change_each(self, statement: str, encoder: Encoder, rows: Sequence[Entity]) -> None:
        """Change rows that are as they were read; `changes` does not count what triggers do."""
        execute, changes = self._connection.execute, self._connection.changes
        try:
            for row in rows:
                execute(statement, encoder(row))
                if changes() != 1:
                    raise Conflict(f"{row.id} was moved by somebody else.")
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error

    def _bound(self, query: str, row: Struct) -> list[Any]:
        try:
            return self._connection.execute(QUERIES[query], _encoder(query, type(row))(row)).fetchall()
        except apsw.Error as error:
            raise explain(error, self._connection.filename) from error


def _first(lanes: Sequence[list[Found]], limit: int) -> list[Found]:
    """The first tasks of several lanes, each of which is in order."""
    if len(lanes) == 1:
        return lanes[0]
    return list(islice(merge(*lanes, key=lambda task: (-task.priority, task.id)), limit))


def _encoder(query: str, row_type: type[Struct]) -> Encoder:
    encoder = _ENCODERS.get((query, row_type))
    if encoder is None:
        encoder = _ENCODERS[query, row_type] = compile_encoder(QUERIES[query], row_type)
    return encoder


def explain(error: apsw.Error, url: str) -> StoreError:
    """An error of SQLite in the words of the contract."""
    match error:
        case apsw.BusyError():
            waited = f"{BUSY_TIMEOUT_SECONDS:g} seconds"
            return StoreBusy(f"Another process has held {url} for more than {waited}. Try again, or end what holds it.")
        case apsw.FullError():
            return StoreFull(
                f"There is no room to write {url}. Free some space: nothing was lost, and work goes on when there is room."
            )
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreUnusable(
                f"{url} is not a SQLite database ({error}). Name a file that does not exist yet, or restore a backup."
            )
        case apsw.ReadOnlyError() | apsw.CantOpenError():
            return StoreUnusable(
                f"{url} cannot be opened for writing ({error}). Check the permissions of the file and its folder."
            )
        case apsw.ConstraintError():
            return LawBroken(f"The database refused the change: {error}")
        case apsw.IOError() if "full" in str(error) or "disk I/O" in str(error):
            return StoreFull(
                f"{url} could not be written ({error}). Check the disk; work goes on when it can be written again."
            )
        case _:
            return StoreError(f"{url}: {error}")


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise explain(error, url) from error


def _tables(connection: apsw.Connection) -> set[str]:
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()}


def _json(values: Collection[Any]) -> str:
    return msgspec.json.encode(list(values)).decode()

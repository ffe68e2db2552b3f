"""PostgreSQL: any number of servers and workers on one database, which locks rows and tells the news."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from msgspec import Struct
from msgspec.structs import asdict, replace
from psycopg.pq import TransactionStatus

from pointsman.errors import (
    Conflict,
    OutcomeUnknown,
    StoreError,
    StoreTooNew,
    StoreUnavailable,
    StoreUnusable,
)
from pointsman.kernel.machine import Machine
from pointsman.store.contract import Wakeup, read_position
from pointsman.store.law import rule_rows, state_rows
from pointsman.store.postgres.connections import (
    OLDEST_SERVER,
    READER_SESSION,
    WRITER_SESSION,
    connect,
    explained,
    show,
)
from pointsman.store.postgres.listener import Listener
from pointsman.store.postgres.values import in_turns, make_row, to_array, to_json, update_of
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
from pointsman.store.scripts import Migration, read_migrations, read_queries
from pointsman.world import Clock, Ids

QUERIES = {name: text.encode() for name, text in read_queries(__package__).items()}
PAUSES_SECONDS = (0.0, 0.2, 0.5)
"""Between one try to reach a lost database and the next."""
MOST_IDLE_READERS = 8
MIGRATION_LOCK = 0x706F696E7473
BEGIN = b"BEGIN; SELECT clock_timestamp(), pg_current_xact_id()::text, (SELECT count(*) FROM lane)"
READ = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
OUTCOME = b"SELECT pg_xact_status(%s::xid8)"
STREAM_END = b"SELECT stream_end()"
HELD_BACK = b"SELECT stream_end() < last_value - (NOT is_called)::integer FROM transition_position_seq"
_TABLE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
Row = TypeVar("Row", bound=Struct)


class PostgresStore:
    """A database of a PostgreSQL server, in the schema that its search_path names first."""

    def __init__(self, url: str, *, clock: Clock | None, ids: Ids) -> None:
        """Without a clock the time is the database's own, the same for all that share it."""
        self.url = show(url)
        self._secret_url = url
        self._clock = clock
        self._listener = Listener(url, ids)
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._writer: psycopg.Connection[Any] | None = None
        self._transaction_id = ""
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
            except StoreUnavailable:
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

    def end(self, word: str, news: Wakeup) -> None:
        """Commit or roll back; the news go out with the commit, or not at all."""
        writer = self._writer
        if writer is None or writer.closed:
            self._forget()
            if word == "ROLLBACK":
                return
            raise StoreUnavailable(f"The connection to {self.url} was lost before the commit. Nothing was changed; try again.")
        try:
            with explained(self.url):
                # One round trip for both.
                cursor = writer.execute((f"SELECT pg_notify('pointsman', '{int(news)}'); {word}" if news else word).encode())
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
        if cursor.statusmessage != word:  # PostgreSQL does not call it an error to commit what has failed before
            raise StoreError(f"{self.url} rolled the transaction back, because a statement in it had failed.")

    def _was_committed(self) -> bool:
        """What became of a commit whose answer was lost: the server knows, when it is there again."""
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
            f"The connection to {self.url} was lost during a commit, and the database cannot be asked what became of it. "
            "Ask again with the same request_id, or look whether it was done."
        )

    def _begin(self) -> PostgresTransaction:
        try:
            with explained(self.url):
                writer = self._reach()
                if writer.pgconn.transaction_status != TransactionStatus.IDLE:
                    writer.execute(b"ROLLBACK")
                cursor = writer.execute(BEGIN)
                cursor.nextset()
                now, self._transaction_id, lanes = cursor.fetchall()[0]
                return PostgresTransaction(self, writer, self._clock.now() if self._clock else now, lanes)
        except StoreError:
            self._forget()
            raise

    def _reach(self) -> psycopg.Connection[Any]:
        if self._closed.is_set():
            raise StoreError(f"{self.url} was closed.")
        if self._writer is None or self._writer.closed:
            self._writer = connect(self._secret_url, WRITER_SESSION)
        return self._writer

    def _forget(self) -> None:
        writer, self._writer = self._writer, None
        if writer:
            writer.close()

    def _borrow(self) -> psycopg.Connection[Any]:
        """A connection with one snapshot; those that died while they were idle are passed over."""
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


class PostgresReader:
    def __init__(self, connection: psycopg.Connection[Any], url: str, clock: Clock | None) -> None:
        self._connection = connection
        self._url = url
        self._clock = clock

    def now(self) -> datetime:
        if self._clock:
            return self._clock.now()
        with explained(self._url):
            ((now,),) = self._connection.execute(b"SELECT clock_timestamp()").fetchall()
        assert isinstance(now, datetime)
        return now

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
        return self._rows("count_tasks", tenant=tenant, run_ids=list(run_ids))

    def list_machines(self) -> list[MachineRow]:
        return self._all(MachineRow, "list_machines")

    def list_workers(self, tenant: str) -> list[Worker]:
        return self._all(Worker, "list_workers", tenant=tenant)

    def list_breakers(self, tenant: str) -> list[Breaker]:
        return self._all(Breaker, "list_breakers", tenant=tenant)

    def list_results(self, tenant: str, run_id: str, names: Collection[str]) -> list[Result]:
        return self._all(Result, "list_results", tenant=tenant, run_id=run_id, names=to_array(names))

    def list_attempts(self, tenant: str, task_id: str) -> list[Attempt]:
        return self._all(Attempt, "list_attempts", tenant=tenant, task_id=task_id)

    def list_dependencies(self, tenant: str, run_id: str) -> list[Dependency]:
        return self._all(Dependency, "list_dependencies", tenant=tenant, run_id=run_id)

    def list_timers(self, tenant: str) -> list[Timer]:
        return self._all(Timer, "list_timers", tenant=tenant)

    def list_history(self, tenant: str, entity_id: str) -> list[Transition]:
        return self._transitions("list_history", tenant=tenant, entity_id=entity_id)

    def list_transitions(self, tenant: str, *, after: str | None, limit: int, run_id: str | None) -> list[Transition]:
        values = {"tenant": tenant, "limit": limit, "after": read_position(after), "end": self._stream_end()}
        if run_id is None:
            return self._transitions("list_transitions", **values)
        return self._transitions("list_run_transitions", run_id=run_id, **values)

    def is_held_back(self) -> bool:
        with explained(self._url):
            ((is_held_back,),) = self._connection.execute(HELD_BACK).fetchall()
        return bool(is_held_back)

    def list_notices(self, tenant: str, *, limit: int) -> list[Notice]:
        return self._all(Notice, "list_notices", tenant=tenant, limit=limit)

    def last_position(self) -> str | None:
        position = self._value("last_position", end=self._stream_end())
        return None if position is None else str(position)

    def count_overstayed(self, now: datetime, limits: Sequence[tuple[int, str, float]]) -> list[tuple[str, str, str, datetime]]:
        return self._rows("count_overstayed", now=now, limits=to_json(limits))

    def next_due(self) -> datetime | None:
        due: datetime | None = self._value("next_due")
        return due

    def next_silence(self) -> datetime | None:
        silence: datetime | None = self._value("next_silence")
        return silence

    def list_disagreements(self) -> list[tuple[str, str, str]]:
        return self._rows("list_disagreements")

    def list_stalled_runs(self) -> list[tuple[str, str]]:
        return self._rows("list_stalled_runs")

    def list_unended_runs(self) -> list[tuple[str, int, str]]:
        return list(self._rows("list_unended_runs"))

    def list_failed_tasks(self, limit: int) -> list[Task]:
        return self._all(Task, "list_failed_tasks", limit=limit)

    def find_tool(self, lane_id: int) -> str | None:
        tool: str | None = self._value("find_tool", id=lane_id)
        return tool

    def list_tripped_breakers(self) -> list[Breaker]:
        return self._all(Breaker, "list_tripped_breakers")

    def measure_transitions(self, tenant: str) -> list[tuple[str, str | None, str, int, float]]:
        return self._rows("measure_transitions", tenant=tenant)

    def _stream_end(self) -> int:
        """Where the stream ends, asked before the snapshot that it is read in: whoever reads the stream begins a new one."""
        with explained(self._url):
            self._connection.execute(b"ROLLBACK")
            ((end,),) = self._connection.execute(STREAM_END).fetchall()
            if self._connection.pgconn.transaction_status != TransactionStatus.IDLE:
                self._connection.execute(b"ROLLBACK")
            self._connection.execute(READ)
        return int(end)

    def _transitions(self, query: str, **values: Any) -> list[Transition]:
        return [replace(row, position=str(row.position)) for row in self._all(Transition, query, **values)]

    def _rows(self, query: str, **values: Any) -> list[Any]:
        with explained(self._url):
            cursor = self._connection.execute(QUERIES[query], values)
            return cursor.fetchall() if cursor.description else []

    def _value(self, query: str, **values: Any) -> Any:
        rows = self._rows(query, **values)
        return rows[0][0] if rows else None

    def _all(self, row_type: type[Row], query: str, **values: Any) -> list[Row]:
        with explained(self._url):
            try:
                cursor = self._connection.cursor(binary=True, row_factory=make_row(row_type, query))
                return cursor.execute(QUERIES[query], values).fetchall()
            except psycopg.DataError:
                if any("\0" in value for value in values.values() if isinstance(value, str)):
                    return []  # PostgreSQL stores no such text, so there is none to be found
                raise

    def _one(self, row_type: type[Row], query: str, **values: Any) -> Row | None:
        found = self._all(row_type, query, **values)
        return found[0] if found else None


class PostgresTransaction(PostgresReader):
    def __init__(self, store: PostgresStore, connection: psycopg.Connection[Any], now: datetime, lanes: int) -> None:
        super().__init__(connection, store.url, None)
        self._lanes = lanes
        self._store = store
        self._now = now
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

    def _stream_end(self) -> int:
        """Here every question has a snapshot of its own."""
        with explained(self._url):
            ((end,),) = self._connection.execute(STREAM_END).fetchall()
        return int(end)

    def move(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._update(rows, columns, moved=1)

    def move_in_bulk(self, row: Entity, ids: Sequence[str], columns: Sequence[str]) -> None:
        statement, values = update_of([row], columns, moved=1)
        with explained(self._url):
            changed = self._connection.execute(statement, {**values, "id": to_array(ids)}).rowcount
        if changed != len(ids):
            raise Conflict(f"{len(ids) - changed} of {len(ids)} rows like {row.id} were changed by somebody else.")

    def update(self, rows: Sequence[Entity], columns: Sequence[str]) -> None:
        self._update(rows, columns, moved=0)

    def insert_machine(self, machine: Machine, *, fingerprint: str, definition: str) -> MachineRow:
        """Servers that start together load the same machines: whoever comes second is given what the first one stored."""
        with explained(self._url):
            self._connection.execute(b"LOCK TABLE machine IN SHARE ROW EXCLUSIVE MODE")
        for known in self.list_machines():
            if (known.name, known.version, known.fingerprint) == (machine.name, machine.version, fingerprint):
                return known
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
        return self._lanes  # when it began, together with those that it has added itself

    def list_lanes(self) -> list[Lane]:
        return self._all(Lane, "list_lanes")

    def insert_lane(self, tenant: str, tool: str | None, capabilities: str, *, fails_fast: bool) -> Lane:
        lane = {"tenant": tenant, "tool": tool, "capabilities": capabilities, "fails_fast": fails_fast}
        if self._execute("insert_lane", **lane):
            self._lanes += 1
        else:
            self._lanes = self._value("count_lanes")  # somebody was quicker, and perhaps since this transaction began
        return self._all(Lane, "find_lane", **lane)[0]

    def ensure_tenant(self, tenant: str, now: datetime) -> None:
        self._rows("ensure_tenant", id=tenant, now=now)

    def lock_runs(self, run_ids: Collection[str], of_tasks: Collection[str] = ()) -> list[Run]:
        return self._all(Run, "lock_runs", ids=to_array(run_ids), task_ids=to_array(of_tasks)) if run_ids or of_tasks else []

    def insert_runs(self, runs: Sequence[Run]) -> None:
        self._write("insert_runs", runs)

    def list_allocatable_runs(self, limit: int) -> list[str]:
        return [run_id for (run_id,) in self._rows("list_allocatable_runs", limit=limit)]

    def assess_runs(self, run_ids: Collection[str]) -> list[Situation]:
        return self._of(Situation, "assess_runs", run_ids)

    def open_runs(self, run_ids: Collection[str], *, is_open: bool) -> None:
        if run_ids:
            self._rows("open_runs", ids=to_array(run_ids), is_open=is_open)

    def select_tasks(self, task_ids: Collection[str]) -> list[Task]:
        return self._of(Task, "select_tasks", task_ids)

    def select_run_tasks(self, run_id: str, phases: Collection[str]) -> list[Task]:
        return self._all(Task, "select_run_tasks", run_id=run_id, phases=to_array(phases))

    def find_task_names(self, run_id: str) -> dict[str, str]:
        return dict(self._rows("find_task_names", run_id=run_id))

    def select_task_keys(self, task_ids: Collection[str]) -> list[TaskKey]:
        return self._of(TaskKey, "select_task_keys", task_ids)

    def select_to_claim(self, task_ids: Collection[str]) -> list[Task]:
        return self._of(Task, "select_to_claim", task_ids)

    def select_claimable(self, tenant: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        locked = self._rows("select_claimable", tenant=tenant, lane_ids=to_array(lane_ids), limit=limit)
        return self._of(TaskKey, "select_claimable_keys", [task_id for (task_id,) in locked])

    def select_claimable_of_run(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[TaskKey]:
        return self._all(TaskKey, "select_claimable_of_run", run_id=run_id, lane_ids=to_array(lane_ids), limit=limit)

    def select_allocated(self, run_id: str, lane_ids: Sequence[int], limit: int) -> list[Task]:
        locked = self._rows("select_allocated", run_id=run_id, lane_ids=to_array(lane_ids), limit=limit)
        return [task for task in self._in_order(locked) if _may_begin(task) and task.allocated]

    def select_reclaimable(self, tenant: str, lane_ids: Sequence[int], limit: int, run_id: str | None = None) -> list[Task]:
        locked = self._rows("select_reclaimable", tenant=tenant, lane_ids=to_array(lane_ids), limit=limit, run_id=run_id)
        return [task for task in self._in_order(locked) if task.lease_expired and task.run_open]

    def find_claimable_runs(self, tenant: str, lane_ids: Sequence[int], limit: int) -> list[str]:
        rows = self._rows("find_claimable_runs", tenant=tenant, lane_ids=to_array(lane_ids), limit=limit)
        return [run_id for (run_id,) in rows]

    def insert_tasks(self, tasks: Sequence[Task]) -> None:
        self._write("insert_tasks", tasks)

    def insert_dependencies(self, dependencies: Sequence[Dependency]) -> None:
        self._write("insert_dependencies", dependencies)

    def release_dependents(self, task_ids: Collection[str]) -> list[str]:
        waiting = self._rows("count_dependents", ids=to_array(task_ids)) if task_ids else []
        if not waiting:
            return []
        rows = to_json([{"id": task_id, "released": released} for task_id, released in waiting])
        return sorted(task_id for task_id, still_open in self._rows("release_dependents", rows=rows) if still_open == 0)

    def find_doomed(self, task_ids: Collection[str]) -> list[str]:
        return self._column("find_doomed", task_ids)

    def find_dependents(self, task_ids: Collection[str]) -> list[str]:
        return self._column("find_dependents", task_ids)

    def assess_subtasks(self, parent_ids: Collection[str]) -> list[Subtasks]:
        return self._of(Subtasks, "assess_subtasks", parent_ids)

    def lock_workers(self, worker_ids: Collection[str]) -> list[Worker]:
        return self._of(Worker, "lock_workers", worker_ids)

    def insert_workers(self, workers: Sequence[Worker]) -> None:
        self._write("insert_workers", workers)

    def count_held(self, worker_ids: Collection[str]) -> dict[str, int]:
        return dict(self._rows("count_held", ids=to_array(worker_ids))) if worker_ids else {}

    def find_held_tasks(self, worker_ids: Collection[str]) -> list[tuple[str, str, str]]:
        return self._rows("find_held_tasks", ids=to_array(worker_ids)) if worker_ids else []

    def find_silent_workers(self, now: datetime, limit: int) -> list[str]:
        return [name for (name,) in self._rows("find_silent_workers", now=now, limit=limit)]

    def find_free_workers(self, tenant: str, limit: int) -> list[str]:
        return [name for (name,) in self._rows("find_free_workers", tenant=tenant, limit=limit)]

    def find_run_workers(self, run_ids: Collection[str]) -> list[str]:
        return self._column("find_run_workers", run_ids)

    def lock_breakers(self, tenant: str, tools: Collection[str]) -> list[Breaker]:
        return self._all(Breaker, "lock_breakers", tenant=tenant, tools=to_array(tools)) if tools else []

    def list_guarded_breakers(self, tenant: str) -> list[Breaker]:
        return self._all(Breaker, "list_guarded_breakers", tenant=tenant)

    def count_at_work(self, tenant: str, tool: str) -> int:
        return int(self._value("count_at_work", tenant=tenant, tool=tool))

    def insert_breakers(self, breakers: Sequence[Breaker]) -> None:
        if breakers and self._execute("insert_breakers", rows=to_json(breakers)) != len(breakers):
            raise Conflict(f"Somebody else was quicker to declare {', '.join(breaker.tool for breaker in breakers)}.")

    def set_timers(self, timers: Sequence[Timer]) -> None:
        # One statement sets a timer once; whoever sets it twice means the second.
        self._write("set_timers", list({(timer.entity_id, timer.purpose): timer for timer in timers}.values()))

    def drop_timers(self, entity_ids: Collection[str]) -> None:
        if entity_ids:
            self._rows("drop_timers", ids=to_array(entity_ids))

    def find_due_timers(self, now: datetime, limit: int) -> list[Timer]:
        return self._all(Timer, "find_due_timers", now=now, limit=limit)

    def take_timers(self, timers: Sequence[Timer]) -> list[Timer]:
        taken = set(self._rows("take_timers", rows=to_json(timers))) if timers else set()
        return [timer for timer in timers if (timer.entity_id, timer.purpose) in taken]

    def recount_dependencies(self, task_ids: Collection[str]) -> None:
        if task_ids:
            self._rows("recount_dependencies", ids=to_array(task_ids))

    def insert_notices(self, notices: Sequence[Notice]) -> None:
        self._write("insert_notices", notices)

    def find_response(self, tenant: str, endpoint: str, key: str) -> StoredResponse | None:
        return self._one(StoredResponse, "find_response", tenant=tenant, endpoint=endpoint, key=key)

    def insert_response(self, response: StoredResponse) -> bool:
        return bool(self._rows("insert_response", **asdict(response)))

    def purge_responses(self, now: datetime, limit: int) -> int:
        return len(self._rows("purge_responses", now=now, limit=limit))

    def _execute(self, query: str, **values: Any) -> int:
        """How many rows it has changed."""
        with explained(self._url):
            return self._connection.execute(QUERIES[query], values).rowcount

    def _of(self, row_type: type[Row], query: str, ids: Collection[str]) -> list[Row]:
        return self._all(row_type, query, ids=to_array(ids)) if ids else []

    def _column(self, query: str, ids: Collection[str]) -> list[str]:
        return [value for (value,) in self._rows(query, ids=to_array(ids))] if ids else []

    def _in_order(self, ids: Sequence[tuple[str]]) -> Iterator[Task]:
        """Tasks as they are now that their runs are locked, in the order in which they were found."""
        tasks = {task.id: task for task in self.select_to_claim([task_id for (task_id,) in ids])}
        return (tasks[task_id] for (task_id,) in ids)

    def _write(self, query: str, rows: Sequence[Struct]) -> None:
        """One statement for the whole batch."""
        if rows:
            with explained(self._url):
                self._connection.execute(QUERIES[query], {"rows": to_json(rows)})

    def _update(self, rows: Sequence[Entity], columns: Sequence[str], *, moved: int) -> None:
        for turn in in_turns(rows) if rows else ():
            statement, values = update_of(turn, columns, moved=moved)
            with explained(self._url):
                changed = self._connection.execute(statement, values).rowcount
            if changed != len(turn):
                raise Conflict(f"{len(turn) - changed} of {', '.join(row.id for row in turn)} was changed by somebody else.")


def _may_begin(task: Task) -> bool:
    """What the partial indexes of claims say, for a task that may have changed before its run was locked."""
    waits = task.open_dependencies or task.available_at or task.is_gate
    return task.phase == "queued" and task.run_open and not waits


def _migrate(connection: psycopg.Connection[Any], url: str) -> None:
    """Bring the schema up to date; whoever comes second waits for the lock and finds it done."""
    version = connection.info.server_version
    if version < OLDEST_SERVER:
        raise StoreUnusable(f"{url} is PostgreSQL {version // 10000}. Use PostgreSQL {OLDEST_SERVER // 10000} or later.")
    migrations = read_migrations(__package__)
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = 0")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
        applied = _find_version(connection, url, migrations)
        # The functions of the law keep this path: ours before the temporary tables of whoever sets them off.
        connection.execute("SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)")
        for migration in migrations[applied:]:
            connection.execute(migration.sql.encode())
            connection.execute("INSERT INTO migration VALUES (%s, %s, clock_timestamp())", [migration.number, migration.name])


def _find_version(connection: psycopg.Connection[Any], url: str, migrations: Sequence[Migration]) -> int:
    """The number of the last migration that was applied; tables that are not ours are left as they are."""
    ((schema,),) = connection.execute("SELECT current_schema()").fetchall()
    if schema is None:
        raise StoreUnusable(f"The search_path of {url} names no schema that exists. Create it: CREATE SCHEMA pointsman.")
    advice = "Create a schema for Pointsman, and name it in the URL: ?options=-csearch_path%3Dpointsman"
    tables = {name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])}
    if "migration" not in tables:
        if taken := tables & {name for migration in migrations for name in _TABLE.findall(migration.sql)}:
            raise StoreUnusable(
                f"The schema {schema} of {url} has tables of another program ({', '.join(sorted(taken))}). {advice}"
            )
        connection.execute(QUERIES["create_migrations"])
    try:
        ((applied,),) = connection.execute(QUERIES["find_version"]).fetchall()
    except psycopg.errors.UndefinedColumn:
        raise StoreUnusable(f"The table migration in the schema {schema} of {url} is another program's. {advice}") from None
    assert isinstance(applied, int)
    if applied > migrations[-1].number:
        raise StoreTooNew(
            f"{url} has schema {applied}, and this version of Pointsman knows only {migrations[-1].number}. "
            "Install the version that wrote it, or a newer one."
        )
    return applied

"""The floor: what any durable task queue with an audit trail has to do at least, in SQL written by hand and as fast as we can.

    task        one row, one partial index on what can be claimed
    transition  one row for each move, written by whoever makes the move

One transaction finishes a batch of tasks, claims the next one and writes both moves down, as durably as Pointsman does
(SQLite: WAL and synchronous=FULL; PostgreSQL: synchronous_commit=on). There are no runs, attempts, epochs, workers, tenants,
dependencies, rules, triggers, checks or foreign keys: nothing keeps a stale worker, or a hand, from writing nonsense.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, LiteralString, Protocol

import apsw
import msgspec
import psycopg

LATENCY_SECONDS = 10.0
Held = list[tuple[int, str]]
"""Tasks in somebody's hands: id and payload."""


class Floor(Protocol):
    def submit(self, count: int, *, per_commit: int) -> None: ...

    def turn(self, finished: Collection[int], limit: int) -> Held:
        """Finish these tasks and claim others, in one transaction."""
        ...

    def wait_for_task(self) -> tuple[float, float]:
        """Submit one task into the idle database and claim it when the news are there: when both were."""
        ...

    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


def drain(floor: Floor, count: int, batch: int, until: float) -> int:
    """Claim and finish that many tasks, or as many as there is time for; how many that were."""
    held: Held = []
    claimed = finished = 0
    while True:
        room = min(batch, count - claimed) if time.perf_counter() < until else 0
        finished += len(held)
        held = floor.turn([task_id for task_id, _ in held], room)
        if not held:
            return finished
        claimed += len(held)


# ── SQLite ──

SQLITE_SCHEMA = """
    CREATE TABLE task (
        id       INTEGER PRIMARY KEY,
        state    TEXT NOT NULL,
        priority INTEGER NOT NULL,
        payload  TEXT NOT NULL
    ) STRICT;
    CREATE INDEX task_claimable ON task (priority DESC, id) WHERE state = 'queued';
    CREATE TABLE transition (
        position   INTEGER PRIMARY KEY,
        task_id    INTEGER NOT NULL,
        from_state TEXT,
        to_state   TEXT NOT NULL,
        at         INTEGER NOT NULL
    ) STRICT;
"""
SQLITE_SUBMIT = "INSERT INTO task (state, priority, payload) VALUES ('queued', 0, 'null') RETURNING id"
SQLITE_FINISH = "UPDATE task SET state = 'done' WHERE id IN (SELECT value FROM json_each(?))"
SQLITE_CLAIM = """
    UPDATE task SET state = 'running'
     WHERE id IN (SELECT id FROM task WHERE state = 'queued' ORDER BY priority DESC, id LIMIT ?)
    RETURNING id, payload
"""
# One statement for a batch; `executemany` with one for each row was about as quick.
SQLITE_AUDIT = "INSERT INTO transition (task_id, from_state, to_state, at) SELECT value, ?, ?, ? FROM json_each(?)"


class SqliteFloor:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = apsw.Connection(str(path))
        self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
        self._connection.execute("PRAGMA synchronous = FULL")
        for _ in self._connection.execute(SQLITE_SCHEMA):
            pass

    def submit(self, count: int, *, per_commit: int) -> None:
        for start in range(0, count, per_commit):
            self._connection.execute("BEGIN IMMEDIATE")
            rows = self._connection.executemany(SQLITE_SUBMIT, [()] * min(per_commit, count - start))
            self._audit(None, "queued", [task_id for (task_id,) in rows])
            self._connection.execute("COMMIT")

    def turn(self, finished: Collection[int], limit: int) -> Held:
        self._connection.execute("BEGIN IMMEDIATE")
        if finished:
            self._connection.execute(SQLITE_FINISH, (_json(finished),))
            self._audit("running", "done", finished)
        held: list[Any] = self._connection.execute(SQLITE_CLAIM, (limit,)).fetchall() if limit else []
        if held:
            self._audit("queued", "running", [task_id for task_id, _ in held])
        self._connection.execute("COMMIT")
        return held

    def wait_for_task(self) -> tuple[float, float]:
        """Nobody has to be woken in one process with one connection: two commits, and nothing between them."""
        began = time.perf_counter()
        self.submit(1, per_commit=1)
        held = self.turn((), 1)
        claimed = time.perf_counter()
        self.turn([task_id for task_id, _ in held], 0)
        return began, claimed

    def size_bytes(self) -> int:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self._path.stat().st_size

    def close(self) -> None:
        self._connection.close()

    def _audit(self, before: str | None, after: str, task_ids: Collection[int]) -> None:
        self._connection.execute(SQLITE_AUDIT, (before, after, time.time_ns() // 1000, _json(task_ids)))


def _json(values: Collection[int]) -> str:
    return msgspec.json.encode(list(values)).decode()


# ── PostgreSQL ──

POSTGRES_SCHEMA: tuple[LiteralString, ...] = (
    "CREATE TABLE task (id bigserial PRIMARY KEY, state text NOT NULL, priority integer NOT NULL, payload text NOT NULL)",
    "CREATE INDEX task_claimable ON task (priority DESC, id) WHERE state = 'queued'",
    """CREATE TABLE transition (position bigserial PRIMARY KEY, task_id bigint NOT NULL, from_state text,
                                to_state text NOT NULL, at timestamptz NOT NULL)""",
)
POSTGRES_SESSION: LiteralString = "SET synchronous_commit = on; SET jit = off"
POSTGRES_SUBMIT: LiteralString = """
    WITH new AS (
        INSERT INTO task (state, priority, payload) SELECT 'queued', 0, payload FROM unnest(%s::text[]) AS payload RETURNING id
    )
    INSERT INTO transition (task_id, to_state, at) SELECT id, 'queued', now() FROM new
"""
# One statement is one round trip and one commit. `= ANY (ARRAY(…))` is what keeps the planner from joining the whole table.
POSTGRES_TURN: LiteralString = """
    WITH finished AS (
        UPDATE task SET state = 'done' WHERE id = ANY (%s::bigint[]) RETURNING id
    ), claimed AS (
        UPDATE task SET state = 'running'
         WHERE id = ANY (ARRAY(
               SELECT id FROM task WHERE state = 'queued' ORDER BY priority DESC, id LIMIT %s FOR UPDATE SKIP LOCKED))
        RETURNING id, payload
    ), audited AS (
        INSERT INTO transition (task_id, from_state, to_state, at)
        SELECT id, 'running', 'done', now() FROM finished
        UNION ALL
        SELECT id, 'queued', 'running', now() FROM claimed
    )
    SELECT id, payload FROM claimed
"""


class PostgresFloor:
    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = _connect(url)
        self._listener: psycopg.Connection[Any] | None = None
        for statement in POSTGRES_SCHEMA:
            self._connection.execute(statement)

    def submit(self, count: int, *, per_commit: int) -> None:
        for start in range(0, count, per_commit):
            self._connection.execute(POSTGRES_SUBMIT, (["null"] * min(per_commit, count - start),))

    def turn(self, finished: Collection[int], limit: int) -> Held:
        return _turn(self._connection, list(finished), limit)

    def wait_for_task(self) -> tuple[float, float]:
        """One connection commits and notifies, another one hears of it and claims."""
        if self._listener is None:
            self._listener = _connect(self.url)
            self._listener.execute("LISTEN floor")
        began = time.perf_counter()
        notify_and_submit(self._connection)
        held = claim_when_told(self._listener)
        claimed = time.perf_counter()
        _turn(self._listener, [task_id for task_id, _ in held], 0)
        return began, claimed

    def size_bytes(self) -> int:
        ((size,),) = self._connection.execute("SELECT pg_database_size(current_database())").fetchall()
        assert isinstance(size, int)
        return size

    def close(self) -> None:
        self._connection.close()
        if self._listener:
            self._listener.close()


def notify_and_submit(connection: psycopg.Connection[Any]) -> None:
    with connection.pipeline(), connection.transaction():
        connection.execute(POSTGRES_SUBMIT, (["null"],))
        connection.execute("NOTIFY floor")


def claim_when_told(listener: psycopg.Connection[Any]) -> Held:
    for _ in listener.notifies(timeout=LATENCY_SECONDS, stop_after=1):
        pass
    return _turn(listener, [], 1)


def claim_in_another_process(url: str, turns: int) -> None:
    """The second process of the latency test: tells when it is ready, and at each claim when that was."""
    with _connect(url) as listener:
        listener.execute("LISTEN floor")
        print("ready", flush=True)
        for _ in range(turns):
            held = claim_when_told(listener)
            print(time.perf_counter(), flush=True)
            _turn(listener, [task_id for task_id, _ in held], 0)


def _turn(connection: psycopg.Connection[Any], finished: Sequence[int], limit: int) -> Held:
    return connection.execute(POSTGRES_TURN, (finished, limit)).fetchall()


def _connect(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True, prepare_threshold=1)
    connection.execute(POSTGRES_SESSION)
    return connection

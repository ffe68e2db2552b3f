"""The floor: what any durable task queue with an audit trail has to do at least, in SQL written by hand and as fast as we can.

    task        one row, one partial index on what can be claimed
    transition  one row for each move, written by whoever makes the move

One transaction finishes a batch of tasks, claims the next one and writes both moves down, as durably as Pointsman does
(SQLite: WAL and synchronous=FULL; PostgreSQL: synchronous_commit=on). There are no runs, attempts, epochs, workers, tenants,
dependencies, rules, triggers, checks or foreign keys: nothing keeps a stale worker, or a hand, from writing nonsense.

    python -m bench.floor sqlite:///path | postgresql://…   take part in a run of `bench/engine.py`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, LiteralString, Protocol

import apsw
import msgspec
import psycopg
from bench.peers.conversation import Answer, answer_each, check_done, say

LATENCY_SECONDS = 10.0
Held = list[tuple[int, str]]
"""Tasks in somebody's hands: id and payload."""


class Floor(Protocol):
    def submit(self, count: int, *, per_commit: int) -> None: ...

    def turn(self, finished: Collection[int], limit: int) -> Held:
        """Finish these tasks and claim others, in one transaction."""
        ...

    def submit_one(self) -> None:
        """And tell whoever waits for it."""
        ...

    def claim_one(self) -> Held:
        """Wait until there is one."""
        ...

    def done(self) -> int: ...

    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


def drain(floor: Floor, count: int, batch: int) -> None:
    held: Held = []
    claimed = 0
    while True:
        held = floor.turn([task_id for task_id, _ in held], min(batch, count - claimed))
        if not held:
            return
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

    def submit_one(self) -> None:
        self.submit(1, per_commit=1)

    def claim_one(self) -> Held:
        """Nobody has to be woken in one process with one connection."""
        return self.turn((), 1)

    def done(self) -> int:
        ((number,),) = self._connection.execute("SELECT count(*) FROM task WHERE state = 'done'").fetchall()
        assert isinstance(number, int)
        return number

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
    """CREATE TABLE IF NOT EXISTS task (id bigserial PRIMARY KEY, state text NOT NULL, priority integer NOT NULL,
                                        payload text NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS task_claimable ON task (priority DESC, id) WHERE state = 'queued'",
    """CREATE TABLE IF NOT EXISTS transition (position bigserial PRIMARY KEY, task_id bigint NOT NULL, from_state text,
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
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=1)
        self._connection.execute(POSTGRES_SESSION)
        for statement in POSTGRES_SCHEMA:
            self._connection.execute(statement)

    def submit(self, count: int, *, per_commit: int) -> None:
        for start in range(0, count, per_commit):
            self._connection.execute(POSTGRES_SUBMIT, (["null"] * min(per_commit, count - start),))

    def turn(self, finished: Collection[int], limit: int) -> Held:
        return self._connection.execute(POSTGRES_TURN, (list(finished), limit)).fetchall()

    def submit_one(self) -> None:
        with self._connection.pipeline(), self._connection.transaction():
            self._connection.execute(POSTGRES_SUBMIT, (["null"],))
            self._connection.execute("NOTIFY floor")

    def listen(self) -> None:
        self._connection.execute("LISTEN floor")

    def claim_one(self) -> Held:
        for _ in self._connection.notifies(timeout=LATENCY_SECONDS, stop_after=1):
            pass
        return self.turn((), 1)

    def done(self) -> int:
        ((number,),) = self._connection.execute("SELECT count(*) FROM task WHERE state = 'done'").fetchall()
        return int(number)

    def size_bytes(self) -> int:
        ((size,),) = self._connection.execute("SELECT pg_database_size(current_database())").fetchall()
        assert isinstance(size, int)
        return size

    def close(self) -> None:
        self._connection.close()


# ── taking part ──


class Part:
    """What the floor is asked in a run."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor

    def drain(self, count: int, batch: int) -> Answer:
        before = self._floor.done()
        began = time.perf_counter()
        self._floor.submit(count, per_commit=count)
        middle = time.perf_counter()
        drain(self._floor, count, batch)
        ended = time.perf_counter()
        check_done(self._floor.done() - before, count)
        return {"tasks": count, "seconds": ended - middle, "submit_seconds": middle - began}

    def submit(self, count: int, per_commit: int) -> Answer:
        began = time.perf_counter()
        self._floor.submit(count, per_commit=per_commit)
        seconds = time.perf_counter() - began
        drain(self._floor, count, 100)
        return {"tasks": count, "seconds": seconds}

    def wait_for_task(self) -> Answer:
        """Submit one task into the idle database and claim it in the same process."""
        began = time.perf_counter()
        self._floor.submit_one()
        held = self._floor.claim_one()
        seconds = time.perf_counter() - began
        self._floor.turn([task_id for task_id, _ in held], 0)
        return {"seconds": seconds}

    def submit_one(self) -> Answer:
        began = time.perf_counter()
        self._floor.submit_one()
        return {"began": began}

    def claim_each(self, turns: int) -> Answer:
        """Tell when each of that many tasks was claimed, as they come in one by one."""
        if isinstance(self._floor, PostgresFloor):
            self._floor.listen()
        say({"ready": True})
        for _ in range(turns):
            held = self._floor.claim_one()
            say({"claimed": time.perf_counter()})
            self._floor.turn([task_id for task_id, _ in held], 0)
        return {}

    def size_bytes(self) -> Answer:
        return {"bytes": self._floor.size_bytes()}


def main() -> None:
    url = sys.argv[1]
    floor = SqliteFloor(Path(url.removeprefix("sqlite:///"))) if url.startswith("sqlite:///") else PostgresFloor(url)
    part = Part(floor)
    asked = ("drain", "submit", "wait_for_task", "submit_one", "claim_each", "size_bytes")
    answer_each({name: getattr(part, name) for name in asked})
    floor.close()


if __name__ == "__main__":
    main()

"""DBOS: queued workflows of one step that does nothing, on PostgreSQL or SQLite.

The queue lets as many run at once as asked, or all, and is polled every 10 ms instead of every second. Workflows may be
coroutines, or functions that take a thread each. Its SQLite file is in WAL mode, which DBOS leaves to whoever makes it; each
commit is synced (synchronous=FULL is what SQLite does unless told otherwise).
"""

from __future__ import annotations

import importlib.metadata
import itertools
import sqlite3
import sys
import threading
import time
from typing import Any

import sqlalchemy
from bench.peers.conversation import Answer, answer_each, check_done
from dbos import DBOS, DBOSClient

QUEUE = "bench"
POLLED_EVERY_SECONDS = 0.01


class Rounds:
    """How many workflows this round has, and when the last of them has run."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, count: int) -> None:
        self._count, self._ran, self.last_ran = count, itertools.count(1), threading.Event()

    def ran(self) -> None:
        if next(self._ran) == self._count:
            self.last_ran.set()


rounds = Rounds()


@DBOS.step()
async def nothing() -> None:
    pass


@DBOS.workflow(name="one_step")
async def one_step() -> None:
    await nothing()
    rounds.ran()


@DBOS.step()
def nothing_in_a_thread() -> None:
    pass


@DBOS.workflow(name="one_step_in_a_thread")
def one_step_in_a_thread() -> None:
    nothing_in_a_thread()
    rounds.ran()


class Peer:
    def __init__(self, url: str) -> None:
        self._url = url
        if url.startswith("sqlite:///"):
            with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        self._engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    def versions(self) -> Answer:
        return {"dbos": importlib.metadata.version("dbos")}

    def prepare(self) -> Answer:
        self._launch(connections=2)
        DBOS.destroy()
        return {}

    def drain(self, count: int, connections: int, workflow: str, at_once: int | None = None) -> Answer:
        before = self._number_of("SUCCESS")
        self._enqueue(workflow, count, at_once)
        rounds.begin(count)
        # What the queue manages before the clock is looked at is in its favour: less than a polling interval.
        self._launch(connections)
        began = time.perf_counter()
        rounds.last_ran.wait()
        while self._number_of("ENQUEUED", "PENDING"):
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        DBOS.destroy()
        check_done(self._number_of("SUCCESS") - before, count)
        return {"tasks": count, "seconds": seconds}

    def _launch(self, connections: int) -> None:
        config: Any = {
            "name": "bench",
            "system_database_url": self._url,
            "sys_db_pool_size": connections,
            "application_version": "1",
            "log_level": "ERROR",
        }
        DBOS(config=config)
        DBOS.launch()

    def _enqueue(self, workflow: str, count: int, at_once: int | None) -> None:
        client = DBOSClient(system_database_url=self._url, application_name="bench")
        client.register_queue(QUEUE, worker_concurrency=at_once, polling_interval_sec=POLLED_EVERY_SECONDS)
        options: Any = {"workflow_name": workflow, "queue_name": QUEUE, "app_version": "1"}
        with self._engine.begin() as connection:
            for _ in range(count):
                client.enqueue_in_transaction(connection, options)
        client.destroy()

    def _number_of(self, *states: str) -> int:
        schema = "" if self._engine.dialect.name == "sqlite" else "dbos."
        query = sqlalchemy.text(f"SELECT count(*) FROM {schema}workflow_status WHERE status IN :states")
        with self._engine.connect() as connection:
            bound = query.bindparams(sqlalchemy.bindparam("states", states, expanding=True))
            return int(connection.execute(bound).scalar() or 0)


def main() -> None:
    peer = Peer(sys.argv[1])
    answer_each({"versions": peer.versions, "prepare": peer.prepare, "drain": peer.drain})


if __name__ == "__main__":
    main()

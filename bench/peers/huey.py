"""huey on SQLite in its usual journal mode, WAL, with synchronous=FULL; workers are threads, which is what it takes by default.

A job that is not to leave a result returns nothing. Jobs are put in without waiting for the disk: that is not measured.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import logging
import sqlite3
import sys
import threading
import time
from typing import Any

from bench.peers.conversation import Answer, answer_each, check_done
from huey import SqliteHuey

IMPATIENT = {"initial_delay": 0.001, "max_delay": 0.01}


class Peer:
    def __init__(self, path: str) -> None:
        self._path = path

    def versions(self) -> Answer:
        return {"huey": importlib.metadata.version("huey"), "SQLite of the peers": sqlite3.sqlite_version}

    def prepare(self) -> Answer:
        SqliteHuey("bench", filename=self._path, fsync=True).storage.close()
        return {}

    def drain(self, count: int, threads: int, *, results: bool) -> Answer:
        huey = SqliteHuey("bench", filename=self._path, fsync=True, results=results)
        executed, last = itertools.count(1), threading.Event()

        def work() -> bool | None:
            if next(executed) == count:
                last.set()
            return True if results else None

        task = huey.task()(work)
        self._enqueue(huey, task, count)
        consumer = huey.create_consumer(workers=threads, periodic=False, check_worker_health=False, **IMPATIENT)
        began = time.perf_counter()
        consumer.start()
        last.wait()
        if results:
            while huey.storage.result_store_size() < count:
                time.sleep(0.001)
        seconds = time.perf_counter() - began
        consumer.stop(graceful=True)
        # A job is done when it is gone from the queue and, where results are wanted, its result is there.
        check_done(count - huey.storage.queue_size(), count)
        if results:
            check_done(huey.storage.result_store_size(), count)
        huey.storage.flush_results()
        huey.storage.close()
        return {"tasks": count, "seconds": seconds}

    def _enqueue(self, huey: Any, task: Any, count: int) -> None:
        quick = SqliteHuey("bench", filename=self._path, fsync=False)
        for _ in range(count):
            quick.storage.enqueue(huey.serialize_task(task.s()))
        quick.storage.close()


def main() -> None:
    logging.disable(logging.INFO)
    peer = Peer(sys.argv[1].removeprefix("sqlite:///"))
    answer_each({"versions": peer.versions, "prepare": peer.prepare, "drain": peer.drain})


if __name__ == "__main__":
    main()

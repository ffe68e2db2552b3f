"""pgqueuer at its quickest: asyncpg, uvloop, batches of claims and of reports; all of its tables are logged, as by default.

A pool lets the report of one batch be written while the next batch is claimed; a single connection was slower in trials.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from bench.peers.conversation import Answer, answer_each, check_done, say
from pgqueuer.core.qm import QueueManager
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.queries import Queries

ENTRYPOINT = "nothing"
CONNECTIONS = 4
ENQUEUED_AT_ONCE = 1_000
# When the queue is empty while jobs are still in flight, it looks again after that.
LOOK_AGAIN = timedelta(milliseconds=5)


class WatchedQueries(Queries):
    """Tells when the first claim began, and when the last report was committed."""

    began: float | None = None
    ended: float = 0.0

    async def dequeue(self, *arguments: Any, **options: Any) -> Any:
        if self.began is None:
            self.began = time.perf_counter()
        return await super().dequeue(*arguments, **options)

    async def log_jobs(self, *arguments: Any, **options: Any) -> None:
        await super().log_jobs(*arguments, **options)
        self.ended = time.perf_counter()


class Peer:
    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: Any = None

    async def versions(self) -> Answer:
        return {name: importlib.metadata.version(name) for name in ("pgqueuer", "asyncpg", "uvloop")}

    async def prepare(self) -> Answer:
        pool = await self._opened()
        await Queries.from_asyncpg_pool(pool).install()
        return {}

    async def drain(self, count: int, batch: int) -> Answer:
        pool = await self._opened()
        before = await self._done(pool)
        await self._enqueue(pool, count)
        queries = WatchedQueries.from_asyncpg_pool(pool)
        manager = QueueManager(queries)

        @manager.entrypoint(ENTRYPOINT)
        async def nothing(_: Any) -> None:
            pass

        await manager.run(dequeue_timeout=LOOK_AGAIN, batch_size=batch, mode=QueueExecutionMode.drain)
        check_done(await self._done(pool) - before, count)
        return {"tasks": count, "seconds": queries.ended - queries.began}

    async def submit_one(self) -> Answer:
        pool = await self._opened()
        queries = Queries.from_asyncpg_pool(pool)
        began = time.perf_counter()
        await queries.enqueue(ENTRYPOINT, None)
        return {"began": began}

    async def claim_each(self, turns: int) -> Answer:
        """Tell when each of that many jobs began, as they come in one by one."""
        pool = await self._opened()
        manager = QueueManager(Queries.from_asyncpg_pool(pool))
        left = turns

        @manager.entrypoint(ENTRYPOINT)
        async def tell(_: Any) -> None:
            nonlocal left
            say({"claimed": time.perf_counter()})
            left -= 1
            if not left:
                manager.shutdown.set()

        running = asyncio.create_task(manager.run())
        await asyncio.sleep(0.5)
        await manager.listener_healthy()
        say({"ready": True})
        await running
        return {}

    async def _opened(self) -> Any:
        if self._pool is None:
            self._pool = await asyncpg.create_pool(self._url, min_size=CONNECTIONS, max_size=CONNECTIONS)
        return self._pool

    async def _enqueue(self, pool: Any, count: int) -> None:
        queries = Queries.from_asyncpg_pool(pool)
        for start in range(0, count, ENQUEUED_AT_ONCE):
            jobs = min(ENQUEUED_AT_ONCE, count - start)
            await queries.enqueue([ENTRYPOINT] * jobs, [None] * jobs, [0] * jobs)

    async def _done(self, pool: Any) -> int:
        left = await pool.fetchval("SELECT count(*) FROM pgqueuer")
        done: int = await pool.fetchval("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")
        return done - int(left)


def main() -> None:
    peer = Peer(sys.argv[1])
    handlers = {name: getattr(peer, name) for name in ("versions", "prepare", "drain", "submit_one", "claim_each")}
    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer_each(handlers, runner.run)


if __name__ == "__main__":
    main()

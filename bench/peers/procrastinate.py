"""procrastinate with as many jobs at a time as asked, on uvloop; a worker claims and reports them one by one all the same.

Several workers in one process claim side by side. They are told not to listen, since everything is there when they begin, and
have a connection for each job at a time.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import sys
import time
from typing import Any

import procrastinate
import uvloop
from bench.peers.conversation import Answer, answer_each, check_done

DEFERRED_AT_ONCE = 1_000


class Peer:
    def __init__(self, url: str) -> None:
        self._url = url

    async def versions(self) -> Answer:
        return {name: importlib.metadata.version(name) for name in ("procrastinate",)}

    async def prepare(self) -> Answer:
        async with self._app(1).open_async() as app:
            await app.schema_manager.apply_schema_async()
        return {}

    async def drain(self, count: int, workers: int, concurrency: int, *, delete: bool = False) -> Answer:
        async with self._app(workers * concurrency).open_async() as app:
            before = await self._jobs(app)
            for start in range(0, count, DEFERRED_AT_ONCE):
                await app.tasks["nothing"].batch_defer_async(*[{}] * min(DEFERRED_AT_ONCE, count - start))
            options: dict[str, Any] = {
                "concurrency": concurrency,
                "wait": False,
                "listen_notify": False,
                "install_signal_handlers": False,
            }
            options["delete_jobs"] = "successful" if delete else "never"
            began = time.perf_counter()
            await asyncio.gather(*[app.run_worker_async(name=str(number), **options) for number in range(workers)])
            seconds = time.perf_counter() - began
            jobs = await self._jobs(app)
            # Only those that succeeded are ever deleted, so whatever is gone is done, too.
            check_done(count - jobs["others"], count)
            check_done(jobs["done"] - before["done"], 0 if delete else count)
        return {"tasks": count, "seconds": seconds}

    def _app(self, jobs: int) -> Any:
        connector = procrastinate.PsycopgConnector(conninfo=self._url, min_size=jobs + 1, max_size=jobs + 1)
        app = procrastinate.App(connector=connector)

        @app.task(name="nothing")
        async def nothing() -> None:
            pass

        return app

    async def _jobs(self, app: Any) -> dict[str, int]:
        query = """
            SELECT count(*) FILTER (WHERE status = 'succeeded') AS done, count(*) FILTER (WHERE status <> 'succeeded') AS others
              FROM procrastinate_jobs
        """
        jobs: dict[str, int] = await app.connector.execute_query_one_async(query)
        return jobs


def main() -> None:
    logging.disable(logging.WARNING)
    peer = Peer(sys.argv[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer_each({"versions": peer.versions, "prepare": peer.prepare, "drain": peer.drain}, runner.run)


if __name__ == "__main__":
    main()

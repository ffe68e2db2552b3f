"""The async client: the same methods as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

from pointsman.client.answers import RunAnswer
from pointsman.client.async_calls import AsyncRoutes
from pointsman.client.client import Client, EntityKind, EventType, late
from pointsman.client.session import RETRY_SECONDS
from pointsman.client.stream import DONE
from pointsman.client.threads import AsyncEvents, AsyncStream
from pointsman.client.transport import TIMEOUT_SECONDS

THREADS = 8


class AsyncClient(AsyncRoutes):
    """A server of Pointsman, for a program with an event loop.

        async with AsyncClient("http://127.0.0.1:8642") as client:
            run = await client.run_flow(flow=text)
            print((await client.wait_for_run(run.id)).outcome)

    It is a `Client` in threads: `threads` of them send requests, and each stream has one more while it is open. Whoever stops
    waiting for an answer, as `asyncio.timeout` does, does not take the request back.
    """

    _client: Client

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        actor: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        threads: int = THREADS,
    ) -> None:
        """`key` is an API key; a server without keys takes `actor` instead, who acts.

        `timeout_seconds` is how long the server may be silent, `retry_seconds` how long to go on trying; 0 tries once.
        """
        self._client = Client(url, key=key, actor=actor, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pointsman-client")

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        return self._client.url

    async def close(self) -> None:
        """Close all connections. Requests and streams that wait for the server end with `EngineClosed`."""
        self._client.close()
        await asyncio.to_thread(self._pool.shutdown)

    async def wait_for_run(self, run_id: str, *, timeout_seconds: float | None = None) -> RunAnswer:
        """Wait until a run has ended, however it ends. It is not asked again and again: the server tells when it moves.

        timeout_seconds: After this time, `TimeoutError` is raised; the run goes on.
        """
        try:
            async with asyncio.timeout(timeout_seconds), self.watch_run(run_id) as states:
                return await anext(run async for run in states if run.phase == DONE)
        except TimeoutError:
            raise late(run_id, timeout_seconds) from None

    def watch_run(self, run_id: str) -> AsyncStream[RunAnswer]:
        """A run as it is now, and again whenever it moves. It goes on behind the end of the run, which may be retried."""
        return AsyncStream(partial(self._client.watch_run, run_id))

    def events(
        self,
        *,
        after: str | None = None,
        types: Collection[EventType] = (),
        kind: EntityKind | None = None,
        run_id: str | None = None,
        lifecycle: str | None = None,
        state: str | None = None,
    ) -> AsyncEvents:
        """The events of the tenant as they happen, each once, also when the connection breaks or the server starts anew.

            async with client.events(types=["task_question"]) as events:
                async for event in events:
                    if isinstance(event, TaskQuestion):
                        print(event.question, events.cursor)

        The parameters are those of `Client.events`.
        """
        open_events = partial(
            self._client.events, after=after, types=types, kind=kind, run_id=run_id, lifecycle=lifecycle, state=state
        )
        return AsyncEvents(open_events)

    async def read_log(self, task_id: str, attempt: int, *, start: int = 0, end: int | None = None) -> bytes:
        """What the log of an attempt has now, or the part of it that a slice has: `start=-1000` is its end."""
        return await self._run(self._client.read_log, task_id, attempt, start=start, end=end)

    async def read_artifact(self, task_id: str, attempt: int, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        """An artifact of an attempt, or the part of it that a slice has. Of one with more than 64 MiB, read parts."""
        return await self._run(self._client.read_artifact, task_id, attempt, name, start=start, end=end)

    def follow_log(self, task_id: str, attempt: int) -> AsyncStream[bytes]:
        """The log of an attempt from its beginning, as it is written, until the attempt has ended."""
        return AsyncStream(partial(self._client.follow_log, task_id, attempt))

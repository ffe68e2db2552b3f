"""The async client runs the other one in threads: requests in a pool, and each stream in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from pointsman.client.calls import Routes
from pointsman.client.stream import Event, Events

T = TypeVar("T")
Item_co = TypeVar("Item_co", covariant=True)
P = ParamSpec("P")


class AsyncCalls:
    """The base of the routes."""

    _client: Routes
    _pool: ThreadPoolExecutor

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, *args, **kwargs))


class Source(Protocol[Item_co]):
    """A stream of the other client."""

    def __enter__(self) -> Any: ...
    def __next__(self) -> Item_co: ...
    def close(self) -> None: ...


class AsyncStream(AsyncIterator[T]):
    """Items as they arrive. Leave it with `async with`, or close it: its connection and its thread stay until then.

    Whoever stops waiting for the next item, as `asyncio.timeout` does, gets it when they ask again.
    """

    def __init__(self, open_source: Callable[[], Source[T]]) -> None:
        self._source = open_source()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pointsman-stream")
        self._awaited: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._do(self._source.__enter__)
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        found: list[T] = await self._do(self._look)
        if not found:
            self.close()
            raise StopAsyncIteration
        return found[0]

    def close(self) -> None:
        if self._awaited is not None:
            self._awaited.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody asks for it any more
        self._source.close()
        self._thread.shutdown(wait=False)

    def _look(self) -> list[T]:
        """At most one item: the end of an iteration cannot be the result of a future."""
        try:
            return [self._source.__next__()]
        except StopIteration:
            return []

    async def _do(self, act: Callable[[], Any]) -> Any:
        if self._awaited is None:
            self._awaited = asyncio.get_running_loop().run_in_executor(self._thread, act)
        try:
            found = await asyncio.shield(self._awaited)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._awaited = None
            raise
        self._awaited = None
        return found


class AsyncEvents(AsyncStream[Event]):
    """The events of a tenant, each once, across broken connections and restarts of the server."""

    def __init__(self, open_source: Callable[[], Events]) -> None:
        super().__init__(open_source)

    @property
    def cursor(self) -> str | None:
        """Everything up to here has been handed out. Give it as `after` to continue later, on any server of the database."""
        assert isinstance(self._source, Events)
        return self._source.cursor

"""Waiting for news: whoever found nothing to do sleeps until some process has committed something for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pointsman.store.contract import Store, Wakeup
from pointsman.world import Sleep


class Wakeups:
    """Turns the news of a store into something that a coroutine can wait for."""

    def __init__(self, store: Store, sleep: Sleep) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleep = sleep
        self._waiting: list[tuple[Wakeup, asyncio.Future[None]]] = []
        self._listeners: list[tuple[Wakeup, Callable[[], None]]] = []
        self._stop: Callable[[], None] = store.listen(self._hear)

    def close(self) -> None:
        self._stop()
        self._spread(~Wakeup.NOTHING)

    def expect(self, news: Wakeup) -> asyncio.Future[None]:
        """Something to wait for; ask for it before looking, so that nothing slips by between looking and waiting."""
        future = self._loop.create_future()
        self._waiting.append((news, future))
        return future

    def listen(self, news: Wakeup, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` whenever there are such news, until what is returned is called."""
        listener = (news, heard)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def pause(self, seconds: float) -> asyncio.Future[None]:
        """How long to wait at most; cancel it when nobody waits any longer."""
        return asyncio.ensure_future(self._sleep(seconds))

    async def wait(self, expected: asyncio.Future[None], pause: asyncio.Future[None]) -> None:
        """Until the news are there, or the pause is over."""
        try:
            await asyncio.wait({expected, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.forget(expected)

    def forget(self, expected: asyncio.Future[None]) -> None:
        self._waiting = [each for each in self._waiting if each[1] is not expected]

    def _hear(self, news: Wakeup) -> None:
        """Called from the thread of whoever brings the news."""
        with suppress(RuntimeError):  # the loop has been closed: nobody waits there any longer
            self._loop.call_soon_threadsafe(self._spread, news)

    def _spread(self, news: Wakeup) -> None:
        told = [future for wanted, future in self._waiting if wanted & news]
        self._waiting = [each for each in self._waiting if not each[0] & news]
        for future in told:
            if not future.done():
                future.set_result(None)
        for wanted, heard in tuple(self._listeners):
            if wanted & news:
                heard()

"""Wake-ups: a coroutine that found nothing to do sleeps until a process commits something for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from pointsman.store.contract import Wakeup
from pointsman.world import Sleep

Listen = Callable[[Callable[[Wakeup], None]], Callable[[], None]]
"""Call a function at every wake-up, in any thread; what is returned ends that."""


class WaitingLine(NamedTuple):
    """How to wait for tasks."""

    expect: Callable[[], asyncio.Future[Any]]
    """A future for the moment at which it is time to claim. Ask for it before you look."""
    forget: Callable[[asyncio.Future[Any]], None]
    """It is no longer waited for."""


class Wakeups:
    """Turns the wake-ups of a database into futures."""

    def __init__(self, listen: Listen, sleep: Sleep) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleep = sleep
        self._waiting: list[tuple[Wakeup, asyncio.Future[None]]] = []
        self._listeners: list[tuple[Wakeup, Callable[[], None]]] = []
        self._lock = threading.Lock()
        self._heard = Wakeup.NOTHING
        """What the event loop is about to spread."""
        self._stop = listen(self._hear)

    def close(self) -> None:
        self._stop()
        self._spread(~Wakeup.NOTHING)

    def expect(self, wakeup: Wakeup) -> asyncio.Future[None]:
        """A future for the next such wake-up. Ask for it before you look, so that none is missed in between."""
        future = self._loop.create_future()
        self._waiting.append((wakeup, future))
        return future

    def listen(self, wakeup: Wakeup, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` at every such wake-up, until the returned function is called."""
        listener = (wakeup, heard)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def pause(self, seconds: float) -> asyncio.Future[None]:
        """A timeout; cancel it when it is no longer needed."""
        return asyncio.ensure_future(self._sleep(seconds))

    async def wait(self, expected: asyncio.Future[None], pause: asyncio.Future[None]) -> None:
        """Until the wake-up or the end of the pause."""
        try:
            await asyncio.wait({expected, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.forget(expected)

    def forget(self, expected: asyncio.Future[None]) -> None:
        self._waiting = [each for each in self._waiting if each[1] is not expected]

    def _hear(self, wakeup: Wakeup) -> None:
        """Called in a thread of the store. A busy event loop is not called again for what it has yet to spread."""
        with self._lock:
            is_called, self._heard = bool(self._heard), self._heard | wakeup
        if not is_called:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._spread_heard)

    def _spread_heard(self) -> None:
        with self._lock:
            heard, self._heard = self._heard, Wakeup.NOTHING
        self._spread(heard)

    def _spread(self, wakeup: Wakeup) -> None:
        told = [future for wanted, future in self._waiting if wanted & wakeup]
        self._waiting = [each for each in self._waiting if not each[0] & wakeup]
        for future in told:
            if not future.done():
                future.set_result(None)
        for wanted, heard in tuple(self._listeners):
            if wanted & wakeup:
                heard()

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
        self._waiting: dict[Wakeup, dict[asyncio.Future[None], None]] = {}
        """By what they wait for: in the order in which they came."""
        self._listeners: list[tuple[Wakeup, Callable[[], None]]] = []
        self._lock = threading.RLock()
        """The event loop changes who waits, and threads of the store look at it.

        Reentrant, because a coroutine that waits may be collected as garbage anywhere.
        """
        self._heard = Wakeup.NOTHING
        """What the event loop is about to spread."""
        self._stop = listen(self._hear)

    def close(self) -> None:
        self._stop()
        self._spread(~Wakeup.NOTHING)

    def expect(self, wakeup: Wakeup) -> asyncio.Future[None]:
        """A future for the next such wake-up. Ask for it before you look, so that none is missed in between."""
        future = self._loop.create_future()
        with self._lock:
            self._waiting.setdefault(wakeup, {})[future] = None
        return future

    def listen(self, wakeup: Wakeup, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` at every such wake-up, until the returned function is called."""
        listener = (wakeup, heard)
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                self._listeners.remove(listener)

        return stop

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
        with self._lock:
            for waiting in self._waiting.values():
                waiting.pop(expected, None)

    def _hear(self, wakeup: Wakeup) -> None:
        """Called in a thread of the store. The event loop is called only if a future or a listener expects this, and once.

        A caller that begins to wait after a commit queries the database after it, and so need not be told.
        """
        with self._lock:
            if not self._is_awaited(wakeup):
                return
            is_called, self._heard = bool(self._heard), self._heard | wakeup
        if not is_called:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._spread_heard)

    def _is_awaited(self, wakeup: Wakeup) -> bool:
        said = int(wakeup)  # the operators of flags take a microsecond each
        if any(said & int(wanted) for wanted, _ in self._listeners):
            return True
        return any(waiting and said & int(wanted) for wanted, waiting in self._waiting.items())

    def _spread_heard(self) -> None:
        with self._lock:
            heard, self._heard = self._heard, Wakeup.NOTHING
        self._spread(heard)

    def _spread(self, wakeup: Wakeup) -> None:
        with self._lock:
            told = [future for wanted in tuple(self._waiting) if wanted & wakeup for future in self._waiting.pop(wanted)]
        for future in told:
            if not future.done():
                future.set_result(None)
        for wanted, heard in tuple(self._listeners):
            if wanted & wakeup:
                heard()

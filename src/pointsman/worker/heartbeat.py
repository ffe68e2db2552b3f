"""Sends heartbeats from a separate thread, so that a busy event loop costs no lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pointsman.engine.engine import Engine
from pointsman.engine.operations.workers import HeartbeatReply
from pointsman.errors import EngineClosed, PointsmanError, StoreError
from pointsman.world import Clock

BEATS_PER_LEASE = 6
Attempt = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answered:
    """A heartbeat and its reply."""

    asked_at: float
    """By `boottime`, before it was sent."""
    attempts: Sequence[Attempt]
    """Those that it named."""
    reply: HeartbeatReply


class Heartbeat:
    """Sends a heartbeat several times per lease and on request."""

    def __init__(
        self,
        engine: Engine,
        worker_id: str,
        lease_seconds: float,
        held: Callable[[], Sequence[Attempt]],
        on_reply: Callable[[Answered], None],
        on_error: Callable[[StoreError], None],
        clock: Clock,
    ) -> None:
        """The functions are called in the thread of the heartbeat."""
        self._engine = engine
        self._worker_id = worker_id
        self._pause_seconds = lease_seconds / BEATS_PER_LEASE
        self._held = held
        self._on_reply = on_reply
        self._on_error = on_error
        self._clock = clock
        self._wanted = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._beat()), name="pointsman-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """Send one now: its reply may have changed."""
        self._wanted.set()

    def stop(self) -> None:
        """Send no more."""
        self._is_over = True
        self._wanted.set()

    def join(self) -> None:
        """Wait until the last heartbeat is answered."""
        self._thread.join()

    async def _beat(self) -> None:
        while not self._is_over:
            with suppress(PointsmanError):  # the next heartbeat may be accepted
                try:
                    asked_at, held = self._clock.boottime(), self._held()
                    self._on_reply(Answered(asked_at, held, await self._engine.send_heartbeat(self._worker_id, held)))
                except EngineClosed:
                    return
                except StoreError as error:
                    self._on_error(error)
            self._wanted.wait(self._pause_seconds)  # blocking is fine: nothing else runs in this loop
            self._wanted.clear()

"""Heartbeats in a thread of their own, so that nothing the worker is busy with can keep them from being sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from pointsman.engine.engine import Engine
from pointsman.engine.operations.workers import HeartbeatReply
from pointsman.errors import EngineClosed, PointsmanError

BEATS_IN_A_LEASE = 6
Attempt = tuple[str, int]


class Heartbeat:
    """Sends a heartbeat several times a lease, and whenever it is asked to; hands each answer to whoever listens."""

    def __init__(
        self,
        engine: Engine,
        worker_id: str,
        lease_seconds: float,
        held: Callable[[], Iterable[Attempt]],
        heard: Callable[[HeartbeatReply], None],
    ) -> None:
        """`held` and `heard` are called in the heartbeat's thread."""
        self._engine = engine
        self._worker_id = worker_id
        self._pause_seconds = lease_seconds / BEATS_IN_A_LEASE
        self._held = held
        self._heard = heard
        self._wanted = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._beat()), name="pointsman-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """Something may have happened that an answer would tell."""
        self._wanted.set()

    def stop(self) -> None:
        """Send no more."""
        self._is_over = True
        self._wanted.set()

    def join(self) -> None:
        """Wait until the last beat is answered."""
        self._thread.join()

    async def _beat(self) -> None:
        while not self._is_over:
            with suppress(PointsmanError):  # the database is away: the next beat may reach it, and until then nobody is told
                try:
                    self._heard(await self._engine.send_heartbeat(self._worker_id, list(self._held())))
                except EngineClosed:
                    return
            self._wanted.wait(self._pause_seconds)  # nothing else runs in this loop
            self._wanted.clear()

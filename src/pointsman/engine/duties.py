"""Duties: background work that no request asks for, each with a name, its own schedule and its metrics.

    next_due ──▶ sleep until then, a wake-up or the interval ──▶ perform ──▶ figures, hooks
                                                                    └── failed: log, pause that doubles, try again

Any number of processes perform the same duties on one database. Each duty takes what it deals with in the transaction that
deals with it, so nothing is done twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct

from pointsman.engine.hooks import DutyPerformed
from pointsman.engine.queries import Surroundings
from pointsman.errors import EngineClosed, StoreBusy, StoreGone, StoreUnavailable
from pointsman.store.contract import Wakeup

SHORTEST_PAUSE_SECONDS = 0.02
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0

log = logging.getLogger(__name__)


class Duty(Struct, frozen=True, kw_only=True):
    """Something to be done again and again."""

    name: str
    perform: Callable[[], Awaitable[int]]
    """Deals with what is due; answers how much that was."""
    interval_seconds: float
    """How long it sleeps at most."""
    full_batch: int = 1
    """After so much, more is likely to be due, and it is performed again at once."""
    next_due: Callable[[], Awaitable[float]] | None = None
    """In how many seconds there will be something to do; without it, after each interval."""
    rest_seconds: float = 0.0
    """How long it rests between two turns, so that what happens meanwhile is dealt with at once."""
    wakes_on: Wakeup = Wakeup.NOTHING
    """What may make it due earlier."""


@dataclass(slots=True)
class DutyMetrics:
    """How a duty has gone in this process."""

    performed: int = 0
    done: int = 0
    """What it has dealt with, all together."""
    failures: int = 0
    failures_in_a_row: int = 0
    last_run_at: datetime | None = None
    last_seconds: float = 0.0
    last_error: str | None = None


NoteFailure = Callable[[str, Exception | None, int], Awaitable[None]]
"""Called when a duty fails, and when it works again: its name, the error or None, the failures in a row."""


class Duties:
    """Performs the registered duties, each in a task of its own."""

    def __init__(self, around: Surroundings, note: NoteFailure) -> None:
        self._around = around
        self._note = note
        self._metrics: dict[str, DutyMetrics] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def metrics(self) -> Mapping[str, DutyMetrics]:
        return self._metrics

    def start(self, duty: Duty) -> None:
        """Register a duty, and perform it from now on."""
        self._metrics[duty.name] = DutyMetrics()
        self._tasks.append(asyncio.create_task(self._keep(duty), name=f"pointsman-duty-{duty.name}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep(self, duty: Duty) -> None:
        if duty.next_due is None and not duty.wakes_on:
            await self._around.wakeups.pause(duty.interval_seconds)
        while True:
            expected = self._around.wakeups.expect(duty.wakes_on)
            try:
                pause = await self._take_turn(duty)
                await self._recover(duty)
            except EngineClosed:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the next turn may go well, and the duty has to go on
                self._around.wakeups.forget(expected)
                await self._around.wakeups.pause(await self._fail(duty, error))  # wake-ups do not shorten it
                continue
            if duty.rest_seconds:
                await self._around.wakeups.pause(duty.rest_seconds)
            if pause:
                await self._around.pause(expected, pause)
            else:
                self._around.wakeups.forget(expected)

    async def _take_turn(self, duty: Duty) -> float:
        """Perform it if something is due; how long to sleep then."""
        if duty.next_due is None or await duty.next_due() <= 0:
            done = await self._perform(duty)
            if done >= duty.full_batch:
                return 0.0
        due_in = await duty.next_due() if duty.next_due else math.inf
        return min(max(due_in, SHORTEST_PAUSE_SECONDS), duty.interval_seconds)

    async def _perform(self, duty: Duty) -> int:
        metrics, clock = self._metrics[duty.name], self._around.world.clock
        began = clock.monotonic()
        metrics.last_run_at = clock.now()
        try:
            done = await duty.perform()
        finally:
            metrics.last_seconds = clock.monotonic() - began
            metrics.performed += 1
        metrics.done += done
        self._around.hooks.emit(DutyPerformed(duty.name, metrics.last_seconds, done))
        return done

    async def _recover(self, duty: Duty) -> None:
        metrics = self._metrics[duty.name]
        if metrics.failures_in_a_row:
            log.info("duty %s works again", duty.name, extra={"duty": duty.name, "failures": metrics.failures_in_a_row})
            metrics.failures_in_a_row, metrics.last_error = 0, None
            await self._note(duty.name, None, 0)

    async def _fail(self, duty: Duty, error: Exception) -> float:
        """How long to wait: longer after each failure in a row, so that a duty that fails for ever costs little."""
        metrics = self._metrics[duty.name]
        metrics.failures += 1
        metrics.failures_in_a_row += 1
        metrics.last_error = f"{type(error).__name__}: {error}"
        pause = min(FIRST_BACKOFF_SECONDS * 2.0 ** min(metrics.failures_in_a_row - 1, 16), LONGEST_BACKOFF_SECONDS)
        # That the database is away is told by every operation; the log need not repeat it for each duty.
        level = logging.INFO if isinstance(error, StoreBusy | StoreGone | StoreUnavailable) else logging.ERROR
        log.log(
            level,
            "duty %s failed: %s; the next try is in %g seconds",
            duty.name,
            error,
            pause,
            exc_info=error,
            extra={"duty": duty.name, "failures": metrics.failures_in_a_row},
        )
        self._around.hooks.emit(DutyPerformed(duty.name, metrics.last_seconds, 0, error))
        await self._note(duty.name, error, metrics.failures_in_a_row)
        return pause

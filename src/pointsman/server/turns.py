"""Turns to claim: of the workers that wait here, a new task wakes only as many as it takes.

    wake-up ──▶ how many tasks wait, by tenant? ──▶ wake as many workers, those first that have waited longest
                          ▲                                      │ a moment later
                          └── some still wait: wake more, twice as many each time ──┘

A worker that was woken may be dead, busy, or of the wrong kind: then the task still waits at the next look, and others are
woken.
A worker is woken once for each wake-up at most. One that asks again and has missed a wake-up gets its turn as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from functools import partial

from pointsman.engine.engine import Engine
from pointsman.engine.wakeups import WaitingLine
from pointsman.errors import EngineClosed, PointsmanError
from pointsman.store.contract import Wakeup
from pointsman.world import Sleep

FIRST = 4
"""How many workers of a tenant are woken at least: small fleets lose no time because one of them is busy."""
PAUSE_SECONDS = 0.1
"""The time in which those who were woken claim, before others are."""
RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)
Turn = asyncio.Future[int]
"""Its result is the wake-up up to which the worker was served."""


class Turns:
    """The workers that wait in this process, by tenant."""

    def __init__(self, engine: Engine, sleep: Sleep) -> None:
        self._engine, self._sleep = engine, sleep
        self.heard = 0
        """How many wake-ups there were."""
        self._waiting: defaultdict[str, dict[Turn, int]] = defaultdict(dict)
        """By tenant: those who wait, the longest first, and up to which wake-up each was served."""
        self._settled: dict[str, int] = {}
        """By tenant: up to this wake-up, no task waited any more."""
        self._giving: asyncio.Task[None] | None = None
        self._is_wanted = False
        """Somebody may be unserved of whom the task does not know yet."""
        self._is_closed = False
        engine.listen(Wakeup.TASKS, self._hear)

    def expect(self, tenant: str, served: int | None = None) -> Turn:
        """The next turn of a worker, which was served up to a wake-up; without it, up to the last one."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting[tenant][turn] = served = self.heard if served is None else served
        if served < self.heard and self._may_wait(tenant):
            self._begin()
        return turn

    def forget(self, tenant: str, turn: Turn) -> None:
        waiting = self._waiting[tenant]
        waiting.pop(turn, None)
        if not waiting:
            del self._waiting[tenant]
            self._settled.pop(tenant, None)

    def line_of(self, tenant: str) -> WaitingLine:
        """The line of the workers of a tenant."""
        return WaitingLine(partial(self.expect, tenant), partial(self.forget, tenant))

    def close(self) -> None:
        """Give everybody a turn, and no more turns."""
        self._is_closed = True
        for waiting in self._waiting.values():
            for turn in waiting:
                self._give_one(turn)
        if self._giving:
            self._giving.cancel()

    def _hear(self) -> None:
        self.heard += 1
        if self._waiting:
            self._begin()

    def _begin(self) -> None:
        self._is_wanted = True
        if self._giving is None and not self._is_closed:
            self._giving = asyncio.create_task(self._give_all(), name="turns to claim")
            self._giving.add_done_callback(self._end)

    def _end(self, _: asyncio.Task[None]) -> None:
        self._giving = None
        if self._is_wanted:
            self._begin()

    def _may_wait(self, tenant: str) -> bool:
        """Whether tasks of a tenant may wait since the last wake-up."""
        return self._settled.get(tenant, -1) < self.heard

    def _find_unserved(self) -> dict[str, list[Turn]]:
        """By tenant whose tasks may wait: those who were not woken since the last wake-up."""
        found = {
            tenant: [turn for turn, served in waiting.items() if served < self.heard and not turn.done()]
            for tenant, waiting in self._waiting.items()
            if self._may_wait(tenant)
        }
        return {tenant: turns for tenant, turns in found.items() if turns}

    async def _give_all(self) -> None:
        """Until no task waits any more, or everybody was woken."""
        self._is_wanted = False
        waves: defaultdict[str, int] = defaultdict(lambda: FIRST)
        while unserved := self._find_unserved():
            heard = self.heard
            try:
                counts = await self._engine.count_claimable({tenant: len(turns) for tenant, turns in unserved.items()})
            except EngineClosed:
                self.close()
                return
            except Exception as error:
                log.warning(
                    "cannot count the tasks that wait for workers: %s", error, exc_info=not isinstance(error, PointsmanError)
                )
                await self._sleep(RETRY_SECONDS)
                continue
            for tenant, count in counts.items():
                if not count:
                    self._settled[tenant] = heard
                    continue
                wave = max(count, waves[tenant])
                waves[tenant] = 2 * wave
                for turn in unserved[tenant][:wave]:
                    self._give_one(turn)
            await self._sleep(PAUSE_SECONDS)

    def _give_one(self, turn: Turn) -> None:
        if not turn.done():
            turn.set_result(self.heard)

"""Wake-ups for clients: a request waits until something has happened that its client has not heard of.

A process counts its wake-ups of each kind. A client says how far it has heard, and of which process; what it has missed between
two requests, or because it asks another process now, it hears at once. That tasks may be claimed, only as many clients hear as
there are tasks (`turns.py`); the others do not get a larger count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated

from msgspec import Struct

from pointsman.engine.engine import Engine
from pointsman.engine.fields import CountFromZero, Name, number
from pointsman.server.turns import Turns
from pointsman.store.contract import Wakeup

KINDS: Mapping[str, Wakeup] = {"workers": Wakeup.WORKERS, "events": Wakeup.EVENTS}
"""Each of which all clients hear."""
LONGEST_WAIT_SECONDS = 30.0


class WakeupQuery(Struct, frozen=True, kw_only=True):
    """What the client waits for, and how far it has heard."""

    process: Annotated[Name | None, "`process` of the answer before; without it, the answer comes at once."] = None
    tasks: Annotated[CountFromZero | None, "Wait for tasks that may be claimed: `tasks` of the answer before."] = None
    workers: Annotated[CountFromZero | None, "Wait for what is told to workers: `workers` of the answer before."] = None
    events: Annotated[CountFromZero | None, "Wait for transitions: `events` of the answer before."] = None
    wait_seconds: Annotated[float, number(0, LONGEST_WAIT_SECONDS), "How long at most."] = LONGEST_WAIT_SECONDS


class WakeupAnswer(Struct, frozen=True, kw_only=True):
    """How many wake-ups of each kind the client has heard of by now, since the process started."""

    process: str
    tasks: int
    workers: int
    events: int


class WakeupCounter:
    """Counts the wake-ups of a process, and tells those who wait."""

    def __init__(self, engine: Engine, process: str, turns: Turns) -> None:
        self._process = process
        self._turns = turns
        self._counts = dict.fromkeys(KINDS, 0)
        self._is_closed = False
        self._waiting: dict[asyncio.Future[int], frozenset[str]] = {}
        for name, kind in KINDS.items():
            engine.listen(kind, partial(self._hear, name))

    def _hear(self, name: str) -> None:
        self._counts[name] += 1
        for wakeup, wanted in self._waiting.items():
            if name in wanted and not wakeup.done():
                wakeup.set_result(self._counts[name])

    async def wait(self, asked: WakeupQuery, tenant: str) -> WakeupAnswer:
        """Until one of the kinds that are asked for was heard again, but no longer than asked for."""
        seen = {name: count for name in KINDS if (count := getattr(asked, name)) is not None}
        waits = asked.process == self._process and not self._is_closed
        tasks = self._turns.heard
        if waits and asked.tasks is not None:
            turn = self._turns.expect(tenant, asked.tasks)
            try:
                await self._wait_for_more(seen, asked.wait_seconds, turn)
            finally:
                self._turns.forget(tenant, turn)
            tasks = turn.result() if turn.done() else asked.tasks
        elif waits and seen:
            await self._wait_for_more(seen, asked.wait_seconds)
        return WakeupAnswer(process=self._process, tasks=tasks, **self._counts)

    async def _wait_for_more(self, seen: Mapping[str, int], seconds: float, *others: asyncio.Future[int]) -> None:
        wakeup = asyncio.get_running_loop().create_future()
        self._waiting[wakeup] = frozenset(seen)
        try:
            if all(self._counts[name] == count for name, count in seen.items()):
                await asyncio.wait({wakeup, *others}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waiting[wakeup]

    def close(self) -> None:
        """Answer all who wait."""
        self._is_closed = True
        self._turns.close()
        for wakeup in self._waiting:
            if not wakeup.done():
                wakeup.set_result(0)

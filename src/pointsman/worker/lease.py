"""What an attempt knows about its lease: work begins only while it is certain that no other worker may have the task.

    request sent ──────── certain ────────▶│◀── in doubt: a heartbeat decides ──▶│ expired: others may have it
    0                                half a lease                             a lease

The request is the claim, or the last heartbeat that confirmed the attempt. Counting begins before it was sent, by a clock that
does not stop while the machine is suspended. The database counts from the moment when it decided, which is later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from pointsman.errors import LeaseUncertain
from pointsman.world import Clock, SystemClock

CERTAIN_LEASES = 0.5
"""The share of a lease in which work may begin without another question. The rest is time to start it."""


class Lease:
    """The lease of one attempt."""

    def __init__(self, clock: Clock, seconds: float, confirmed_at: float, ask: Callable[[], None]) -> None:
        """`ask` sends a heartbeat; `confirm` is called with its reply."""
        self._clock = clock
        self._seconds = seconds
        self._confirmed_at = confirmed_at
        self._ask = ask
        self._answered: asyncio.Event | None = None

    @property
    def is_certain(self) -> bool:
        return self._age < self._seconds * CERTAIN_LEASES

    @property
    def has_expired(self) -> bool:
        return self._age >= self._seconds

    @property
    def _age(self) -> float:
        return self._clock.boottime() - self._confirmed_at

    def confirm(self, asked_at: float) -> None:
        """The engine has confirmed the attempt, in reply to a request of that time."""
        self._confirmed_at = max(asked_at, self._confirmed_at)
        self.wake()

    def check(self) -> None:
        """Raise `LeaseUncertain` unless work may begin now."""
        if not self.is_certain:
            raise LeaseUncertain

    async def answer(self) -> None:
        """Ask whether the attempt still counts, and wait for `confirm` or `wake`."""
        self._answered = asyncio.Event()
        self._ask()
        await self._answered.wait()

    def wake(self) -> None:
        """End the waiting."""
        if self._answered:
            self._answered.set()


ENDLESS = Lease(SystemClock(), math.inf, 0.0, lambda: None)
"""For work that belongs to no attempt."""

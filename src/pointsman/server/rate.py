"""Rates: how many requests a tenant may send to this process.

A request is due `1 / per_second` after the one before it. A tenant may be ahead of that by `burst` requests:

    now ├───────────── burst / per_second ─────────────┤
        │ next due: admitted │                         │ next due: refused, and told when
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pointsman.errors import CallRefused
from pointsman.world import Clock


@dataclass(slots=True)
class RateLimit:
    """Counts the requests of each tenant. Only tenants with a valid key get here, so the table stays small."""

    clock: Clock
    per_second: float
    burst: int
    _next_due: dict[str, float] = field(default_factory=dict)

    def take(self, tenant: str) -> None:
        now = self.clock.monotonic()
        due = max(self._next_due.get(tenant, now), now)
        wait = due - now - (self.burst - 1) / self.per_second
        if wait > 0:
            seconds = math.ceil(wait)
            message = (
                f"The tenant {tenant} sends more than {self.per_second:g} requests a second to this server. "
                f"Try again in {seconds} second{'s' if seconds != 1 else ''}."
            )
            raise CallRefused("rate-limited", message, headers={"Retry-After": str(seconds)})
        self._next_due[tenant] = due + 1 / self.per_second

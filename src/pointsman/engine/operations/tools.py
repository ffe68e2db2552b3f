"""Operations on tools and their circuit breakers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from pointsman.engine import breakers, limits
from pointsman.engine.checks import MAX_SECONDS
from pointsman.engine.fields import Count, Name, Seconds, Tool, number
from pointsman.engine.operation import Operation, Recorded
from pointsman.engine.work import Work
from pointsman.errors import NotFound, Problem
from pointsman.kernel.machine import Kind
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Breaker

SHORTEST_RATE_SECONDS = 0.001
RateSeconds = Annotated[float, number(SHORTEST_RATE_SECONDS, MAX_SECONDS)]


class DeclareTool(Operation[Breaker], frozen=True):
    """Declare a tool with the circuit breaker and the limits that all its tasks share; declare it again to change them."""

    tool: Annotated[Name, "The name of the tool."]
    failure_threshold: Annotated[Count, "How many failures in a row open its circuit."] = 5
    success_threshold: Annotated[Count, "How many successes close it again."] = 1
    cooldown_seconds: Annotated[Seconds, "How long the circuit stays open before a probe."] = 60.0
    max_concurrent: Annotated[Count | None, "How many attempts may run at once."] = None
    rate_count: Annotated[Count | None, "How many attempts may begin in any `rate_seconds`."] = None
    rate_seconds: Annotated[RateSeconds | None, "See `rate_count`."] = None

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if not found and (self.rate_count is None) != (self.rate_seconds is None):
            message = "A rate is so many in so many seconds: say both rate_count and rate_seconds, or neither."
            yield Problem("rate_count", message)

    def decide(self, work: Work) -> Callable[[], Breaker]:
        work.load_breakers(self.tenant, [self.tool])
        breaker = work.breaker(self.tenant, self.tool)
        if breaker is None:
            work.ensure_tenant(self.tenant)
            breaker = self._build(work)
            work.breakers.add(breaker)
        else:
            breaker.failure_threshold = self.failure_threshold
            breaker.success_threshold = self.success_threshold
            breaker.cooldown_seconds = float(self.cooldown_seconds)
            self._set_limits(work, breaker)
            work.breakers.change(breaker)
        return lambda: breaker

    def _set_limits(self, work: Work, breaker: Breaker) -> None:
        """What began before there was a rate does not count; what began under another one does."""
        breaker.max_concurrent = self.max_concurrent
        breaker.rate_count = self.rate_count
        breaker.rate_seconds = self._rate_seconds
        if self.rate_count is None:
            breaker.begun = "[]"
        limits.watch(work, breaker)
        work.wakeups |= Wakeup.TASKS  # some may have waited for a place

    @property
    def _rate_seconds(self) -> float | None:
        return None if self.rate_seconds is None else float(self.rate_seconds)

    def _build(self, work: Work) -> Breaker:
        machine = work.machines.default_lifecycle.of_kind(Kind.BREAKER)
        return Breaker(
            id=work.world.ids.new("breaker", work.now),
            tenant=self.tenant,
            machine_id=work.machines.number(machine),
            state=machine.initial.name,
            phase=machine.initial.phase.value,
            entered_at=work.now,
            created_at=work.now,
            tool=self.tool,
            failure_threshold=self.failure_threshold,
            success_threshold=self.success_threshold,
            cooldown_seconds=float(self.cooldown_seconds),
            max_concurrent=self.max_concurrent,
            rate_count=self.rate_count,
            rate_seconds=self._rate_seconds,
        )


class ResetBreaker(Recorded[Breaker], frozen=True):
    """Close the circuit of a tool."""

    tool: Annotated[Tool, "The name of the tool."]

    def decide(self, work: Work) -> Callable[[], Breaker]:
        breaker = _find(work, self.tenant, self.tool)
        breakers.reset(work, breaker, self.cause)
        return lambda: breaker


class TripBreaker(Recorded[Breaker], frozen=True):
    """Open the circuit of a tool, as if it had failed too often."""

    tool: Annotated[Tool, "The name of the tool."]
    seconds: Annotated[Seconds | None, "How long it stays open before a probe; null for its cooldown."] = None

    def decide(self, work: Work) -> Callable[[], Breaker]:
        breaker = _find(work, self.tenant, self.tool)
        breakers.trip(work, breaker, self.cause, None if self.seconds is None else float(self.seconds))
        return lambda: breaker


def _find(work: Work, tenant: str, tool: str) -> Breaker:
    work.load_breakers(tenant, [tool])
    breaker = work.breaker(tenant, tool)
    if breaker is None:
        raise NotFound("tool", tool)
    return breaker

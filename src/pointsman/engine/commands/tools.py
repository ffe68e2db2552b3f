"""What can be asked about tools and their breakers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pointsman.engine import breakers, limits
from pointsman.engine.command import Needs, Request
from pointsman.engine.work import Cause, Work
from pointsman.errors import NotFound
from pointsman.kernel.machine import Kind
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Breaker


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareTool:
    answer_type: ClassVar[Any] = Breaker
    tenant: str
    request: Request | None
    tool: str
    failure_threshold: int
    success_threshold: int
    cooldown_seconds: float
    max_concurrent: int | None = None
    rate_count: int | None = None
    rate_seconds: float | None = None

    @property
    def needs(self) -> Needs:
        return Needs()

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
            breaker.cooldown_seconds = self.cooldown_seconds
            self._set_limits(work, breaker)
            work.breakers.change(breaker)
        return lambda: breaker

    def _set_limits(self, work: Work, breaker: Breaker) -> None:
        """What began before there was a rate does not count; what began under another one does."""
        breaker.max_concurrent = self.max_concurrent
        breaker.rate_count = self.rate_count
        breaker.rate_seconds = self.rate_seconds
        if self.rate_count is None:
            breaker.begun = "[]"
        limits.watch(work, breaker)
        work.wakeups |= Wakeup.TASKS  # some may have waited for a place

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
            cooldown_seconds=self.cooldown_seconds,
            max_concurrent=self.max_concurrent,
            rate_count=self.rate_count,
            rate_seconds=self.rate_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetBreaker:
    answer_type: ClassVar[Any] = Breaker
    tenant: str
    request: Request | None
    tool: str
    cause: Cause

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, work: Work) -> Callable[[], Breaker]:
        work.load_breakers(self.tenant, [self.tool])
        breaker = work.breaker(self.tenant, self.tool)
        if breaker is None:
            raise NotFound("tool", self.tool)
        breakers.send(work, breaker, "reset", self.cause)
        return lambda: breaker

"""Tools: how their circuits stand, and their limits."""

from __future__ import annotations

from pointsman.engine.engine import TenantEngine
from pointsman.store.rows import Breaker
from pointsman.views.values import BreakerView, entity_fields


async def list_breakers(engine: TenantEngine) -> list[BreakerView]:
    return [make_breaker_view(breaker) for breaker in await engine.list_breakers()]


def make_breaker_view(breaker: Breaker) -> BreakerView:
    return BreakerView(
        **entity_fields(breaker, breaker.tool),
        failure_count=breaker.failure_count,
        failure_threshold=breaker.failure_threshold,
        cooldown_seconds=breaker.cooldown_seconds,
        retry_at=breaker.retry_at,
        limited_until=breaker.limited_until,
        probe_task_id=breaker.probe_task_id,
        max_concurrent=breaker.max_concurrent,
        rate_count=breaker.rate_count,
        rate_seconds=breaker.rate_seconds,
    )

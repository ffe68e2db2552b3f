"""Rates: how many requests a tenant may send."""

from __future__ import annotations

import pytest
from tests.rooms.engine.harness import ManualClock

from pointsman.errors import CallRefused
from pointsman.server.rate import RateLimit


def admitted(rate: RateLimit, tenant: str = "acme", most: int = 1000) -> int:
    """How many requests come through at once."""
    for count in range(most):
        try:
            rate.take(tenant)
        except CallRefused:
            return count
    return most


def test_a_burst_is_admitted_and_then_so_many_a_second() -> None:
    clock = ManualClock()
    rate = RateLimit(clock, per_second=10, burst=30)
    assert admitted(rate) == 30
    clock.advance(1)
    assert admitted(rate) == 10
    clock.advance(0.5)
    assert admitted(rate) == 5
    clock.advance(3600)
    assert admitted(rate) == 30, "a quiet hour saves up one burst, and no more"


def test_who_waits_as_long_as_told_is_admitted() -> None:
    clock = ManualClock()
    rate = RateLimit(clock, per_second=0.3, burst=2)
    for _ in range(5):
        admitted(rate)
        with pytest.raises(CallRefused, match="requests a second to this server") as refused:
            rate.take("acme")
        assert refused.value.problem == "rate-limited"
        clock.advance(int(refused.value.headers["Retry-After"]))
        rate.take("acme")


def test_tenants_do_not_share_a_rate_and_refusals_cost_nothing() -> None:
    clock = ManualClock()
    rate = RateLimit(clock, per_second=1, burst=1)
    assert [admitted(rate, tenant) for tenant in ("acme", "globex")] == [1, 1]
    for _ in range(100):
        with pytest.raises(CallRefused):
            rate.take("acme")
    clock.advance(1)
    assert admitted(rate) == 1

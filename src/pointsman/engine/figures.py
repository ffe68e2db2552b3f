"""Figures of the whole database, for metrics: a fixed number of queries, none of which reads what has ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from pointsman.store.contract import Reader, read_position
from pointsman.store.rows import Account, Breaker, DutyFailure, QueueFigures, Quota, Tenant, TransitionTally, Use, WorkerFigures

FAILING_FOR = timedelta(minutes=3)
"""A duty that fails is tried again at least every minute: what is older comes from a process that has ended."""


class Figures(Struct, frozen=True, kw_only=True):
    """How things stand in the whole database, of all tenants."""

    now: datetime
    tenants: Sequence[Tenant]
    queues: Sequence[QueueFigures]
    workers: Sequence[WorkerFigures]
    breakers: Sequence[Breaker]
    accounts: Sequence[Account]
    duty_failures: Sequence[DutyFailure]


class TenantFigures(Struct, frozen=True, kw_only=True):
    """What a tenant may have, and has."""

    tenant: Tenant
    quota: Quota
    use: Use
    account: Account


def measure_tenant(reader: Reader, name: str) -> TenantFigures | None:
    found = reader.find_tenant(name)
    return _measure(reader, found) if found else None


def measure_tenants(reader: Reader) -> list[TenantFigures]:
    return [_measure(reader, tenant) for tenant in reader.list_tenants()]


def _measure(reader: Reader, tenant: Tenant) -> TenantFigures:
    return TenantFigures(
        tenant=tenant,
        quota=reader.find_quota(tenant.id) or Quota(tenant=tenant.id),
        use=reader.measure_use(tenant.id),
        account=reader.find_account(tenant.id) or Account(tenant=tenant.id),
    )


def take_figures(reader: Reader) -> Figures:
    now = reader.now()
    return Figures(
        now=now,
        tenants=reader.list_tenants(),
        queues=reader.measure_queues(),
        workers=reader.measure_workers(),
        breakers=reader.list_all_breakers(),
        accounts=reader.list_accounts(),
        duty_failures=reader.list_duty_failures(now - FAILING_FOR),
    )


def tally_transitions(reader: Reader, after: int, limit: int) -> tuple[int, list[TransitionTally]]:
    """Positions are not quite dense, so a page may have fewer moves than positions."""
    end = min(after + limit, read_position(reader.last_position()))
    return (end, reader.tally_transitions(after, end)) if end > after else (after, [])

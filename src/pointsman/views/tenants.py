"""Tenants: what each may have and has, unfinished and spent."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from msgspec import Struct

from pointsman.engine.figures import TenantFigures


class TenantView(Struct, frozen=True, kw_only=True):
    """A tenant, its quotas and its budget, and what it uses of them. Null is no limit."""

    id: str
    created_at: datetime
    max_runs: int | None
    max_tasks: int | None
    max_bytes: int | None
    budget_usd: Decimal | None
    unfinished_runs: int
    unfinished_tasks: int
    payload_bytes: int
    """Of unfinished runs and tasks."""
    spent_usd: Decimal


def make_tenant_view(figures: TenantFigures) -> TenantView:
    return TenantView(
        id=figures.tenant.id,
        created_at=figures.tenant.created_at,
        max_runs=figures.quota.max_runs,
        max_tasks=figures.quota.max_tasks,
        max_bytes=figures.quota.max_bytes,
        budget_usd=figures.account.budget_usd,
        unfinished_runs=figures.use.runs,
        unfinished_tasks=figures.use.tasks,
        payload_bytes=figures.use.payload_bytes,
        spent_usd=figures.account.spent_usd,
    )

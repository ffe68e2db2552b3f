"""Quotas: how much unfinished work a tenant may have at once, checked where work is added.

    lock the quota ──▶ count what is unfinished ──▶ does more fit? ──▶ add it, in the same transaction

Whoever adds work for a tenant with a quota waits for all others who do, so that they never add too much together.
"""

from __future__ import annotations

from collections.abc import Collection

from pointsman.errors import QuotaExceeded
from pointsman.store.contract import Transaction
from pointsman.store.rows import Quota, Use

NOUNS = {"max_runs": "unfinished runs", "max_tasks": "unfinished tasks", "max_bytes": "bytes of payloads in unfinished runs"}


class Quotas:
    """The quotas that one transaction has locked, and what their tenants use."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._locked: dict[str, Quota] = {}
        self._used: dict[str, Use] = {}

    def lock(self, tenants: Collection[str]) -> None:
        """Before anything else is locked. While no tenant has a quota, this does nothing."""
        if tenants and self._transaction.has_quotas:
            self._locked = {quota.tenant: quota for quota in self._transaction.lock_quotas(sorted(tenants))}

    def limits(self, tenant: str) -> bool:
        return tenant in self._locked

    def admit(self, tenant: str, more: Use) -> None:
        """Count what is about to be added, or refuse it. What ends in this transaction still counts."""
        quota = self._locked[tenant]
        if tenant not in self._used:
            self._used[tenant] = self._transaction.measure_use(tenant)
        used = self._used[tenant]
        asked = (
            ("max_runs", quota.max_runs, used.runs, more.runs),
            ("max_tasks", quota.max_tasks, used.tasks, more.tasks),
            ("max_bytes", quota.max_bytes, used.payload_bytes, more.payload_bytes),
        )
        for name, limit, before, wanted in asked:
            if limit is not None and wanted and before + wanted > limit:
                raise QuotaExceeded(tenant, name, NOUNS[name], limit=limit, used=before, wanted=wanted)
        self._used[tenant] = Use(
            runs=used.runs + more.runs,
            tasks=used.tasks + more.tasks,
            payload_bytes=used.payload_bytes + more.payload_bytes,
        )

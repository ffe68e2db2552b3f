"""Operations on tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from pointsman.engine import budgets
from pointsman.engine.checks import MAX_TOKENS
from pointsman.engine.fields import Amount, CountFromZero, whole
from pointsman.engine.operation import Recorded
from pointsman.engine.quotas import NOUNS
from pointsman.engine.work import Work
from pointsman.errors import AlreadyExists
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Account, Notice, Quota, Tenant

Bytes = Annotated[int, whole(0, MAX_TOKENS)]


class AddTenant(Recorded[Tenant], frozen=True):
    """Add the tenant for which this is asked. A tenant that is not added is stored with its first run, worker or tool."""

    def decide(self, work: Work) -> Callable[[], Tenant]:
        if found := work.transaction.find_tenant(self.tenant):
            raise AlreadyExists("tenant", self.tenant, f"It has existed since {found.created_at:%Y-%m-%d %H:%M} UTC.")
        work.ensure_tenant(self.tenant)
        work.notices.append(_note(work, self.tenant, "added", self.cause.sign("The tenant was added.")))
        added = Tenant(id=self.tenant, created_at=work.now)
        return lambda: added


class SetTenantBudget(Recorded[Account], frozen=True):
    """Set what all runs of the tenant together may spend. If it changes, a notice keeps who did it, and why."""

    budget_usd: Annotated[Amount | None, "What all runs of the tenant may spend; null for no limit."]

    def decide(self, work: Work) -> Callable[[], Account]:
        account = work.accounts.get(self.tenant)
        if account.budget_usd != self.budget_usd:
            self._set(work, account)
        return lambda: account

    def _set(self, work: Work, account: Account) -> None:
        before = budgets.show_limit(account.budget_usd)
        work.ensure_tenant(self.tenant)
        work.accounts.set_budget(self.tenant, self.budget_usd)
        change = f"The budget of the tenant is {budgets.show_limit(self.budget_usd)}. It was {before}."
        work.notices.append(_note(work, self.tenant, "budget", self.cause.sign(change)))
        work.wakeups |= Wakeup.TASKS


class SetQuotas(Recorded[Quota], frozen=True):
    """Set how much unfinished work the tenant may have at once. If that changes, a notice keeps who did it, and why."""

    shares_transaction: ClassVar[bool] = False

    max_runs: Annotated[CountFromZero | None, "How many unfinished runs; null for no limit."] = None
    max_tasks: Annotated[CountFromZero | None, "How many unfinished tasks of these; null for no limit."] = None
    max_bytes: Annotated[Bytes | None, "How many bytes the payloads of these may have; null for no limit."] = None

    def decide(self, work: Work) -> Callable[[], Quota]:
        quota = Quota(tenant=self.tenant, max_runs=self.max_runs, max_tasks=self.max_tasks, max_bytes=self.max_bytes)
        if quota != (work.transaction.find_quota(self.tenant) or Quota(tenant=self.tenant)):
            work.ensure_tenant(self.tenant)
            if quota == Quota(tenant=self.tenant):
                work.transaction.drop_quota(self.tenant)
            else:
                work.transaction.save_quota(quota)
            change = f"The tenant may have {_describe(quota)}."
            work.notices.append(_note(work, self.tenant, "quotas", self.cause.sign(change)))
        return lambda: quota


def _describe(quota: Quota) -> str:
    set_ = [f"{limit:,} {noun}" for name, noun in NOUNS.items() if (limit := getattr(quota, name)) is not None]
    return " and ".join(set_) or "any number of unfinished runs and tasks"


def _note(work: Work, tenant: str, subject: str, message: str) -> Notice:
    return Notice(tenant=tenant, kind="tenant", entity_id=tenant, run_id=None, subject=subject, message=message, at=work.now)

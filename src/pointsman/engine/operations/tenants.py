"""Operations on tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pointsman.engine import budgets
from pointsman.engine.fields import Amount
from pointsman.engine.operation import Recorded
from pointsman.engine.work import Work
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Account, Notice


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
        work.notices.append(
            Notice(
                tenant=self.tenant,
                kind="tenant",
                entity_id=self.tenant,
                run_id=None,
                subject="budget",
                message=self.cause.sign(change),
                at=work.now,
            )
        )
        work.wakeups |= Wakeup.TASKS

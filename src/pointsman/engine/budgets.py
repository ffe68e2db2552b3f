"""Budgets: what a task, its run and its tenant may spend, what tasks have reserved, and what they have cost."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pointsman.engine.work import Work
from pointsman.store.contract import Wakeup
from pointsman.store.rows import ZERO_USD, Account, Run, Task


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt has used since its last report."""

    cost_usd: Decimal = ZERO_USD
    tokens_in: int = 0
    tokens_out: int = 0
    is_estimated: bool = False
    """The cost is an estimate."""

    def __bool__(self) -> bool:
        return bool(self.cost_usd or self.tokens_in or self.tokens_out)


NO_USAGE = Usage()


def claim_room(run: Run, task: Task) -> Decimal | None:
    """The amount to reserve for an attempt of this task; None if the budget cannot cover it now."""
    if is_used_up(task):
        return None
    if run.budget_usd is None or task.budget_usd is None:
        return ZERO_USD if not is_spent(run) else None
    wanted = max(task.budget_usd - task.cost_usd, ZERO_USD)
    return wanted if run.spent_usd + run.reserved_usd + wanted <= run.budget_usd else None


def find_left(work: Work, task: Task) -> Decimal | None:
    """What an attempt may spend until one of the budgets that it counts towards is spent; None without any."""
    run, account = work.runs.rows[task.run_id], work.accounts.get(task.tenant)
    budgets = ((task.budget_usd, task.cost_usd), (run.budget_usd, run.spent_usd), (account.budget_usd, account.spent_usd))
    left = [max(budget - spent, ZERO_USD) for budget, spent in budgets if budget is not None]
    return min(left, default=None)


def is_used_up(task: Task) -> bool:
    """Earlier attempts have spent the whole budget of the task."""
    return task.budget_usd is not None and bool(task.cost_usd) and task.cost_usd >= task.budget_usd


def is_spent(run: Run) -> bool:
    """The whole budget is spent, whatever is reserved."""
    return run.budget_usd is not None and run.spent_usd >= run.budget_usd


def can_never_fit(run: Run, task: Task) -> bool:
    """Not even if every reservation were returned."""
    if is_used_up(task):
        return True
    if run.budget_usd is None:
        return False
    wanted = max(task.budget_usd - task.cost_usd, ZERO_USD) if task.budget_usd is not None else ZERO_USD
    return is_spent(run) or run.spent_usd + wanted > run.budget_usd


def reserve(work: Work, run: Run, task: Task, amount: Decimal) -> None:
    if amount:
        task.reserved_usd = amount
        run.promised_usd += amount
        cover(run)
        work.runs.change(run)


def spend(work: Work, task: Task, usage: Usage) -> None:
    """Count what a running attempt reports; its reservation shrinks by the cost."""
    if usage:
        _book(work, task, usage, reserved=max(task.reserved_usd - usage.cost_usd, ZERO_USD))
        work.tasks.change(task)


def settle(work: Work, task: Task, usage: Usage = NO_USAGE) -> None:
    """Count what an attempt has used at last, and return its reservation."""
    if usage or task.reserved_usd:
        _book(work, task, usage, reserved=ZERO_USD)


def explain_want(run: Run, task: Task) -> str:
    """Why the budget can never cover a task."""
    if is_used_up(task):
        assert task.budget_usd is not None
        return f"the task has spent {show(task.cost_usd)} USD of its budget of {show(task.budget_usd)} USD"
    assert run.budget_usd is not None
    spent = f"{show(run.spent_usd)} of {show(run.budget_usd)} USD are spent"
    wanted = "" if task.budget_usd is None else f", and it may need {show(max(task.budget_usd - task.cost_usd, ZERO_USD))} USD"
    return f"the budget of the run cannot cover the task: {spent}{wanted}"


def explain_overspending(task: Task, run: Run, account: Account, more: Decimal = ZERO_USD) -> str | None:
    """Which budget is exceeded if so much more is spent, that of the task, of its run or of its tenant; None if none is."""
    sums = (("task", task.cost_usd, task.budget_usd), ("run", run.spent_usd, run.budget_usd))
    for who, spent, budget in (*sums, ("tenant", account.spent_usd, account.budget_usd)):
        if budget is not None and spent + more > budget:
            return f"the {who} has spent {show(spent + more)} USD of its budget of {show(budget)} USD"
    return None


def is_closed(account: Account) -> bool:
    """The tenant has spent its whole budget: none of its tasks starts."""
    return account.budget_usd is not None and account.spent_usd >= account.budget_usd


def explain_closed(account: Account) -> str:
    assert account.budget_usd is not None
    return f"the budget of the tenant is spent: {show(account.spent_usd)} of {show(account.budget_usd)} USD"


def show(amount: Decimal) -> str:
    """Without trailing zeros: databases keep six places."""
    return f"{amount.normalize():f}"


def show_limit(amount: Decimal | None) -> str:
    return "unlimited" if amount is None else f"{show(amount)} USD"


def _book(work: Work, task: Task, usage: Usage, *, reserved: Decimal) -> None:
    run = work.runs.rows[task.run_id]
    task.cost_usd += usage.cost_usd
    run.spent_usd += usage.cost_usd
    if usage:
        _count_use(work, task, run, usage)
    if reserved < task.reserved_usd or (usage.cost_usd and run.budget_usd is not None):
        work.wakeups |= Wakeup.TASKS  # the budget may cover another task now, or never again, and then a claim ends it
    run.promised_usd += reserved - task.reserved_usd
    task.reserved_usd = reserved
    cover(run)
    work.runs.change(run)


def _count_use(work: Work, task: Task, run: Run, usage: Usage) -> None:
    account = work.accounts.get(task.tenant)
    added = work.accounts.add(task.tenant)
    account.spent_usd += usage.cost_usd
    added.spent_usd += usage.cost_usd
    for row in (task, run, account, added):
        row.tokens_in += usage.tokens_in
        row.tokens_out += usage.tokens_out
        row.cost_is_estimated |= usage.is_estimated


def cover(run: Run) -> None:
    """Reserve what was promised to tasks, or as much of it as is left of the budget."""
    left = run.promised_usd if run.budget_usd is None else max(run.budget_usd - run.spent_usd, ZERO_USD)
    run.reserved_usd = min(run.promised_usd, left)

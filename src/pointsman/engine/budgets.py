"""Budgets: what a run may spend, what its tasks have reserved, and what they have cost."""

from __future__ import annotations

from decimal import Decimal

from pointsman.engine.work import Work
from pointsman.store.contract import Wakeup
from pointsman.store.rows import ZERO_USD, Run, Task


def claim_room(run: Run, task: Task) -> Decimal | None:
    """The amount to reserve for an attempt of this task; None if the budget cannot cover it now."""
    if is_used_up(task):
        return None
    if run.budget_usd is None or task.budget_usd is None:
        return ZERO_USD if not is_spent(run) else None
    wanted = max(task.budget_usd - task.cost_usd, ZERO_USD)
    return wanted if run.spent_usd + run.reserved_usd + wanted <= run.budget_usd else None


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


def spend(work: Work, task: Task, cost: Decimal) -> None:
    """Count a cost reported by a running attempt; its reservation shrinks by the same amount."""
    if cost:
        task.cost_usd += cost
        _book(work, task, cost, reserved=max(task.reserved_usd - cost, ZERO_USD))
        work.tasks.change(task)


def settle(work: Work, task: Task, cost: Decimal) -> None:
    """Count the last cost of an attempt, and return its reservation."""
    if cost or task.reserved_usd:
        task.cost_usd += cost
        _book(work, task, cost, reserved=ZERO_USD)


def explain_want(run: Run, task: Task) -> str:
    """Why the budget can never cover a task."""
    if is_used_up(task):
        assert task.budget_usd is not None
        return f"the task has spent {show(task.cost_usd)} USD of its budget of {show(task.budget_usd)} USD"
    assert run.budget_usd is not None
    spent = f"{show(run.spent_usd)} of {show(run.budget_usd)} USD are spent"
    wanted = "" if task.budget_usd is None else f", and it may need {show(max(task.budget_usd - task.cost_usd, ZERO_USD))} USD"
    return f"the budget of the run cannot cover the task: {spent}{wanted}"


def explain_overspending(work: Work, task: Task) -> str | None:
    """Which budget is exceeded, that of the task or of its run; None if neither is."""
    run = work.runs.rows[task.run_id]
    if task.budget_usd is not None and task.cost_usd > task.budget_usd:
        return f"the task has spent {show(task.cost_usd)} USD of its budget of {show(task.budget_usd)} USD"
    if run.budget_usd is not None and run.spent_usd > run.budget_usd:
        return f"the run has spent {show(run.spent_usd)} USD of its budget of {show(run.budget_usd)} USD"
    return None


def show(amount: Decimal) -> str:
    """Without trailing zeros: databases keep six places."""
    return f"{amount.normalize():f}"


def show_limit(amount: Decimal | None) -> str:
    return "unlimited" if amount is None else f"{show(amount)} USD"


def _book(work: Work, task: Task, cost: Decimal, *, reserved: Decimal) -> None:
    run = work.runs.rows[task.run_id]
    run.spent_usd += cost
    if reserved < task.reserved_usd or (cost and run.budget_usd is not None):
        work.wakeups |= Wakeup.TASKS  # the budget may cover another task now, or never again, and then a claim ends it
    run.promised_usd += reserved - task.reserved_usd
    task.reserved_usd = reserved
    cover(run)
    work.runs.change(run)


def cover(run: Run) -> None:
    """Reserve what was promised to tasks, or as much of it as is left of the budget."""
    left = run.promised_usd if run.budget_usd is None else max(run.budget_usd - run.spent_usd, ZERO_USD)
    run.reserved_usd = min(run.promised_usd, left)

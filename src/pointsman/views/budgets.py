"""Budgets: what a run may spend, what its tasks have spent, and what they have reserved."""

from __future__ import annotations

from pointsman.engine.engine import TenantEngine
from pointsman.store.rows import ZERO_USD, Task
from pointsman.views.values import BudgetView, TaskBudget


async def view_budget(engine: TenantEngine, run_id: str) -> BudgetView:
    run = await engine.get_run(run_id)
    tasks = await engine.list_tasks_in_brief(run_id)
    left = None if run.budget_usd is None else max(run.budget_usd - run.spent_usd - run.reserved_usd, ZERO_USD)
    return BudgetView(
        run_id=run.id,
        name=run.name,
        state=run.state,
        budget_usd=run.budget_usd,
        spent_usd=run.spent_usd,
        reserved_usd=run.reserved_usd,
        left_usd=left,
        tasks=tuple(_make_task_budget(task) for task in tasks if task.budget_usd is not None or task.cost_usd),
    )


def _make_task_budget(task: Task) -> TaskBudget:
    return TaskBudget(
        task_id=task.id,
        name=task.name,
        budget_usd=task.budget_usd,
        spent_usd=task.cost_usd,
        reserved_usd=task.reserved_usd,
    )

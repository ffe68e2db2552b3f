"""Budgets: what a run and its tenant may spend, what they have spent, and what tasks have reserved."""

from __future__ import annotations

from pointsman.engine.engine import TenantEngine
from pointsman.store.rows import ZERO_USD, Account, Task
from pointsman.views.values import BudgetView, TaskBudget, TenantBudget


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
        cost_is_estimated=run.cost_is_estimated,
        tokens_in=run.tokens_in,
        tokens_out=run.tokens_out,
        tasks=tuple(_make_task_budget(task) for task in tasks if _is_shown(task)),
        tenant=_make_tenant_budget(await engine.get_account()),
    )


def _is_shown(task: Task) -> bool:
    return task.budget_usd is not None or bool(task.cost_usd or task.tokens_in or task.tokens_out)


def _make_tenant_budget(account: Account) -> TenantBudget:
    return TenantBudget(
        tenant=account.tenant,
        budget_usd=account.budget_usd,
        spent_usd=account.spent_usd,
        left_usd=None if account.budget_usd is None else max(account.budget_usd - account.spent_usd, ZERO_USD),
        cost_is_estimated=account.cost_is_estimated,
        tokens_in=account.tokens_in,
        tokens_out=account.tokens_out,
    )


def _make_task_budget(task: Task) -> TaskBudget:
    return TaskBudget(
        task_id=task.id,
        name=task.name,
        budget_usd=task.budget_usd,
        spent_usd=task.cost_usd,
        reserved_usd=task.reserved_usd,
        cost_is_estimated=task.cost_is_estimated,
        tokens_in=task.tokens_in,
        tokens_out=task.tokens_out,
    )

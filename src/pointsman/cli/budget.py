"""`pointsman budget`: what a run may spend, and has spent; give it more or less."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal, InvalidOperation

import click

from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.output import LONGEST_NAME, cut, echo, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, decision_options, run_argument
from pointsman.engine.budgets import show_limit
from pointsman.views.budgets import view_budget
from pointsman.views.find import find_run, short
from pointsman.views.steps import stopped_in_session
from pointsman.views.values import BudgetView, show_usage, show_usd

NO_LIMIT = "none"


def read_amount(text: str) -> Decimal | str:
    """An amount of money, or `none`."""
    if text == NO_LIMIT:
        return text
    with suppress(InvalidOperation):
        if (amount := Decimal(text)).is_finite():
            return amount
    raise click.BadParameter(f"'{text}' is not an amount. Write for example 20 or 2.50, or `{NO_LIMIT}` for no limit.")


@click.group(cls=Collection, default="show")
def command() -> None:
    """Show what a run may spend and has spent, or give it more or less. Amounts are in USD.

    Without a command, this shows the budget of the latest run.

    \b
    Examples:
      pointsman budget
      pointsman budget set latest 20 --reason "the model got dearer"
    """


@command.command()
@click.argument("run", metavar="[RUN]", required=False)
@project_options
def show(run: str | None, *, asked: Asked) -> None:
    """Show the budget of RUN (by default the latest run), and what its tasks have spent and reserved.

    \b
    Examples:
      pointsman budget show
      pointsman budget show 9ef05a58 --json
    """
    in_project(asked, lambda project: show_budget(project, run, as_json=asked.as_json))


@command.command("set")
@run_argument
@click.argument("amount", metavar="USD|none", type=read_amount)
@decision_options
@project_options
def set_(run: str, amount: Decimal | str, *, decision: Decision, asked: Asked) -> None:
    """Set what all tasks of RUN together may spend, or `none` for no limit.

    It cannot be less than what is spent or reserved while tasks run. A run that has failed for want of money goes on with
    `pointsman retry`. Who has set it, and why, is in `pointsman history RUN`.

    \b
    Examples:
      pointsman budget set latest 20
      pointsman budget set 9ef05a58 none --as ada --reason "it must be done today"
    """
    limit = None if isinstance(amount, str) else amount
    in_project(asked, lambda project: set_budget(project, run, limit, decision, as_json=asked.as_json))


async def show_budget(project: Project, name: str | None, *, as_json: bool) -> None:
    view = await view_budget(project.engine, (await find_run(project.engine, name)).id)
    if as_json:
        echo(show_json(view))
        return
    echo(f"{click.style(view.name, bold=True)} ({short(view.run_id)})  {describe(view)}")
    if view.tasks:
        echo()
        rows = [
            (
                cut(task.name, LONGEST_NAME),
                show_usd(task.budget_usd) if task.budget_usd is not None else "",
                f"{show_usd(task.spent_usd)}{' (estimated)' if task.cost_is_estimated else ''}",
                show_usd(task.reserved_usd) if task.reserved_usd else "",
            )
            for task in view.tasks
        ]
        show_table(("task", "budget", "spent", "reserved"), rows)
    if view.tenant.budget_usd is not None:
        spent = f"{show_usd(view.tenant.spent_usd)} of {show_usd(view.tenant.budget_usd)} USD spent"
        echo(f"\nAll runs of the tenant {view.tenant.tenant}: {spent}.")


async def set_budget(project: Project, name: str, amount: Decimal | None, decision: Decision, *, as_json: bool) -> None:
    before = await find_run(project.engine, name)
    await project.engine.for_tenant(actor=decision.actor).set_budget(
        before.id, amount, reason=decision.reason, request_id=decision.request_id
    )
    view = await view_budget(project.engine, before.id)
    if as_json:
        echo(show_json(view))
        return
    echo(f"{view.name} ({short(view.run_id)}): {show_limit(before.budget_usd)} → {show_limit(view.budget_usd)}")
    echo(f"{describe(view)}.", err=True)
    if (await project.view_run(before.id)).find_step("retry"):
        stopped = [task.name for task in await project.engine.list_tasks_in_brief(before.id) if stopped_in_session(task)]
        commands = [project.hint("resume", short(before.id), name) for name in stopped]
        for command in commands or [project.hint("retry", short(before.id))]:
            echo(f"To continue: {command}", err=True)


def describe(view: BudgetView) -> str:
    spent = f"{show_usd(view.spent_usd)} USD spent"
    reserved = f", {show_usd(view.reserved_usd)} reserved" if view.reserved_usd else ""
    used = show_usage(view.spent_usd, view.tokens_in, view.tokens_out, is_estimated=view.cost_is_estimated)
    used = f" ({used})" if used else ""
    if view.budget_usd is None or view.left_usd is None:
        return f"{spent}{used}{reserved}, no limit"
    return f"{spent} of {show_usd(view.budget_usd)}{used}{reserved}, {show_usd(view.left_usd)} left"

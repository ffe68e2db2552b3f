"""`pointsman tenant`: who owns the runs of a database."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import click
from msgspec.structs import replace

from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.output import LONGEST_NAME, complete, cut, echo, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, decision_options
from pointsman.errors import NotFound, NothingYet, Problem, RequestInvalid, suggest
from pointsman.settings.readers import NO_LIMIT
from pointsman.views.tenants import TenantView, make_tenant_view
from pointsman.views.values import show_usd


@click.group(cls=Collection, default="list")
def command() -> None:
    """List the tenants of a database, add one, or set its quotas. A tenant sees only its own runs, workers, tools and API keys.

    Commands on this computer work for the tenant `default`; programs that use an API key work for the tenant of the key.
    Without a command, this lists the tenants.

    \b
    Examples:
      pointsman tenant
      pointsman tenant add acme --reason "a new customer"
      pointsman tenant set acme --max-runs 100
    """


@command.command("list")
@project_options
def list_(*, asked: Asked) -> None:
    """List the tenants with their unfinished work, what they have spent, and the quotas and the budget that limit that.

    \b
    Examples:
      pointsman tenant list
      pointsman tenant list --json
    """
    try:
        in_project(asked, lambda project: show_tenants(project, as_json=asked.as_json))
    except NothingYet:
        _show_none(asked.options, as_json=asked.as_json)


@command.command()
@click.argument("name", metavar="NAME")
@decision_options
@project_options
def add(name: str, *, decision: Decision, asked: Asked) -> None:
    """Add the tenant NAME. It gets access with an API key: `pointsman key create --tenant NAME`.

    \b
    Examples:
      pointsman tenant add acme
      pointsman tenant add acme --as ada --reason "a new customer"
    """
    in_project(asked, lambda project: add_tenant(project, name, decision, as_json=asked.as_json), creates=True)


def read_limit(text: str) -> int | str:
    """A number, or `none`."""
    if text == NO_LIMIT:
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise click.BadParameter(f"'{text}' is not a number. Write for example 100, or `{NO_LIMIT}` for no limit.")


@command.command("set")
@click.argument("name", metavar="NAME")
@click.option("--max-runs", metavar="N|none", type=read_limit, help="How many unfinished runs it may have at once.")
@click.option("--max-tasks", metavar="N|none", type=read_limit, help="How many unfinished tasks these may have.")
@click.option("--max-bytes", metavar="N|none", type=read_limit, help="How many bytes the payloads of these may have.")
@decision_options
@project_options
def set_(name: str, *, decision: Decision, asked: Asked, **limits: int | str | None) -> None:
    """Set how much unfinished work the tenant NAME may have at once. Other limits stay as they are.

    A run or a task that does not fit is refused, wherever it is submitted. What is there already goes on. What the tenant may
    spend is in the settings: `[tenants.NAME] budget_usd`.

    \b
    Examples:
      pointsman tenant set acme --max-runs 100 --max-tasks 10000
      pointsman tenant set acme --max-runs none --reason "paid for more"
    """
    wanted = {each: None if limit == NO_LIMIT else limit for each, limit in limits.items() if limit is not None}
    if not wanted:
        raise click.UsageError("Say what to set: --max-runs, --max-tasks or --max-bytes.")
    in_project(asked, lambda project: set_quotas(project, name, wanted, decision, as_json=asked.as_json))


async def show_tenants(project: Project, *, as_json: bool) -> None:
    tenants = [make_tenant_view(each) for each in await project.engine.measure_tenants()]
    if as_json:
        echo(show_json(tenants))
    elif not tenants:
        _show_none(project.options, as_json=as_json)
    else:
        show_table(("tenant", "since", "runs", "tasks", "payloads", "spent"), [_make_row(each) for each in tenants])


def _make_row(tenant: TenantView) -> tuple[str, ...]:
    limit = None if tenant.budget_usd is None else show_usd(tenant.budget_usd)
    return (
        cut(tenant.id, LONGEST_NAME),
        f"{tenant.created_at.astimezone():%Y-%m-%d %H:%M:%S}",
        _show_use(f"{tenant.unfinished_runs:,}", tenant.max_runs),
        _show_use(f"{tenant.unfinished_tasks:,}", tenant.max_tasks),
        _show_use(f"{tenant.payload_bytes:,}", tenant.max_bytes) + " bytes",
        f"{show_usd(tenant.spent_usd)}{f' of {limit}' if limit else ''} USD",
    )


def _show_use(used: str, limit: int | None) -> str:
    return used if limit is None else f"{used} of {limit:,}"


async def set_quotas(
    project: Project, name: str, wanted: Mapping[str, int | str | None], decision: Decision, *, as_json: bool
) -> None:
    engine = project.engine.for_tenant(name, actor=decision.actor)
    try:
        before = (await engine.measure_tenant()).quota
    except NotFound as unknown:
        known = suggest(name, [each.id for each in await project.engine.list_tenants()])
        add = project.hint("tenant", "add", name)
        raise RequestInvalid([Problem("", f"There is no tenant '{name}'. {known} To add it: {add}")]) from unknown
    quota = replace(before, **wanted)
    await engine.set_quotas(
        max_runs=quota.max_runs,
        max_tasks=quota.max_tasks,
        max_bytes=quota.max_bytes,
        reason=decision.reason,
        request_id=decision.request_id,
    )
    tenant = make_tenant_view(await engine.measure_tenant())
    if as_json:
        echo(show_json(tenant))
        return
    for each in wanted:
        limit = getattr(tenant, each)
        echo(f"{name}: {each.replace('_', '-')} is {NO_LIMIT if limit is None else f'{limit:,}'}")


async def add_tenant(project: Project, name: str, decision: Decision, *, as_json: bool) -> None:
    engine = project.engine.for_tenant(name, actor=decision.actor)
    tenant = await engine.add_tenant(reason=decision.reason, request_id=decision.request_id)
    if as_json:
        echo(show_json(tenant))
        return
    echo(f"added {tenant.id}")
    words = ("key", "create", "--tenant", name, "--name", "first", "--scope", "read", "--scope", "submit")
    if project.is_remote:
        echo(f"To give it access, where the database of the server is: {shlex.join(('pointsman', *words))}", err=True)
    else:
        echo(f"To give it access: {project.hint(*words)}", err=True)


def _show_none(options: str, *, as_json: bool) -> None:
    hint = "There are no tenants. Add one: pointsman tenant add NAME"
    echo("[]") if as_json else echo(complete(hint, options), err=True)

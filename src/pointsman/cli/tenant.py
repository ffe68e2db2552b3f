"""`pointsman tenant`: who owns the runs of a database."""

from __future__ import annotations

import click

from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.output import LONGEST_NAME, cut, echo, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, decision_options
from pointsman.errors import NothingYet


@click.group(cls=Collection, default="list")
def command() -> None:
    """List the tenants of a database, or add one. A tenant sees only its own runs, workers, tools and API keys.

    Commands on this computer work for the tenant `default`; programs that use an API key work for the tenant of the key.
    Without a command, this lists the tenants.

    \b
    Examples:
      pointsman tenant
      pointsman tenant add acme --reason "a new customer"
    """


@command.command("list")
@project_options
def list_(*, asked: Asked) -> None:
    """List the tenants.

    \b
    Examples:
      pointsman tenant list
      pointsman tenant list --json
    """
    try:
        in_project(asked, lambda project: show_tenants(project, as_json=asked.as_json))
    except NothingYet:
        _show_none(as_json=asked.as_json)


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


async def show_tenants(project: Project, *, as_json: bool) -> None:
    tenants = await project.engine.list_tenants()
    if as_json:
        echo(show_json(tenants))
    elif not tenants:
        _show_none(as_json=as_json)
    else:
        rows = [(cut(each.id, LONGEST_NAME), f"{each.created_at.astimezone():%Y-%m-%d %H:%M:%S}") for each in tenants]
        show_table(("tenant", "since"), rows)


async def add_tenant(project: Project, name: str, decision: Decision, *, as_json: bool) -> None:
    engine = project.engine.for_tenant(name, actor=decision.actor)
    tenant = await engine.add_tenant(reason=decision.reason, request_id=decision.request_id)
    if as_json:
        echo(show_json(tenant))
        return
    echo(f"added {tenant.id}")
    create = project.hint("key", "create", "--tenant", name, "--name", "first", "--scope", "read", "--scope", "submit")
    echo(f"To give it access: {create}", err=True)


def _show_none(*, as_json: bool) -> None:
    echo("[]") if as_json else echo("There are no tenants. Add one: pointsman tenant add NAME", err=True)

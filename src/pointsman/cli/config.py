"""`pointsman config`: every setting, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from decimal import Decimal

import click

from pointsman.cli.group import Commands
from pointsman.cli.output import echo, show_table
from pointsman.cli.project import Asked, project_options
from pointsman.engine.budgets import show_limit
from pointsman.settings import SETTINGS, AgentProfile, NotifyTarget, Settings, ToolProfile, show_host
from pointsman.store.urls import hide_password
from pointsman.views.values import show_usd


@click.group(cls=Commands)
def command() -> None:
    """Show every setting and where it comes from."""


@command.command("show")
@project_options
def show(*, asked: Asked) -> None:
    """Show every setting, its value and where it comes from.

    The first source that has a setting wins: a flag, an environment variable (POINTSMAN_SLOTS), pointsman.toml,
    [tool.pointsman] in pyproject.toml, the default.

    \b
    Examples:
      pointsman config show
      POINTSMAN_SLOTS=8 pointsman config show --json
    """
    settings = asked.settings()
    if asked.as_json:
        echo(json.dumps(describe_settings(settings), indent=2))
        return
    echo(f"project  {click.style(str(settings.directory), bold=True)}\n")
    rows = [(name, shown(getattr(settings, name)), origin(settings, name)) for name in SETTINGS]
    show_table(("setting", "value", "from"), rows)
    for tool in settings.tools.values():
        echo(f"\ntool {click.style(tool.name, bold=True)}  {settings.origins[f'tools.{tool.name}']}")
        show_table(
            ("setting", "value", "from"),
            [(name, shown(value), origin(settings, f"tools.{tool.name}.{name}")) for name, value in list_fields(tool)],
        )
    for agent in settings.agents.values():
        echo(f"\nagent {click.style(agent.name, bold=True)}  {settings.origins[f'agents.{agent.name}']}")
        show_table(("setting", "value"), [(name, shown(value)) for name, value in list_fields(agent) if value])
    for target in settings.notify.values():
        echo(f"\nnotify {click.style(target.name, bold=True)}  {settings.origins[f'notify.{target.name}']}")
        show_table(("setting", "value"), [(name, shown(value)) for name, value in target_fields(target)])
    if settings.prices:
        echo()
        show_table(("price in USD per million tokens", "input", "output", "cached input", "from"), list(_list_prices(settings)))
    if settings.tenant_budgets:
        echo()
        rows = [(each, show_limit(usd), origin(settings, f"tenants.{each}")) for each, usd in settings.tenant_budgets.items()]
        show_table(("tenant", "budget", "from"), rows)


def _list_prices(settings: Settings) -> Iterator[tuple[str, ...]]:
    for model, price in settings.prices.items():
        cached = "" if price.cached_input is None else show_usd(price.cached_input)
        yield model, show_usd(price.input), show_usd(price.output), cached, origin(settings, f"prices.{model}")


def describe_settings(settings: Settings) -> dict[str, object]:
    """The JSON form, which programs rely on."""
    return {
        "directory": str(settings.directory),
        "settings": {name: {"value": hide(getattr(settings, name)), "from": settings.origins[name]} for name in SETTINGS},
        "tools": {
            tool.name: {
                name: {"value": value, "from": settings.origins.get(f"tools.{tool.name}.{name}", "default")}
                for name, value in list_fields(tool)
            }
            for tool in settings.tools.values()
        },
        "agents": {
            agent.name: {**dict(list_fields(agent)), "from": settings.origins[f"agents.{agent.name}"]}
            for agent in settings.agents.values()
        },
        "notify": {
            target.name: {**dict(target_fields(target)), "from": settings.origins[f"notify.{target.name}"]}
            for target in settings.notify.values()
        },
        "prices": {
            model: {**_as_texts(asdict(price)), "from": settings.origins[f"prices.{model}"]}
            for model, price in settings.prices.items()
        },
        "tenants": {
            tenant: {**_as_texts({"budget_usd": budget_usd}), "from": settings.origins[f"tenants.{tenant}"]}
            for tenant, budget_usd in settings.tenant_budgets.items()
        },
    }


def _as_texts(amounts: Mapping[str, Decimal | None]) -> dict[str, str | None]:
    return {name: None if amount is None else str(amount) for name, amount in amounts.items()}


def list_fields(profile: ToolProfile | AgentProfile) -> list[tuple[str, object]]:
    return [(field.name, getattr(profile, field.name)) for field in fields(profile) if field.name != "name"]


def target_fields(target: NotifyTarget) -> list[tuple[str, object]]:
    """Without the path of a webhook, which may be a secret."""
    known = [(field.name, getattr(target, field.name)) for field in fields(target) if field.name != "name"]
    return [(name, show_host(value) if name == "webhook" and value else value) for name, value in known]


def origin(settings: Settings, name: str) -> str:
    where = settings.origins.get(name, "default")
    return click.style(where, dim=True) if where == "default" else click.style(where, fg="green")


def shown(value: object) -> str:
    if isinstance(value, tuple | dict | bool):
        return json.dumps(value) if value else "false" if value is False else "-"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(hide(value))


def hide(value: object) -> object:
    return hide_password(value) if isinstance(value, str) and "://" in value else value

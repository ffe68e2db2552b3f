"""Settings: from flags, the environment and files, each with its origin.

    flags > POINTSMAN_* > pointsman.toml > [tool.pointsman] of pyproject.toml > defaults

The first source that has a setting wins; a tool is taken as a whole from the first file that defines it. All findings are
reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pointsman.errors import Finding, SettingsInvalid
from pointsman.prices import Price
from pointsman.settings.keys import PRICE, SETTINGS, TENANT
from pointsman.settings.profiles import FOLDER, AgentProfile, NotifyTarget, Settings, ToolProfile
from pointsman.settings.readers import NO_LIMIT
from pointsman.settings.sources import Source, find_project, read_environment, read_files, read_flags
from pointsman.settings.tables import read_agent, read_tables, read_target, read_tool


def load_settings(directory: Path, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Load the settings of the project around `directory`; a flag that is None or empty was not given."""
    project, pyproject = find_project(directory)
    sources = [read_flags(flags), read_environment(environ), *read_files(project, pyproject)]
    findings = [finding for source in sources for finding in source.findings]
    values: dict[str, Any] = {}
    origins = {"directory": "default", **dict.fromkeys(SETTINGS, "default")}
    tools: dict[str, ToolProfile] = {}
    agents: dict[str, AgentProfile] = {}
    notify: dict[str, NotifyTarget] = {}
    prices: dict[str, Price] = {}
    budgets: dict[str, Decimal | None] = {}
    for source in reversed(sources):  # the first one wins
        for name, setting in SETTINGS.items():
            if name not in source.values:
                continue
            value = setting.read(source.values[name])
            if isinstance(value, Finding):
                findings.append(replace(value, place=source.place((name,)), message=f"{name}: {value.message}"))
            else:
                values[name] = _resolve_store(value, source.base) if name == "store" else value
                origins[name] = source.origin(name)
        findings += _choose_database(source, values, origins)
        for name, raw in source.values.get("tools", {}).items():
            tools[name], tool_origins, invalid = read_tool(name, raw, source)
            findings += invalid
            origins = {
                key: value for key, value in origins.items() if not f"{key}.".startswith(f"tools.{name}.")
            } | tool_origins
        for name, raw in source.values.get("agents", {}).items():
            agents[name], invalid = read_agent(name, raw, source)
            findings += invalid
            origins[f"agents.{name}"] = source.origin("agents", name)
        for index, raw in enumerate(source.values.get("notify", ())):
            target, invalid = read_target(index, raw, source)
            findings += invalid
            if target is not None:
                notify[target.name] = target
                origins[f"notify.{target.name}"] = source.origin("notify", str(index))
        for model, fields in read_tables("prices", source, PRICE, findings, needed=("input", "output")):
            prices[model] = Price(**fields)
            origins[f"prices.{model}"] = source.origin("prices", model)
        for tenant, fields in read_tables("tenants", source, TENANT, findings, needed=("budget_usd",)):
            budgets[tenant] = None if fields["budget_usd"] == NO_LIMIT else fields["budget_usd"]
            origins[f"tenants.{tenant}"] = source.origin("tenants", tenant)
    if findings:
        raise SettingsInvalid(findings)
    values.setdefault("store", f"sqlite:///{project / FOLDER / 'state.db'}")
    values.setdefault("slots", _count_processors())
    return Settings(
        directory=project,
        tools=tools,
        agents=agents,
        notify=notify,
        prices=prices,
        tenant_budgets=budgets,
        origins=origins,
        **values,
    )


def _choose_database(source: Source, values: dict[str, Any], origins: dict[str, str]) -> Iterator[Finding]:
    """A database hides the server of a source behind it, and no source may name both."""
    if "store" in source.values and "server" in source.values:
        message = f"It names a server, and {source.origin('store')} a database."
        yield Finding("store", source.place(("server",)), message, "Name the server, or the database itself; not both.")
    elif "store" in source.values and values.pop("server", None):
        origins["server"] = "default"


def _resolve_store(url: Any, directory: Path) -> str:
    """Make the path of a SQLite file absolute, so that it does not depend on the working directory."""
    path = url.removeprefix("sqlite:///")
    return f"sqlite:///{directory / path}" if path not in (url, ":memory:") else url


def _count_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

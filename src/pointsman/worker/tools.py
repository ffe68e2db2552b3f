"""Declaring tools: the breaker and the limits that all tasks of a tool share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.engine.engine import TenantEngine
from pointsman.settings import ToolProfile


async def declare_tool(engine: TenantEngine, tool: ToolProfile) -> None:
    """Declare a tool as the settings describe it."""
    await engine.declare_tool(
        tool.name,
        failure_threshold=tool.failure_threshold,
        success_threshold=tool.success_threshold,
        cooldown_seconds=tool.cooldown_seconds,
        max_concurrent=tool.max_concurrent,
        rate_count=tool.rate_count,
        rate_seconds=tool.rate_seconds,
    )


async def declare_missing(engine: TenantEngine, names: Iterable[str], tools: Mapping[str, ToolProfile]) -> None:
    """Declare those of these tools that nobody has declared. An agent needs no settings, so its tool may be one of them."""
    if missing := set(names) & tools.keys():
        missing -= {breaker.tool for breaker in await engine.list_breakers()}
    for name in sorted(missing):
        await declare_tool(engine, tools[name])

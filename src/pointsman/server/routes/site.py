"""Routes about the server itself."""

from __future__ import annotations

import asyncio
from typing import Any

from pointsman.errors import NotFound, StoreUnavailable
from pointsman.server.answers import Status
from pointsman.server.problems import BY_NAME, PREFIX
from pointsman.server.route import Call, Route

PATIENCE_SECONDS = 2.0


async def show_health(call: Call) -> Status:  # noqa: ARG001
    """The process answers."""
    return Status("ok")


async def show_readiness(call: Call) -> Status:
    """The database answers, too."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await call.engine.now()
    except TimeoutError:
        raise StoreUnavailable(f"no answer within {PATIENCE_SECONDS:g} seconds") from None
    return Status("ready")


async def describe_problem(call: Call) -> dict[str, Any]:
    name = call.path["name"]
    if name not in BY_NAME:
        raise NotFound("problem", name)
    problem = BY_NAME[name]
    return {"type": problem.uri, "title": problem.title, "status": problem.status, "meaning": problem.meaning}


ROUTES = (
    Route(
        "GET",
        "/healthz",
        "Whether the process answers.",
        show_health,
        Status,
        tag="server",
        is_open=True,
    ),
    Route(
        "GET",
        "/readyz",
        "Whether the database answers, too.",
        show_readiness,
        Status,
        tag="server",
        is_open=True,
    ),
    Route(
        "GET",
        f"{PREFIX}{{name}}",
        "What a type of problem means, and what to do.",
        describe_problem,
        dict[str, Any],
        tag="server",
        is_open=True,
        problems=("not-found",),
    ),
)

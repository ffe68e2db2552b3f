"""The routes, one file for each group. Together they are `ALL`."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.server.route import Route
from pointsman.server.routes import (
    jobs_000,
    live,
    metrics,
    runs_003,
    site,
    tasks_004,
    v1_artifacts,
    v1_engine,
    v1_lifecycles,
    v1_logs,
    v1_notifications,
    v1_operators,
    v1_runs,
    v1_tenants,
    v1_workers,
)

ALL: tuple[Route, ...] = (
    *site.ROUTES,
    *metrics.ROUTES,
    *jobs_000.ROUTES,
    *runs_003.ROUTES,
    *tasks_004.ROUTES,
    *v1_runs.ROUTES,
    *v1_logs.ROUTES,
    *v1_artifacts.ROUTES,
    *v1_operators.ROUTES,
    *v1_notifications.ROUTES,
    *v1_tenants.ROUTES,
    *v1_lifecycles.ROUTES,
    *v1_workers.ROUTES,
    *live.ROUTES,
    *v1_engine.ROUTES,
)
NOT_SERVED: Mapping[str, str] = {
    "give_up_tasks": "It follows from a heartbeat.",
    "report_attempts": "It is several reports at once, for the workers of Pointsman: they use /api/v1/engine.",
}
"""Operations that have no route of their own, each with the reason."""

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
    v1_logs,
    v1_operators,
    v1_runs,
    v1_tenants,
)

ALL: tuple[Route, ...] = (
    *site.ROUTES,
    *metrics.ROUTES,
    *jobs_000.ROUTES,
    *runs_003.ROUTES,
    *tasks_004.ROUTES,
    *v1_runs.ROUTES,
    *v1_logs.ROUTES,
    *v1_operators.ROUTES,
    *v1_tenants.ROUTES,
    *live.ROUTES,
)
NOT_SERVED: Mapping[str, str] = {
    "send_heartbeat": "Only workers with access to the database send heartbeats.",
    "claim_tasks": "Only workers with access to the database claim tasks.",
    "give_up_tasks": "It follows from a heartbeat.",
    "report_attempt": "Only workers with access to the database report.",
    "report_attempts": "Only workers with access to the database report.",
}
"""Operations that no route performs, each with the reason."""

"""The routes, one file for each group. Together they are `ALL`."""

from __future__ import annotations

from pointsman.server.route import Route
from pointsman.server.routes import runs_003, site

ALL: tuple[Route, ...] = (*site.ROUTES, *runs_003.ROUTES)

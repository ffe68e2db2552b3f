"""Metrics, for Prometheus."""

from __future__ import annotations

from starlette.responses import Response

from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.server.message import HEADERS
from pointsman.server.route import Call, Route

MEDIA_TYPE = "text/plain"
VERSION = "0.0.4"


async def show_metrics(call: Call) -> Response:
    """A key of the default tenant belongs to the operator, who sees all tenants; others see only their own figures."""
    tenant = None if call.holder.tenant == DEFAULT_TENANT else call.holder.tenant
    text = await call.site.metrics.show(tenant)
    return Response(text, headers={**HEADERS, "Content-Type": f"{MEDIA_TYPE}; version={VERSION}; charset=utf-8"})


ROUTES = (
    Route(
        "GET",
        "/metrics",
        "Metrics in the text format of Prometheus: of all tenants and of this process for the tenant `default`, "
        "and of its own tenant for any other key.",
        show_metrics,
        str,
        tag="server",
        media_type=MEDIA_TYPE,
    ),
)

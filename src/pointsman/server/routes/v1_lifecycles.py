"""/api/v1: lifecycles of the users of a server. Their machines are shown with all others."""

from __future__ import annotations

from msgspec import Struct

from pointsman.engine.operations.lifecycles import AddLifecycle
from pointsman.server.route import Call, Route
from pointsman.server.routes.v1_tenants import check_operator


class LifecycleAnswer(Struct, frozen=True, kw_only=True):
    """A lifecycle that runs and workers may follow."""

    name: str
    version: int
    machines: tuple[str, ...]
    """Those that its file declares."""


async def add_lifecycle(call: Call) -> LifecycleAnswer:
    requested = call.read(AddLifecycle)
    check_operator(call)
    rows = await call.engine.perform_valid(requested)
    return LifecycleAnswer(name=rows[0].lifecycle, version=rows[0].version, machines=tuple(row.name for row in rows))


ROUTES = (
    Route(
        "POST",
        "/api/v1/lifecycles",
        "Add a lifecycle, which flows may name from now on; a changed one needs a new version. Only for keys of the tenant "
        "`default`; all tenants see its machines.",
        add_lifecycle,
        LifecycleAnswer,
        scope="admin",
        reads=AddLifecycle,
        status=201,
        operation=AddLifecycle,
        problems=("flow-invalid", "operator-only", "unknown-name"),
    ),
)

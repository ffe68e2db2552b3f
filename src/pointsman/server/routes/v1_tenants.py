"""/api/v1: tenants, their quotas and their budgets. The tenant `default` is the operator: its keys are about all tenants."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import Name, Text
from pointsman.engine.figures import TenantFigures
from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.engine.operations.tenants import AddTenant, SetQuotas, SetTenantBudget
from pointsman.engine.pages import TenantPlace
from pointsman.errors import CallRefused, NotFound
from pointsman.server.pages import Page, cut, paged
from pointsman.server.route import Call, Route
from pointsman.store.rows import Account, Quota, Tenant
from pointsman.views.tenants import TenantView, make_tenant_view


class TenantPage(Page[TenantView], frozen=True, kw_only=True):
    """Tenants by name, with their quotas and what they use."""


class NewTenant(Struct, frozen=True, kw_only=True):
    """A tenant to be added."""

    name: Annotated[Name, "Its name."]
    reason: Annotated[Text | None, "Why; kept in a notice."] = None
    request_id: Annotated[Name | None, "An idempotency key, like the header Idempotency-Key."] = None


async def find_tenants(call: Call) -> list[TenantFigures]:
    """All for the operator, its own for any other key."""
    return await call.site.engine.measure_tenants() if is_operator(call) else [await call.engine.measure_tenant()]


async def list_tenants(call: Call) -> TenantPage:
    found = await find_tenants(call)
    tenants, behind = cut(call.query, TenantPlace, [make_tenant_view(each) for each in found])
    return TenantPage(items=tuple(tenants), next=behind)


async def add_tenant(call: Call) -> Tenant:
    asked = call.read_as(NewTenant)
    check_operator(call)
    operation = AddTenant(reason=asked.reason, request_id=call.request_id)
    return await call.engine.of_tenant(asked.name).perform(operation)


async def set_quotas(call: Call) -> Quota:
    requested = call.read(SetQuotas)
    return await (await _find_engine(call)).perform(requested)


async def set_tenant_budget(call: Call) -> Account:
    requested = call.read(SetTenantBudget)
    return await (await _find_engine(call)).perform(requested)


async def _find_engine(call: Call) -> TenantEngine:
    """For the tenant that the path names: only the operator limits it, not even the tenant itself."""
    name = call.path["tenant"]
    if name == call.engine.tenant:
        check_operator(call)
    elif not is_operator(call):
        raise NotFound("tenant", name)
    engine = call.engine.of_tenant(name)
    await engine.measure_tenant()  # or it would be added
    return engine


def is_operator(call: Call) -> bool:
    return call.engine.tenant == DEFAULT_TENANT


def check_operator(call: Call) -> None:
    if not is_operator(call):
        message = f"The operator does this, with a key of the tenant {DEFAULT_TENANT}; yours is of {call.engine.tenant}."
        raise CallRefused("operator-only", message)


ROUTES = (
    Route(
        "GET",
        "/api/v1/tenants",
        "List tenants, their quotas, and what they use: all for a key of the tenant `default`, its own for any other key.",
        list_tenants,
        TenantPage,
        query=paged(),
        problems=("not-found",),
    ),
    Route(
        "POST",
        "/api/v1/tenants",
        "Add a tenant. Only for keys of the tenant `default`.",
        add_tenant,
        Tenant,
        scope="admin",
        reads=NewTenant,
        status=201,
        operation=AddTenant,
        problems=("already-exists", "operator-only"),
    ),
    Route(
        "PUT",
        "/api/v1/tenants/{tenant}/quotas",
        "Set how much unfinished work a tenant may have at once; what is left out gets no limit. Only for keys of the tenant "
        "`default`.",
        set_quotas,
        Quota,
        scope="admin",
        reads=SetQuotas,
        operation=SetQuotas,
        problems=("not-found", "operator-only"),
    ),
    Route(
        "PUT",
        "/api/v1/tenants/{tenant}/budget",
        "Set what all runs of a tenant together may spend. Only for keys of the tenant `default`.",
        set_tenant_budget,
        Account,
        scope="admin",
        reads=SetTenantBudget,
        operation=SetTenantBudget,
        problems=("not-found", "operator-only"),
    ),
)

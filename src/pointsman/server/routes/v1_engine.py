"""/api/v1/engine: the engine for Pointsman itself, on other machines: its command line and its workers.

A call is a method of the engine by its name, with its arguments as JSON (`engine/calls.py`). Its answers are rows, which differ
between versions, so the other side has to have the same calls. All other clients have the rest of /api/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from msgspec import Struct

from pointsman import __version__
from pointsman.engine.calls import GET_HOLDER, TENANT_HEADER, VERSION_HEADER, Holder, Query, list_queries, understands
from pointsman.engine.engine import TenantEngine
from pointsman.engine.operation import Operation, name_of
from pointsman.engine.operations import OPERATIONS
from pointsman.engine.operations.attempts import ReportAttempts
from pointsman.engine.operations.keys import Scope
from pointsman.engine.operations.lifecycles import AddLifecycle
from pointsman.engine.operations.runs import AddTasks
from pointsman.engine.operations.tenants import AddTenant, SetQuotas, SetTenantBudget
from pointsman.engine.operations.tools import DeclareTool
from pointsman.engine.operations.workers import GiveUpTasks, SignalWorker
from pointsman.engine.workers import check_key
from pointsman.errors import CallRefused, NotFound, PointsmanError
from pointsman.server import problems
from pointsman.server.auth import check_scope
from pointsman.server.route import Act, Call, Route
from pointsman.server.routes import tasks_004, v1_lifecycles, v1_notifications, v1_operators, v1_runs, v1_tenants, v1_workers
from pointsman.server.wakeups import WakeupAnswer, WakeupQuery

BY_WORKERS = tuple(name_of(each) for each in (AddTasks, DeclareTool, SignalWorker))
"""What workers do as well: they add subtasks, declare their tools and leave."""
LEAVING = ("fail", "drain", "terminate")
"""Signals that a worker sends about itself. Others are for operators."""
SCOPES_OF: Mapping[str, tuple[Scope, ...]] = {
    **{
        name_of(each.operation): (each.scope, each.or_scope) if each.or_scope else (each.scope,)
        for routes in (tasks_004, v1_runs, v1_operators, v1_notifications, v1_tenants, v1_lifecycles, v1_workers)
        for each in routes.ROUTES
        if each.operation
    },
    **{name_of(each): ("worker",) for each in (GiveUpTasks, ReportAttempts)},
}
"""An operation needs one of the scopes of its own route in /api/v1. Those that have none are for workers."""
SCOPES_OF_QUERIES: Mapping[str, Scope] = {"list_keys": "admin", "list_all_keys": "admin", "diagnose": "admin"}
"""Of queries that show more than runs, or change something. All others need `read`."""
QUERIES_OF_EVERYBODY = ("now",)
"""What a key of any scope may ask, because every command does."""
QUERIES_OF_WORKERS = (
    *("list_definitions", "list_breakers", "get_account", "explain_overspending", "get_worker"),
    *("get_run", "get_task", "list_tasks_in_brief", "list_results", "list_attempts", "list_history"),
)
"""What workers ask on behalf of the attempts that they hold. They need not see anything else."""
OF_TENANTS = (AddTenant, SetQuotas, SetTenantBudget)
BY_OPERATORS = (*OF_TENANTS, AddLifecycle)
"""What only operators do."""
OF_ANY_TENANT = (*map(name_of, OF_TENANTS), "measure_tenant")
"""What operators do for other tenants as well, as nobody does with anything else."""


async def _list_diagnoses(call: Call) -> object:
    return (await v1_operators.diagnose(call)).diagnoses


async def _list_nothing(_: Call) -> object:
    return ()


async def _list_keys(call: Call) -> object:
    return await call.engine.list_keys()


async def _list_tenants(call: Call) -> object:
    return [each.tenant for each in await v1_tenants.find_tenants(call)]


OF_ONE_TENANT: Mapping[str, Act] = {
    "diagnose": _list_diagnoses,
    "list_all_keys": _list_keys,
    "list_duty_failures": _list_nothing,
    "list_tenants": _list_tenants,
    "measure_tenants": v1_tenants.find_tenants,
}
"""What a key is told instead of what is about all tenants."""
REFUSED: Mapping[str, str] = {
    "audit": "An audit reads what belongs to all tenants, however long that takes",
    "repair": "A repair may change what belongs to all tenants",
}
"""Why a key may not do what is about all tenants."""


class Arguments(Struct, frozen=True):
    """The arguments of a call, by name."""


async def answer_call(call: Call) -> object:
    """Perform an operation, or answer a query."""
    name = call.path["method"]
    if name != GET_HOLDER and name not in OPERATIONS and name not in list_queries():
        raise NotFound("method", name)
    check_version(call.headers)
    if operation := OPERATIONS.get(name):
        return await _perform(call, name, operation)
    if query := list_queries().get(name):
        return await _ask(call, query)
    holder = call.holder
    return Holder(tenant=holder.tenant, actor=holder.actor, has_key=bool(holder.key_id), scopes=tuple(sorted(holder.scopes)))


def check_version(headers: Mapping[str, str]) -> None:
    given = headers.get(VERSION_HEADER)
    if given is None or not understands(given):
        version = "" if given is None else given.partition(" ")[0][:20]
        build = " of another build" if version == __version__ else ""
        theirs = f"Pointsman {version!a}{build}" if version else "another program"
        message = f"The server is Pointsman {__version__}, and this is {theirs}. Install the same version on both sides."
        raise CallRefused("version-mismatch", message)


async def _perform(call: Call, name: str, operation: type[Operation[Any]]) -> object:
    engine = _choose_engine(call, name)
    _check(call, *SCOPES_OF[name], *(("worker",) if name in BY_WORKERS else ()))
    if operation in BY_OPERATORS:
        v1_tenants.check_operator(call)
    asked = call.read(operation)
    v1_runs.check_decision(call, asked)
    if isinstance(asked, SignalWorker) and "operate" not in call.holder.scopes:
        await _check_leaving(call, asked)
    answer = await engine.perform(asked)
    return [_describe_refusal(call, each) for each in answer] if operation is ReportAttempts else answer


async def _check_leaving(call: Call, asked: SignalWorker) -> None:
    """A worker says of itself that it leaves; all else is for operators."""
    if asked.signal not in LEAVING:
        _check(call, "operate")
    check_key(await call.engine.get_worker(asked.worker_id), call.holder.key_id)


def _describe_refusal(call: Call, error: PointsmanError | None) -> dict[str, Any] | None:
    return None if error is None else problems.explain(error, call.site.new_reference()).body


async def _ask(call: Call, query: Query) -> object:
    others: tuple[Scope, ...] = ("worker",) if query.name in QUERIES_OF_WORKERS else ()
    if query.name not in QUERIES_OF_EVERYBODY:
        _check(call, SCOPES_OF_QUERIES.get(query.name, "read"), *others)
    if query.is_of_all and call.holder.key_id and query.name in OF_ONE_TENANT:
        return await OF_ONE_TENANT[query.name](call)
    if query.is_of_all:
        _check_whole(call, query)
    engine = call.site.engine if query.is_of_all else _choose_engine(call, query.name)
    arguments = query.read(call.body if call.request_id is None else {**call.body, "request_id": call.request_id})
    return await attrgetter(query.name)(engine)(**arguments)


def _check(call: Call, *scopes: Scope) -> None:
    check_scope(call.holder.actor, call.holder.scopes, *scopes)


def _choose_engine(call: Call, name: str) -> TenantEngine:
    """For the tenant of who asks, or for the one that an operator names."""
    tenant = call.headers.get(TENANT_HEADER, call.engine.tenant)
    if tenant == call.engine.tenant:
        return call.engine
    v1_tenants.check_operator(call)
    if name not in OF_ANY_TENANT:
        message = f"Over a server, operators add tenants and set their limits. For anything else, use an API key of '{tenant}'"
        raise _refuse(f"{message}, or")
    return call.engine.of_tenant(tenant)


def _check_whole(call: Call, query: Query) -> None:
    if call.holder.key_id:
        raise _refuse(f"{REFUSED.get(query.name, 'This command is about all tenants')}, and an API key is about one. Use")


def _refuse(why: str) -> CallRefused:
    return CallRefused("forbidden", f"{why} the database itself: --store", members={"scope": "none"})


async def wait_for_wakeups(call: Call) -> WakeupAnswer:
    asked: WakeupQuery = call.query
    return await call.site.wakeups.wait(asked, call.holder.tenant)


ROUTES = (
    Route(
        "POST",
        "/api/v1/engine/{method}",
        "Call a method of the engine, as the command line and the workers of Pointsman do. Only with the same calls.",
        answer_call,
        Any,
        reads=Arguments,
        problems=("not-found", "version-mismatch"),
        names_call=True,
    ),
    Route(
        "GET",
        "/api/v1/wakeups",
        "Wait until tasks may be claimed, workers are told something, or transitions were made.",
        wait_for_wakeups,
        WakeupAnswer,
        or_scope="worker",
        query=WakeupQuery,
        waits=True,
    ),
)

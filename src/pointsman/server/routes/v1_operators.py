"""/api/v1: what operators look after: workers, breakers, machines, the inbox, events, notices, budgets, the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct
from starlette.responses import Response

from pointsman.engine.doctor import Diagnosis
from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import Name, RunId, Text, whole
from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.engine.operations.keys import CreateKey, IssuedKey, RevokeKey, RotateKey
from pointsman.engine.operations.tenants import SetTenantBudget
from pointsman.engine.operations.tools import DeclareTool, ResetBreaker, TripBreaker
from pointsman.engine.operations.workers import RegisterWorker, SignalWorker
from pointsman.errors import NotFound
from pointsman.kernel.draw import draw
from pointsman.kernel.machine import Machine
from pointsman.server.answers import (
    BreakerAnswer,
    TransitionAnswer,
    WorkerAnswer,
    WorkerDetail,
    make_breaker,
    make_transition,
    make_worker,
    make_worker_detail,
)
from pointsman.server.message import HEADERS
from pointsman.server.route import Call, Route, performs
from pointsman.store.rows import Account, ApiKey, DutyFailure, Worker
from pointsman.views.diagnoses import advise
from pointsman.views.inbox import InboxItem, list_inbox
from pointsman.views.keys import KeyView, make_key_view
from pointsman.views.machines import MachineView, make_machine_view
from pointsman.views.notices import list_notices
from pointsman.views.sources import load_fleet
from pointsman.views.values import HeldTask, NoticeView

SVG = "image/svg+xml"
SVG_HEADERS = {**HEADERS, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
"""Opened as a page, a picture runs nothing and loads nothing."""


class WorkerList(Struct, frozen=True, kw_only=True):
    """Workers, those that have left included."""

    items: tuple[WorkerDetail, ...]


class BreakerList(Struct, frozen=True, kw_only=True):
    """Tools with their circuits."""

    items: tuple[BreakerAnswer, ...]


class MachineSummary(Struct, frozen=True, kw_only=True):
    """A machine in a list."""

    name: str
    lifecycle: str
    kind: str
    version: int


class MachineList(Struct, frozen=True, kw_only=True):
    """The last version of every machine."""

    items: tuple[MachineSummary, ...]


class Inbox(Struct, frozen=True, kw_only=True):
    """Everything that waits for a person, oldest first."""

    items: tuple[InboxItem, ...]


class EventPage(Struct, frozen=True, kw_only=True):
    """Transitions in the order of the event stream."""

    items: tuple[TransitionAnswer, ...]
    next: str | None
    """Give it as `after` to continue here, now or later; null if there was nothing yet."""


class NoticeList(Struct, frozen=True, kw_only=True):
    """What happened without a move, newest first."""

    items: tuple[NoticeView, ...]


class DoctorReport(Struct, frozen=True, kw_only=True):
    """What is stuck or wrong, and background work that fails."""

    diagnoses: tuple[Diagnosis, ...]
    failing_duties: tuple[DutyFailure, ...]


class KeyList(Struct, frozen=True, kw_only=True):
    """API keys, without their secrets, which are not stored."""

    items: tuple[KeyView, ...]


class IssuedKeyAnswer(Struct, frozen=True, kw_only=True):
    """An API key with its text."""

    key: KeyView
    text: str | None
    """Shown once: null where a request is repeated, because the secret is not stored."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which transitions to list."""

    after: Annotated[Text | None, "`next` of the page before; without it, from the beginning."] = None
    limit: Annotated[int, whole(1, 1000), "How many at most."] = 100
    run_id: Annotated[RunId | None, "Only those of this run and its tasks."] = None


class NoticeFilter(Struct, frozen=True, kw_only=True):
    """Which notices to list."""

    about: Annotated[Name | None, "The id of an entity; of a run, its tasks count as well."] = None
    limit: Annotated[int, whole(1, 1000), "How many at most."] = 100


class Drawing(Struct, frozen=True, kw_only=True):
    """How to draw a machine."""

    state: Annotated[Name | None, "Highlight this state, and dim those that cannot be reached from it."] = None


async def list_workers(call: Call) -> WorkerList:
    return WorkerList(items=tuple(await _describe_workers(call, await call.engine.list_workers())))


async def get_worker(call: Call) -> WorkerDetail:
    (found,) = await _describe_workers(call, [await call.engine.get_worker(call.path["worker_id"])])
    return found


async def _describe_workers(call: Call, workers: Sequence[Worker]) -> list[WorkerDetail]:
    engine = call.engine
    fleet = await load_fleet(engine, await engine.now(), call.site.find_dead(), call.site.find_bound())
    held: dict[str | None, list[HeldTask]] = {}
    for task in fleet.held:
        held.setdefault(task.attempt_worker_id, []).append(HeldTask(task.run_id, task.id, task.name))
    return [
        await make_worker_detail(engine, each, alive=fleet.is_alive(each.id), holds=tuple(held.get(each.id, ())))
        for each in workers
    ]


async def list_breakers(call: Call) -> BreakerList:
    return BreakerList(items=tuple([await make_breaker(call.engine, each) for each in await call.engine.list_breakers()]))


async def get_breaker(call: Call) -> BreakerAnswer:
    return await make_breaker(call.engine, await call.engine.get_breaker(call.path["tool"]))


async def list_machines(call: Call) -> MachineList:
    return MachineList(
        items=tuple(
            MachineSummary(name=each.name, lifecycle=each.lifecycle, kind=each.kind.value, version=each.version)
            for each in await call.engine.list_machines()
        )
    )


async def get_machine(call: Call) -> MachineView:
    return make_machine_view(await _find_machine(call.engine, call.path["name"]))


async def draw_machine(call: Call) -> Response:
    machine = await _find_machine(call.engine, call.path["name"])
    drawing: Drawing = call.query
    return Response(draw(machine, "svg", state=drawing.state), headers=SVG_HEADERS, media_type=SVG)


async def _find_machine(engine: TenantEngine, name: str) -> Machine:
    found = next((each for each in await engine.list_machines() if each.name == name), None)
    if found is None:
        raise NotFound("machine", name)
    return found


async def show_inbox(call: Call) -> Inbox:
    return Inbox(items=tuple(await list_inbox(call.engine, await call.engine.now(), call.site.find_dead())))


async def list_events(call: Call) -> EventPage:
    asked: EventFilter = call.query
    found = await call.engine.list_transitions(after=asked.after, limit=asked.limit, run_id=asked.run_id)
    return EventPage(items=tuple(make_transition(move) for move in found), next=found[-1].position if found else asked.after)


async def show_notices(call: Call) -> NoticeList:
    asked: NoticeFilter = call.query
    return NoticeList(items=tuple(await list_notices(call.engine, about=asked.about, limit=asked.limit)))


async def get_account(call: Call) -> Account:
    return await call.engine.get_account()


async def diagnose(call: Call) -> DoctorReport:
    """The doctor looks at the whole database; a tenant sees what is its own."""
    found = [each for each in await call.site.engine.diagnose() if await _is_own(call.engine, each)]
    failing = await call.site.engine.list_duty_failures() if call.engine.tenant == DEFAULT_TENANT else []
    advised = await advise(call.engine, found, await call.engine.now())
    return DoctorReport(diagnoses=tuple(advised), failing_duties=tuple(failing))


async def _is_own(engine: TenantEngine, diagnosis: Diagnosis) -> bool:
    try:
        return bool(await engine.list_history(diagnosis.entity_id))
    except NotFound:
        return False


async def list_keys(call: Call) -> KeyList:
    now = await call.engine.now()
    return KeyList(items=tuple(make_key_view(key, now) for key in await call.engine.list_keys()))


async def make_key(_: TenantEngine, key: ApiKey) -> KeyView:
    return make_key_view(key, max(key.created_at, key.revoked_at or key.created_at))


async def make_issued(engine: TenantEngine, issued: IssuedKey) -> IssuedKeyAnswer:
    return IssuedKeyAnswer(key=await make_key(engine, issued.key), text=issued.text)


async def make_account(_: TenantEngine, account: Account) -> Any:
    return account


OF_TOOL = ("not-found", "transition-refused")
ROUTES = (
    Route("GET", "/api/v1/workers", "List workers, and what they hold.", list_workers, WorkerList),
    performs(
        "POST",
        "/api/v1/workers",
        "Register a worker.",
        RegisterWorker,
        make_worker,
        WorkerAnswer,
        scope="worker",
        status=201,
        location="/api/v1/workers/{id}",
        problems=("not-found", "unknown-name"),
    ),
    Route(
        "GET",
        "/api/v1/workers/{worker_id}",
        "Show a worker, and what it holds.",
        get_worker,
        WorkerDetail,
        problems=("not-found",),
    ),
    performs(
        "POST",
        "/api/v1/workers/{worker_id}/signals",
        "Send a worker what a person decides: pause, resume, drain, terminate …",
        SignalWorker,
        make_worker,
        WorkerAnswer,
        scope="operate",
        problems=("not-found", "transition-refused"),
    ),
    Route("GET", "/api/v1/breakers", "List tools, their circuits and their limits.", list_breakers, BreakerList),
    Route("GET", "/api/v1/breakers/{tool}", "Show a tool.", get_breaker, BreakerAnswer, problems=("not-found",)),
    performs(
        "PUT",
        "/api/v1/breakers/{tool}",
        "Declare a tool with its circuit breaker and its limits, or change them.",
        DeclareTool,
        make_breaker,
        BreakerAnswer,
        scope="operate",
    ),
    performs(
        "POST",
        "/api/v1/breakers/{tool}/reset",
        "Close the circuit of a tool.",
        ResetBreaker,
        make_breaker,
        BreakerAnswer,
        scope="operate",
        problems=OF_TOOL,
    ),
    performs(
        "POST",
        "/api/v1/breakers/{tool}/trip",
        "Open the circuit of a tool, as if it had failed too often.",
        TripBreaker,
        make_breaker,
        BreakerAnswer,
        scope="operate",
        problems=OF_TOOL,
    ),
    Route("GET", "/api/v1/machines", "List the machines of all lifecycles.", list_machines, MachineList),
    Route(
        "GET",
        "/api/v1/machines/{name}",
        "Show the states and transitions of a machine.",
        get_machine,
        MachineView,
        problems=("not-found",),
    ),
    Route(
        "GET",
        "/api/v1/machines/{name}/svg",
        "Draw a machine.",
        draw_machine,
        str,
        query=Drawing,
        problems=("not-found", "unknown-name"),
        media_type=SVG,
    ),
    Route("GET", "/api/v1/inbox", "List everything that waits for a person.", show_inbox, Inbox, named="list_inbox"),
    Route(
        "GET",
        "/api/v1/events",
        "List transitions in the order of the event stream: everything once, behind a position.",
        list_events,
        EventPage,
        query=EventFilter,
        problems=("not-found",),
    ),
    Route(
        "GET",
        "/api/v1/notices",
        "List what happened without a move.",
        show_notices,
        NoticeList,
        query=NoticeFilter,
        named="list_notices",
        problems=("not-found",),
    ),
    Route("GET", "/api/v1/account", "Show what the tenant may spend, and has spent.", get_account, Account),
    performs(
        "PUT",
        "/api/v1/account/budget",
        "Set what all runs of the tenant together may spend.",
        SetTenantBudget,
        make_account,
        Account,
        scope="admin",
    ),
    Route(
        "GET",
        "/api/v1/doctor",
        "Show what is stuck or wrong, and what would help.",
        diagnose,
        DoctorReport,
        scope="admin",
    ),
    Route("GET", "/api/v1/keys", "List the API keys of the tenant.", list_keys, KeyList, scope="admin"),
    performs(
        "POST",
        "/api/v1/keys",
        "Create an API key. The answer has its text, once.",
        CreateKey,
        make_issued,
        IssuedKeyAnswer,
        scope="admin",
        status=201,
        problems=("not-found", "already-exists"),
    ),
    performs(
        "POST",
        "/api/v1/keys/{key_id}/rotate",
        "Give an API key a new secret. The answer has its text, once.",
        RotateKey,
        make_issued,
        IssuedKeyAnswer,
        scope="admin",
        problems=("not-found", "key-ended"),
    ),
    performs(
        "POST",
        "/api/v1/keys/{key_id}/revoke",
        "Revoke an API key for good.",
        RevokeKey,
        make_key,
        KeyView,
        scope="admin",
        problems=("not-found",),
    ),
)

"""/api/v1: what operators look after: workers, breakers, machines, the inbox, events, notices, budgets, the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct
from starlette.responses import Response

from pointsman.engine.doctor import Diagnosis
from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import Name, RunId
from pointsman.engine.filters import NoticeFilter, WorkerFilter
from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.engine.operations.keys import CreateKey, IssuedKey, RevokeKey, RotateKey
from pointsman.engine.operations.tools import DeclareTool, ResetBreaker, TripBreaker
from pointsman.engine.operations.workers import RegisterWorker, SignalWorker
from pointsman.engine.pages import BreakerPlace, InboxPlace, KeyPlace, MachinePlace
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
from pointsman.server.pages import Page, cut, paged, read_page
from pointsman.server.route import Call, Route, performs
from pointsman.store.rows import Account, ApiKey, DutyFailure, Worker
from pointsman.views.diagnoses import advise
from pointsman.views.inbox import InboxItem, list_inbox
from pointsman.views.keys import KeyView, make_key_view
from pointsman.views.machines import MachineView, make_machine_view
from pointsman.views.notices import view_notices
from pointsman.views.sources import is_alive
from pointsman.views.values import HeldTask, NoticeView, PersonKind

SVG = "image/svg+xml"
SVG_HEADERS = {**HEADERS, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
"""Opened as a page, a picture runs nothing and loads nothing."""


class WorkerPage(Page[WorkerDetail], frozen=True, kw_only=True):
    """Workers, those that have left included."""


class BreakerPage(Page[BreakerAnswer], frozen=True, kw_only=True):
    """Tools with their circuits."""


class MachineSummary(Struct, frozen=True, kw_only=True):
    """A machine in a list."""

    name: str
    lifecycle: str
    kind: str
    version: int


class MachinePage(Page[MachineSummary], frozen=True, kw_only=True):
    """The last version of every machine."""


class InboxPage(Page[InboxItem], frozen=True, kw_only=True):
    """Everything that waits for a person, oldest first."""


class EventPage(Struct, frozen=True, kw_only=True):
    """Transitions in the order of the event stream."""

    items: tuple[TransitionAnswer, ...]
    next: str | None
    """Give it as `after` to continue here, now or later; null if there was nothing yet."""


class NoticePage(Page[NoticeView], frozen=True, kw_only=True):
    """What happened without a move, newest first."""


class DoctorReport(Struct, frozen=True, kw_only=True):
    """What is stuck or wrong, and background work that fails."""

    diagnoses: tuple[Diagnosis, ...]
    failing_duties: tuple[DutyFailure, ...]


class KeyPage(Page[KeyView], frozen=True, kw_only=True):
    """API keys, without their secrets, which are not stored."""


class IssuedKeyAnswer(Struct, frozen=True, kw_only=True):
    """An API key with its text."""

    key: KeyView
    text: str | None
    """Shown once: null where a request is repeated, because the secret is not stored."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which transitions to list."""

    run_id: Annotated[RunId | None, "Only those of this run and its tasks."] = None


class InboxFilter(Struct, frozen=True, kw_only=True):
    """What to list of the inbox."""

    kind: Annotated[PersonKind | None, "Only what waits for this."] = None
    run_id: Annotated[RunId | None, "Only tasks of this run."] = None


class Drawing(Struct, frozen=True, kw_only=True):
    """How to draw a machine."""

    state: Annotated[Name | None, "Highlight this state, and dim those that cannot be reached from it."] = None


async def list_workers(call: Call) -> WorkerPage:
    workers, behind = await read_page(call.query, call.engine.list_workers, call.query)
    return WorkerPage(items=tuple(await _describe_workers(call, workers)), next=behind)


async def get_worker(call: Call) -> WorkerDetail:
    (found,) = await _describe_workers(call, [await call.engine.get_worker(call.path["worker_id"])])
    return found


async def _describe_workers(call: Call, workers: Sequence[Worker]) -> list[WorkerDetail]:
    engine, dead = call.engine, call.site.find_dead()
    now = await engine.now()
    held: dict[str | None, list[HeldTask]] = {}
    for task in await engine.list_held_tasks():
        held.setdefault(task.attempt_worker_id, []).append(HeldTask(task.run_id, task.id, task.name))
    return [
        await make_worker_detail(engine, each, alive=is_alive(each, now, dead), holds=tuple(held.get(each.id, ())))
        for each in workers
    ]


async def list_breakers(call: Call) -> BreakerPage:
    breakers, behind = cut(call.query, BreakerPlace, await call.engine.list_breakers())
    return BreakerPage(items=tuple([await make_breaker(call.engine, each) for each in breakers]), next=behind)


async def get_breaker(call: Call) -> BreakerAnswer:
    return await make_breaker(call.engine, await call.engine.get_breaker(call.path["tool"]))


async def list_machines(call: Call) -> MachinePage:
    machines, behind = cut(call.query, MachinePlace, await call.engine.list_machines())
    items = tuple(
        MachineSummary(name=each.name, lifecycle=each.lifecycle, kind=each.kind.value, version=each.version)
        for each in machines
    )
    return MachinePage(items=items, next=behind)


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


async def show_inbox(call: Call) -> InboxPage:
    asked: InboxFilter = call.query
    found = await list_inbox(call.engine, await call.engine.now(), call.site.find_dead(), asked.run_id)
    items, behind = cut(call.query, InboxPlace, [each for each in found if asked.kind in (None, each.waiting.kind)])
    return InboxPage(items=tuple(items), next=behind)


async def list_events(call: Call) -> EventPage:
    asked = call.query
    found = await call.engine.list_transitions(after=asked.after, limit=asked.limit, run_id=asked.run_id)
    return EventPage(items=tuple(make_transition(move) for move in found), next=found[-1].position if found else asked.after)


async def show_notices(call: Call) -> NoticePage:
    notices, behind = await read_page(call.query, call.engine.list_notices, call.query)
    return NoticePage(items=tuple(await view_notices(call.engine, notices)), next=behind)


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


async def list_keys(call: Call) -> KeyPage:
    now = await call.engine.now()
    keys, behind = cut(call.query, KeyPlace, await call.engine.list_keys())
    return KeyPage(items=tuple(make_key_view(key, now) for key in keys), next=behind)


async def make_key(_: TenantEngine, key: ApiKey) -> KeyView:
    return make_key_view(key, max(key.created_at, key.revoked_at or key.created_at))


async def make_issued(engine: TenantEngine, issued: IssuedKey) -> IssuedKeyAnswer:
    return IssuedKeyAnswer(key=await make_key(engine, issued.key), text=issued.text)


OF_TOOL = ("not-found", "transition-refused")
ROUTES = (
    Route(
        "GET",
        "/api/v1/workers",
        "List workers, those that have left included, and what they hold.",
        list_workers,
        WorkerPage,
        query=paged(WorkerFilter),
    ),
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
    Route("GET", "/api/v1/breakers", "List tools, their circuits and their limits.", list_breakers, BreakerPage, query=paged()),
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
    Route("GET", "/api/v1/machines", "List the machines of all lifecycles.", list_machines, MachinePage, query=paged()),
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
    Route(
        "GET",
        "/api/v1/inbox",
        "List everything that waits for a person.",
        show_inbox,
        InboxPage,
        query=paged(InboxFilter),
        named="list_inbox",
    ),
    Route(
        "GET",
        "/api/v1/events",
        "List transitions in the order of the event stream: everything once, behind a position.",
        list_events,
        EventPage,
        query=paged(EventFilter),
        problems=("not-found",),
    ),
    Route(
        "GET",
        "/api/v1/notices",
        "List what happened without a move.",
        show_notices,
        NoticePage,
        query=paged(NoticeFilter),
        named="list_notices",
        problems=("not-found",),
    ),
    Route("GET", "/api/v1/account", "Show what the tenant may spend, and has spent.", get_account, Account),
    Route(
        "GET",
        "/api/v1/doctor",
        "Show what is stuck or wrong, and what would help.",
        diagnose,
        DoctorReport,
        scope="admin",
    ),
    Route("GET", "/api/v1/keys", "List the API keys of the tenant.", list_keys, KeyPage, query=paged(), scope="admin"),
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

"""The methods of an engine, each as a request to a server.

    await engine.get_run("run_1")  ──▶  POST /api/v1/engine/get_run {"run_id": "run_1"}  ──▶  the engine of the server

The command line and the worker use it like an engine on a database. The server performs the duties, keeps the journal and
delivers notifications.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Never, TypeVar, cast
from urllib.parse import quote, urlencode
from uuid import UUID

import msgspec
from msgspec import Struct

from pointsman.artifacts import ArtifactList, TaskArtifacts
from pointsman.client.transport import ACTOR_HEADER, KEY_HEADER, Reply, Transport
from pointsman.engine.calls import AGENT_HEADER, GET_HOLDER, TENANT_HEADER, Holder, Query, bind, find_answer_type, list_queries
from pointsman.engine.duties import Duties
from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.machines import restore
from pointsman.engine.operation import DEFAULT_TENANT, Caller, Operation, name_of, write_operation
from pointsman.engine.operations.attempts import ReportAttempts
from pointsman.engine.operations.workers import ClaimTasks, GiveUpTasks, SendHeartbeat
from pointsman.engine.outbox import Outbox
from pointsman.engine.pages import write_cursor
from pointsman.errors import AuthenticationFailed, CallRefused, EngineClosed, Problem, RequestInvalid, ServerFailed
from pointsman.kernel.machine import Machine
from pointsman.remote.line import Line, decoder_of, read_refusal
from pointsman.store.rows import Entity, MachineRow, Transition
from pointsman.world import World

Answer = TypeVar("Answer")
UNKEYED = (SendHeartbeat, ClaimTasks, GiveUpTasks, ReportAttempts)
"""Operations that are safe to repeat as they are: the epoch of an attempt makes them so."""
READ_BYTES = 4 << 20
READ_ROWS = 1000
"""Of a list that is read as a whole, so many at a time."""
ONLY_WITH_DATABASE = (
    "start",
    "for_request",
    "authenticate",
    "issue_ticket",
    "redeem_ticket",
    "count_claimable",
    "take_figures",
    "tally_transitions",
    "get_lifecycle",
    "watch_all",
    "tend",
)


class LogRead(Struct, frozen=True, kw_only=True):
    """Some bytes of a log."""

    data: bytes
    agent: str | None = None
    """The coding agent whose stream it is."""


class ArtifactsRead(Struct, frozen=True, kw_only=True):
    """A page of the artifacts of a run."""

    items: list[TaskArtifacts]
    next: str | None


class RemoteTenantEngine(TenantEngine):
    """What one tenant can ask of the engine of a server."""

    def __init__(self, line: Line, caller: Caller, holder: Holder, machines: dict[int, Machine | MachineRow]) -> None:
        self._around = self._line = line
        self._caller = caller
        self._holder = holder
        self._machines = machines
        """By number: the machines, and the definitions of those that nobody has needed yet."""

    async def _submit(self, operation: Operation[Answer]) -> Answer:
        """An answer that gets lost is no harm: the request is sent again with its key, and has one effect."""
        kind = type(operation)
        key = operation.request_id or (None if kind in UNKEYED else self._new_key())
        answer: Any = await self.call_server(name_of(kind), write_operation(operation), find_answer_type(kind), key)
        if kind is ReportAttempts:
            answer = [each and read_refusal(each) for each in answer]
        return cast("Answer", answer)

    @property
    def outbox(self) -> Outbox:
        return RemoteOutbox(self)

    async def call_server(self, method: str, arguments: Mapping[str, Any], answers: Any, key: str | None = None) -> Any:
        """Call a method of the engine of the server, in the name of the caller."""
        if self._line.is_closed:
            raise EngineClosed("The engine is closed, and answers no more.")
        given = {
            KEY_HEADER: key,
            ACTOR_HEADER: None if self._holder.has_key else self._caller.actor,
            TENANT_HEADER: None if self.tenant == self._holder.tenant else self.tenant,
            "traceparent": self._caller.traceparent,
        }
        headers = {name: value for name, value in given.items() if value is not None}
        return await self._line.call(method, arguments, answers, headers)

    def _new_key(self) -> str:
        return str(UUID(int=self._line.world.chance.getrandbits(128), version=4))

    async def get_machine(self, entity: Entity | Transition) -> Machine:
        if entity.machine_id not in self._machines:
            await self._learn()
        return self._restore(entity.machine_id)

    async def list_machines(self) -> list[Machine]:
        await self._learn()
        machines = sorted(map(self._restore, tuple(self._machines)), key=lambda each: each.version)
        return [machine for _, machine in sorted({each.name: each for each in machines}.items())]

    async def _learn(self) -> None:
        for row in await self.list_definitions():
            self._machines.setdefault(row.id, row)

    def _restore(self, number: int) -> Machine:
        found = self._machines[number]
        if isinstance(found, MachineRow):
            found = self._machines[number] = restore(found)
        return found


class RemoteOutbox(Outbox):
    """What people can ask of the notifications of a server."""

    def __init__(self, engine: RemoteTenantEngine) -> None:
        self.call_server = engine.call_server


class RemoteEngine(RemoteTenantEngine, Engine):
    """The engine of a server, for the tenant of an API key; open one with `pointsman.app.open`."""

    def __init__(self, line: Line, holder: Holder) -> None:
        super().__init__(line, Caller(holder.tenant, holder.actor), holder, {})
        self._duties = Duties(line, self._note_duty)

    @property
    def holder(self) -> Holder:
        """For whom the server acts."""
        return self._holder

    def wait_out_outages(self, tell: Callable[[str], None]) -> None:
        """Repeat what the server does not answer until it does, and tell so; without this, it raises an error."""
        self._line.tell = tell

    async def ship_log(self, task_id: str, epoch: int, part: str, offset: int, data: bytes) -> int:
        """Send bytes of the log of an attempt that runs here; how much of this part the server has then."""
        return await self._ship(f"{find_path(task_id, epoch)}/log", {"part": part, "offset": offset, "data": data})

    async def ship_artifact(self, task_id: str, epoch: int, name: str, offset: int, data: bytes) -> int:
        """Send bytes of an artifact of an attempt that runs here; how much of it the server has then."""
        return await self._ship(f"{find_path(task_id, epoch)}/artifact", {"name": name, "offset": offset, "data": data})

    async def _ship(self, path: str, body: Mapping[str, object]) -> int:
        reply = await self._line.send("POST", path, body)  # bytes become Base64
        return int(msgspec.json.decode(reply.body)["size"])

    async def read_log(self, task_id: str, epoch: int, offset: int) -> LogRead | None:
        """What is behind an offset of the log of an attempt; None where the server has no such log."""
        try:
            reply = await self._read_on(f"{find_path(task_id, epoch)}/log", offset)
        except CallRefused as refused:
            if refused.problem == "log-elsewhere":
                return None
            raise
        return LogRead(data=reply.body, agent=reply.headers.get(AGENT_HEADER.lower())) if reply else LogRead(data=b"")

    async def list_artifacts(self, task_id: str, epoch: int) -> ArtifactList:
        """The artifacts of an attempt that the server has."""
        reply = await self._line.send("GET", f"{find_path(task_id, epoch)}/artifacts")
        return decoder_of(ArtifactList).decode(reply.body)  # type: ignore[no-any-return]

    async def list_run_artifacts(self, run_id: str) -> list[TaskArtifacts]:
        """For each task of a run, the artifacts of its last attempt that the server has."""
        found: list[TaskArtifacts] = []
        query: dict[str, object] = {"limit": READ_ROWS}
        while True:
            reply = await self._line.send("GET", f"/api/v1/runs/{quote(run_id, safe='')}/artifacts?{urlencode(query)}")
            page: ArtifactsRead = decoder_of(ArtifactsRead).decode(reply.body)
            found += page.items
            if page.next is None:
                return found
            query["after"] = page.next

    async def read_artifact(self, task_id: str, epoch: int, name: str, offset: int) -> bytes:
        """What is behind an offset of an artifact, up to a limit; empty at its end."""
        reply = await self._read_on(f"{find_path(task_id, epoch)}/artifact?{urlencode({'name': name})}", offset)
        return reply.body if reply else b""

    async def _read_on(self, path: str, offset: int) -> Reply | None:
        """What is behind an offset of a file at the server, up to a limit; None at its end."""
        try:
            return await self._line.send("GET", path, headers={"Range": f"bytes={offset}-{offset + READ_BYTES - 1}"})
        except CallRefused as refused:
            if refused.problem == "range-not-satisfiable":
                return None
            raise

    def for_tenant(self, tenant: str = DEFAULT_TENANT, *, actor: str = "user", traceparent: str | None = None) -> TenantEngine:
        is_operator = self.tenant == DEFAULT_TENANT  # the server says what it may do for others
        if not is_operator and tenant not in (DEFAULT_TENANT, self.tenant):
            message = (
                f"This server acts for the tenant '{self.tenant}' here, not for '{tenant}'. "
                "Use an API key of that tenant, or the database itself: --store"
            )
            raise RequestInvalid([Problem("tenant", message)])
        caller = Caller(tenant if is_operator else self.tenant, actor, traceparent)
        return RemoteTenantEngine(self._line, caller, self._holder, self._machines)

    async def close(self) -> None:
        if not self._line.is_closed:
            self._line.is_closed = True
            await self._duties.stop()
            self._line.wakeups.close()
            self._line.transport.close()

    async def _note_duty(self, name: str, error: Exception | None, failures: int) -> None:
        """What fails here is in the log here; the server notes its own."""


async def connect(transport: Transport, world: World, *, has_key: bool) -> RemoteEngine:
    """An engine for whom the server knows by the key of the transport."""
    line = Line(transport, world)
    try:
        holder: Holder = await line.call(GET_HOLDER, {}, Holder)
    except AuthenticationFailed as stranger:
        if has_key:
            raise
        create = "To create one where its database is: pointsman key create"
        raise CallRefused("unauthenticated", f"{transport.url} needs an API key: POINTSMAN_API_KEY. {create}") from stranger
    except CallRefused as refused:
        if refused.problem != "no-such-route":
            raise
        message = f"There is no server of Pointsman at {transport.url}. Give its address without a path: http://127.0.0.1:8642"
        raise ServerFailed(message) from refused
    return RemoteEngine(line, holder)


def find_path(task_id: str, epoch: int) -> str:
    """The path of an attempt, below which its files are."""
    return f"/api/v1/tasks/{quote(task_id, safe='')}/attempts/{epoch}"


def _asks(query: Query) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A method that calls the one of the server."""

    async def method(self: RemoteTenantEngine | RemoteOutbox, *arguments: Any, **named: Any) -> Any:
        bound = bind(query, arguments, named)
        if query.place is None or bound.get("limit") is not None:
            return await self.call_server(query.name, bound, query.answers)
        found: list[Any] = []
        while page := await self.call_server(query.name, {**bound, "limit": READ_ROWS}, query.answers):
            found += page
            if len(page) < READ_ROWS:
                break
            bound["after"] = write_cursor(query.place, page[-1])
        return found

    return method


def _refuses(name: str) -> Callable[..., Never]:
    def method(*_: Any, **__: Any) -> Never:
        raise CallRefused("not-found", f"'{name}' needs the database itself, not a server. Use --store.")

    return method


def _find_owner(query: Query) -> type:
    if query.name.startswith("outbox."):
        return RemoteOutbox
    return RemoteEngine if query.is_of_all else RemoteTenantEngine


for _query in list_queries().values():
    setattr(_find_owner(_query), _query.name.rpartition(".")[2], _asks(_query))
for _name in ONLY_WITH_DATABASE:
    setattr(RemoteEngine, _name, _refuses(_name))

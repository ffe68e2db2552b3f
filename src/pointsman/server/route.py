"""A route, declared once: how a request is read, what it does, and what OpenAPI says about it.

    Route("POST", "/runs/{run_id}/approve", "Approve every open gate of a run.", approve_run, RunAnswer, reads=ApproveRun)

`reads` is a struct of declared fields: an operation, or another request. Fields that the path has, or that the route sets, are
not part of its body.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import Schema, shape_of
from pointsman.engine.filters import NoFilter
from pointsman.engine.operation import Operation, name_of, read_operation
from pointsman.engine.operations.keys import SCOPES, Scope
from pointsman.errors import PointsmanError, Problem, RequestInvalid
from pointsman.server import problems
from pointsman.server.auth import Holder
from pointsman.server.message import (
    REPLAYED_HEADER,
    hash_request,
    read_body,
    read_query,
    respond,
    respond_with_problem,
    take_key,
)
from pointsman.server.site import Site

log = logging.getLogger(__name__)
Op = TypeVar("Op", bound=Operation[Any])
Declared = TypeVar("Declared", bound=Struct)
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Call:
    """A request that has been read, and the engine that it may use."""

    site: Site
    engine: TenantEngine
    """For the tenant and in the name of who asks."""
    holder: Holder
    """Who asks."""
    path: Mapping[str, str]
    body: Mapping[str, Any]
    query: Any
    request_id: str | None
    headers: Mapping[str, str]

    def read(self, operation: type[Op], left_out: Collection[str] = (), **fixed: object) -> Op:
        """The operation that the body asks for, with the path and what the route sets; `left_out` may not be said."""
        ours = {**self._find_ids(operation), **fixed}
        unknown = [name for name in self.body if name in ours or name in left_out]
        if unknown:
            raise RequestInvalid([Problem(name, "This route has no such field. Leave it out.") for name in unknown])
        key = {} if self.request_id is None else {"request_id": self.request_id}
        return read_operation(operation, {**self.body, **ours, **key})

    def _find_ids(self, operation: type[Op]) -> dict[str, str]:
        """What the path says; an id that cannot exist is not found."""
        fields = {field.name: field.type for field in shape_of(operation).fields}
        found = {name: value for name, value in self.path.items() if name in fields}
        problems = [problem for name, value in found.items() for problem in fields[name].problems(name, value)]
        if problems:
            raise RequestInvalid(problems)
        return found

    def read_as(self, declared: type[Declared]) -> Declared:
        """The body as another struct. One without a key is of a request that changes nothing, and may have one all the same."""
        found: list[Problem] = []
        takes_key = self.request_id is not None and "request_id" in declared.__struct_fields__
        key = {"request_id": self.request_id} if takes_key else {}
        read = shape_of(declared).read("", {**self.body, **key}, found)
        if found:
            raise RequestInvalid(found)
        assert isinstance(read, declared)
        return read


class Act(Protocol):
    """What a route does."""

    __name__: str

    def __call__(self, call: Call, /) -> Awaitable[object]: ...


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    summary: str
    act: Act
    answers: Any
    """The type of the answer."""
    scope: Scope = "read"
    or_scope: Scope | None = None
    """Another scope that is enough."""
    reads: type[Struct] | None = None
    """What its body is."""
    fixed: tuple[str, ...] = ()
    """Fields of that which the route sets itself."""
    query: type[Struct] = NoFilter
    status: int = 200
    location: str = ""
    """Where what it creates can be read: a path with `{id}`, which is sent as the header `Location`."""
    operation: type[Operation[Any]] | None = None
    """The operation that it performs."""
    problems: tuple[str, ...] = ()
    """Types of problems that it has in addition to those that every route has."""
    tag: str = "v1"
    media_type: str = "application/json"
    takes_range: bool = False
    """It answers a request with the header `Range` with that part."""
    is_open: bool = False
    """It answers anybody: it tells nothing of any tenant."""
    streams: bool = False
    """Its answer does not end by itself. Tickets are taken for keys."""
    waits: bool = False
    """Its answer may take as long as the request says."""
    names_call: bool = False
    """Its path names what is done, which decides about the scope; an idempotency key counts for each name."""
    named: str = ""
    """What the Python client calls it, if that is not the name of its function."""

    @property
    def name(self) -> str:
        return self.named or self.act.__name__

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    def body_schema(self) -> Schema | None:
        """JSON Schema of the body, without what the path says."""
        if self.reads is None:
            return None
        schema = shape_of(self.reads).schema()
        if self.names_call:  # what it takes depends on the call
            return {**schema, "additionalProperties": True}
        left_out = {*self.parameters, *self.fixed}
        schema["properties"] = {name: each for name, each in schema["properties"].items() if name not in left_out}
        schema["required"] = [name for name in schema["required"] if name not in left_out]
        return schema

    async def answer(self, site: Site, request: Request) -> Response:
        """One request, from its first byte to its answer, as one span."""
        attributes = {"http.request.method": self.method, "http.route": self.path}
        parent = request.headers.get("traceparent")
        with site.world.tracing.begin(f"{self.method} {self.path}", "server", parent, attributes) as span:
            response = await self._answer_or_explain(site, request, span.traceparent)
            span.note({"http.response.status_code": response.status_code})
            if response.status_code >= 500:
                span.fail("")
            return response

    async def _answer_or_explain(self, site: Site, request: Request, traceparent: str | None) -> Response:
        """Whatever goes wrong is an answer, too."""
        try:
            return await self._answer(site, request, traceparent)
        except PointsmanError as error:
            return respond_with_problem(problems.explain(error, site.new_reference()))
        except Exception:
            reference = site.new_reference()
            log.exception("%s %s failed", self.method, self.path, extra={"reference": reference})
            return respond_with_problem(problems.explain_fault(reference))

    async def _answer(self, site: Site, request: Request, traceparent: str | None) -> Response:
        holder = await self._admit(site, request)
        query = read_query(request, self.query)
        body = await read_body(request) if self.changes else {}
        key = take_key(request, body) if self.changes else None
        path = request.url.path if self.names_call else self.path
        endpoint = f"{holder.key_id} {self.method} {path}".strip()
        request_hash = "" if key is None else hash_request(request, body)
        engine, receipt = site.engine.for_request(
            holder.tenant, holder.actor, endpoint, request_hash, traceparent, key_id=holder.key_id or None
        )
        call = Call(site, engine, holder, dict(request.path_params), body, query, key, request.headers)
        found = await self.act(call)
        if isinstance(found, Response):
            return found
        location = {"Location": self.location.format(id=getattr(found, "id"))} if self.location else {}  # noqa: B009
        replayed = {REPLAYED_HEADER: "true"} if receipt.is_repeated else {}
        return respond(found, self.status, {**location, **replayed})

    async def _admit(self, site: Site, request: Request) -> Holder:
        if self.is_open:
            return site.door.admit_anybody(request)
        if self.streams:
            return await site.door.admit_stream(request)
        if self.names_call:
            return await site.door.admit(request, "read", *SCOPES)
        others = () if self.or_scope is None else (self.or_scope,)
        return await site.door.admit(request, self.scope, *others)


def performs(
    method: str,
    path: str,
    summary: str,
    operation: type[Operation[Row]],
    make: Callable[[TenantEngine, Row], Awaitable[object]],
    answers: Any,
    *,
    scope: Scope,
    sets: Mapping[str, object] | None = None,
    left_out: tuple[str, ...] = (),
    check: Callable[[Call], Awaitable[None]] | None = None,
    problems: tuple[str, ...] = (),
    status: int = 200,
    location: str = "",
    tag: str = "v1",
) -> Route:
    """A route that performs one operation. It `sets` some of its fields, and leaves some out that mean nothing here."""
    given = dict(sets or {})

    async def act(call: Call) -> object:
        requested = call.read(operation, left_out, **given)
        if check:
            await check(call)
        return await make(call.engine, await call.engine.perform_valid(requested))

    act.__name__ = name_of(operation)
    return Route(
        method,
        path,
        summary,
        act,
        answers,
        scope=scope,
        reads=operation,
        fixed=(*given, *left_out),
        status=status,
        location=location,
        operation=operation,
        problems=problems,
        tag=tag,
    )

"""The application: every route in FastAPI, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, WebSocketRoute
from starlette.routing import Route as RouteOfPath
from starlette.websockets import WebSocket

from pointsman import __version__
from pointsman.errors import CallRefused
from pointsman.server import problems
from pointsman.server.message import respond_with_problem
from pointsman.server.openapi import KEY_SCHEME, describe_answers, describe_request, describe_schemas, describe_security
from pointsman.server.route import Route
from pointsman.server.routes import ALL
from pointsman.server.site import Site
from pointsman.server.streams import serve_socket

DESCRIPTION = (
    "Runs, tasks, workers and circuit breakers that move only along declared transitions. Errors are problem documents "
    "(RFC 9457). Every call that changes something takes an idempotency key."
)


TAGS = {
    "v1": "Everything that Pointsman does: runs, tasks, flows, workers, tools, people, events, keys.",
    "document 000": "Workers, their supervisor, and jobs.",
    "document 003": "Runs of steps and approvals.",
    "document 004": "Tasks of agents, which people start, answer and review.",
    "server": "The server itself: health, metrics, and what its errors mean.",
}


def build_application(site: Site) -> FastAPI:
    application = FastAPI(
        title="Pointsman",
        version=__version__,
        description=DESCRIPTION,
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for route in ALL:
        application.add_api_route(
            route.path,
            _make_endpoint(site, route),
            methods=[route.method],
            operation_id=name_operation(route),
            summary=route.summary,
            tags=[route.tag],
            status_code=route.status,
            response_model=None,
        )
    application.routes.append(WebSocketRoute("/api/v1/events", _make_socket_endpoint(site)))
    _complete_openapi(application)

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = _explain(request, error, _list_methods(application, request))
        return respond_with_problem(problems.explain(refusal, site.new_reference()))

    application.add_exception_handler(HTTPException, refuse)
    return application


def _make_endpoint(site: Site, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await route.answer(site, request)

    return endpoint


def _make_socket_endpoint(site: Site) -> Callable[[WebSocket], Awaitable[None]]:
    async def endpoint(socket: WebSocket) -> None:
        await serve_socket(site, socket)

    return endpoint


def name_operation(route: Route) -> str:
    """`POST /runs/{run_id}/approve` is `post_runs_run_id_approve`."""
    words = route.path.replace("{", "").replace("}", "").replace(".", "_").replace("-", "_").strip("/").split("/")
    return "_".join((route.method.lower(), *words))


def _complete_openapi(application: FastAPI) -> None:
    """Add what FastAPI cannot know of handlers that read the request themselves: parameters, bodies, answers and problems."""
    make = application.openapi

    def openapi() -> dict[str, Any]:
        described = make()
        for route in ALL:
            operation = described["paths"][route.path][route.method.lower()]
            answers = {str(status): answer for status, answer in describe_answers(route).items()}
            operation.update(describe_request(route), responses=answers, security=describe_security(route))
        described["components"] = {"schemas": describe_schemas(ALL), "securitySchemes": {"key": KEY_SCHEME}}
        return described

    application.openapi = openapi  # type: ignore[method-assign]


def _list_methods(application: FastAPI, request: Request) -> list[str]:
    """The methods that this path has."""
    here = [
        route
        for route in application.routes
        if isinstance(route, RouteOfPath) and route.matches(request.scope)[0] is not Match.NONE
    ]
    methods = {method for route in here for method in route.methods or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _explain(request: Request, error: HTTPException, methods: list[str]) -> CallRefused:
    """Only the router raises these: no route has that path, or none with that method."""
    if error.status_code == 405:
        allowed = ", ".join(methods)
        message = f"{request.url.path!a} does not take {request.method!a}. It takes: {allowed}."
        return CallRefused("method-not-allowed", message, headers={"Allow": allowed})
    return CallRefused("no-such-route", f"There is no {request.url.path!a}. See /openapi.json.")

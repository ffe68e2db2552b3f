"""Who asks: the holder of an API key; or, while there are no keys, whoever can reach the loopback address.

Without keys, any program on this machine may use the server, but no web page: a browser says in `Host` and `Origin` for whom it
asks. Those are checked before anything else.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.requests import Request

from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.errors import CallRefused, Problem, RequestInvalid
from pointsman.server.site import Site

Scope = Literal["read", "submit", "operate", "approve", "worker", "admin"]
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ACTOR = "pointsman-actor"
"""The header by which a request without a key says in whose name it acts, as `--as` does on the command line."""


class Holder(Struct, frozen=True):
    """Who asks, and for which tenant."""

    tenant: str
    actor: str
    key_id: str = ""
    """Idempotency keys belong to the API key that they came with."""


NOBODY = Holder(DEFAULT_TENANT, "user")
"""Who asks for what is open to anybody."""


async def identify(site: Site, request: Request, scope: Scope) -> Holder:  # noqa: ARG001 - keys have scopes
    """Who asks; refuses strangers, and those who lack the scope."""
    check_host(request)
    check_origin(request)
    return Holder(DEFAULT_TENANT, _read_actor(request) or site.actor)


def check_host(request: Request) -> None:
    """Only a page of the machine itself has one of its names in the address bar."""
    given = request.headers.get("host", "")
    try:
        name = urlsplit(f"//{given}").hostname or ""
    except ValueError:
        name = ""
    if name not in LOOPBACK:
        port = (request.scope.get("server") or ("", 0))[1]
        message = f"The Host header names {given!a}. Use http://127.0.0.1:{port} or http://localhost:{port}."
        raise CallRefused("host-refused", message)


def check_origin(request: Request) -> None:
    """A request of a page of another site has that site as its origin."""
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers.get('host', '')}":
        raise CallRefused("origin-refused", f"The Origin is {origin!a}, which is not this server.")
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise CallRefused("origin-refused", "A page of another site sent this. Only pages of this server may use it.")


def _read_actor(request: Request) -> str | None:
    given = request.headers.getlist(ACTOR)
    if len(given) > 1 or (given and not given[0].strip()):
        raise RequestInvalid([Problem("Pointsman-Actor", "Must name one person.")])
    return given[0] if given else None

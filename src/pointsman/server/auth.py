"""Who asks: the holder of an API key; or, while there are no keys, whoever can reach the loopback address.

    Authorization: Bearer pm_… ──▶ the tenant and the scopes of the key
    no key at all, on loopback  ──▶ the default tenant, with every scope

Without keys, any program on this machine may use the server, but no web page: a browser says in `Host` and `Origin` for whom it
asks. From the first key on, every request needs one, and it stays so when the last one is revoked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.requests import HTTPConnection, Request

from pointsman.engine.engine import Engine
from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.engine.operations.keys import SCOPES, Scope
from pointsman.errors import AuthenticationFailed, CallRefused, Problem, RequestInvalid
from pointsman.server.message import read_headers
from pointsman.server.rate import RateLimit
from pointsman.world import Clock

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ACTOR = "pointsman-actor"
"""The header by which a request without a key says in whose name it acts, as `--as` does on the command line."""
LOOK_SECONDS = 5.0
"""How long the first key of a database may be unknown to a server that runs without keys."""
CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Holder(Struct, frozen=True):
    """Who asks, and for which tenant."""

    tenant: str
    actor: str
    key_id: str = ""
    """Idempotency keys belong to the API key that they came with."""
    scopes: frozenset[str] = frozenset(SCOPES)


NOBODY = Holder(DEFAULT_TENANT, "user")
"""Who asks for what is open to anybody."""


@dataclass(slots=True)
class Door:
    """Lets requests in."""

    engine: Engine
    clock: Clock
    actor: str
    """In whose name requests without a key act, unless they say so themselves."""
    needs_keys: bool = False
    """Every request needs a key: on an address that others can reach, and wherever there is a key."""
    rate: RateLimit | None = None
    """How many requests a tenant may send to this process."""
    _looked_at: float | None = field(default=None)

    async def admit(self, request: HTTPConnection, scope: Scope, *others: Scope) -> Holder:
        """Who asks; refuses strangers, those who have none of the scopes, and those who ask too often."""
        holder = await self._identify(request, scope, *others)
        if self.rate:
            self.rate.take(holder.tenant)
        return holder

    async def _identify(self, request: HTTPConnection, scope: Scope, *others: Scope) -> Holder:
        if "authorization" in request.headers:
            return await self._check_key(request, scope, *others)
        if await self._has_keys():
            message = "Send an API key: Authorization: Bearer KEY. To create one: pointsman key create"
            raise CallRefused("unauthenticated", message, headers=CHALLENGE)
        check_host(request)
        check_origin(request)
        return Holder(DEFAULT_TENANT, _read_actor(request) or self.actor)

    async def admit_stream(self, connection: HTTPConnection) -> Holder:
        """Who follows the live events: with a key, or with a ticket, because a browser cannot send a key there."""
        check_origin(connection)
        ticket = connection.query_params.get("ticket")
        if ticket is None or "authorization" in connection.headers or not await self._has_keys():
            return await self.admit(connection, "read")
        try:
            found = await self.engine.redeem_ticket(ticket)
        except AuthenticationFailed:
            message = "The ticket is not valid: it works once, for some seconds. To get another one: POST /api/v1/tickets"
            raise CallRefused("unauthenticated", message, headers=CHALLENGE) from None
        check_scope(found.name, found.scopes, "read")
        return Holder(found.tenant, found.name, found.key_id, frozenset({"read"}))

    def admit_anybody(self, request: Request) -> Holder:
        """For what tells nothing of any tenant; only web pages under a name of their own are refused."""
        if not self.needs_keys:
            check_host(request)
        return NOBODY

    async def _check_key(self, request: HTTPConnection, scope: Scope, *others: Scope) -> Holder:
        scheme, _, text = request.headers["authorization"].partition(" ")
        if scheme.lower() != "bearer" or len(request.headers.getlist("authorization")) > 1:
            raise AuthenticationFailed
        found = await self.engine.authenticate(text.strip())
        check_scope(found.name, found.scopes, scope, *others)
        return Holder(found.tenant, found.name, found.key_id, found.scopes)

    async def _has_keys(self) -> bool:
        now = self.clock.monotonic()
        if not self.needs_keys and (self._looked_at is None or now >= self._looked_at + LOOK_SECONDS):
            self.needs_keys = bool(await self.engine.list_all_keys())
            self._looked_at = now
        return self.needs_keys


def check_scope(name: str, scopes: Collection[str], scope: Scope, *others: Scope) -> None:
    """Refuse a key that has none of these scopes."""
    if not {scope, *others}.intersection(scopes):
        has = ", ".join(sorted(scopes))
        message = f"This needs the scope {scope}. The key '{name}' has: {has}."
        raise CallRefused("forbidden", message, members={"scope": scope})


def check_host(request: HTTPConnection) -> None:
    """Only a page of the machine itself has one of its names in the address bar."""
    given = request.headers.get("host", "")
    try:
        name = urlsplit(f"//{given}").hostname or ""
    except ValueError:
        name = ""
    if name not in LOOPBACK:
        scheme, port = "https" if request.url.is_secure else "http", (request.scope.get("server") or ("", 0))[1]
        message = f"The Host header names {given!a}. Use {scheme}://127.0.0.1:{port} or {scheme}://localhost:{port}."
        raise CallRefused("host-refused", message)


def check_origin(request: HTTPConnection) -> None:
    """A request of a page of another site has that site as its origin. A proxy may have taken TLS off the connection."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        raise CallRefused("origin-refused", f"The Origin is {origin!a}, which is not this server.")
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise CallRefused("origin-refused", "A page of another site sent this. Only pages of this server may use it.")


def _read_actor(request: HTTPConnection) -> str | None:
    given = read_headers(request, ACTOR)
    if len(given) > 1 or (given and not given[0].strip()):
        raise RequestInvalid([Problem("Pointsman-Actor", "Must name one person.")])
    return given[0] if given else None

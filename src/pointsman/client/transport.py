"""Requests to a server over kept-alive connections of the standard library, for any number of threads.

    Transport ──request──▶ an idle connection, or a new one ──▶ Reply
              ──stream───▶ a connection of its own ──▶ Reply without a body, chunks as they arrive

A connection that the server has closed meanwhile is replaced by a new one, once, where that repeats nothing: for GET, or with
an idempotency key. Proxies of the environment are ignored and redirects are not followed, so that a key goes nowhere else.
"""

from __future__ import annotations

import http.client
import math
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from pointsman.errors import EngineClosed, OutcomeUnknown, Problem, RequestInvalid, ServerFailed, ServerUnavailable

TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 10.0
MAX_IDLE_CONNECTIONS = 16
MAX_BODY_BYTES = 64 << 20
"""Of an answer. What may be longer is read as a stream."""
CHUNK_BYTES = 1 << 16
KEY_HEADER = "Idempotency-Key"
ACTOR_HEADER = "Pointsman-Actor"
FOREVER = math.inf
"""As a timeout: the server may be silent for as long as it likes."""
_KEEPALIVE_SECONDS = 60
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Reply(NamedTuple):
    """An answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    timeout_seconds: float
    repeatable: bool = False

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def is_safe(self) -> bool:
        """Sending it twice does no more than sending it once."""
        return self.repeatable or not self.changes or KEY_HEADER.lower() in (name.lower() for name in self.headers)


class Transport:
    """Connections to one server."""

    def __init__(
        self, url: str, *, key: str | None = None, actor: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """`timeout_seconds`: how long the server may be silent. Without a `key`, `actor` is in whose name requests act."""
        parts = _read_url(url)
        self._host, self._prefix = parts.hostname or "", parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._timeout_seconds = timeout_seconds
        self._headers = _make_headers(key, actor)
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: dict[http.client.HTTPConnection, socket.socket] = {}
        self._is_closed = False
        self.url = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        """As it is shown to people."""

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        timeout_seconds: float | None = None,
        repeatable: bool = False,
    ) -> Reply:
        """Send a request, and return whatever the server answers. A path is quoted, and begins with a slash.

        One that is `repeatable` has no other effect when it is sent twice.
        """
        asked = self._ask(method, path, body, headers, timeout_seconds)._replace(repeatable=repeatable)
        connection, response = self._exchange(asked)
        try:
            reply = self._read(asked, response)
        except BaseException:
            self._drop(connection)
            raise
        self._keep(connection, response)
        return reply

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        timeout_seconds: float | None = None,
    ) -> Iterator[tuple[Reply, Iterator[bytes]]]:
        """An answer whose body is read while it arrives. What is no success has its body in the reply, and no chunks."""
        asked = self._ask(method, path, body, headers, timeout_seconds)
        connection, response = self._exchange(asked)
        try:
            if response.status >= 300:
                yield self._read(asked, response), iter(())
            else:
                yield Reply(response.status, _headers_of(response), b""), self._chunks(asked, response)
        finally:
            self._drop(connection)

    def close(self) -> None:
        """Close all connections. Requests and streams that still wait for the server end with `EngineClosed`."""
        with self._lock:
            self._is_closed = True
            idle, busy = self._idle, tuple(self._busy.values())
            self._idle = []
        for connection in idle:
            connection.close()
        for connected in busy:  # another thread reads from it, and closes it then
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_seconds: float | None
    ) -> _Request:
        assert path.startswith("/")
        assert path.isascii()
        assert path.isprintable()
        patience = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        return _Request(method, f"{self._prefix}{path}", body, {**self._headers, **headers}, patience)

    # one exchange: a connection, the request, the head of the answer

    def _exchange(self, asked: _Request) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection, is_fresh = self._take(asked)
        while True:
            try:
                return connection, _send(asked, connection)
            except (OSError, http.client.HTTPException) as error:
                self._drop(connection)
                was_stale = not is_fresh and isinstance(error, ConnectionError)
                if not (was_stale and asked.is_safe) or self._is_closed:
                    raise self._explain(asked, error) from error
            except BaseException:
                self._drop(connection)
                raise
            connection, is_fresh = self._connect(asked, may_have_happened=asked.changes), True

    def _take(self, asked: _Request) -> tuple[http.client.HTTPConnection, bool]:
        """An idle connection that the server has not closed, or a new one, and whether it is new."""
        while True:
            with self._lock:
                self._check_open()
                if not self._idle:
                    break
                connection = self._idle.pop()
                self._busy[connection] = connection.sock
            if not _has_ended(connection):
                connection.sock.settimeout(_as_socket_has_it(asked.timeout_seconds))
                return connection, False
            self._drop(connection)
        return self._connect(asked), True

    def _connect(self, asked: _Request, *, may_have_happened: bool = False) -> http.client.HTTPConnection:
        """A new connection."""
        patience = min(CONNECT_SECONDS, asked.timeout_seconds)
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=patience)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=patience, context=self._tls)
        )
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # the latter of host names that cannot exist
            connection.close()
            message = f"Cannot connect to {self.url}: {_say(error)}. {_advise(error)}"
            raise ServerUnavailable(message, may_have_happened=may_have_happened) from error
        connection.sock.settimeout(_as_socket_has_it(asked.timeout_seconds))
        _keep_alive(connection.sock)
        with self._lock:
            if not self._is_closed:
                self._busy[connection] = connection.sock
                return connection
        connection.close()
        raise EngineClosed(_CLOSED)

    # the answer

    def _read(self, asked: _Request, response: http.client.HTTPResponse) -> Reply:
        announced = response.length or 0
        body = b"" if announced > MAX_BODY_BYTES else b"".join(self._chunks(asked, response, MAX_BODY_BYTES))
        if max(announced, len(body)) > MAX_BODY_BYTES:
            raise ServerFailed(f"The answer of {self.url} has more than {MAX_BODY_BYTES:,} bytes. Ask for less, page by page.")
        return Reply(response.status, _headers_of(response), body)

    def _chunks(self, asked: _Request, response: http.client.HTTPResponse, limit: float = FOREVER) -> Iterator[bytes]:
        """The body as it arrives, cut off behind the limit."""
        size = 0
        try:
            while size <= limit and (chunk := response.read1(CHUNK_BYTES)):
                size += len(chunk)
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise self._explain(asked, error) from error
        if size <= limit and (response.length or self._is_closed):
            raise self._explain(asked, http.client.IncompleteRead(b"", response.length))

    def _explain(self, asked: _Request, error: Exception) -> Exception:
        """What it means that there is no whole answer to a request that may have been sent."""
        if self._is_closed:
            return EngineClosed(_CLOSED)
        is_foreign = isinstance(error, http.client.BadStatusLine) and not str(error).startswith(("HTTP/", "'HTTP/"))
        if is_foreign and not isinstance(error, ConnectionError):
            return ServerFailed(f"{self.url} does not answer in HTTP. Check its address, and whether it is http or https.")
        what = f"{asked.method} {self.url}{asked.path.removeprefix(self._prefix).partition('?')[0]}"
        happened = f"The connection ended before the whole answer to {what} was there: {_say(error)}."
        if isinstance(error, TimeoutError):
            happened = f"{what} had no answer within {asked.timeout_seconds:g} seconds."
        if asked.is_safe:
            return ServerUnavailable(f"{happened} Send it again.", may_have_happened=asked.changes)
        return OutcomeUnknown(f"{happened} It may have been carried out: look before you send it again.")

    # the pool

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineClosed(_CLOSED)

    def _keep(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        response.close()
        with self._lock:
            is_kept = not (response.will_close or self._is_closed or len(self._idle) >= MAX_IDLE_CONNECTIONS)
            if is_kept:
                self._busy.pop(connection, None)
                self._idle.append(connection)
        if not is_kept:
            self._drop(connection)

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._busy.pop(connection, None)
        connection.close()


_CLOSED = "The client was closed before the server answered."


def _read_url(url: str) -> SplitResult:
    """The parts of a URL of a server; what it may not have is refused, and never repeated where it may be secret."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        is_usable = False
    if is_usable and "@" in parts.netloc:
        raise RequestInvalid([Problem("url", "The URL of a server has no user and no password. Give the API key as the key.")])
    if not is_usable or parts.query or parts.fragment or " " in url:
        raise RequestInvalid(
            [Problem("url", "Must be the URL of a server, like http://127.0.0.1:8642 or https://example.org.")]
        )
    return parts


def _make_headers(key: str | None, actor: str | None) -> dict[str, str]:
    headers = {"Accept": "*/*", "User-Agent": "pointsman"}
    if key is not None:
        if not (key and key.isascii() and key.isprintable()) or " " in key:
            raise RequestInvalid([Problem("key", "This is no API key: it begins with pm_, and has no spaces.")])
        headers["Authorization"] = f"Bearer {key}"
    if actor is not None:
        if not (actor.strip() and actor.isprintable()):
            raise RequestInvalid([Problem("actor", "Must name one person, in one line.")])
        headers[ACTOR_HEADER] = actor
    return headers


def _send(asked: _Request, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    headers = {name: value.encode() for name, value in asked.headers.items()}
    if asked.body is not None:
        headers.setdefault("Content-Type", b"application/json")
    with suppress(BrokenPipeError, ConnectionResetError):  # a server that refuses a body may not read it
        connection.request(asked.method, asked.path, asked.body, headers)
    return connection.getresponse()


def _headers_of(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _as_socket_has_it(timeout_seconds: float) -> float | None:
    return None if timeout_seconds == FOREVER else timeout_seconds


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed an idle connection: then there is something to read, its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _keep_alive(connected: socket.socket) -> None:
    """The system finds out when the machine of the server is gone, however long a stream is silent."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), _KEEPALIVE_SECONDS)


def _say(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _advise(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "If its authority is your own, name the file of its certificate in SSL_CERT_FILE."
    if isinstance(error, ssl.SSLError):
        return "If the server has no certificate, its URL begins with http://."
    return "Check its address, or start it: pointsman serve"

"""Listens: a socket, and uvicorn on it in the event loop of the process, whose signals stay with the process."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from pointsman.errors import Problem, RequestInvalid
from pointsman.server.streams import ABORT

LOOPBACK_NAMES = ("localhost",)
BACKLOG = 1024
GRACE_SECONDS = 10
"""How long requests that are being answered may take when the server stops."""
KEEP_ALIVE_SECONDS = 75
"""How long a connection may be idle between two requests."""
HEADER_SECONDS = 30.0
"""How long the headers of a request may take."""
PING_SECONDS = 20.0
"""A WebSocket is pinged so often, and closed if no answer comes for so long."""
LARGEST_MESSAGE = 4096
"""Of clients of WebSockets, which have nothing to say."""


def is_loopback(host: str) -> bool:
    try:
        return host in LOOPBACK_NAMES or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 is any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        message = f"Cannot listen on {host} port {port}: {reason}. Choose another one: --host, --port"
        raise RequestInvalid([Problem("", message)]) from None
    opened.setblocking(False)  # noqa: FBT003 - the name of the method says it
    return opened


def load_certificate(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """The certificate that clients get to see, and its key, from PEM files; without a key, the first file has both."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password would make OpenSSL ask for it on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        named = f"{certificate} and {key}" if key else f"{certificate}"
        reason = (error.reason or "no PEM").replace("_", " ").lower()
        message = f"{named} cannot be used for TLS ({reason}). Give a PEM certificate and its own key, without a password."
        raise RequestInvalid([Problem("--tls-cert", message)]) from None
    except OSError as error:
        unreadable = key if key and not _is_readable(key) else certificate
        option = "--tls-key" if unreadable == key else "--tls-cert"
        raise RequestInvalid([Problem(option, f"{unreadable} cannot be read: {error.strerror}.")]) from None
    return context


def _is_readable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)


def check_proxy(address: str) -> str:
    """The address of a proxy, or a network of such addresses."""
    try:
        return str(ipaddress.ip_network(address))
    except ValueError:
        message = f"{address!a} is not an IP address or a network. Name each proxy, for example 127.0.0.1 or 10.0.0.0/24."
        raise RequestInvalid([Problem("--proxy", message)]) from None


def _keep(record: logging.LogRecord) -> bool:
    """uvicorn complains of every WebSocket whose handshake is refused with an answer of its own, which is no error."""
    return not record.getMessage().startswith("ASGI callable returned without completing handshake")


def _let_abort(application: ASGIApp) -> ASGIApp:
    """Let the application end a connection whose client takes nothing: ASGI alone would wait for it for ever."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        connection: Any = send.__self__  # type: ignore[attr-defined] # `send` is a method of what uvicorn has for a connection
        scope[ABORT] = connection.transport.abort
        await application(scope, receive, send)

    return call


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Joined:
    """A transport that sends at once what is written in one turn of the event loop: head and body of an answer together."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._written:
            written, self._written = self._written, []
            self._transport.write(b"".join(written))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Connection(H11Protocol):
    """Closes the connection of a client that is too slow to send its headers, and answers one that has closed its half."""

    header_seconds = HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _has_ended = False
    """The client has closed its half of the connection, and waits for an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _Joined(transport, self.loop)))
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answer to a whole request. TLS has no half of a connection."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn says that there always is one
        is_asked = cycle is not None and not (cycle.more_body or cycle.response_started)
        self._has_ended = is_asked and self.scheme == "http"
        return self._has_ended

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_ended and self.cycle.response_complete:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """From the first byte of a request, or from the beginning of the connection, until its headers are complete."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@dataclass(slots=True)
class Listener:
    """Serves an application until it is stopped."""

    application: ASGIApp
    listening: socket.socket
    end_streams: Callable[[], None]
    """Called when it stops: answers that never end have to end."""
    tls: ssl.SSLContext | None = None
    proxies: tuple[str, ...] = ()
    """Addresses whose X-Forwarded-Proto and X-Forwarded-For are true."""
    header_seconds: float = HEADER_SECONDS
    _server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        host, port = self.listening.getsockname()[:2]
        scheme = "https" if self.tls else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def serve(self) -> None:
        class Connection(_Connection):
            header_seconds = self.header_seconds

        config = uvicorn.Config(
            _let_abort(self.application),
            http=Connection,
            proxy_headers=bool(self.proxies),
            forwarded_allow_ips=list(self.proxies),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            ws="websockets-sansio",
            ws_max_size=LARGEST_MESSAGE,
            ws_per_message_deflate=False,  # it costs more memory for each client than all of the rest
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
        )
        config.load()
        config.ssl = self.tls
        self._server = _Uvicorn(config)
        logging.getLogger("uvicorn.error").addFilter(_keep)
        try:
            await self._server.serve(sockets=[self.listening])
        except asyncio.CancelledError:
            self.stop()
            raise

    def stop(self) -> None:
        """Take no more requests, and answer those that are under way."""
        self.end_streams()
        if self._server:
            self._server.should_exit = True

    def kill(self) -> None:
        if self._server:
            self._server.should_exit = self._server.force_exit = True

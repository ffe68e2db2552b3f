"""Listens: a socket, and uvicorn on it in the event loop of the process, whose signals stay with the process."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from pointsman.errors import Problem, RequestInvalid
from pointsman.server.streams import ABORT

LOOPBACK_NAMES = ("localhost",)
BACKLOG = 1024
GRACE_SECONDS = 10
"""How long requests that are being answered may take when the server stops."""
KEEP_ALIVE_SECONDS = 75
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


def show_url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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


@dataclass(slots=True)
class Listener:
    """Serves an application until it is stopped."""

    application: FastAPI
    listening: socket.socket
    end_streams: Callable[[], None]
    """Called when it stops: answers that never end have to end."""
    _server: uvicorn.Server | None = None

    async def serve(self) -> None:
        config = uvicorn.Config(
            _let_abort(self.application),
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

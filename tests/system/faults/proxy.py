"""A proxy between a client and PostgreSQL that cuts connections, or becomes a black hole that passes nothing on."""

from __future__ import annotations

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from urllib.parse import quote

import psycopg


class Proxy:
    """Runs in a loop and a thread of its own: a test may block its loop while it waits for an answer."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        with psycopg.connect(url) as connection:
            self._host, self._port = connection.info.host, connection.info.port
            self._user, self._password = quote(connection.info.user), quote(connection.info.password)
            self._database = connection.info.dbname
        self._loop = loop
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._connections: dict[StreamWriter, StreamWriter] = {}
        """From each client to the server, and back."""

    @property
    def url(self) -> str:
        """The same database, behind this proxy."""
        assert self._server
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{self._user}:{self._password}@127.0.0.1:{port}/{self._database}?connect_timeout=2&sslmode=disable"

    def hold_all(self) -> None:
        """Pass nothing more on, over no connection, until it is released."""
        self._hold(asyncio.Event())

    def hold_open_connections(self) -> None:
        """Pass nothing more on over the connections that are open. Serve new ones."""
        is_open = asyncio.Event()
        is_open.set()
        self._hold(is_open)

    def release(self) -> None:
        """Serve new connections; those that were open before stay as they are."""
        self._loop.call_soon_threadsafe(self._open.set)

    def cut(self, chance: Random) -> bool:
        """Reset a connection, at both ends; whether there was one."""
        connections = list(self._connections.items())
        for end in chance.choice(connections) if connections else ():
            self._loop.call_soon_threadsafe(end.transport.abort)
        return bool(connections)

    def _hold(self, of_new: asyncio.Event) -> None:
        held, self._open = self._open, of_new
        self._loop.call_soon_threadsafe(held.clear)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        is_open = self._open
        if self._host.startswith("/"):
            upstream = await asyncio.open_unix_connection(str(Path(self._host, f".s.PGSQL.{self._port}")))
        else:
            upstream = await asyncio.open_connection(self._host, self._port)
        self._connections[writer] = upstream[1]
        for source, target in ((reader, upstream[1]), (upstream[0], writer)):
            pump = asyncio.create_task(_pump(source, target, is_open))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
            pump.add_done_callback(lambda _: self._connections.pop(writer, None))


async def _pump(source: StreamReader, target: StreamWriter, is_open: asyncio.Event) -> None:
    with suppress(OSError):
        try:
            while data := await source.read(1 << 16):
                await is_open.wait()
                target.write(data)
                await target.drain()
        finally:
            target.close()


@contextmanager
def proxy(url: str) -> Iterator[Proxy]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy")
    thread.start()
    between = Proxy(url, loop)
    asyncio.run_coroutine_threadsafe(between.start(), loop).result()
    try:
        yield between
    finally:
        asyncio.run_coroutine_threadsafe(between.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

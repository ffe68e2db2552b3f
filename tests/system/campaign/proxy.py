"""A proxy in front of PostgreSQL that cuts connections: at any moment, and without a word to either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from urllib.parse import parse_qs, urlsplit

CHUNK = 65_536


class Proxy:
    """Forwards connections from a port of this machine to the socket of a server."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._connections: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_unix_connection(self._socket)
        except OSError:  # the server is away
            writer.transport.abort()
            return
        both = (writer, requests)
        self._connections.append(both)
        try:
            await asyncio.gather(_forward(reader, requests), _forward(answers, writer))
        finally:
            self._connections.remove(both)
            for each in both:
                each.transport.abort()

    def cut(self, chance: Random) -> bool:
        """Cut one connection; whether there was one."""
        if not self._connections:
            return False
        _cut(chance.choice(self._connections))
        return True

    def cut_all(self) -> None:
        for both in self._connections:
            _cut(both)


@asynccontextmanager
async def open_proxy(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy in front of the server of a URL, and the URL that leads through it."""
    parts = urlsplit(url)
    (folder,) = parse_qs(parts.query)["host"]
    proxy = Proxy(f"{folder}/.s.PGSQL.5432")
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    finally:
        server.close()
        proxy.cut_all()


def _cut(both: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
    for writer in both:
        writer.transport.abort()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()

"""The listener and the application on it: clients that are slow, or send less than they announce."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.rooms.engine.harness import ManualClock, open_engine
from tests.rooms.server.test_route import make_site

from pointsman.server import message
from pointsman.server.application import build_application
from pointsman.server.dispatch import Dispatcher
from pointsman.server.listener import Listener, open_socket
from pointsman.server.routes import ALL

REQUEST = b"POST /api/workers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"workspace_id": "w"}'


@asynccontextmanager
async def listening(url: str, folder: Path) -> AsyncIterator[tuple[str, int]]:
    async with open_engine(url, ManualClock()) as engine:
        site = make_site(engine, folder)
        listener = Listener(Dispatcher(site, ALL, build_application(site)), open_socket("127.0.0.1", 0), site.end_streams)
        serving = asyncio.create_task(listener.serve())
        yield listener.listening.getsockname()
        listener.stop()
        await serving


async def test_a_body_that_stands_still_is_a_timeout_and_changes_nothing(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "SLOWEST_BODY_SECONDS", 0.3)
    async with listening(sqlite_url, tmp_path) as address:
        for head, begun in (
            (b"Content-Length: %d\r\n\r\n" % len(BODY), b""),
            (b"Content-Length: %d\r\n\r\n" % len(BODY), BODY[:-1]),
            (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n" % (len(BODY), BODY)),  # its end is missing
        ):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REQUEST + head + begun)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"/problems/request-timeout"' in answer
            writer.close()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /api/v1/workers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b'{"items":[],"next":null}')
        writer.close()


async def test_an_answer_arrives_in_one_piece(sqlite_url: str, tmp_path: Path) -> None:
    async with listening(sqlite_url, tmp_path) as address:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(20):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = (await reader.read(1 << 16)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert body == b'{"status":"ok"}'
        writer.close()

"""Streams on the wire: a WebSocket, and Server-Sent Events. Both carry the same frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from pointsman.errors import PointsmanError
from pointsman.server import problems
from pointsman.server.events import Frame, StreamQuery
from pointsman.server.live import Ending, Live, Stream
from pointsman.server.message import HEADERS, read_query, respond_with_problem
from pointsman.server.site import Site

SEND_SECONDS = 10.0
"""A client that takes nothing for so long is dropped. It continues with its cursor."""
ABORT = "pointsman.abort"
"""In the scope of a connection: ends it without waiting for what the client has not taken."""
SSE = "text/event-stream"

log = logging.getLogger(__name__)


async def serve_socket(site: Site, socket: WebSocket) -> None:
    """One WebSocket, from its handshake to its end. What is wrong with the handshake is a problem document."""
    try:
        holder = await site.door.admit_stream(socket)
        stream = await site.live.join(holder, read_query(socket, StreamQuery))
    except PointsmanError as error:
        await socket.send_denial_response(respond_with_problem(problems.explain(error, site.new_reference())))
        return
    except Exception:
        reference = site.new_reference()
        log.exception("a WebSocket failed", extra={"reference": reference})
        await socket.send_denial_response(respond_with_problem(problems.explain_fault(reference)))
        return
    try:
        with suppress(WebSocketDisconnect):
            await socket.accept()
            await _follow(
                site.live,
                stream,
                socket.scope,
                hearing=_hear_socket(socket, stream),
                send=lambda frame: socket.send_text(frame.text),
                finish=lambda: socket.close(*(stream.ending or Ending.LEFT).value),
            )
    finally:
        site.live.leave(stream)


async def _hear_socket(socket: WebSocket, stream: Stream) -> None:
    """Whatever a client sends ends its stream: there is nothing to say here."""
    message = await socket.receive()
    stream.end(Ending.TALKED if message["type"] == "websocket.receive" else Ending.LEFT)


class EventStream(Response):
    """Server-Sent Events: each frame is an event whose id is its cursor."""

    media_type = SSE

    def __init__(self, live: Live, stream: Stream) -> None:
        super().__init__(headers={**HEADERS, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._live, self._stream = live, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_frame(frame: Frame) -> None:
            text = f"id: {frame.cursor}\ndata: {frame.text}\n\n"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        async def hear() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._stream.end(Ending.LEFT)

        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _follow(
                self._live,
                self._stream,
                scope,
                hearing=hear(),
                send=send_frame,
                finish=lambda: send({"type": "http.response.body", "body": b"", "more_body": False}),
            )
        finally:
            self._live.leave(self._stream)


async def _follow(
    live: Live,
    stream: Stream,
    scope: Scope,
    *,
    hearing: Awaitable[None],
    send: Callable[[Frame], Awaitable[None]],
    finish: Callable[[], Awaitable[None]],
) -> None:
    """Send frames until the stream ends. A client that takes none of them is dropped."""
    listening = asyncio.ensure_future(hearing)
    try:
        while frames := await live.next_frames(stream):
            for frame in frames:
                async with asyncio.timeout(SEND_SECONDS):
                    await send(frame)
        async with asyncio.timeout(SEND_SECONDS):
            await finish()
    except TimeoutError:
        log.info("a client of the live events took nothing for %g seconds and was dropped", SEND_SECONDS)
        stream.end(Ending.LEFT)
        scope[ABORT]()
        await asyncio.wait({listening}, timeout=SEND_SECONDS)  # until the server knows that the connection has ended
    finally:
        listening.cancel()

"""/api/v1: logs of attempts."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from pointsman.errors import NotFound
from pointsman.server.logs import Follower, Snapshot, read_range
from pointsman.server.message import HEADERS
from pointsman.server.route import Call, Route
from pointsman.store.rows import Attempt

TEXT = "text/plain"
LOG_HEADERS = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
"""A log may contain anything. No browser renders it, or runs what is in it."""


class LogQuery(Struct, frozen=True, kw_only=True):
    """How to read a log."""

    follow: Annotated[bool, "Go on until the attempt ends. The header Range is ignored then."] = False


async def read_log(call: Call) -> Response:
    task = await call.engine.get_task(call.path["task_id"])
    attempt = await _find_attempt(call)
    logs = call.site.logs
    path = await asyncio.to_thread(logs.locate, task, attempt)
    query: LogQuery = call.query
    if query.follow:

        async def has_ended() -> bool:
            return (await _find_attempt(call)).ended_at is not None

        stream = Follower(logs, path).follow(has_ended, call.site.stopping)
        return StreamingResponse(stream, headers=LOG_HEADERS, media_type=TEXT)
    snapshot = await asyncio.to_thread(Snapshot.open, logs, path)
    asked = None if "if-range" in call.headers else call.headers.get("range")
    part = None if asked is None else read_range(asked, snapshot.total)
    first, end = part or (0, snapshot.total)
    headers = {**LOG_HEADERS, "Accept-Ranges": "bytes", "Content-Length": str(end - first)}
    if part:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{snapshot.total}"
    return StreamingResponse(snapshot.read(first, end), 206 if part else 200, headers, media_type=TEXT)


async def _find_attempt(call: Call) -> Attempt:
    task_id, number = call.path["task_id"], call.path["attempt"]
    for attempt in await call.engine.list_attempts(task_id):
        if str(attempt.epoch) == number:
            return attempt
    raise NotFound("attempt", number)


ROUTES = (
    Route(
        "GET",
        "/api/v1/tasks/{task_id}/attempts/{attempt}/log",
        "Read the log of an attempt, a range of it, or all of it until the attempt ends.",
        read_log,
        str,
        query=LogQuery,
        problems=("not-found", "log-elsewhere", "range-not-satisfiable"),
        media_type=TEXT,
        takes_range=True,
    ),
)

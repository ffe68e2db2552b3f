"""/api/v1: logs of attempts."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Annotated, Literal

from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from pointsman.engine.calls import AGENT_HEADER
from pointsman.engine.fields import Text, whole
from pointsman.engine.operations.attempts import check_epoch
from pointsman.engine.workers import check_key
from pointsman.errors import NotFound, Problem, RequestInvalid
from pointsman.server.logs import UNTRUSTED_HEADERS, Follower, Snapshot, respond_with_part
from pointsman.server.route import Call, Route
from pointsman.store.rows import Attempt, Task

TEXT = "text/plain"
LARGEST_OFFSET = 1 << 40


class LogQuery(Struct, frozen=True, kw_only=True):
    """How to read a log."""

    follow: Annotated[bool, "Go on until the attempt ends. The header Range is ignored then."] = False


class NewLogPart(Struct, frozen=True, kw_only=True):
    """Bytes of the log of an attempt."""

    part: Annotated[
        Literal["head", "older", "newest", "agent"],
        "Its beginning; of a log that is longer than its limit, the two files of its end; or the name of its coding agent.",
    ] = "head"
    offset: Annotated[int, whole(0, LARGEST_OFFSET), "Where the bytes belong in this part."]
    data: Annotated[Text, "The bytes, as Base64; at most a megabyte of them."]


class LogPartAnswer(Struct, frozen=True, kw_only=True):
    """How much of a part of a log the server has."""

    size: int
    """Send what comes next from here on. Bytes behind a gap are not stored."""


async def write_log(call: Call) -> LogPartAnswer:
    """Only the attempt that holds its task has a log that grows."""
    task = await call.engine.get_task(call.path["task_id"])
    attempt = await find_attempt(call)
    sent = call.read_as(NewLogPart)
    await check_writer(call, task, attempt)
    data = decode_base64(sent.data)
    size = await asyncio.to_thread(call.site.logs.write, task, attempt.epoch, sent.part, sent.offset, data)
    return LogPartAnswer(size=size)


async def check_writer(call: Call, task: Task, attempt: Attempt) -> None:
    """Only the worker that holds a task adds to what its attempt leaves."""
    check_epoch(task, attempt.epoch)
    if attempt.worker_id is not None:
        check_key(await call.engine.get_worker(attempt.worker_id), call.holder.key_id or None)


def decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise RequestInvalid([Problem("data", "It is not Base64.")]) from None


async def read_log(call: Call) -> Response:
    task = await call.engine.get_task(call.path["task_id"])
    attempt = await find_attempt(call)
    logs = call.site.logs
    path = await asyncio.to_thread(logs.locate, task, attempt)
    query: LogQuery = call.query
    if query.follow:

        async def has_ended() -> bool:
            return (await find_attempt(call)).ended_at is not None

        stream = Follower(logs, path).follow(has_ended, call.site.stopping)
        return StreamingResponse(stream, headers=UNTRUSTED_HEADERS, media_type=TEXT)
    snapshot = await asyncio.to_thread(Snapshot.open, logs, path)
    agent = await asyncio.to_thread(logs.read_agent, path)
    return respond_with_part(snapshot, call.headers, {AGENT_HEADER: agent} if agent else {}, TEXT)


async def find_attempt(call: Call) -> Attempt:
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
    Route(
        "POST",
        "/api/v1/tasks/{task_id}/attempts/{attempt}/log",
        "Send a part of the log of an attempt that runs on a machine without access to the files of the server.",
        write_log,
        LogPartAnswer,
        scope="worker",
        reads=NewLogPart,
        problems=("not-found", "lease-lost", "log-elsewhere", "not-your-worker"),
    ),
)

"""/api/v1: artifacts of attempts.

The name of an artifact may have slashes. It is a query parameter, because proxies rewrite encoded slashes and dots of paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

from msgspec import Struct
from starlette.responses import Response

from pointsman.artifacts import MAX_NAME_BYTES, NONE, ArtifactList, TaskArtifacts, is_name
from pointsman.engine.fields import Rule, Text, whole
from pointsman.errors import NotFound, Problem
from pointsman.server.logs import Logs, Snapshot, respond_with_part
from pointsman.server.pages import Page, paged, read_page
from pointsman.server.route import Call, Route
from pointsman.server.routes.v1_logs import LARGEST_OFFSET, check_writer, decode_base64, find_attempt
from pointsman.store.rows import Task

BYTES = "application/octet-stream"


def check_name(path: str, value: object) -> Iterator[Problem]:
    if not isinstance(value, str) or not is_name(value):
        yield Problem(path, "It is no name of an artifact. Give a printable path without `..`, such as `report/index.html`.")


ArtifactName = Annotated[str, Rule(check_name, {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES})]


class ArtifactQuery(Struct, frozen=True, kw_only=True):
    """Which artifact to read."""

    name: Annotated[ArtifactName, "The name of the artifact, as the list has it; slashes may be encoded."]


class NewArtifactPart(Struct, frozen=True, kw_only=True):
    """Bytes of an artifact."""

    name: Annotated[ArtifactName, "The path of the artifact, such as `report/index.html`."]
    offset: Annotated[int, whole(0, LARGEST_OFFSET), "Where the bytes belong in it."]
    data: Annotated[Text, "The bytes, as Base64; at most a megabyte of them. Without any, the artifact is an empty file."]


class ArtifactPartAnswer(Struct, frozen=True, kw_only=True):
    """How much of an artifact the server has."""

    size: int
    """Send what comes next from here on. Bytes behind a gap are not stored."""


class RunArtifactPage(Page[TaskArtifacts], frozen=True, kw_only=True):
    """The tasks of a run, in its order, each with what its last attempt has left."""


async def list_artifacts(call: Call) -> ArtifactList:
    task = await call.engine.get_task(call.path["task_id"])
    attempt = await find_attempt(call)
    return await asyncio.to_thread(call.site.logs.find_artifacts(task, attempt.epoch).list_files)


async def list_run_artifacts(call: Call) -> RunArtifactPage:
    tasks, behind = await read_page(call.query, call.engine.list_tasks_in_brief, call.path["run_id"])
    items = await asyncio.to_thread(lambda: [_find_left(call.site.logs, task) for task in tasks])
    return RunArtifactPage(items=tuple(items), next=behind)


def _find_left(logs: Logs, task: Task) -> TaskArtifacts:
    found = logs.find_artifacts(task, task.epoch).list_files() if task.epoch else NONE
    return TaskArtifacts(task_id=task.id, attempt=task.epoch, items=found.items, left_out=found.left_out)


async def read_artifact(call: Call) -> Response:
    task = await call.engine.get_task(call.path["task_id"])
    attempt = await find_attempt(call)
    query: ArtifactQuery = call.query
    try:
        file = await asyncio.to_thread(call.site.logs.find_artifacts(task, attempt.epoch).open, query.name)
    except OSError:  # a link, a folder or nothing
        raise NotFound("artifact", query.name) from None
    base = quote(query.name.rpartition("/")[2], safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{base}"}
    return respond_with_part(Snapshot.of(file), call.headers, headers, BYTES)


async def write_artifact(call: Call) -> ArtifactPartAnswer:
    """Only the attempt that holds its task leaves artifacts."""
    task = await call.engine.get_task(call.path["task_id"])
    attempt = await find_attempt(call)
    sent = call.read_as(NewArtifactPart)
    await check_writer(call, task, attempt)
    folder = call.site.logs.find_artifacts(task, attempt.epoch)
    return ArtifactPartAnswer(
        size=await asyncio.to_thread(folder.write, sent.name, sent.offset, decode_base64(sent.data)),
    )


ROUTES = (
    Route(
        "GET",
        "/api/v1/runs/{run_id}/artifacts",
        "List the artifacts of the tasks of a run: the files that the last attempt of each has left.",
        list_run_artifacts,
        RunArtifactPage,
        query=paged(),
        problems=("not-found",),
    ),
    Route(
        "GET",
        "/api/v1/tasks/{task_id}/attempts/{attempt}/artifacts",
        "List the artifacts of an attempt: the files that it has left in `$POINTSMAN_ARTIFACTS`.",
        list_artifacts,
        ArtifactList,
        problems=("not-found",),
    ),
    Route(
        "GET",
        "/api/v1/tasks/{task_id}/attempts/{attempt}/artifact",
        "Read an artifact of an attempt, or a range of it.",
        read_artifact,
        str,
        query=ArtifactQuery,
        problems=("not-found", "range-not-satisfiable"),
        media_type=BYTES,
        takes_range=True,
    ),
    Route(
        "POST",
        "/api/v1/tasks/{task_id}/attempts/{attempt}/artifact",
        "Send a part of an artifact of an attempt that runs on a machine without access to the files of the server.",
        write_artifact,
        ArtifactPartAnswer,
        scope="worker",
        reads=NewArtifactPart,
        problems=("not-found", "lease-lost", "artifact-refused", "not-your-worker"),
    ),
)

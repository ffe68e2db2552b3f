"""Requests and answers on the wire: bounded bodies, JSON, query parameters, idempotency keys."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from pointsman.engine.checks import MAX_JSON_DEPTH
from pointsman.engine.fields import shape_of
from pointsman.errors import CallRefused, Problem, RequestInvalid
from pointsman.server import problems

MAX_BODY_BYTES = 16 << 20
SLOWEST_BODY_SECONDS = 30.0
KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
JSON = "application/json"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_CLOSE = {"Connection": "close"}
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?", re.ASCII)
Declared = TypeVar("Declared", bound=Struct)


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object that was sent; an empty body is an empty object."""
    raw = await _receive(request)
    if not raw.strip():
        return {}
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise CallRefused("unsupported-media-type", f"The Content-Type is {media_type!a}. Send {JSON}.")
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        message = f"The body is not valid JSON: {str(error).rstrip('.')}. Send a JSON object."
        raise CallRefused("malformed-json", message) from None
    if not isinstance(body, dict):
        raise RequestInvalid([Problem("", "The body must be a JSON object.")])
    _check_depth(body)
    return body


async def _receive(request: Request) -> bytes:
    """All bytes of the body, up to the limit; a body that announces more is not read at all."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        message = "The body is compressed, which the server does not read. Send it without Content-Encoding."
        raise CallRefused("unsupported-media-type", message, headers=_CLOSE)
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        raise _too_large()
    chunks, size = [], 0
    try:
        async with asyncio.timeout(SLOWEST_BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        message = f"The body did not arrive within {SLOWEST_BODY_SECONDS:g} seconds. Send it again."
        raise CallRefused("request-timeout", message, headers=_CLOSE) from None
    except ClientDisconnect:
        raise CallRefused("request-timeout", "The client has gone before its body arrived.") from None
    return b"".join(chunks)


def _too_large() -> CallRefused:
    message = f"The body has more than {MAX_BODY_BYTES:,} bytes. Keep large things in files, and pass their paths."
    return CallRefused("body-too-large", message, headers=_CLOSE)


def _check_depth(body: object) -> None:
    """Without recursion, because depth is what is checked."""
    level: list[Any] = [body]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            below
            for each in level
            if isinstance(each, dict | list)
            for below in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise CallRefused("malformed-json", f"The body is nested more than {MAX_JSON_DEPTH} deep. Flatten it.")


def read_query(request: HTTPConnection, declared: type[Declared]) -> Declared:
    """The query parameters as the struct that declares them, or every problem with them."""
    found: list[Problem] = []
    values: dict[str, Any] = {}
    kinds = _find_kinds(declared)
    for name, value in request.query_params.multi_items():
        if name in values:
            found.append(Problem(name, "It is given twice. Give it once."))
        values[name] = _convert(value, kinds.get(name, frozenset()))
    read = shape_of(declared).read("", values, found)
    if found:
        raise RequestInvalid(found)
    assert isinstance(read, declared)
    return read


@cache
def _find_kinds(declared: type[Struct]) -> Mapping[str, frozenset[str]]:
    """By parameter: the types of JSON that it may have."""
    properties = shape_of(declared).schema()["properties"]
    return {
        name: frozenset(each.get("type", "") for each in schema.get("anyOf", [schema])) for name, schema in properties.items()
    }


def _convert(value: str, kinds: frozenset[str]) -> Any:
    """Query parameters are text; numbers and truth values are declared as such."""
    if "integer" in kinds and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit() and len(value) < 20:
        return int(value)
    if "number" in kinds and _NUMBER.fullmatch(value):
        return float(value)
    if "boolean" in kinds and value in ("true", "false"):
        return value == "true"
    return value


def read_headers(request: HTTPConnection, name: str) -> list[str]:
    """The values of a header, as the text that was meant: HTTP itself knows bytes only, and clients send UTF-8."""
    return [_read_text(value) for value in request.headers.getlist(name)]


def _read_text(value: str) -> str:
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def take_key(request: Request, body: dict[str, Any]) -> str | None:
    """The idempotency key, from the header or the body; both may be given if they agree."""
    headers = dict.fromkeys(read_headers(request, KEY_HEADER))
    if len(headers) > 1:
        raise RequestInvalid([Problem(KEY_HEADER, "It is given twice. Give it once.")])
    sent = body.pop("request_id", None)
    key = next(iter(headers), None)
    if key is not None and sent is not None and key != sent:
        message = f"It differs from the header {KEY_HEADER}. Give one of them, or the same key in both."
        raise RequestInvalid([Problem("request_id", message)])
    found: str | None = key if key is not None else sent
    return found


def hash_request(request: Request, body: Mapping[str, Any]) -> str:
    """What an idempotency key stands for: the same path, query and body, in whatever order its keys are."""
    sent = {"path": request.url.path, "query": request.url.query, "body": body}
    return hashlib.sha256(msgspec.json.encode(sent, order="deterministic")).hexdigest()


def respond(answer: object, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(answer), status, {**HEADERS, **(headers or {})}, media_type=JSON)


def respond_with_problem(problem: problems.Problem) -> Response:
    headers = {**HEADERS, **problem.headers}
    return Response(msgspec.json.encode(problem.body), problem.type.status, headers, media_type=problems.MEDIA_TYPE)

"""OpenAPI: the description of every route, derived from the declarations; examples are in examples.json."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from pointsman.engine.fields import shape_of
from pointsman.engine.operations.attempts import ReportAttempt
from pointsman.engine.operations.runs import AddTasks, SubmitRun
from pointsman.server.message import KEY_HEADER, REPLAYED_HEADER
from pointsman.server.problems import BY_NAME, MEDIA_TYPE, PROBLEMS, ProblemType
from pointsman.server.route import Route
from pointsman.views.moves import Move

REF = "#/components/schemas/{name}"
OF_EVERY_ROUTE = (
    *("unauthenticated", "forbidden", "host-refused", "origin-refused", "invalid-request"),
    *("rate-limited", "internal-error", "database-unavailable", "stopping"),
)
OF_CHANGES = (
    *("malformed-json", "request-timeout", "body-too-large", "unsupported-media-type"),
    *("key-reused", "overloaded", "outcome-unknown"),
)
ADDS_WORK = (SubmitRun, AddTasks, ReportAttempt)
OF_OPEN_ROUTES = ("host-refused", "internal-error", "database-unavailable", "stopping", "invalid-request")
PATH_PARAMETERS = {
    "method": "The method of the engine.",
    "run_id": "The id of a run.",
    "job_id": "The id of a job.",
    "task_id": "The id of a task.",
    "worker_id": "The id of a worker.",
    "entity_id": "The id of a run, a task, a worker or a circuit breaker.",
    "key_id": "The id of an API key.",
    "attempt": "The number of an attempt of the task, from 1.",
    "tool": "The name of a tool.",
    "tenant": "The name of a tenant.",
    "name": "The name, as lists and other answers have it.",
}
KEY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "pm_…",
    "description": "An API key. `pointsman key create` and `POST /api/v1/keys` create keys, with the scopes that they name. "
    "A server on a loopback address needs none until the first one is created.",
}
ANSWER_HEADERS = {
    401: {"WWW-Authenticate": "How to say who asks: `Bearer`."},
    429: {"Retry-After": "After how many seconds to try again, where that is known."},
    503: {"Retry-After": "After how many seconds to try again."},
}
EXAMPLES = Path(__file__).with_name("examples.json")
Json = dict[str, Any]


@cache
def load_examples() -> Json:
    """By method and path: the example of a request and of its answer; and by type, the members of problems."""
    found: Json = msgspec.json.decode(EXAMPLES.read_bytes())
    return found


def describe_schemas(routes: Iterable[Route]) -> Json:
    """The components: types of answers, by their names, and every type of problem."""
    _, components = msgspec.json.schema_components([Move, *(route.answers for route in routes)], ref_template=REF)
    return {**components, **{name_problem(each): each.schema() for each in PROBLEMS}}


def name_problem(problem: ProblemType) -> str:
    return "Problem" + "".join(word.capitalize() for word in problem.name.split("-"))


def name_schema(route: Route) -> str:
    """The name of the type of its answer."""
    texts = {"image/svg+xml": "SVG", "text/plain": "text", "application/octet-stream": "bytes"}
    return texts.get(route.media_type, getattr(route.answers, "__name__", "object"))


def list_problems(route: Route) -> list[ProblemType]:
    """Every problem that a route may answer with."""
    common = OF_OPEN_ROUTES if route.is_open else OF_EVERY_ROUTE
    names = {*common, *route.problems, *(OF_CHANGES if route.changes else ())}
    if route.operation in ADDS_WORK:
        names.add("quota-exceeded")
    return [BY_NAME[each.name] for each in PROBLEMS if each.name in names]


def describe_answers(route: Route) -> dict[int, Json]:
    """The answer, and every problem by its status."""
    (schema,), _ = msgspec.json.schema_components([route.answers], ref_template=REF)
    content: Json = {"schema": schema}
    if (example := _examples_of(route).get("answer")) is not None:
        content["example"] = example
    found: dict[int, Json] = {
        route.status: {"description": route.summary, "content": {route.media_type: content}, **_describe_headers(route)}
    }
    if route.takes_range:
        headers = {"Content-Range": {"description": "Which part it is.", "schema": {"type": "string"}}}
        found[206] = {"description": "The part that was asked for.", "content": {route.media_type: content}, "headers": headers}
    for problem in list_problems(route):
        answer = found.setdefault(problem.status, {"description": "", "content": {MEDIA_TYPE: {"schema": {"oneOf": []}}}})
        answer["description"] = "; ".join(filter(None, (answer["description"], problem.title)))
        answer["content"][MEDIA_TYPE]["schema"]["oneOf"].append({"$ref": REF.format(name=name_problem(problem))})
        answer["content"][MEDIA_TYPE].setdefault("examples", {})[problem.name] = {"value": show_problem(problem)}
    for status, named in ANSWER_HEADERS.items():
        if status in found:
            found[status]["headers"] = {name: _describe_text(text) for name, text in named.items()}
    return found


def describe_security(route: Route) -> list[Json]:
    """A key with the scope of the route, or none where the server has no keys; nothing at all for what is open to anybody."""
    return [] if route.is_open else [{"key": [route.scope]}, {}]


def _describe_text(text: str) -> Json:
    return {"description": text, "schema": {"type": "string"}}


def show_problem(problem: ProblemType) -> Json:
    return problem.describe(problem.detail, load_examples()["problems"].get(problem.name))


def describe_request(route: Route) -> Json:
    """Its parameters and its body."""
    described: Json = {"parameters": [*_describe_path(route), *_describe_query(route), *_describe_header(route)]}
    schema = route.body_schema()
    if schema is not None:
        content: Json = {"schema": schema}
        if (example := _examples_of(route).get("request")) is not None:
            content["example"] = example
        described["requestBody"] = {"required": bool(schema["required"]), "content": {"application/json": content}}
    return described


def _examples_of(route: Route) -> Json:
    found: Json = load_examples()["routes"].get(f"{route.method} {route.path}", {})
    return found


def _describe_path(route: Route) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in route.parameters
    ]


def _describe_query(route: Route) -> list[Json]:
    schema = shape_of(route.query).schema()
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema["required"],
            "description": each.get("description", ""),
            "schema": {key: value for key, value in each.items() if key != "description"},
        }
        for name, each in schema["properties"].items()
    ]


def _describe_header(route: Route) -> list[Json]:
    if route.takes_range:
        text = "One range of bytes: `bytes=0-999`, `bytes=1000-` or `bytes=-1000`. Anything else means the whole."
        return [{"name": "Range", "in": "header", "required": False, "description": text, "schema": {"type": "string"}}]
    if not route.changes:
        return []
    text = "Makes the request safe to repeat: the same key and the same body have one effect and one answer."
    schema = {"type": "string", "minLength": 1, "maxLength": 200}
    return [{"name": KEY_HEADER, "in": "header", "required": False, "description": text, "schema": schema}]


def _describe_headers(route: Route) -> Json:
    """Of the answer, if all goes well."""
    found: Json = {}
    if route.changes:
        text = "`true` if this is the stored answer of an earlier request with the same key."
        found[REPLAYED_HEADER] = {"description": text, "schema": {"const": "true"}}
    if route.location:
        found["Location"] = _describe_text(f"Where it can be read: `{route.location}`.")
    return {"headers": found} if found else {}

"""The routes and their OpenAPI document: complete, and true to the declarations."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, cast

import jsonschema
from tests.rows import each_row

from pointsman.engine.operations import OPERATIONS
from pointsman.server.application import build_application
from pointsman.server.openapi import load_examples, show_problem
from pointsman.server.problems import PROBLEMS, ProblemType
from pointsman.server.route import Route
from pointsman.server.routes import ALL, NOT_SERVED
from pointsman.server.site import Site

CHANGING = [route for route in ALL if route.changes]


@cache
def document() -> dict[str, Any]:
    """Routes are described without a site."""
    return build_application(cast("Site", None)).openapi()


def validate(schema: dict[str, Any], value: object) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document()["components"]}).validate(value)


def described(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = document()["paths"][route.path][route.method.lower()]
    return found


def test_every_operation_has_a_route_or_a_reason() -> None:
    served = {name for name, operation in OPERATIONS.items() if any(route.operation is operation for route in ALL)}
    assert served | set(NOT_SERVED) == set(OPERATIONS)
    assert not served & set(NOT_SERVED)
    assert all(NOT_SERVED.values())


def test_the_document_is_openapi_3_1_and_has_every_route_once() -> None:
    assert document()["openapi"].startswith("3.1")
    paths = {(method.upper(), path) for path, methods in document()["paths"].items() for method in methods}
    assert paths == {(route.method, route.path) for route in ALL}
    assert len(paths) == len(ALL)
    names = [operation["operationId"] for methods in document()["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    for reference in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document())):
        assert reference in document()["components"]["schemas"], reference


@each_row("route", ALL)
def test_a_route_has_its_parameters_body_answers_and_an_example_that_fits(route: Route) -> None:
    operation = described(route)
    examples = load_examples()["routes"][f"{route.method} {route.path}"]
    parameters = {(each["name"], each["in"]) for each in operation["parameters"]}
    assert {name for name, where in parameters if where == "path"} == set(re.findall(r"\{(\w+)\}", route.path))
    assert (("Idempotency-Key", "header") in parameters) == route.changes
    (media_type, answer), *others = operation["responses"][str(route.status)]["content"].items()
    assert (media_type, others) == (route.media_type, [])
    validate(answer["schema"], examples["answer"])
    assert answer["example"] == examples["answer"]
    for status in ("500", "503", "403"):
        assert operation["responses"][status]["content"]["application/problem+json"]["examples"]
    schema = route.body_schema()
    if schema is None:
        assert "requestBody" not in operation
        return
    assert operation["requestBody"]["content"]["application/json"]["schema"] == schema
    validate(schema, examples["request"])


WITHOUT_MOVES = {
    "Status": "how the server is",
    "RunView": "it has next_steps instead, with their effects",
    "TaskView": "a part of RunView, whose next_steps name their targets",
    "BudgetView": "what a run has spent",
    "KeyView": "whether an API key is valid: no machine moves it",
    "TaskCompleted": "an event",
    "TaskQuestion": "an event",
}


def test_every_answer_with_a_state_carries_what_is_allowed_next() -> None:
    schemas = document()["components"]["schemas"]
    with_state = {
        name: each["properties"]
        for name, each in schemas.items()
        if not name.startswith("Problem") and {"state", "status"} & each.get("properties", {}).keys()
    }
    assert {name for name, properties in with_state.items() if "allowed" not in properties} == set(WITHOUT_MOVES)


@each_row("route", ALL)
def test_a_route_says_what_a_generator_of_clients_needs(route: Route) -> None:
    operation = described(route)
    assert all(each["description"] for each in operation["parameters"])
    assert set(operation["tags"]) <= {tag["name"] for tag in document()["tags"]}
    assert operation["security"] == ([] if route.is_open else [{"key": [route.scope]}, {}])
    assert {name for each in operation["security"] for name in each} <= set(document()["components"]["securitySchemes"])
    headers = {status: set(answer.get("headers", ())) for status, answer in operation["responses"].items()}
    assert ("Location" in headers[str(route.status)]) == bool(route.location)
    assert "Retry-After" in headers["503"]
    assert route.is_open or "WWW-Authenticate" in headers["401"]


@each_row("problem", PROBLEMS)
def test_the_example_of_a_problem_fits_its_schema(problem: ProblemType) -> None:
    validate(problem.schema(), show_problem(problem))


def test_no_example_is_left_over() -> None:
    assert set(load_examples()["routes"]) == {f"{route.method} {route.path}" for route in ALL}
    assert set(load_examples()["problems"]) == {problem.name for problem in PROBLEMS if problem.members or problem.extras}


@each_row("route", CHANGING)
def test_every_route_that_changes_something_reads_a_request_id_and_needs_a_scope(route: Route) -> None:
    schema = route.body_schema()
    assert schema is not None
    assert "request_id" in schema["properties"] or route.operation is None
    assert route.operation is None or route.scope != "read"

"""The dispatcher finds for each request the route that FastAPI would find, and leaves everything else to it."""

from __future__ import annotations

from typing import cast

import pytest
from starlette.routing import Match
from starlette.routing import Route as RouteOfPath
from tests.rows import each_row

from pointsman.server.application import build_application, name_operation
from pointsman.server.dispatch import Dispatcher, split
from pointsman.server.route import Route
from pointsman.server.routes import ALL
from pointsman.server.site import Site

SITE = cast("Site", None)
APPLICATION = build_application(SITE)
DISPATCHER = Dispatcher(SITE, ALL, APPLICATION)


def fill(route: Route, value: str) -> str:
    return "/".join(value if part.startswith("{") else part for part in route.path.split("/"))


def find_of_fastapi(method: str, path: str) -> str | None:
    """The name of the operation that FastAPI finds."""
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    for each in APPLICATION.routes:
        if isinstance(each, RouteOfPath) and each.matches(scope)[0] is Match.FULL:
            return str(getattr(each, "operation_id", None))
    return None


@each_row("route", ALL)
def test_each_route_is_found_with_its_values(route: Route) -> None:
    found = DISPATCHER.find(route.method, split(fill(route, "x y")))
    assert found == (route, ["x y"] * len(route.parameters))


@each_row("route", ALL)
def test_an_encoded_slash_belongs_to_a_value(route: Route) -> None:
    raw_path = fill(route, "x%2Fy%2f..%25").encode()
    found = DISPATCHER.find(route.method, split(fill(route, "x/y/..%"), raw_path))
    assert found == (route, ["x/y/..%"] * len(route.parameters))


@each_row("route", ALL)
def test_a_path_that_two_routes_fit_goes_where_fastapi_sends_it(route: Route) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        for value in ("x", "bulk", "check", "run", "stream"):
            path = fill(route, value)
            found = DISPATCHER.find(method, split(path))
            assert (name_operation(found[0]) if found else None) == find_of_fastapi(method, path), (method, path)


@pytest.mark.parametrize(
    "path", ["", "/", "/runs/", "/runs//", "//runs", "/api/v1", "/openapi.json", "/" * 5_000, "/runs/a/b/c/d"]
)
def test_other_paths_are_left_to_the_application(path: str) -> None:
    assert DISPATCHER.find("GET", split(path)) is None
    assert DISPATCHER.find("BREW", split("/runs")) is None


@each_row("route", ALL)
def test_head_is_get_unless_its_answer_does_not_end(route: Route) -> None:
    path = fill(route, "x")
    reads = DISPATCHER.find("GET", split(path))
    expected = None if reads is None or reads[0].streams else reads
    assert DISPATCHER.find("HEAD", split(path)) == expected

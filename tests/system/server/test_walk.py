"""Every route × two tenants × every scope: what belongs to another tenant is answered as what does not exist, byte for byte."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

from tests.system.server.fuzz import create_things
from tests.system.server.harness import PATIENCE_SECONDS, Client, Reply, start
from tests.system.server.test_keys import BODIES, EVERY, JSON, QUERIES, create_keys, with_key

from pointsman.engine.operations.keys import Scope
from pointsman.server.route import Route
from pointsman.server.routes import ALL

CREATES = {("PUT", "/api/v1/breakers/{tool}"), ("PUT", "/api/v1/templates/{name}")}
"""These make a thing of that name for the tenant itself."""
OF_EVERYBODY = ("/problems/{name}", "/api/v1/machines/{name}", "/api/v1/machines/{name}/svg")
"""These show what belongs to nobody."""


def ask(client: Client, route: Route, named: dict[str, str]) -> Reply:
    path = route.path
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", named[name])
    body = BODIES.get(route.path)
    path += QUERIES.get(f"{route.method} {route.path}", "")
    return client.send(route.method, path, json.dumps(body).encode() if body else None, JSON if body else {})


def find_scopes(route: Route) -> tuple[str | None, ...]:
    """The scopes that its body here needs: to cancel a task is no decision. Calls are in `test_engine_calls.py`."""
    if route.names_call:
        return EVERY
    return (route.scope,) if route.path == "/api/v1/tasks/{task_id}/signals" else (route.scope, route.or_scope)


def check_route(client: Client, route: Route, scope: Scope, theirs: dict[str, str]) -> None:
    """With a key of one scope, about a thing of the other tenant and about nothing."""
    if route.streams and route.scope == scope:
        return  # it does not end, and names nothing
    unknown = {name: value[:-1] + ("0" if value[-1] != "0" else "1") for name, value in theirs.items()}
    answers = [ask(client, route, named) for named in (theirs, unknown)]
    place = (route.method, route.path, scope, answers)
    if route.is_open:
        assert all(answer.status < 500 for answer in answers), place
    elif scope not in find_scopes(route):
        assert [answer.problem for answer in answers] == ["forbidden", "forbidden"], place
        assert answers[0].text == answers[1].text, place
        assert answers[0].json["scope"] == route.scope, place
    elif route.parameters and (route.method, route.path) not in CREATES and route.path not in OF_EVERYBODY:
        name = route.parameters[0]
        assert [answer.problem for answer in answers] == ["not-found", "not-found"], place
        assert answers[0].text == answers[1].text.replace(unknown[name].encode(), theirs[name].encode()), place
        assert {k: v for k, v in answers[0].headers.items() if k not in ("date", "content-length")} == {
            k: v for k, v in answers[1].headers.items() if k not in ("date", "content-length")
        }, place


def test_no_scope_shows_or_moves_what_belongs_to_another_tenant(tmp_path: Path, database_url: str) -> None:
    tenants = ("acme", "globex")
    wanted: list[tuple[str, str, tuple[Scope, ...]]] = [
        (tenant, f"{tenant}-{scope}", (scope,)) for tenant in tenants for scope in EVERY
    ]
    root, other, *single = create_keys(database_url, [(tenant, "root", EVERY) for tenant in tenants] + wanted)
    with start("serve", tmp_path, database_url) as (client, _):
        things = {tenant: create_things(with_key(client, key)) for tenant, key in zip(tenants, (root, other), strict=True)}
        for tenant in tenants:
            things[tenant]["tenant"] = tenant
            things[tenant]["tool"] = f"{tenant}-tool"
            things[tenant]["name"] = f"{tenant}-template"
            things[tenant]["attempt"] = "1"
            things[tenant]["method"] = f"{tenant}-method"
        for tenant, key in zip(tenants, (root, other), strict=True):
            with_key(client, key).call("PUT", f"/api/v1/breakers/{tenant}-tool", {})
            with_key(client, key).call("PUT", f"/api/v1/templates/{tenant}-template", {"text": "tasks: {a: {run: 'true'}}"})
        before = {
            tenant: show(with_key(client, key), things[tenant]) for tenant, key in zip(tenants, (root, other), strict=True)
        }
        for (tenant, _, (scope,)), key in zip(wanted, single, strict=True):
            (victim,) = (each for each in tenants if each != tenant)
            for route in ALL:
                if (route.method, route.path) not in CREATES or route.scope != scope:
                    check_route(with_key(client, key), route, scope, things[victim])
        after = {
            tenant: show(with_key(client, key), things[tenant]) for tenant, key in zip(tenants, (root, other), strict=True)
        }
        assert before == after


def show(client: Client, things: dict[str, str]) -> list[bytes]:
    """How the things of a tenant stand, and how they came there; not of its worker, whose lease runs out by itself."""
    ids = [things[name] for name in ("run_id", "job_id", "task_id")]
    paths = [f"/api/v1/history/{each}" for each in ids] + ["/api/v1/keys", "/api/v1/breakers", "/api/v1/templates"]
    answers = [client.get(path) for path in paths]
    assert {answer.status for answer in answers} == {200}
    return [re.sub(rb'"last_used_at":("[^"]*"|null)', b"", answer.text) for answer in answers]


PAIRS = 300
TRIES = 4
ALIKE = 1.1
"""One more query makes it more than that."""


def test_nothing_takes_as_long_as_what_belongs_to_another_tenant(tmp_path: Path, database_url: str) -> None:
    """A ratio of medians of requests in turns; the machine may be busy, so the most even of some tries counts."""
    ours, theirs = create_keys(database_url, [("acme", "ada", EVERY), ("globex", "bob", EVERY)])
    with start("serve", tmp_path, database_url) as (anybody, _):
        things = create_things(with_key(anybody, theirs))
        for path in ("/runs/{run_id}", "/api/tasks/{task_id}", "/api/v1/workers/{worker_id}", "/api/v1/history/{entity_id}"):
            foreign = path.format(**things)
            unknown = foreign[:-1] + ("0" if foreign[-1] != "0" else "1")
            ratios: list[float] = []
            while len(ratios) < TRIES and not any(1 / ALIKE < ratio < ALIKE for ratio in ratios):
                ratios.append(compare_times(with_key(anybody, ours), foreign, unknown))
            assert any(1 / ALIKE < ratio < ALIKE for ratio in ratios), (path, ratios)


def compare_times(client: Client, foreign: str, unknown: str) -> float:
    """How many times as long the first one takes to be not found, over one connection."""
    parts = urlsplit(client.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_SECONDS)
    seconds: dict[str, list[float]] = {foreign: [], unknown: []}
    try:
        for number in range(PAIRS):
            for path in (foreign, unknown) if number % 2 else (unknown, foreign):
                began = perf_counter()
                connection.request("GET", path, headers=client.headers)
                answer = connection.getresponse()
                answer.read()
                seconds[path].append(perf_counter() - began)
                assert answer.status == 404
    finally:
        connection.close()
    return median(seconds[foreign]) / median(seconds[unknown])

"""A route answers whatever happens: a defect is a problem that tells nothing of the inside, and is in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import cast

import pytest
from starlette.requests import Request
from tests.rooms.engine.harness import ManualClock, open_engine

from pointsman.engine.engine import Engine, TenantEngine
from pointsman.server.answers import Status
from pointsman.server.auth import Door
from pointsman.server.listener import is_loopback
from pointsman.server.live import Live
from pointsman.server.logs import Logs
from pointsman.server.metrics import Metrics
from pointsman.server.route import Call, Route
from pointsman.server.sent_flows import SentFlows
from pointsman.server.site import Site
from pointsman.server.turns import Turns
from pointsman.server.wakeups import WakeupCounter
from pointsman.settings import load_settings
from pointsman.world import World

NO_LOGS = cast("Logs", None)


def make_site(engine: Engine, folder: Path) -> Site:
    async def declare(_: TenantEngine, __: object) -> None:
        pass

    world = World()
    door, live, metrics = Door(engine, world.clock, "ada"), Live(engine, world), Metrics(engine, world.process)
    turns = Turns(engine, world.sleep)
    wakeups = WakeupCounter(engine, world.process, turns)
    settings = load_settings(folder, {}, {})
    return Site(
        engine,
        settings,
        world,
        door,
        live,
        NO_LOGS,
        SentFlows(settings, engine.get_lifecycle),
        declare,
        metrics,
        turns,
        wakeups,
    )


def make_request(path: str) -> Request:
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "scheme": "http", "path_params": {}}
    return Request({**scope, "headers": [(b"host", b"localhost:1")], "server": ("127.0.0.1", 1)})


async def test_a_defect_is_an_answer_with_a_reference_to_the_log(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(_: Call) -> Status:
        raise ZeroDivisionError("the password is hunter2")

    route = Route("GET", "/broken", "Breaks down.", break_down, Status)
    async with open_engine(sqlite_url, ManualClock()) as engine:
        with caplog.at_level(logging.ERROR, "pointsman.server"):
            reply = await route.answer(make_site(engine, tmp_path), make_request("/broken"))
    body = json.loads(bytes(reply.body))
    assert (reply.status_code, body["type"]) == (500, "/problems/internal-error")
    assert b"hunter2" not in bytes(reply.body)
    (record,) = caplog.records
    assert record.exc_info
    assert record.__dict__["reference"] == body["reference"]


async def test_a_closed_engine_is_a_server_that_stops(sqlite_url: str, tmp_path: Path) -> None:
    async def look(call: Call) -> object:
        return await call.engine.list_runs()

    async with open_engine(sqlite_url, ManualClock()) as engine:
        site = make_site(engine, tmp_path)
    reply = await Route("GET", "/runs", "Looks.", look, Status, is_open=True).answer(site, make_request("/runs"))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert json.loads(bytes(reply.body))["type"] == "/problems/stopping"


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org", "")))

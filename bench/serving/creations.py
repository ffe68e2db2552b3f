"""Runs that are created over HTTP: Prefect's server against ours, both on SQLite.

Prefect needs an extension of PostgreSQL (`pg_trgm`) that the PostgreSQL of the benchmarks does not have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

from bench.contenders import Answer, Entry, rates, take_turns
from bench.databases import Database
from bench.flows.scene import tell
from bench.peers.prefect import environment
from bench.peers.prefect import served as prefect_served
from bench.report import Row, Table, Target, quickest, rate_row
from bench.serving.load import Generator, write_request
from bench.serving.scale import Scale
from bench.serving.served import served

CONNECTIONS = (1, 8)
"""Prefect's server is measured with each; the quickest counts."""
TARGET = Target(10.0)
TEMPLATE = "name: one\ntasks: {a: {command: ['true']}}\n"
PATIENCE_SECONDS = 60


def measure(databases: Sequence[Database], scale: Scale, prefect_python: str | None) -> list[Table]:
    if prefect_python is None:
        return []
    return [_measure_one(database, scale, prefect_python) for database in databases if database.kind == "sqlite"]


def _measure_one(database: Database, scale: Scale, prefect_python: str) -> Table:
    with ExitStack() as stack:
        own = stack.enter_context(served(database.new("pointsman_creations")))
        own.call("PUT", "/api/v1/templates/one", {"text": TEMPLATE})
        submit = write_request("POST", "/runs", b'{"template": "one"}')
        url = _start_prefect(stack, prefect_python)
        flow_id = _create_flow(url)
        create = write_request("POST", "/api/flow_runs/", json.dumps({"flow_id": flow_id}).encode())
        entries = [Entry("Pointsman", _sender(own.url, 32, submit), first=320)]
        for connections in CONNECTIONS:
            send = _sender(url, connections, create)
            entries.append(Entry(f"Prefect, {connections} at once", send, first=96))
        answers = take_turns(entries, scale.pace, lambda what: tell(f"creations, {database.name}: {what}"))
    by_name = {name: rates(each) for name, each in answers.items()}
    own_rates = by_name.pop("Pointsman")
    best = quickest(by_name)
    rows: list[Row] = [rate_row("Pointsman, `POST /runs`, one task, 32 at once", own_rates, unit="runs/s")]
    for name, each in by_name.items():
        what = f"{name.replace('Prefect', 'Prefect, `POST /api/flow_runs/`, no tasks')}"
        rows.append(rate_row(what, each, unit="runs/s", own=own_rates, target=TARGET if name == best else None))
    return Table(f"Runs created over HTTP, {database.name}", rows)


def _sender(url: str, connections: int, request: bytes) -> Callable[[int], Answer]:
    return partial(_send, Generator(url, connections), request)


def _send(generator: Generator, request: bytes, number: int) -> Answer:
    return {"tasks": number, "seconds": generator.run(number, lambda _: request, 201).seconds}


def _start_prefect(stack: ExitStack, prefect_python: str) -> str:
    home = stack.enter_context(TemporaryDirectory(prefix="pointsman-bench-prefect-", ignore_cleanup_errors=True))
    env = environment(home, None)
    stack.enter_context(prefect_served(env, prefect_python))
    return env["PREFECT_API_URL"].removesuffix("/api")


def _create_flow(url: str) -> str:
    request = Request(f"{url}/api/flows/", json.dumps({"name": "one"}).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        created: dict[str, Any] = json.loads(answer.read())
    return str(created["id"])

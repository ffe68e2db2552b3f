"""Requests: a run that is read, and a run that is submitted and durable, against an empty route of FastAPI."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count

from bench.contenders import Answer, Entry, rates, take_turns
from bench.databases import Database
from bench.flows.scene import tell
from bench.report import Row, Table, Target, ratio_of, spread, times
from bench.serving.load import Generator, MakeRequest, write_request
from bench.serving.scale import Scale
from bench.serving.served import Served, empty, served

CONNECTIONS = 32
EMPTY = write_request("GET", "/")
OWN, BEST = "empty route of FastAPI, our listener", "empty route of FastAPI, uvloop and httptools"
READ, FLOW, PLAIN = "GET /api/v1/runs/{id}", "POST /runs of a template with one task", "POST /api/v1/runs with one task"
TARGETS: Mapping[str, Target | None] = {READ: Target(0.5), FLOW: Target(0.25), PLAIN: Target(0.25)}
TEMPLATE = "name: one\ntasks: {a: {command: ['true']}}\n"
RUN = {"name": "one", "tasks": [{"name": "a", "payload": {"command": ["true"]}}]}
RUNS = 1_000
"""How many there are to be read; each request reads another one."""


def measure(databases: Sequence[Database], scale: Scale) -> list[Table]:
    with ExitStack() as stack:
        entries = [
            _make_entry(OWN, stack.enter_context(empty("own")), lambda _: EMPTY),
            _make_entry(BEST, stack.enter_context(empty("best")), lambda _: EMPTY),
        ]
        for database in databases:
            server = stack.enter_context(served(database.new("pointsman_requests")))
            entries += _make_own(database.name, server)
        answers = take_turns(entries, scale.pace, lambda what: tell(f"requests: {what}"))
    reference, best = rates(answers[OWN]), rates(answers[BEST])
    rows = [_make_row(OWN, answers[OWN]), _make_row(BEST, answers[BEST])]
    for database in databases:
        for what, target in TARGETS.items():
            rows.append(_make_row(f"{what}, {database.name}", answers[f"{what}, {database.name}"], reference, best, target))
    return [Table(f"Requests over {CONNECTIONS} connections", rows)]


def _make_own(name: str, server: Served) -> list[Entry]:
    server.call("PUT", "/api/v1/templates/one", {"text": TEMPLATE})
    submissions = [
        write_request("POST", "/api/v1/runs", json.dumps({**RUN, "name": f"r{each}"}).encode()) for each in range(RUNS)
    ]
    Generator(server.url, CONNECTIONS).run(RUNS, lambda number: submissions[number], 201)
    ids = [run["id"] for run in server.call("GET", f"/api/v1/runs?limit={RUNS}")["items"]]
    reads = [write_request("GET", f"/api/v1/runs/{run_id}") for run_id in ids]
    flow = write_request("POST", "/runs", b'{"template": "one"}')
    plain = write_request("POST", "/api/v1/runs", json.dumps(RUN).encode())
    next_read = count()
    return [
        _make_entry(f"{READ}, {name}", server.url, lambda _: reads[next(next_read) % len(reads)]),
        _make_entry(f"{FLOW}, {name}", server.url, lambda _: flow, 201),
        _make_entry(f"{PLAIN}, {name}", server.url, lambda _: plain, 201),
    ]


def _make_entry(name: str, url: str, request: MakeRequest, status: int = 200) -> Entry:
    generator = Generator(url, CONNECTIONS)
    return Entry(name, partial(_send, generator, request, status), batch=CONNECTIONS, first=10 * CONNECTIONS)


def _send(generator: Generator, request: MakeRequest, status: int, number: int) -> Answer:
    load = generator.run(number, request, status)
    return {"tasks": number, "seconds": load.seconds, "latencies": load.latencies}


def _make_row(
    what: str,
    answers: Sequence[Answer],
    reference: Sequence[float] | None = None,
    best: Sequence[float] | None = None,
    target: Target | None = None,
) -> Row:
    """The ratio says how many times the rate of the empty route behind our listener it is."""
    measured = rates(answers)
    millis = sorted(latency * 1e3 for answer in answers for latency in answer["latencies"])
    note = f"p50 {statistics.median(millis):.1f} ms, p99 {millis[int(len(millis) * 0.99)]:.1f} ms"
    if reference is None or best is None:
        return Row(what, spread(measured, "requests/s"), tuple(measured), note=note)
    ratio = ratio_of(measured, reference)
    note += f"; {times(ratio_of(measured, best))} the rate with uvloop and httptools"
    met = None if target is None else target.is_met_by(ratio)
    return Row(what, spread(measured, "requests/s"), tuple(measured), ratio, target, met, note)

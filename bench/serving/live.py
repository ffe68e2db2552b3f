"""Live events: how long a transition takes to reach 1,000 WebSockets, and what each of them costs.

    a process with an engine ── 200 transitions a second ──▶ database ──▶ `pointsman serve` ──▶ 1,000 WebSockets of this process

The latency of an event is the time from its `at` (the clock of the database, on the same machine) to its arrival in a client.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from functools import cache

from bench.contenders import ROOT
from bench.databases import Database
from bench.flows.scene import tell
from bench.report import Row, Table, Target
from bench.serving.process import read_memory
from bench.serving.scale import Scale
from bench.serving.served import served
from bench.serving.sockets import Client, Clients

from pointsman import app
from pointsman.engine.submit import NewRun, NewTask

RATE = 200
"""Transitions a second."""
MOVES = 5
"""Transitions of a run that is submitted and canceled: its beginning, readiness and end, and those of its task."""
SILENCE_SECONDS = 3.0
"""After so long without a message, none is still to come."""
TARGET = Target(1.0, at_most=True, unit=" s")


def measure(databases: Sequence[Database], scale: Scale) -> list[Table]:
    rows = [row for database in databases for row in _measure_one(database, scale)]
    return [Table(f"Live events: {scale.clients:,} WebSockets, {RATE} transitions a second for {scale.live_seconds:g} s", rows)]


def _measure_one(database: Database, scale: Scale) -> list[Row]:
    tell(f"live events: {database.name}")
    url = database.new("pointsman_live")
    with served(url) as server:
        before = read_memory(server.pid)
        clients = Clients(server.url, "/api/v1/events", scale.clients)
        try:
            idle = read_memory(server.pid)
            _follow(clients, url, scale.live_seconds)
            loaded = read_memory(server.pid)
        finally:
            clients.close()
    counts = {count_events(client) for client in clients.all}
    assert len(counts) == 1, f"every client gets every event, but they have {sorted(counts)}"
    delays = sorted(delay for client in clients.all for delay in list_delays(client))
    name = f"{database.name}: from the commit to a client"
    at = f"p50 {delays[len(delays) // 2]:.2f} s, p99 {delays[int(len(delays) * 0.99)]:.2f} s, longest {delays[-1]:.2f} s"
    note = f"{counts.pop():,} events each"
    each = [(size - before) / scale.clients / 1e3 for size in (idle, loaded)]
    memory = f"{each[0]:.0f} kB idle, {each[1]:.0f} kB under load"
    return [
        Row(name, at, (delays[-1],), None, TARGET, TARGET.is_met_by(delays[-1]), note),
        Row(f"{database.name}: memory of the server for each client", memory, tuple(each)),
    ]


def _follow(clients: Clients, url: str, seconds: float) -> None:
    command = [sys.executable, "-m", "bench.serving.live", url, str(seconds)]
    producer = subprocess.Popen(command, cwd=ROOT)

    def is_over() -> bool:
        return producer.poll() is not None and time.time() > clients.last_arrival + SILENCE_SECONDS

    try:
        clients.listen(is_over)
        assert producer.returncode == 0
    finally:
        producer.kill()
        producer.wait()


async def produce(url: str, seconds: float) -> None:
    """Runs that are submitted and canceled, at a steady rate."""
    runs = int(RATE * seconds / MOVES)
    async with app.open(url, keeps=False) as engine:

        async def one(begin: float) -> None:
            await asyncio.sleep(begin)
            run = await engine.submit_run(NewRun(name="x", tasks=[NewTask(name="a")], lifecycle="approval"))
            await engine.signal_run(run.id, "cancel")

        await asyncio.gather(*(one(number * seconds / runs) for number in range(runs)))


@cache
def list_instants(message: bytes) -> list[float]:
    """All clients get the same frames, so each is decoded once."""
    return [datetime.fromisoformat(each["at"]).timestamp() for each in json.loads(message)["events"]]


def list_delays(client: Client) -> list[float]:
    return [arrived - at for message, arrived in client.messages for at in list_instants(message)]


def count_events(client: Client) -> int:
    return sum(len(list_instants(message)) for message, _ in client.messages)


if __name__ == "__main__":
    asyncio.run(produce(sys.argv[1], float(sys.argv[2])))

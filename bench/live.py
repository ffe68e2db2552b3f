"""Live events: how long a transition takes to reach 1,000 WebSocket clients, and what a client costs.

    engine ── 200 transitions a second ──▶ database ──▶ `pointsman serve` ──▶ 1,000 WebSockets of this process

    python bench/live.py [--clients 1000] [--rate 200] [--seconds 10] [--store URL]

The latency of an event is the time from its `at` (the clock of the database, on the same machine) to its arrival in the client.
The clients run on the same cores as the server and the engine, so the figures are upper bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect

from pointsman import app
from pointsman.engine.submit import NewRun, NewTask

MOVES = 4
"""Transitions of a run that is submitted and canceled: its beginning and its end, and those of its task."""


def measure_memory(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def produce(url: str, rate: float, seconds: float) -> None:
    """Runs that are submitted and canceled, at a steady rate."""
    runs = int(rate * seconds / MOVES)
    async with app.open(url, keeps=False) as engine:

        async def one(begin: float) -> None:
            await asyncio.sleep(begin)
            run = await engine.submit_run(NewRun(name="x", tasks=[NewTask(name="a")], lifecycle="approval"))
            await engine.signal_run(run.id, "cancel")

        await asyncio.gather(*(one(number * seconds / runs) for number in range(runs)))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--store")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = asked.store or f"sqlite:///{folder}/pointsman.db"
        (Path(folder) / ".pointsman").mkdir()
        command = [sys.executable, "-m", "pointsman", "serve", "--port", "0", "--json", "--store", store]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
        try:
            assert process.stdout
            await measure(process.pid, json.loads(process.stdout.readline())["url"], store, asked)
        finally:
            process.terminate()
            process.wait()


async def measure(pid: int, url: str, store: str, asked: argparse.Namespace) -> None:
    before = measure_memory(pid)
    address = url.replace("http", "ws") + "/api/v1/events"
    connections = [await connect(address, compression=None) for _ in range(asked.clients)]
    idle = measure_memory(pid)
    seen: list[list[tuple[str, float]]] = [[] for _ in connections]
    followers = [asyncio.create_task(collect(each, seen[number])) for number, each in enumerate(connections)]
    producer = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--produce", store, str(asked.rate), str(asked.seconds)
    )
    await producer.wait()
    await asyncio.sleep(2)
    loaded = measure_memory(pid)
    for each in followers:
        each.cancel()
    delays = sorted(find_delays(seen))
    events = max(map(count_events, seen))
    assert all(count_events(each) == events for each in seen), "every client has every event"
    print(f"{asked.clients} clients, {events} events each in {asked.seconds:g} s ({store.split(':', maxsplit=1)[0]})")
    print(f"latency: p50 {delays[len(delays) // 2]:.3f} s, p99 {delays[int(len(delays) * 0.99)]:.3f} s, max {delays[-1]:.3f} s")
    for name, size in (("with idle clients", idle), ("under load", loaded)):
        print(f"memory {name}: {size / 1e6:.0f} MB, {(size - before) / asked.clients / 1e3:.1f} kB for each client")


async def collect(connection: ClientConnection, seen: list[tuple[str, float]]) -> None:
    async for text in connection:
        seen.append((str(text), time.time()))  # noqa: PERF401 - what has arrived counts when this is canceled


_AT: dict[str, list[float]] = {}


def list_instants(text: str) -> list[float]:
    """All clients get the same frames, so each is decoded once."""
    if text not in _AT:
        events = json.loads(text)["events"]
        _AT[text] = [datetime.fromisoformat(each["at"]).timestamp() for each in events]
    return _AT[text]


def find_delays(seen: list[list[tuple[str, float]]]) -> list[float]:
    return [arrived - at for frames in seen for text, arrived in frames for at in list_instants(text)]


def count_events(frames: list[tuple[str, float]]) -> int:
    return sum(len(list_instants(text)) for text, _ in frames)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--produce"]:
        asyncio.run(produce(sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
    else:
        asyncio.run(main())

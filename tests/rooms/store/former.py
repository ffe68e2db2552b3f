"""Writes stores of the present schema, which `test_upgrades.py` converts once there is a newer one.

Run this before the tables are changed, and commit the files:

    .venv/bin/python -m tests.rooms.store.former

The stores have something of everything: each lifecycle, finished and unfinished work, attempts that failed, were lost or were
taken over, costs, questions, reviews, gates, subtasks, circuits, timers, seals, notices and stored answers.
"""

from __future__ import annotations

import asyncio
import gzip
import tempfile
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from msgspec.structs import replace
from tests import databases
from tests.rooms.engine.harness import ManualClock, open_engine, pass_time

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.store.contract import Reader
from pointsman.store.rows import Run, Worker
from pointsman.store.scripts import read_migrations

FOLDER = Path(__file__).with_name("former")
TENANTS = ("default", "acme")
MOST = 100_000
PAYLOAD = {"text": "Weichenwärter „Ω“ 転轍手 🚂\n\t'\"\\"}
COST = AttemptReport(cost_usd=Decimal("0.25"), tokens_in=1200, tokens_out=34, session_id="s-1", log_path="logs/a.log")
SOON = Backoff(base_seconds=0)
COLUMNS = {
    "transition": "position, tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, "
    "reason, actor, metadata, at, seconds_in_state",
    "attempt": "task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, error, exit_code, cost_usd, session_id, "
    "resumed, log_path, tokens_in, tokens_out, cost_is_estimated",
}
"""Tables of schema 10 that are views now."""


async def fill(engine: Engine, clock: ManualClock) -> None:
    """Something of everything."""
    ada = engine.for_tenant(actor="ada")
    worker = await engine.register_worker("long", max_concurrent_tasks=8, capabilities=("gpu",), lease_seconds=1_000)
    await _finish(ada, worker)
    await _fail(engine, ada, clock, worker)
    await _ask_people(ada, worker)
    await _use_tools(ada, worker)
    await _split(ada, worker)
    await _serve_another_tenant(engine.for_tenant("acme", actor="eve"))
    await engine.seal()
    await _lose(engine, clock)
    canceled = await submit(ada, "standard", NewTask(name="never"))
    await ada.signal_run(canceled.id, "cancel", reason="not needed")
    await submit(ada, "supervised", NewTask(name="job"), worker_count=9)
    await engine.seal()
    await submit(ada, "standard", NewTask(name="waits"), NewTask(name="for it", depends_on=("waits",)))


async def submit(engine: TenantEngine, lifecycle: str, *tasks: NewTask, **options: Any) -> Run:
    names = {name: options.pop(name) for name in ("request_id",) if name in options}
    return await engine.submit_run(NewRun(name=f"a run of {lifecycle}", lifecycle=lifecycle, tasks=tasks, **options), **names)


async def claim(engine: TenantEngine, worker: Worker, run: Run) -> Claim:
    (claimed,) = await engine.claim_tasks(worker.id, 1, run_id=run.id)
    return claimed


async def _finish(engine: TenantEngine, worker: Worker) -> None:
    for lifecycle in ("standard", "pipeline", "orchestrated", "approval"):
        run = await submit(
            engine,
            lifecycle,
            NewTask(name="a", payload=PAYLOAD),
            NewTask(name="b", depends_on=("a",), max_retries=2, priority=3),
            NewTask(name="c", depends_on=("a", "b"), critical=lifecycle != "standard"),
            request_id=f"finish {lifecycle}",
            tags=("nightly", "word"),
        )
        for name in "abc":
            claimed = await claim(engine, worker, run)
            if name == "b":
                await engine.report_attempt(claimed.task_id, claimed.epoch, report=COST)
            await engine.complete_task(claimed.task_id, claimed.epoch, AttemptReport(output='{"k": "ü"}', exit_code=0))
            if lifecycle == "orchestrated":
                await engine.report_attempt(claimed.task_id, claimed.epoch, "checks_passed")


async def _fail(everyone: Engine, engine: TenantEngine, clock: ManualClock, worker: Worker) -> None:
    flaky = NewTask(name="flaky", max_retries=2, backoff=SOON)
    run = await submit(engine, "standard", flaky, NewTask(name="after", depends_on=("flaky",)), budget_usd=Decimal(50))
    for exit_code in (2, 3, 4):
        claimed = await claim(engine, worker, run)
        failure = AttemptReport(error="no such file", exit_code=exit_code, cost_usd=Decimal(1), log_path="logs/f.log")
        await engine.fail_task(claimed.task_id, claimed.epoch, failure)
        await pass_time(everyone, clock, 0.5)
    await engine.signal_run(run.id, "retry", reason="the file is there")
    claimed = await claim(engine, worker, run)
    assert claimed.epoch == 4
    slow = await submit(engine, "agent", NewTask(name="slow", timeout_seconds=1))
    await claim(engine, worker, slow)
    await pass_time(everyone, clock, 2)


async def _ask_people(engine: TenantEngine, worker: Worker) -> None:
    run = await submit(engine, "agent", NewTask(name="agent"))
    claimed = await claim(engine, worker, run)
    await engine.report_attempt(claimed.task_id, claimed.epoch, report=AttemptReport(session_id="s-9"))
    await engine.report_attempt(claimed.task_id, claimed.epoch, "ask", AttemptReport(question="which one?"))
    await engine.signal_task(claimed.task_id, "answer", answer="the first")
    claimed = await claim(engine, worker, run)
    await engine.complete_task(claimed.task_id, claimed.epoch, AttemptReport(output='"a patch"'))
    await engine.signal_task(claimed.task_id, "reject", comment="too long")
    gate = NewTask(name="gate", gate=True, depends_on=("before",))
    run = await submit(engine, "approval", NewTask(name="before"), gate)
    claimed = await claim(engine, worker, run)
    await engine.complete_task(claimed.task_id, claimed.epoch)


async def _use_tools(engine: TenantEngine, worker: Worker) -> None:
    await engine.declare_tool("model", failure_threshold=1)
    run = await submit(engine, "standard", NewTask(name="call", tool="model", max_retries=3, backoff=SOON))
    claimed = await claim(engine, worker, run)
    await engine.fail_task(claimed.task_id, claimed.epoch, AttemptReport(error="503"))


async def _split(engine: TenantEngine, worker: Worker) -> None:
    run = await submit(engine, "standard", NewTask(name="parent"), NewTask(name="later", depends_on=("parent",)))
    claimed = await claim(engine, worker, run)
    await engine.add_tasks(run.id, (NewTask(name="child", parent="parent"),))
    child = await claim(engine, worker, run)
    assert child.name == "child"
    assert claimed.epoch == 1


async def _serve_another_tenant(engine: TenantEngine) -> None:
    worker = await engine.register_worker("of acme", lease_seconds=1_000)
    run = await submit(engine, "standard", NewTask(name="x"), NewTask(name="y", depends_on=("x",)))
    claimed = await claim(engine, worker, run)
    await engine.complete_task(claimed.task_id, claimed.epoch)


async def _lose(engine: Engine, clock: ManualClock) -> None:
    """A worker that falls silent loses its attempt, and another one takes it over: from the queue, or as it runs."""
    for lifecycle in ("standard", "approval"):
        silent = await engine.register_worker("silent", lease_seconds=1)
        run = await submit(engine, lifecycle, NewTask(name="lost"))
        await claim(engine, silent, run)
        await pass_time(engine, clock, 5)
        other = await engine.register_worker("other", lease_seconds=1_000)
        assert (await claim(engine, other, run)).epoch == 2


def see(reader: Reader) -> dict[str, Any]:
    """All that a reader says of a store, as JSON has it."""
    seen: dict[str, Any] = {"seals": reader.list_seals(0, MOST), "breakers": reader.list_all_breakers()}
    seen["stream"] = reader.list_all_transitions(after=None, limit=MOST)
    seen["tenants"] = {}
    for tenant in TENANTS:
        runs = reader.list_runs(tenant, limit=MOST)
        tasks = [task for run in runs for task in reader.list_tasks(tenant, run.id)]
        seen["tenants"][tenant] = {
            "runs": runs,
            "tasks": [replace(task, payload=task.payload or None, output=task.output or None) for task in tasks],
            "workers": reader.list_workers(tenant),
            "timers": reader.list_timers(tenant),
            "notices": reader.list_notices(tenant, limit=MOST),
            "attempts": {task.id: reader.list_attempts(tenant, task.id) for task in tasks},
            "attempt_times": sorted(
                (each for run in runs for each in reader.list_attempt_times(tenant, run.id)),
                key=lambda each: (each.task_id, each.epoch),
            ),
            "dependencies": [each for run in runs for each in reader.list_dependencies(tenant, run.id)],
            "stream": reader.list_transitions(tenant, after=None, limit=MOST, run_id=None),
            "streams": {run.id: reader.list_transitions(tenant, after=None, limit=MOST, run_id=run.id) for run in runs},
            "histories": {task.id: reader.list_history(tenant, task.id) for task in tasks},
            "measured": sorted(map(str, reader.measure_transitions(tenant))),
        }
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(seen))
    return told


def read_file(schema: int, name: str) -> bytes:
    return gzip.decompress((FOLDER / str(schema) / f"{name}.gz").read_bytes())


def _write_file(name: str, content: bytes) -> None:
    folder = FOLDER / str(read_migrations("pointsman.store.sqlite")[-1].number)
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))


async def _fill_url(url: str) -> bytes:
    clock = ManualClock()
    async with open_engine(url, clock) as engine:
        await fill(engine, clock)
    with closing(databases.open_store(url)) as store, store.read() as reader:
        return msgspec.json.encode(see(reader))


def _write_sqlite(folder: Path) -> None:
    url = databases.sqlite_url(folder)
    _write_file("sqlite.json", asyncio.run(_fill_url(url)))
    with closing(databases.open_store(url)):
        pass  # its last connection empties the log
    _write_file("sqlite", Path(url.removeprefix("sqlite:///")).read_bytes())


def _write_postgres() -> None:
    with databases.postgres_database() as url:
        _write_file("postgres.json", asyncio.run(_fill_url(url)))
        with psycopg.connect(url) as connection:
            listed = (
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname"
            )
            rows: dict[str, str] = {}
            for (name,) in connection.execute(listed).fetchall():
                ((rows[name],),) = connection.execute(f"SELECT coalesce(json_agg(t), '[]')::text FROM {name} AS t".encode())
            assigned = "SELECT sequencename, last_value FROM pg_sequences WHERE last_value IS NOT NULL"
            counters: dict[str, int] = dict(connection.execute(assigned).fetchall())
    _write_file("postgres", msgspec.json.encode({"rows": rows, "counters": counters}))


if __name__ == "__main__":
    databases.claim_ownership()
    with tempfile.TemporaryDirectory() as made:
        _write_sqlite(Path(made))
    _write_postgres()
    databases.end_ownership()

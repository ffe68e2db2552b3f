"""PostgreSQL: connections that die, a server that goes away and comes back, transactions that are in each other's way."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.pq.abc import PGresult
from tests.rooms.engine.harness import path_of, state_of, submit
from tests.system.faults import programs
from tests.system.faults.proxy import proxy
from tests.system.faults.server import own_server

from pointsman import app
from pointsman.engine import writer
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import LeaseLost, StoreBusy, StoreUnavailable
from pointsman.store.contract import Foresee, Transaction
from pointsman.store.postgres import connections, listener, session
from pointsman.store.postgres import store as postgres
from pointsman.store.postgres.connections import WRITER_SESSION
from pointsman.store.postgres.session import Session
from pointsman.store.postgres.statements import Statement
from pointsman.store.rows import Run

PATIENCE_SECONDS = 30


def kill_backends(url: str, condition: str = "application_name = 'pointsman'") -> int:
    """End connections as an administrator would; how many there were."""
    with psycopg.connect(url, autocommit=True) as administrator:
        ended = administrator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            f" WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}".encode()
        )
        return len(ended.fetchall())


def kill_own(transaction: Transaction, url: str) -> None:
    """End the connection that a transaction is on."""
    assert kill_backends(url, f"pid = {transaction._session.server_pid}") == 1  # type: ignore[attr-defined]


async def ask_to_submit(engine: Engine, name: str, **options: Any) -> Run:
    return await engine.submit_run(NewRun(name=name, tasks=(NewTask(name="a"),)), **options)


# connections


async def test_connections_that_die_between_transactions_are_not_noticed(postgres_url: str) -> None:
    async with app.open(postgres_url, keeps=False) as engine:
        run = await ask_to_submit(engine, "before")
        for _ in range(3):
            assert kill_backends(postgres_url) > 0
            await ask_to_submit(engine, "after")
            kill_backends(postgres_url)
            assert (await engine.get_run(run.id)).name == "before"
        assert len(await engine.list_runs()) == 4


@pytest.mark.parametrize("moment", ["begun", "insert_runs", "insert_tasks", "commit"])
async def test_a_connection_that_dies_within_a_transaction_is_not_noticed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Nothing of it was committed, so it is simply done again."""
    async with app.open(postgres_url, keeps=False) as engine:
        begin = engine._core.store.begin
        killed: list[str] = []

        def begin_and_die(_: Foresee | None = None) -> Transaction:
            transaction = begin()
            if killed:
                return transaction
            killed.append(moment)
            if moment == "begun":
                kill_own(transaction, postgres_url)
            else:
                method = getattr(transaction, moment)

                def die(*arguments: Any) -> Any:
                    kill_own(transaction, postgres_url)
                    return method(*arguments)

                monkeypatch.setattr(transaction, moment, die)
            return transaction

        monkeypatch.setattr(engine._core.store, "begin", begin_and_die)
        run = await ask_to_submit(engine, "once")
        assert killed == [moment]
        assert [each.id for each in await engine.list_runs()] == [run.id]
        assert engine.commit_metrics.retries == 1
        assert await engine.diagnose() == []


async def test_a_reader_whose_connection_dies_is_told_and_the_next_is_served(postgres_url: str) -> None:
    async with app.open(postgres_url, keeps=False) as engine:
        run = await ask_to_submit(engine, "a")

        def die() -> None:
            with engine._core.store.read() as reader:
                kill_backends(postgres_url, "query LIKE 'BEGIN ISOLATION%'")
                reader.find_run("default", run.id)

        with pytest.raises(StoreUnavailable, match="Work continues when it does"):
            await asyncio.to_thread(die)
        assert (await engine.get_run(run.id)).id == run.id


async def test_work_goes_on_while_connections_are_cut_all_the_time(postgres_url: str) -> None:
    """Each request has a key, and is repeated by whoever is told that the database does not answer."""
    over = threading.Event()

    def cut() -> None:
        while not over.wait(0.05):
            kill_backends(postgres_url)

    async def insist(engine: Engine, name: str) -> Run:
        while True:
            with suppress(StoreUnavailable):
                return await ask_to_submit(engine, name, request_id=name)

    async def work(engine: Engine, name: str, count: int) -> None:
        worker = await engine.register_worker(name, max_concurrent_tasks=5, request_id=name)
        for number in range(count):
            await insist(engine, f"{name} {number}")
            with suppress(StoreUnavailable):
                for claim in await engine.claim_tasks(worker.id, 5):
                    with suppress(StoreUnavailable, LeaseLost):
                        await engine.complete_task(claim.task_id, claim.epoch, request_id=f"{claim.task_id} {claim.epoch}")

    async with app.open(postgres_url, keeps=False) as one, app.open(postgres_url, keeps=False) as two:
        cutting = asyncio.create_task(asyncio.to_thread(cut))
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(work(one, "one", 15), work(two, "two", 15))
        finally:
            over.set()
            await cutting
        names = sorted(run.name for run in await one.list_runs(limit=1000))
        assert names == sorted(f"{name} {number}" for name in ("one", "two") for number in range(15))
        assert not [each for each in await one.diagnose() if each.subject == "disagreement"]
        for run in await one.list_runs(limit=1000):
            assert (await path_of(one, run.id))[-1] == run.state


# black holes


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(listener, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(writer, "LONGEST_AWAY_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_a_black_hole_is_said_and_work_goes_on_when_it_is_gone(postgres_url: str) -> None:
    """Nothing tells the kernel that the answer is lost: the bytes were acknowledged."""
    with proxy(postgres_url) as between:
        async with app.open(between.url, keeps=False) as engine:
            run = await ask_to_submit(engine, "before")
            between.hold_all()
            questions = (engine.get_run(run.id), ask_to_submit(engine, "meanwhile", request_id="key"))
            answers = await asyncio.wait_for(asyncio.gather(*questions, return_exceptions=True), PATIENCE_SECONDS)
            assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]
            assert "does not answer" in str(answers[0])
            between.release()
            assert (await ask_to_submit(engine, "meanwhile", request_id="key")).name == "meanwhile"
            assert sorted(each.name for each in await engine.list_runs()) == ["before", "meanwhile"]


@pytest.mark.usefixtures("impatient")
async def test_connections_that_become_a_black_hole_are_replaced(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ASK_SECONDS", 1.0)
    with proxy(postgres_url) as between:
        async with app.open(between.url, keeps=False) as engine, app.open(postgres_url, keeps=False) as other:
            run = await ask_to_submit(engine, "before")
            worker = await engine.register_worker("bob", max_concurrent_tasks=5, lease_seconds=600)
            assert len(await engine.claim_tasks(worker.id, 5)) == 1
            between.hold_open_connections()
            assert (await asyncio.wait_for(ask_to_submit(engine, "meanwhile"), PATIENCE_SECONDS)).name == "meanwhile"
            assert len(await engine.claim_tasks(worker.id, 5)) == 1
            # The listener hears of its loss when it asks.
            claim = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=50))
            await asyncio.sleep(1)
            await ask_to_submit(other, "after")
            assert await asyncio.wait_for(claim, PATIENCE_SECONDS)
            between.hold_open_connections()
            with suppress(StoreUnavailable):
                await asyncio.wait_for(engine.get_run(run.id), PATIENCE_SECONDS)
            assert (await asyncio.wait_for(engine.get_run(run.id), PATIENCE_SECONDS)).id == run.id


async def test_a_slow_answer_is_awaited(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SILENCE_SECONDS", 0.2)
    async with app.open(postgres_url, keeps=False) as engine:

        def take_long() -> Any:
            with engine._core.store.read() as reader:
                return reader._ask(Statement("SELECT pg_sleep(1) IS NOT NULL"))  # type: ignore[attr-defined]

        assert await asyncio.to_thread(take_long)


# locks


async def test_a_row_that_is_locked_too_long_is_busy_and_work_goes_on_afterwards(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(postgres, "WRITER_SESSION", WRITER_SESSION.replace("'5s'", "'100ms'"))
    async with app.open(postgres_url, keeps=False) as engine:
        run, other = await ask_to_submit(engine, "locked"), await ask_to_submit(engine, "free")
        async with await psycopg.AsyncConnection.connect(postgres_url) as somebody:
            await somebody.execute("SELECT 1 FROM run WHERE id = %s FOR UPDATE", [run.id])
            with pytest.raises(StoreBusy, match="Try again"):
                await engine.signal_run(run.id, "pause")
            await engine.signal_run(other.id, "pause")
            await somebody.rollback()
        await engine.signal_run(run.id, "pause")
        assert await state_of(engine, run) == "PAUSED"


STOPPED = """
import asyncio, sys
from pointsman import app

async def hold():
    async with app.open(sys.argv[1], keeps=False) as engine:
        await engine.register_worker("stopped", lease_seconds=9)
        held = engine._core.store.begin()
        assert held.lock_runs([sys.argv[2]])
        print("held", flush=True)
        sys.stdin.readline()

asyncio.run(hold())
"""
"""A process with a worker that has locked a run."""


async def test_a_process_that_is_stopped_within_a_transaction_loses_its_locks_earlier_with_a_short_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connections.IDLE_TIMEOUT_SECONDS < writer.TRIES * connections.LOCK_TIMEOUT_SECONDS, "others wait that long"
    monkeypatch.setattr(writer, "TRIES", 2)
    async with app.open(postgres_url, keeps=False) as engine:
        locked = await ask_to_submit(engine, "locked")
        with programs.run(STOPPED, postgres_url, locked.id) as holder:
            assert await holder.hear() == "held"
            holder.stop()
            assert (await asyncio.wait_for(engine.signal_run(locked.id, "pause"), PATIENCE_SECONDS)).state == "PAUSED"


async def test_a_deadlock_is_resolved_by_trying_again(postgres_url: str) -> None:
    """Somebody locks in the other order: one of the two is sent back, and if it is the engine, it comes again."""
    async with app.open(postgres_url, keeps=False) as engine:
        first, second = sorted([(await ask_to_submit(engine, name)).id for name in ("a", "b")])
        somebody = await psycopg.AsyncConnection.connect(postgres_url)
        async with somebody:
            # Whoever has the longer patience wins.
            await somebody.execute("SET deadlock_timeout = '20s'")
            await somebody.execute("SELECT 1 FROM run WHERE id = %s FOR UPDATE", [second])
            blocked = await hold_writer(engine)
            both = [asyncio.ensure_future(engine.signal_run(each, "pause")) for each in (first, second)]
            await asyncio.sleep(0)
            blocked.set()
            await until_waiting(postgres_url)
            await somebody.execute("SELECT 1 FROM run WHERE id = %s FOR UPDATE", [first])
            await somebody.rollback()
            runs = await asyncio.wait_for(asyncio.gather(*both), PATIENCE_SECONDS)
        assert [run.state for run in runs] == ["PAUSED", "PAUSED"]
        assert engine.commit_metrics.retries >= 1


async def hold_writer(engine: Engine) -> threading.Event:
    """Keep the writer from beginning until the event is set, so that what arrives meanwhile is one batch."""
    begin, reached, free = engine._core.store.begin, threading.Event(), threading.Event()

    def wait(foresee: Foresee | None = None) -> Transaction:
        reached.set()
        assert free.wait(PATIENCE_SECONDS)
        return begin(foresee)

    engine._core.store.begin = wait  # type: ignore[method-assign]
    asyncio.ensure_future(engine.tend())  # noqa: RUF006 - it is waited for by closing
    await asyncio.to_thread(reached.wait, PATIENCE_SECONDS)
    engine._core.store.begin = begin  # type: ignore[method-assign]
    return free


async def until_waiting(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as administrator:
        for _ in range(PATIENCE_SECONDS * 50):
            found = await administrator.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if await found.fetchone() != (0,):
                return
            await asyncio.sleep(0.02)
    raise AssertionError("nobody waits")


async def test_engines_that_signal_the_same_runs_in_any_order_do_not_hurt_each_other(postgres_url: str) -> None:
    async with app.open(postgres_url, keeps=False) as one, app.open(postgres_url, keeps=False) as two:
        runs = [(await ask_to_submit(one, f"run {number}")).id for number in range(10)]
        for signal_ in ("pause", "resume") * 3:
            answers = await asyncio.gather(
                *(one.signal_run(run_id, signal_) for run_id in runs[::2]),
                *(two.signal_run(run_id, signal_) for run_id in reversed(runs[1::2])),
            )
            assert len(answers) == 10
        assert {run.state for run in await one.list_runs()} == {"RUNNING"}


async def gang_up(engine: Engine, name: str, jobs: int, waiting: set[str]) -> None:
    """Workers, and jobs that want two of them each, until all jobs of all engines are done."""

    async def work(worker: str) -> None:
        while not over.is_set():
            for claim in await engine.claim_tasks(worker, wait_seconds=0.05):
                await engine.complete_task(claim.task_id, claim.epoch)

    over = asyncio.Event()
    rows = [await engine.register_worker(f"{name} {number}", lifecycle="supervised", lease_seconds=600) for number in range(2)]
    async with asyncio.TaskGroup() as group:
        for row in rows:
            group.create_task(work(row.id))
        runs = []
        for number in range(jobs):
            tasks = tuple(NewTask(name=f"t{each}") for each in range(2))
            new = NewRun(name=f"{name} {number}", tasks=tasks, lifecycle="supervised", worker_count=2)
            runs.append((await engine.submit_run(new)).id)
        while any(run.outcome is None for run in await engine.find_runs(runs)):  # noqa: ASYNC110 - others do them
            await asyncio.sleep(0.02)
        waiting.remove(name)
        while waiting:  # noqa: ASYNC110 - the others still need its workers
            await asyncio.sleep(0.02)
        over.set()


async def test_allocations_of_several_engines_do_not_wait_for_each_other(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as administrator:
        database = administrator.info.dbname
        administrator.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '10ms'".encode())
    async with contextlib.AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(app.open(postgres_url, keeps=False)) for name in ("a", "b", "c")}
        waiting = set(engines)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(gang_up(engine, name, 12, waiting) for name, engine in engines.items()))
    with psycopg.connect(postgres_url, autocommit=True) as administrator:  # a session reports its deadlocks when it ends
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert administrator.execute(deadlocks).fetchall() == [(0,)]


# the server


async def test_a_server_that_goes_away_is_said_and_one_that_comes_back_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(postgres, "PAUSES_SECONDS", (0.0, 0.01))
    with own_server() as server:
        async with app.open(server.url, keeps=True) as engine:
            stored = [(await ask_to_submit(engine, f"run {number}")).id for number in range(5)]
            worker = await engine.register_worker("bob")
            claims = await engine.claim_tasks(worker.id)
            # As after a crash: it gives up everything at once, and recovers from its log.
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            for question in (
                ask_to_submit(engine, "meanwhile", request_id="key"),
                engine.complete_task(claims[0].task_id, claims[0].epoch),
                engine.get_run(stored[0]),
                engine.list_transitions(),
                engine.tend(),
            ):
                with pytest.raises(StoreUnavailable, match=r"does not answer.*Check that the server runs.*Work continues"):
                    await asyncio.wait_for(question, PATIENCE_SECONDS)
            with pytest.raises(StoreUnavailable):
                async with app.open(server.url):
                    pass
            await asyncio.to_thread(server.start)
            assert (await ask_to_submit(engine, "meanwhile", request_id="key")).name == "meanwhile"
            assert (await engine.complete_task(claims[0].task_id, claims[0].epoch)).state == "SUCCEEDED"
            assert set(stored) < {run.id for run in await engine.list_runs()}
            assert not [each for each in await engine.diagnose() if each.subject == "disagreement"]


async def test_whoever_waits_while_the_server_is_away_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim and a follower that sleep through a restart are woken by what happens afterwards."""
    monkeypatch.setattr(postgres, "PAUSES_SECONDS", (0.0, 0.01))
    with own_server() as server:
        async with app.open(server.url, keeps=False) as engine:
            worker = await engine.register_worker("bob", lease_seconds=600)
            stream = engine.watch(after=await engine.last_position())
            told = asyncio.ensure_future(anext(stream))
            claim = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=50))
            await asyncio.wait({told, claim}, timeout=0.2)
            await asyncio.to_thread(server.stop, signal.SIGINT)
            await asyncio.to_thread(server.start)
            async with app.open(server.url, keeps=False) as other:
                run = await submit(other, NewTask(name="a"))
            (claimed,) = await asyncio.wait_for(claim, 40)
            assert claimed.run_id == run.id
            assert (await asyncio.wait_for(told, 40)).run_id == run.id


async def test_a_commit_whose_answer_is_lost_is_asked_about_and_not_done_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has committed, and the connection is gone before it could say so."""
    async with app.open(postgres_url, keeps=False) as engine:
        await ask_to_submit(engine, "before")
        receive = Session._receive
        lost: list[PGresult] = []

        def lose(self: Session, results: list[PGresult], until: Any) -> None:
            receive(self, results, until)
            if not lost and results[-1].command_status == b"COMMIT":
                lost.append(results.pop())
                raise psycopg.OperationalError("the connection is lost")

        monkeypatch.setattr(Session, "_receive", lose)
        run = await ask_to_submit(engine, "a")
        assert lost
        assert [each.id for each in await engine.list_runs() if each.name == "a"] == [run.id]
        assert (await ask_to_submit(engine, "after")).name == "after"

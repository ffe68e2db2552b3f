"""PostgreSQL: turns of several processes in one run go side by side, and nobody else waits for them for long."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from datetime import datetime

import psycopg
import pytest
from psycopg.sql import SQL, Literal
from tests.planting import Patch
from tests.rooms.engine.harness import ManualClock, open_engine, register, state_of, submit
from tests.rooms.engine.test_foresight import ends, some, turn

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewTask
from pointsman.errors import StoreBusy, Unforeseen
from pointsman.store.contract import Foresee, Transaction, Wakeup
from pointsman.store.postgres.connections import LOCK_TIMEOUT_SECONDS
from pointsman.store.postgres.queries import NO_WAITER, SHARED, WAITING
from pointsman.store.postgres.store import PostgresStore, SharingTransaction
from pointsman.store.rows import Run, Worker

PATIENCE_SECONDS = 10


class Hand:
    """A process with a worker that has begun to take turns, so that its next one is foreseen."""

    def __init__(self, engine: Engine, worker: Worker, claims: list[Claim]) -> None:
        self.engine = engine
        self.worker = worker
        self.claims = claims
        assert isinstance(engine._core.store, PostgresStore)
        self.store = engine._core.store

    async def turn(self, limit: int | None = None) -> list[Claim]:
        self.claims = await turn(self.engine, self.worker, self.claims, limit or len(self.claims))
        return self.claims

    async def drain(self, size: int) -> int:
        """Until there is nothing left to claim: how many tasks were reported as done, also to no avail."""
        count = 0
        while self.claims:
            count += len(self.claims)
            reports = self.engine.report_attempts(ends(self.claims))
            _, self.claims = await asyncio.gather(reports, self.engine.claim_tasks(self.worker.id, size))
        return count


@asynccontextmanager
async def open_hands(
    url: str, clock: ManualClock, *, count: int, tasks: int, slots: int
) -> AsyncIterator[tuple[Run, list[Hand]]]:
    """Several processes whose workers hold tasks of one run."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(open_engine(url, clock, seed=seed)) for seed in range(1, count + 1)]
        run = await submit(engines[0], *some(tasks))
        hands = []
        for engine in engines:
            worker = await register(engine, slots=slots)
            hands.append(Hand(engine, worker, await engine.claim_tasks(worker.id, slots)))
        for hand in hands:
            await hand.turn()
        yield run, hands


@contextmanager
def held_before_its_commit(store: PostgresStore) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The next commit waits for the second event, once the first says that it was reached."""
    commit, reached, released = store.commit, threading.Event(), threading.Event()

    def hold(wakeup: Wakeup) -> None:
        reached.set()
        assert released.wait(PATIENCE_SECONDS)
        commit(wakeup)

    store.commit = hold  # type: ignore[method-assign]
    try:
        yield reached, released
    finally:
        released.set()
        store.commit = commit  # type: ignore[method-assign]


@contextmanager
def noted(hand: Hand) -> Iterator[list[str]]:
    """How each transaction of a process began: shared, or alone."""
    began: list[str] = []
    begin = hand.store.begin

    def note(foresee: Foresee | None = None) -> Transaction:
        began.append("shared" if foresee and foresee.shares else "alone")
        return begin(foresee)

    hand.store.begin = note  # type: ignore[method-assign,assignment]
    try:
        yield began
    finally:
        hand.store.begin = begin  # type: ignore[method-assign]


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(url)) as connection:
        yield connection
        connection.rollback()  # a closed connection keeps its locks until the server notices


async def until(reached: threading.Event) -> None:
    assert await asyncio.to_thread(reached.wait, PATIENCE_SECONDS)


async def test_turns_in_one_run_do_not_wait_for_each_other(postgres_url: str, clock: ManualClock) -> None:
    async with open_hands(postgres_url, clock, count=2, tasks=20, slots=2) as (run, (first, second)):
        with held_before_its_commit(first.store) as (reached, released), noted(second) as began:
            waiting = asyncio.create_task(first.turn())
            await until(reached)
            for _ in range(3):
                assert len(await second.turn()) == 2
            assert began == ["shared"] * 3
            released.set()
            claims = await waiting
        names = {claim.name for claim in (*claims, *second.claims)}
        assert len(names) == 4, "each has tasks of its own"
        await asyncio.gather(first.drain(2), second.drain(2))
        assert await state_of(first.engine, run) == "SUCCEEDED"
        assert await first.engine.diagnose() == []


async def test_a_run_whose_last_tasks_end_in_several_processes_ends(postgres_url: str, clock: ManualClock) -> None:
    """A turn that begins no task of the run that it leaves is alone in it, so the last one sees what all others did."""
    async with open_hands(postgres_url, clock, count=2, tasks=8, slots=2) as (run, (first, second)):
        writer = second.store._writer
        assert writer
        with held_before_its_commit(first.store) as (reached, released), noted(first) as began:
            ending = asyncio.create_task(first.turn())
            await until(reached)
            other = asyncio.create_task(second.turn())
            await until_one_waits(postgres_url, writer.server_pid, or_is_done=other)
            released.set()
            assert [*await ending, *await other] == []
        assert await state_of(first.engine, run) == "SUCCEEDED"
        assert began == ["shared", "alone"]


async def test_a_run_cannot_be_changed_while_it_is_shared(postgres_url: str, clock: ManualClock) -> None:
    async with open_hands(postgres_url, clock, count=2, tasks=20, slots=2) as (run, (first, second)):
        writer = second.store._writer
        assert writer
        with held_before_its_commit(first.store) as (reached, released):
            turning = asyncio.create_task(first.turn())
            await until(reached)
            canceling = asyncio.create_task(cancel(second.engine, run))
            await until_one_waits(postgres_url, writer.server_pid)
            with session(postgres_url) as observer:
                assert not nobody_waits(observer), "it waits for the run, not for its tasks"
            released.set()
            await turning
            await canceling
        assert await state_of(first.engine, run) == "CANCELED"
        assert await first.engine.diagnose() == []


async def test_a_new_heartbeat_goes_along_with_a_turn(postgres_url: str, clock: ManualClock) -> None:
    async with open_hands(postgres_url, clock, count=1, tasks=20, slots=2) as (_, (hand,)):
        clock.advance(10)
        with noted(hand) as began:
            await hand.turn()
        assert began == ["shared"]
        assert (await hand.engine.get_worker(hand.worker.id)).heartbeat_at == clock.now()


async def test_a_claim_passes_over_what_another_has_begun_since_it_looked(postgres_url: str, clock: ManualClock) -> None:
    """Its statement has seen the tasks in the queue. When it comes to lock them, they are another's and locked no more."""
    async with open_hands(postgres_url, clock, count=2, tasks=20, slots=2) as (_, (first, second)):
        writer = first.store._writer
        assert writer
        await first.engine.report_attempts(ends(first.claims))
        writer.script(f"SET lock_timeout = '{PATIENCE_SECONDS}s'")
        with session(postgres_url) as stranger:
            stranger.execute(
                SQL(
                    """
                    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
                    BEGIN
                        IF pg_backend_pid() = {} THEN PERFORM pg_advisory_xact_lock_shared(7); END IF;
                        RETURN NULL;
                    END $$
                    """
                ).format(Literal(writer.server_pid))
            )
            stranger.execute("CREATE TRIGGER wait BEFORE UPDATE ON task_state EXECUTE FUNCTION wait()")
            stranger.commit()
            stranger.execute("SELECT pg_advisory_xact_lock(7)")
            with noted(first) as began:
                claiming = asyncio.create_task(first.engine.claim_tasks(first.worker.id, 2))
                await until_one_waits(postgres_url, writer.server_pid)
                claims = await second.turn()
                stranger.commit()
                others = await claiming
        assert began == ["shared"]
        assert len(claims) == len(others) == 2
        assert {claim.task_id for claim in claims}.isdisjoint(claim.task_id for claim in others)
        assert await first.engine.diagnose() == []


async def until_one_waits(url: str, pid: int, or_is_done: asyncio.Task[object] | None = None) -> None:
    with session(url) as observer:
        observer.autocommit = True
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if observer.execute("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", [pid]).fetchone():
                return
            if or_is_done and or_is_done.done():
                return
            await asyncio.sleep(0.005)
    raise AssertionError("it does not wait")


# nobody waits for ever


async def cancel(engine: Engine, run: Run) -> None:
    await engine.signal_run(run.id, "cancel")


async def pause(engine: Engine, run: Run) -> None:
    await engine.signal_run(run.id, "pause")


async def add_task(engine: Engine, run: Run) -> None:
    await engine.add_tasks(run.id, [NewTask(name="another")])


@pytest.mark.parametrize("command", [cancel, pause, add_task])
async def test_a_command_gets_through_while_processes_take_turns_without_a_pause(
    postgres_url: str, clock: ManualClock, command: Callable[[Engine, Run], Awaitable[None]]
) -> None:
    async with (
        open_hands(postgres_url, clock, count=3, tasks=6_000, slots=10) as (run, hands),
        open_engine(postgres_url, clock, seed=9) as engine,
    ):
        draining = [asyncio.create_task(hand.drain(10)) for hand in hands]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await command(engine, run)
        seconds = time.monotonic() - began
        unfinished = [task for task in await engine.list_tasks(run.id) if task.completed_at is None]
        for each in draining:
            each.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        assert command is cancel or unfinished, "they were done before"
        assert seconds < LOCK_TIMEOUT_SECONDS / 2


def nobody_waits(session: psycopg.Connection) -> bool:
    """What a transaction that shares asks before it does."""
    return session.execute(f"SELECT {NO_WAITER}".encode()).fetchone() == (True,)


def share_in_relay(url: str, run: Run, begun: threading.Event, ended: threading.Event) -> None:
    """Two transactions that share a run take turns so that there is always one, until others are kept from sharing."""
    with session(url) as one, session(url) as other:
        while not ended.is_set():
            for each in (one, other):
                each.rollback()
                if nobody_waits(each):
                    each.execute("SELECT FROM run WHERE id = %s FOR SHARE", [run.id])
                    begun.set()


async def test_a_command_gets_between_transactions_that_leave_no_gap(postgres_url: str, clock: ManualClock) -> None:
    begun, ended = threading.Event(), threading.Event()
    async with open_hands(postgres_url, clock, count=1, tasks=20, slots=2) as (run, (hand,)):
        relay = asyncio.create_task(asyncio.to_thread(share_in_relay, postgres_url, run, begun, ended))
        await until(begun)
        began = time.monotonic()
        try:
            await cancel(hand.engine, run)
        finally:
            ended.set()
            await relay
        assert time.monotonic() - began < LOCK_TIMEOUT_SECONDS / 2
        assert await state_of(hand.engine, run) == "CANCELED"


async def test_nobody_begins_to_share_while_another_waits(postgres_url: str, clock: ManualClock) -> None:
    async with open_hands(postgres_url, clock, count=2, tasks=20, slots=2) as (run, (first, second)):
        waiter, other = first.store._writer, second.store._writer
        assert waiter
        assert other
        with session(postgres_url) as sharer, noted(second) as began:
            sharer.execute("SELECT FROM run WHERE id = %s FOR SHARE", [run.id])
            canceling = asyncio.create_task(cancel(first.engine, run))
            await until_one_waits(postgres_url, waiter.server_pid)
            turning = asyncio.create_task(second.turn())
            await until_one_waits(postgres_url, other.server_pid)
            assert began == ["shared", "alone"]
            assert not canceling.done()
            assert not nobody_waits(sharer)
            sharer.rollback()
            await canceling
            await asyncio.gather(turning, return_exceptions=True)
            assert nobody_waits(sharer), "who has the run waits no more"
        assert await state_of(first.engine, run) == "CANCELED"


async def test_who_gives_up_waiting_lets_others_share_again(postgres_url: str, clock: ManualClock) -> None:
    async with open_hands(postgres_url, clock, count=2, tasks=20, slots=2) as (run, (first, second)):
        waiter = first.store._writer
        assert waiter
        waiter.script("SET lock_timeout = '50ms'")
        with session(postgres_url) as sharer:
            sharer.execute("SELECT FROM run WHERE id = %s FOR SHARE", [run.id])
            with pytest.raises(StoreBusy):
                await cancel(first.engine, run)
            assert nobody_waits(sharer)
            with noted(second) as began:
                await second.turn()
            assert began == ["shared"]


# what a turn that shares may not do


def begin_sharing(hand: Hand, run: Run) -> Transaction:
    def ask(transaction: Transaction, _: datetime) -> None:
        transaction.lock_runs([run.id])

    return hand.store.begin(Foresee(ask, shares=True))


async def test_a_transaction_that_shares_its_runs_does_nothing_else(postgres_url: str, clock: ManualClock) -> None:
    async with open_hands(postgres_url, clock, count=1, tasks=20, slots=2) as (run, (hand,)):
        locked = await hand.engine.get_run(run.id)
        forbidden: Sequence[Callable[[Transaction], object]] = [
            lambda transaction: transaction.assess_runs([run.id]),
            lambda transaction: transaction.lock_runs([run.id]),
            lambda transaction: transaction.count_held([hand.worker.id]),
            lambda transaction: transaction.move([locked], ["state", "revision"]),
            lambda transaction: transaction.update([locked], ["error"]),
            lambda transaction: transaction.open_runs([run.id], is_open=False),
            lambda transaction: transaction.list_lanes(),
        ]
        for do in forbidden:
            transaction = begin_sharing(hand, run)
            assert isinstance(transaction, SharingTransaction)
            assert [row.id for row in transaction.lock_runs([run.id])] == [run.id]
            with pytest.raises(Unforeseen):
                do(transaction)
            transaction.rollback()
        transaction = begin_sharing(hand, run)
        with pytest.raises(Unforeseen):
            transaction.commit()
        transaction.rollback()
        transaction = begin_sharing(hand, run)
        transaction.lock_runs([run.id])
        transaction.commit()


async def test_a_transaction_that_shares_lets_those_who_wait_go_first(postgres_url: str, clock: ManualClock) -> None:
    async with open_hands(postgres_url, clock, count=1, tasks=20, slots=2) as (run, (hand,)):
        with session(postgres_url) as stranger:
            stranger.execute(f"SELECT pg_advisory_xact_lock_shared({WAITING})".encode())
            with pytest.raises(StoreBusy):
                begin_sharing(hand, run)
        begin_sharing(hand, run).rollback()


def test_what_is_shared_is_locked() -> None:
    assert SHARED["lock_runs"].text.endswith(b"FOR SHARE")
    assert b"advisory" not in SHARED["lock_runs"].text
    assert b"FOR SHARE OF run SKIP LOCKED" in SHARED["begin_plain_tasks"].text
    for query in ("begin_plain_tasks", "begin_plain_tasks_of_run"):
        assert SHARED[query].text.count(b"FOR NO KEY UPDATE OF task_state SKIP LOCKED") == 1
        assert b"FOR NO KEY UPDATE OF run" not in SHARED[query].text


# a test that lets a bug pass has no teeth


BUGS = {
    "a turn that shares its runs decides about them": (
        Patch(
            "store.postgres.store",
            "are_all=shares)\n        kind = SharingTransaction if shares else PostgresTransaction\n",
            """)
        kind = PostgresTransaction
        if shares:
            allowed = {"_statement": lambda _, query: {**QUERIES, **SHARED}[query], "_update": PostgresTransaction._update}
            kind = type("Unbound", (SharingTransaction,), allowed)
""",
        ),
        test_a_run_whose_last_tasks_end_in_several_processes_ends,
    ),
    "a turn that shares its runs writes them": (
        Patch(
            "store.postgres.store", "        if not all(isinstance(row, Worker) for row in rows):\n", "        if not rows:\n"
        ),
        test_a_transaction_that_shares_its_runs_does_nothing_else,
    ),
    "nobody looks who waits": (
        Patch("store.postgres.queries", "ELSE false END", "ELSE true END"),
        test_nobody_begins_to_share_while_another_waits,
    ),
    "each takes the same tasks": (
        Patch("store.postgres.queries", "OF task_state SKIP LOCKED) AS first", "OF task_state) AS first"),
        test_turns_in_one_run_do_not_wait_for_each_other,
    ),
}
"""What is doubly kept shows nothing alone: a run is locked for the tasks that end, and for those that begin."""
BUGGY = """
import sys
import pytest
from tests.planting import Patch, plant
plant(Patch(*sys.argv[2:]))
sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", sys.argv[1]]))
"""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    patch, caught_by = BUGS[name]
    command = [sys.executable, "-c", BUGGY, f"{__file__}::{caught_by.__name__}", patch.place, patch.old, patch.new]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 failed" in result.stdout

"""The event stream: everything once, in one order, for everybody; and wake-ups that nobody has to look for."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, register, submit

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.submit import NewTask
from pointsman.engine.wakeups import Wakeups
from pointsman.store.contract import Foresee, Transaction, Wakeup
from pointsman.store.rows import Transition, Worker
from pointsman.world import World

PATIENCE_SECONDS = 30
ROOT = Path(__file__).parents[3]

WRITER = """
import asyncio, sys
from pointsman import app
from pointsman.engine.submit import NewRun, NewTask

async def main(url, name, count):
    async with app.open(url, keeps=False) as engine:
        worker = await engine.register_worker(name, max_concurrent_tasks=5)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(count):
            tasks = (NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
            await engine.submit_run(NewRun(name=f"{name} {number}", tasks=tasks))
            for claim in await engine.claim_tasks(worker.id, 5):
                await engine.complete_task(claim.task_id, claim.epoch)
        print("done", flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
"""Another program with the same database: it says when it is ready, begins when it is told, and says when it is done."""

WAITER = """
import asyncio, sys
from pointsman import app
from pointsman.engine.operations.attempts import AttemptReport

async def main(url):
    async with app.open(url, keeps=False) as engine:
        worker = await engine.register_worker("waiter")
        print("ready", flush=True)
        claims = await engine.claim_tasks(worker.id, wait_seconds=50)
        print(*(claim.name for claim in claims), flush=True)

asyncio.run(main(sys.argv[1]))
"""
SLEEPER = WAITER.replace("wait_seconds=50", "wait_seconds=3000")


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of its own, which is ready, and gone afterwards."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as started:
        try:
            assert read_line(started) == "ready"
            yield started
        finally:
            started.kill()


def read_line(started: subprocess.Popen[str]) -> str:
    """The next line that a program says; it is ended when it says nothing for too long."""
    assert started.stdout
    alarm = threading.Timer(PATIENCE_SECONDS, started.kill)
    alarm.start()
    try:
        return started.stdout.readline().rstrip("\n")
    finally:
        alarm.cancel()


def tell(started: subprocess.Popen[str]) -> None:
    assert started.stdin
    started.stdin.write("go\n")
    started.stdin.flush()


@asynccontextmanager
async def real_engine(url: str) -> AsyncIterator[Engine]:
    """With the real clock, and without anything that happens by itself."""
    async with app.open(url, keeps=False) as engine:
        yield engine


async def work(engine: Engine, name: str, count: int) -> None:
    """Runs that are submitted, claimed and completed, one commit each."""
    worker = await engine.register_worker(name, max_concurrent_tasks=5)
    for number in range(count):
        await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        for claim in await engine.claim_tasks(worker.id, 5):
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output=number))


async def read_in_pages(engine: Engine, limit: int, **options: Any) -> list[Transition]:
    found: list[Transition] = []
    after = None
    while page := await engine.list_transitions(after=after, limit=limit, **options):
        assert len(page) <= limit
        found += page
        after = page[-1].position
    return found


class Follower:
    """Reads the stream as it grows, and keeps all that it was told."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[Transition] = []
        self._engine = engine
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for transition in self._engine.watch():
            self.seen.append(transition)

    async def catch_up(self) -> list[Transition]:
        """All that there is, once it has arrived; whatever comes too often or too late stays in."""
        everything = await read_in_pages(self._engine, 1000)
        for _ in range(PATIENCE_SECONDS * 20):
            if len(self.seen) >= len(everything):
                break
            await asyncio.sleep(0.05)
        return everything

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@asynccontextmanager
async def follower(engine: Engine) -> AsyncIterator[Follower]:
    following = Follower(engine)
    try:
        yield following
    finally:
        await following.end()


def is_told_in_order(stream: list[Transition]) -> bool:
    """Each entity begins once, and every later move starts where the last one ended."""
    stands: dict[str, str] = {}
    for each in stream:
        if each.from_state != stands.get(each.entity_id):
            return False
        stands[each.entity_id] = each.to_state
    return True


def bells(url: str) -> list[Path]:
    """What processes listen at, for a database of SQLite."""
    return sorted(Path(f"{url.removeprefix('sqlite:///')}-bell").glob("*"))


# reading


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
async def test_the_stream_is_the_same_in_pages_of_any_size(database_url: str, clock: ManualClock, limit: int) -> None:
    async with open_engine(database_url, clock) as engine:
        await work(engine, "bob", 4)
        everything = await engine.list_transitions(limit=1000)
        assert await read_in_pages(engine, limit) == everything
        positions = [each.position for each in everything]
        assert len(set(positions)) == len(positions)
        assert is_told_in_order(everything)


async def test_the_stream_tells_where_everything_stands(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await work(engine, "bob", 3)
        stands = {each.entity_id: each.to_state for each in await read_in_pages(engine, 5)}
        for run in await engine.list_runs():
            assert stands.pop(run.id) == run.state
            for task in await engine.list_tasks(run.id):
                assert stands.pop(task.id) == task.state
        for worker in await engine.list_workers():
            assert stands.pop(worker.id) == worker.state
        assert not stands


async def test_the_stream_of_a_run_is_a_part_of_the_whole(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await work(engine, "bob", 3)
        (run, *_) = await engine.list_runs()
        members = {run.id, *(task.id for task in await engine.list_tasks(run.id))}
        everything = [each for each in await engine.list_transitions() if each.entity_id in members]
        assert await read_in_pages(engine, 2, run_id=run.id) == everything


async def test_tenants_have_streams_of_their_own(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in ("acme", "globex", "acme"):
            await engine.for_tenant(tenant).register_worker("bob")
        acme, globex = [await engine.for_tenant(tenant).list_transitions() for tenant in ("acme", "globex")]
        assert (len(acme), len(globex)) == (4, 2)
        assert {each.tenant for each in acme} == {"acme"}


async def test_whoever_begins_at_the_end_sees_only_what_is_new(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await work(engine, "bob", 1)
        position = await engine.last_position()
        assert await engine.list_transitions(after=position) == []
        worker = await register(engine)
        assert {each.entity_id for each in await engine.list_transitions(after=position)} == {worker.id}


# following


async def test_a_follower_is_told_at_once(database_url: str) -> None:
    async with real_engine(database_url) as engine:
        stream = engine.watch(after=await engine.last_position())
        for number in range(3):
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.wait({waiting}, timeout=0.05)
            assert not waiting.done()
            worker = await engine.register_worker(f"worker {number}")
            told = [await asyncio.wait_for(waiting, PATIENCE_SECONDS), await asyncio.wait_for(anext(stream), PATIENCE_SECONDS)]
            assert [(each.entity_id, each.to_state) for each in told] == [(worker.id, "INITIALIZING"), (worker.id, "IDLE")]


async def test_a_follower_of_a_run_hears_of_nothing_else(database_url: str) -> None:
    async with real_engine(database_url) as engine:
        other, run = await submit(engine, NewTask(name="a")), await submit(engine, NewTask(name="a"))
        stream = engine.watch(after=await engine.last_position(), run_id=run.id)
        await engine.signal_run(other.id, "cancel")
        await engine.signal_run(run.id, "cancel")
        told = [await asyncio.wait_for(anext(stream), PATIENCE_SECONDS) for _ in range(2)]
        assert {each.run_id for each in told} == {run.id}


async def test_a_follower_who_leaves_is_forgotten(database_url: str) -> None:
    async with real_engine(database_url) as engine:
        for _ in range(5):
            async with follower(engine):
                await engine.register_worker("bob")
        worker = await engine.register_worker("bob")
        for _ in range(5):
            waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=60))
            await asyncio.wait({waiting}, timeout=0.05)
            waiting.cancel()
            await asyncio.wait({waiting})
        assert not any(engine._core.wakeups._waiting.values())


async def test_nothing_is_missed_or_repeated_while_several_engines_write(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        reader, *writers = [await stack.enter_async_context(real_engine(database_url)) for _ in range(4)]
        following = await stack.enter_async_context(follower(reader))
        early = await stack.enter_async_context(follower(writers[0]))
        await asyncio.gather(*(work(engine, f"worker {number}", 12) for number, engine in enumerate(writers)))
        everything = await following.catch_up()
        assert following.seen == everything
        await early.catch_up()
        assert early.seen == everything
        assert is_told_in_order(everything)
        assert len({each.entity_id for each in everything}) == 3 * (1 + 12 * 3)


async def test_nothing_is_missed_or_repeated_while_event_loops_of_other_threads_write(database_url: str) -> None:
    def write(name: str) -> None:
        async def main() -> None:
            async with real_engine(database_url) as engine:
                await work(engine, name, 12)

        asyncio.run(main())

    async with real_engine(database_url) as reader, follower(reader) as following:
        await asyncio.gather(*(asyncio.to_thread(write, f"thread {number}") for number in range(3)))
        everything = await following.catch_up()
        assert following.seen == everything
        assert is_told_in_order(everything)


async def test_nothing_is_missed_or_repeated_while_other_processes_write(database_url: str) -> None:
    async with real_engine(database_url) as reader, follower(reader) as following:
        with process(WRITER, database_url, "one", "25") as one, process(WRITER, database_url, "two", "25") as two:
            for started in (one, two):
                tell(started)
            await work(reader, "three", 10)
            for started in (one, two):
                assert await asyncio.to_thread(read_line, started) == "done"
        everything = await following.catch_up()
        assert following.seen == everything
        assert is_told_in_order(everything)
        assert len([each for each in everything if each.kind == "run" and each.from_state is None]) == 60


async def test_whoever_commits_late_is_not_passed_over(postgres_url: str) -> None:
    """A transaction that has begun earlier and commits later: what came after it is told after it, and not before."""
    async with real_engine(postgres_url) as engine, follower(engine) as following:
        run = await submit(engine, NewTask(name="a"))
        await following.catch_up()
        before = len(following.seen)
        async with await psycopg.AsyncConnection.connect(postgres_url) as late:
            await late.execute("UPDATE run SET state = 'PAUSED' WHERE id = %s", [run.id])
            worker = await engine.register_worker("early")
            await asyncio.sleep(0.1)
            assert len(following.seen) == before, "nobody knows yet what will stand before it"
            await late.commit()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(following.seen) < before + 3:
                # A prompt rings no bell: the next commit of anybody does.
                await engine.send_heartbeat(worker.id)
                await engine.register_worker("bell")
        told = [(each.entity_id, each.to_state) for each in following.seen[before:]]
        assert told[:3] == [(run.id, "PAUSED"), (worker.id, "INITIALIZING"), (worker.id, "IDLE")]
        await following.catch_up()
        assert following.seen == await read_in_pages(engine, 3)


async def test_a_move_is_told_after_the_one_that_it_follows(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever began earlier may move something later: the order of the stream is that of the moves."""
    async with real_engine(postgres_url) as engine, real_engine(postgres_url) as other:
        run = await submit(engine, NewTask(name="a"))
        loop = asyncio.get_running_loop()
        begin = engine._core.store.begin

        def begin_early(_: Foresee | None = None) -> Transaction:
            transaction = begin()
            transaction.ensure_tenant("early", transaction.now())  # from here on it has its place among the transactions
            asyncio.run_coroutine_threadsafe(other.signal_run(run.id, "pause"), loop).result(PATIENCE_SECONDS)
            return transaction

        monkeypatch.setattr(engine._core.store, "begin", begin_early)
        await engine.signal_run(run.id, "cancel")
        moves = [each.to_state for each in await engine.list_transitions() if each.entity_id == run.id]
        assert moves == ["PENDING", "PAUSED", "CANCELED"]
        assert moves == [each.to_state for each in await engine.list_history(run.id)]


async def test_a_slow_commit_is_told_when_it_is_there(postgres_url: str) -> None:
    """A follower that was woken while another transaction still ran must not sleep over what that one held back."""
    async with real_engine(postgres_url) as engine, real_engine(postgres_url) as other, follower(engine) as following:
        await engine.register_worker("first")
        await following.catch_up()
        before = len(following.seen)
        transaction = await asyncio.to_thread(other._core.store.begin)
        (first,) = await engine.list_workers()
        (worker,) = await asyncio.to_thread(transaction.lock_workers, [first.id])
        worker.state, worker.phase, worker.trigger, worker.revision = "PAUSED", "held", "pause", worker.revision + 1
        await asyncio.to_thread(transaction.move, [worker], Worker.CHANGING)
        await asyncio.to_thread(transaction.list_lanes)  # a move waits for the next question
        await engine.register_worker("second")
        await asyncio.sleep(0.1)
        assert len(following.seen) == before
        await asyncio.to_thread(transaction.commit, Wakeup.NOTHING)
        for _ in range(200):
            if len(following.seen) >= before + 3:
                break
            await asyncio.sleep(0.05)
        assert len(following.seen) == before + 3


# waking up


async def test_a_waiting_claim_is_woken_by_its_own_engine(database_url: str) -> None:
    async with real_engine(database_url) as engine:
        worker = await engine.register_worker("bob")
        waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=30))
        await asyncio.wait({waiting}, timeout=0.1)
        await submit(engine, NewTask(name="a"))
        (claim,) = await asyncio.wait_for(waiting, 10)
        assert claim.name == "a"


async def test_a_waiting_claim_is_woken_by_a_task_that_becomes_free(database_url: str) -> None:
    async with real_engine(database_url) as engine, real_engine(database_url) as other:
        await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        claim = await claim_one(engine, await register(engine))
        worker = await other.register_worker("bob")
        waiting = asyncio.create_task(other.claim_tasks(worker.id, wait_seconds=30))
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
        await engine.complete_task(claim.task_id, claim.epoch)
        (woken,) = await asyncio.wait_for(waiting, 10)
        assert woken.name == "b"


async def test_a_waiting_claim_is_woken_when_its_worker_may_work_again(database_url: str) -> None:
    """A slot that is freed, and a budget that is raised, are reasons to look again."""
    async with real_engine(database_url) as engine:
        await submit(engine, NewTask(name="a"), NewTask(name="b"))
        worker = await register(engine)
        claim = await claim_one(engine, worker)
        waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=30))
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
        await engine.complete_task(claim.task_id, claim.epoch)
        (woken,) = await asyncio.wait_for(waiting, 10)
        assert woken.name == "b"


async def test_a_claim_that_waits_in_vain_comes_back_empty(database_url: str) -> None:
    async with real_engine(database_url) as engine:
        worker = await engine.register_worker("bob")
        assert await asyncio.wait_for(engine.claim_tasks(worker.id, wait_seconds=0.1), 10) == []


async def test_a_submission_wakes_a_claim_in_another_process(database_url: str) -> None:
    async with real_engine(database_url) as engine:
        with process(WAITER, database_url) as waiter:
            # It may still be on its way to sleep: that must not make a difference.
            await submit(engine, NewTask(name="hello"))
            assert await asyncio.wait_for(asyncio.to_thread(read_line, waiter), 10) == "hello"


async def test_a_submission_in_another_process_wakes_a_claim_here(database_url: str) -> None:
    async with real_engine(database_url) as engine:
        worker = await engine.register_worker("bob")
        with process(WRITER, database_url, "other", "1") as other:
            waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=30))
            await asyncio.wait({waiting}, timeout=0.1)
            assert not waiting.done()
            tell(other)
            claims = await asyncio.wait_for(waiting, 10)
            assert {claim.name for claim in claims} <= {"a", "b"}
            assert await asyncio.to_thread(read_line, other) == "done"


async def test_only_one_of_many_who_are_woken_gets_the_task(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(real_engine(database_url)) for _ in range(3)]
        workers = [await engine.register_worker("bob") for engine in engines]
        waiting = [
            asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=30))
            for engine, worker in zip(engines, workers, strict=True)
        ]
        await asyncio.wait(waiting, timeout=0.1)
        for number in range(3):
            await submit(engines[0], NewTask(name=f"task {number}"))
        claimed = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert sorted(claim.name for claims in claimed for claim in claims) == ["task 0", "task 1", "task 2"]


async def test_the_bell_of_a_process_that_was_killed_is_taken_down(sqlite_url: str) -> None:
    async with real_engine(sqlite_url) as engine:
        (own,) = bells(sqlite_url)
        with process(SLEEPER, sqlite_url) as sleeper:
            assert len(bells(sqlite_url)) == 2
            sleeper.kill()
            sleeper.wait()
        assert len(bells(sqlite_url)) == 2, "whoever is killed takes nothing down"
        await asyncio.wait_for(submit(engine, NewTask(name="a")), 10)
        assert bells(sqlite_url) == [own]
    assert not bells(sqlite_url)


async def test_a_bell_that_nobody_answers_does_not_stop_the_writer(sqlite_url: str) -> None:
    """A listener that stands still has a full pipe: whoever rings goes on."""
    async with real_engine(sqlite_url) as engine:
        deaf = bells(sqlite_url)[0].with_name("deaf")
        os.mkfifo(deaf)
        pipe = os.open(deaf, os.O_RDWR | os.O_NONBLOCK)
        try:
            with suppress(BlockingIOError):
                while True:
                    os.write(pipe, b"\7" * 4096)
            await asyncio.wait_for(submit(engine, NewTask(name="a")), 10)
        finally:
            os.close(pipe)
            deaf.unlink()


async def test_a_bell_that_was_taken_down_by_mistake_does_not_stop_anybody(sqlite_url: str) -> None:
    async with real_engine(sqlite_url) as engine:
        shutil.rmtree(bells(sqlite_url)[0].parent)
        worker = await engine.register_worker("bob")
        waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=30))
        await asyncio.wait({waiting}, timeout=0.1)
        await submit(engine, NewTask(name="a"))
        assert await asyncio.wait_for(waiting, 10)


async def test_a_listener_that_lost_its_connection_hears_again(postgres_url: str) -> None:
    async with real_engine(postgres_url) as engine, real_engine(postgres_url) as other:
        worker = await engine.register_worker("bob")
        waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=50))
        await asyncio.wait({waiting}, timeout=0.1)
        with psycopg.connect(postgres_url, autocommit=True) as administrator:
            administrator.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN pointsman%' AND pid <> pg_backend_pid()"
            )
        await submit(other, NewTask(name="a"))
        assert await asyncio.wait_for(waiting, 15)


async def test_wakeups_that_come_together_are_spread_together() -> None:
    said: list[Callable[[Wakeup], None]] = []
    told: list[str] = []

    def listen(heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        said.append(heard)
        return lambda: None

    wakeups = Wakeups(listen, World().sleep)
    (say,) = said
    for wakeup in (Wakeup.EVENTS, Wakeup.TASKS):
        wakeups.listen(wakeup, partial(told.append, str(wakeup.name)))
    for wakeup in (Wakeup.EVENTS, Wakeup.EVENTS, Wakeup.TASKS):
        say(wakeup)
    assert not told
    await asyncio.sleep(0)
    assert told == ["EVENTS", "TASKS"]
    say(Wakeup.EVENTS)
    await asyncio.sleep(0)
    assert told == ["EVENTS", "TASKS", "EVENTS"]
    wakeups.close()

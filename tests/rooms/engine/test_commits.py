"""Commits are shared, each request has its own answer, and a request that is repeated has one effect."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from decimal import Decimal
from typing import Any

import pytest
from tests.rooms.engine.harness import (
    ManualClock,
    claim_one,
    open_engine,
    pass_time,
    path_of,
    register,
    state_of,
    submit,
    task_of,
)
from tests.system.faults.prompt import prompt

from pointsman.engine import writer
from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.operation import KEY_LASTS_SECONDS
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.operations.upkeep import FireTimers
from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.writer import MAX_BATCH
from pointsman.errors import (
    Conflict,
    KeyReused,
    LawBroken,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TransitionRefused,
)
from pointsman.kernel.machine import Kind
from pointsman.store.contract import Foresee, Store, Transaction, Wakeup
from pointsman.store.rows import Run

PATIENCE_SECONDS = 30


class Valve:
    """A store whose transactions wait while it is shut, fail when told so, and are counted."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.begun = 0
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()
        self.lost_answers = 0
        """So many commits are done, and nobody is told."""
        self.failures: list[StoreError] = []
        """What the next transactions meet when they begin."""

    def begin(self, foresee: Foresee | None = None) -> Transaction:
        self.reached.set()
        assert self.opened.wait(PATIENCE_SECONDS)
        if self.failures:
            raise self.failures.pop(0)
        self.begun += 1
        transaction = self.store.begin(foresee)
        if self.lost_answers:
            self.lost_answers -= 1
            lose_answer(transaction, self.store.url)
        return transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def lose_answer(transaction: Transaction, url: str) -> None:
    """The commit is done, but the connection is gone before anybody hears of it."""
    commit = transaction.commit

    def lose(wakeup: Wakeup = Wakeup.NOTHING) -> None:
        commit(wakeup)
        raise OutcomeUnknown(f"{url} does not answer.")

    transaction.commit = lose  # type: ignore[method-assign]


def fit_valve(engine: Engine) -> Valve:
    """A transaction in which something else was foreseen does not count."""
    writer = engine._core.writer
    valve, miss = Valve(writer.store), writer.miss

    def note(right: int | None) -> None:
        valve.begun -= 1
        miss(right)

    writer.store, writer.miss = valve, note
    return valve


async def fire_timers(engine: Engine) -> int:
    return int(await engine._core.writer.submit(FireTimers()))


async def together(engine: Engine, valve: Valve, *questions: Awaitable[Any]) -> list[Any]:
    """The answers to questions that have all arrived while the writer was busy, errors among them."""
    valve.reached.clear()
    valve.opened.clear()
    busy = asyncio.create_task(fire_timers(engine))
    await asyncio.to_thread(valve.reached.wait, PATIENCE_SECONDS)
    asked = [asyncio.ensure_future(question) for question in questions]
    await asyncio.sleep(0)  # each gets as far as the queue
    assert len(engine._core.writer._queue) == len(asked)
    valve.begun = 0
    valve.opened.set()
    await busy
    valve.begun -= 1
    return await asyncio.gather(*asked, return_exceptions=True)


def ask_to_submit(engine: TenantEngine, name: str, **options: Any) -> Awaitable[Run]:
    return engine.submit_run(NewRun(name=name, tasks=(NewTask(name="a"),)), **options)


async def names_of_runs(engine: Engine) -> list[str]:
    return sorted(run.name for run in await engine.list_runs(limit=1000))


@contextmanager
def a_law_against(url: str, name: str) -> Iterator[None]:
    """Somebody has forbidden runs of that name, in the database itself."""
    with prompt(url) as somebody:
        if somebody.dialect == "sqlite":
            somebody.ask(
                f"CREATE TRIGGER forbidden BEFORE INSERT ON run WHEN new.name = '{name}'"
                f" BEGIN SELECT RAISE(ABORT, 'no run is called {name}'); END"
            )
        else:
            somebody.ask(f"ALTER TABLE run ADD CONSTRAINT forbidden CHECK (name <> '{name}')")
        yield


# batches


async def test_what_arrives_together_is_committed_together(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        valve = fit_valve(engine)
        before = engine.commit_metrics.batches, engine.commit_metrics.operations
        runs = await together(engine, valve, *(ask_to_submit(engine, f"run {number}") for number in range(30)))
        assert [run.name for run in runs] == [f"run {number}" for number in range(30)]
        assert valve.begun == 1
        metrics = engine.commit_metrics
        assert (metrics.batches - before[0], metrics.operations - before[1]) == (2, 31)
        assert metrics.largest_batch == 30
        assert metrics.operations > metrics.batches
        assert len(await names_of_runs(engine)) == 30


async def test_a_batch_has_a_limit(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        valve = fit_valve(engine)
        beats = await together(engine, valve, *(engine.send_heartbeat(worker.id) for _ in range(MAX_BATCH + 1)))
        assert {beat.worker.id for beat in beats} == {worker.id}
        assert valve.begun == 2
        assert engine.commit_metrics.largest_batch == MAX_BATCH


async def test_looking_after_things_has_a_transaction_of_its_own(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        valve = fit_valve(engine)
        answers = await together(engine, valve, ask_to_submit(engine, "a"), fire_timers(engine), ask_to_submit(engine, "b"))
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        assert valve.begun == 3


async def test_an_illegal_request_does_not_hurt_its_neighbours(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        worker = await register(engine)
        claim = await claim_one(engine, worker)
        valve = fit_valve(engine)
        first, unknown, stale, illegal, done, last = await together(
            engine,
            valve,
            ask_to_submit(engine, "first"),
            engine.signal_run("run_of_nobody", "cancel"),
            engine.complete_task(claim.task_id, 99),
            engine.signal_run(run.id, "resume"),
            engine.complete_task(claim.task_id, claim.epoch, AttemptReport(output={"answer": 42})),
            ask_to_submit(engine, "last"),
        )
        assert isinstance(unknown, NotFound)
        assert isinstance(stale, LeaseLost)
        assert isinstance(illegal, TransitionRefused)
        assert (first.name, done.state, last.name) == ("first", "SUCCEEDED", "last")
        assert valve.begun == 1
        assert engine.commit_metrics.refused == 3
        assert engine.commit_metrics.splits == 0
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_two_who_want_the_same_thing_in_one_batch_get_it_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, await register(engine))
        valve = fit_valve(engine)
        done, late, cancelled, again = await together(
            engine,
            valve,
            engine.complete_task(claim.task_id, claim.epoch),
            engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="too late")),
            engine.signal_run(run.id, "pause"),
            engine.signal_run(run.id, "pause"),
        )
        assert done.state == "SUCCEEDED"
        assert isinstance(late, LeaseLost)
        # The run follows its tasks when all have been heard, and until then it may still be paused once.
        assert {type(cancelled), type(again)} <= {Run, TransitionRefused}
        assert await path_of(engine, claim.task_id) == ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]


async def test_a_worker_finishes_and_claims_in_one_commit(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        worker = await register(engine)
        claim = await claim_one(engine, worker)
        valve = fit_valve(engine)
        claimed, done = await together(
            engine, valve, engine.claim_tasks(worker.id), engine.complete_task(claim.task_id, claim.epoch)
        )
        assert valve.begun == 1
        assert done.state == "SUCCEEDED"
        assert [each.name for each in claimed] == ["b"], "claims come last, and see what the others have freed"
        assert await path_of(engine, worker.id) == ["INITIALIZING", "IDLE", "BUSY"]
        await engine.complete_task(claimed[0].task_id, claimed[0].epoch)
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_worker_that_waits_claims_in_the_commit_of_the_submission(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker, stranger = await register(engine), await register(engine.for_tenant("other"))
        waiting = [
            asyncio.create_task(each.claim_tasks(worker_id, wait_seconds=60))
            for each, worker_id in ((engine.for_tenant("other"), stranger.id), (engine, worker.id))
        ]
        await asyncio.wait(waiting, timeout=0.1)
        engine.commit_metrics.largest_batch = 0
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"))
        assert engine.commit_metrics.largest_batch == 2
        (claim,) = await waiting[1]
        assert (claim.run_id, claim.name, run.state) == (run.id, "a", "RUNNING")
        assert await path_of(engine, claim.task_id) == ["PENDING", "QUEUED", "RUNNING"]
        assert not waiting[0].done()
        waiting[0].cancel()


async def test_a_worker_goes_on_waiting_after_a_submission_that_is_not_for_it(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=60))
        await asyncio.wait({waiting}, timeout=0.1)
        await submit(engine, NewTask(name="a", capabilities=["gpu"]))
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
        with a_law_against(database_url, "poison"), pytest.raises(LawBroken):
            await ask_to_submit(engine, "poison")
        assert not waiting.done()
        run = await submit(engine, NewTask(name="b"))
        assert [(claim.run_id, claim.name) for claim in await waiting] == [(run.id, "b")]


async def test_workers_that_wait_take_one_submission_each(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        workers = [await register(engine) for _ in range(3)]
        waiting = [asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=60)) for worker in workers]
        await asyncio.wait(waiting, timeout=0.1)
        await asyncio.gather(*(submit(engine, NewTask(name=name)) for name in "abc"))
        assert sorted(claim.name for claims in await asyncio.gather(*waiting) for claim in claims) == ["a", "b", "c"]


async def test_no_task_is_claimed_twice_in_one_batch(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit(engine, *(NewTask(name=f"task {number}") for number in range(5)))
        workers = [await register(engine, slots=2) for _ in range(4)]
        valve = fit_valve(engine)
        answers = await together(engine, valve, *(engine.claim_tasks(worker.id, 2) for worker in workers))
        assert valve.begun == 1
        names = [claim.name for claims in answers for claim in claims]
        assert sorted(names) == [f"task {number}" for number in range(5)]


@pytest.mark.parametrize("position", [0, 3, 6])
async def test_what_breaks_a_law_of_the_database_is_found_alone(database_url: str, clock: ManualClock, position: int) -> None:
    names = [f"run {number}" for number in range(7)]
    names[position] = "poison"
    async with open_engine(database_url, clock) as engine:
        with a_law_against(database_url, "poison"):
            valve = fit_valve(engine)
            answers = await together(engine, valve, *(ask_to_submit(engine, name, request_id=name) for name in names))
            assert isinstance(answers.pop(position), LawBroken)
            names.pop(position)
            assert [run.name for run in answers] == names
            assert await names_of_runs(engine) == sorted(names)
            assert engine.commit_metrics.splits
            repeated = [await ask_to_submit(engine, name, request_id=name) for name in names]
            assert [run.id for run in repeated] == [run.id for run in answers]
        assert await engine.diagnose() == []


async def test_a_defect_of_one_request_is_its_own(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody thought of reaches the one who asked, and the writer goes on."""
    from pointsman.engine.operations.runs import SetBudget

    def break_down(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        monkeypatch.setattr(SetBudget, "decide", break_down)
        valve = fit_valve(engine)
        first, broken, last = await together(
            engine, valve, ask_to_submit(engine, "first"), engine.set_budget(run.id, Decimal(1)), ask_to_submit(engine, "last")
        )
        assert isinstance(broken, ZeroDivisionError)
        assert (first.name, last.name) == ("first", "last")
        assert await names_of_runs(engine) == ["first", "last", "test"]


@pytest.mark.parametrize("failure", [StoreBusy("busy"), StoreUnavailable("away"), Conflict("overtaken")], ids=repr)
async def test_a_database_that_is_away_for_a_moment_is_not_noticed(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, failure: StoreError
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.0001)
    async with open_engine(database_url, clock) as engine:
        valve = fit_valve(engine)
        valve.failures = [failure] * (writer.TRIES - 1)
        assert (await ask_to_submit(engine, "patient")).name == "patient"
        assert engine.commit_metrics.retries == writer.TRIES - 1
        valve.failures = [failure] * writer.TRIES
        with pytest.raises(StoreError, match=str(failure)):
            await ask_to_submit(engine, "unlucky")
        await ask_to_submit(engine, "afterwards")
        assert await names_of_runs(engine) == ["afterwards", "patient"]


# requests that are repeated


async def test_twins_in_one_batch_are_one(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        valve = fit_valve(engine)
        first, twin, other, third = await together(
            engine,
            valve,
            ask_to_submit(engine, "a", request_id="key"),
            ask_to_submit(engine, "a", request_id="key"),
            ask_to_submit(engine, "another body", request_id="key"),
            ask_to_submit(engine, "a", request_id="key"),
        )
        assert first == twin == third
        assert isinstance(other, KeyReused)
        assert "Use a new key" in str(other)
        assert await names_of_runs(engine) == ["a"]


async def test_twins_one_after_the_other_are_one(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        first = await ask_to_submit(engine, "a", request_id="key")
        assert await ask_to_submit(engine, "a", request_id="key") == first
        with pytest.raises(KeyReused):
            await ask_to_submit(engine, "another body", request_id="key")
    async with open_engine(database_url, clock, seed=2) as engine:
        assert await ask_to_submit(engine, "a", request_id="key") == first
        assert await names_of_runs(engine) == ["a"]


async def test_twins_of_many_engines_at_the_same_time_are_one(database_url: str, clock: ManualClock) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(open_engine(database_url, clock, seed=seed)) for seed in range(4)]
        for number in range(8):
            answers = await asyncio.gather(
                *(ask_to_submit(engine, f"run {number}", request_id=f"key {number}") for engine in engines * 2)
            )
            assert len({run.id for run in answers}) == 1
        assert await names_of_runs(engines[0]) == [f"run {number}" for number in range(8)]
        assert await engines[0].diagnose() == []


async def test_twins_of_many_engines_with_different_bodies_leave_one_winner(database_url: str, clock: ManualClock) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(open_engine(database_url, clock, seed=seed)) for seed in range(3)]
        answers = await asyncio.gather(
            *(ask_to_submit(engine, f"body {number}", request_id="key") for number, engine in enumerate(engines)),
            return_exceptions=True,
        )
        winners = [answer for answer in answers if isinstance(answer, Run)]
        assert len(winners) == 1
        assert sum(isinstance(answer, KeyReused) for answer in answers) == 2
        assert await names_of_runs(engines[0]) == [winners[0].name]


async def test_a_key_belongs_to_its_tenant_and_its_request(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await ask_to_submit(engine, "a", request_id="key")
        other = await ask_to_submit(engine.for_tenant("acme"), "b", request_id="key")
        await engine.signal_run(run.id, "pause", request_id="key")
        assert {other.tenant, run.tenant} == {"acme", "default"}
        assert await state_of(engine, run) == "PAUSED"


@pytest.mark.parametrize("tended", [False, True])
async def test_a_key_can_be_used_again_when_it_has_expired(
    database_url: str,
    clock: ManualClock,
    tended: bool,  # noqa: FBT001 - a case of the test
) -> None:
    async with open_engine(database_url, clock) as engine:
        first = await engine.register_worker("a", request_id="key")
        clock.advance(KEY_LASTS_SECONDS - 1)
        assert (await engine.register_worker("a", request_id="key")).id == first.id
        clock.advance(1)
        if tended:
            assert await engine.tend()
            with prompt(database_url) as somebody:
                assert somebody.ask("SELECT count(*) FROM idempotency_key") == [(0,)]
        second = await engine.register_worker("another body", request_id="key")
        assert second.id != first.id
        assert await engine.register_worker("another body", request_id="key") == second


async def test_the_key_of_a_run_lasts_as_long_as_the_run(database_url: str, clock: ManualClock) -> None:
    """Document 003: one key, one run."""
    async with open_engine(database_url, clock) as engine:
        first = await ask_to_submit(engine, "a", request_id="key")
        await pass_time(engine, clock, 1000 * KEY_LASTS_SECONDS)
        assert (await ask_to_submit(engine, "a", request_id="key")).id == first.id
        with pytest.raises(KeyReused):
            await ask_to_submit(engine, "another body", request_id="key")
        assert len(await engine.list_runs()) == 1


async def test_a_refusal_is_not_kept(database_url: str, clock: ManualClock) -> None:
    """What was refused has had no effect, so asking again is asking anew."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        with pytest.raises(TransitionRefused):
            await engine.signal_run(run.id, "resume", request_id="key")
        await engine.signal_run(run.id, "pause")
        assert (await engine.signal_run(run.id, "resume", request_id="key")).state == "RUNNING"


class Scene:
    """A run with one task in the hands of a worker, and one that waits."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def prepare(self) -> Scene:
        await self.engine.declare_tool("compiler", failure_threshold=1)
        tasks = (NewTask(name="a", payload={"deep": [1, None, "ü"]}, tool="compiler"), NewTask(name="b", gate=True))
        self.run = await submit(self.engine, *tasks, budget_usd=Decimal("12.5"), payload=[1.5, {}])
        self.worker = await register(self.engine, capabilities=["gpu"])
        self.claim = await claim_one(self.engine, self.worker)
        self.gate = await task_of(self.engine, self.run, "b")
        return self


REPEATED: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "submit_run": lambda scene: scene.engine.for_tenant(actor="alice").submit_run(
        NewRun(name="x", tasks=(NewTask(name="a"),), payload={"a": 1}, budget_usd=Decimal("0.000001"), timeout_seconds=5),
        reason="because",
        request_id="key",
    ),
    "add_tasks": lambda scene: scene.engine.add_tasks(
        scene.run.id, [NewTask(name="c", payload={"a": [1]}, depends_on=("a",), max_attempts=3)], request_id="key"
    ),
    "signal_task": lambda scene: scene.engine.signal_task(scene.gate.id, "approve", reason="looks good", request_id="key"),
    "signal_run": lambda scene: scene.engine.signal_run(scene.run.id, "pause", request_id="key"),
    "approve_run": lambda scene: scene.engine.approve_run(scene.run.id, request_id="key"),
    "set_budget": lambda scene: scene.engine.set_budget(scene.run.id, Decimal("99.999999"), request_id="key"),
    "transition": lambda scene: scene.engine.request_transition(Kind.RUN, scene.run.id, to_state="PAUSED", request_id="key"),
    "refused transition": lambda scene: scene.engine.request_transition(
        Kind.RUN, scene.run.id, to_state="RUNNING", request_id="key"
    ),
    "register_worker": lambda scene: scene.engine.register_worker("bob", capabilities=["x", "y"], request_id="key"),
    "signal_worker": lambda scene: scene.engine.signal_worker(scene.worker.id, "drain", request_id="key"),
    "declare_tool": lambda scene: scene.engine.declare_tool("linker", cooldown_seconds=1, request_id="key"),
    "trip_breaker": lambda scene: scene.engine.trip_breaker("compiler", 5, reason="maintenance", request_id="key"),
    "complete_task": lambda scene: scene.engine.complete_task(
        scene.claim.task_id,
        scene.claim.epoch,
        AttemptReport(output={"a": [1.25, None]}, cost_usd=Decimal("1.5")),
        request_id="key",
    ),
    "fail_task": lambda scene: scene.engine.fail_task(
        scene.claim.task_id, scene.claim.epoch, AttemptReport(error="no"), request_id="key"
    ),
    "ask": lambda scene: scene.engine.report_attempt(
        scene.claim.task_id, scene.claim.epoch, "ask", AttemptReport(question="why?", session_id="s"), request_id="key"
    ),
    "signal_attempt": lambda scene: scene.engine.report_attempt(
        scene.claim.task_id, scene.claim.epoch, "expire", request_id="key"
    ),
}


@pytest.mark.parametrize("method", REPEATED)
async def test_the_repeated_answer_is_the_first_one(database_url: str, clock: ManualClock, method: str) -> None:
    """Word for word, although the world has moved on; and nothing more has happened."""
    async with open_engine(database_url, clock) as engine:
        scene = await Scene(engine).prepare()
        first = await REPEATED[method](scene)
        clock.advance(10)
        with suppress(TransitionRefused):
            await engine.signal_run(scene.run.id, "cancel")
        before = await engine.list_transitions()
        assert await REPEATED[method](scene) == first
        assert await engine.list_transitions() == before


async def test_a_breaker_that_was_reset_is_reset_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        scene = await Scene(engine).prepare()
        await engine.fail_task(scene.claim.task_id, scene.claim.epoch, AttemptReport(error="no"))
        first = await engine.reset_breaker("compiler", reason="it is well again", request_id="key")
        assert first.state == "CLOSED"
        assert await engine.reset_breaker("compiler", reason="it is well again", request_id="key") == first


# answers that get lost


@pytest.mark.parametrize("method", REPEATED)
async def test_an_answer_lost_after_the_commit_gives_no_second_effect(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.0001)
    async with open_engine(database_url, clock) as engine:
        scene = await Scene(engine).prepare()
        valve = fit_valve(engine)
        valve.lost_answers = 1
        position = await engine.last_position()
        await REPEATED[method](scene)
        once = await engine.list_transitions(after=position)
        assert valve.begun == 2, "the engine itself asks again"
        await REPEATED[method](scene)
        assert await engine.list_transitions(after=position) == once
        moves = [(each.entity_id, each.from_state, each.to_state) for each in once]
        assert len(moves) == len(set(moves))
        assert not [each for each in await engine.diagnose() if each.subject == "disagreement"]


async def test_nor_when_it_is_the_caller_who_asks_again(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.0001)
    async with open_engine(database_url, clock) as engine:
        valve = fit_valve(engine)
        valve.lost_answers = 1
        gone = iter([False])

        def go_away(foresee: Foresee | None = None) -> Transaction:
            if next(gone, True):
                raise StoreUnavailable("The server is gone.")
            return Valve.begin(valve, foresee)

        monkeypatch.setattr(valve, "begin", go_away)
        with pytest.raises(StoreUnavailable):
            await ask_to_submit(engine, "a", request_id="key")
        monkeypatch.undo()
        run = await ask_to_submit(engine, "a", request_id="key")
        assert [each.id for each in await engine.list_runs()] == [run.id]


async def test_a_request_without_a_key_has_one_effect_too(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks once, and is not told that it failed, has asked for one run."""
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.0001)
    async with open_engine(database_url, clock) as engine:
        fit_valve(engine).lost_answers = 1
        await asyncio.gather(ask_to_submit(engine, "a"), return_exceptions=True)
        assert await names_of_runs(engine) == ["a"]


async def test_a_cost_is_counted_once(database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.0001)
    async with open_engine(database_url, clock) as engine:
        scene = await Scene(engine).prepare()
        fit_valve(engine).lost_answers = 1
        await asyncio.gather(
            engine.report_attempt(scene.claim.task_id, scene.claim.epoch, report=AttemptReport(cost_usd=Decimal(2))),
            return_exceptions=True,
        )
        assert (await engine.get_task(scene.claim.task_id)).cost_usd == Decimal(2)


async def test_a_worker_whose_completion_was_done_is_not_told_that_it_was_not(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`LeaseLost` would mean that nothing of the attempt counts, and all of it does."""
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.0001)
    async with open_engine(database_url, clock) as engine:
        scene = await Scene(engine).prepare()
        fit_valve(engine).lost_answers = 1
        (answer,) = await asyncio.gather(engine.complete_task(scene.claim.task_id, scene.claim.epoch), return_exceptions=True)
        assert (await engine.get_task(scene.claim.task_id)).state == "SUCCEEDED"
        assert not isinstance(answer, LeaseLost)


async def test_a_claim_whose_answer_was_lost_is_given_up(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker never hears of its task: a whole lease later the heartbeats show that, and others may have it."""
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.0001)
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        worker = await register(engine)
        fit_valve(engine).lost_answers = 1
        with pytest.raises(OutcomeUnknown):
            await engine.claim_tasks(worker.id)
        for _ in range(3):
            clock.advance(worker.lease_seconds / 2 + 1)
            await engine.send_heartbeat(worker.id)
        assert await state_of(engine, run, "a") == "QUEUED"
        assert (await claim_one(engine, worker)).epoch == 2


# closing


async def test_what_has_arrived_is_finished_before_closing(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        asked = [asyncio.ensure_future(ask_to_submit(engine, f"run {number}")) for number in range(20)]
        await asyncio.sleep(0)
        await engine.close()
        assert len({(await each).id for each in asked}) == 20
    async with open_engine(database_url, clock, seed=2) as engine:
        assert len(await names_of_runs(engine)) == 20


async def test_whoever_comes_while_the_writer_ends_is_not_left_waiting(database_url: str, clock: ManualClock) -> None:
    """Between looking whether the engine is open and joining the queue, it may be closed."""
    async with open_engine(database_url, clock) as engine:
        arrived = engine._core.writer._arrived
        closing = threading.Thread(target=engine._core.writer.close)

        class Late(threading.Condition):
            def __enter__(self) -> bool:
                engine._core.writer._arrived = arrived
                closing.start()
                closing.join()
                return arrived.__enter__()

            def __exit__(self, *error: Any) -> None:
                arrived.__exit__(*error)

            def notify(self, n: int = 1) -> None:
                arrived.notify(n)

        engine._core.writer._arrived = Late()
        outcome = await asyncio.wait_for(
            asyncio.gather(ask_to_submit(engine, "late"), return_exceptions=True), timeout=PATIENCE_SECONDS / 10
        )
        assert outcome

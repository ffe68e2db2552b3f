"""PostgreSQL: what a turn asks is sent in one round trip, and the commit in another. A wrong guess changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from msgspec import Struct
from tests.rooms.engine.harness import ManualClock, open_engine, register, state_of, submit

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewTask
from pointsman.errors import WorkerUnavailable
from pointsman.store.postgres.session import Session, _Call
from pointsman.store.rows import Worker


class Count(NamedTuple):
    statements: int
    round_trips: int


class Sent(Struct):
    """Every round trip of the writer: how many statements it had."""

    trips: list[int]

    @property
    def count(self) -> Count:
        return Count(sum(self.trips), len(self.trips))


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    sent, execute = Sent([]), Session._execute

    def note(session: Session, calls: Sequence[_Call]) -> list[list[object]]:
        if threading.current_thread().name == "pointsman-writer":
            sent.trips.append(sum(1 + (call.statement.then is not None) for call in (*session._waiting, *calls)))
        return execute(session, calls)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_execute", note)
        yield sent


def some(number: int) -> tuple[NewTask, ...]:
    return tuple(NewTask(name=f"t{index}") for index in range(number))


def ends(claims: Sequence[Claim], signal: str = "complete") -> list[ReportAttempt]:
    return [ReportAttempt(claim.task_id, claim.epoch, signal, AttemptReport(output=claim.name)) for claim in claims]


async def turn(engine: Engine, worker: Worker, claims: Sequence[Claim], limit: int) -> list[Claim]:
    """Report these claims, each with an output of its own, and claim the next ones, in one commit."""
    refusals, claimed = await asyncio.gather(engine.report_attempts(ends(claims)), engine.claim_tasks(worker.id, limit))
    assert refusals == [None] * len(claims)
    return claimed


async def count_turns(engine: Engine, worker: Worker, size: int, monkeypatch: pytest.MonkeyPatch) -> list[Count]:
    """What turns cost once the connection has prepared its statements, and the events of a moment ago are announced."""
    claims = await engine.claim_tasks(worker.id, size)
    counts = []
    for _ in range(6):
        with listening(monkeypatch) as sent:
            claims = await turn(engine, worker, claims, size)
        assert len(claims) == size
        counts.append(sent.count)
    return counts[2:]


@pytest.mark.parametrize("size", [1, 10])
async def test_a_turn_within_a_run_takes_two_round_trips(
    postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """BEGIN; the clock and the runs; the worker; the ends and the claim; COMMIT, now and then with an announcement."""
    async with open_engine(postgres_url, clock) as engine:
        worker = await register(engine, slots=size)
        await submit(engine, *some(10 * size))
        counts = await count_turns(engine, worker, size, monkeypatch)
    assert {count.round_trips for count in counts} == {2}
    assert min(count.statements for count in counts) == 5
    assert max(count.statements for count in counts) <= 6


async def test_a_turn_of_runs_of_one_task_takes_four_round_trips(
    postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in its runs, so nothing is sent together; and a run begins, and one ends. Some try to share, in vain."""
    async with open_engine(postgres_url, clock) as engine:
        worker = await register(engine)
        for _ in range(10):
            await submit(engine, *some(1))
        counts = await count_turns(engine, worker, 1, monkeypatch)
    usual = [count for count in counts if count.round_trips == 4]
    assert len(usual) >= len(counts) / 2
    assert max(count.statements for count in usual) <= 14
    assert max(count.round_trips for count in counts) <= 6, "a turn that shares in vain, and then the usual way"


async def test_a_submission_takes_two_round_trips(
    postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(postgres_url, clock) as engine:
        for _ in range(3):
            with listening(monkeypatch) as sent:
                await submit(engine, *some(20))
    assert sent.count == Count(statements=6, round_trips=2)


async def test_an_idle_worker_is_assigned_in_the_commit_of_its_claim(
    postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(postgres_url, clock) as engine:
        worker = await register(engine)
        await submit(engine, *some(5))
        for _ in range(3):
            with listening(monkeypatch) as sent:
                claims = await engine.claim_tasks(worker.id)
            await engine.report_attempts(ends(claims))
    assert sent.count.round_trips == 2


# wrong guesses


async def prepare(engine: Engine, *, slots: int = 2) -> tuple[Worker, list[Claim]]:
    """A worker whose next claim is foreseen."""
    worker = await register(engine, slots=slots)
    await submit(engine, *some(20))
    return worker, await turn(engine, worker, await engine.claim_tasks(worker.id, slots), slots)


async def test_a_worker_that_was_paused_meanwhile_gets_nothing(postgres_url: str, clock: ManualClock) -> None:
    async with open_engine(postgres_url, clock) as engine, open_engine(postgres_url, clock, seed=2) as other:
        worker, claims = await prepare(engine)
        await other.signal_worker(worker.id, "pause")
        with pytest.raises(WorkerUnavailable):
            await turn(engine, worker, claims, 2)
        tasks = [task for run in await engine.list_runs() for task in await engine.list_tasks(run.id)]
        assert sorted(task.state for task in tasks)[:4] == ["QUEUED"] * 4
        assert sum(task.state == "SUCCEEDED" for task in tasks) == 4
        assert not any(task.current_attempt for task in tasks)


async def test_a_worker_that_claims_in_two_processes_gets_no_more_than_it_has_room_for(
    postgres_url: str, clock: ManualClock
) -> None:
    async with open_engine(postgres_url, clock) as engine, open_engine(postgres_url, clock, seed=2) as other:
        worker, claims = await prepare(engine, slots=4)
        await engine.report_attempts(ends(claims[:3]))
        claims = await turn(engine, worker, claims[3:], 1)
        assert len(await other.claim_tasks(worker.id, 9)) == 3
        assert len(await turn(engine, worker, claims, 4)) == 1, "it had room for four when it was seen here the last time"


async def test_what_becomes_claimable_by_the_ends_of_a_commit_is_claimed_in_it_by_priority(
    postgres_url: str, clock: ManualClock
) -> None:
    async with open_engine(postgres_url, clock) as engine:
        worker = await register(engine)
        tasks = [NewTask(name=f"t{index}", priority=10 - index) for index in range(6)]
        await submit(engine, *tasks, NewTask(name="urgent", depends_on=("t2",), priority=99))
        claims, names = await engine.claim_tasks(worker.id), []
        while claims:
            names.append(claims[0].name)
            claims = await turn(engine, worker, claims, 1)
        assert names == ["t0", "t1", "t2", "urgent", "t3", "t4", "t5"]


async def test_a_stale_report_in_a_turn_that_is_foreseen_is_refused(postgres_url: str, clock: ManualClock) -> None:
    async with open_engine(postgres_url, clock) as engine, open_engine(postgres_url, clock, seed=2) as other:
        worker, claims = await prepare(engine)
        await other.report_attempts(ends(claims[:1]))
        (stale, other_one), claimed = await asyncio.gather(
            engine.report_attempts(ends(claims)), engine.claim_tasks(worker.id, 2)
        )
        assert (type(stale).__name__, other_one) == ("LeaseLost", None)
        assert len(claimed) == 2


async def test_the_time_of_a_foreseen_turn_is_that_of_its_transaction(postgres_url: str, clock: ManualClock) -> None:
    async with open_engine(postgres_url, clock) as engine:
        worker, claims = await prepare(engine)
        for _ in range(3):
            clock.advance(1)
            before, claims = claims, await turn(engine, worker, claims, 2)
            assert (await engine.get_task(before[0].task_id)).completed_at == clock.now()
            assert (await engine.get_task(claims[0].task_id)).entered_at == clock.now()


async def test_a_turn_that_ends_its_run_ends_it_in_the_same_commit(postgres_url: str, clock: ManualClock) -> None:
    async with open_engine(postgres_url, clock) as engine:
        worker = await register(engine)
        runs = [await submit(engine, *some(1)) for _ in range(5)]
        claims = await engine.claim_tasks(worker.id)
        for done, run in enumerate(runs):
            assert await state_of(engine, run) == "RUNNING"
            claims = await turn(engine, worker, claims, 1)
            assert await state_of(engine, run) == "SUCCEEDED"
            assert engine.commit_metrics.retries == 0, done


async def test_a_kind_of_task_that_is_new_since_the_last_claim_has_its_turn(postgres_url: str, clock: ManualClock) -> None:
    async with open_engine(postgres_url, clock) as engine:
        worker = await register(engine, capabilities=("gpu",))
        await submit(engine, *some(5))
        claims = await turn(engine, worker, await engine.claim_tasks(worker.id), 1)
        await submit(engine, NewTask(name="urgent", capabilities=("gpu",), priority=99))
        assert [claim.name for claim in await turn(engine, worker, claims, 1)] == ["urgent"]

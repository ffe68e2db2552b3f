"""Plain tasks begin and end the short way, and nobody can tell from what is stored that they did.

Each case is played three times, with the same ids and the same clock: with `report_attempts`, where plain tasks go the short
way; in one commit, where each goes the general way; and, where nothing else happens in that commit, in a commit for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.databases import DATABASES, postgres_database, registered_sqlite_url
from tests.rooms.engine.harness import ManualClock, open_engine, pass_time, path_of, register, submit
from tests.rooms.engine.test_commits import fit_valve, together
from tests.rows import each_row
from tests.system.faults.prompt import prompt

from pointsman.engine import plain
from pointsman.engine.batch import Decider
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.work import Work
from pointsman.errors import LeaseLost, NotFound, PointsmanError, TransitionRefused
from pointsman.store.rows import Worker

GLOBEX = "globex"
TENANTS = ("default", GLOBEX)
LEASE_SECONDS = 30.0
LIFECYCLES = ("standard", "approval", "pipeline", "agent", "orchestrated", "supervised")
Ask = Callable[[Engine], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked of an engine in one commit."""

    reports: Sequence[ReportAttempt]
    before: Sequence[Ask] = ()
    after: Sequence[Ask] = ()
    more: Sequence[ReportAttempt] = ()
    """A second call."""

    @property
    def alone(self) -> bool:
        return not (self.before or self.after or self.more)


Prepare = Callable[[Engine, ManualClock], Awaitable[Plan]]


def done(claims: Sequence[Claim], **told: Any) -> list[ReportAttempt]:
    return [ReportAttempt(claim.task_id, claim.epoch, "complete", AttemptReport(**told)) for claim in claims]


def some(number: int, prefix: str = "t", **options: Any) -> tuple[NewTask, ...]:
    return tuple(NewTask(name=f"{prefix}{index}", payload={"number": index}, **options) for index in range(number))


async def claim_all(engine: Engine, *tasks: NewTask, slots: int = 200, **options: Any) -> tuple[Worker, list[Claim]]:
    """A worker that has claimed every task of a new run, in the order of their names."""
    worker = await register(engine, slots=slots)
    await submit(engine, *tasks, **options)
    claims = await engine.claim_tasks(worker.id, slots)
    assert len(claims) == len(tasks)
    return worker, sorted(claims, key=lambda claim: (len(claim.name), claim.name))


# How it is played.


@dataclass(slots=True)
class Played:
    answers: list[Any]
    claims: list[Any]
    soon: Any
    """What is stored then."""
    later: Any
    """What is stored when the workers have been silent for long."""
    ended_plain: int
    """How many tasks ended the short way in the commit."""
    commits: int
    alone: bool
    """Nothing else was asked in it."""


async def play_together(engine: Engine, clock: ManualClock, prepare: Prepare, short: list[int]) -> Played:
    plan = await prepare(engine, clock)
    valve = fit_valve(engine)
    short.clear()
    calls = [each(engine) for each in plan.before]
    calls += [engine.report_attempts(reports) for reports in (plan.reports, plan.more) if reports]
    calls += [each(engine) for each in plan.after]
    answers = await together(engine, valve, *calls)
    ended_plain, commits = sum(short), valve.begun
    number = len(plan.before)
    told = [answer for answers in answers[number : number + 1 + bool(plan.more)] for answer in answers]
    others = answers[:number] + answers[number + 1 + bool(plan.more) :]
    return await watch(engine, clock, plan, told, others, ended_plain, commits)


async def play_apart(engine: Engine, clock: ManualClock, prepare: Prepare, short: list[int]) -> Played:
    plan = await prepare(engine, clock)
    valve = fit_valve(engine)
    calls = [each(engine) for each in plan.before]
    calls += [complete(engine, report) for report in (*plan.reports, *plan.more)]
    calls += [each(engine) for each in plan.after]
    answers = await together(engine, valve, *calls)
    first, last = len(plan.before), len(plan.before) + len(plan.reports) + len(plan.more)
    told = [as_answer(answer) for answer in answers[first:last]]
    assert short == []
    return await watch(engine, clock, plan, told, answers[:first] + answers[last:], 0, valve.begun)


async def play_one_by_one(engine: Engine, clock: ManualClock, prepare: Prepare, short: list[int]) -> Played:
    plan = await prepare(engine, clock)
    told = []
    for report in plan.reports:
        answers = await asyncio.gather(complete(engine, report), return_exceptions=True)
        told += [as_answer(answer) for answer in answers]
    assert short == []
    return await watch(engine, clock, plan, told, [], 0, len(plan.reports))


def complete(engine: Engine, report: ReportAttempt) -> Awaitable[Any]:
    return engine.perform(report)


def as_answer(answer: Any) -> PointsmanError | None:
    assert not isinstance(answer, BaseException) or isinstance(answer, PointsmanError), answer
    return answer if isinstance(answer, PointsmanError) else None


async def watch(
    engine: Engine, clock: ManualClock, plan: Plan, told: list[Any], others: list[Any], ended_plain: int, commits: int
) -> Played:
    soon = await look(engine)
    await pass_time(engine, clock, LEASE_SECONDS + 1)
    await pass_time(engine, clock, 20 * LEASE_SECONDS)
    later = await look(engine)
    answers = [answer and (type(answer), str(answer)) for answer in told]
    return Played(answers, [comparable(other) for other in others], soon, later, ended_plain, commits, plan.alone)


def comparable(answer: Any) -> Any:
    """Claims in any order; what another command was told of a row is seen in the row itself."""
    if isinstance(answer, list) and all(isinstance(each, Claim) for each in answer):
        return sorted(answer, key=lambda claim: claim.task_id)
    return (type(answer), str(answer)) if isinstance(answer, BaseException) else type(answer)


async def look(engine: Engine) -> dict[str, Any]:
    """All that is stored, by entity, but for the one order of the stream."""
    found: dict[str, Any] = {}
    with engine._core.store.read() as reader:
        assert reader.list_disagreements() == []
        for tenant in TENANTS:
            runs = reader.list_runs(tenant, phase=None, after=None, limit=1000)
            tasks = [task for run in runs for task in reader.list_tasks(tenant, run.id)]
            rows = [*runs, *tasks, *reader.list_workers(tenant), *reader.list_breakers(tenant)]
            found |= {row.id: replace(row, reason=whoever_was_first(row.reason)) for row in rows}
            found |= {f"attempts of {task.id}": reader.list_attempts(tenant, task.id) for task in tasks}
            for row in rows:
                history = reader.list_history(tenant, row.id)
                found[f"history of {row.id}"] = [
                    replace(line, position="", reason=whoever_was_first(line.reason)) for line in history
                ]
            timers = reader.list_timers(tenant)
            found[f"timers of {tenant}"] = sorted(timers, key=lambda timer: (timer.entity_id, timer.purpose))
    return found


def whoever_was_first(reason: str | None) -> str | None:
    """Of tasks that a claim gets together, the plain ones begin first: the start of their run names another one then."""
    return "first task claimed" if (reason or "").startswith("first task claimed: ") else reason


class Stage:
    """Opens an engine on a database of its own for each time that a case is played."""

    def __init__(self, database: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._database = database
        self._folder = folder
        self._patch = patch
        self._number = 0

    @contextmanager
    def database(self) -> Iterator[str]:
        self._number += 1
        (folder := self._folder / str(self._number)).mkdir()
        if self._database == "sqlite":
            yield registered_sqlite_url(folder)
        else:
            with postgres_database(registered=True) as url:
                yield url

    @asynccontextmanager
    async def engine(self, *, is_short: bool) -> AsyncIterator[tuple[Engine, ManualClock, list[int]]]:
        """With how many tasks ended the short way, commit by commit; or one where none can go it."""
        short: list[int] = []
        after_commit = Decider._remember_allocations

        def count(decider: Decider, work: Work) -> None:
            after_commit(decider, work)
            short.extend([len(work.ended_plain)] if work.ended_plain else [])

        with self.database() as url, self._patch.context() as patch:
            patch.setattr(Decider, "_remember_allocations", count)
            if not is_short:
                patch.setattr(plain, "list_moves", lambda *_: [])
            clock = ManualClock()
            async with open_engine(url, clock) as engine:
                yield engine, clock, short

    async def play(self, prepare: Prepare) -> Played:
        """Together, and compare with what would have been otherwise."""
        async with self.engine(is_short=True) as (engine, clock, short):
            played = await play_together(engine, clock, prepare, short)
        async with self.engine(is_short=False) as (engine, clock, short):
            apart = await play_apart(engine, clock, prepare, short)
        assert played.answers == apart.answers
        assert played.claims == apart.claims
        assert_same(played.soon, apart.soon)
        assert_same(played.later, apart.later)
        assert played.commits == apart.commits == 1, "nothing was tried twice, and nothing was split"
        if played.alone:
            async with self.engine(is_short=False) as (engine, clock, short):
                alone = await play_one_by_one(engine, clock, prepare, short)
            assert played.answers == alone.answers
            assert_same(played.soon, alone.soon)
            assert_same(played.later, alone.later)
        return played


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value == expected[name], name


@pytest.fixture(params=DATABASES)
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(request.param, tmp_path, monkeypatch)


# Fifty at once.


async def test_fifty_end_and_the_next_begin_in_one_commit(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=50)
        run = await submit(engine, *some(80))
        claims = await engine.claim_tasks(worker.id, 50)
        assert (await engine.get_worker(worker.id)).state == "BUSY"
        clock.advance(5)
        before = engine.commit_metrics.batches
        refusals, others = await asyncio.gather(
            engine.report_attempts(done(claims, output={"ok": True})), engine.claim_tasks(worker.id, 50)
        )
        assert engine.commit_metrics.batches == before + 1
        assert (engine.commit_metrics.retries, engine.commit_metrics.splits) == (0, 0)
        assert refusals == [None] * 50
        assert {claim.task_id for claim in others}.isdisjoint(claim.task_id for claim in claims)
        tasks = {task.id: task for task in await engine.list_tasks(run.id)}
        for claim in claims:
            task = tasks[claim.task_id]
            assert (task.state, task.outcome, task.output) == ("SUCCEEDED", "success", '{"ok":true}')
            assert (task.worker_id, task.attempt_worker_id, task.current_attempt) == (None, worker.id, None)
            assert (task.epoch, task.attempt_count, task.completed_at) == (1, 1, clock.now())
            assert await path_of(engine, task.id) == ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]
            *_, began, ended = await engine.list_history(task.id)
            assert began.metadata == msgspec.json.encode({"worker_id": worker.id, "epoch": 1}).decode()
            assert (ended.actor, ended.metadata, ended.seconds_in_state, ended.run_id) == (worker.id, None, 5, run.id)
            (attempt,) = await engine.list_attempts(task.id)
            assert (attempt.epoch, attempt.worker_id, attempt.ended_by) == (1, worker.id, "complete")
            assert attempt.ended_at
            assert attempt.started_at == attempt.ended_at - timedelta(seconds=5)
        assert len(others) == 30
        for claim in others:
            assert claim.payload == {"number": int(claim.name[1:])}
            task = tasks[claim.task_id]
            assert (task.state, task.worker_id, task.current_attempt) == ("RUNNING", worker.id, claim.epoch)
            (attempt,) = await engine.list_attempts(task.id)
            assert (attempt.worker_id, attempt.started_at, attempt.ended_at) == (worker.id, clock.now(), None)
        assert await path_of(engine, worker.id) == ["INITIALIZING", "IDLE", "BUSY"], "it was busy all the time"
        assert await engine.report_attempts(done(others)) == [None] * 30
        assert await path_of(engine, worker.id) == ["INITIALIZING", "IDLE", "BUSY", "IDLE"]
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "SUCCEEDED"]
        assert await engine.diagnose() == []


async def test_nothing_is_completed_by_an_empty_call(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        assert await engine.report_attempts([]) == []
        assert engine.commit_metrics.batches == 0


# Compared with each alone.


@pytest.mark.parametrize("number", [1, 3, 4, 50])
async def test_plain_tasks_go_together_as_each_would_alone(stage: Stage, number: int) -> None:
    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        _worker, claims = await claim_all(engine, *some(number))
        clock.advance(3)
        return Plan(reports=done(claims, output=[1], exit_code=0, session_id="s", log_path="l"))

    played = await stage.play(prepare)
    assert played.answers == [None] * number
    assert played.ended_plain == number


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_every_lifecycle_goes_its_own_way_together(stage: Stage, lifecycle: str) -> None:
    """Some have checks after every task, some wait for a person, some have steps that last too long."""

    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        worker = await register(engine, slots=20)
        await submit(engine, *some(6), *some(2, "late", depends_on=("t0", "t1")), lifecycle=lifecycle)
        claims = await engine.claim_tasks(worker.id, 20)
        assert len(claims) == 6
        clock.advance(1)
        return Plan(reports=done(claims), after=[lambda engine: engine.claim_tasks(worker.id, 20)])

    assert (await stage.play(prepare)).answers == [None] * 6


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_what_comes_after_the_work_is_reported_of_each(stage: Stage, lifecycle: str) -> None:
    """Checks are passed or not, and what waits for a person is accepted: followers are tasks like others by then."""

    async def prepare(engine: Engine, _: ManualClock) -> Plan:
        worker = await register(engine, slots=20)
        await submit(engine, *some(6), lifecycle=lifecycle)
        first = await engine.claim_tasks(worker.id, 5)
        await engine.report_attempts(done(first))
        for number, claim in enumerate(sorted(first, key=lambda claim: claim.task_id)):
            task = await engine.get_task(claim.task_id)
            if task.phase == "active":
                signal = "checks_failed" if number == 2 else "checks_passed"
                await engine.report_attempt(claim.task_id, claim.epoch, signal)
            elif task.phase == "held":
                await engine.signal_task(claim.task_id, "accept")
        return Plan(reports=done([*first, *await engine.claim_tasks(worker.id, 5)]))

    played = await stage.play(prepare)
    assert [answer and answer[0] for answer in played.answers[:5]] == [LeaseLost] * 5
    assert played.answers[5:] == ([] if lifecycle == "orchestrated" else [None]), "one that failed has ended its run there"


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_what_a_worker_has_claimed_together_is_lost_with_it(stage: Stage, lifecycle: str) -> None:
    """Each of them: `later` sees them after the lease is over, wherever their lifecycle puts them then."""

    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        worker = await register(engine, slots=20, lease_seconds=LEASE_SECONDS)
        await submit(engine, *some(8), lifecycle=lifecycle)
        claims = await engine.claim_tasks(worker.id, 20)
        await pass_time(engine, clock, LEASE_SECONDS + 1)
        for claim in claims:
            task = await engine.get_task(claim.task_id)
            assert task.lease_expired or task.current_attempt is None
        other = await register(engine, slots=20)
        await pass_time(engine, clock, 5)
        again = await engine.claim_tasks(other.id, 4)
        return Plan(reports=[*done(claims), *done(again)])

    answers = (await stage.play(prepare)).answers
    assert [answer and answer[0] for answer in answers[:8]] == [LeaseLost] * 8
    assert answers[8:] == [None] * len(answers[8:])


async def others_of(engine: Engine, clock: ManualClock, worker: Worker, lifecycle: str) -> list[ReportAttempt]:
    """Reports that are refused, or of tasks that are not like the others."""
    theirs = await engine.for_tenant(GLOBEX).register_worker("w", max_concurrent_tasks=9)
    await engine.for_tenant(GLOBEX).submit_run(NewRun(name="theirs", tasks=some(5)))
    foreign = await engine.for_tenant(GLOBEX).claim_tasks(theirs.id, 5)
    await engine.declare_tool("git")
    special = [*some(2, "tool", tool="git"), *some(2, "checked", checks=True), NewTask(name="slow", timeout_seconds=9)]
    special += [NewTask(name="first"), NewTask(name="free"), NewTask(name="behind", depends_on=("first", "free"))]
    special += [*some(2, "cancelled"), *some(1, "tried", max_attempts=1)]
    await submit(engine, *some(5, "rich"), budget_usd=Decimal(9), lifecycle=lifecycle)
    await submit(engine, *special, lifecycle=lifecycle)
    claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 99)}
    await engine.signal_task(claims["cancelled1"].task_id, "cancel")
    clock.advance(1)
    reports = done([*claims.values(), *foreign])
    return [*reports, ReportAttempt(task_id="task_unknown", epoch=1, signal="complete")]


@pytest.mark.parametrize("lifecycle", [name for name in LIFECYCLES if name != "supervised"])  # one run, and workers of its own
async def test_each_of_a_mixed_call_has_its_own_answer(stage: Stage, lifecycle: str) -> None:
    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        worker, claims = await claim_all(engine, *some(20), slots=100, lifecycle=lifecycle)
        others = await others_of(engine, clock, worker, lifecycle)
        stale = [replace(report, epoch=epoch) for report, epoch in zip(done(claims[:3]), (0, 2, 7), strict=True)]
        await engine.signal_task(claims[3].task_id, "cancel")
        reports = [*done(claims[4:]), *others, *stale, *done(claims[3:4])]
        return Plan(reports=[*reports[1::2], *reports[::2]])

    played = await stage.play(prepare)
    refused = [answer[0] for answer in played.answers if answer]
    assert refused.count(NotFound) == 6
    assert refused.count(LeaseLost) >= 3
    assert set(refused) <= {LeaseLost, NotFound, TransitionRefused}
    assert len({answer[1] for answer in played.answers if answer}) == len(refused), "each by its own name"
    if lifecycle == "standard":
        assert (played.ended_plain, refused.count(LeaseLost), played.answers.count(None)) == (26, 5, 30)


async def test_a_part_ends_before_the_task_it_is_part_of(database_url: str, clock: ManualClock) -> None:
    """Of what is reported in one commit, plain tasks come first, so the other one need not wait for its part."""
    async with open_engine(database_url, clock) as engine:
        worker, _ = await claim_all(engine, *some(1, "aside"))
        run = await submit(engine, NewTask(name="whole"), NewTask(name="part", parent="whole"))
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 9)}
        assert await engine.report_attempts(done([claims["whole"], claims["part"]])) == [None, None]
        assert await path_of(engine, claims["whole"].task_id) == ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]
        assert (await engine.get_run(run.id)).state == "SUCCEEDED"


@pytest.mark.parametrize("when", ["in time", "too late"])
async def test_time_limits_begin_and_end_with_their_tasks(stage: Stage, when: str) -> None:
    """`soon` and `later` see the timers, and what becomes of those that nobody has reported."""

    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        limits: dict[str, Any] = {"timeout_seconds": 9, "reclaim_after_seconds": 20}
        _worker, claims = await claim_all(engine, *some(6, **limits), *some(2, "free"))
        assert [claim.deadline_at and claim.deadline_at - clock.now() for claim in claims][:1] == [timedelta(seconds=9)]
        if when == "too late":
            await pass_time(engine, clock, 10)
        return Plan(reports=done(claims[::2]))

    played = await stage.play(prepare)
    assert played.ended_plain == (4 if when == "in time" else 1)


async def test_whoever_reports_something_else_goes_alone(stage: Stage) -> None:
    async def prepare(engine: Engine, _: ManualClock) -> Plan:
        _worker, claims = await claim_all(engine, *some(9))
        return Plan(reports=[*done(claims[:8]), *done(claims[8:], output="another")])

    assert (await stage.play(prepare)).answers == [None] * 9


@pytest.mark.parametrize("told", [{"cost_usd": Decimal("0.5")}, {"cost_usd": Decimal("0.5"), "session_id": "s"}])
async def test_what_each_has_cost_is_counted_for_all(stage: Stage, told: dict[str, Any]) -> None:
    async def prepare(engine: Engine, _: ManualClock) -> Plan:
        _worker, claims = await claim_all(engine, *some(6))
        return Plan(reports=done(claims, **told))

    played = await stage.play(prepare)
    (run,) = [row for name, row in played.soon.items() if name.startswith("run_")]
    assert run.spent_usd == 3


async def test_the_tasks_of_another_tenant_are_unknown_each_by_its_name(stage: Stage) -> None:
    async def prepare(engine: Engine, _: ManualClock) -> Plan:
        theirs = await engine.for_tenant(GLOBEX).register_worker("w", max_concurrent_tasks=9)
        await engine.for_tenant(GLOBEX).submit_run(NewRun(name="theirs", tasks=some(6)))
        foreign = await engine.for_tenant(GLOBEX).claim_tasks(theirs.id, 6)
        _worker, claims = await claim_all(engine, *some(6))
        return Plan(reports=[*done(foreign), *done(claims)])

    played = await stage.play(prepare)
    assert len(set(played.answers[:6])) == 6
    assert played.answers[6:] == [None] * 6


@pytest.mark.parametrize("epochs", [(1, 1), (1, 2), (2, 1), (0, 1), (1, 0), (1, 1, 1)])
async def test_what_is_reported_twice_is_answered_twice(stage: Stage, epochs: tuple[int, ...]) -> None:
    async def prepare(engine: Engine, _: ManualClock) -> Plan:
        _worker, claims = await claim_all(engine, *some(7))
        twice = [ReportAttempt(task_id=claims[3].task_id, epoch=epoch, signal="complete") for epoch in epochs]
        return Plan(reports=[*done(claims[:3]), twice[0], *done(claims[4:]), *twice[1:]])

    played = await stage.play(prepare)
    assert played.answers.count(None) == 7
    assert played.ended_plain == 6


async def test_two_calls_share_a_commit(stage: Stage) -> None:
    async def prepare(engine: Engine, _: ManualClock) -> Plan:
        _worker, claims = await claim_all(engine, *some(12))
        return Plan(reports=done(claims[:7]), more=done(claims[5:]))

    assert (await stage.play(prepare)).answers.count(None) == 12


async def test_several_runs_and_workers_go_each_together(stage: Stage) -> None:
    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        anna, bert = await register(engine, slots=20), await register(engine, slots=20)
        for name in "ab":
            await submit(engine, *some(12, name))
        claims = [*await engine.claim_tasks(anna.id, 8), *await engine.claim_tasks(bert.id, 16)]
        await submit(engine, *some(6, "c"), *some(6, "d", priority=3, max_retries=2))
        clock.advance(1)
        claims += await engine.claim_tasks(anna.id, 11)
        return Plan(reports=done(claims), after=[lambda engine: engine.claim_tasks(anna.id, 9)])

    played = await stage.play(prepare)
    assert played.ended_plain == 35
    assert played.answers == [None] * 35


async def test_dependents_of_all_are_freed(stage: Stage) -> None:
    async def prepare(engine: Engine, _: ManualClock) -> Plan:
        worker = await register(engine, slots=50)
        names = [task.name for task in some(8)]
        waiting = [NewTask(name=f"after {name}", depends_on=(name,)) for name in names]
        last = NewTask(name="last", depends_on=tuple(names))
        await submit(engine, *some(8), *waiting, last)
        claims = await engine.claim_tasks(worker.id, 50)
        return Plan(reports=done(claims), after=[lambda engine: engine.claim_tasks(worker.id, 50)])

    played = await stage.play(prepare)
    assert [len(claims) for claims in played.claims] == [9]


async def test_tasks_that_were_tried_before_go_with_those_that_were_not(stage: Stage) -> None:
    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        worker, claims = await claim_all(engine, *some(12, max_retries=2))
        for claim in claims[:5]:
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="not yet"))
        await pass_time(engine, clock, 10)
        again = await engine.claim_tasks(worker.id, 50)
        assert len(again) == 5
        return Plan(reports=[*done(again), *done(claims)])

    played = await stage.play(prepare)
    assert played.answers.count(None) == 12


# What else happens in the same commit.


ASIDE: dict[str, Callable[[Worker, Sequence[Claim]], Ask]] = {
    "one is cancelled": lambda _, claims: lambda engine: engine.signal_task(claims[2].task_id, "cancel"),
    "the first is cancelled": lambda _, claims: lambda engine: engine.signal_task(claims[0].task_id, "cancel"),
    "one fails": lambda _, claims: (
        lambda engine: engine.fail_task(claims[2].task_id, claims[2].epoch, AttemptReport(error="no"))
    ),
    "one is completed": lambda _, claims: (
        lambda engine: engine.complete_task(claims[2].task_id, claims[2].epoch, AttemptReport(output=1))
    ),
    "one is noted": lambda _, claims: (
        lambda engine: engine.report_attempt(
            claims[2].task_id, claims[2].epoch, report=AttemptReport(cost_usd=Decimal(1), session_id="s")
        )
    ),
    "the run is cancelled": lambda _, claims: lambda engine: engine.signal_run(claims[0].run_id, "cancel"),
    "the run is paused": lambda _, claims: lambda engine: engine.signal_run(claims[0].run_id, "pause"),
    "the run gets a budget": lambda _, claims: lambda engine: engine.set_budget(claims[0].run_id, Decimal(5)),
    "the run gets more tasks": lambda _, claims: lambda engine: engine.add_tasks(claims[0].run_id, some(5, "more")),
    "one gets a subtask": lambda _, claims: (
        lambda engine: engine.add_tasks(claims[0].run_id, [NewTask(name="sub", parent=claims[2].name)])
    ),
    "the first gets a subtask": lambda _, claims: (
        lambda engine: engine.add_tasks(claims[0].run_id, [NewTask(name="sub", parent=claims[0].name)])
    ),
    "one gets a dependent": lambda _, claims: (
        lambda engine: engine.add_tasks(claims[0].run_id, [NewTask(name="next", depends_on=(claims[2].name,))])
    ),
    "its worker is gone": lambda worker, _: lambda engine: engine.signal_worker(worker.id, "terminate", ended=True),
    "its worker drains": lambda worker, _: lambda engine: engine.signal_worker(worker.id, "drain"),
    "its worker pauses": lambda worker, _: lambda engine: engine.signal_worker(worker.id, "pause"),
    "its worker is heard of": lambda worker, claims: (
        lambda engine: engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch) for claim in claims])
    ),
    "its worker claims": lambda worker, _: lambda engine: engine.claim_tasks(worker.id, 10),
    "another run comes": lambda _, __: lambda engine: engine.submit_run(NewRun(name="other", tasks=some(5, "other"))),
}


# How tasks end differs between lifecycles, not between databases.
@pytest.mark.parametrize(
    ("stage", "lifecycle"),
    [("postgres", "standard"), ("sqlite", "standard"), ("sqlite", "agent"), ("sqlite", "orchestrated")],
    indirect=["stage"],
)
@each_row("when", ["before", "after"])
@each_row("what", ASIDE)
async def test_in_the_same_commit(stage: Stage, what: str, when: str, lifecycle: str) -> None:
    """Whoever comes first is heard first, and those that it is not about go on as they would."""

    async def prepare(engine: Engine, clock: ManualClock) -> Plan:
        worker = await register(engine, slots=20)
        await submit(engine, *some(10), lifecycle=lifecycle)
        claims = sorted(await engine.claim_tasks(worker.id, 7), key=lambda claim: claim.task_id)
        clock.advance(2)
        aside = [ASIDE[what](worker, claims)]
        return Plan(reports=done(claims), before=aside if when == "before" else (), after=aside if when == "after" else ())

    assert len((await stage.play(prepare)).answers) == 7


# Somebody else at the same database.


async def test_whoever_was_changed_by_hand_goes_alone(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        _worker, claims = await claim_all(engine, *some(8))
        with prompt(database_url) as somebody:
            somebody.ask("UPDATE task SET state = 'CANCELED' WHERE id = :id", id=claims[0].task_id)
            somebody.ask("UPDATE task SET comment = 'mind the gap' WHERE id = :id", id=claims[1].task_id)
        clock.advance(1)
        first, *others = await engine.report_attempts(done(claims, output=1))
        assert isinstance(first, LeaseLost)
        assert others == [None] * 7
        tasks = [await engine.get_task(claim.task_id) for claim in claims]
        assert [task.state for task in tasks] == ["CANCELED"] + ["SUCCEEDED"] * 7
        assert [task.comment for task in tasks] == [None, "mind the gap"] + [None] * 6
        assert [task.output for task in tasks] == [None] + ["1"] * 7
        for task in tasks:
            (attempt,) = await engine.list_attempts(task.id)
            assert attempt.ended_by == ("cancel" if task is tasks[0] else "complete")
            assert len(await engine.list_history(task.id)) == 4

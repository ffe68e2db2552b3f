"""The standard lifecycle from end to end: whatever the five documents can do, through the public API, on both databases.

Every scenario runs in `proved_engine`, which asks at the end whether the general promises have held, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
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

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.operations.workers import GiveUpTasks
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import MAX_DEPTH, NewRun, NewTask
from pointsman.errors import (
    KeyReused,
    LeaseLost,
    NotFound,
    PointsmanError,
    RequestInvalid,
    TransitionRefused,
    WorkerUnavailable,
)
from pointsman.events.validate import Validator
from pointsman.kernel.machine import Case, Kind, Refusal
from pointsman.lifecycles import load_lifecycle
from pointsman.store.rows import Attempt, Entity, Run, Task, Transition, Worker
from pointsman.worker.journal import as_line

LEASE = 30.0
EXACT = Backoff(base_seconds=10.0, jitter=0.0)


# what holds after every scenario


@asynccontextmanager
async def proved_engine(url: str, clock: ManualClock, *, tenants: tuple[str, ...] = ("default",)) -> AsyncIterator[Engine]:
    """An engine for one scenario; when that is over, the general promises have to have held."""
    async with open_engine(url, clock) as engine:
        yield engine
        for tenant in tenants:
            await prove(engine, tenant)
        assert [each for each in await engine.diagnose() if each.subject in ("disagreement", "stalled")] == []


async def prove(engine: Engine, tenant: str) -> None:
    """fold(audit) == state, attempts are fenced and accounted for, budgets hold, and the log passes our own validator."""
    stream = await read_stream(engine, tenant)
    machines: dict[str, str] = {}
    for run in await engine.for_tenant(tenant).list_runs():
        tasks = await engine.for_tenant(tenant).list_tasks(run.id)
        prove_fold(stream, run)
        prove_money(run, tasks)
        machines[run.id] = load_lifecycle(run.lifecycle).of_kind(Kind.RUN).name
        for task in tasks:
            prove_fold(stream, task)
            prove_attempts(task, await engine.for_tenant(tenant).list_attempts(task.id))
            machines[task.id] = load_lifecycle(run.lifecycle).of_kind(Kind.TASK).name
    for worker in await engine.for_tenant(tenant).list_workers():
        prove_fold(stream, worker)
        machines[worker.id] = load_lifecycle(worker.lifecycle).of_kind(Kind.WORKER).name
    for breaker in await engine.for_tenant(tenant).list_breakers():
        prove_fold(stream, breaker)
        machines[breaker.id] = "standard.breaker"
    assert machines.keys() == {transition.entity_id for transition in stream}, (
        "whatever moves is listed, and the other way round"
    )
    assert validate(stream, machines) == []


async def read_stream(engine: Engine, tenant: str = "default") -> list[Transition]:
    """All events, page by page, as an observer reads them."""
    stream: list[Transition] = []
    while page := await engine.for_tenant(tenant).list_transitions(after=stream[-1].position if stream else None, limit=50):
        stream += page
    return stream


def prove_fold(stream: list[Transition], entity: Entity) -> None:
    trail = [transition for transition in stream if transition.entity_id == entity.id]
    assert trail[0].from_state is None
    assert trail[0].trigger == "create"
    assert all(later.from_state == earlier.to_state for earlier, later in pairwise(trail))
    assert all(earlier.at <= later.at for earlier, later in pairwise(trail))
    last = trail[-1]
    assert (last.to_state, last.trigger, last.at) == (entity.state, entity.trigger, entity.entered_at)
    assert (last.actor, last.reason) == (entity.actor, entity.reason)
    assert len(trail) == entity.revision + 1


def prove_attempts(task: Task, attempts: list[Attempt]) -> None:
    begun = [attempt for attempt in attempts if attempt.started_at]
    assert [attempt.epoch for attempt in begun] == list(range(1, task.epoch + 1)), "each claim has a larger epoch"
    assert all(attempt.epoch == task.epoch + 1 and task.phase == "queued" for attempt in attempts if attempt not in begun)
    under_way = [attempt.epoch for attempt in begun if attempt.ended_at is None]
    assert under_way == ([] if task.current_attempt is None else [task.current_attempt])
    assert sum(attempt.cost_usd for attempt in attempts) == task.cost_usd, "what a task cost is what its attempts cost"


def prove_money(run: Run, tasks: list[Task]) -> None:
    assert run.spent_usd == sum(task.cost_usd for task in tasks)
    reserved = sum((task.reserved_usd for task in tasks), Decimal(0))
    if run.budget_usd is not None:
        reserved = min(reserved, max(run.budget_usd - run.spent_usd, Decimal(0)))
    assert run.reserved_usd == reserved, "what is reserved is what its tasks have reserved, as far as there is money left"


def validate(stream: list[Transition], machines: dict[str, str]) -> list[str]:
    """What `pointsman validate` says of the events, as the lines that are exported."""
    validator = Validator(load_lifecycle("standard"), "events")
    try:
        lines = [as_line(transition, machines[transition.entity_id], transition.at) for transition in stream]
        return [str(finding) for line in lines for finding in validator.check_line(line)]
    finally:
        validator.close()


# short ways to say things


def usd(amount: int | str) -> Decimal:
    return Decimal(amount)


async def claim_nothing(engine: Engine, worker: Worker) -> None:
    assert await engine.claim_tasks(worker.id, 10) == []


async def claim_and_complete(engine: Engine, worker: Worker, **report: Any) -> Claim:
    claim = await claim_one(engine, worker)
    await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(**report))
    return claim


async def claim_and_fail(engine: Engine, worker: Worker, error: str = "it broke", **report: Any) -> Claim:
    claim = await claim_one(engine, worker)
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error=error, **report))
    return claim


async def complete_all(engine: Engine, worker: Worker) -> list[str]:
    """Do whatever is there to be done, one after the other; the names, in order."""
    names = []
    while claims := await engine.claim_tasks(worker.id, 1):
        names.append(claims[0].name)
        await engine.complete_task(claims[0].task_id, claims[0].epoch)
    return names


async def states_of(engine: Engine, run: Run) -> dict[str, str]:
    return {task.name: task.state for task in await engine.list_tasks(run.id)}


def message_of(entity: Run | Task | Attempt) -> str:
    assert entity.error is not None
    return str(msgspec.json.decode(entity.error)["message"])


def case_of(refused: pytest.ExceptionInfo[TransitionRefused]) -> Case:
    refusal = refused.value.refusal
    assert isinstance(refusal, Refusal)
    return refusal.case


async def bring_to(engine: Engine, worker: Worker, state: str) -> tuple[Run, Task]:
    """A run whose task `x` is in that state, with a task behind it that waits for `x`."""
    options: dict[str, dict[str, Any]] = {
        "VALIDATING": {"checks": True},
        "RETRYING": {"max_retries": 1, "backoff": EXACT},
        "WAITING_APPROVAL": {"gate": True},
        "READY": {"review": True},
        "PENDING": {"depends_on": ("before",)},
    }
    before = (NewTask(name="before", capabilities=("nobody",)),) if state == "PENDING" else ()
    run = await submit(engine, *before, NewTask(name="x", **options.get(state, {})), NewTask(name="after", depends_on=("x",)))
    if state not in ("PENDING", "QUEUED", "WAITING_APPROVAL", "SKIPPED", "CANCELED"):
        claim = await claim_one(engine, worker)
        reports: dict[str, Callable[[str, int], Awaitable[Task]]] = {
            "VALIDATING": engine.complete_task,
            "READY": engine.complete_task,
            "SUCCEEDED": engine.complete_task,
            "BLOCKED": lambda task_id, epoch: engine.report_attempt(
                task_id, epoch, "ask", AttemptReport(question="which one?")
            ),
            "RETRYING": lambda task_id, epoch: engine.fail_task(task_id, epoch, AttemptReport(error="it broke")),
            "FAILED": lambda task_id, epoch: engine.fail_task(task_id, epoch, AttemptReport(error="it broke")),
            "TIMED_OUT": lambda task_id, epoch: engine.report_attempt(task_id, epoch, "expire"),
            "BUDGET_EXCEEDED": lambda task_id, epoch: engine.report_attempt(task_id, epoch, "overspend"),
        }
        if state in reports:
            await reports[state](claim.task_id, claim.epoch)
    task = await task_of(engine, run, "x")
    if state in ("SKIPPED", "CANCELED"):
        await engine.signal_task(task.id, {"SKIPPED": "skip", "CANCELED": "cancel"}[state])
    task = await task_of(engine, run, "x")
    assert task.state == state
    return run, task


# the happy path


async def test_a_task_goes_all_the_way_and_everybody_sees_the_same(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="only", payload={"say": "hello"}))
        assert await state_of(engine, run) == "PENDING"
        assert await state_of(engine, run, "only") == "QUEUED"
        clock.advance(1)
        claim = await claim_one(engine, worker)
        assert (claim.epoch, claim.attempt_count, claim.name, claim.run_id) == (1, 1, "only", run.id)
        assert claim.payload == {"say": "hello"}
        assert (await engine.get_worker(worker.id)).state == "BUSY"
        clock.advance(2)
        done = await engine.complete_task(
            claim.task_id,
            claim.epoch,
            AttemptReport(output={"said": "hello"}, cost_usd=usd("0.25"), exit_code=0, log_path="/logs/1"),
        )
        assert (done.state, done.outcome) == ("SUCCEEDED", "success")

        task = await engine.get_task(claim.task_id)
        assert msgspec.json.decode(str(task.output)) == {"said": "hello"}
        assert task.created_at + timedelta(seconds=1) == task.started_at
        assert task.created_at + timedelta(seconds=3) == task.completed_at
        assert await path_of(engine, task.id) == ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "SUCCEEDED"]
        assert await path_of(engine, worker.id) == ["INITIALIZING", "IDLE", "BUSY", "IDLE"]
        (attempt,) = await engine.list_attempts(task.id)
        assert (attempt.worker_id, attempt.ended_by, attempt.exit_code) == (worker.id, "complete", 0)
        assert (attempt.cost_usd, attempt.log_path) == (usd("0.25"), "/logs/1")
        assert (attempt.started_at, attempt.ended_at) == (task.started_at, task.completed_at)
        ended = await engine.get_run(run.id)
        assert (ended.spent_usd, ended.started_at, ended.completed_at) == (usd("0.25"), task.started_at, task.completed_at)

        async with open_engine(database_url, clock) as observer:
            assert await read_stream(observer) == await read_stream(engine)
            of_run = [event for event in await read_stream(observer) if event.run_id == run.id]
            assert await observer.list_transitions(run_id=run.id) == of_run
            assert await observer.get_task(task.id) == task


async def test_a_diamond_runs_in_the_order_of_its_edges(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=4)
        run = await submit(
            engine,
            NewTask(name="bottom", depends_on=("left", "right")),
            NewTask(name="left", depends_on=("top",)),
            NewTask(name="right", depends_on=("top",)),
            NewTask(name="top"),
        )
        (top,) = await engine.claim_tasks(worker.id, 4)
        assert await states_of(engine, run) == {"bottom": "PENDING", "left": "PENDING", "right": "PENDING", "top": "RUNNING"}
        await engine.complete_task(top.task_id, top.epoch)
        left, right = await engine.claim_tasks(worker.id, 4)
        assert (left.name, right.name) == ("left", "right")
        await engine.complete_task(right.task_id, right.epoch)
        assert await state_of(engine, run, "bottom") == "PENDING"
        assert (await task_of(engine, run, "bottom")).open_dependencies == 1
        await engine.complete_task(left.task_id, left.epoch)
        assert await complete_all(engine, worker) == ["bottom"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_claims_come_by_priority_and_then_by_age(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, capabilities=("gpu",))
        await submit(engine, NewTask(name="plain"), NewTask(name="urgent", priority=5), NewTask(name="someday", priority=-1))
        clock.advance(1)
        await submit(
            engine, NewTask(name="later"), NewTask(name="also urgent", priority=5, capabilities=("gpu",)), NewTask(name="last")
        )
        assert await complete_all(engine, worker) == ["urgent", "also urgent", "plain", "later", "last", "someday"]


async def test_an_ordered_run_takes_one_task_after_the_other(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=3)
        run = await submit(engine, NewTask(name="one"), NewTask(name="two", priority=9), NewTask(name="three"), ordered=True)
        assert len(await engine.claim_tasks(worker.id, 3)) == 1
        assert await states_of(engine, run) == {"one": "RUNNING", "two": "PENDING", "three": "PENDING"}
        one = await task_of(engine, run, "one")
        await engine.complete_task(one.id, one.epoch)
        assert await complete_all(engine, worker) == ["two", "three"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_run_begins_when_all_announced_tasks_are_there(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="first"), task_count=2)
        assert await engine.claim_tasks(worker.id, 1) == [], "the run does not begin before its tasks are all there"
        await engine.add_tasks(run.id, [NewTask(name="second", depends_on=("first",))])
        assert await complete_all(engine, worker) == ["first", "second"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_run_does_not_end_before_all_announced_tasks_are_there(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="first"), task_count=2)
        await complete_all(engine, worker)
        assert await state_of(engine, run) in ("PENDING", "RUNNING")
        await engine.add_tasks(run.id, [NewTask(name="second")])
        await complete_all(engine, worker)
        assert await state_of(engine, run) == "SUCCEEDED"
        with pytest.raises(RequestInvalid, match="has ended"):
            await engine.add_tasks(run.id, [NewTask(name="third")])


async def test_the_same_submission_with_the_same_key_is_one_run(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        new = NewRun(name="test", tasks=(NewTask(name="a"),))
        first = await engine.submit_run(new, request_id="key")
        again = await engine.submit_run(new, request_id="key")
        assert again == first
        with pytest.raises(KeyReused):
            await engine.submit_run(NewRun(name="other", tasks=new.tasks), request_id="key")
        assert [run.id for run in await engine.list_runs()] == [first.id]
        await pass_time(engine, clock, 3601)
        assert (await engine.submit_run(new, request_id="key")).id == first.id, "one key, one run, for good"


async def test_a_completion_that_is_repeated_with_its_key_has_one_effect(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        report = AttemptReport(cost_usd=usd(1), output=1)
        done = await engine.complete_task(claim.task_id, claim.epoch, report, request_id="once")
        again = await engine.complete_task(claim.task_id, claim.epoch, report, request_id="once")
        assert again.state == done.state
        assert (await engine.get_task(claim.task_id)).cost_usd == usd(1)
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(cost_usd=usd(1), output=1))


# retries


async def test_retries_wait_twice_as_long_each_time_and_never_longer_than_allowed(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        backoff = Backoff(base_seconds=10.0, factor=2.0, max_seconds=30.0, jitter=0.0)
        run = await submit(engine, NewTask(name="a", max_retries=4, backoff=backoff))
        for number, seconds in enumerate((10, 20, 30, 30), start=1):
            await claim_and_fail(engine, worker, f"failure {number}")
            task = await task_of(engine, run, "a")
            assert (task.state, task.retry_count) == ("RETRYING", number)
            assert task.available_at == clock.now() + timedelta(seconds=seconds)
            assert message_of(task) == f"failure {number}"
            await pass_time(engine, clock, seconds - 0.001)
            await claim_nothing(engine, worker)
            await pass_time(engine, clock, 0.001)
            assert await state_of(engine, run, "a") == "QUEUED"
        await claim_and_complete(engine, worker)
        task = await task_of(engine, run, "a")
        assert (task.state, task.attempt_count, task.epoch) == ("SUCCEEDED", 5, 5)
        assert await path_of(engine, task.id) == [
            "PENDING",
            *["QUEUED", "RUNNING", "RETRYING"] * 4,
            *["QUEUED", "RUNNING", "SUCCEEDED"],
        ]
        retries = [event for event in await engine.list_history(task.id) if event.to_state == "RETRYING"]
        assert {event.severity for event in retries} == {"warning"}
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "SUCCEEDED"], "a retry is no news to the run"


async def test_jitter_only_adds_and_stays_within_its_share(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=40)
        backoff = Backoff(base_seconds=100.0, jitter=0.5)
        run = await submit(engine, *(NewTask(name=f"t{n}", max_retries=1, backoff=backoff) for n in range(40)))
        for claim in await engine.claim_tasks(worker.id, 40):
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="all at once"))
        delays = []
        for task in await engine.list_tasks(run.id):
            assert task.available_at is not None
            delays.append((task.available_at - clock.now()).total_seconds())
        assert all(100 <= delay <= 150 for delay in delays)
        assert len(set(delays)) > 30, "those who failed together do not return together"
        assert max(delays) - min(delays) > 25


async def test_used_up_retries_fail_the_task_and_the_run_and_leave_the_rest_as_it_is(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(
            engine,
            NewTask(name="good", priority=1),
            NewTask(name="bad", max_retries=1, backoff=EXACT),
            NewTask(name="behind", depends_on=("bad",)),
            NewTask(name="further behind", depends_on=("behind",)),
        )
        await claim_and_complete(engine, worker)
        await claim_and_fail(engine, worker, "once")
        await pass_time(engine, clock, 10)
        await claim_and_fail(engine, worker, "twice", exit_code=3)
        assert await states_of(engine, run) == {
            "good": "SUCCEEDED",
            "bad": "FAILED",
            "behind": "PENDING",
            "further behind": "PENDING",
        }
        failed, bad = await engine.get_run(run.id), await task_of(engine, run, "bad")
        assert (failed.state, failed.outcome) == ("FAILED", "failure")
        assert message_of(failed) == message_of(bad) == "twice"
        assert [attempt.exit_code for attempt in await engine.list_attempts(bad.id)] == [None, 3]
        assert (await engine.list_history(run.id))[-1].reason == "bad is FAILED"
        await claim_nothing(engine, worker)


async def test_what_is_not_retryable_fails_at_once(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", max_retries=5))
        await claim_and_fail(engine, worker, "no such file", retryable=False)
        assert await states_of(engine, run) == {"a": "FAILED"}
        assert (await task_of(engine, run, "a")).retry_count == 0


async def test_attempts_are_a_limit_beside_the_retries(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", max_retries=5, max_attempts=2, backoff=EXACT))
        await claim_and_fail(engine, worker)
        await pass_time(engine, clock, 10)
        await claim_and_fail(engine, worker)
        assert await states_of(engine, run) == {"a": "FAILED"}


async def failed_run(engine: Engine, worker: Worker) -> Run:
    run = await submit(
        engine,
        NewTask(name="first"),
        NewTask(name="second", depends_on=("first",), max_retries=1, backoff=EXACT),
        NewTask(name="third", depends_on=("second",)),
    )
    await claim_and_complete(engine, worker)
    await claim_and_fail(engine, worker, retryable=False)
    assert await state_of(engine, run) == "FAILED"
    return run


async def test_another_try_of_a_task_continues_its_run_without_losing_work(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await failed_run(engine, worker)
        second = await task_of(engine, run, "second")
        retried = await engine.for_tenant(actor="ada").signal_task(second.id, "retry", reason="the disk is fixed")
        assert (retried.state, retried.retry_count, retried.attempt_count) == ("QUEUED", 0, 0)
        assert await state_of(engine, run) == "RUNNING"
        assert (await engine.get_run(run.id)).completed_at is None
        assert await complete_all(engine, worker) == ["second", "third"]
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "FAILED", "RUNNING", "SUCCEEDED"]
        last_retry = next(event for event in await engine.list_history(second.id) if event.trigger == "retry")
        assert (last_retry.actor, last_retry.reason) == ("ada", "the disk is fixed")
        assert (await task_of(engine, run, "second")).epoch == 2


async def test_another_try_of_a_run_tries_what_failed_in_it_and_nothing_else(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await failed_run(engine, worker)
        assert (await engine.signal_run(run.id, "retry")).state == "RUNNING"
        assert await states_of(engine, run) == {"first": "SUCCEEDED", "second": "QUEUED", "third": "PENDING"}
        assert await complete_all(engine, worker) == ["second", "third"]
        assert await state_of(engine, run) == "SUCCEEDED"
        with pytest.raises(TransitionRefused) as refused:
            await engine.signal_run(run.id, "retry")
        assert case_of(refused) is Case.TERMINAL


async def test_of_two_failures_one_may_be_tried_again_before_the_other(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="one"), NewTask(name="two"))
        one, two = await engine.claim_tasks(worker.id, 2)
        await engine.fail_task(one.task_id, one.epoch, AttemptReport(error="it broke"))
        await engine.fail_task(two.task_id, two.epoch, AttemptReport(error="it broke, too"))
        await engine.signal_task(one.task_id, "retry")
        assert await complete_all(engine, worker) == ["one"], "a task that is tried again can be claimed"
        await engine.signal_task(two.task_id, "retry")
        assert await complete_all(engine, worker) == ["two"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_what_runs_when_its_run_fails_may_finish_and_is_not_lost(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="slow"), NewTask(name="bad"))
        slow, bad = await engine.claim_tasks(worker.id, 2)
        await engine.fail_task(bad.task_id, bad.epoch, AttemptReport(error="it broke"))
        assert await state_of(engine, run) == "FAILED"
        await engine.complete_task(slow.task_id, slow.epoch)
        assert await states_of(engine, run) == {"slow": "SUCCEEDED", "bad": "FAILED"}
        await engine.signal_run(run.id, "retry")
        assert await complete_all(engine, worker) == ["bad"]
        assert await state_of(engine, run) == "SUCCEEDED"


# timeouts


async def test_a_task_that_takes_too_long_times_out_and_can_be_tried_again(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a", timeout_seconds=60))
        claim = await claim_one(engine, worker)
        assert claim.deadline_at == clock.now() + timedelta(seconds=60)
        await pass_time(engine, clock, 59.9)
        assert await state_of(engine, run, "a") == "RUNNING"
        await pass_time(engine, clock, 0.1)
        assert await states_of(engine, run) == {"a": "TIMED_OUT"}
        assert await state_of(engine, run) == "FAILED"
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch)
        beat = await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])
        assert beat.lost == ((claim.task_id, claim.epoch),)
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        await engine.signal_task(claim.task_id, "retry")
        assert (await claim_and_complete(engine, worker)).epoch == 2
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_timeout_with_retries_left_is_retried(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a", timeout_seconds=60, max_retries=1, backoff=EXACT))
        await claim_one(engine, worker)
        await pass_time(engine, clock, 60)
        assert await state_of(engine, run, "a") == "RETRYING"
        await pass_time(engine, clock, 10)
        claim = await claim_one(engine, worker)
        assert claim.deadline_at == clock.now() + timedelta(seconds=60), "each attempt has its own time"
        await pass_time(engine, clock, 60)
        assert await state_of(engine, run, "a") == "TIMED_OUT"


async def test_a_timer_of_an_attempt_that_has_ended_does_nothing(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a", timeout_seconds=60, max_retries=1, backoff=EXACT))
        await claim_and_fail(engine, worker)
        await pass_time(engine, clock, 30)
        await claim_one(engine, worker)
        await pass_time(engine, clock, 45)
        assert await state_of(engine, run, "a") == "RUNNING", "the first attempt would have timed out by now"


async def test_a_session_survives_a_timeout_when_it_is_resumed_and_not_when_it_is_retried(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a", timeout_seconds=60))
        claim = await claim_one(engine, worker)
        assert claim.session_id is None
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(session_id="s-1"))
        await pass_time(engine, clock, 60)
        await engine.signal_task(claim.task_id, "resume")
        resumed = await claim_one(engine, worker)
        assert (resumed.session_id, resumed.epoch) == ("s-1", 2)
        await pass_time(engine, clock, 60)
        await engine.signal_task(claim.task_id, "retry")
        fresh = await claim_one(engine, worker)
        assert (fresh.session_id, fresh.epoch) == (None, 3)
        await engine.complete_task(fresh.task_id, fresh.epoch)
        attempts = await engine.list_attempts(claim.task_id)
        assert [(attempt.session_id, attempt.resumed) for attempt in attempts] == [("s-1", False), ("s-1", True), (None, False)]
        assert await state_of(engine, run) == "SUCCEEDED"


@pytest.mark.parametrize("signal", ["retry", "resume"])
async def test_a_person_may_want_another_attempt_when_all_are_used_up(
    database_url: str, clock: ManualClock, signal: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", max_attempts=1))
        claim = await claim_and_fail(engine, worker, session_id="s-1")
        await engine.signal_task(claim.task_id, signal)
        assert (await claim_and_complete(engine, worker)).epoch == 2
        assert await state_of(engine, run) == "SUCCEEDED"


# checks


async def test_checks_that_pass_end_what_the_execution_began(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", checks=True))
        claim = await claim_one(engine, worker)
        assert claim.has_checks
        await engine.complete_task(
            claim.task_id,
            claim.epoch,
            AttemptReport(output=[1], cost_usd=usd(3), exit_code=0, session_id="s-1", log_path="/logs/1"),
        )
        assert await state_of(engine, run, "a") == "VALIDATING"
        assert (await engine.get_worker(worker.id)).state == "BUSY"
        await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        task = await task_of(engine, run, "a")
        assert await path_of(engine, task.id) == ["PENDING", "QUEUED", "RUNNING", "VALIDATING", "SUCCEEDED"]
        assert msgspec.json.decode(str(task.output)) == [1]
        (attempt,) = await engine.list_attempts(task.id)
        assert attempt.ended_by == "checks_passed"
        assert (attempt.cost_usd, attempt.exit_code, attempt.session_id, attempt.log_path) == (usd(3), 0, "s-1", "/logs/1")
        assert (await engine.get_run(run.id)).spent_usd == usd(3)


async def test_checks_that_fail_are_retried_and_then_fail_the_task(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", checks=True, max_retries=1, backoff=EXACT))
        for expected in ("RETRYING", "FAILED"):
            claim = await claim_and_complete(engine, worker)
            await engine.report_attempt(claim.task_id, claim.epoch, "checks_failed", AttemptReport(error="2 tests failed"))
            task = await task_of(engine, run, "a")
            assert (task.state, message_of(task)) == (expected, "2 tests failed")
            await pass_time(engine, clock, 10)
        assert await state_of(engine, run) == "FAILED"


@pytest.mark.parametrize("signal", ["fail", "expire", "checks_failed"])
async def test_checks_that_cannot_end_well_are_failed_checks(database_url: str, clock: ManualClock, signal: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, worker, "VALIDATING")
        await engine.report_attempt(task.id, task.epoch, signal, AttemptReport(retryable=False))
        assert await state_of(engine, run, "x") == "FAILED"


async def test_checks_that_take_too_long_are_reported(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=86400)
        run, task = await bring_to(engine, worker, "VALIDATING")
        await pass_time(engine, clock, 14 * 60)
        assert await engine.list_notices() == []
        await pass_time(engine, clock, 61)
        (notice,) = await engine.list_notices()
        assert (notice.entity_id, notice.run_id, notice.subject) == (task.id, run.id, "overstayed")
        assert await state_of(engine, run, "x") == "VALIDATING"
        await engine.report_attempt(task.id, task.epoch, "checks_passed")
        assert await state_of(engine, run, "x") == "SUCCEEDED"


async def test_a_worker_that_dies_in_the_checks_leaves_the_whole_task_to_another(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, worker, "VALIDATING")
        await pass_time(engine, clock, LEASE + 1)
        assert await state_of(engine, run, "x") == "QUEUED"
        with pytest.raises(LeaseLost):
            await engine.report_attempt(task.id, task.epoch, "checks_passed")


async def test_after_its_checks_a_task_waits_for_its_parts_and_then_for_its_reviewer(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="whole", checks=True, review=True))
        whole = await claim_one(engine, worker)
        await engine.add_tasks(run.id, [NewTask(name="part", parent="whole")])
        await engine.complete_task(whole.task_id, whole.epoch)
        await engine.report_attempt(whole.task_id, whole.epoch, "checks_passed")
        assert await state_of(engine, run, "whole") == "BLOCKED"
        assert await complete_all(engine, worker) == ["part"]
        assert await state_of(engine, run, "whole") == "READY"
        await engine.signal_task(whole.task_id, "accept")
        assert await path_of(engine, whole.task_id) == [
            *["PENDING", "QUEUED", "RUNNING", "VALIDATING", "BLOCKED", "READY", "SUCCEEDED"]
        ]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_after_its_checks_a_task_waits_for_its_reviewer(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", checks=True, review=True))
        claim = await claim_and_complete(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        assert await state_of(engine, run, "a") == "READY"


# subtasks


async def test_a_task_waits_for_the_parts_that_it_was_given_while_it_ran(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=3)
        run = await submit(engine, NewTask(name="whole"), NewTask(name="behind", depends_on=("whole",)))
        whole = await claim_one(engine, worker)
        one, two = await engine.add_tasks(
            run.id, [NewTask(name="one", parent="whole"), NewTask(name="two", parent="whole", depends_on=("one",))]
        )
        assert (one.parent_task_id, one.depth, two.state) == (whole.task_id, 1, "PENDING")
        await engine.complete_task(whole.task_id, whole.epoch, AttemptReport(output="in parts"))
        assert await state_of(engine, run, "whole") == "BLOCKED"
        assert await state_of(engine, run) == "RUNNING", "its parts go on by themselves"
        await claim_and_complete(engine, worker)
        assert await state_of(engine, run, "whole") == "BLOCKED"
        await claim_and_complete(engine, worker)
        task = await task_of(engine, run, "whole")
        assert (task.state, msgspec.json.decode(str(task.output))) == ("SUCCEEDED", "in parts")
        assert await complete_all(engine, worker) == ["behind"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_parts_that_end_before_the_whole_do_not_hold_it_up(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="whole"), NewTask(name="part", parent="whole", priority=-1))
        whole, part = await engine.claim_tasks(worker.id, 2)
        await engine.complete_task(part.task_id, part.epoch)
        await engine.complete_task(whole.task_id, whole.epoch)
        assert await path_of(engine, whole.task_id) == ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_part_that_is_added_in_the_moment_of_completion_is_waited_for(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="whole"))
        whole = await claim_one(engine, worker)
        # The first command keeps the writer busy, so that the other two share a transaction.
        await asyncio.gather(
            engine.send_heartbeat(worker.id, [(whole.task_id, whole.epoch)]),
            engine.add_tasks(run.id, [NewTask(name="part", parent="whole")]),
            engine.complete_task(whole.task_id, whole.epoch),
        )
        assert await states_of(engine, run) == {"whole": "BLOCKED", "part": "QUEUED"}
        assert await complete_all(engine, worker) == ["part"]
        assert await state_of(engine, run, "whole") == "SUCCEEDED"


async def test_a_part_that_fails_fails_the_whole(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(
            engine,
            NewTask(name="whole", priority=9),
            NewTask(name="half", parent="whole", priority=8),
            NewTask(name="quarter", parent="half"),
        )
        await claim_and_complete(engine, worker)
        await claim_and_complete(engine, worker)
        assert await states_of(engine, run) == {"whole": "BLOCKED", "half": "BLOCKED", "quarter": "QUEUED"}
        await claim_and_fail(engine, worker)
        assert await states_of(engine, run) == {"whole": "FAILED", "half": "FAILED", "quarter": "FAILED"}
        assert await state_of(engine, run) == "FAILED"
        await engine.signal_run(run.id, "retry")
        assert await complete_all(engine, worker) == ["whole", "half", "quarter"]
        assert await state_of(engine, run) == "SUCCEEDED"


@pytest.mark.parametrize("signal", ["retry", "resume"])
async def test_another_try_of_the_whole_is_another_try_of_its_failed_parts(
    database_url: str, clock: ManualClock, signal: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(
            engine,
            NewTask(name="whole", priority=9),
            NewTask(name="half", parent="whole", priority=8),
            NewTask(name="good", parent="half", priority=7),
            NewTask(name="bad", parent="half"),
        )
        for _ in range(3):
            await claim_and_complete(engine, worker)
        await claim_and_fail(engine, worker)
        await engine.for_tenant(actor="ada").signal_task((await task_of(engine, run, "whole")).id, signal)
        assert await complete_all(engine, worker) == ["whole", "half", "bad"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_part_that_failed_before_the_whole_was_done_is_tried_again_alone(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="whole"), NewTask(name="part", parent="whole", priority=-1))
        whole, part = await engine.claim_tasks(worker.id, 2)
        await engine.fail_task(part.task_id, part.epoch, AttemptReport(error="it broke"))
        await engine.complete_task(whole.task_id, whole.epoch)
        assert await state_of(engine, run) == "FAILED"
        await engine.signal_run(run.id, "retry")
        assert await state_of(engine, run) == "RUNNING"
        assert "part" in await complete_all(engine, worker)
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_task_at_work_gets_its_parts_although_its_run_has_failed(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="whole"), NewTask(name="bad"), NewTask(name="after", depends_on=("whole",)))
        whole, bad = await engine.claim_tasks(worker.id, 2)
        await engine.fail_task(bad.task_id, bad.epoch, AttemptReport(error="it broke"))
        for name, parent in (("stray", None), ("odd", "after"), ("part of what failed", "bad")):
            with pytest.raises(RequestInvalid, match=r"has ended \(FAILED\)"):
                await engine.add_tasks(run.id, [NewTask(name="part", parent="whole"), NewTask(name=name, parent=parent)])
        await engine.add_tasks(run.id, [NewTask(name="part", parent="whole")])
        await engine.complete_task(whole.task_id, whole.epoch)
        assert await states_of(engine, run) == {"whole": "BLOCKED", "bad": "FAILED", "after": "PENDING", "part": "QUEUED"}
        assert await engine.claim_tasks(worker.id, 2) == [], "nothing begins in it"
        await engine.signal_run(run.id, "retry")
        assert set(await complete_all(engine, worker)) == {"bad", "part", "after"}
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_no_part_is_added_to_a_run_that_was_called_off(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="whole"))
        await claim_one(engine, worker)
        await engine.for_tenant(actor="ada").signal_run(run.id, "cancel")
        with pytest.raises(RequestInvalid, match=r"has ended \(CANCELED\)"):
            await engine.add_tasks(run.id, [NewTask(name="part", parent="whole")])


async def test_a_part_that_does_not_matter_may_fail(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="whole", priority=9), NewTask(name="part", parent="whole", critical=False))
        await claim_and_complete(engine, worker)
        await claim_and_fail(engine, worker)
        assert await states_of(engine, run) == {"whole": "SUCCEEDED", "part": "SKIPPED"}
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_parts_have_parts_five_levels_deep_and_no_deeper(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        names = [f"level {depth}" for depth in range(MAX_DEPTH + 1)]
        tasks = [NewTask(name=names[0], priority=9)]
        tasks += [NewTask(name=name, parent=parent, priority=8 - depth) for depth, (parent, name) in enumerate(pairwise(names))]
        run = await submit(engine, *tasks)
        with pytest.raises(RequestInvalid, match="no deeper than 5"):
            await engine.add_tasks(run.id, [NewTask(name="too deep", parent=names[-1])])
        assert [task.depth for task in await engine.list_tasks(run.id)] == [0, 1, 2, 3, 4, 5]
        for depth in range(MAX_DEPTH):
            assert (await claim_and_complete(engine, worker)).name == f"level {depth}"
        assert set((await states_of(engine, run)).values()) == {"BLOCKED", "QUEUED"}
        await claim_and_complete(engine, worker)
        assert set((await states_of(engine, run)).values()) == {"SUCCEEDED"}
        assert await state_of(engine, run) == "SUCCEEDED"


# questions


async def test_an_answer_continues_the_session_that_asked(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a"))
        first = await claim_one(engine, worker)
        asking = await engine.report_attempt(
            first.task_id, first.epoch, "ask", AttemptReport(question="red or blue?", session_id="s-1", cost_usd=usd(1))
        )
        assert (asking.state, asking.question) == ("BLOCKED", "red or blue?")
        assert await state_of(engine, run) == "WAITING"
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        await claim_nothing(engine, worker)
        answered = await engine.for_tenant(actor="ada").signal_task(first.task_id, "answer", answer="blue")
        assert (answered.state, answered.question, answered.answer) == ("QUEUED", None, "blue")
        assert await state_of(engine, run) == "RUNNING"
        second = await claim_one(engine, worker)
        assert (second.session_id, second.answer, second.epoch) == ("s-1", "blue", 2)
        await engine.complete_task(second.task_id, second.epoch, AttemptReport(cost_usd=usd(2)))
        one, two = await engine.list_attempts(first.task_id)
        assert (one.ended_by, one.session_id, one.cost_usd, one.resumed) == ("ask", "s-1", usd(1), False)
        assert (two.ended_by, two.session_id, two.cost_usd, two.resumed) == ("complete", "s-1", usd(2), True)
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "WAITING", "RUNNING", "SUCCEEDED"]


async def test_a_question_is_no_failure_and_uses_up_no_attempt(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", max_attempts=1))
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, "ask", AttemptReport(question="red or blue?", session_id="s-1"))
        await engine.signal_task(claim.task_id, "answer", answer="blue")
        again = await claim_and_complete(engine, worker)
        assert (again.epoch, again.answer) == (2, "blue")
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_who_waits_for_an_answer_waits_whatever_its_parts_do(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="whole", priority=9), NewTask(name="part", parent="whole"))
        whole = await claim_one(engine, worker)
        await engine.report_attempt(whole.task_id, whole.epoch, "ask", AttemptReport(question="red or blue?", session_id="s-1"))
        await claim_and_complete(engine, worker)
        assert await states_of(engine, run) == {"whole": "BLOCKED", "part": "SUCCEEDED"}
        assert await state_of(engine, run) == "WAITING"
        await engine.signal_task(whole.task_id, "answer", answer="red")
        await claim_and_complete(engine, worker)
        assert await state_of(engine, run) == "SUCCEEDED"


# reviews


async def test_a_rejected_result_is_done_again_with_the_comment_in_view(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", review=True), NewTask(name="b", depends_on=("a",)))
        first = await claim_and_complete(engine, worker, output=1)
        assert first.comment is None
        assert await states_of(engine, run) == {"a": "READY", "b": "PENDING"}
        assert await state_of(engine, run) == "WAITING"
        await engine.for_tenant(actor="ada").signal_task(first.task_id, "reject", comment="use fewer words")
        assert await state_of(engine, run, "a") == "QUEUED"
        assert await state_of(engine, run) == "RUNNING"
        second = await claim_and_complete(engine, worker, output=2)
        assert (second.comment, second.epoch) == ("use fewer words", 2)
        accepted = await engine.signal_task(first.task_id, "accept")
        assert accepted.state == "SUCCEEDED"
        assert await path_of(engine, first.task_id) == [
            *["PENDING", "QUEUED", "RUNNING", "READY", "PENDING", "QUEUED", "RUNNING", "READY", "SUCCEEDED"]
        ]
        assert msgspec.json.decode(str((await task_of(engine, run, "a")).output)) == 2
        assert await complete_all(engine, worker) == ["b"]
        with pytest.raises(TransitionRefused):
            await engine.signal_task(first.task_id, "reject")


async def test_a_review_uses_up_no_attempt(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", review=True, max_attempts=1))
        claim = await claim_and_complete(engine, worker)
        await engine.signal_task(claim.task_id, "reject", comment="again")
        await claim_and_complete(engine, worker)
        await engine.signal_task(claim.task_id, "accept")
        assert await state_of(engine, run) == "SUCCEEDED"


# gates


async def gated_run(engine: Engine, **options: Any) -> Run:
    return await submit(
        engine,
        NewTask(name="build"),
        NewTask(name="gate", gate=True, depends_on=("build",), **options),
        NewTask(name="ship", depends_on=("gate",)),
    )


async def test_a_gate_opens_when_it_is_reached_and_a_person_lets_the_run_through(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=5)
        run = await gated_run(engine)
        gate = await task_of(engine, run, "gate")
        with pytest.raises(TransitionRefused):
            await engine.signal_task(gate.id, "approve")
        await engine.approve_run(run.id)
        assert await state_of(engine, run, "gate") == "PENDING", "with no gate open, nothing happens"
        await claim_and_complete(engine, worker)
        assert await states_of(engine, run) == {"build": "SUCCEEDED", "gate": "WAITING_APPROVAL", "ship": "PENDING"}
        assert await state_of(engine, run) == "WAITING"
        await claim_nothing(engine, worker)
        approved = await engine.for_tenant(actor="ada").signal_task(gate.id, "approve", reason="looks good")
        assert (approved.state, approved.actor, approved.reason, approved.epoch) == ("SUCCEEDED", "ada", "looks good", 0)
        assert await state_of(engine, run) == "RUNNING"
        assert (await engine.approve_run(run.id)).state == "RUNNING"
        assert await complete_all(engine, worker) == ["ship"]
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "WAITING", "RUNNING", "SUCCEEDED"]


async def test_a_rejected_gate_stops_the_run_and_can_only_be_skipped(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await gated_run(engine)
        await claim_and_complete(engine, worker)
        gate = await task_of(engine, run, "gate")
        rejected = await engine.signal_task(gate.id, "reject", reason="not on a Friday")
        assert (rejected.state, message_of(rejected)) == ("FAILED", "not on a Friday")
        assert await state_of(engine, run) == "FAILED"
        for signal in ("retry", "resume", "approve"):
            with pytest.raises(TransitionRefused):
                await engine.signal_task(gate.id, signal)
        assert await state_of(engine, run) == "FAILED", "a refused signal reopens nothing"
        await engine.signal_task(gate.id, "skip", reason="it is Monday")
        assert await complete_all(engine, worker) == ["ship"], "what is behind a skipped task goes on"
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_gate_that_nobody_answers_is_rejected_by_the_clock(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=86400)
        run = await gated_run(engine, approval_seconds=3600)
        await pass_time(engine, clock, 7200)
        assert await state_of(engine, run, "gate") == "PENDING", "its time begins when it opens"
        await claim_and_complete(engine, worker)
        await pass_time(engine, clock, 3599)
        assert await state_of(engine, run, "gate") == "WAITING_APPROVAL"
        await pass_time(engine, clock, 1)
        gate = await task_of(engine, run, "gate")
        assert (gate.state, gate.actor, message_of(gate)) == ("FAILED", "engine", "nobody decided in time")
        assert await state_of(engine, run) == "FAILED"


async def test_an_approved_gate_is_not_expired_afterwards(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=86400)
        run = await gated_run(engine, approval_seconds=3600)
        await claim_and_complete(engine, worker)
        await engine.approve_run(run.id)
        await pass_time(engine, clock, 4000)
        assert await states_of(engine, run) == {"build": "SUCCEEDED", "gate": "SUCCEEDED", "ship": "QUEUED"}


async def test_nobody_opens_a_gate_before_it_is_reached(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await gated_run(engine)
        gate = await task_of(engine, run, "gate")
        with pytest.raises(PointsmanError):
            await engine.signal_task(gate.id, "ready")
        assert await states_of(engine, run) == {"build": "QUEUED", "gate": "PENDING", "ship": "PENDING"}


async def test_nobody_queues_a_task_before_its_dependencies_have_succeeded(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        with pytest.raises(PointsmanError):
            await engine.signal_task((await task_of(engine, run, "b")).id, "ready")
        assert await state_of(engine, run, "b") == "PENDING"


@pytest.mark.parametrize("signal", ["claim", "complete", "lease_lost", "checks_passed", "no such signal"])
async def test_a_person_does_not_report_what_only_an_attempt_can(database_url: str, clock: ManualClock, signal: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        for state in ("QUEUED", "RUNNING", "VALIDATING"):
            run, task = await bring_to(engine, worker, state)
            with pytest.raises(PointsmanError):
                await engine.signal_task(task.id, signal)
            assert await engine.get_task(task.id) == task
            await engine.signal_run(run.id, "cancel")


async def whole_that_failed_with_a_part(engine: Engine, worker: Worker) -> tuple[Run, dict[str, Task]]:
    names = ("one", "two", "three")
    parts = [NewTask(name=name, parent="whole", priority=-at) for at, name in enumerate(names)]
    run = await submit(engine, NewTask(name="whole", priority=9), *parts, NewTask(name="after", depends_on=("whole",)))
    assert (await claim_and_complete(engine, worker)).name == "whole"
    assert (await claim_and_complete(engine, worker)).name == "one"
    assert (await claim_and_fail(engine, worker, retryable=False)).name == "two"
    assert await states_of(engine, run) == {
        "whole": "FAILED", "one": "SUCCEEDED", "two": "FAILED", "three": "QUEUED", "after": "PENDING",
    }  # fmt: skip
    assert await state_of(engine, run) == "FAILED"
    return run, {task.name: task for task in await engine.list_tasks(run.id)}


@pytest.mark.parametrize("signal", ["retry", "resume", "skip"])
async def test_another_try_of_a_part_is_another_try_of_the_whole(database_url: str, clock: ManualClock, signal: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, tasks = await whole_that_failed_with_a_part(engine, worker)
        await engine.for_tenant(actor="ada").signal_task(tasks["two"].id, signal)
        assert await state_of(engine, run, "whole") == "QUEUED"
        assert (await engine.list_history(tasks["whole"].id))[-1].actor == "ada"
        done = await complete_all(engine, worker)
        assert done == ["whole", *(["two"] if signal != "skip" else []), "three", "after"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_whole_that_failed_by_itself_is_not_tried_again_with_a_part(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="whole"), NewTask(name="part", parent="whole", priority=9))
        await claim_and_fail(engine, worker, retryable=False)
        await engine.signal_run(run.id, "retry")
        await claim_and_complete(engine, worker)
        await claim_and_fail(engine, worker, retryable=False)
        states = {"whole": "FAILED", "part": "SUCCEEDED"}
        assert await states_of(engine, run) == states
        part = await task_of(engine, run, "part")
        with pytest.raises(TransitionRefused):
            await engine.signal_task(part.id, "retry")
        assert await states_of(engine, run) == states


async def test_whoever_passes_over_a_whole_passes_over_its_parts(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, tasks = await whole_that_failed_with_a_part(engine, worker)
        await engine.for_tenant(actor="ada").signal_task(tasks["whole"].id, "skip", reason="not today")
        assert await states_of(engine, run) == {
            "whole": "SKIPPED", "one": "SUCCEEDED", "two": "SKIPPED", "three": "SKIPPED", "after": "QUEUED",
        }  # fmt: skip
        for name in ("two", "three"):
            last = (await engine.list_history(tasks[name].id))[-1]
            assert (last.actor, last.reason) == ("ada", "not today")
        assert await complete_all(engine, worker) == ["after"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_part_that_runs_is_not_passed_over_with_the_whole(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="whole", priority=9), NewTask(name="part", parent="whole"))
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 2)}
        await engine.fail_task(claims["whole"].task_id, claims["whole"].epoch, AttemptReport(error="no", retryable=False))
        await engine.signal_task(claims["whole"].task_id, "skip")
        assert await states_of(engine, run) == {"whole": "SKIPPED", "part": "RUNNING"}
        await engine.complete_task(claims["part"].task_id, claims["part"].epoch)
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_person_does_not_end_the_wait_for_parts(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="whole", priority=9), NewTask(name="part", parent="whole"))
        whole = await claim_and_complete(engine, worker)
        with pytest.raises(PointsmanError):
            await engine.signal_task(whole.task_id, "children_done")
        assert await state_of(engine, run, "whole") == "BLOCKED"


# money


async def test_a_cost_that_is_told_twice_with_the_same_key_is_counted_once(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        for _ in range(2):
            told = await engine.report_attempt(
                claim.task_id, claim.epoch, report=AttemptReport(cost_usd=usd(2)), request_id="first"
            )
            assert told.cost_usd == usd(2)
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=usd(2)), request_id="second")
        with pytest.raises(KeyReused):
            await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=usd(3)), request_id="first")
        assert (await engine.get_run(run.id)).spent_usd == usd(4)


async def test_an_attempt_whose_checks_passed_has_no_error(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        await submit(engine, NewTask(name="a", checks=True))
        claim = await claim_and_complete(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        (attempt,) = await engine.list_attempts(claim.task_id)
        assert (attempt.ended_by, attempt.error) == ("checks_passed", None)


async def test_who_reports_more_than_its_budget_is_stopped(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", budget_usd=usd(5)), NewTask(name="b", depends_on=("a",)))
        claim = await claim_one(engine, worker)
        assert claim.budget_usd == usd(5)
        assert (
            await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=usd(5)))
        ).state == "RUNNING", "to the cent"
        stopped = await engine.report_attempt(
            claim.task_id, claim.epoch, report=AttemptReport(cost_usd=usd("0.01"), session_id="s-1")
        )
        assert (stopped.state, stopped.cost_usd) == ("BUDGET_EXCEEDED", usd("5.01"))
        (attempt,) = await engine.list_attempts(claim.task_id)
        assert (attempt.ended_by, attempt.cost_usd, attempt.session_id) == ("overspend", usd("5.01"), "s-1")
        assert await states_of(engine, run) == {"a": "BUDGET_EXCEEDED", "b": "PENDING"}
        assert await state_of(engine, run) == "FAILED"
        assert (await engine.get_run(run.id)).spent_usd == usd("5.01")
        with pytest.raises(LeaseLost):
            await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=usd(1)))


async def test_a_runner_that_says_so_has_overspent(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, worker, "BUDGET_EXCEEDED")
        assert await state_of(engine, run) == "FAILED"
        await engine.signal_task(task.id, "resume")
        assert await complete_all(engine, worker) == ["x", "after"]


async def test_a_run_that_has_spent_its_budget_starts_nothing_more_until_it_gets_more(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", priority=1), NewTask(name="b"), budget_usd=usd(10))
        await claim_and_complete(engine, worker, cost_usd=usd(10))
        await claim_nothing(engine, worker)
        assert await states_of(engine, run) == {"a": "SUCCEEDED", "b": "BUDGET_EXCEEDED"}
        assert await state_of(engine, run) == "FAILED"
        await engine.set_budget(run.id, usd(20))
        await engine.signal_run(run.id, "retry")
        assert await complete_all(engine, worker) == ["b"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_run_that_overspends_stops_who_spends(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"), budget_usd=usd(10))
        a, b = await engine.claim_tasks(worker.id, 2)
        await engine.report_attempt(a.task_id, a.epoch, report=AttemptReport(cost_usd=usd(6)))
        assert (
            await engine.report_attempt(b.task_id, b.epoch, report=AttemptReport(cost_usd=usd(5)))
        ).state == "BUDGET_EXCEEDED"
        assert await states_of(engine, run) == {"a": "RUNNING", "b": "BUDGET_EXCEEDED"}
        assert (await engine.get_run(run.id)).spent_usd == usd(11)


async def test_an_attempt_reserves_its_budget_and_gives_back_what_it_did_not_need(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=3)
        run = await submit(
            engine, NewTask(name="a", priority=1, budget_usd=usd(6)), NewTask(name="b", budget_usd=usd(6)), budget_usd=usd(10)
        )
        (a,) = await engine.claim_tasks(worker.id, 3)
        assert a.name == "a"
        assert (await engine.get_run(run.id)).reserved_usd == usd(6)
        await engine.report_attempt(a.task_id, a.epoch, report=AttemptReport(cost_usd=usd(1)))
        noted = await engine.get_run(run.id)
        assert (noted.spent_usd, noted.reserved_usd) == (usd(1), usd(5))
        await claim_nothing(engine, worker)
        assert await state_of(engine, run, "b") == "QUEUED", "it waits for room"
        with pytest.raises(RequestInvalid, match="spent or reserved"):
            await engine.set_budget(run.id, usd(5))
        await engine.complete_task(a.task_id, a.epoch, AttemptReport(cost_usd=usd(2)))
        settled = await engine.get_run(run.id)
        assert (settled.spent_usd, settled.reserved_usd) == (usd(3), usd(0))
        b = await claim_one(engine, worker)
        assert (b.name, (await engine.get_run(run.id)).reserved_usd) == ("b", usd(6))
        await engine.complete_task(b.task_id, b.epoch, AttemptReport(cost_usd=usd(6)))
        ended = await engine.get_run(run.id)
        assert (ended.state, ended.spent_usd, ended.reserved_usd) == ("SUCCEEDED", usd(9), usd(0))


async def test_who_costs_more_than_it_had_reserved_does_not_keep_the_others_from_ending(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(
            engine, NewTask(name="a", budget_usd=usd(5)), NewTask(name="b", budget_usd=usd(5)), budget_usd=usd(10)
        )
        a, b = await engine.claim_tasks(worker.id, 2)
        await engine.complete_task(a.task_id, a.epoch, AttemptReport(cost_usd=usd(8)))
        await engine.complete_task(b.task_id, b.epoch, AttemptReport(cost_usd=usd(5)))
        ended = await engine.get_run(run.id)
        assert (ended.state, ended.spent_usd, ended.reserved_usd) == ("SUCCEEDED", usd(13), usd(0))


async def test_what_one_task_overspends_is_not_taken_from_the_reservation_of_another(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=4)
        run = await submit(engine, *(NewTask(name=name, budget_usd=usd(4)) for name in "abc"), budget_usd=usd(12))
        a, b, c = await engine.claim_tasks(worker.id, 3)
        await engine.complete_task(a.task_id, a.epoch, AttemptReport(cost_usd=usd(8)))
        await engine.complete_task(b.task_id, b.epoch)
        await engine.add_tasks(run.id, [NewTask(name="d", budget_usd=usd(4))])
        assert await engine.claim_tasks(worker.id, 1) == [], "the last 4 USD are reserved for c"
        await engine.complete_task(c.task_id, c.epoch, AttemptReport(cost_usd=usd(4)))
        await claim_nothing(engine, worker)
        assert await state_of(engine, run, "d") == "BUDGET_EXCEEDED"
        assert (await engine.get_run(run.id)).spent_usd == usd(12)


async def test_a_task_that_waits_for_room_in_its_budget_keeps_nobody_else_waiting(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        one, other = await register(engine), await register(engine)
        await submit(engine, NewTask(name="a", budget_usd=usd(8)), NewTask(name="b", budget_usd=usd(8)), budget_usd=usd(10))
        await claim_one(engine, one)
        await submit(engine, NewTask(name="free of charge"))
        assert [claim.name for claim in await engine.claim_tasks(other.id, 1)] == ["free of charge"]


async def test_a_task_that_can_never_be_paid_keeps_nobody_else_waiting(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", budget_usd=usd(11)), budget_usd=usd(10))
        await submit(engine, NewTask(name="free of charge"))
        assert [claim.name for claim in await engine.claim_tasks(worker.id, 1)] == ["free of charge"]
        assert await state_of(engine, run, "a") == "BUDGET_EXCEEDED"


# skipping


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "RETRYING", "WAITING_APPROVAL", "FAILED", "TIMED_OUT"])
async def test_what_is_behind_a_skipped_task_goes_on(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, worker, state)
        skipped = await engine.for_tenant(actor="ada").signal_task(task.id, "skip", reason="not needed")
        assert (skipped.state, skipped.outcome) == ("SKIPPED", "success")
        last = (await engine.list_history(task.id))[-1]
        assert (last.actor, last.reason, last.severity) == ("ada", "not needed", "warning")
        await pass_time(engine, clock, 11)
        assert await complete_all(engine, worker) == ["after"]
        if state != "PENDING":
            assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_failed_run_is_not_tried_again_because_another_task_is_skipped(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(
            engine, NewTask(name="wrong"), NewTask(name="after", depends_on=("wrong",)), NewTask(name="beside", priority=-1)
        )
        await claim_and_fail(engine, worker, retryable=False)
        assert await state_of(engine, run) == "FAILED"
        tasks = {task.name: task for task in await engine.list_tasks(run.id)}
        await engine.signal_task(tasks["beside"].id, "skip")
        assert await states_of(engine, run) == {"wrong": "FAILED", "after": "PENDING", "beside": "SKIPPED"}
        assert await state_of(engine, run) == "FAILED"
        await engine.signal_task(tasks["wrong"].id, "skip")
        assert await complete_all(engine, worker) == ["after"]
        assert await state_of(engine, run) == "SUCCEEDED"


@pytest.mark.parametrize("state", ["RUNNING", "VALIDATING", "BLOCKED", "READY", "SUCCEEDED", "SKIPPED", "CANCELED"])
async def test_what_has_begun_or_ended_is_not_skipped(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, worker, state)
        before = await read_stream(engine)
        with pytest.raises(TransitionRefused):
            await engine.signal_task(task.id, "skip")
        assert await engine.get_task(task.id) == task
        assert await read_stream(engine) == before
        assert await state_of(engine, run, "after") == ("QUEUED" if task.outcome == "success" else "PENDING")


async def test_whoever_claimed_a_task_may_find_that_it_is_not_to_be_done(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="publish"), NewTask(name="after", depends_on=("publish",)))
        claim = await claim_one(engine, worker)
        skipped = await engine.report_attempt(
            claim.task_id,
            claim.epoch,
            "skip",
            AttemptReport(error="inputs.publish is false", log_path="1.log", cost_usd=Decimal("0.5")),
        )
        assert (skipped.state, skipped.outcome, skipped.error) == ("SKIPPED", "success", None)
        (attempt,) = await engine.list_attempts(claim.task_id)
        assert (attempt.ended_by, attempt.error, attempt.log_path, attempt.cost_usd) == ("skip", None, "1.log", Decimal("0.5"))
        last = (await engine.list_history(claim.task_id))[-1]
        assert (last.actor, last.reason, last.severity) == (worker.id, "inputs.publish is false", "info")
        with pytest.raises(LeaseLost):
            await engine.report_attempt(claim.task_id, claim.epoch, "skip")
        assert await complete_all(engine, worker) == ["after"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_only_the_attempt_that_holds_a_task_may_skip_it(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        run = await submit(engine, NewTask(name="publish"))
        lost = await claim_one(engine, worker)
        await pass_time(engine, clock, LEASE + 1)
        with pytest.raises(LeaseLost):
            await engine.report_attempt(lost.task_id, lost.epoch, "skip")
        assert (await claim_one(engine, worker)).epoch == lost.epoch + 1
        with pytest.raises(LeaseLost):
            await engine.report_attempt(lost.task_id, lost.epoch, "skip")
        assert await state_of(engine, run, "publish") == "RUNNING"


async def test_nobody_gets_a_running_task_skipped_by_the_name_of_the_state(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="publish"))
        claim = await claim_one(engine, worker)
        for state, trigger in (("SKIPPED", None), (None, "skip")):
            result = await engine.request_transition(Kind.TASK, claim.task_id, state, trigger)
            assert not result.success
            assert "process_ended" in (result.error or "")
        assert await state_of(engine, run, "publish") == "RUNNING"


@pytest.mark.parametrize("signal", ["expire", "overspend", "cancel", "checks_failed", "skip"])
async def test_every_ending_tells_of_its_exit_code_its_log_and_its_cost(
    database_url: str, clock: ManualClock, signal: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", checks=signal == "checks_failed"))
        claim = await claim_one(engine, worker)
        if signal == "checks_failed":
            await engine.complete_task(claim.task_id, claim.epoch)
        await engine.report_attempt(
            claim.task_id,
            claim.epoch,
            signal,
            AttemptReport(error="enough", exit_code=137, log_path="a/1.log", cost_usd=Decimal(2)),
        )
        (attempt,) = await engine.list_attempts(claim.task_id)
        assert (attempt.exit_code, attempt.log_path, attempt.cost_usd) == (137, "a/1.log", Decimal(2))
        assert (await engine.get_run(run.id)).spent_usd == Decimal(2)
        if signal in ("expire", "overspend", "checks_failed"):
            assert msgspec.json.decode((await engine.get_task(claim.task_id)).error or "") == {
                "message": "enough",
                "exit_code": 137,
            }


# cancelling

UNFINISHED = ["PENDING", "QUEUED", "RUNNING", "VALIDATING", "RETRYING", "WAITING_APPROVAL", "BLOCKED", "READY"]
ENDED = ["SUCCEEDED", "SKIPPED", "FAILED", "TIMED_OUT", "BUDGET_EXCEEDED", "CANCELED"]


@pytest.mark.parametrize("state", UNFINISHED)
async def test_a_task_is_cancelled_from_wherever_it_stands(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, worker, state)
        canceled = await engine.for_tenant(actor="ada").signal_task(task.id, "cancel", reason="changed my mind")
        assert (canceled.state, canceled.outcome, canceled.actor) == ("CANCELED", "canceled", "ada")
        assert (canceled.worker_id, canceled.current_attempt) == (None, None)
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        assert await state_of(engine, run) == "FAILED", "a task that matters will not come about any more"
        assert await state_of(engine, run, "after") == "PENDING"
        await pass_time(engine, clock, 60)
        assert await state_of(engine, run, "x") == "CANCELED"
        if task.current_attempt is not None:
            beat = await engine.send_heartbeat(worker.id, [(task.id, task.epoch)])
            assert beat.lost == ((task.id, task.epoch),)
            with pytest.raises(LeaseLost):
                await engine.complete_task(task.id, task.epoch)


@pytest.mark.parametrize("state", ENDED)
async def test_what_has_ended_is_not_cancelled(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        _, task = await bring_to(engine, worker, state)
        before = await read_stream(engine)
        with pytest.raises(TransitionRefused) as refused:
            await engine.signal_task(task.id, "cancel")
        assert case_of(refused) is (Case.ALREADY_THERE if state == "CANCELED" else Case.TERMINAL)
        assert await engine.get_task(task.id) == task
        assert await read_stream(engine) == before


@pytest.mark.parametrize("state", UNFINISHED)
async def test_a_cancelled_run_calls_off_whatever_has_not_ended(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, _ = await bring_to(engine, worker, state)
        canceled = await engine.for_tenant(actor="ada").signal_run(run.id, "cancel", reason="not needed any more")
        assert (canceled.state, canceled.outcome) == ("CANCELED", "canceled")
        assert set((await states_of(engine, run)).values()) == {"CANCELED"}
        assert {event.actor for event in await engine.list_transitions(run_id=run.id) if event.trigger == "cancel"} == {"ada"}
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        await pass_time(engine, clock, 60)
        with pytest.raises(TransitionRefused) as refused:
            await engine.signal_run(run.id, "cancel")
        assert case_of(refused) is Case.ALREADY_THERE


async def test_a_cancelled_run_leaves_alone_what_has_ended(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="done"), NewTask(name="open"))
        await claim_and_complete(engine, worker)
        await engine.signal_run(run.id, "cancel")
        assert await states_of(engine, run) == {"done": "SUCCEEDED", "open": "CANCELED"}
        for signal in ("retry", "resume", "pause"):
            with pytest.raises(TransitionRefused):
                await engine.signal_run(run.id, signal)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "WAITING", "PAUSED", "VALIDATING", "RETRYING"])
async def test_a_run_is_cancelled_from_wherever_it_stands(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", review=state == "WAITING"), checks=True, max_retries=1, backoff=EXACT)
        match state:
            case "RUNNING":
                await claim_one(engine, worker)
            case "WAITING" | "VALIDATING":
                await claim_and_complete(engine, worker)
            case "PAUSED":
                await engine.signal_run(run.id, "pause")
            case "RETRYING":
                await claim_and_fail(engine, worker)
        assert await state_of(engine, run) == state
        await engine.signal_run(run.id, "cancel")
        assert (await path_of(engine, run.id))[-2:] == [state, "CANCELED"]
        await pass_time(engine, clock, 7200)
        assert await state_of(engine, run) == "CANCELED"


async def test_a_run_ends_when_a_task_that_does_not_matter_is_cancelled(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="optional", critical=False), NewTask(name="b"))
        await engine.signal_task((await task_of(engine, run, "optional")).id, "cancel")
        assert await complete_all(engine, worker) == ["b"]
        assert (await engine.get_run(run.id)).phase == "done", "nobody could ever move it on"


# pausing


async def test_a_paused_run_begins_nothing_and_goes_on_when_it_is_resumed(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"), NewTask(name="c", depends_on=("a",)))
        a = await claim_one(engine, worker)
        assert (await engine.for_tenant(actor="ada").signal_run(run.id, "pause")).state == "PAUSED"
        await claim_nothing(engine, worker)
        await engine.complete_task(a.task_id, a.epoch)
        await claim_nothing(engine, worker)
        assert await states_of(engine, run) == {"a": "SUCCEEDED", "b": "QUEUED", "c": "QUEUED"}
        assert await state_of(engine, run) == "PAUSED"
        assert (await engine.signal_run(run.id, "resume")).state == "RUNNING"
        assert sorted(await complete_all(engine, worker)) == ["b", "c"]
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "PAUSED", "RUNNING", "SUCCEEDED"]


async def test_a_run_whose_last_task_ends_while_it_is_paused_ends_when_it_is_resumed(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        good, bad = await submit(engine, NewTask(name="a")), await submit(engine, NewTask(name="b"))
        a = await claim_one(engine, worker)
        await engine.signal_run(good.id, "pause")
        await engine.complete_task(a.task_id, a.epoch)
        b = await claim_one(engine, worker)
        await engine.signal_run(bad.id, "pause")
        await engine.fail_task(b.task_id, b.epoch, AttemptReport(error="it broke"))
        assert [await state_of(engine, run) for run in (good, bad)] == ["PAUSED", "PAUSED"]
        for run in (good, bad):
            await engine.signal_run(run.id, "resume")
        assert [await state_of(engine, run) for run in (good, bad)] == ["SUCCEEDED", "FAILED"]


async def test_a_run_can_be_paused_before_it_begins_and_while_it_waits(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="gate", gate=True), NewTask(name="b", depends_on=("gate",)))
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "WAITING"]
        await engine.signal_run(run.id, "pause")
        await engine.approve_run(run.id)
        await claim_nothing(engine, worker)
        await engine.signal_run(run.id, "resume")
        assert await complete_all(engine, worker) == ["b"]
        early = await submit(engine, NewTask(name="a"))
        await engine.signal_run(early.id, "pause")
        await claim_nothing(engine, worker)
        await engine.signal_run(early.id, "resume")
        await complete_all(engine, worker)
        assert await path_of(engine, early.id) == ["PENDING", "PAUSED", "RUNNING", "SUCCEEDED"]


async def test_a_task_that_is_added_to_a_paused_run_waits_with_it(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a"))
        await engine.signal_run(run.id, "pause")
        await engine.add_tasks(run.id, [NewTask(name="b")])
        await claim_nothing(engine, worker)
        await engine.signal_run(run.id, "resume")
        assert await complete_all(engine, worker) == ["a", "b"]


async def test_a_run_that_waits_for_people_takes_new_tasks_and_goes_on_with_them(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="gate", gate=True))
        assert await state_of(engine, run) == "WAITING"
        await engine.add_tasks(run.id, [NewTask(name="meanwhile")])
        assert await state_of(engine, run) == "RUNNING"
        assert await complete_all(engine, worker) == ["meanwhile"]
        assert await state_of(engine, run) == "WAITING"
        await engine.approve_run(run.id)
        assert await state_of(engine, run) == "SUCCEEDED"


# lost leases


async def test_what_a_silent_worker_held_goes_to_another_and_the_silent_one_can_change_nothing(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        zombie, heir = await register(engine, lease_seconds=LEASE), await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a", checks=True, budget_usd=usd(5)), budget_usd=usd(5))
        old = await claim_one(engine, zombie)
        await pass_time(engine, clock, LEASE)
        assert await state_of(engine, run, "a") == "RUNNING", "a lease lasts to its end"
        await pass_time(engine, clock, 0.001)
        assert await state_of(engine, run, "a") == "QUEUED"
        assert (await engine.get_worker(zombie.id)).state == "UNRESPONSIVE"
        assert (await engine.get_run(run.id)).reserved_usd == 0
        new = await claim_one(engine, heir)
        assert (new.task_id, new.epoch) == (old.task_id, 2)

        before, events = await engine.get_task(old.task_id), await read_stream(engine)
        reports: list[Awaitable[Any]] = [
            engine.complete_task(old.task_id, old.epoch, AttemptReport(output="stale", cost_usd=usd(1))),
            engine.fail_task(old.task_id, old.epoch, AttemptReport(error="stale", cost_usd=usd(1))),
            engine.report_attempt(old.task_id, old.epoch, "ask", AttemptReport(question="stale?", session_id="stale")),
            engine.report_attempt(old.task_id, old.epoch, report=AttemptReport(cost_usd=usd(1), session_id="stale")),
            *(
                engine.report_attempt(old.task_id, old.epoch, each)
                for each in ("checks_passed", "overspend", "expire", "cancel")
            ),
            engine.complete_task(old.task_id, 99),
        ]
        for report in reports:
            with pytest.raises(LeaseLost):
                await report
        assert await engine.get_task(old.task_id) == before
        assert await read_stream(engine) == events
        beat = await engine.send_heartbeat(zombie.id, [(old.task_id, old.epoch)])
        assert beat.lost == ((old.task_id, old.epoch),)
        assert await engine.get_task(old.task_id) == before

        await engine.complete_task(new.task_id, new.epoch)
        await engine.report_attempt(new.task_id, new.epoch, "checks_passed")
        task = await engine.get_task(old.task_id)
        assert (task.state, task.reclaim_count, task.cost_usd) == ("SUCCEEDED", 1, usd(0))
        assert [attempt.ended_by for attempt in await engine.list_attempts(task.id)] == ["lease_lost", "checks_passed"]


async def test_a_zombie_is_refused_before_anybody_else_has_the_task(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, LEASE + 1)
        with pytest.raises(LeaseLost, match="QUEUED"):
            await engine.complete_task(claim.task_id, claim.epoch)
        assert await state_of(engine, run, "a") == "QUEUED"


async def test_heartbeats_keep_a_lease(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        for _ in range(5):
            await pass_time(engine, clock, LEASE - 1)
            beat = await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])
            assert (beat.lost, beat.cancelled, beat.unknown) == ((), (), ())
        await engine.complete_task(claim.task_id, claim.epoch)
        assert await path_of(engine, claim.task_id) == ["PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_a_task_that_kills_its_workers_is_stopped(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="poison", max_reclaims=2, max_retries=5))
        for death in range(3):
            assert await state_of(engine, run, "poison") == "QUEUED"
            worker = await register(engine)
            claim = await claim_one(engine, worker)
            assert claim.epoch == death + 1
            await pass_time(engine, clock, LEASE + 1)
        poison = await task_of(engine, run, "poison")
        assert (poison.state, poison.reclaim_count, poison.epoch) == ("FAILED", 2, 3)
        assert "no heartbeat" in message_of(poison)
        assert await state_of(engine, run) == "FAILED"
        await engine.signal_task(poison.id, "retry")
        assert (await task_of(engine, run, "poison")).reclaim_count == 0


async def test_what_may_be_tried_once_is_not_tried_again_when_its_worker_dies(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", max_attempts=1, max_retries=3))
        await claim_one(engine, worker)
        await pass_time(engine, clock, LEASE + 1)
        assert await state_of(engine, run, "a") == "FAILED"


async def test_a_claim_whose_answer_was_lost_is_given_up(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, LEASE - 1)
        assert (await engine.send_heartbeat(worker.id)).unknown == (), "the answer may still be under way"
        await pass_time(engine, clock, 2)
        assert (await engine.send_heartbeat(worker.id)).unknown == ((claim.task_id, 1),)
        assert await state_of(engine, run, "a") == "QUEUED"
        assert (await claim_and_complete(engine, worker)).epoch == 2


async def test_only_who_holds_an_attempt_gives_it_up(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker, stranger = await register(engine), await register(engine)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        for worker_id, epoch in ((stranger.id, 1), (worker.id, 2)):
            assert await engine.perform(GiveUpTasks(worker_id, ((claim.task_id, epoch),))) == 0
        assert await state_of(engine, run, "a") == "RUNNING"


async def test_an_attempt_is_limited_checks_and_all(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=1000)
        run = await submit(engine, NewTask(name="a", checks=True, timeout_seconds=10))
        claim = await claim_one(engine, worker)
        clock.advance(6)
        await engine.complete_task(claim.task_id, claim.epoch)
        assert await state_of(engine, run, "a") == "VALIDATING"
        await pass_time(engine, clock, 3)
        assert await state_of(engine, run, "a") == "VALIDATING"
        await pass_time(engine, clock, 2)
        assert await state_of(engine, run, "a") == "FAILED"


async def test_who_asks_for_a_state_gets_no_more_than_who_sends_the_signal(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a", max_attempts=1))
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        assert await state_of(engine, run) == "FAILED"
        result = await engine.request_transition(Kind.TASK, claim.task_id, trigger="resume", reason="once more")
        assert (result.success, result.to_state) == (True, "QUEUED")
        assert await state_of(engine, run) == "RUNNING"
        assert (await claim_and_complete(engine, worker)).epoch == 2
        assert await state_of(engine, run) == "SUCCEEDED"


async def test_an_attempt_that_is_too_old_is_taken_from_a_worker_that_still_beats(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a", reclaim_after_seconds=100))
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 100)
        assert await state_of(engine, run, "a") == "QUEUED"
        assert (await engine.send_heartbeat(worker.id, [(claim.task_id, 1)])).lost == ((claim.task_id, 1),)
        assert (await claim_and_complete(engine, worker)).epoch == 2


# the run as a whole


async def test_a_run_with_retries_of_its_own_reopens_what_failed(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(
            engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)), max_retries=2, backoff=EXACT, timeout_seconds=3000
        )
        await claim_and_complete(engine, worker)
        for number, seconds in ((1, 10), (2, 20)):
            await claim_and_fail(engine, worker)
            retrying = await engine.get_run(run.id)
            assert (retrying.state, retrying.retry_count) == ("RETRYING", number)
            await pass_time(engine, clock, seconds - 0.001)
            await claim_nothing(engine, worker)
            await pass_time(engine, clock, 0.001)
            assert await state_of(engine, run) == "RUNNING"
            assert await states_of(engine, run) == {"a": "SUCCEEDED", "b": "QUEUED"}
        await claim_and_fail(engine, worker)
        assert await path_of(engine, run.id) == ["PENDING", *["RUNNING", "RETRYING"] * 2, "RUNNING", "FAILED"]


async def test_a_run_that_takes_too_long_fails_for_good(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"), max_retries=3, timeout_seconds=600)
        claim = await claim_one(engine, worker)
        await pass_time(engine, clock, 599)
        assert await state_of(engine, run) == "RUNNING"
        await pass_time(engine, clock, 1)
        failed = await engine.get_run(run.id)
        assert (failed.state, message_of(failed)) == ("FAILED", "the run exceeded its timeout")
        await claim_nothing(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch)
        await engine.signal_run(run.id, "retry")
        assert await complete_all(engine, worker) == ["b"]
        assert await state_of(engine, run) == "SUCCEEDED"


@pytest.mark.parametrize("state", ["PENDING", "WAITING", "PAUSED", "RETRYING", "VALIDATING"])
async def test_the_time_of_a_run_is_over_wherever_it_stands(database_url: str, clock: ManualClock, state: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=86400)
        run = await submit(
            engine,
            NewTask(name="a", review=state == "WAITING"),
            timeout_seconds=600,
            checks=True,
            max_retries=1,
            backoff=Backoff(base_seconds=900, jitter=0),
        )
        match state:
            case "WAITING" | "VALIDATING":
                await claim_and_complete(engine, worker)
            case "PAUSED":
                await engine.signal_run(run.id, "pause")
            case "RETRYING":
                await claim_and_fail(engine, worker)
        assert await state_of(engine, run) == state
        await pass_time(engine, clock, 600)
        await pass_time(engine, clock, 900)
        assert await state_of(engine, run) == "FAILED"
        assert message_of(await engine.get_run(run.id)) == "the run exceeded its timeout"


async def test_final_checks_decide_what_becomes_of_a_run(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a"), checks=True, max_retries=1, backoff=EXACT)
        await complete_all(engine, worker)
        assert await state_of(engine, run) == "VALIDATING"
        failed = await engine.signal_run(run.id, "checks_failed", reason="the merge does not build")
        assert (failed.state, message_of(failed)) == ("RETRYING", "the merge does not build")
        await pass_time(engine, clock, 10)
        assert await state_of(engine, run) == "VALIDATING", "its tasks have succeeded; only the checks are run again"
        assert (await engine.signal_run(run.id, "checks_failed")).state == "FAILED"
        await engine.signal_run(run.id, "retry")
        assert await state_of(engine, run) == "VALIDATING"
        assert (await engine.for_tenant(actor="ci").signal_run(run.id, "checks_passed")).state == "SUCCEEDED"
        assert await path_of(engine, run.id) == [
            *["PENDING", "RUNNING", "VALIDATING", "RETRYING", "RUNNING", "VALIDATING", "FAILED"],
            *["RUNNING", "VALIDATING", "SUCCEEDED"],
        ]


async def test_a_run_whose_checks_never_end_is_reported(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=86400)
        run = await submit(engine, NewTask(name="a"), checks=True)
        await complete_all(engine, worker)
        await pass_time(engine, clock, 3601)
        assert [notice.entity_id for notice in await engine.list_notices()] == [run.id]


async def test_nobody_completes_a_run_whose_tasks_have_not_succeeded(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"))
        await claim_and_complete(engine, worker)
        with pytest.raises(PointsmanError):
            await engine.signal_run(run.id, "complete")
        assert await state_of(engine, run) == "RUNNING"


@pytest.mark.parametrize("how", ["fail", "expire"])
async def test_a_failure_that_does_not_matter_is_passed_over(database_url: str, clock: ManualClock, how: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="optional", critical=False), NewTask(name="b", depends_on=("optional",)))
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, how, AttemptReport(error="it broke"))
        assert await complete_all(engine, worker) == ["b"]
        assert await state_of(engine, run) == "SUCCEEDED"
        ended = {"fail": "FAILED", "expire": "TIMED_OUT"}[how]
        assert (await path_of(engine, claim.task_id))[-2:] == [ended, "SKIPPED"], "what happened is not hidden"
        assert message_of(await engine.get_task(claim.task_id)) == "it broke"


async def test_a_run_waits_only_when_nothing_but_people_can_move_it_on(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(
            engine,
            NewTask(name="gate", gate=True),
            NewTask(name="retried", max_retries=1, backoff=EXACT),
            NewTask(name="reviewed", review=True, priority=-1),
        )
        retried = await claim_one(engine, worker)
        reviewed = await claim_one(engine, worker)
        await engine.complete_task(reviewed.task_id, reviewed.epoch)
        await engine.fail_task(retried.task_id, retried.epoch, AttemptReport(error="it broke"))
        assert await state_of(engine, run) == "RUNNING", "a retry comes by itself"
        await pass_time(engine, clock, 10)
        await claim_and_complete(engine, worker)
        assert await state_of(engine, run) == "WAITING"
        await engine.approve_run(run.id)
        assert await state_of(engine, run) == "WAITING", "one person has done, another has not"
        await engine.signal_task(reviewed.task_id, "accept")
        assert await path_of(engine, run.id) == ["PENDING", "RUNNING", "WAITING", "SUCCEEDED"]


async def test_a_refusal_says_which_of_three_cases_it_is(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run, task = await bring_to(engine, worker, "RUNNING")
        for signal, match in (("approve", "is not allowed from here"), ("answer", "Allowed from RUNNING")):
            with pytest.raises(TransitionRefused, match=match) as refused:
                await engine.signal_task(task.id, signal, answer="?")
            assert case_of(refused) is Case.NOT_ALLOWED
        await engine.signal_run(run.id, "cancel")
        with pytest.raises(TransitionRefused, match="Nothing leads out of it") as refused:
            await engine.signal_task(task.id, "retry")
        assert case_of(refused) is Case.TERMINAL


# workers


async def test_a_paused_worker_finishes_what_it_holds_and_claims_nothing(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        await submit(engine, NewTask(name="a"), NewTask(name="b"))
        a = await claim_one(engine, worker)
        assert (await engine.for_tenant(actor="ada").signal_worker(worker.id, "pause")).state == "PAUSED"
        with pytest.raises(WorkerUnavailable, match="PAUSED"):
            await engine.claim_tasks(worker.id, 1)
        assert (await engine.signal_worker(worker.id, "resume")).state == "BUSY"
        await engine.signal_worker(worker.id, "pause")
        await engine.complete_task(a.task_id, a.epoch)
        assert (await engine.get_worker(worker.id)).state == "PAUSED"
        assert (await engine.signal_worker(worker.id, "resume")).state == "IDLE"
        assert await complete_all(engine, worker) == ["b"]
        with pytest.raises(TransitionRefused):
            await engine.signal_worker(worker.id, "resume")


async def test_a_drained_worker_that_holds_nothing_leaves_at_once(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        assert (await engine.signal_worker(worker.id, "drain")).state == "SHUTDOWN"
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id, 1)
        await pass_time(engine, clock, 3600)
        assert (await engine.get_worker(worker.id)).state == "SHUTDOWN"


async def test_a_drained_worker_finishes_its_tasks_and_leaves(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"), NewTask(name="c"))
        a, b = await engine.claim_tasks(worker.id, 2)
        assert (await engine.signal_worker(worker.id, "drain")).state == "DRAINING"
        await engine.complete_task(a.task_id, a.epoch)
        assert (await engine.get_worker(worker.id)).state == "DRAINING"
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id, 1)
        await engine.complete_task(b.task_id, b.epoch)
        assert await path_of(engine, worker.id) == ["INITIALIZING", "IDLE", "BUSY", "DRAINING", "SHUTDOWN"]
        assert await states_of(engine, run) == {"a": "SUCCEEDED", "b": "SUCCEEDED", "c": "QUEUED"}


async def test_a_paused_worker_can_be_drained(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        idle, busy = await register(engine), await register(engine)
        await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, busy)
        for worker, expected in ((idle, "SHUTDOWN"), (busy, "DRAINING")):
            await engine.signal_worker(worker.id, "pause")
            assert (await engine.signal_worker(worker.id, "drain")).state == expected
        await engine.complete_task(claim.task_id, claim.epoch)
        assert (await engine.get_worker(busy.id)).state == "SHUTDOWN"


async def test_a_terminated_worker_loses_its_tasks_to_others(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker, other = await register(engine), await register(engine)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        wanted = await engine.for_tenant(actor="ada").signal_worker(worker.id, "terminate")
        assert (wanted.state, wanted.terminate_wanted) == ("BUSY", True)
        assert (await engine.send_heartbeat(worker.id, [(claim.task_id, 1)])).worker.terminate_wanted
        assert await engine.claim_tasks(other.id) == [], "its process may still run"
        with pytest.raises(WorkerUnavailable):
            await engine.claim_tasks(worker.id)
        ended = await engine.for_tenant(actor="worker").signal_worker(worker.id, "terminate", ended=True)
        assert ended.state == "TERMINATED"
        assert await state_of(engine, run, "a") == "QUEUED"
        assert (await engine.send_heartbeat(worker.id, [(claim.task_id, 1)])).lost == ((claim.task_id, 1),)
        assert (await engine.get_worker(worker.id)).state == "TERMINATED"
        assert (await claim_and_complete(engine, other)).epoch == 2
        with pytest.raises(TransitionRefused) as refused:
            await engine.signal_worker(worker.id, "terminate")
        assert case_of(refused) is Case.ALREADY_THERE


async def test_force_ends_even_a_worker_that_has_left(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        left, broken = await register(engine), await register(engine)
        await engine.signal_worker(left.id, "drain")
        await engine.signal_worker(broken.id, "fail", reason="no disk")
        for worker in (left, broken):
            assert (await engine.signal_worker(worker.id, "terminate")).state == "TERMINATED"


async def test_a_worker_with_an_error_that_it_cannot_survive_fails_and_its_tasks_go_on(
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker, other = await register(engine), await register(engine)
        run = await submit(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        with pytest.raises(TransitionRefused):
            await engine.signal_worker(worker.id, "fail", reason="a hiccup", retryable=True)
        assert (await engine.get_worker(worker.id)).state == "BUSY"
        failed = await engine.signal_worker(worker.id, "fail", reason="no disk")
        assert (failed.state, failed.error) == ("FAILED", "no disk")
        assert await state_of(engine, run, "a") == "QUEUED"
        assert (await claim_and_complete(engine, other)).epoch == 2


async def test_a_silent_worker_recovers_with_its_next_heartbeat(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        await pass_time(engine, clock, LEASE + 1)
        assert (await engine.get_worker(worker.id)).state == "UNRESPONSIVE"
        assert (await engine.send_heartbeat(worker.id)).worker.state == "IDLE"
        await submit(engine, NewTask(name="a"))
        assert await complete_all(engine, worker) == ["a"]
        await pass_time(engine, clock, LEASE * 5)
        assert (await path_of(engine, worker.id))[-2:] == ["IDLE", "UNRESPONSIVE"]


async def test_a_claim_is_a_sign_of_life_too(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        await pass_time(engine, clock, LEASE + 1)
        assert (await engine.get_worker(worker.id)).state == "UNRESPONSIVE"
        assert await engine.claim_tasks(worker.id) == []
        assert (await engine.get_worker(worker.id)).state == "IDLE"


async def test_a_worker_that_stays_silent_is_not_waited_for(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        await pass_time(engine, clock, LEASE + 1)
        await pass_time(engine, clock, LEASE * 8)
        assert (await engine.get_worker(worker.id)).state == "UNRESPONSIVE"
        await pass_time(engine, clock, LEASE)
        assert (await engine.get_worker(worker.id)).state == "SHUTDOWN"
        assert (await engine.send_heartbeat(worker.id)).worker.state == "SHUTDOWN", "who has been given up registers anew"


@pytest.mark.parametrize(("signal", "expected"), [("pause", "PAUSED"), ("drain", "SHUTDOWN")])
async def test_what_people_wanted_of_a_worker_holds_when_it_comes_back(
    database_url: str, clock: ManualClock, signal: str, expected: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=LEASE)
        run = await submit(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        await engine.signal_worker(worker.id, signal)
        await pass_time(engine, clock, LEASE + 1)
        assert (await engine.get_worker(worker.id)).state == "UNRESPONSIVE"
        assert await state_of(engine, run, "a") == "QUEUED"
        assert (await engine.send_heartbeat(worker.id)).worker.state == expected


async def test_a_worker_gets_only_what_it_can_do(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        plain = await register(engine, slots=9)
        gpu = await register(engine, slots=9, capabilities=("gpu", "linux"))
        await submit(
            engine,
            NewTask(name="any"),
            NewTask(name="gpu", capabilities=("gpu",)),
            NewTask(name="both", capabilities=("linux", "gpu")),
            NewTask(name="none", capabilities=("gpu", "windows")),
        )
        assert [claim.name for claim in await engine.claim_tasks(plain.id, 9)] == ["any"]
        assert [claim.name for claim in await engine.claim_tasks(gpu.id, 9)] == ["gpu", "both"]


async def test_a_worker_gets_no_more_than_it_has_slots_for(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=3)
        await submit(engine, *(NewTask(name=f"t{n}") for n in range(5)))
        claims = await engine.claim_tasks(worker.id, 2)
        claims += await engine.claim_tasks(worker.id, 9)
        assert [claim.name for claim in claims] == ["t0", "t1", "t2"]
        await claim_nothing(engine, worker)
        await engine.complete_task(claims[0].task_id, claims[0].epoch)
        assert [claim.name for claim in await engine.claim_tasks(worker.id, 9)] == ["t3"]
        for claim in claims[1:]:
            await engine.complete_task(claim.task_id, claim.epoch)
        assert await complete_all(engine, worker) == ["t4"]
        assert await path_of(engine, worker.id) == ["INITIALIZING", "IDLE", "BUSY"], "t3 is still with it"


async def test_no_two_workers_get_the_same_task(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        workers = [await register(engine, slots=2) for _ in range(4)]
        await submit(engine, *(NewTask(name=f"t{n}") for n in range(6)))
        claimed = await asyncio.gather(*(engine.claim_tasks(worker.id, 2) for worker in workers))
        names = [claim.name for claims in claimed for claim in claims]
        assert sorted(names) == [f"t{n}" for n in range(6)]


@pytest.mark.parametrize("news", ["submission", "completion", "approval", "resumption", "room in a budget", "retry", "loss"])
async def test_who_waits_for_work_hears_of_it_at_once(database_url: str, clock: ManualClock, news: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        busy = await register(engine, slots=2, capabilities=("busy",))
        waiting = await register(engine, lease_seconds=86400)
        await submit(engine, NewTask(name="keeps a worker busy", capabilities=("busy",)))
        await claim_one(engine, busy)
        tasks: dict[str, list[NewTask]] = {
            "completion": [NewTask(name="a"), NewTask(name="wanted", depends_on=("a",))],
            "approval": [NewTask(name="a", gate=True), NewTask(name="wanted", depends_on=("a",))],
            "room in a budget": [NewTask(name="a", budget_usd=usd(9)), NewTask(name="wanted", budget_usd=usd(9))],
            "retry": [NewTask(name="wanted", max_retries=1, backoff=EXACT)],
        }
        run = await submit(
            engine, *tasks.get(news, [NewTask(name="wanted")]), budget_usd=usd(10), autostart=news != "submission"
        )
        match news:
            case "completion" | "room in a budget" | "loss":
                held = await claim_one(engine, busy)
            case "retry":
                await claim_and_fail(engine, busy)
            case "resumption":
                await engine.signal_run(run.id, "pause")
        claiming = asyncio.create_task(engine.claim_tasks(waiting.id, 1, wait_seconds=60))
        for _ in range(2):  # The first lets the claim be asked for, the second is answered after it.
            await engine.send_heartbeat(waiting.id)
        assert not claiming.done()
        match news:
            case "submission":
                await submit(engine, NewTask(name="wanted"))
            case "completion" | "room in a budget":
                await engine.complete_task(held.task_id, held.epoch)
            case "approval":
                await engine.approve_run(run.id)
            case "resumption":
                await engine.signal_run(run.id, "resume")
            case "retry":
                await pass_time(engine, clock, 10)
            case "loss":
                await pass_time(engine, clock, LEASE + 1)
        (claim,) = await asyncio.wait_for(claiming, timeout=5)
        assert claim.name == "wanted"


async def test_another_tenant_sees_nothing_gets_nothing_and_moves_nothing(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock, tenants=("default", "other")) as engine:
        worker = await register(engine)
        stranger = await register(engine.for_tenant("other"))
        run = await submit(engine, NewTask(name="a"))
        assert await engine.for_tenant("other").claim_tasks(stranger.id, 1) == []
        claim = await claim_one(engine, worker)
        before = await read_stream(engine)
        attempts: list[Awaitable[Any]] = [
            engine.for_tenant("other").get_run(run.id),
            engine.for_tenant("other").get_task(claim.task_id),
            engine.for_tenant("other").get_worker(worker.id),
            engine.for_tenant("other").list_tasks(run.id),
            engine.for_tenant("other").list_attempts(claim.task_id),
            engine.for_tenant("other").signal_run(run.id, "cancel"),
            engine.for_tenant("other").approve_run(run.id),
            engine.for_tenant("other").set_budget(run.id, usd(1)),
            engine.for_tenant("other").add_tasks(run.id, [NewTask(name="b")]),
            engine.for_tenant("other").signal_task(claim.task_id, "cancel"),
            engine.for_tenant("other").complete_task(claim.task_id, claim.epoch),
            engine.for_tenant("other").fail_task(claim.task_id, claim.epoch, AttemptReport(error="no")),
            engine.for_tenant("other").report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=usd(1))),
            engine.for_tenant("other").signal_worker(worker.id, "terminate"),
            engine.for_tenant("other").claim_tasks(worker.id, 1),
            engine.for_tenant("other").send_heartbeat(worker.id),
            engine.for_tenant("other").request_transition(Kind.RUN, run.id, to_state="CANCELED"),
        ]
        for attempt in attempts:
            with pytest.raises(NotFound) as hidden:
                await attempt
            assert hidden.value.name in str(hidden.value)
        assert await engine.for_tenant("other").list_runs() == []
        for ask in (
            engine.for_tenant("other").list_history(claim.task_id),
            engine.for_tenant("other").list_dependencies(run.id),
        ):
            with pytest.raises(NotFound):
                await ask
        assert {event.entity_id for event in await read_stream(engine, "other")} == {stranger.id}
        beat = await engine.for_tenant("other").send_heartbeat(stranger.id, [(claim.task_id, claim.epoch)])
        assert beat.lost == ((claim.task_id, claim.epoch),), "exactly as if there were no such task"
        assert await read_stream(engine) == before
        with pytest.raises(NotFound) as unknown:
            await engine.for_tenant("other").get_run("run_of_nobody")
        with pytest.raises(NotFound) as foreign:
            await engine.for_tenant("other").get_run(run.id)
        assert str(unknown.value).replace("run_of_nobody", "?") == str(foreign.value).replace(run.id, "?")


# all together


async def test_everything_of_every_document_works_together_in_one_run(  # noqa: PLR0915 - one long story
    database_url: str, clock: ManualClock
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=10, lease_seconds=3600, capabilities=("agent",))
        mortal = await register(engine, lease_seconds=LEASE, capabilities=("mortal",))
        await engine.declare_tool("compiler", failure_threshold=2, cooldown_seconds=60)
        run = await submit(
            engine,
            NewTask(name="retried", max_retries=2, backoff=EXACT, tool="compiler"),
            NewTask(name="orphaned", capabilities=("mortal",), priority=1),
            NewTask(name="checked", checks=True, depends_on=("retried",)),
            NewTask(name="agent", capabilities=("agent",), review=True, budget_usd=usd(5), timeout_seconds=300),
            NewTask(name="optional", critical=False, depends_on=("checked",)),
            NewTask(name="gate", gate=True, depends_on=("checked", "agent", "optional", "orphaned"), approval_seconds=86400),
            NewTask(name="ship", depends_on=("gate",), priority=10),
            checks=True,
            budget_usd=usd(20),
            timeout_seconds=86400,
            max_retries=1,
            backoff=EXACT,
        )
        # 001 and 002: a worker dies, a tool fails until its breaker opens, and both are recovered from.
        orphaned = await claim_one(engine, mortal)
        held = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 10)}
        assert set(held) == {"retried", "agent"}
        await engine.fail_task(held["retried"].task_id, 1, AttemptReport(error="segmentation fault", exit_code=139))
        await pass_time(engine, clock, 10)
        await claim_and_fail(engine, worker, "segmentation fault")
        assert (await engine.get_breaker("compiler")).state == "OPEN"
        await pass_time(engine, clock, 25)
        assert await state_of(engine, run, "orphaned") == "QUEUED"
        assert await state_of(engine, run, "retried") == "QUEUED"
        assert (await engine.send_heartbeat(mortal.id, [(orphaned.task_id, 1)])).lost == ((orphaned.task_id, 1),)
        await claim_and_complete(engine, mortal)
        await claim_nothing(engine, worker)
        await pass_time(engine, clock, 35)
        await claim_and_complete(engine, worker, exit_code=0)
        assert (await engine.get_breaker("compiler")).state == "CLOSED"
        # 004: the agent asks, splits its work, is sent back, and is accepted.
        agent = held["agent"]
        await engine.report_attempt(
            agent.task_id, agent.epoch, "ask", AttemptReport(question="tabs or spaces?", session_id="s-1", cost_usd=usd(1))
        )
        await engine.signal_task(agent.task_id, "answer", answer="spaces")
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 10)}
        assert set(claims) == {"checked", "agent"}
        agent = claims["agent"]
        assert (agent.session_id, agent.answer, agent.budget_usd) == ("s-1", "spaces", usd(4))
        await engine.add_tasks(run.id, [NewTask(name="part", parent="agent")])
        await engine.complete_task(agent.task_id, agent.epoch, AttemptReport(cost_usd=usd(2)))
        assert await state_of(engine, run, "agent") == "BLOCKED"
        assert (await claim_and_complete(engine, worker)).name == "part"
        await engine.signal_task(agent.task_id, "reject", comment="shorter")
        again = await claim_and_complete(engine, worker, cost_usd=usd(1))
        assert (again.name, again.comment) == ("agent", "shorter")
        await engine.signal_task(agent.task_id, "accept")
        # 002 and 003: checks pass, an optional task fails, the gate opens, a paused run stays where it is.
        checked = claims["checked"]
        await engine.complete_task(checked.task_id, checked.epoch)
        await engine.report_attempt(checked.task_id, checked.epoch, "checks_passed")
        await claim_and_fail(engine, worker)
        assert await state_of(engine, run) == "WAITING"
        await engine.signal_run(run.id, "pause")
        await engine.approve_run(run.id)
        await claim_nothing(engine, worker)
        await engine.signal_run(run.id, "resume")
        await claim_and_fail(engine, worker, "the server is away")
        assert await state_of(engine, run) == "RETRYING"
        await pass_time(engine, clock, 10)
        await claim_and_complete(engine, worker)
        # The final checks, and the end.
        assert await state_of(engine, run) == "VALIDATING"
        await engine.signal_run(run.id, "checks_passed")
        assert await states_of(engine, run) == {
            "retried": "SUCCEEDED",
            "orphaned": "SUCCEEDED",
            "checked": "SUCCEEDED",
            "agent": "SUCCEEDED",
            "optional": "SKIPPED",
            "gate": "SUCCEEDED",
            "ship": "SUCCEEDED",
            "part": "SUCCEEDED",
        }
        ended = await engine.get_run(run.id)
        assert (ended.state, ended.spent_usd, ended.reserved_usd) == ("SUCCEEDED", usd(4), usd(0))
        assert await path_of(engine, run.id) == [
            *["PENDING", "RUNNING", "WAITING", "PAUSED", "RUNNING", "RETRYING", "RUNNING", "VALIDATING", "SUCCEEDED"]
        ]
        assert (await engine.signal_worker(worker.id, "drain")).state == "SHUTDOWN"


async def test_nobody_decides_in_a_run_that_has_ended(database_url: str, clock: ManualClock) -> None:
    """A retry reopens the run; then its gate, its review and its question are decided."""
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, slots=3)
        new = (
            NewTask(name="gate", gate=True),
            NewTask(name="review", review=True),
            NewTask(name="asks"),
            NewTask(name="fails"),
        )
        run = await submit(engine, *new)
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 3)}
        await engine.complete_task(claims["review"].task_id, 1)
        await engine.report_attempt(claims["asks"].task_id, 1, "ask", AttemptReport(question="which?", session_id="s1"))
        await engine.fail_task(claims["fails"].task_id, 1)
        assert await state_of(engine, run) == "FAILED"
        gate, review, asks = [await task_of(engine, run, name) for name in ("gate", "review", "asks")]
        decisions = ((gate, "approve"), (gate, "reject"), (review, "accept"), (review, "reject"), (asks, "answer"))
        for task, signal in decisions:
            with pytest.raises(TransitionRefused, match=f"FAILED.*'{signal}'"):
                await engine.signal_task(task.id, signal, answer="this" if signal == "answer" else None)
        with pytest.raises(TransitionRefused, match=r"FAILED.*'approve'"):
            await engine.approve_run(run.id)
        waiting = [await state_of(engine, run, task.name) for task in (gate, review, asks)]
        assert waiting == ["WAITING_APPROVAL", "READY", "BLOCKED"]
        await engine.signal_run(run.id, "retry")
        await engine.approve_run(run.id)
        await engine.signal_task(review.id, "accept")
        await engine.signal_task(asks.id, "answer", answer="this")
        for claim in await engine.claim_tasks(worker.id, 3):
            await engine.complete_task(claim.task_id, claim.epoch)
        assert await state_of(engine, run) == "SUCCEEDED"


@pytest.mark.parametrize("end", ["its task ends", "its lease runs out"])
async def test_a_worker_that_says_nothing_is_terminated_when_nothing_of_it_can_run(
    database_url: str, clock: ManualClock, end: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=30)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        await engine.signal_worker(worker.id, "terminate")
        await pass_time(engine, clock, 20)
        assert await state_of(engine, run, "a") == "RUNNING"
        if end == "its task ends":
            await engine.complete_task(claim.task_id, claim.epoch)
        else:
            await pass_time(engine, clock, 20)
        assert (await engine.get_worker(worker.id)).state == "TERMINATED"
        assert await state_of(engine, run, "a") == ("SUCCEEDED" if end == "its task ends" else "QUEUED")

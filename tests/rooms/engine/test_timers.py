"""What is to happen at an instant happens then, once, whoever looks after it and however often."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

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

from pointsman import app
from pointsman.engine import workers as workers_of_engine
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.work import Work
from pointsman.store.rows import Worker

ROOT = Path(__file__).parents[3]
FOREVER = 1_000_000.0
"""A lease that does not end while a test looks at something else."""
TEN_SECONDS = Backoff(base_seconds=10, jitter=0)

KEEPER = """
import asyncio, sys
from pointsman import app
from pointsman.engine.operations.attempts import AttemptReport

async def main(url):
    async with app.open(url, keeps=True):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(sys.argv[1]))
"""
"""Another program that looks after things until it is told to end."""


class Case:
    """Something that a timer is set for: whom it concerns, how long it takes, and the way that leads through it."""

    def __init__(self, entity_id: str, seconds: float, path: list[str], *, notices: int = 0) -> None:
        self.entity_id = entity_id
        self.seconds = seconds
        self.path = path
        self.notices = notices


async def retry(engine: Engine) -> Case:
    run = await submit(engine, NewTask(name="a", max_retries=2, backoff=TEN_SECONDS))
    claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
    return Case((await task_of(engine, run, "a")).id, 10, ["PENDING", "QUEUED", "RUNNING", "RETRYING", "QUEUED"])


async def timeout(engine: Engine) -> Case:
    await submit(engine, NewTask(name="a", timeout_seconds=30))
    claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    return Case(claim.task_id, 30, ["PENDING", "QUEUED", "RUNNING", "TIMED_OUT"])


async def timeout_with_a_retry(engine: Engine) -> Case:
    await submit(engine, NewTask(name="a", timeout_seconds=30, max_retries=1, backoff=TEN_SECONDS))
    claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    return Case(claim.task_id, 30, ["PENDING", "QUEUED", "RUNNING", "RETRYING"])


async def reclaim(engine: Engine) -> Case:
    await submit(engine, NewTask(name="a", reclaim_after_seconds=30))
    claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    return Case(claim.task_id, 30, ["PENDING", "QUEUED", "RUNNING", "QUEUED"])


async def approval(engine: Engine) -> Case:
    run = await submit(engine, NewTask(name="gate", gate=True, approval_seconds=60))
    return Case((await task_of(engine, run, "gate")).id, 60, ["PENDING", "WAITING_APPROVAL", "FAILED"])


async def cooldown(engine: Engine) -> Case:
    await engine.declare_tool("compiler", failure_threshold=1, cooldown_seconds=45)
    await submit(engine, NewTask(name="a", tool="compiler"))
    claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
    return Case((await engine.get_breaker("compiler")).id, 45, ["CLOSED", "OPEN", "HALF_OPEN"])


async def overstay(engine: Engine) -> Case:
    await submit(engine, NewTask(name="a", checks=True))
    claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    await engine.complete_task(claim.task_id, claim.epoch)
    return Case(claim.task_id, 15 * 60, ["PENDING", "QUEUED", "RUNNING", "VALIDATING"], notices=1)


async def deadline(engine: Engine) -> Case:
    run = await submit(engine, NewTask(name="a"), timeout_seconds=100)
    await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    return Case(run.id, 100, ["PENDING", "RUNNING", "FAILED"])


async def deadline_of_a_run_that_never_began(engine: Engine) -> Case:
    run = await submit(engine, NewTask(name="a"), timeout_seconds=100)
    return Case(run.id, 100, ["PENDING", "RUNNING", "FAILED"])


async def retry_of_a_run(engine: Engine) -> Case:
    run = await submit(engine, NewTask(name="a"), max_retries=1, backoff=TEN_SECONDS)
    claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
    return Case(run.id, 10, ["PENDING", "RUNNING", "RETRYING", "RUNNING"])


async def silence(engine: Engine) -> Case:
    await submit(engine, NewTask(name="a"))
    worker = await register(engine, lease_seconds=30)
    await claim_one(engine, worker)
    return Case(worker.id, 30.001, ["INITIALIZING", "IDLE", "BUSY", "UNRESPONSIVE"])


async def expiry(engine: Engine) -> Case:
    worker = await register(engine, lease_seconds=30)
    return Case(worker.id, 300, ["INITIALIZING", "IDLE", "UNRESPONSIVE", "SHUTDOWN"])


CASES: list[Callable[[Engine], Awaitable[Case]]] = [
    retry,
    timeout,
    timeout_with_a_retry,
    reclaim,
    approval,
    cooldown,
    overstay,
    deadline,
    deadline_of_a_run_that_never_began,
    retry_of_a_run,
    silence,
    expiry,
]
for_each_case = pytest.mark.parametrize("prepare", CASES, ids=lambda prepare: prepare.__name__)


@asynccontextmanager
async def open_engines(url: str, clock: ManualClock, count: int) -> AsyncIterator[list[Engine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_engine(url, clock, seed=seed)) for seed in range(count)]


async def tend_together(engines: list[Engine]) -> None:
    """All of them at the same time, until none finds anything to do."""
    while any(await asyncio.gather(*(engine.tend() for engine in engines))):
        pass


async def count_disagreements(engine: Engine) -> int:
    return len([each for each in await engine.diagnose() if each.subject == "disagreement"])


@for_each_case
async def test_it_happens_once_whoever_looks_after_it(
    database_url: str, clock: ManualClock, prepare: Callable[[Engine], Awaitable[Case]]
) -> None:
    async with open_engines(database_url, clock, 4) as engines:
        case = await prepare(engines[0])
        before = await path_of(engines[0], case.entity_id)
        clock.advance(case.seconds - 0.5)
        await tend_together(engines)
        early = await path_of(engines[1], case.entity_id)
        # An expiry has two parts: the silence is noticed long before.
        assert early == before or (prepare is expiry and early == case.path[:-1])
        assert await engines[0].list_notices() == []
        clock.advance(0.5)
        await tend_together(engines)
        for _ in range(2):
            assert await path_of(engines[1], case.entity_id) == case.path
            assert len(await engines[2].list_notices()) == case.notices
            await tend_together(engines)
        assert await count_disagreements(engines[0]) == 0


@for_each_case
async def test_it_happens_after_closing_and_opening_again(
    database_url: str, clock: ManualClock, prepare: Callable[[Engine], Awaitable[Case]]
) -> None:
    async with open_engine(database_url, clock) as engine:
        case = await prepare(engine)
    clock.advance(case.seconds * 3)
    async with open_engine(database_url, clock, seed=2) as engine:
        await tend_together([engine])
        path = await path_of(engine, case.entity_id)
        # So much later, the silence of the worker that held it is over as well.
        assert path[: len(case.path)] == case.path
        assert len(await engine.list_notices()) == case.notices


async def test_many_timers_that_are_due_together_fire_once_each(database_url: str, clock: ManualClock) -> None:
    """More than one batch of them, and four who take what they find."""
    async with open_engines(database_url, clock, 4) as engines:
        tasks = [NewTask(name=f"task {number}", gate=True, approval_seconds=60) for number in range(300)]
        run = await engines[0].submit_run(NewRun(name="gates", tasks=tuple(tasks), lifecycle="standard"))
        clock.advance(60)
        await tend_together(engines)
        for task in await engines[0].list_tasks(run.id):
            path = await path_of(engines[0], task.id)
            assert path == ["PENDING", "WAITING_APPROVAL", "FAILED"], task.name
        assert await path_of(engines[0], run.id) == ["PENDING", "RUNNING", "WAITING", "FAILED"]
        with prompt(database_url) as somebody:
            assert somebody.ask("SELECT count(*) FROM timer") == [(0,)]


async def test_a_lost_task_is_counted_once(database_url: str, clock: ManualClock) -> None:
    async with open_engines(database_url, clock, 4) as engines:
        await submit(engines[0], NewTask(name="a", max_reclaims=2))
        worker = await register(engines[0])
        claim = await claim_one(engines[0], worker)
        clock.advance(31)
        await tend_together(engines)
        task = await engines[0].get_task(claim.task_id)
        assert (task.state, task.reclaim_count, task.epoch) == ("QUEUED", 1, 1)


async def test_the_half_open_breaker_lets_one_probe_through(database_url: str, clock: ManualClock) -> None:
    async with open_engines(database_url, clock, 4) as engines:
        await engines[0].declare_tool("compiler", failure_threshold=1, cooldown_seconds=45)
        for number in range(6):
            await submit(engines[0], NewTask(name=f"task {number}", tool="compiler"))
        workers = [await register(engine, lease_seconds=FOREVER) for engine in engines]
        claim = await claim_one(engines[0], workers[0])
        await engines[0].fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        pairs = list(zip(engines, workers, strict=True))
        assert not any(await asyncio.gather(*(engine.claim_tasks(worker.id) for engine, worker in pairs)))
        clock.advance(45)
        await tend_together(engines)
        claims = await asyncio.gather(*(engine.claim_tasks(worker.id) for engine, worker in pairs))
        assert sum(len(each) for each in claims) <= 1
        # Those who came too early look again when they are woken.
        claims += await asyncio.gather(*(engine.claim_tasks(worker.id) for engine, worker in pairs))
        assert sum(len(each) for each in claims) == 1


# timers that are out of date


async def move_on_from_retry(engine: Engine, case: Case) -> list[str]:
    await engine.signal_task(case.entity_id, "skip")
    return [*case.path[:-1], "SKIPPED"]


async def move_on_from_timeout(engine: Engine, case: Case) -> list[str]:
    await engine.complete_task(case.entity_id, 1)
    return [*case.path[:-1], "SUCCEEDED"]


async def move_on_from_approval(engine: Engine, case: Case) -> list[str]:
    await engine.signal_task(case.entity_id, "approve")
    return [*case.path[:-1], "SUCCEEDED"]


async def move_on_from_cooldown(engine: Engine, case: Case) -> list[str]:
    await engine.reset_breaker("compiler")
    return [*case.path[:-1], "CLOSED"]


async def move_on_from_overstay(engine: Engine, case: Case) -> list[str]:
    await engine.report_attempt(case.entity_id, 1, "checks_passed")
    return [*case.path, "SUCCEEDED"]


async def move_on_from_deadline(engine: Engine, case: Case) -> list[str]:
    await engine.signal_run(case.entity_id, "cancel")
    return [*case.path[:-1], "CANCELED"]


async def move_on_from_silence(engine: Engine, case: Case) -> list[str]:
    await engine.send_heartbeat(case.entity_id)
    return case.path[:-1]


OUT_OF_DATE = [
    (retry, move_on_from_retry),
    (timeout, move_on_from_timeout),
    (reclaim, move_on_from_timeout),
    (approval, move_on_from_approval),
    (cooldown, move_on_from_cooldown),
    (overstay, move_on_from_overstay),
    (deadline, move_on_from_deadline),
    (retry_of_a_run, move_on_from_deadline),
    (silence, move_on_from_silence),
]


@pytest.mark.parametrize(("prepare", "move_on"), OUT_OF_DATE, ids=[prepare.__name__ for prepare, _ in OUT_OF_DATE])
async def test_what_has_moved_on_is_left_alone(
    database_url: str,
    clock: ManualClock,
    prepare: Callable[[Engine], Awaitable[Case]],
    move_on: Callable[[Engine, Case], Awaitable[list[str]]],
) -> None:
    async with open_engines(database_url, clock, 2) as engines:
        case = await prepare(engines[0])
        clock.advance(case.seconds - 1)
        path = await move_on(engines[1], case)
        clock.advance(1.5)
        await tend_together(engines)
        assert await path_of(engines[0], case.entity_id) == path
        assert await engines[0].list_notices() == []


@for_each_case
async def test_a_timer_for_a_place_that_was_left_does_nothing(
    database_url: str, clock: ManualClock, prepare: Callable[[Engine], Awaitable[Case]]
) -> None:
    """However it came to be there: a timer says which move it belongs to."""
    async with open_engine(database_url, clock) as engine:
        case = await prepare(engine)
        path = await path_of(engine, case.entity_id)
        with prompt(database_url) as somebody:
            somebody.ask(
                "UPDATE timer SET revision = revision - 1, due_at = :due_at WHERE entity_id = :id AND purpose <> 'deadline'",
                due_at=clock.now() - timedelta(seconds=1),
                id=case.entity_id,
            )
            await tend_together([engine])
            assert await path_of(engine, case.entity_id) == path
            assert await engine.list_notices() == []
            left = somebody.ask("SELECT purpose FROM timer WHERE entity_id = :id", id=case.entity_id)
            assert left in ([], [("deadline",)]), "it was taken, once"


async def test_a_timer_for_nobody_is_thrown_away(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        with prompt(database_url) as somebody:
            for kind in ("run", "task", "worker", "breaker"):
                somebody.ask(
                    "INSERT INTO timer (entity_id, purpose, kind, tenant, run_id, revision, due_at)"
                    " VALUES (:id, 'retry', :kind, 'default', NULL, 0, :due_at)",
                    id=f"{kind}_of_nobody",
                    kind=kind,
                    due_at=clock.now(),
                )
            assert await engine.tend() == 4
            assert somebody.ask("SELECT count(*) FROM timer") == [(0,)]


async def test_a_timer_that_nobody_knows_the_purpose_of_is_thrown_away(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        task = await task_of(engine, run, "a")
        with prompt(database_url) as somebody:
            somebody.ask(
                "INSERT INTO timer (entity_id, purpose, kind, tenant, run_id, revision, due_at)"
                " VALUES (:id, 'tea', 'task', 'default', :run_id, :revision, :due_at)",
                id=task.id,
                run_id=run.id,
                revision=task.revision,
                due_at=clock.now(),
            )
        assert await engine.tend() == 1
        assert await engine.get_task(task.id) == task


async def test_a_deadline_outlives_what_happens_in_between(database_url: str, clock: ManualClock) -> None:
    """It belongs to the whole run: neither a pause nor a retry of the run moves it."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), timeout_seconds=100, max_retries=1, backoff=TEN_SECONDS)
        worker = await register(engine, lease_seconds=FOREVER)
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        await pass_time(engine, clock, 10)
        assert await state_of(engine, run) == "RUNNING"
        await engine.signal_run(run.id, "pause")
        await engine.signal_run(run.id, "resume")
        await pass_time(engine, clock, 89)
        assert await state_of(engine, run) == "RUNNING"
        await pass_time(engine, clock, 1)
        assert await state_of(engine, run) == "FAILED"


async def test_the_deadline_of_a_run_that_is_paused_counts_too(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), timeout_seconds=100)
        await engine.signal_run(run.id, "pause")
        await pass_time(engine, clock, 100)
        assert (await engine.get_run(run.id)).phase == "done"


async def test_retries_wait_longer_each_time(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", max_retries=3, backoff=Backoff(base_seconds=2, factor=3, jitter=0)))
        worker = await register(engine, lease_seconds=FOREVER)
        for delay in (2, 6, 18):
            claim = await claim_one(engine, worker)
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
            await pass_time(engine, clock, delay - 0.001)
            assert await state_of(engine, run, "a") == "RETRYING"
            await pass_time(engine, clock, 0.001)
            assert await state_of(engine, run, "a") == "QUEUED"


async def test_a_usage_limit_waits_for_its_instant_with_several_engines(database_url: str, clock: ManualClock) -> None:
    async with open_engines(database_url, clock, 3) as engines:
        await submit(engines[0], NewTask(name="a"))
        worker = await register(engines[0], lease_seconds=FOREVER)
        claim = await claim_one(engines[0], worker)
        report = AttemptReport(error="come back later", usage_limit_until=clock.now() + timedelta(hours=5))
        await engines[0].report_attempt(claim.task_id, claim.epoch, "interrupt", report)
        clock.advance(5 * 3600 - 1)
        await tend_together(engines)
        assert await engines[1].claim_tasks(worker.id) == []
        clock.advance(1)
        await tend_together(engines)
        assert (await claim_one(engines[2], worker)).epoch == 2


async def test_a_step_of_a_pipeline_waits_where_it_can_be_claimed(database_url: str, clock: ManualClock) -> None:
    """Its machine has no move for the end of a delay: until then nobody may claim it."""
    async with open_engines(database_url, clock, 3) as engines:
        run = await submit(engines[0], NewTask(name="a", max_retries=1, backoff=TEN_SECONDS), lifecycle="pipeline")
        worker = await register(engines[0], lease_seconds=FOREVER)
        claim = await claim_one(engines[0], worker)
        await engines[0].fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        assert await engines[0].claim_tasks(worker.id) == []
        clock.advance(10)
        await tend_together(engines)
        again = await claim_one(engines[1], worker)
        assert (again.task_id, again.epoch) == (claim.task_id, 2)
        assert await path_of(engines[0], claim.task_id) == [
            "S_PENDING",
            "S_RUNNING",
            "S_FAILED",
            "S_RETRYING",
            "S_RUNNING",
        ]
        assert (await engines[0].get_run(run.id)).phase == "active"


# without being asked


async def fail_once(engine: Engine, count: int) -> list[str]:
    """Tasks that are to be tried again in a moment."""
    retried = Backoff(base_seconds=0.3, jitter=0)
    await submit(engine, *(NewTask(name=f"task {number}", max_retries=1, backoff=retried) for number in range(count)))
    worker = await engine.register_worker("bob", max_concurrent_tasks=count, lease_seconds=60)
    claims = await engine.claim_tasks(worker.id, count)
    await asyncio.gather(*(engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck")) for claim in claims))
    return [claim.task_id for claim in claims]


async def claim_again(engine: Engine, count: int) -> None:
    worker = await engine.register_worker("alice", max_concurrent_tasks=count)
    claimed = 0
    async with asyncio.timeout(20):
        while claimed < count:
            claimed += len(await engine.claim_tasks(worker.id, count, wait_seconds=15))


async def test_the_keeper_retries_by_itself(database_url: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        (task_id,) = await fail_once(engine, 1)
        await claim_again(engine, 1)
        assert await path_of(engine, task_id) == ["PENDING", "QUEUED", "RUNNING", "RETRYING", "QUEUED", "RUNNING"]


async def test_a_keeper_that_sleeps_is_woken_by_an_earlier_timer_of_somebody_else(database_url: str) -> None:
    async with app.open(database_url, keeps=True), app.open(database_url, keeps=False) as engine:
        await fail_once(engine, 1)
        await claim_again(engine, 1)


async def test_the_keeper_notices_a_worker_that_falls_silent(database_url: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        await submit(engine, NewTask(name="a"))
        worker = await engine.register_worker("bob", lease_seconds=0.3)
        first = await claim_one(engine, worker)
        alice = await engine.register_worker("alice")
        (again,) = await asyncio.wait_for(engine.claim_tasks(alice.id, wait_seconds=15), 20)
        assert (again.task_id, again.epoch) == (first.task_id, 2)


def start(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KEEPER, url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


async def test_several_processes_that_keep_fire_each_timer_once(database_url: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        keepers = [await asyncio.to_thread(start, database_url) for _ in range(2)]
        try:
            for keeper in keepers:
                assert keeper.stdout
                assert await asyncio.wait_for(asyncio.to_thread(keeper.stdout.readline), 20) == "ready\n"
            task_ids = await fail_once(engine, 40)
            await claim_again(engine, 40)
            for task_id in task_ids:
                path = await path_of(engine, task_id)
                assert path == ["PENDING", "QUEUED", "RUNNING", "RETRYING", "QUEUED", "RUNNING"]
            for keeper in keepers:
                await asyncio.to_thread(keeper.communicate, "end\n", 20)
                assert keeper.returncode == 0
        finally:
            for keeper in keepers:
                keeper.kill()
                await asyncio.to_thread(keeper.communicate)
        assert await count_disagreements(engine) == 0


async def test_whoever_waits_for_work_is_not_silent(database_url: str) -> None:
    """The lease is much shorter than the wait, and the keeper is awake."""
    async with app.open(database_url) as engine:
        worker = await engine.register_worker("idle", lease_seconds=0.6)
        assert await engine.claim_tasks(worker.id, wait_seconds=2.0) == []
        assert (await engine.get_worker(worker.id)).state == "IDLE"
        assert [move.to_state for move in await engine.list_history(worker.id)] == ["INITIALIZING", "IDLE"]


async def test_one_that_cannot_be_dealt_with_does_not_keep_the_others_waiting(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(database_url, clock) as engine:
        workers = [await register(engine, lease_seconds=10) for _ in range(3)]
        miss = workers_of_engine.miss

        def stumble(work: Work, worker: Worker) -> None:
            if worker.id == workers[0].id:
                raise ZeroDivisionError
            miss(work, worker)

        monkeypatch.setattr(workers_of_engine, "miss", stumble)
        clock.advance(11)
        assert await engine.tend()
        assert [(await engine.get_worker(each.id)).state for each in workers] == ["IDLE", "UNRESPONSIVE", "UNRESPONSIVE"]

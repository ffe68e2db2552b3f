"""What a tool bears: so many attempts at once, and so many beginnings in a stretch of time, whoever wants more."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, pass_time, register, state_of, submit, task_of

from pointsman import app
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import PointsmanError, RequestInvalid
from pointsman.store.rows import Run, Worker

ROOT = Path(__file__).parents[3]
FOREVER = 1_000_000.0
"""A lease that does not end while a test looks at something else."""

DRAINER = """
import asyncio, sys
from tests.rooms.engine.test_limits import drain
from pointsman import app

async def main(url, run_id):
    async with app.open(url, keeps=False) as engine:
        await drain(engine, run_id)

asyncio.run(main(*sys.argv[1:]))
"""
"""Another program that claims what it can get of a run until that has ended."""


async def fan_out(engine: Engine, count: int, *others: NewTask, tool: str = "model", **options: object) -> Run:
    tasks = (NewTask(name=f"t{number}", tool=tool, **options) for number in range(count))  # type: ignore[arg-type]
    return await submit(engine, *tasks, *others)


async def claim_names(engine: Engine, worker: Worker, limit: int = 99) -> list[str]:
    return [claim.name for claim in await engine.claim_tasks(worker.id, limit)]


async def drain(engine: Engine, run_id: str) -> None:
    worker = await engine.register_worker("drainer", max_concurrent_tasks=4)
    while (await engine.get_run(run_id)).phase != "done":
        for claim in await engine.claim_tasks(worker.id, 4, wait_seconds=0.2):
            await engine.complete_task(claim.task_id, claim.epoch)


def start(url: str, run: Run) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DRAINER, url, run.id], cwd=ROOT)


async def most_at_once(engine: Engine, run: Run) -> int:
    """How many tasks of a run were ever at work together, by the order of the trail."""
    running: set[str] = set()
    most = 0
    after = None
    while page := await engine.list_transitions(run_id=run.id, after=after, limit=500):
        after = page[-1].position
        for move in page:
            running.discard(move.entity_id)
            if move.kind == "task" and move.to_state == "RUNNING":
                running.add(move.entity_id)
            most = max(most, len(running))
    return most


# at once


async def test_no_more_than_so_many_go_on_at_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=2)
        first, second = await register(engine, slots=9), await register(engine, slots=9)
        await fan_out(engine, 30)
        claims = await engine.claim_tasks(first.id, 9)
        assert [claim.name for claim in claims] == ["t0", "t1"]
        assert await claim_names(engine, second) == []
        await engine.complete_task(claims[0].task_id, claims[0].epoch)
        assert await claim_names(engine, second) == ["t2"]


async def test_others_get_their_turn_meanwhile(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=1)
        await engine.declare_tool("compiler")
        worker = await register(engine, slots=9)
        await fan_out(engine, 1200, NewTask(name="behind"), NewTask(name="another", tool="compiler"), priority=9)
        assert await claim_names(engine, worker) == ["t0", "behind", "another"]


async def test_tasks_without_a_tool_still_go_together(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=1)
        worker = await register(engine, slots=99)
        await fan_out(engine, 20, *(NewTask(name=f"plain{number}") for number in range(40)))
        assert len(await claim_names(engine, worker)) == 41


@pytest.mark.parametrize("ending", ["complete", "fail", "expire", "cancel", "skip", "ask", "lose", "person", "cancel the run"])
async def test_every_ending_leaves_its_place_to_the_next(database_url: str, clock: ManualClock, ending: str) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=1, failure_threshold=99)
        worker = await register(engine, lease_seconds=30.0)
        run = await fan_out(engine, 1)
        other = await register(engine, lease_seconds=FOREVER)
        claim = await claim_one(engine, worker)
        await fan_out(engine, 1)
        assert await claim_names(engine, other) == []
        match ending:
            case "complete":
                await engine.complete_task(claim.task_id, claim.epoch)
            case "fail":
                await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
            case "ask":
                await engine.report_attempt(claim.task_id, claim.epoch, "ask", AttemptReport(question="which?", session_id="s"))
            case "lose":
                await pass_time(engine, clock, 31)
            case "person":
                await engine.signal_task(claim.task_id, "cancel")
            case "cancel the run":
                await engine.signal_run(run.id, "cancel")
            case _:
                await engine.report_attempt(claim.task_id, claim.epoch, ending)
        assert len(await claim_names(engine, other)) == 1


async def test_an_attempt_that_was_lost_where_it_stands_does_not_count(database_url: str, clock: ManualClock) -> None:
    """In `approval` the next claim takes it over, and needs the place itself."""
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=1)
        worker = await register(engine, lease_seconds=30.0, lifecycle="approval")
        await submit(engine, NewTask(name="a", tool="model"), NewTask(name="b", tool="model"), lifecycle="approval")
        await claim_one(engine, worker)
        await pass_time(engine, clock, 31)
        other = await register(engine, slots=9, lifecycle="approval")
        (again,) = await engine.claim_tasks(other.id, 9)
        assert (again.name, again.epoch) == ("a", 2)


async def test_whoever_waits_is_told_when_a_place_is_free(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine, open_engine(database_url, clock, seed=2) as elsewhere:
        await engine.declare_tool("model", max_concurrent=1)
        worker, other = await register(engine), await register(elsewhere)
        await fan_out(engine, 2)
        first = await claim_one(engine, worker)
        waiting = asyncio.create_task(elsewhere.claim_tasks(other.id, wait_seconds=30.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await engine.complete_task(first.task_id, first.epoch)
        (second,) = await asyncio.wait_for(waiting, 20)
        assert second.name == "t1"


async def test_a_limit_counts_what_began_before_it_was_set(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model")
        worker = await register(engine, slots=9)
        await fan_out(engine, 9)
        assert len(await engine.claim_tasks(worker.id, 3)) == 3
        await engine.declare_tool("model", max_concurrent=4)
        assert len(await claim_names(engine, worker)) == 1
        await engine.declare_tool("model", max_concurrent=2)
        assert await claim_names(engine, worker) == []
        waiting = asyncio.create_task(engine.claim_tasks(worker.id, 9, wait_seconds=30.0))
        await asyncio.sleep(0.05)
        await engine.declare_tool("model")
        assert len(await asyncio.wait_for(waiting, 20)) == 5, "a limit that is taken away"


async def test_each_tenant_has_limits_of_its_own(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=1)
        worker = await register(engine, slots=9)
        await fan_out(engine, 2)
        await claim_names(engine, worker)
        await engine.for_tenant("globex").declare_tool("model", max_concurrent=2)
        theirs = await register(engine.for_tenant("globex"), slots=9)
        tasks = tuple(NewTask(name=f"g{number}", tool="model") for number in range(3))
        await engine.for_tenant("globex").submit_run(NewRun(name="theirs", tasks=tasks))
        assert len(await engine.for_tenant("globex").claim_tasks(theirs.id, 9)) == 2


async def test_an_open_circuit_fails_what_should_fail_also_where_no_place_is_free(
    database_url: str, clock: ManualClock
) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=2, failure_threshold=1)
        worker = await register(engine, slots=9)
        await fan_out(engine, 2)
        claims = await engine.claim_tasks(worker.id, 9)
        run = await submit(engine, NewTask(name="impatient", tool="model", on_open_circuit="fail"))
        assert await claim_names(engine, worker) == [], "while the circuit is closed, it waits like the others"
        assert await state_of(engine, run, "impatient") == "QUEUED"
        await engine.fail_task(claims[0].task_id, claims[0].epoch, AttemptReport(error="down"))
        assert await claim_names(engine, worker) == []
        assert await state_of(engine, run, "impatient") == "FAILED"


async def test_a_half_open_circuit_lets_one_through_and_then_as_many_as_fit(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", max_concurrent=3, failure_threshold=1, cooldown_seconds=10.0)
        worker = await register(engine, slots=9, lease_seconds=FOREVER)
        await submit(engine, NewTask(name="breaks", tool="model"))
        broken = await claim_one(engine, worker)
        await engine.fail_task(broken.task_id, broken.epoch, AttemptReport(error="down"))
        await fan_out(engine, 9)
        await pass_time(engine, clock, 11)
        (probe,) = await engine.claim_tasks(worker.id, 9)
        await engine.complete_task(probe.task_id, probe.epoch)
        assert len(await claim_names(engine, worker)) == 3


# in a stretch of time


async def test_no_more_than_so_many_begin_in_any_window(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", rate_count=3, rate_seconds=10.0)
        worker = await register(engine, slots=99, lease_seconds=FOREVER)
        run = await fan_out(engine, 40)
        while await state_of(engine, run) != "SUCCEEDED":
            claims = await engine.claim_tasks(worker.id, 2)
            await engine.report_attempts(
                [ReportAttempt(task_id=claim.task_id, epoch=claim.epoch, signal="complete") for claim in claims]
            )
            await pass_time(engine, clock, 0.7)
        begun = sorted([task.started_at for task in await engine.list_tasks(run.id) if task.started_at])
        assert len(begun) == 40
        window = timedelta(seconds=10)
        assert all(later - earlier >= window for earlier, later in zip(begun, begun[3:], strict=False))
        assert begun[-1] - begun[0] < window * 14.5, "and they begin about as soon as they may"


async def test_a_place_comes_back_at_the_instant(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", rate_count=2, rate_seconds=10.0)
        worker = await register(engine, slots=99, lease_seconds=FOREVER)
        await fan_out(engine, 9, NewTask(name="free of it", priority=-1))
        assert await claim_names(engine, worker, 1) == ["t0"]
        await pass_time(engine, clock, 4)
        assert await claim_names(engine, worker) == ["t1", "free of it"]
        await pass_time(engine, clock, 5.999999)
        assert await claim_names(engine, worker) == []
        await pass_time(engine, clock, 0.000001)
        assert await claim_names(engine, worker) == ["t2"]


async def test_a_large_rate_is_kept_in_little_room(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", rate_count=500, rate_seconds=100.0)
        worker = await register(engine, slots=2000, lease_seconds=FOREVER)
        await fan_out(engine, 1200)
        begun: list[float] = []
        for _ in range(230):
            begun += [clock.monotonic()] * len(await engine.claim_tasks(worker.id, 11))
            clock.advance(0.9)
        assert all(later - earlier >= 100 for earlier, later in zip(begun, begun[500:], strict=False))
        assert len([at for at in begun if at < begun[0] + 102]) > 500, "places come back within a hundredth of the window"
        assert len((await engine.get_breaker("model")).begun) < 3000


async def test_whoever_waits_is_told_when_the_window_has_moved_on(database_url: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        await engine.declare_tool("model", rate_count=2, rate_seconds=0.4)
        worker = await register(engine, slots=9)
        await fan_out(engine, 5)
        claims: list[Claim] = []
        async with asyncio.timeout(20):
            while len(claims) < 5:
                claims += await engine.claim_tasks(worker.id, 9, wait_seconds=15.0)
        tasks = [await engine.get_task(claim.task_id) for claim in claims]
        begun = sorted(task.started_at for task in tasks if task.started_at)
        assert all(later - earlier >= timedelta(seconds=0.4) for earlier, later in zip(begun, begun[2:], strict=False))


async def test_the_window_outlives_a_move_of_the_breaker(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", rate_count=1, rate_seconds=100.0, failure_threshold=1, cooldown_seconds=10.0)
        worker = await register(engine, lease_seconds=FOREVER)
        await submit(engine, NewTask(name="breaks", tool="model"))
        broken = await claim_one(engine, worker)
        await engine.fail_task(broken.task_id, broken.epoch, AttemptReport(error="down"))
        await fan_out(engine, 1)
        await pass_time(engine, clock, 50)
        assert (await engine.get_breaker("model")).state == "HALF_OPEN"
        waiting = asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=30.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await pass_time(engine, clock, 50)
        (probe,) = await asyncio.wait_for(waiting, 20)
        assert probe.name == "t0"


async def test_a_smaller_rate_counts_what_began_under_the_larger_one(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", rate_count=3, rate_seconds=10.0)
        worker = await register(engine, slots=9, lease_seconds=FOREVER)
        await fan_out(engine, 9)
        assert len(await claim_names(engine, worker, 1)) == 1
        await pass_time(engine, clock, 1)
        assert len(await claim_names(engine, worker)) == 2
        await engine.declare_tool("model", rate_count=1, rate_seconds=20.0)
        await pass_time(engine, clock, 19)
        assert await claim_names(engine, worker) == [], "the first is out of the window, the other two are not"
        await pass_time(engine, clock, 1)
        assert len(await claim_names(engine, worker)) == 1
        await engine.declare_tool("model")
        assert len(await claim_names(engine, worker)) == 5


async def test_an_attempt_that_never_reached_its_tool_uses_nothing_up(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("model", rate_count=2, rate_seconds=100.0, failure_threshold=1, cooldown_seconds=10.0)
        worker = await register(engine, slots=9, lease_seconds=FOREVER)
        await submit(engine, NewTask(name="breaks", tool="model"))
        broken = await claim_one(engine, worker)
        await engine.fail_task(broken.task_id, broken.epoch, AttemptReport(error="down"))
        run = await submit(engine, NewTask(name="impatient", tool="model", on_open_circuit="fail"))
        assert await claim_names(engine, worker) == []
        assert (await task_of(engine, run, "impatient")).state == "FAILED"
        await engine.reset_breaker("model")
        await fan_out(engine, 3)
        assert len(await claim_names(engine, worker)) == 1


async def test_half_a_rate_is_refused(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        with pytest.raises(RequestInvalid, match="rate_seconds"):
            await engine.declare_tool("model", rate_count=3)
        with pytest.raises(RequestInvalid, match="rate_count"):
            await engine.declare_tool("model", rate_seconds=3.0)
        for wrong in ({"max_concurrent": 0}, {"rate_count": 0, "rate_seconds": 1.0}, {"rate_count": 1, "rate_seconds": 0.0}):
            with pytest.raises(RequestInvalid):
                await engine.declare_tool("model", **wrong)


# races


async def test_many_threads_never_have_more_at_once_than_allowed(database_url: str) -> None:
    async with app.open(database_url, keeps=False) as engine:
        await engine.declare_tool("model", max_concurrent=3)
        await engine.declare_tool("compiler")
        run = await fan_out(engine, 60)
        others = await fan_out(engine, 60, tool="compiler")
        troubles: list[BaseException] = []

        async def work() -> None:
            async with app.open(database_url, keeps=False) as own:
                await drain(own, run.id)

        def begin() -> None:
            try:
                asyncio.run(work())
            except PointsmanError as trouble:
                troubles.append(trouble)

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join, 120)
        assert not troubles
        assert await state_of(engine, run) == "SUCCEEDED"
        assert 1 <= await most_at_once(engine, run) <= 3
        assert await most_at_once(engine, others) >= 1


async def test_many_processes_keep_both_limits(database_url: str) -> None:
    async with app.open(database_url, keeps=True) as engine:
        await engine.declare_tool("model", max_concurrent=2, rate_count=10, rate_seconds=1.0)
        run = await fan_out(engine, 40)
        drainers = [await asyncio.to_thread(start, database_url, run) for _ in range(3)]
        for drainer in drainers:
            assert await asyncio.to_thread(drainer.wait, 120) == 0
        assert await state_of(engine, run) == "SUCCEEDED"
        assert 1 <= await most_at_once(engine, run) <= 2
        begun = sorted(task.started_at for task in await engine.list_tasks(run.id) if task.started_at)
        assert all(later - earlier >= timedelta(seconds=1) for earlier, later in zip(begun, begun[10:], strict=False))


async def test_a_tool_that_two_processes_declare_at_once_is_one_tool(database_url: str) -> None:
    async with app.open(database_url) as one, app.open(database_url) as other:
        for number in range(10):
            await asyncio.gather(one.declare_tool(f"tool {number}"), other.declare_tool(f"tool {number}"))
        assert len(await one.list_breakers()) == 10

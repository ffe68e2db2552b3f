"""What the numbers of a run and its tasks mean: each has one meaning, wherever it is shown."""

from __future__ import annotations

from datetime import timedelta

from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, pass_time, register, submit

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewTask
from pointsman.store.rows import Run
from pointsman.views.progress import Progress
from pointsman.views.runs import list_runs, view_run
from pointsman.views.values import RunView, TaskCounts, TaskView


async def look(engine: Engine, run: Run, clock: ManualClock) -> tuple[RunView, dict[str, TaskView]]:
    view = await view_run(engine, run.id, clock.now())
    return view, {task.name: task for task in view.tasks}


async def test_what_a_task_took_is_how_long_its_attempts_ran(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=3600)
        delayed = NewTask(name="a", max_retries=1, review=True, backoff=Backoff(base_seconds=100, jitter=0))
        run = await submit(engine, delayed)
        await pass_time(engine, clock, 7)
        first = await claim_one(engine, worker)
        clock.advance(3)
        await engine.fail_task(first.task_id, first.epoch, AttemptReport(error="boom"))
        await pass_time(engine, clock, 100)
        second = await claim_one(engine, worker)
        clock.advance(2)
        assert (await look(engine, run, clock))[1]["a"].took_seconds == 5
        await engine.complete_task(second.task_id, second.epoch)
        await pass_time(engine, clock, 1000)
        await engine.signal_task(second.task_id, "accept")
        view, tasks = await look(engine, run, clock)
        assert (tasks["a"].attempts, tasks["a"].took_seconds) == (2, 5)
        assert view.elapsed_seconds(clock.now()) == 3 + 100 + 2 + 1000, "a run counts all that it waited, from its first start"


async def test_no_time_passes_for_what_is_interrupted(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=30)
        run = await submit(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        clock.advance(5)
        await engine.send_heartbeat(worker.id, [])
        clock.advance(40)
        view, tasks = await look(engine, run, clock)
        assert view.interrupted_at == clock.now() - timedelta(seconds=40)
        assert (view.elapsed_seconds(clock.now()), tasks["a"].took_seconds) == (5, 5)
        (listed,) = await list_runs(engine, 9, clock.now())
        assert listed.interrupted_at == view.interrupted_at
        (found,) = view.tasks
        await pass_time(engine, clock, 100)
        another = await claim_one(engine, await register(engine))
        clock.advance(3)
        assert (await look(engine, run, clock))[1]["a"].attempt_seconds == {1: 5, 2: 3}, "its end is known no better now"
        await engine.complete_task(found.id, another.epoch)
        await pass_time(engine, clock, 1000)
        assert (await look(engine, run, clock))[1]["a"].attempt_seconds == {1: 5, 2: 3}, "the worker that reported is gone, too"


async def test_every_task_is_counted_once_and_a_failure_where_it_happened(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=9)
        extra = (NewTask(name=name) for name in ("done", "skipped", "canceled", "waiting"))
        optional = NewTask(name="optional", critical=False)
        run = await submit(engine, NewTask(name="all"), NewTask(name="part", parent="all"), optional, *extra)
        ids = {task.name: task.id for task in await engine.list_tasks(run.id)}
        await engine.signal_task(ids["skipped"], "skip")
        claims = {claim.name: claim for claim in await engine.claim_tasks(worker.id, 9)}
        for name in ("all", "done"):
            await engine.complete_task(ids[name], claims[name].epoch)
        for name in ("optional", "part"):
            await engine.fail_task(ids[name], claims[name].epoch, AttemptReport(error="boom", retryable=False))
        await engine.report_attempt(ids["canceled"], claims["canceled"].epoch, "cancel")
        view, tasks = await look(engine, run, clock)
        assert view.counts == TaskCounts(total=7, done=3, skipped=1, given_up=1, failed=1, canceled=1)
        assert (tasks["all"].outcome, tasks["all"].failed_with_subtask) == ("failure", True)
        assert [task.name for task in view.failed_tasks] == ["part"]
        progress = Progress(engine, run.id)
        for move in await engine.list_transitions(run_id=run.id):
            await progress.take(move)
        counts = view.counts
        assert (progress.total, progress.done, progress.counts["failure"]) == (counts.total, counts.done, counts.failed)
        (listed,) = await list_runs(engine, 9, clock.now())
        assert (listed.tasks["total"], listed.tasks["success"]) == (counts.total, counts.done)


async def test_an_approval_that_is_skipped_for_want_of_a_decision_has_not_failed(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        gate = NewTask(name="gate", gate=True, approval_seconds=60, on_expiry="skip")
        run = await submit(engine, gate, NewTask(name="after", depends_on=("gate",)))
        await pass_time(engine, clock, 60)
        view, tasks = await look(engine, run, clock)
        assert (tasks["gate"].skipped, tasks["gate"].expired) == (True, True)
        assert view.counts == TaskCounts(total=2, done=1, skipped=1, given_up=0, failed=0, canceled=0)


async def test_a_task_that_its_worker_found_needless_was_not_attempted(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, await register(engine))
        await engine.report_attempt(claim.task_id, claim.epoch, "skip", AttemptReport(error="its condition is false"))
        _, tasks = await look(engine, run, clock)
        assert (tasks["a"].skipped, tasks["a"].attempts, tasks["a"].took_seconds) == (True, 0, None)

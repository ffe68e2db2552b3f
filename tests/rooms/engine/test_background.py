"""Background work is visible, bounded and named: duties, the queue of the writer, events, wake-ups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, register, submit, task_of
from tests.rooms.engine.test_commits import fit_valve

from pointsman import app
from pointsman.engine.duties import Duty
from pointsman.engine.engine import Engine
from pointsman.engine.hooks import (
    BatchCommitted,
    DutyPerformed,
    EngineEvent,
    KeysChecked,
    LeasesLost,
    OperationRefused,
    Overload,
)
from pointsman.engine.operations.upkeep import FireTimers
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import KeyReused, NotFound, Overloaded
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Task, Worker

PATIENCE_SECONDS = 20.0


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing tells when a figure changes
            await asyncio.sleep(0.01)


async def test_the_duties_of_the_engine_have_names_and_figures(database_url: str) -> None:
    async with app.open(database_url) as engine:
        assert set(engine.duty_metrics) == {"timers", "worker-expiry", "key-purge", "seal"}
        await submit(engine, NewTask(name="a", gate=True, approval_seconds=0.05))
        timers = engine.duty_metrics["timers"]
        await until(lambda: timers.done)
        assert timers.last_run_at is not None
        assert (timers.failures, timers.last_error) == (0, None)


async def test_a_duty_that_fails_is_logged_counted_and_tried_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pointsman.engine.duties.FIRST_BACKOFF_SECONDS", 0.01)
    fails = True

    async def perform() -> int:
        if fails:
            raise RuntimeError("the disk is on fire")
        return 0

    events: list[EngineEvent] = []
    logging.getLogger("pointsman").propagate = True
    async with app.open(database_url, keeps=False) as engine:
        engine.attach(events.append)
        with caplog.at_level(logging.INFO, "pointsman"):
            engine.start_duty(Duty(name="sweep", perform=perform, interval_seconds=0.01))
            metrics = engine.duty_metrics["sweep"]
            await until(lambda: metrics.failures_in_a_row >= 3)
            assert metrics.last_error == "RuntimeError: the disk is on fire"
            async with app.open(database_url, keeps=False) as elsewhere:
                (failing,) = await elsewhere.list_duty_failures()
                assert (failing.name, failing.error) == ("sweep", "the disk is on fire")
                assert failing.failures >= 2
                fails = False
                await until(lambda: metrics.failures_in_a_row == 0)
                while await elsewhere.list_duty_failures():  # noqa: ASYNC110 - it happens in another process
                    await asyncio.sleep(0.01)
    assert metrics.failures >= 3
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert {record.__dict__["duty"] for record in failed} == {"sweep"}
    assert "works again" in caplog.text
    assert sum(isinstance(event, DutyPerformed) and event.error is not None for event in events) == metrics.failures


async def test_wake_ups_do_not_hurry_a_duty_that_fails(database_url: str) -> None:
    tried = 0

    async def perform() -> int:
        nonlocal tried
        tried += 1
        raise RuntimeError("no")

    async with app.open(database_url, keeps=False) as engine:
        engine.start_duty(Duty(name="sweep", perform=perform, interval_seconds=60.0, wakes_on=Wakeup.EVENTS))
        await until(lambda: engine.duty_metrics["sweep"].failures)
        for _ in range(5):
            await submit(engine, NewTask(name="a"))
        assert tried < 5, "five wake-ups, and only the backoff brings another try"


async def test_a_full_queue_turns_operations_away_and_says_when_to_come_back(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        events: list[EngineEvent] = []
        engine.attach(events.append)
        engine._core.writer.max_queue = 3
        valve = fit_valve(engine)
        valve.reached.clear()
        valve.opened.clear()
        busy = engine._core.writer.submit(FireTimers())
        await asyncio.to_thread(valve.reached.wait, PATIENCE_SECONDS)
        waiting = [asyncio.create_task(submit(engine, NewTask(name="a"))) for _ in range(3)]
        await asyncio.sleep(0)
        assert engine.queue_length == 3
        with pytest.raises(Overloaded, match=r"3 operations wait to be written.*Try again in") as refused:
            await submit(engine, NewTask(name="a"))
        assert refused.value.retry_after_seconds > 0
        valve.opened.set()
        await asyncio.gather(busy, *waiting)
        assert len(await engine.list_runs()) == 3, "what was taken is done, what was turned away is not"
        assert [event.queue_length for event in events if isinstance(event, Overload)] == [3]
        assert engine.commit_metrics.turned_away == 1


async def test_hooks_hear_of_commits_refusals_and_lost_leases(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        events: list[EngineEvent] = []
        detach = engine.attach(events.append)
        worker = await register(engine, lease_seconds=10)
        await submit(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        with pytest.raises(NotFound):
            await engine.signal_run("nobody", "cancel")
        clock.advance(11)
        await engine.tend()
        assert sum(event.operations for event in events if isinstance(event, BatchCommitted)) >= 4
        assert [(event.operation, type(event.error)) for event in events if isinstance(event, OperationRefused)] == [
            ("signal_run", NotFound)
        ]
        assert [event.attempts for event in events if isinstance(event, LeasesLost)] == [1]
        detach()
        heard = len(events)
        await submit(engine, NewTask(name="b"))
        assert len(events) == heard


CHANGES: dict[str, Callable[[Engine, Worker, Task], Awaitable[object]]] = {
    "its task is canceled": lambda engine, _, task: engine.signal_task(task.id, "cancel"),
    "its run is canceled": lambda engine, _, task: engine.signal_run(task.run_id, "cancel"),
    "its run is paused": lambda engine, _, task: engine.signal_run(task.run_id, "pause"),
    "its worker is drained": lambda engine, worker, _: engine.signal_worker(worker.id, "drain"),
    "its worker is terminated": lambda engine, worker, _: engine.signal_worker(worker.id, "terminate", ended=True),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_workers_are_woken_when_something_changes_for_what_they_run(database_url: str, change: str) -> None:
    async with app.open(database_url, keeps=False) as engine, app.open(database_url, keeps=False) as elsewhere:
        woken = asyncio.Event()
        worker = await register(engine, lease_seconds=3600)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        stop = engine.listen(Wakeup.WORKERS, woken.set)
        await CHANGES[change](elsewhere, worker, await task_of(engine, run, "a"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await woken.wait()
        stop()
        reply = await engine.send_heartbeat(worker.id, [(claim.task_id, claim.epoch)])
        told = reply.lost or reply.cancelled or reply.paused or reply.worker.drain_wanted
        assert told, "the heartbeat after it has the details"


async def test_a_hook_that_raises_harms_nothing(database_url: str, clock: ManualClock) -> None:
    raised: set[str] = set()

    def hook(event: EngineEvent) -> None:
        raised.add(type(event).__name__)
        raise RuntimeError("a broken hook")

    async with open_engine(database_url, clock) as engine:
        engine.attach(hook)
        worker = await register(engine, lease_seconds=10)
        await submit(engine, NewTask(name="a"))
        await claim_one(engine, worker)
        with pytest.raises(NotFound):
            await engine.signal_run("nobody", "cancel")
        await asyncio.gather(engine.signal_worker(worker.id, "terminate", ended=True), submit(engine, NewTask(name="b")))
        engine.start_duty(Duty(name="sweep", perform=nothing, interval_seconds=0.01, wakes_on=Wakeup.EVENTS))
        await until(lambda: engine.duty_metrics["sweep"].performed > 1)
        assert len(await engine.list_runs()) == 2, "nothing was done twice"
        assert engine.duty_metrics["sweep"].failures == 0
    assert raised >= {"BatchCommitted", "OperationRefused", "LeasesLost", "DutyPerformed"}


async def nothing() -> int:
    return 0


async def test_heartbeats_and_upkeep_pass_a_full_queue(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        engine._core.writer.max_queue = 0
        with pytest.raises(Overloaded):
            await submit(engine, NewTask(name="a"))
        assert (await engine.send_heartbeat(worker.id)).worker.id == worker.id
        assert await engine.tend() == 0


async def test_a_duty_recovers_also_when_nothing_is_due(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.engine.duties.FIRST_BACKOFF_SECONDS", 0.01)
    asked = 0

    async def next_due() -> float:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("the clock is broken")
        return 60.0

    async with app.open(database_url, keeps=False) as engine:
        engine.start_duty(Duty(name="sweep", perform=nothing, interval_seconds=60.0, next_due=next_due))
        metrics = engine.duty_metrics["sweep"]
        await until(lambda: metrics.failures)
        await until(lambda: not metrics.failures_in_a_row)
        assert metrics.last_error is None


async def test_hooks_hear_of_idempotency_keys_and_a_refused_repetition_is_none(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        events: list[EngineEvent] = []
        engine.attach(events.append)
        for _ in range(2):
            await engine.submit_run(NewRun(name="a", tasks=(NewTask(name="a"),)), request_id="once")
        with pytest.raises(KeyReused):
            await engine.submit_run(NewRun(name="b", tasks=(NewTask(name="a"),)), request_id="once")
        assert [event for event in events if isinstance(event, KeysChecked)] == [KeysChecked(0, 1), KeysChecked(1, 0)]

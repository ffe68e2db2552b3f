"""The queries of metrics, which are about all tenants."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from tests.rooms.store.store_fixture import ACME, AT, GLOBEX, SECOND, StoreFixture

from pointsman.store.contract import read_position
from pointsman.store.rows import SECONDS_BOUNDS, Account, QueueFigures, TransitionTally, WorkerFigures


def test_moves_are_tallied_by_tenant_machine_states_trigger_and_time_once_by_ranges(db: StoreFixture) -> None:
    for seconds in (0.1, 0.5, 1.0):
        db.move(db.put(db.run()), "RUNNING", entered_at=AT + timedelta(seconds=seconds))
    with db.store.read() as reader:
        middle = read_position(reader.last_position())
        tallied = [each for each in reader.tally_transitions(0, middle) if each.machine == "standard.run"]
    created: dict[str, Any] = {"tenant": ACME, "machine": "standard.run", "trigger": "create"}
    created |= {"from_state": None, "to_state": "PENDING"}
    started = {**created, "from_state": "PENDING", "to_state": "RUNNING", "trigger": "start"}
    assert sorted(tallied, key=lambda each: each.bucket) == [
        TransitionTally(**created, bucket=-1, count=3, seconds=0.0),
        TransitionTally(**started, bucket=0, count=1, seconds=0.1),
        TransitionTally(**started, bucket=1, count=2, seconds=1.5),
    ]
    db.put(db.run(tenant=db.tenant(GLOBEX)))
    with db.store.read() as reader:
        assert [(each.tenant, each.count) for each in reader.tally_transitions(middle, middle + 10)] == [(GLOBEX, 1)]


@pytest.mark.parametrize("index", range(len(SECONDS_BOUNDS) + 1))
def test_a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed(db: StoreFixture, index: int) -> None:
    seconds = SECONDS_BOUNDS[index] if index < len(SECONDS_BOUNDS) else SECONDS_BOUNDS[-1] + 1
    db.move(db.put(db.run()), "RUNNING", entered_at=AT + timedelta(seconds=seconds))
    with db.store.read() as reader:
        (tally,) = [each for each in reader.tally_transitions(0, 10_000) if each.to_state == "RUNNING"]
    assert (tally.bucket, tally.count, tally.seconds) == (index, 1, seconds)


def test_queues_are_the_tasks_that_may_be_claimed_now(db: StoreFixture) -> None:
    run = db.put(db.run())
    for state, columns in (
        ("QUEUED", {}),
        ("QUEUED", {"entered_at": AT - SECOND}),
        ("QUEUED", {"available_at": AT + SECOND}),
        ("SUCCEEDED", {}),
        ("PENDING", {}),
    ):
        db.put_task(run, state=state, run_open=True, **columns)
    db.put_task(run, state="QUEUED", run_open=False)
    with db.store.read() as reader:
        (queue,) = reader.measure_queues()
    assert (queue.tenant, queue.depth) == (ACME, 2)
    assert queue.oldest_at is not None


def test_a_task_to_be_taken_over_is_in_the_queue_and_has_no_age(db: StoreFixture) -> None:
    run = db.put(db.run("approval.run"))
    task = db.put_task(run, state="RUNNING", machine="approval.step", run_open=True)
    with db.store.read() as reader:
        assert reader.measure_queues() == []
    with db.transaction() as begun:
        task.lease_expired = True
        begun.update([task], ["lease_expired"])
    with db.store.read() as reader:
        assert reader.measure_queues() == [QueueFigures(tenant=ACME, depth=1, oldest_at=None)]


def test_workers_are_measured_with_their_slots_and_how_many_are_busy(db: StoreFixture) -> None:
    worker = db.put(db.worker(max_concurrent_tasks=4))
    db.put(db.worker(max_concurrent_tasks=8, missing=True))
    db.bring(db.put(db.worker()), "SHUTDOWN")
    for _ in range(2):
        db.bring(db.put_task(), "RUNNING", worker_id=worker.id)
    with db.store.read() as reader:
        assert reader.measure_workers() == [WorkerFigures(tenant=ACME, state="INITIALIZING", workers=2, slots=4, busy=2)]


def test_breakers_and_accounts_of_all_tenants_are_listed(db: StoreFixture) -> None:
    db.put(db.breaker(tool="git"))
    db.put(db.breaker(tool="git", tenant=db.tenant(GLOBEX)))
    with db.transaction() as begun:
        begun.set_account_budgets([Account(tenant=GLOBEX, budget_usd=Decimal(7))])
    with db.store.read() as reader:
        assert [(each.tenant, each.tool) for each in reader.list_all_breakers()] == [(ACME, "git"), (GLOBEX, "git")]
        assert [(each.tenant, each.budget_usd) for each in reader.list_accounts()] == [(GLOBEX, Decimal(7))]

"""One contract, one suite: workers, breakers, timers, idempotency, the event stream and the doctor."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace as with_fields
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from tests.rooms.store.outsider import Refused, kind_of, type_columns
from tests.rooms.store.store_fixture import (
    ACME,
    AT,
    GLOBEX,
    JSON,
    MACHINES,
    SECOND,
    WORDS,
    StoreFixture,
    find,
    ids,
    insert,
    response,
    timer,
    update,
)

from pointsman.kernel.machine import Kind
from pointsman.store.contract import Reader
from pointsman.store.law import rule_rows, state_rows
from pointsman.store.rows import Contradiction, Dependency, DutyFailure, Entity, Notice, Run, Seal, Task
from pointsman.store.rows import Transition as Event

# Workers.


def test_workers_are_listed_and_locked_in_the_order_of_their_ids(db: StoreFixture) -> None:
    workers = [db.put(db.worker(id=name)) for name in ("worker_b", "worker_c", "worker_a")]
    order = [workers[2], workers[0], workers[1]]
    with db.transaction() as begun:
        assert begun.list_workers(ACME) == order
        assert begun.lock_workers(["worker_c", "worker_a", "worker_b"]) == order
        assert begun.lock_workers({"worker_b", "unknown"}) == [workers[0]]
        assert begun.try_lock_workers(["worker_c", "unknown", "worker_b", "worker_a"], 2) == order[:2]
        assert begun.try_lock_workers([], 2) == []


@pytest.mark.parametrize("serves", ['["acme"]', '["acme","initech"]', '"all"'])
def test_a_tenant_sees_a_worker_that_serves_it_but_not_what_it_does_for_others(db: StoreFixture, serves: str) -> None:
    run = db.put(db.run(tenant=db.tenant("globex")))
    told = {"reason": "allocated", "actor": "ada", "metadata": "{}", "error": "disk full"}
    shared = db.put(db.worker(tenant="globex", serves=serves, last_tenant="initech", run_id=run.id, **told))
    db.put(db.worker(tenant="globex", serves='["initech"]'))
    hidden = replace(shared, serves='["acme"]', last_tenant=None, run_id=None, **dict.fromkeys(told))
    with db.transaction() as begun:
        assert begun.find_worker("globex", shared.id) == shared
        assert begun.find_worker(ACME, shared.id) == hidden
        assert begun.list_workers(ACME) == [hidden]
        assert begun.find_worker("hooli", shared.id) == (None if serves != '"all"' else replace(hidden, serves='["hooli"]'))
        assert begun.list_history(ACME, shared.id) == []


def test_a_shared_worker_is_free_for_every_tenant_that_it_serves(db: StoreFixture) -> None:
    db.tenant("globex")
    declared = ((ACME, "[]"), ("globex", '["acme"]'), ("globex", '"all"'), ("globex", "[]"))
    mine, listed, everyones, theirs = (
        db.bring(db.put(db.worker(tenant=tenant, serves=serves)), "IDLE") for tenant, serves in declared
    )
    with db.transaction() as begun:
        assert begun.find_free_workers(ACME, 9) == [mine.id, listed.id, everyones.id]
        assert begun.find_free_workers("globex", 9) == [listed.id, everyones.id, theirs.id]
        assert begun.find_free_workers("initech", 9) == [everyones.id]


def test_workers_hold_the_tasks_that_they_execute(db: StoreFixture) -> None:
    """A worker holds a task while its checks run, whether its state needs a worker or not, but not after the lease is lost."""
    anna, bert, idle = (db.put(db.worker(max_concurrent_tasks=3)) for _ in range(3))
    first = db.bring(db.put_task(), "RUNNING", worker_id=anna.id)
    second = db.bring(db.put_task(), "RUNNING", worker_id=anna.id)
    over = db.move(db.bring(db.put_task(), "RUNNING", worker_id=anna.id), "SUCCEEDED")
    checked = db.move(db.bring(db.put_task(machine="orchestrated.task"), "running", worker_id=bert.id), "validating")
    other = db.bring(db.put_task(), "RUNNING", worker_id=bert.id)
    lost = db.bring(db.put_task(machine="approval.step"), "RUNNING", worker_id=bert.id)
    all_ids = [anna.id, bert.id, idle.id, "unknown"]
    assert not find(db.store, over).worker_id
    with db.transaction() as begun:
        update(begun, replace(lost, lease_expired=True))
        assert begun.count_held(all_ids) == {anna.id: 2, bert.id: 2}
        assert begun.count_held([bert.id]) == {bert.id: 2}
        holders = [(first, anna), (second, anna), (checked, bert), (other, bert), (lost, bert)]
        assert begun.find_held_tasks(all_ids) == [(worker.id, task.id, task.run_id) for task, worker in holders]
        assert begun.find_held_tasks([anna.id]) == [(anna.id, task.id, task.run_id) for task in (first, second)]


def test_workers_are_silent_once_their_lease_has_expired(db: StoreFixture) -> None:
    late = db.put(db.worker(lease_seconds=2.5, heartbeat_at=AT))
    later = db.put(db.worker(lease_seconds=0.5, heartbeat_at=AT + SECOND))
    patient = db.put(db.worker(lease_seconds=60, heartbeat_at=AT - SECOND))
    db.put(db.worker(lease_seconds=0.001, missing=True))
    db.bring(db.put(db.worker(lease_seconds=0.001)), "SHUTDOWN")
    with db.transaction() as begun:
        assert begun.next_silence() == AT + timedelta(seconds=1.5)
        assert begun.find_silent_workers(AT + timedelta(seconds=1.5), 9) == []
        assert begun.find_silent_workers(AT + timedelta(seconds=1.500001), 9) == [later.id]
        assert begun.find_silent_workers(AT + timedelta(seconds=59), 9) == [late.id, later.id]
        assert begun.find_silent_workers(AT + timedelta(seconds=600), 9) == [patient.id, late.id, later.id]
        assert begun.find_silent_workers(AT + timedelta(seconds=600), 1) == [patient.id]
        assert begun.next_silence(since=AT + 3 * SECOND) == AT + timedelta(seconds=3.5)
        assert begun.find_silent_workers(AT + timedelta(seconds=59), 9, since=AT + timedelta(seconds=57)) == [later.id]
        assert begun.was_heard(AT, AT + SECOND)
        assert not begun.was_heard(AT + SECOND, AT + 2 * SECOND)
        assert not begun.was_heard(AT, AT + SECOND / 2)
        update(begun, replace(later, missing=True))
        assert begun.next_silence() == AT + timedelta(seconds=2.5)


def test_workers_are_free_when_they_may_claim_hold_nothing_and_are_not_allocated(db: StoreFixture) -> None:
    idle, busy, holder = (db.bring(db.put(db.worker()), state) for state in ("IDLE", "BUSY", "BUSY"))
    db.bring(db.put_task(), "RUNNING", worker_id=holder.id)
    checks = db.bring(db.put(db.worker()), "BUSY")
    checked = db.move(db.bring(db.put_task(machine="orchestrated.task"), "running", worker_id=checks.id), "validating")
    assert (checked.worker_id, checked.attempt_worker_id) == (None, checks.id)
    run = db.put(db.run())
    db.bring(db.put(db.worker(run_id=run.id)), "IDLE")
    db.bring(db.put(db.worker(missing=True)), "IDLE")
    for state in ("PAUSED", "UNRESPONSIVE", "SHUTDOWN"):
        db.bring(db.put(db.worker()), state)
    with db.transaction() as begun:
        assert begun.find_free_workers(ACME, 9) == [idle.id, busy.id]
        assert begun.find_free_workers(ACME, 1) == [idle.id]


def test_free_workers_have_every_capability_that_is_needed(db: StoreFixture) -> None:
    able = {words: db.bring(db.put(db.worker(capabilities=words)), "IDLE").id for words in ("[]", '["gpu"]', '["arm","gpu"]')}
    none, gpu, both = able.values()
    with db.transaction() as begun:
        assert begun.find_free_workers(ACME, 9) == [none, gpu, both]
        assert begun.find_free_workers(ACME, 9, ["gpu"]) == [gpu, both]
        assert begun.find_free_workers(ACME, 9, ("gpu", "arm")) == [both]
        assert begun.find_free_workers(ACME, 9, ["docker"]) == []


def test_a_worker_of_one_run_is_free_for_no_other_one(db: StoreFixture) -> None:
    run, other = db.put(db.run()), db.put(db.run())
    anyones, of_run = (db.bring(db.put(db.worker(only_run_id=only)), "IDLE").id for only in (None, run.id))
    with db.transaction() as begun:
        assert begun.find_free_workers(ACME, 9) == [anyones, of_run]
        assert begun.find_free_workers(ACME, 9, run_id=run.id) == [anyones, of_run]
        assert begun.find_free_workers(ACME, 9, run_id=other.id) == [anyones]


def test_a_worker_whose_task_has_ended_is_free_again(db: StoreFixture) -> None:
    worker = db.bring(db.put(db.worker()), "BUSY")
    task = db.bring(db.put_task(), "RUNNING", worker_id=worker.id)
    db.move(task, "FAILED")
    with db.transaction() as begun:
        assert begun.find_free_workers(ACME, 9) == [worker.id]


def test_the_workers_of_a_run_are_found(db: StoreFixture) -> None:
    first, second, other = (db.put(db.run()) for _ in range(3))
    workers = [db.put(db.worker(run_id=run and run.id)) for run in (second, first, None, first, other)]
    with db.transaction() as begun:
        assert begun.find_run_workers([first.id]) == ids(workers[1:4:2])
        assert begun.find_run_workers([second.id, first.id]) == [workers[0].id, *ids(workers[1:4:2])]


# Breakers.


def test_breakers_are_listed_by_tool_and_locked_by_id(db: StoreFixture) -> None:
    breakers = [db.put(db.breaker(tool=tool)) for tool in ("git", "apple", "Zip", "éclair")]
    with db.transaction() as begun:
        assert [row.tool for row in begun.list_breakers(ACME)] == ["Zip", "apple", "git", "éclair"], "by code point everywhere"
        assert begun.lock_breakers(ACME, ["Zip", "unknown", "apple", "git"]) == breakers[:3]


def test_tools_are_tripped_unless_their_breaker_is_closed(db: StoreFixture) -> None:
    states = ("CLOSED", "OPEN", "HALF_OPEN")
    closed, opened, probing = (db.bring(db.put(db.breaker(tool=state)), state) for state in states)
    theirs = db.bring(db.put(db.breaker(tool="A", tenant=db.tenant(GLOBEX))), "OPEN")
    with db.transaction() as begun:
        assert begun.list_guarded_breakers(ACME) == [opened, probing]
        assert begun.list_tripped_breakers() == [probing, opened, theirs]
        assert closed not in begun.list_tripped_breakers()


def test_breakers_are_guarded_also_where_their_tools_have_limits(db: StoreFixture) -> None:
    db.put(db.breaker(tool="free"))
    some = db.put(db.breaker(tool="some at once", max_concurrent=2))
    slow = db.put(db.breaker(tool="slow", rate_count=2, rate_seconds=0.5, begun="[[1,2]]"))
    with db.transaction() as begun:
        assert begun.list_guarded_breakers(ACME) == [some, slow]
        assert begun.list_tripped_breakers() == []


def test_attempts_of_a_tool_are_counted_over_all_its_lanes(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    with db.transaction() as begun:
        lanes = [begun.insert_lane(ACME, "git", words, fails_fast=False).id for words in ("[]", '["gpu"]')]
        other = begun.insert_lane(ACME, "make", "[]", fails_fast=False).id
        theirs = begun.insert_lane(GLOBEX, "git", "[]", fails_fast=False).id
    for lane_id in (*lanes, lanes[0], other):
        db.put_task(state="RUNNING", lane_id=lane_id)
    for state in ("QUEUED", "SUCCEEDED", "RETRYING"):
        db.put_task(state=state, lane_id=lanes[0])
    lost = db.put_task(machine="approval.step", state="RUNNING", lane_id=lanes[0])
    db.put_task(state="VALIDATING", lane_id=theirs, tenant=GLOBEX)
    with db.transaction() as begun:
        assert begun.count_at_work(ACME, "git") == 4
        update(begun, replace(lost, lease_expired=True))
        assert begun.count_at_work(ACME, "git") == 3
        assert (begun.count_at_work(ACME, "make"), begun.count_at_work(GLOBEX, "git")) == (1, 1)
        assert begun.count_at_work(ACME, "nothing") == 0


# Timers.


def test_timers_come_back_in_the_order_in_which_they_are_due(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    timers = [
        timer("b", "expire", 1, kind="task", revision=3, run_id=None),
        timer("b", "delay", 1, kind="worker"),
        timer(WORDS, WORDS, 0.000001, kind="breaker"),
        timer("a", "expire", 1),
    ]
    theirs = timer("z", "expire", -5, tenant=GLOBEX)
    order = [timers[2], timers[3], timers[1], timers[0]]
    with db.transaction() as begun:
        begun.set_timers([*timers, theirs])
        assert begun.list_timers(ACME) == order
        assert begun.next_due() == theirs.due_at
        assert begun.find_due_timers(AT + SECOND, 99) == [theirs, *order]
        assert begun.find_due_timers(AT + SECOND, 3) == [theirs, *order[:2]]
        assert begun.find_due_timers(AT, 99) == [theirs]
        assert begun.find_due_timers(AT + timedelta(microseconds=1), 99) == [theirs, timers[2]], "due at the very instant"


def test_a_timer_that_is_set_again_replaces_the_first(db: StoreFixture) -> None:
    first, again, other = (
        timer("a", after_seconds=9, revision=1),
        timer("a", after_seconds=2, revision=2),
        timer("a", "delay", 5),
    )
    with db.transaction() as begun:
        begun.set_timers([first, other])
        begun.set_timers([again])
        assert begun.list_timers(ACME) == [again, other]


def test_each_timer_is_taken_once(db: StoreFixture) -> None:
    first, second, moved = timer("a"), timer("b"), timer("c", revision=1)
    with db.transaction() as begun:
        begun.set_timers([first, second, moved, timer("a", "delay")])
        begun.set_timers([timer("c", after_seconds=1, revision=1)])
    with db.transaction() as begun:
        assert begun.take_timers([first, moved, replace(second, revision=5)]) == [first], "those that changed since are left"
        assert begun.take_timers([first, second]) == [second]
        assert begun.take_timers([first, second]) == []
        assert begun.list_timers(ACME) == [timer("a", "delay"), timer("c", after_seconds=1, revision=1)]
        assert begun.take_timers([timer("a", "delay")]) == [timer("a", "delay")]
        assert begun.next_due() == AT + SECOND


def test_the_end_of_a_usage_limit_makes_the_tasks_due_that_wait_for_it_and_no_others(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    run = db.put(db.run())
    with db.transaction() as begun:
        claude, codex = (begun.insert_lane(ACME, tool, "[]", fails_fast=False).id for tool in ("claude", "codex"))
    limited = '{"usage_limit":true,"retry_count":2}'
    a, b, c = (
        db.put(db.task(run, lane_id=lane, metadata=metadata))
        for lane, metadata in ((claude, limited), (claude, '{"interrupted":true}'), (codex, limited))
    )
    timers = [timer(each.id, "retry", 5, kind="task") for each in (a, b, c)]
    with db.transaction() as begun:
        begun.set_timers([*timers, timer(a.id, "expire", 5, kind="task")])
        begun.end_usage_limit(GLOBEX, "claude", AT)
        assert begun.find_due_timers(AT, 99) == []
        begun.end_usage_limit(ACME, "claude", AT)
        assert begun.find_due_timers(AT, 99) == [replace(timers[0], due_at=AT)]


def test_the_timers_of_an_entity_are_dropped_together(db: StoreFixture) -> None:
    with db.transaction() as begun:
        begun.set_timers([timer("a"), timer("a", "delay"), timer("b"), timer("c")])
        begun.drop_timers(["a", "c", "unknown"])
        assert begun.list_timers(ACME) == [timer("b")]


# Idempotency.


def test_the_first_answer_to_a_key_stays(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    first = response(key=WORDS, endpoint=WORDS, body=WORDS, request_hash=WORDS)
    twin = replace(first, request_hash="other", status=500, body="other", created_at=AT + SECOND / 2)
    others = [replace(first, tenant=GLOBEX), replace(first, endpoint="GET /"), replace(first, key="k", status=404)]
    with db.transaction() as begun:
        assert begun.insert_response(first)
        assert not begun.insert_response(twin)
        assert [begun.insert_response(other) for other in others] == [True, True, True]
    with db.transaction() as begun:
        assert not begun.insert_response(twin)
        for stored in (first, *others):
            assert begun.find_response(stored.tenant, stored.endpoint, stored.key) == stored


def test_an_expired_answer_is_replaced(db: StoreFixture) -> None:
    first = response()
    new = response(request_hash="new", status=202, body="new", created_at=AT + SECOND, expires_at=AT + 2 * SECOND)
    with db.transaction() as begun:
        begun.insert_response(first)
        assert not begun.insert_response(replace(new, created_at=AT + timedelta(microseconds=999_999)))
        assert begun.insert_response(new)
        assert begun.find_response(ACME, "POST /runs", "key") == new


def test_expired_answers_are_purged_a_few_at_a_time(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    with db.transaction() as begun:
        for number in range(3):
            begun.insert_response(response(key=f"old {number}", tenant=(ACME, GLOBEX)[number % 2]))
        begun.insert_response(response(key="new", expires_at=AT + timedelta(seconds=1.000001)))
        assert begun.purge_responses(AT + SECOND - timedelta(microseconds=1), 9) == 0
        assert [begun.purge_responses(AT + SECOND, 2) for _ in range(3)] == [2, 1, 0]
        assert begun.find_response(ACME, "POST /runs", "new") is not None
        assert begun.find_response(ACME, "POST /runs", "old 0") is begun.find_response(GLOBEX, "POST /runs", "old 1") is None


# The audit trail, which is the event stream.


def some_history(db: StoreFixture) -> tuple[Run, Task]:
    """Two runs, their tasks and an allocated worker that have moved by turns in several commits."""
    run, other = db.put(db.run()), db.put(db.run())
    task, _ = db.put_task(run), db.put_task(other, run_open=True)
    worker = db.put(db.worker(run_id=run.id))
    with db.transaction() as begun:
        run = db.move_in(begun, run, "RUNNING")
        task = db.move_in(begun, task, "QUEUED")
        db.move_in(begun, other, "RUNNING")
        worker = db.move_in(begun, worker, "IDLE")
    db.move(worker, "BUSY")
    task = db.move(task, "RUNNING", worker_id=worker.id)
    return db.move(run, "PAUSED"), db.move(task, "SUCCEEDED")


def read_on(db: StoreFixture, limit: int, run_id: str | None = None, after: str | None = None) -> list[Event]:
    """The whole stream, page by page, each from the last position of the page before."""
    stream: list[Event] = []
    may_go_on = True
    while True:
        with db.store.read() as reader:
            page = reader.list_transitions(ACME, after=stream[-1].position if stream else after, limit=limit, run_id=run_id)
        assert len(page) <= limit
        assert not {event.position for event in page} & {event.position for event in stream}, "told twice"
        if not page:
            return stream
        assert may_go_on, "only the last page has room left"
        may_go_on = len(page) == limit
        stream += page


def test_the_stream_is_read_once_in_one_order_whatever_the_size_of_the_pages(db: StoreFixture) -> None:
    some_history(db)
    whole = read_on(db, 999)
    states = {"run": ["PENDING", "PENDING", "RUNNING", "RUNNING", "PAUSED"], "worker": ["INITIALIZING", "IDLE", "BUSY"]}
    states["task"] = ["PENDING", "PENDING", "QUEUED", "RUNNING", "SUCCEEDED"]
    for kind, expected in states.items():
        assert [event.to_state for event in whole if event.kind == kind] == expected
    assert len(whole) == 13
    for limit in (1, 2, 5):
        assert read_on(db, limit) == whole
    with db.store.read() as reader:
        assert not reader.is_held_back(), "no writer is active"


def test_the_stream_of_a_run_is_its_own_moves_and_those_of_its_tasks(db: StoreFixture) -> None:
    run, task = some_history(db)
    own = [event for event in read_on(db, 999) if event.entity_id in (run.id, task.id)]
    for limit in (1, 2, 999):
        assert read_on(db, limit, run_id=run.id) == own
    assert read_on(db, 2, run_id=run.id, after=own[1].position) == own[2:]
    with db.store.read() as reader:
        assert reader.list_history(ACME, task.id) == [event for event in own if event.entity_id == task.id]


def test_reading_from_the_end_shows_only_new_moves(db: StoreFixture) -> None:
    some_history(db)
    with db.store.read() as reader:
        end = reader.last_position()
    assert read_on(db, 9, after=end) == []
    run = db.put(db.run())
    assert [event.entity_id for event in read_on(db, 9, after=end)] == [run.id]


def test_the_stream_of_all_tenants_has_every_move_in_one_order(db: StoreFixture) -> None:
    some_history(db)
    db.tenant(GLOBEX)
    other = db.put(db.run(tenant=GLOBEX))
    with db.store.read() as reader:
        whole = reader.list_all_transitions(after=None, limit=999)
        assert [event for event in whole if event.tenant == ACME] == read_on(db, 999)
        assert [event.entity_id for event in whole if event.tenant == GLOBEX] == [other.id]
        assert whole == sorted(whole, key=lambda event: int(event.position))
        assert reader.list_all_transitions(after=whole[3].position, limit=2) == whole[4:6]


def test_an_empty_stream_can_be_read_from_its_end(db: StoreFixture) -> None:
    with db.store.read() as reader:
        assert reader.list_transitions(ACME, after=reader.last_position(), limit=9, run_id=None) == []


def test_moves_are_measured(db: StoreFixture) -> None:
    for seconds in (1.0, 2.0):
        run = db.put(db.run())
        db.move(run, "RUNNING", entered_at=AT + timedelta(seconds=seconds))
    newer = with_fields(MACHINES["standard.worker"], version=99)
    with db.transaction() as begun:
        machine_id = begun.insert_machine(newer, fingerprint="2", definition="2").id
        insert(begun, db.worker(), db.worker(machine_id=machine_id))
        assert sorted(begun.measure_transitions(ACME), key=str) == [
            ("standard.run", "PENDING", "RUNNING", 2, 1.5),
            ("standard.run", None, "PENDING", 2, 0.0),
            ("standard.worker", None, "INITIALIZING", 2, 0.0),
        ]


def test_the_tasks_of_runs_are_counted_by_phase_and_outcome(db: StoreFixture) -> None:
    first, second, other = (db.put(db.run()) for _ in range(3))
    for state in ("SKIPPED", "SKIPPED", "PENDING"):
        db.put_task(first, state=state)
    db.put_task(second, entered_at=AT - SECOND)
    db.put_task(second)
    db.put_task(other)
    with db.store.read() as reader:
        assert sorted(reader.count_tasks(ACME, [first.id, second.id])) == [
            (first.id, "done", "success", 2, AT + SECOND),
            (first.id, "held", None, 1, AT),
            (second.id, "held", None, 2, AT),
        ]
        assert reader.count_tasks(GLOBEX, [first.id]) == []
        assert reader.count_tasks(ACME, []) == []


def test_entities_that_stay_too_long_in_a_state_are_found(db: StoreFixture) -> None:
    run = db.put(db.run(entered_at=AT - SECOND))
    worker, task = db.put(db.worker()), db.put_task(run, entered_at=AT + SECOND)
    ended = (
        db.bring(db.put(db.run()), "CANCELED"),
        db.bring(db.put(db.worker()), "SHUTDOWN"),
        db.put_task(run, state="SKIPPED"),
    )
    limits = [(row.machine_id, row.state, 2.5) for row in (run, task, worker, *ended)]
    found = [
        ("run", run.id, "PENDING", run.entered_at),
        ("worker", worker.id, "INITIALIZING", AT),
        ("task", task.id, "PENDING", task.entered_at),
    ]
    with db.store.read() as reader:
        assert reader.count_overstayed(AT + timedelta(seconds=1.5), limits) == []
        assert reader.count_overstayed(AT + timedelta(seconds=2.4), limits) == found[:1]
        assert reader.count_overstayed(AT + timedelta(seconds=3.5), limits) == found[:2]
        assert reader.count_overstayed(AT + timedelta(seconds=99), limits) == found
        assert reader.count_overstayed(AT + timedelta(seconds=99), [(run.machine_id, "RUNNING", 0.0)]) == []
        assert reader.count_overstayed(AT + timedelta(seconds=99), [(worker.machine_id, "INITIALIZING", 99.5)]) == []


def list_notices(reader: Reader, tenant: str, **asked: Any) -> list[Notice]:
    """As they were inserted, without their positions."""
    return [
        Notice(**{name: getattr(each, name) for name in Notice.__struct_fields__})
        for each in reader.list_notices(tenant, **asked)
    ]


def test_notices_are_listed_newest_first(db: StoreFixture) -> None:
    first = Notice(tenant=ACME, kind="run", entity_id="r", run_id="r", subject="overstayed", message="…", at=AT)
    second = Notice(tenant=ACME, kind=WORDS, entity_id=WORDS, run_id=None, subject=WORDS, message=WORDS, at=AT - SECOND)
    theirs = replace(first, tenant=GLOBEX)
    db.tenant(GLOBEX)
    with db.transaction() as begun:
        begun.insert_notices([first, second])
        begun.insert_notices([theirs])
    with db.store.read() as reader:
        assert list_notices(reader, ACME, limit=9) == [second, first]
        assert list_notices(reader, ACME, limit=1) == [second]
        assert list_notices(reader, GLOBEX, limit=9) == [theirs]
        (newest, oldest) = reader.list_notices(ACME, limit=9)
        assert reader.list_notices(ACME, after=newest.position, limit=9) == [oldest]
        assert reader.list_notices(ACME, after=oldest.position, limit=9) == []
        assert list_notices(reader, ACME, limit=9, subject="overstayed") == [first]
        assert list_notices(reader, ACME, limit=9, created_after=AT) == [first]
        assert list_notices(reader, ACME, limit=9, created_before=AT) == [second]


def test_notices_about_a_run_include_those_about_its_tasks(db: StoreFixture) -> None:
    run = Notice(tenant=ACME, kind="run", entity_id="r", run_id="r", subject="budget", message="…", at=AT)
    task = replace(run, kind="task", entity_id="t")
    others = [replace(run, entity_id="s", run_id="s"), replace(run, tenant=GLOBEX)]
    db.tenant(GLOBEX)
    with db.transaction() as begun:
        begun.insert_notices([run, task, *others])
    with db.store.read() as reader:
        assert list_notices(reader, ACME, about="r", limit=9) == [task, run]
        assert list_notices(reader, ACME, about="t", limit=9) == [task]
        assert list_notices(reader, ACME, about="r", limit=1) == [task]


# The doctor.


def test_a_healthy_store_has_no_disagreements(db: StoreFixture) -> None:
    some_history(db)
    run = db.put(db.run(promised_usd=Decimal(2)))
    done, waits = db.put_task(run, state="SUCCEEDED"), db.put_task(run, run_open=True)
    last = db.put_task(run, run_open=True, open_dependencies=1)
    db.bring(db.put_task(run, machine="orchestrated.task", run_open=True), "validating")
    probe = db.bring(db.put_task(run, run_open=True), "RUNNING", reserved_usd=Decimal(2))
    db.bring(db.put(db.breaker()), "HALF_OPEN", probe_task_id=probe.id)
    for shut in (db.run(allocates=True), db.run(missing_tasks=1), db.run("supervised.job")):
        db.put_task(db.put(shut), run_open=False)
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(waits.id, done.id), Dependency(last.id, waits.id)])
        assert begun.list_disagreements() == []


Spoilt = tuple[Entity, str]
"""A row that is wrong, and a word from its description."""


def a_miscounted_task(db: StoreFixture) -> Spoilt:
    return db.put_task(open_dependencies=2, run_open=True), "open_dependencies is 2, but 0"


def a_task_that_waits_without_a_timer(db: StoreFixture) -> Spoilt:
    return db.put_task(available_at=AT + SECOND, run_open=True), "it waits for an instant, but has no timer"


def a_breaker_that_cools_down_without_a_timer(db: StoreFixture) -> Spoilt:
    return db.bring(db.put(db.breaker()), "OPEN", retry_at=AT + SECOND), "it waits for an instant, but has no timer"


def a_run_that_is_open_behind_the_back_of_its_tasks(db: StoreFixture) -> Spoilt:
    run = db.put(db.run())
    db.put_task(run, run_open=False)
    return run, "do not know that it is PENDING"


def a_run_that_is_shut_behind_the_back_of_its_tasks(db: StoreFixture) -> Spoilt:
    run = db.bring(db.put(db.run()), "PAUSED")
    db.put_task(run, run_open=True)
    return run, "do not know that it is PAUSED"


def a_run_that_promised_too_much(db: StoreFixture) -> Spoilt:
    run = db.put(db.run(promised_usd=Decimal(2)))
    db.bring(db.put_task(run, run_open=True), "RUNNING", reserved_usd=Decimal(1))
    return run, "promised"


def a_run_that_ended_and_has_workers(db: StoreFixture) -> Spoilt:
    run = db.put(db.run())
    db.put(db.worker(run_id=run.id))
    return db.bring(run, "CANCELED"), "workers are still allocated to it"


def a_breaker_whose_probe_does_not_run(db: StoreFixture) -> Spoilt:
    probe = db.put_task(run_open=True, name="probing")
    return db.bring(db.put(db.breaker()), "HALF_OPEN", probe_task_id=probe.id), "probing"


def a_worker_that_ended_and_holds_a_task(db: StoreFixture) -> Spoilt:
    worker = db.bring(db.put(db.worker()), "BUSY")
    db.bring(db.put_task(run_open=True), "RUNNING", worker_id=worker.id)
    with db.prompt.lawless("worker"):  # only the owner of the tables can do this
        type_columns(db.prompt, worker, phase="done", outcome="canceled", completed_at=AT + 9 * SECOND)
    return worker, "still holds tasks"


def a_forged_run(db: StoreFixture) -> Spoilt:
    return forge(db, db.put(db.run()))


def a_forged_task(db: StoreFixture) -> Spoilt:
    return forge(db, db.put_task(run_open=True))


def a_forged_worker(db: StoreFixture) -> Spoilt:
    return forge(db, db.put(db.worker()))


def a_forged_breaker(db: StoreFixture) -> Spoilt:
    return forge(db, db.put(db.breaker()))


def forge(db: StoreFixture, row: Entity) -> Spoilt:
    """Only the owner of the tables can do this."""
    db.prompt.suspend_law(kind_of(row))
    type_columns(db.prompt, row, state="FORGED")
    return row, f"it is FORGED, but its audit trail ends in {row.state}"


@pytest.mark.parametrize(
    "spoil",
    [
        a_miscounted_task,
        a_task_that_waits_without_a_timer,
        a_breaker_that_cools_down_without_a_timer,
        a_run_that_is_open_behind_the_back_of_its_tasks,
        a_run_that_is_shut_behind_the_back_of_its_tasks,
        a_run_that_promised_too_much,
        a_run_that_ended_and_has_workers,
        a_breaker_whose_probe_does_not_run,
        a_worker_that_ended_and_holds_a_task,
        a_forged_run,
        a_forged_task,
        a_forged_worker,
        a_forged_breaker,
    ],
)
def test_a_stored_value_that_a_recount_does_not_confirm_is_named(
    db: StoreFixture, spoil: Callable[[StoreFixture], Spoilt]
) -> None:
    row, word = spoil(db)
    with db.store.read() as reader:
        ((kind, name, what),) = reader.list_disagreements()
    assert (kind, name) == (kind_of(row), row.id)
    assert word in what


def test_a_run_that_succeeded_without_a_task_contradicts_it(db: StoreFixture) -> None:
    run = db.bring(db.put(db.run()), "SUCCEEDED")
    with db.prompt.lawless("task"):
        task = db.put(db.task(run, name="latecomer"))
    task = db.bring(task, "RUNNING")
    trails = ("SUCCEEDED", "success", "RUNNING", None)
    with db.store.read() as reader:
        assert reader.list_contradictions() == [Contradiction(run.id, "SUCCEEDED", task.id, "latecomer", "RUNNING", *trails)]


def test_rows_are_put_back_to_where_their_trails_end_and_the_law_holds_again(db: StoreFixture) -> None:
    run, task = db.bring(db.put(db.run()), "RUNNING"), db.bring(db.put_task(), "RUNNING")
    task = db.move(task, "FAILED")
    with db.prompt.lawless("run"), db.prompt.lawless("task"):
        db.prompt.ask("UPDATE run SET state = 'PAUSED', phase = 'held', actor = 'mallory' WHERE id = :id", id=run.id)
        db.prompt.ask("UPDATE task SET state = 'SKIPPED', outcome = 'success', revision = 99 WHERE id = :id", id=task.id)
    with db.transaction() as begun:
        begun.restore(Kind.RUN, [run.id])
        begun.restore(Kind.TASK, [task.id])
    with db.store.read() as reader:
        found = reader.find_task(task.tenant, task.id)
        assert reader.find_run(run.tenant, run.id) == run
        assert found is not None
        assert (found.state, found.outcome, found.revision, found.actor) == (
            task.state,
            task.outcome,
            task.revision,
            task.actor,
        )
        assert reader.list_broken_trails() == []
    with pytest.raises(Refused):
        db.prompt.ask("UPDATE run SET state = 'PENDING' WHERE id = :id", id=run.id)


# The hash chain over the audit trail.


def seal(previous: int, position: int) -> Seal:
    return Seal(position=position, previous=previous, digest=f"digest {position}", sealed_at=AT)


def test_a_seal_continues_the_one_before(db: StoreFixture) -> None:
    run = db.put(db.run())
    db.move(run, "RUNNING")
    with db.store.read() as reader:
        created, moved = (json.loads(line)[0] for line in (reader.read_trail(0, 10**9, 9) or (0, b""))[1].splitlines())
    first, second = seal(0, created), seal(created, moved)
    with db.transaction() as begun:
        assert begun.last_seal() is None
        assert begun.insert_seal(first)
    with db.transaction() as begun:
        assert not begun.insert_seal(seal(0, moved)), "another process was first"
        assert begun.insert_seal(second)
    with db.store.read() as reader:
        assert reader.last_seal() == second
        assert reader.list_seals(0, 9) == [first, second]
        assert reader.list_seals(0, 1) == [first]
        assert reader.list_seals(first.position, 9) == [second]


def test_a_transaction_that_may_not_be_idle_for_long_ends_as_any_other(db: StoreFixture) -> None:
    """Another process can only tell on PostgreSQL, where the server ends it."""
    with db.transaction() as begun:
        begun.limit_idle(1.0)
        begun.insert_runs([run := db.run()])
    assert find(db.store, run) == run


def test_the_trail_is_read_in_its_order_with_the_rows_of_all_tenants(db: StoreFixture) -> None:
    mine, theirs = db.put(db.run()), db.put(db.run(tenant=db.tenant(GLOBEX)))
    db.move(mine, "RUNNING", reason=WORDS)
    with db.store.read() as reader:
        last, lines = reader.read_trail(0, 10**9, 9) or (0, b"")
        first, second, third = rows = [json.loads(line) for line in lines.splitlines()]
        assert [row[3] for row in rows] == [mine.id, theirs.id, mine.id]
        assert WORDS in third
        assert last == third[0]
        assert reader.read_trail(first[0], second[0], 9) == (second[0], lines.splitlines()[1])
        assert reader.read_trail(0, 10**9, 1) == (first[0], lines.splitlines()[0])
        assert reader.read_trail(last, 10**9, 9) is None


def test_the_rows_of_the_law_are_listed(db: StoreFixture) -> None:
    machine_id = db.machine_ids["standard.run"]
    with db.store.read() as reader:
        states = [row for row in reader.list_states() if row.machine_id == machine_id]
        rules = [row for row in reader.list_rules() if row.machine_id == machine_id]
    machine = MACHINES["standard.run"]
    assert states == sorted(state_rows(machine_id, machine), key=lambda row: row.name)
    assert rules == sorted(rule_rows(machine_id, machine), key=lambda row: (row.from_state, row.to_state, row.trigger))


FORGERIES = {
    # what the owner of the tables does to a run, and what its trail shows
    "a line has another rule": (
        "trail",
        "UPDATE trail SET rule_id = (SELECT min(id) FROM rule WHERE to_state = 'PAUSED') WHERE kind = 0 AND revision = 1",
        "does not continue",
    ),
    "a line has the rule of another machine": (
        "trail",
        (
            "UPDATE trail SET rule_id = (SELECT max(rule.id) FROM rule JOIN machine ON machine.id = machine_id "
            "WHERE kind = 'task') WHERE kind = 0 AND revision = 1"
        ),
        "no rule of its machine",
    ),
    "a line has no rule": ("trail", "UPDATE trail SET rule_id = NULL WHERE kind = 0 AND revision = 1", "does not continue"),
    "a line has a rule that does not exist": ("trail", "UPDATE trail SET rule_id = -1 WHERE revision = 1", "does not continue"),
    "a line is deleted": ("trail", "DELETE FROM trail WHERE revision = 1", "does not continue"),
    "the last line is deleted": ("trail", "DELETE FROM trail WHERE revision = 2", "differs from the last line"),
    "a line is added": (
        "trail",
        (
            "INSERT INTO trail (number, kind, revision, rule_id, at) "
            "SELECT number, kind, 3, (SELECT min(id) FROM rule WHERE from_state = 'FAILED' AND to_state = 'RUNNING'), at "
            "FROM trail WHERE kind = 0 AND revision = 2"
        ),
        "differs from the last line",
    ),
    "its actor is rewritten": ("run", "UPDATE run SET actor = 'mallory'", "differs from the last line"),
    "a line is about nothing": ("trail", "UPDATE trail SET number = number + 1000 WHERE kind = 0", "there is no such run"),
    "an attempt is deleted": ("trail", "UPDATE trail SET started_at = NULL", "but 0 are stored"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_trail_that_does_not_explain_its_entity_is_named(db: StoreFixture, forgery: str) -> None:
    table, statement, word = FORGERIES[forgery]
    db.bring(db.put(db.run()), "FAILED")
    db.move(db.bring(db.put_task(), "RUNNING"), "FAILED")
    with db.store.read() as reader:
        assert reader.list_broken_trails() == []
    with db.prompt.lawless(table):
        db.prompt.ask(statement)
    with db.store.read() as reader:
        found = reader.list_broken_trails()
    assert any(word in what for _, _, what in found), found


def test_runs_that_have_not_ended_although_all_tasks_have_succeeded_are_listed(db: StoreFixture) -> None:
    def run(state: str, *task_states: str, **columns: Any) -> Run:
        row = db.bring(db.put(db.run(**columns)), state)
        for task_state in task_states:
            db.put_task(row, state=task_state)
        return row

    unended = [run("RUNNING", "SUCCEEDED", "SKIPPED"), run("VALIDATING"), run("PAUSED", "SUCCEEDED")]
    for other in ("PENDING", "QUEUED", "RUNNING", "FAILED", "CANCELED"):
        run("RUNNING", "SUCCEEDED", other)
    run("RUNNING", "SUCCEEDED", missing_tasks=1)
    for ended in ("SUCCEEDED", "FAILED", "CANCELED"):
        run(ended)
    with db.store.read() as reader:
        assert reader.list_unended_runs() == [(row.id, row.tenant, row.machine_id, row.state, False) for row in unended]


def test_runs_are_stalled_when_nothing_moves_and_no_person_is_asked(db: StoreFixture) -> None:
    db.tenant(GLOBEX)

    def running(*states: str, tenant: str = ACME, run_state: str = "RUNNING", **columns: Any) -> Run:
        run = db.bring(db.put(db.run(tenant=tenant)), run_state)
        for state in states:
            db.put_task(run, state=state, tenant=tenant, **columns)
        return run

    stalled = [running("SUCCEEDED", "FAILED", tenant=GLOBEX), running("QUEUED", "PENDING", open_dependencies=1)]
    running("SUCCEEDED", "SKIPPED"), running()
    for state in ("QUEUED", "PENDING", "WAITING_APPROVAL", "BLOCKED", "RUNNING", "VALIDATING"):
        running("FAILED", state)
    for run_state in ("PENDING", "WAITING", "PAUSED", "FAILED"):
        running("FAILED", run_state=run_state)
    with db.store.read() as reader:
        assert reader.list_stalled_runs() == [(run.id, run.tenant) for run in stalled]


def test_tasks_that_failed_for_good_are_listed_latest_first(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    running, failed, canceled = (db.bring(db.put(db.run()), state) for state in ("RUNNING", "FAILED", "CANCELED"))
    first = db.put_task(running, state="FAILED", payload=JSON)
    second = db.put_task(failed, state="TIMED_OUT", tenant=GLOBEX)
    for state in ("CANCELED", "SUCCEEDED", "RUNNING", "QUEUED"):
        db.put_task(running, state=state)
    db.put_task(canceled, state="FAILED")
    with db.store.read() as reader:
        assert reader.list_failed_tasks(9) == [second, first]
        assert reader.list_failed_tasks(1) == [second]


def test_dependencies_are_recounted_for_tasks_that_do_not_run(db: StoreFixture) -> None:
    run = db.put(db.run())
    over, pending = db.put_task(run, state="SUCCEEDED"), db.put_task(run)
    columns: dict[str, Any] = {"open_dependencies": 7}
    waiting = _, queued, canceled, untouched = [db.put_task(run, **columns) for _ in range(4)]
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(task.id, other.id) for task in waiting for other in (over, pending)])
    db.bring(queued, "QUEUED")
    db.bring(canceled, "CANCELED")
    with db.transaction() as begun:
        begun.recount_dependencies([task.id for task in waiting if task is not untouched])
        assert [task.open_dependencies for task in begun.select_tasks(ids(waiting))] == [1, 1, 1, 7]


def test_results_are_those_of_the_named_tasks_and_their_subtasks(db: StoreFixture) -> None:
    run = db.put(db.run())
    whole = db.put_task(run, name="whole")
    part = db.put_task(run, name="whole[0]", parent_task_id=whole.id, depth=1)
    db.put_task(run, name="other")
    with db.store.read() as reader:
        results = reader.list_results(ACME, run.id, ["whole", "unknown"])
        assert [(result.name, result.parent, result.by_worker) for result in results] == [
            ("whole", None, False),
            (part.name, "whole", False),
        ]
        assert reader.list_results(GLOBEX, run.id, ["whole"]) == []
        assert reader.list_results(ACME, run.id, []) == []


def test_a_failing_duty_is_kept_until_it_works_again_or_is_forgotten(db: StoreFixture) -> None:
    failing = DutyFailure(name="timers", process="box:1", failures=1, error=WORDS, failed_at=AT)
    elsewhere = replace(failing, process="box:2", failed_at=AT + SECOND)
    worse = replace(failing, failures=2, failed_at=AT + 2 * SECOND)
    with db.transaction() as begun:
        for failure in (failing, elsewhere, worse):
            begun.save_duty_failure(failure)
    with db.transaction() as begun:
        assert begun.list_duty_failures(AT) == [worse, elsewhere]
        assert begun.list_duty_failures(AT + SECOND) == [worse], "only what is later"
        begun.drop_duty_failures("timers", "box:1", AT)
        assert begun.list_duty_failures(AT) == [elsewhere]
        begun.drop_duty_failures("journal", "box:3", AT + 2 * SECOND)
        assert begun.list_duty_failures(AT) == [], "what is older is dropped, too"

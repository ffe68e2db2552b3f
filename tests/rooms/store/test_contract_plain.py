"""One contract, one suite: plain tasks begin and end in one statement, which leaves out every task that is not plain."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from tests.rooms.store.outsider import type_columns, type_spec
from tests.rooms.store.store_fixture import ACME, AT, GLOBEX, JSON, SECOND, WORDS, StoreFixture, attempt_of, find, ids

from pointsman.errors import LawBroken
from pointsman.store.contract import Transaction
from pointsman.store.rows import ZERO_USD, Account, BegunTask, Dependency, EndedTask, PlainMove, PlainReport, Task, Worker

LATER = AT + 60 * SECOND
POLICY = '{"expected_exit_codes":[0]}'


def move_of(task: Task, to_state: str, trigger: str, **told: Any) -> PlainMove:
    ends = to_state == "SUCCEEDED"
    told = {"stores_output": ends, "needs_worker": not ends} | told
    return PlainMove(machine_id=task.machine_id, from_state=task.state, to_state=to_state, trigger=trigger, **told)


def begin(begun: Transaction, worker: Worker, like: Task, limit: int = 9, **told: Any) -> list[BegunTask]:
    moves = [move_of(like, "RUNNING", "claim", **told)]
    return begun.begin_plain_tasks(worker, ACME, [like.lane_id], limit, moves, LATER)


def end(begun: Transaction, tasks: Sequence[Task], tenant: str = ACME, **told: Any) -> list[EndedTask]:
    reports = [PlainReport(task.id, task.epoch, **told) for task in tasks]
    return begun.end_plain_tasks(tenant, reports, [move_of(tasks[0], "SUCCEEDED", "complete")], LATER)


def put_waiting(db: StoreFixture, number: int, **columns: Any) -> list[Task]:
    run = db.put(db.run())
    return [db.put_task(run, state="QUEUED", run_open=True, policy=POLICY, **columns) for _ in range(number)]


def put_running(db: StoreFixture, number: int, **columns: Any) -> list[Task]:
    """The last of them is as the columns say, the others are plain."""
    run = db.put(db.run())
    tasks = [db.put_task(run, state="RUNNING", policy=POLICY) for _ in range(number - 1)]
    return [*tasks, db.put_task(run, state="RUNNING", **{"policy": POLICY, **columns})]


def test_plain_tasks_begin_as_a_claim_would_begin_them(db: StoreFixture) -> None:
    tasks = [*put_waiting(db, 2), *put_waiting(db, 1, priority=5, payload=JSON)]
    worker = db.put(db.worker(max_concurrent_tasks=9))
    with db.transaction() as begun:
        begun.lock_workers([worker.id])
        got = begin(begun, worker, tasks[0], limit=2)
        assert begun.count_held([worker.id]) == {worker.id: 2}
    assert ids(got) == [tasks[2].id, tasks[0].id], "by priority and age"
    assert (got[0].run_id, got[0].payload, got[0].run_phase, got[0].entered_at) == (tasks[2].run_id, JSON, "queued", LATER)
    assert find(db.store, tasks[1]) == tasks[1]
    for task in (tasks[2], tasks[0]):
        expected: dict[str, Any] = {"state": "RUNNING", "phase": "active", "revision": task.revision + 1, "trigger": "claim"}
        expected |= {"actor": worker.id, "metadata": f'{{"worker_id":"{worker.id}","epoch":1}}', "entered_at": LATER}
        expected |= {"started_at": LATER, "epoch": 1, "current_attempt": 1, "attempt_count": 1, "reason": None}
        expected |= {"worker_id": worker.id, "attempt_worker_id": worker.id, "attempt_started_at": LATER}
        assert find(db.store, task) == replace(task, **expected)


def test_plain_tasks_end_as_a_report_would_end_them(db: StoreFixture) -> None:
    tasks = put_running(db, 3)
    with db.transaction() as begun:
        ended = end(begun, tasks[:2], output=JSON, exit_code=0, session_id="s", log_path=WORDS)
    policy, worker_id = tasks[0].policy, tasks[0].attempt_worker_id
    assert worker_id
    assert sorted(ended, key=lambda task: task.id) == [
        EndedTask(id=task.id, run_id=task.run_id, worker_id=worker_id, parent_task_id=None, has_dependents=False, policy=policy)
        for task in tasks[:2]
    ]
    assert find(db.store, tasks[2]) == tasks[2]
    for task in tasks[:2]:
        expected: dict[str, Any] = {"state": "SUCCEEDED", "phase": "done", "outcome": "success", "revision": task.revision + 1}
        expected |= {"trigger": "complete", "actor": worker_id, "metadata": None, "reason": None, "entered_at": LATER}
        expected |= {"completed_at": LATER, "current_attempt": None, "worker_id": None, "attempt_error": None}
        expected |= {"output": JSON, "attempt_exit_code": 0, "session_id": "s", "attempt_log_path": WORDS}
        assert find(db.store, task) == replace(task, **expected)
        with db.store.read() as reader:
            assert reader.list_attempts(ACME, task.id) == [
                attempt_of(
                    task,
                    exit_code=0,
                    log_path=WORDS,
                    session_id="s",
                    started_at=task.attempt_started_at,
                    ended_at=LATER,
                    ended_by="complete",
                )
            ]


def test_what_has_to_follow_is_told(db: StoreFixture) -> None:
    run = db.put(db.run())
    parent = db.put_task(run, state="RUNNING", has_subtasks=True)
    part = db.put_task(run, state="RUNNING", parent_task_id=parent.id, depth=1)
    next_one = db.task(run, open_dependencies=1)
    with db.transaction() as begun:
        begun.insert_tasks([next_one])
        begun.insert_dependencies([Dependency(next_one.id, part.id)])
    with db.transaction() as begun:
        (ended,) = end(begun, [part, parent])
    assert (ended.id, ended.parent_task_id, ended.has_dependents) == (part.id, parent.id, True)


NOT_PLAIN_TO_BEGIN: dict[str, dict[str, Any]] = {
    "epoch": {"epoch": 1},
    "retry_count": {"retry_count": 1},
    "budget_usd": {"budget_usd": ZERO_USD},
    "session_id": {"session_id": ""},
    "question": {"question": ""},
    "answer": {"answer": ""},
    "comment": {"comment": ""},
    "cancel_requested_at": {"cancel_requested_at": AT},
    "keep_session": {"keep_session": True},
    "has_checks": {"has_checks": True},
    "review_wanted": {"review_wanted": True},
    "is_gate": {"is_gate": True},
    "allocated": {"allocated": True},
    "run_open": {"run_open": False},
    "open_dependencies": {"open_dependencies": 1},
    "available_at": {"available_at": AT},
}


@pytest.mark.parametrize("column", NOT_PLAIN_TO_BEGIN)
def test_a_task_does_not_begin_this_way_with(db: StoreFixture, column: str) -> None:
    special, plain = put_waiting(db, 2, max_retries=2)
    worker = db.put(db.worker(max_concurrent_tasks=9))
    with db.prompt.lawless("task"):
        (type_spec if column in Task.SPEC else type_columns)(db.prompt, special, **NOT_PLAIN_TO_BEGIN[column])
    assert getattr(find(db.store, special), column) != getattr(special, column)
    with db.transaction() as begun:
        assert ids(begin(begun, worker, plain)) == [plain.id]


NOT_PLAIN_TO_END: dict[str, dict[str, Any]] = {
    "lease_expired": {"lease_expired": True},
    "has_checks": {"has_checks": True},
    "review_wanted": {"review_wanted": True},
    "has_subtasks": {"has_subtasks": True},
    "reserved_usd": {"reserved_usd": Decimal("0.000001")},
    "retry_count": {"retry_count": 1},
    "policy": {"policy": '{"expected_exit_codes":[0,3]}'},
}


@pytest.mark.parametrize("column", NOT_PLAIN_TO_END)
def test_a_task_does_not_end_this_way_with(db: StoreFixture, column: str) -> None:
    plain, special = put_running(db, 2, max_retries=2)
    with db.prompt.lawless("task"):
        (type_spec if column in Task.SPEC else type_columns)(db.prompt, special, **NOT_PLAIN_TO_END[column])
    with db.transaction() as begun:
        assert ids(end(begun, [special, plain])) == [plain.id]


def test_only_the_attempt_that_holds_a_task_ends_it(db: StoreFixture) -> None:
    first, second, third = put_running(db, 3)
    with db.transaction() as begun:
        late = replace(second, epoch=2)
        unknown = replace(third, id="unknown")
        assert end(begun, [first, late, unknown], tenant=GLOBEX) == []
        assert ids(end(begun, [first, late, unknown])) == [first.id]
        assert end(begun, [first]) == [], "it has ended"


def test_who_reports_with_a_key_ends_only_what_its_workers_hold(db: StoreFixture) -> None:
    with db.transaction() as begun:
        begun.ensure_tenant(ACME, AT)
    tasks = put_running(db, 2)
    moves = [move_of(tasks[0], "SUCCEEDED", "complete")]
    with db.transaction() as begun:
        assert begun.end_plain_tasks(ACME, [PlainReport(tasks[0].id, 1)], moves, LATER, "key_of_somebody_else") == []
        assert ids(begun.end_plain_tasks(ACME, [PlainReport(tasks[0].id, 1)], moves, LATER)) == [tasks[0].id]


def test_a_tool_is_asked_for_by_no_plain_task(db: StoreFixture) -> None:
    with db.transaction() as begun:
        lane = begun.insert_lane(ACME, "git", "[]", fails_fast=False)
    (with_tool,) = put_waiting(db, 1, lane_id=lane.id)
    running = put_running(db, 2, lane_id=lane.id)
    worker = db.put(db.worker())
    with db.transaction() as begun:
        assert begin(begun, worker, with_tool) == []
        assert ids(end(begun, running)) == [running[0].id]


def test_nothing_begins_this_way_where_money_is_counted(db: StoreFixture) -> None:
    rich = db.put(db.run(budget_usd=Decimal(1)))
    db.put_task(rich, state="QUEUED", run_open=True, policy=POLICY)
    (plain,) = put_waiting(db, 1)
    worker = db.put(db.worker(max_concurrent_tasks=9))
    with db.transaction() as begun:
        begun.set_account_budgets([Account(tenant=ACME, budget_usd=Decimal(1))])
        assert begin(begun, worker, plain) == []
        begun.set_account_budgets([Account(tenant=ACME, budget_usd=None)])
        assert ids(begin(begun, worker, plain)) == [plain.id]


def test_a_lost_attempt_comes_first(db: StoreFixture) -> None:
    run = db.put(db.run())
    lost = db.put_task(run, state="RUNNING", run_open=True)
    with db.prompt.lawless("task"):
        type_columns(db.prompt, lost, lease_expired=True)
    (plain,) = put_waiting(db, 1)
    worker = db.put(db.worker(max_concurrent_tasks=9))
    moves = [move_of(plain, "RUNNING", "claim")]
    with db.transaction() as begun:
        assert begin(begun, worker, plain) == []
        begun.lock_runs([plain.run_id])
        assert ids(begun.begin_plain_tasks(worker, ACME, [db.lane_id], 9, moves, LATER, plain.run_id)) == [plain.id]


def test_lanes_of_one_run_are_taken_in_one_order(db: StoreFixture) -> None:
    run, other = db.put(db.run()), db.put(db.run())
    lanes = [db.lane_id, db.lane("gpu")]
    tasks = [
        db.put_task(run, state="QUEUED", run_open=True, policy=POLICY, lane_id=lanes[number % 2], priority=number % 3)
        for number in range(6)
    ]
    db.put_task(other, state="QUEUED", run_open=True, policy=POLICY, priority=9)
    worker = db.put(db.worker(max_concurrent_tasks=9))
    moves = [move_of(tasks[0], "RUNNING", "claim")]
    in_order = [task.id for task in sorted(tasks, key=lambda task: (-task.priority, task.id))]
    with db.transaction() as begun:
        begun.lock_runs([run.id])
        assert ids(begun.begin_plain_tasks(worker, ACME, lanes, 4, moves, LATER, run.id)) == in_order[:4]
        assert ids(begun.begin_plain_tasks(worker, ACME, lanes, 4, moves, LATER, run.id)) == in_order[4:]


REFUSED: dict[str, dict[str, Any]] = {
    "no rule": {"trigger": "whim"},
    "another state": {"to_state": "SUCCEEDED"},
    "no worker": {"needs_worker": False},
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_law_checks_this_way_too(db: StoreFixture, what: str) -> None:
    (task,) = put_waiting(db, 1)
    worker = db.put(db.worker())
    wrong = replace(move_of(task, "RUNNING", "claim"), **REFUSED[what])
    with pytest.raises(LawBroken), db.transaction() as begun:
        begun.begin_plain_tasks(worker, ACME, [db.lane_id], 9, [wrong], LATER)
    assert find(db.store, task) == task


def test_the_law_lets_no_worker_hold_more_than_it_may(db: StoreFixture) -> None:
    tasks = put_waiting(db, 3)
    worker = db.put(db.worker(max_concurrent_tasks=2))
    with pytest.raises(LawBroken), db.transaction() as begun:
        begin(begun, worker, tasks[0], limit=3)
    assert [find(db.store, task) for task in tasks] == tasks

"""One contract, one suite: runs, tasks, claims, dependencies, subtasks and attempts."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.rooms.store.store_fixture import (
    ACME,
    AT,
    GLOBEX,
    MACHINES,
    SECOND,
    WORDS,
    StoreFixture,
    attempt_of,
    find,
    ids,
    move,
    update,
)

from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.contract import Transaction
from pointsman.store.rows import ZERO_USD, Dependency, Run, Subtasks, Task

# Runs.


def test_runs_are_listed_newest_first_in_pages(db: StoreFixture) -> None:
    runs = [db.put(db.run()) for _ in range(5)]
    active = db.bring(runs[1], "RUNNING")
    newest = ids(runs)[::-1]
    with db.store.read() as reader:
        assert ids(reader.list_runs(ACME, phase=None, after=None, limit=9)) == newest
        assert ids(reader.list_runs(ACME, phase=None, after=None, limit=2)) == newest[:2]
        assert ids(reader.list_runs(ACME, phase=None, after=newest[1], limit=2)) == newest[2:4]
        assert ids(reader.list_runs(ACME, phase=None, after=newest[-1], limit=2)) == []
        assert reader.list_runs(ACME, phase="active", after=None, limit=9) == [active]
        assert ids(reader.list_runs(ACME, phase="queued", after=newest[1], limit=9)) == [newest[2], newest[4]]


def test_runs_are_locked_in_the_order_of_their_ids(db: StoreFixture) -> None:
    runs = [db.put(db.run()) for _ in range(3)]
    with db.transaction() as begun:
        assert begun.lock_runs(ids(runs)[::-1]) == runs
        assert begun.lock_runs({runs[1].id, "unknown"}) == [runs[1]]
        assert begun.try_lock_run(runs[2].id) == runs[2]
        assert begun.try_lock_run("unknown") is None


def test_runs_are_locked_by_their_tasks_too(db: StoreFixture) -> None:
    """Each once, in the order of their ids, whether the run, one of its tasks or both are named."""
    runs = [db.put(db.run()) for _ in range(4)]
    tasks = [db.put_task(run) for run in runs]
    sister = db.put_task(runs[0])
    with db.transaction() as begun:
        assert begun.lock_runs([], of_tasks=[tasks[2].id, sister.id, tasks[0].id, "unknown"]) == [runs[0], runs[2]]
        assert begun.lock_runs([runs[3].id, runs[0].id], of_tasks={tasks[1].id, tasks[0].id}) == [runs[0], runs[1], runs[3]]
        assert begun.lock_runs([runs[1].id], of_tasks=["unknown"]) == [runs[1]]


def test_runs_that_wait_for_allocated_workers_are_listed_oldest_first(db: StoreFixture) -> None:
    young = db.put(db.run(allocates=True, created_at=AT))
    old = db.put(db.run(allocates=True, created_at=AT - SECOND))
    db.put(db.run(allocates=False, created_at=AT - 2 * SECOND))
    db.put(db.run("supervised.job", allocates=True))
    db.bring(db.put(db.run(allocates=True)), "CANCELED")
    with db.transaction() as begun:
        assert begun.list_allocatable_runs(9) == [(old.id, ACME), (young.id, ACME)]
        assert begun.list_allocatable_runs(1) == [(old.id, ACME)]


def test_a_run_that_has_lost_allocated_workers_is_listed_again(db: StoreFixture) -> None:
    robbed, complete = (db.bring(db.put(db.run(allocates=True, worker_count=2)), "RUNNING") for _ in range(2))
    shared = db.bring(db.put(db.run(worker_count=2)), "RUNNING")
    for run in (robbed, complete, complete, shared):
        db.put(db.worker(run_id=run.id))
    with db.transaction() as begun:
        assert begun.list_allocatable_runs(9) == [(robbed.id, ACME)]


class Like(NamedTuple):
    """One kind of task."""

    state: str
    goes_on: bool = False
    """It goes on without a person."""
    critical: bool = True
    open_dependencies: int = 0
    available_at: datetime | None = None

    @property
    def ended(self) -> bool:
        return MACHINES["standard.task"].state(self.state).phase == Phase.DONE

    @property
    def succeeded(self) -> bool:
        return MACHINES["standard.task"].state(self.state).outcome == Outcome.SUCCESS

    def put(self, db: StoreFixture, begun: Transaction, run: Run, **columns: Any) -> str:
        task = db.task(run, critical=self.critical, open_dependencies=self.open_dependencies, **columns)
        return db.bring_in(begun, db.put_in(begun, task), self.state, available_at=self.available_at).id


LIKE_THIS = (
    Like("SUCCEEDED"),
    Like("SKIPPED"),
    Like("FAILED"),
    Like("FAILED", critical=False),
    Like("CANCELED"),
    Like("CANCELED", critical=False),
    Like("PENDING"),
    Like("WAITING_APPROVAL"),
    Like("RETRYING", available_at=AT, goes_on=True),
    Like("QUEUED", goes_on=True),
    Like("QUEUED", critical=False, goes_on=True),
    Like("QUEUED", open_dependencies=1),
    Like("QUEUED", available_at=AT, goes_on=True),
    Like("RUNNING", goes_on=True),
    Like("VALIDATING", critical=False, goes_on=True),
)
ALONE_AND_IN_PAIRS = [*((each,) for each in LIKE_THIS), *combinations_with_replacement(LIKE_THIS, 2)]


def test_the_situation_of_a_run_follows_from_all_of_its_tasks(db: StoreFixture) -> None:
    """Runs without a task, with one, and with each possible pair of tasks."""
    with db.transaction() as begun:
        runs = [(db.put_in(begun, db.run()), likes) for likes in [(), *ALONE_AND_IN_PAIRS]]
        tasks = {run.id: {like.put(db, begun, run): like for like in likes} for run, likes in runs}
        assessed = {situation.run_id: situation for situation in begun.assess_runs(list(tasks))}
    assert assessed.keys() == tasks.keys()
    for run_id, likes in tasks.items():
        found = assessed[run_id]
        failed = [name for name, like in likes.items() if like.ended and not like.succeeded]
        assert one_of(found.failed_task, [name for name in failed if likes[name].critical])
        assert one_of(found.last_failure, failed if all(like.ended for like in likes.values()) else [])
        assert found.unfinished == any(not like.succeeded for like in likes.values())
        assert found.moving == any(like.goes_on for like in likes.values())


def one_of(found: str | None, expected: list[str]) -> bool:
    return found in expected if expected else found is None


def test_a_run_opens_and_closes_its_tasks(db: StoreFixture) -> None:
    shut, wide, other = (db.put(db.run()) for _ in range(3))
    rows = {run.id: [db.put_task(run, run_open=run is not shut) for _ in range(2)] for run in (shut, wide, other)}
    for is_open in (True, False):
        with db.transaction() as begun:
            begun.open_runs([shut.id, wide.id], is_open=is_open)
        with db.store.read() as reader:
            for run, expected in ((shut, is_open), (wide, is_open), (other, True)):
                assert reader.list_tasks(ACME, run.id) == [replace(task, run_open=expected) for task in rows[run.id]]


# Tasks.


def test_tasks_are_listed_in_the_order_of_their_run(db: StoreFixture) -> None:
    run = db.put(db.run())
    last, first, tie = (db.put_task(run, position=position, payload=WORDS) for position in (7, -1, 7))
    db.put_task()
    with db.store.read() as reader:
        assert reader.list_tasks(ACME, run.id) == [first, last, tie]
        in_brief = [replace(task, payload=None) for task in (first, last, tie)]
        assert reader.list_tasks_in_brief(ACME, run.id) == in_brief


def test_tasks_are_selected_without_payload_and_output(db: StoreFixture) -> None:
    run = db.put(db.run())
    one, two, three = (db.put_task(run, payload=f'"{number}"') for number in range(3))
    with db.transaction() as begun:
        assert begun.select_tasks([three.id, "unknown", one.id]) == [
            replace(row, payload=UNSET, output=UNSET) for row in (one, three)
        ]
        to_claim = begun.select_to_claim([two.id, one.id, "unknown"])
        assert sorted(to_claim, key=lambda row: row.id) == [replace(row, output=UNSET) for row in (one, two)]
        assert {row.id: row.payload for row in to_claim} == {one.id: '"0"', two.id: '"1"'}


def test_an_output_stays_until_another_is_stored(db: StoreFixture) -> None:
    task = db.put_task(state="RUNNING")
    with_output = db.move(task, "VALIDATING", output=WORDS)
    unread = db.move(replace(with_output, output=UNSET, payload=UNSET), "READY")
    assert find(db.store, task) == replace(unread, output=WORDS, payload="null")
    with db.transaction() as begun:
        update(begun, replace(unread, comment="fine"))
    assert find(db.store, task) == replace(unread, output=WORDS, payload="null", comment="fine")
    assert find(db.store, db.move(replace(unread, output=None), "SUCCEEDED")).output is None


def test_a_move_does_not_write_columns_with_queries_of_their_own(db: StoreFixture) -> None:
    task = db.put_task(open_dependencies=2, run_open=False)
    with db.transaction() as begun:
        begun.open_runs([task.run_id], is_open=True)
        moved = db.move_in(begun, replace(task, open_dependencies=9), "QUEUED")
        update(begun, replace(moved, open_dependencies=7, comment="seen"))
    assert find(db.store, task) == replace(moved, open_dependencies=2, run_open=True, comment="seen")


def test_tasks_of_a_run_are_selected_by_phase_unless_they_have_succeeded(db: StoreFixture) -> None:
    run = db.put(db.run())
    states = ("PENDING", "RETRYING", "QUEUED", "RUNNING", "VALIDATING", "FAILED", "CANCELED", "SUCCEEDED")
    tasks = {state: replace(db.put_task(run, state=state), payload=UNSET, output=UNSET) for state in states}
    db.put_task(state="QUEUED")

    def of(*wanted: str) -> list[Task]:
        return [tasks[state] for state in wanted]

    with db.transaction() as begun:
        assert begun.select_run_tasks(run.id, ["queued"]) == of("QUEUED")
        assert begun.select_run_tasks(run.id, {"held", "active"}) == of("PENDING", "RETRYING", "RUNNING", "VALIDATING")
        assert begun.select_run_tasks(run.id, ["done"]) == of("FAILED", "CANCELED")
        assert begun.select_run_tasks(run.id, ["held", "queued", "active", "done"]) == of(*states[:-1])


def test_the_tasks_of_a_run_are_known_by_their_names(db: StoreFixture) -> None:
    run = db.put(db.run())
    build, deploy = db.put_task(run, name="build"), db.put_task(run, name=WORDS)
    db.put_task(name="build")
    with db.transaction() as begun:
        assert begun.find_task_names(run.id) == {"build": build.id, WORDS: deploy.id}


def test_tasks_are_claimed_by_priority_then_by_age_over_all_lanes(db: StoreFixture) -> None:
    lanes = [db.lane_id, db.lane("gpu"), db.lane("tpu")]
    wanted = [(0, 0), (1, 5), (0, 5), (2, 9), (1, 0), (0, -1), (1, 5), (0, 0)]
    tasks = [db.put_task(state="QUEUED", run_open=True, lane_id=lanes[lane], priority=priority) for lane, priority in wanted]
    order = [replace(tasks[number], output=UNSET) for number in (3, 1, 2, 6, 0, 4, 7, 5)]
    with db.transaction() as begun:
        for asked in (lanes, lanes[:1], lanes[:0:-1]):
            for limit in (1, 3, 5, 99):
                found = begun.select_claimable(asked, limit)
                assert found == [task for task in order if task.lane_id in asked][:limit]


NOT_READY: dict[str, tuple[str, dict[str, Any]]] = {
    "waits for others": ("QUEUED", {"open_dependencies": 1}),
    "waits for an instant, though it has come": ("QUEUED", {"available_at": AT - SECOND}),
    "its run is not open": ("QUEUED", {"run_open": False}),
    "is a gate": ("QUEUED", {"is_gate": True}),
    "is held": ("PENDING", {}),
    "is held by a worker": ("RUNNING", {}),
    "is over": ("FAILED", {}),
}


def put_unready(db: StoreFixture, what: str, run: Run, **columns: Any) -> Task:
    """A claimable task but for these columns; what it waits for comes with its last move."""
    state, lack = NOT_READY[what]
    waits = {"available_at": lack.get("available_at")}
    return db.bring(db.put_task(run, **{"run_open": True, **columns, **lack, "available_at": None}), state, **waits)


@pytest.mark.parametrize("what", NOT_READY)
def test_a_task_that_is_not_ready_is_not_claimed(db: StoreFixture, what: str) -> None:
    """Neither by any worker, nor for its run, nor by the workers that are allocated to its run."""
    ready = db.put_task(state="QUEUED", run_open=True)
    put_unready(db, what, db.put(db.run()))
    put_unready(db, what, find(db.store, replace(db.run(), id=ready.run_id)))
    run = db.put(db.run())
    kept = db.put_task(run, state="QUEUED", run_open=True, allocated=True)
    put_unready(db, what, run, allocated=True)
    with db.transaction() as begun:
        assert ids(begun.select_claimable([db.lane_id], 99)) == [ready.id]
        assert begun.find_claimable_runs([db.lane_id], 99) == [ready.run_id]
        assert ids(begun.select_claimable_of_run(ready.run_id, [db.lane_id], 99)) == [ready.id]
        assert ids(begun.select_allocated(run.id, [db.lane_id], 99)) == [kept.id]


def test_claims_return_only_tasks_of_their_tenant_lanes_and_allocation(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    other_lane = db.lane("gpu")
    mine = db.put_task(state="QUEUED", run_open=True)
    theirs = db.put_task(state="QUEUED", run_open=True, tenant=GLOBEX)
    elsewhere = db.put_task(state="QUEUED", run_open=True, lane_id=other_lane)
    kept = db.put_task(state="QUEUED", run_open=True, allocated=True)
    with db.transaction() as begun:
        for lane_id, task in ((db.lane_id, mine), (theirs.lane_id, theirs), (other_lane, elsewhere)):
            assert ids(begun.select_claimable([lane_id], 99)) == [task.id]
            assert begun.find_claimable_runs([lane_id], 99) == [task.run_id]
            assert ids(begun.select_claimable_of_run(task.run_id, [lane_id], 99)) == [task.id]
        assert begun.select_claimable_of_run(elsewhere.run_id, [db.lane_id], 99) == []
        assert begun.select_claimable_of_run(kept.run_id, [db.lane_id], 99) == []
        assert begun.select_allocated(mine.run_id, [db.lane_id], 99) == []
        assert begun.select_allocated(kept.run_id, [other_lane], 99) == []
        assert ids(begun.select_allocated(kept.run_id, [db.lane_id], 99)) == [kept.id]


def test_the_tasks_of_one_run_are_claimed_in_the_same_order(db: StoreFixture) -> None:
    run, other = db.put(db.run()), db.put(db.run())
    lanes = [db.lane_id, db.lane("gpu"), db.lane("tpu")]
    wanted = [(0, 0), (1, 5), (0, 5), (2, 9), (1, 0), (0, -1)]
    db.put_task(other, state="QUEUED", run_open=True, priority=99)
    tasks = [
        db.put_task(run, state="QUEUED", run_open=True, lane_id=lanes[lane], priority=priority) for lane, priority in wanted
    ]
    order = [replace(tasks[number], output=UNSET) for number in (3, 1, 2, 0, 4, 5)]
    with db.transaction() as begun:
        begun.lock_runs([run.id])
        for asked in (lanes, lanes[:1], lanes[:0:-1]):
            for limit in (1, 3, 99):
                found = begun.select_claimable_of_run(run.id, asked, limit)
                assert found == [task for task in order if task.lane_id in asked][:limit]


def test_the_allocated_workers_of_a_run_claim_its_allocated_tasks(db: StoreFixture) -> None:
    run, other = db.put(db.run()), db.put(db.run())
    lanes = [db.lane_id, db.lane("gpu")]
    kept = [
        db.put_task(run, state="QUEUED", run_open=True, allocated=True, priority=priority, lane_id=lanes[priority % 2])
        for priority in (0, 3, 3, 1)
    ]
    db.put_task(other, state="QUEUED", run_open=True, allocated=True)
    order = [replace(kept[number], output=UNSET) for number in (1, 2, 3, 0)]
    with db.transaction() as begun:
        assert begun.select_allocated(run.id, lanes, 99) == order
        assert begun.select_allocated(run.id, lanes, 2) == order[:2]


def test_lost_tasks_are_taken_over_by_priority_then_by_age(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    lanes = [db.lane_id, db.lane("gpu")]

    def running(*, lost: bool = True, **columns: Any) -> Task:
        task = db.put_task(**{"machine": "approval.step", "state": "RUNNING", "run_open": True, **columns})
        task = replace(task, lease_expired=lost)
        with db.transaction() as begun:
            update(begun, task)
        return replace(task, output=UNSET)

    late, urgent, early = running(), running(priority=5, lane_id=lanes[1]), running(priority=1)
    for unfit in ({"lost": False}, {"run_open": False}, {"tenant": GLOBEX}, {"lane_id": db.lane("tpu")}):
        running(**unfit)
    with db.transaction() as begun:
        assert begun.select_reclaimable(lanes, 99) == [urgent, early, late]
        assert begun.select_reclaimable(lanes, 2) == [urgent, early]
        assert begun.select_reclaimable(lanes[:1], 99) == [early, late]
        assert begun.select_reclaimable(lanes, 99, early.run_id) == [early]
        db.move_in(begun, early, "RUNNING")
        assert begun.select_reclaimable(lanes, 99) == [urgent, late]


def test_what_waits_for_a_worker_is_counted_up_to_a_number(db: StoreFixture) -> None:
    for _ in range(3):
        db.put_task(state="QUEUED", run_open=True)
    lane_id = db.lane(tenant=db.tenant(GLOBEX))
    db.put_task(db.put(db.run(tenant=GLOBEX)), state="QUEUED", run_open=True, tenant=GLOBEX, lane_id=lane_id)
    db.put_task(state="QUEUED", run_open=False)
    db.put_task(state="RUNNING", run_open=True)
    with db.store.read() as reader:
        assert (reader.count_claimable(ACME, 9), reader.count_claimable(GLOBEX, 9), reader.count_claimable(None, 9)) == (
            3,
            1,
            4,
        )
        assert (reader.count_claimable(ACME, 2), reader.count_claimable(None, 3)) == (2, 3)


def test_runs_with_claimable_tasks_are_found_once_each(db: StoreFixture) -> None:
    lanes = [db.lane_id, db.lane("gpu")]
    runs = [db.put(db.run()) for _ in range(3)]
    for run in runs:
        for lane_id in lanes:
            db.put_task(run, state="QUEUED", run_open=True, lane_id=lane_id)
    with db.transaction() as begun:
        assert sorted(begun.find_claimable_runs(lanes, 99)) == ids(runs)
        assert len(set(begun.find_claimable_runs(lanes, 2))) == 2


# Dependencies and subtasks.


def test_tenants_with_tasks_to_claim_are_found_in_alphabetical_order(db: StoreFixture) -> None:
    for tenant in ("Initech", "globex", "hooli", "umbrella", "wayne"):
        db.tenant(tenant)
        run = db.put(db.run(tenant=tenant))
        for _ in range(3):
            state = "PENDING" if tenant == "umbrella" else "QUEUED"
            db.bring(db.put(db.task(run, tenant=tenant, run_open=tenant != "wayne")), state)
    lost = db.bring(db.put(db.task(db.put(db.run()), run_open=True)), "RUNNING")
    with db.transaction() as begun:
        update(begun, replace(lost, lease_expired=True))
    with db.transaction() as begun:
        assert begun.find_waiting_tenants("", 9) == ["Initech", ACME, "globex", "hooli"]
        assert begun.find_waiting_tenants("", 2) == ["Initech", ACME]
        assert begun.find_waiting_tenants(ACME, 9) == ["globex", "hooli"]
        assert begun.find_waiting_tenants("golf", 9) == ["hooli"]
        assert begun.find_waiting_tenants("hooli", 9) == []


def test_dependents_are_released_with_their_last_dependency(db: StoreFixture) -> None:
    run = db.put(db.run())
    root = db.put_task(run)
    left, right = db.put_task(run, open_dependencies=1), db.put_task(run, open_dependencies=1)
    end = db.put_task(run, open_dependencies=3)
    edges = [Dependency(left.id, root.id), Dependency(right.id, root.id)]
    edges += [Dependency(end.id, task.id) for task in (left, right, root)]
    elsewhere = db.put_task(), db.put_task(open_dependencies=1)
    with db.transaction() as begun:
        begun.insert_dependencies([*edges, Dependency(elsewhere[1].id, elsewhere[0].id)])
        assert sorted(begun.find_dependents([root.id])) == [left.id, right.id, end.id]
        assert sorted(begun.find_dependents([left.id, right.id])) == [end.id]
        assert begun.find_dependents([end.id]) == begun.release_dependents([end.id]) == []
        assert begun.list_dependencies(ACME, run.id) == sorted(edges, key=lambda edge: (edge.task_id, edge.depends_on_id))
        db.bring_in(begun, root, "SUCCEEDED")
        assert sorted(begun.release_dependents([root.id])) == [left.id, right.id]
        assert open_dependencies(begun, run) == [0, 0, 0, 2]
        for task in begun.select_tasks([left.id, right.id]):
            db.bring_in(begun, task, "SUCCEEDED")
        assert begun.release_dependents([left.id, right.id]) == [end.id]
        assert open_dependencies(begun, run) == [0, 0, 0, 0]
        assert begun.select_tasks([elsewhere[1].id])[0].open_dependencies == 1


def test_one_release_is_not_enough_for_two_dependencies(db: StoreFixture) -> None:
    run = db.put(db.run())
    first, second, end = db.put_task(run), db.put_task(run), db.put_task(run, open_dependencies=2)
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(end.id, first.id), Dependency(end.id, second.id)])
        for task in (first, second):
            db.bring_in(begun, task, "SUCCEEDED")
        assert begun.release_dependents([first.id]) == []
        assert open_dependencies(begun, run) == [0, 0, 1]
        assert begun.release_dependents([second.id]) == [end.id]


def test_tasks_that_depend_on_a_failed_task_are_doomed(db: StoreFixture) -> None:
    run = db.put(db.run())
    ends = {
        state: db.put_task(run, state=state) for state in ("FAILED", "CANCELED", "SUCCEEDED", "SKIPPED", "RUNNING", "PENDING")
    }
    behind = {state: db.put_task(run, open_dependencies=1) for state in ends}
    twice, unasked = (db.put_task(run, open_dependencies=len(ends)) for _ in range(2))
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(behind[state].id, ends[state].id) for state in ends])
        begun.insert_dependencies([Dependency(twice.id, ends[state].id) for state in ends])
        begun.insert_dependencies([Dependency(unasked.id, ends["FAILED"].id)])
        doomed = begun.find_doomed([*ids(behind.values()), twice.id, *ids(ends.values()), "unknown"])
        assert sorted(doomed) == [behind["FAILED"].id, behind["CANCELED"].id, twice.id]
        assert begun.find_doomed([]) == []


def test_the_state_of_subtasks_follows_from_all_of_them(db: StoreFixture) -> None:
    """Parents with one subtask and with each pair; a failed subtask that is not critical does not count."""
    expected: list[Subtasks] = []
    with db.transaction() as begun:
        run = db.put_in(begun, db.run())
        for likes in ALONE_AND_IN_PAIRS:
            parent = db.put_in(begun, db.task(run, has_subtasks=True))
            for like in likes:
                like.put(db, begun, run, parent_task_id=parent.id, depth=1)
            is_open = any(not like.ended for like in likes)
            failed = any(like.critical and like.ended and not like.succeeded for like in likes)
            expected.append(Subtasks(parent_task_id=parent.id, open=is_open, failed=failed))
        childless = db.put_in(begun, db.task(run))
        found = begun.assess_subtasks([*(subtasks.parent_task_id for subtasks in expected), childless.id])
    assert sorted(found, key=lambda subtasks: subtasks.parent_task_id) == expected


def open_dependencies(begun: Transaction, run: Run) -> list[int]:
    return [task.open_dependencies for task in begun.list_tasks(ACME, run.id)]


# Attempts.


def test_an_attempt_keeps_what_was_reported_until_it_ends(db: StoreFixture) -> None:
    task, bystander = db.put_task(state="RUNNING"), db.put_task(state="RUNNING")
    tiny = Decimal("0.000001")
    noted = replace(task, attempt_cost_usd=tiny, session_id="s", attempt_log_path="l")
    with db.transaction() as begun:
        assert begun.list_attempts(ACME, task.id) == [attempt_of(task)]
        update(begun, noted)
        assert begun.list_attempts(ACME, task.id) == [attempt_of(noted)]
        noted = replace(noted, attempt_cost_usd=2 * tiny, session_id="t", attempt_log_path="m")
        update(begun, noted)
        assert begun.list_attempts(ACME, task.id) == [attempt_of(noted)]
        checked = db.move_in(begun, noted, "VALIDATING")
        assert begun.list_attempts(ACME, task.id) == [attempt_of(noted)], "it goes on, though its task has moved"
        told: dict[str, Any] = {"attempt_cost_usd": Decimal("0.250002"), "attempt_error": WORDS, "attempt_exit_code": 3}
        ended = db.move_in(begun, checked, "FAILED", trigger="checks_failed", **told)
        over = attempt_of(replace(checked, **told), ended_at=ended.entered_at, ended_by="checks_failed")
        assert begun.list_attempts(ACME, task.id) == [over]
        update(begun, replace(ended, attempt_cost_usd=tiny, attempt_error="again", session_id="u"))
        assert begun.list_attempts(ACME, task.id) == [over], "what is said of a task afterwards is not said of its attempt"
        assert begun.list_attempts(ACME, bystander.id) == [attempt_of(bystander)]


def test_the_last_report_of_an_attempt_is_kept_with_it(db: StoreFixture) -> None:
    task = db.put_task(state="RUNNING")
    last: dict[str, Any] = {"session_id": "s", "attempt_log_path": "l", "attempt_exit_code": 0}
    ended = db.move(task, "SUCCEEDED", **last)
    with db.store.read() as reader:
        assert reader.list_attempts(ACME, task.id) == [
            attempt_of(replace(task, **last), ended_at=ended.entered_at, ended_by="complete")
        ]


def test_attempts_of_a_batch_end_independently(db: StoreFixture) -> None:
    tasks = [db.put_task(state="RUNNING") for _ in range(3)]
    first, second, third = tasks
    with db.transaction() as begun:
        ends = [
            db.moved(first, "FAILED", trigger="fail", attempt_error="one"),
            db.moved(second, "SUCCEEDED", trigger="complete", attempt_cost_usd=Decimal(2)),
            db.moved(third, "VALIDATING"),
        ]
        move(begun, *ends)
        assert [begun.list_attempts(ACME, task.id) for task in tasks] == [
            [attempt_of(first, error="one", ended_at=ends[0].entered_at, ended_by="fail")],
            [attempt_of(second, cost_usd=Decimal(2), ended_at=ends[1].entered_at, ended_by="complete")],
            [attempt_of(third)],
        ]


def test_an_attempt_that_is_taken_over_in_place_ends_as_it_was(db: StoreFixture) -> None:
    """The columns of the move are about the next attempt."""
    told: dict[str, Any] = {"session_id": "s", "attempt_cost_usd": Decimal(1), "attempt_log_path": "l", "attempt_resumed": True}
    lost = db.bring(db.put_task(machine="approval.step"), "RUNNING", lease_expired=True, **told)
    other = db.put(db.worker())
    taken = db.move(lost, "RUNNING", worker_id=other.id, session_id="t", attempt_log_path="m")
    with db.store.read() as reader:
        assert reader.list_attempts(ACME, lost.id) == [
            attempt_of(lost, ended_at=taken.entered_at, ended_by="reclaim"),
            attempt_of(taken),
        ]
    assert (taken.epoch, taken.attempt_cost_usd) == (2, ZERO_USD)


def test_an_attempt_does_not_end_before_it_began(db: StoreFixture) -> None:
    """The clocks of two processes may disagree."""
    task = db.put_task(state="RUNNING")
    db.move(task, "FAILED", entered_at=task.entered_at - SECOND)
    with db.store.read() as reader:
        (attempt,) = reader.list_attempts(ACME, task.id)
    assert attempt.ended_at == attempt.started_at == task.attempt_started_at

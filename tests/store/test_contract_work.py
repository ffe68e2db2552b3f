"""One contract, one suite: runs, tasks, what they wait for, and attempts at them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.store.yard import (
    ACME,
    AT,
    GLOBEX,
    MACHINES,
    SECOND,
    WORDS,
    Yard,
    attempt_of,
    find,
    ids,
    move,
    update,
)

from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.contract import Transaction
from pointsman.store.rows import ZERO_USD, Dependency, Family, Run, Task

# Runs.


def test_runs_are_listed_newest_first_in_pages(yard: Yard) -> None:
    runs = [yard.put(yard.run()) for _ in range(5)]
    active = yard.bring(runs[1], "RUNNING")
    newest = ids(runs)[::-1]
    with yard.store.read() as reader:
        assert ids(reader.list_runs(ACME, phase=None, after=None, limit=9)) == newest
        assert ids(reader.list_runs(ACME, phase=None, after=None, limit=2)) == newest[:2]
        assert ids(reader.list_runs(ACME, phase=None, after=newest[1], limit=2)) == newest[2:4]
        assert ids(reader.list_runs(ACME, phase=None, after=newest[-1], limit=2)) == []
        assert reader.list_runs(ACME, phase="active", after=None, limit=9) == [active]
        assert ids(reader.list_runs(ACME, phase="queued", after=newest[1], limit=9)) == [newest[2], newest[4]]


def test_runs_are_locked_in_the_order_of_their_ids(yard: Yard) -> None:
    runs = [yard.put(yard.run()) for _ in range(3)]
    with yard.transaction() as begun:
        assert begun.lock_runs(ids(runs)[::-1]) == runs
        assert begun.lock_runs({runs[1].id, "nobody"}) == [runs[1]]


def test_the_runs_of_tasks_are_found(yard: Yard) -> None:
    tasks = [yard.put_task() for _ in range(3)]
    sister = yard.put(replace(tasks[0], id="task_sister", name="sister"))
    with yard.transaction() as begun:
        assert begun.find_run_ids([tasks[0].id, sister.id, tasks[2].id, "nobody"]) == {tasks[0].run_id, tasks[2].run_id}


def test_runs_that_wait_for_workers_of_their_own_are_allocated_oldest_first(yard: Yard) -> None:
    young = yard.put(yard.run(allocates=True, created_at=AT))
    old = yard.put(yard.run(allocates=True, created_at=AT - SECOND))
    yard.put(yard.run(allocates=False, created_at=AT - 2 * SECOND))
    yard.put(yard.run("supervised.job", allocates=True))
    yard.bring(yard.put(yard.run(allocates=True)), "CANCELED")
    with yard.transaction() as begun:
        assert begun.list_allocatable_runs(9) == [old.id, young.id]
        assert begun.list_allocatable_runs(1) == [old.id]


def test_a_run_that_has_lost_some_of_its_workers_gets_others(yard: Yard) -> None:
    robbed, complete = (yard.bring(yard.put(yard.run(allocates=True, worker_count=2)), "RUNNING") for _ in range(2))
    shared = yard.bring(yard.put(yard.run(worker_count=2)), "RUNNING")
    for run in (robbed, complete, complete, shared):
        yard.put(yard.worker(run_id=run.id))
    with yard.transaction() as begun:
        assert begun.list_allocatable_runs(9) == [robbed.id]


class Like(NamedTuple):
    """What a task is like."""

    state: str
    goes_on: bool = False
    """Without a person."""
    critical: bool = True
    open_dependencies: int = 0
    available_at: datetime | None = None

    @property
    def ended(self) -> bool:
        return MACHINES["standard.task"].state(self.state).phase == Phase.DONE

    @property
    def succeeded(self) -> bool:
        return MACHINES["standard.task"].state(self.state).outcome == Outcome.SUCCESS

    def put(self, yard: Yard, begun: Transaction, run: Run, **columns: Any) -> str:
        task = yard.task(run, critical=self.critical, open_dependencies=self.open_dependencies, **columns)
        return yard.bring_in(begun, yard.put_in(begun, task), self.state, available_at=self.available_at).id


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


def test_the_situation_of_a_run_is_what_its_tasks_are_in_together(yard: Yard) -> None:
    """Runs without a task, with one, and with each pair of tasks that can be."""
    with yard.transaction() as begun:
        runs = [(yard.put_in(begun, yard.run()), likes) for likes in [(), *ALONE_AND_IN_PAIRS]]
        tasks = {run.id: {like.put(yard, begun, run): like for like in likes} for run, likes in runs}
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


def test_a_run_lets_its_tasks_begin_or_keeps_them_from_it(yard: Yard) -> None:
    shut, wide, other = (yard.put(yard.run()) for _ in range(3))
    rows = {run.id: [yard.put_task(run, run_open=run is not shut) for _ in range(2)] for run in (shut, wide, other)}
    for is_open in (True, False):
        with yard.transaction() as begun:
            begun.open_runs([shut.id, wide.id], is_open=is_open)
        with yard.store.read() as reader:
            for run, expected in ((shut, is_open), (wide, is_open), (other, True)):
                assert reader.list_tasks(ACME, run.id) == [replace(task, run_open=expected) for task in rows[run.id]]


# Tasks.


def test_tasks_are_listed_as_their_run_has_them(yard: Yard) -> None:
    run = yard.put(yard.run())
    last, first, tie = (yard.put_task(run, position=position, payload=WORDS) for position in (7, -1, 7))
    yard.put_task()
    with yard.store.read() as reader:
        assert reader.list_tasks(ACME, run.id) == [first, last, tie]


def test_tasks_are_selected_without_what_can_be_large(yard: Yard) -> None:
    run = yard.put(yard.run())
    one, two, three = (yard.put_task(run, payload=f'"{number}"') for number in range(3))
    with yard.transaction() as begun:
        assert begun.select_tasks([three.id, "nobody", one.id]) == [
            replace(row, payload=UNSET, output=UNSET) for row in (one, three)
        ]
        assert begun.select_payloads([two.id, one.id, "nobody"]) == {one.id: '"0"', two.id: '"1"'}


def test_an_output_stays_until_another_is_stored(yard: Yard) -> None:
    task = yard.put_task(state="RUNNING")
    with_output = yard.move(task, "VALIDATING", output=WORDS)
    unread = yard.move(replace(with_output, output=UNSET, payload=UNSET), "READY")
    assert find(yard.store, task) == replace(unread, output=WORDS, payload="null")
    with yard.transaction() as begun:
        update(begun, replace(unread, comment="fine"))
    assert find(yard.store, task) == replace(unread, output=WORDS, payload="null", comment="fine")
    assert find(yard.store, yard.move(replace(unread, output=None), "SUCCEEDED")).output is None


def test_a_move_leaves_alone_what_is_counted_elsewhere(yard: Yard) -> None:
    task = yard.put_task(open_dependencies=2, run_open=False)
    with yard.transaction() as begun:
        begun.open_runs([task.run_id], is_open=True)
        moved = yard.move_in(begun, replace(task, open_dependencies=9), "QUEUED")
        update(begun, replace(moved, open_dependencies=7, comment="seen"))
    assert find(yard.store, task) == replace(moved, open_dependencies=2, run_open=True, comment="seen")


def test_tasks_of_a_run_are_selected_by_phase_unless_they_have_succeeded(yard: Yard) -> None:
    run = yard.put(yard.run())
    states = ("PENDING", "RETRYING", "QUEUED", "RUNNING", "VALIDATING", "FAILED", "CANCELED", "SUCCEEDED")
    tasks = {state: replace(yard.put_task(run, state=state), payload=UNSET, output=UNSET) for state in states}
    yard.put_task(state="QUEUED")

    def of(*wanted: str) -> list[Task]:
        return [tasks[state] for state in wanted]

    with yard.transaction() as begun:
        assert begun.select_run_tasks(run.id, ["queued"]) == of("QUEUED")
        assert begun.select_run_tasks(run.id, {"held", "active"}) == of("PENDING", "RETRYING", "RUNNING", "VALIDATING")
        assert begun.select_run_tasks(run.id, ["done"]) == of("FAILED", "CANCELED")
        assert begun.select_run_tasks(run.id, ["held", "queued", "active", "done"]) == of(*states[:-1])


def test_the_tasks_of_a_run_are_known_by_their_names(yard: Yard) -> None:
    run = yard.put(yard.run())
    build, deploy = yard.put_task(run, name="build"), yard.put_task(run, name=WORDS)
    yard.put_task(name="build")
    with yard.transaction() as begun:
        assert begun.find_task_names(run.id) == {"build": build.id, WORDS: deploy.id}


def test_tasks_are_claimed_by_priority_then_by_age_over_all_lanes(yard: Yard) -> None:
    lanes = [yard.lane_id, yard.lane("gpu"), yard.lane("tpu")]
    wanted = [(0, 0), (1, 5), (0, 5), (2, 9), (1, 0), (0, -1), (1, 5), (0, 0)]
    tasks = [yard.put_task(state="QUEUED", run_open=True, lane_id=lanes[lane], priority=priority) for lane, priority in wanted]
    order = [replace(tasks[number], payload=UNSET, output=UNSET) for number in (3, 1, 2, 6, 0, 4, 7, 5)]
    with yard.transaction() as begun:
        for asked in (lanes, lanes[:1], lanes[:0:-1]):
            for limit in (1, 3, 5, 99):
                found = begun.select_claimable(ACME, asked, limit)
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


def put_unready(yard: Yard, what: str, run: Run, **columns: Any) -> Task:
    """A task that lacks nothing but what is told of it; what it waits for comes with its last move."""
    state, lack = NOT_READY[what]
    waits = {"available_at": lack.get("available_at")}
    return yard.bring(yard.put_task(run, **{"run_open": True, **columns, **lack, "available_at": None}), state, **waits)


@pytest.mark.parametrize("what", NOT_READY)
def test_what_is_not_ready_is_not_claimed(yard: Yard, what: str) -> None:
    """Neither by anybody nor by the workers that its run was given."""
    ready = yard.put_task(state="QUEUED", run_open=True)
    put_unready(yard, what, yard.put(yard.run()))
    run = yard.put(yard.run())
    kept = yard.put_task(run, state="QUEUED", run_open=True, allocated=True)
    put_unready(yard, what, run, allocated=True)
    with yard.transaction() as begun:
        assert ids(begun.select_claimable(ACME, [yard.lane_id], 99)) == [ready.id]
        assert begun.find_claimable_runs(ACME, [yard.lane_id], 99) == [ready.run_id]
        assert ids(begun.select_allocated(run.id, 99)) == [kept.id]


def test_nobody_claims_what_is_meant_for_others(yard: Yard) -> None:
    yard.tenant(GLOBEX)
    other_lane = yard.lane("gpu")
    mine = yard.put_task(state="QUEUED", run_open=True)
    theirs = yard.put_task(state="QUEUED", run_open=True, tenant=GLOBEX)
    elsewhere = yard.put_task(state="QUEUED", run_open=True, lane_id=other_lane)
    kept = yard.put_task(state="QUEUED", run_open=True, allocated=True)
    with yard.transaction() as begun:
        for tenant, lane_id, task in (
            (ACME, yard.lane_id, mine),
            (GLOBEX, yard.lane_id, theirs),
            (ACME, other_lane, elsewhere),
        ):
            assert ids(begun.select_claimable(tenant, [lane_id], 99)) == [task.id]
            assert begun.find_claimable_runs(tenant, [lane_id], 99) == [task.run_id]
        assert begun.select_allocated(mine.run_id, 99) == []
        assert ids(begun.select_allocated(kept.run_id, 99)) == [kept.id]


def test_the_workers_of_a_run_claim_what_is_kept_for_them(yard: Yard) -> None:
    run, other = yard.put(yard.run()), yard.put(yard.run())
    lanes = [yard.lane_id, yard.lane("gpu")]
    kept = [
        yard.put_task(run, state="QUEUED", run_open=True, allocated=True, priority=priority, lane_id=lanes[priority % 2])
        for priority in (0, 3, 3, 1)
    ]
    yard.put_task(other, state="QUEUED", run_open=True, allocated=True)
    order = [replace(kept[number], payload=UNSET, output=UNSET) for number in (1, 2, 3, 0)]
    with yard.transaction() as begun:
        assert begun.select_allocated(run.id, 99) == order
        assert begun.select_allocated(run.id, 2) == order[:2]


def test_lost_tasks_are_taken_over_by_priority_then_by_age(yard: Yard) -> None:
    yard.tenant(GLOBEX)
    lanes = [yard.lane_id, yard.lane("gpu")]

    def running(*, lost: bool = True, **columns: Any) -> Task:
        task = yard.put_task(**{"machine": "approval.step", "state": "RUNNING", "run_open": True, **columns})
        task = replace(task, lease_expired=lost)
        with yard.transaction() as begun:
            update(begun, task)
        return replace(task, payload=UNSET, output=UNSET)

    late, urgent, early = running(), running(priority=5, lane_id=lanes[1]), running(priority=1)
    for unfit in ({"lost": False}, {"run_open": False}, {"tenant": GLOBEX}, {"lane_id": yard.lane("tpu")}):
        running(**unfit)
    with yard.transaction() as begun:
        assert begun.select_reclaimable(ACME, lanes, 99) == [urgent, early, late]
        assert begun.select_reclaimable(ACME, lanes, 2) == [urgent, early]
        assert begun.select_reclaimable(ACME, lanes[:1], 99) == [early, late]
        yard.move_in(begun, early, "RUNNING")
        assert begun.select_reclaimable(ACME, lanes, 99) == [urgent, late]


def test_runs_with_something_to_claim_are_found_once_each(yard: Yard) -> None:
    lanes = [yard.lane_id, yard.lane("gpu")]
    runs = [yard.put(yard.run()) for _ in range(3)]
    for run in runs:
        for lane_id in lanes:
            yard.put_task(run, state="QUEUED", run_open=True, lane_id=lane_id)
    with yard.transaction() as begun:
        assert sorted(begun.find_claimable_runs(ACME, lanes, 99)) == ids(runs)
        assert len(set(begun.find_claimable_runs(ACME, lanes, 2))) == 2


# Dependencies and families.


def test_dependents_are_released_when_nothing_is_left_to_wait_for(yard: Yard) -> None:
    run = yard.put(yard.run())
    root = yard.put_task(run)
    left, right = yard.put_task(run, open_dependencies=1), yard.put_task(run, open_dependencies=1)
    end = yard.put_task(run, open_dependencies=3)
    edges = [Dependency(left.id, root.id), Dependency(right.id, root.id)]
    edges += [Dependency(end.id, task.id) for task in (left, right, root)]
    elsewhere = yard.put_task(), yard.put_task(open_dependencies=1)
    with yard.transaction() as begun:
        begun.insert_dependencies([*edges, Dependency(elsewhere[1].id, elsewhere[0].id)])
        assert sorted(begun.find_dependents([root.id])) == [left.id, right.id, end.id]
        assert sorted(begun.find_dependents([left.id, right.id])) == [end.id]
        assert begun.find_dependents([end.id]) == begun.release_dependents([end.id]) == []
        assert begun.list_dependencies(ACME, run.id) == sorted(edges, key=lambda edge: (edge.task_id, edge.depends_on_id))
        assert sorted(begun.release_dependents([root.id])) == [left.id, right.id]
        assert open_dependencies(begun, run) == [0, 0, 0, 2]
        assert begun.release_dependents([left.id, right.id]) == [end.id]
        assert open_dependencies(begun, run) == [0, 0, 0, 0]
        assert begun.select_tasks([elsewhere[1].id])[0].open_dependencies == 1


def test_one_release_is_not_enough_for_two_dependencies(yard: Yard) -> None:
    run = yard.put(yard.run())
    first, second, end = yard.put_task(run), yard.put_task(run), yard.put_task(run, open_dependencies=2)
    with yard.transaction() as begun:
        begun.insert_dependencies([Dependency(end.id, first.id), Dependency(end.id, second.id)])
        assert begun.release_dependents([first.id]) == []
        assert open_dependencies(begun, run) == [0, 0, 1]
        assert begun.release_dependents([second.id]) == [end.id]


def test_tasks_behind_something_that_failed_are_doomed(yard: Yard) -> None:
    run = yard.put(yard.run())
    ends = {
        state: yard.put_task(run, state=state) for state in ("FAILED", "CANCELED", "SUCCEEDED", "SKIPPED", "RUNNING", "PENDING")
    }
    behind = {state: yard.put_task(run) for state in ends}
    twice, unasked = yard.put_task(run), yard.put_task(run)
    with yard.transaction() as begun:
        begun.insert_dependencies([Dependency(behind[state].id, ends[state].id) for state in ends])
        begun.insert_dependencies([Dependency(twice.id, ends[state].id) for state in ends])
        begun.insert_dependencies([Dependency(unasked.id, ends["FAILED"].id)])
        doomed = begun.find_doomed([*ids(behind.values()), twice.id, *ids(ends.values()), "nobody"])
        assert sorted(doomed) == [behind["FAILED"].id, behind["CANCELED"].id, twice.id]
        assert begun.find_doomed([]) == []


def test_a_family_is_what_its_children_are_in_together(yard: Yard) -> None:
    """Parents with one child and with each pair; those that failed without being critical are not waited for."""
    expected: list[Family] = []
    with yard.transaction() as begun:
        run = yard.put_in(begun, yard.run())
        for likes in ALONE_AND_IN_PAIRS:
            parent = yard.put_in(begun, yard.task(run))
            for like in likes:
                like.put(yard, begun, run, parent_task_id=parent.id, depth=1)
            waited_for = sum((like.critical and not like.succeeded) or not like.ended for like in likes)
            failed = any(like.critical and like.ended and not like.succeeded for like in likes)
            expected.append(Family(parent_task_id=parent.id, open=waited_for, failed=failed))
        childless = yard.put_in(begun, yard.task(run))
        found = begun.assess_families([*(family.parent_task_id for family in expected), childless.id])
    assert sorted(found, key=lambda family: family.parent_task_id) == expected


def open_dependencies(begun: Transaction, run: Run) -> list[int]:
    return [task.open_dependencies for task in begun.list_tasks(ACME, run.id)]


# Attempts.


def test_an_attempt_keeps_what_is_noted_until_it_ends(yard: Yard) -> None:
    task, bystander = yard.put_task(state="RUNNING"), yard.put_task(state="RUNNING")
    tiny = Decimal("0.000001")
    noted = replace(task, attempt_cost_usd=tiny, session_id="s", attempt_log_path="l")
    with yard.transaction() as begun:
        assert begun.list_attempts(ACME, task.id) == [attempt_of(task)]
        update(begun, noted)
        assert begun.list_attempts(ACME, task.id) == [attempt_of(noted)]
        noted = replace(noted, attempt_cost_usd=2 * tiny, session_id="t", attempt_log_path="m")
        update(begun, noted)
        assert begun.list_attempts(ACME, task.id) == [attempt_of(noted)]
        checked = yard.move_in(begun, noted, "VALIDATING")
        assert begun.list_attempts(ACME, task.id) == [attempt_of(noted)], "it goes on, though its task has moved"
        told: dict[str, Any] = {"attempt_cost_usd": Decimal("0.250002"), "attempt_error": WORDS, "attempt_exit_code": 3}
        ended = yard.move_in(begun, checked, "FAILED", trigger="checks_failed", **told)
        over = attempt_of(replace(checked, **told), ended_at=ended.entered_at, ended_by="checks_failed")
        assert begun.list_attempts(ACME, task.id) == [over]
        update(begun, replace(ended, attempt_cost_usd=tiny, attempt_error="again", session_id="u"))
        assert begun.list_attempts(ACME, task.id) == [over], "what is said of a task afterwards is not said of its attempt"
        assert begun.list_attempts(ACME, bystander.id) == [attempt_of(bystander)]


def test_the_last_words_of_an_attempt_are_kept_with_it(yard: Yard) -> None:
    task = yard.put_task(state="RUNNING")
    last: dict[str, Any] = {"session_id": "s", "attempt_log_path": "l", "attempt_exit_code": 0}
    ended = yard.move(task, "SUCCEEDED", **last)
    with yard.store.read() as reader:
        assert reader.list_attempts(ACME, task.id) == [
            attempt_of(replace(task, **last), ended_at=ended.entered_at, ended_by="complete")
        ]


def test_attempts_of_a_batch_end_each_for_itself(yard: Yard) -> None:
    tasks = [yard.put_task(state="RUNNING") for _ in range(3)]
    first, second, third = tasks
    with yard.transaction() as begun:
        ends = [
            yard.moved(first, "FAILED", trigger="fail", attempt_error="one"),
            yard.moved(second, "SUCCEEDED", trigger="complete", attempt_cost_usd=Decimal(2)),
            yard.moved(third, "VALIDATING"),
        ]
        move(begun, *ends)
        assert [begun.list_attempts(ACME, task.id) for task in tasks] == [
            [attempt_of(first, error="one", ended_at=ends[0].entered_at, ended_by="fail")],
            [attempt_of(second, cost_usd=Decimal(2), ended_at=ends[1].entered_at, ended_by="complete")],
            [attempt_of(third)],
        ]


def test_an_attempt_that_is_taken_over_in_place_ends_as_it_was(yard: Yard) -> None:
    """What the move says is said of the next one."""
    told: dict[str, Any] = {"session_id": "s", "attempt_cost_usd": Decimal(1), "attempt_log_path": "l", "attempt_resumed": True}
    lost = yard.bring(yard.put_task(machine="approval.step"), "RUNNING", lease_expired=True, **told)
    other = yard.put(yard.worker())
    taken = yard.move(lost, "RUNNING", worker_id=other.id, session_id="t", attempt_log_path="m")
    with yard.store.read() as reader:
        assert reader.list_attempts(ACME, lost.id) == [
            attempt_of(lost, ended_at=taken.entered_at, ended_by="reclaim"),
            attempt_of(taken),
        ]
    assert (taken.epoch, taken.attempt_cost_usd) == (2, ZERO_USD)


def test_an_attempt_does_not_end_before_it_began(yard: Yard) -> None:
    """The clocks of two processes may disagree."""
    task = yard.put_task(state="RUNNING")
    yard.move(task, "FAILED", entered_at=task.entered_at - SECOND)
    with yard.store.read() as reader:
        (attempt,) = reader.list_attempts(ACME, task.id)
    assert attempt.ended_at == attempt.started_at == task.attempt_started_at

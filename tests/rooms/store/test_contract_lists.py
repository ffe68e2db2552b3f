"""One contract, one suite: lists with conditions, in pages that what is added meanwhile does not shift."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from tests.rooms.store.store_fixture import ACME, AT, GLOBEX, SECOND, StoreFixture, ids
from tests.rows import each_row

from pointsman.engine.filters import RunFilter, TaskFilter
from pointsman.store.columns import RUN_CONDITIONS, TASK_CONDITIONS
from pointsman.store.rows import Run, RunTag

TIMES = {"created_after", "created_before"}
BY_RUN: dict[str, tuple[dict[str, Any], set[int]]] = {
    "none": ({}, {0, 1, 2, 3}),
    "state": ({"state": "RUNNING"}, {1}),
    "a state that no machine has": ({"state": "NOWHERE"}, set()),
    "a state of success": ({"state": "SUCCEEDED"}, set()),
    "phase": ({"phase": "queued"}, {0, 2, 3}),
    "outcome": ({"outcome": "canceled"}, set()),
    "lifecycle": ({"lifecycle": "approval"}, {2}),
    "name": ({"name": "weekly"}, {3}),
    "name and state": ({"name": "weekly", "state": "RUNNING"}, set()),
    "tag": ({"tag": "Ω"}, {1, 2}),
    "tag and state": ({"tag": "Ω", "state": "RUNNING"}, {1}),
    "tag and name": ({"tag": "slow", "name": "nightly"}, {2}),
    "tag and time": ({"tag": "Ω", "created_after": AT + 2 * SECOND}, {2}),
    "an unknown tag": ({"tag": "["}, set()),
    "text of a name": ({"text": "eek"}, {3}),
    "text of a reason": ({"text": "broken %_ track"}, {1}),
    "no wildcard": ({"text": "%"}, {1}),
    "from a time on": ({"created_after": AT + 2 * SECOND}, {2, 3}),
    "before a time": ({"created_before": AT + 2 * SECOND}, {0, 1}),
    "between": ({"created_after": AT + SECOND, "created_before": AT + 2 * SECOND}, {1}),
    "the first instant": ({"created_after": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))}, {0, 1, 2, 3}),
    "the last instant": ({"created_before": datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=14)))}, {0, 1, 2, 3}),
}


def test_the_store_has_a_condition_for_each_that_is_declared() -> None:
    assert {*RUN_CONDITIONS, "tag", "text", *TIMES} == set(RunFilter.__struct_fields__)
    assert {*TASK_CONDITIONS, "tag", "text", *TIMES} == set(TaskFilter.__struct_fields__)


def test_runs_are_filtered_by_every_condition(db: StoreFixture) -> None:
    machines = ("standard.run", "standard.run", "approval.run", "standard.run")
    at = [AT + index * SECOND for index in range(4)]
    runs = [
        db.put(db.run(machine, created_at=at[index], entered_at=at[index], name="weekly" if index == 3 else "nightly"))
        for index, machine in enumerate(machines)
    ]
    runs[1] = db.bring(runs[1], "RUNNING", reason="broken %_ track")
    tag(db, runs[1], "Ω")
    tag(db, runs[2], "slow", "Ω")
    with db.store.read() as reader:
        for case, (conditions, wanted) in BY_RUN.items():
            expected = [run.id for index, run in reversed(list(enumerate(runs))) if index in wanted]
            assert ids(reader.list_runs(ACME, limit=9, **conditions)) == expected, case
            assert reader.list_runs(GLOBEX, limit=9, **conditions) == [], case
        assert ids(reader.list_runs(ACME, limit=9, text=runs[0].id)) == [runs[0].id]


def tag(db: StoreFixture, run: Run, *tags: str) -> None:
    with db.transaction() as begun:
        begun.insert_run_tags([RunTag(tenant=run.tenant, tag=each, created_at=run.created_at, run_id=run.id) for each in tags])


@each_row("conditions", [{}, {"name": "nightly"}, {"phase": "queued"}, {"tag": "t"}])
def test_pages_of_runs_are_stable_while_runs_are_added_and_moved(db: StoreFixture, conditions: dict[str, str]) -> None:
    tenant = db.tenant(f"tenant {conditions}")
    runs = [db.put(db.run(tenant=tenant, created_at=AT + index // 3 * SECOND)) for index in range(8)]
    for run in runs:
        tag(db, run, "s", "t")
    expected = sorted(runs, key=lambda run: (run.created_at, run.id), reverse=True)
    seen: list[str] = []
    while True:
        with db.store.read() as reader:
            page = reader.list_runs(tenant, limit=3, after=seen[-1] if seen else None, **conditions)  # type: ignore[arg-type]
        if not page:
            break
        seen += ids(page)
        db.bring(page[-1], "RUNNING")
        tag(db, db.put(db.run(tenant=tenant, created_at=AT + 9 * SECOND)), "t")
    assert seen == ids(expected)


@each_row("conditions", [{}, {"name": "1"}, {"phase": "held"}, {"tag": "t"}])
def test_pages_of_tasks_are_stable_while_runs_and_tasks_are_added_and_moved(
    db: StoreFixture, conditions: dict[str, str]
) -> None:
    tenant = db.tenant(f"tasks {conditions}")
    lane = db.lane(tenant=tenant)

    def put(second: int, count: int = 3) -> list[str]:
        run = db.put(db.run(tenant=tenant, created_at=AT + second * SECOND, entered_at=AT + second * SECOND))
        tag(db, run, "t")
        return [db.put(db.task(run, tenant=tenant, lane_id=lane, name=f"{index}")).id for index in range(count)]

    tasks = [task for second in (0, 1, 1, 2) for task in put(second)]
    with db.store.read() as reader:
        expected = ids(reader.search_tasks(tenant, limit=99, **conditions))  # type: ignore[arg-type]
    assert len(expected) == (4 if "name" in conditions else len(tasks))
    seen: list[str] = []
    while True:
        with db.store.read() as reader:
            page = reader.search_tasks(tenant, limit=2, after=seen[-1] if seen else None, **conditions)  # type: ignore[arg-type]
        if not page:
            break
        seen += ids(page)
        db.bring(page[-1], "CANCELED")
        put(9)
    assert seen == expected


def test_an_unknown_cursor_and_one_of_another_tenant_have_nothing_behind_them(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    run, foreign = db.put(db.run()), db.put(db.run(tenant=GLOBEX, created_at=AT + SECOND))
    db.put_task(run)
    with db.store.read() as reader:
        for after in (foreign.id, "unknown"):
            assert reader.list_runs(ACME, after=after, limit=9) == []
            assert reader.search_tasks(ACME, after=after, limit=9) == []


def test_tasks_of_all_runs_are_filtered_and_read_in_pages(db: StoreFixture) -> None:
    old, new = db.put(db.run()), db.put(db.run(created_at=AT + SECOND, entered_at=AT + SECOND, name="weekly"))
    tasks = [db.put_task(run, name=f"step {index}") for run in (old, new) for index in range(3)]
    active = db.bring(tasks[4], "RUNNING")
    tag(db, new, "t")
    newest = [tasks[index].id for index in (5, 4, 3, 2, 1, 0)]
    with db.store.read() as reader:

        def search(**given: Any) -> list[str]:
            return ids(reader.search_tasks(ACME, **{"limit": 9, **given}))

        assert search() == newest
        for first in range(6):
            assert search(after=newest[first], limit=2) == newest[first + 1 : first + 3]
        assert search(name="step 1") == [tasks[4].id, tasks[1].id]
        assert search(state=active.state) == search(phase="active") == [tasks[4].id]
        assert search(phase="active", lifecycle="approval") == search(outcome="failure") == search(state="SUCCEEDED") == []
        assert search(phase=tasks[0].phase) == [newest[0], *newest[2:]]
        assert search(tag="t") == search(flow="weekly") == newest[:3]
        assert search(flow="weekly", state="SUCCEEDED") == search(flow="step 1") == []
        assert search(tag="t", name="step 1") == [tasks[4].id]
        assert search(tag="t", phase="active", limit=1) == [tasks[4].id]
        assert search(text="p 2", created_after=AT + SECOND) == [tasks[5].id]
        assert search(created_before=AT + SECOND) == newest[3:]
        assert reader.search_tasks(GLOBEX, limit=9) == []

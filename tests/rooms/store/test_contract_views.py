"""The queries that views ask: runs by part of their id, tasks that workers hold, and tasks that wait."""

from __future__ import annotations

from tests.rooms.store.store_fixture import ACME, AT, GLOBEX, SECOND, StoreFixture, ids


def test_runs_are_found_by_the_beginning_or_the_end_of_their_id(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    first, second = db.put(db.run(id="run_0123-abcd")), db.put(db.run(id="run_0199%-efgh"))
    db.put(db.run(tenant=GLOBEX, id="run_0123-other"))
    with db.store.read() as reader:
        for part in ("run_0123", "0123-", "abcd", "123-abcd", first.id):
            assert reader.match_runs(ACME, part, 9) == [first], part
        assert reader.match_runs(ACME, "01", 9) == [second, first], "newest first"
        assert reader.match_runs(ACME, "run_", 1) == [second]
        assert reader.match_runs(ACME, "0199%", 9) == [second]
        assert reader.match_runs(ACME, "0_99", 9) == [], "nothing is a wildcard"
        assert reader.find_runs(ACME, [second.id, first.id, "nobody", "run_0123-other"]) == [first, second]


def test_runs_are_listed_by_age_and_in_pages_whatever_their_ids_are(db: StoreFixture) -> None:
    names = ("run_1", "j_9", "run_0", "j_2", "j_5")
    runs = [db.put(db.run(id=name, created_at=AT + seconds * SECOND)) for seconds, name in enumerate(names)]
    twin = db.put(db.run(id="j_1", created_at=runs[-1].created_at))
    newest_first = ids([runs[-1], twin, *runs[-2::-1]])
    with db.store.read() as reader:
        assert ids(reader.list_runs(ACME, phase=None, after=None, limit=9)) == newest_first
        for at, last in enumerate(newest_first):
            page = reader.list_runs(ACME, phase=None, after=last, limit=2)
            assert ids(page) == newest_first[at + 1 : at + 3]
        assert ids(reader.match_runs(ACME, "j_", 9)) == ["j_5", "j_1", "j_2", "j_9"]


def test_held_tasks_are_those_of_one_tenant_in_all_runs(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    held = [db.bring(db.put_task(), "RUNNING") for _ in range(2)]
    db.put_task()
    other = db.put(db.run(tenant=GLOBEX))
    db.bring(db.put_task(other, tenant=GLOBEX, lane_id=db.lane(tenant=GLOBEX)), "RUNNING")
    with db.store.read() as reader:
        assert sorted(ids(reader.list_held_tasks(ACME))) == sorted(ids(held))


def test_waiting_tasks_are_listed_once_for_each_reason(db: StoreFixture) -> None:
    run, ended = db.put(db.run()), db.put(db.run())
    first, *alike = [db.bring(db.put_task(run), "QUEUED") for _ in range(3)]
    able = db.bring(db.put_task(run, lane_id=db.lane("gpu")), "QUEUED")
    db.put_task(run, open_dependencies=1)
    db.bring(db.put_task(ended), "QUEUED")
    db.bring(ended, "CANCELED")
    with db.store.read() as reader:
        waiting = {task.id: task.alike for task in reader.list_waiting_tasks(ACME, None, 9)}
        assert waiting == {first.id: 1 + len(alike), able.id: 1}
        assert ids(reader.list_waiting_tasks(ACME, run.id, 1)) == [first.id]
        assert reader.list_waiting_tasks(ACME, ended.id, 9) == []
        assert reader.list_waiting_tasks(GLOBEX, None, 9) == []

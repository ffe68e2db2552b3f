"""Templates of runs, and tasks that people have deleted."""

from __future__ import annotations

from msgspec.structs import replace
from tests.rooms.store.store_fixture import ACME, AT, GLOBEX, SECOND, WORDS, StoreFixture

from pointsman.store.rows import Template, Tombstone


def test_a_template_is_stored_replaced_and_seen_by_its_tenant_alone(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    first = Template(tenant=ACME, name=WORDS, text=WORDS * 9, stored_at=AT, stored_by="ada")
    theirs = replace(first, tenant=GLOBEX, text="theirs")
    with db.transaction() as begun:
        begun.save_template(first)
        begun.save_template(theirs)
        begun.save_template(replace(first, name="a"))
    changed = replace(first, text="name: b", stored_at=AT + SECOND, stored_by="bob")
    with db.transaction() as begun:
        begun.save_template(changed)
        assert begun.find_template(ACME, WORDS) == changed
    with db.store.read() as reader:
        assert [each.name for each in reader.list_templates(ACME)] == [WORDS, "a"]
        assert reader.find_template(GLOBEX, WORDS) == theirs
        assert reader.find_template(ACME, "unknown") is None


def test_a_deleted_task_is_left_out_of_the_list_and_its_first_tombstone_stays(db: StoreFixture) -> None:
    db.tenant(GLOBEX)
    run = db.put(db.run())
    tasks = [db.put_task(run) for _ in range(3)]
    stone = Tombstone(task_id=tasks[1].id, tenant=ACME, deleted_at=AT, deleted_by="ada", reason=WORDS)
    with db.transaction() as begun:
        begun.insert_tombstone(stone)
        begun.insert_tombstone(replace(stone, deleted_by="bob", reason=None))
    with db.store.read() as reader:
        assert reader.find_tombstone(ACME, tasks[1].id) == stone
        assert reader.find_tombstone(GLOBEX, tasks[1].id) is None
        assert reader.find_task(ACME, tasks[1].id) is not None

        def listed(**given: object) -> list[str]:
            found = reader.search_tasks(ACME, lifecycle=run.lifecycle, **{"after": None, "limit": 9, **given})  # type: ignore[arg-type]
            return [task.id for task in found]

        newest_first = sorted((tasks[0].id, tasks[2].id), reverse=True)
        assert listed() == newest_first
        assert listed(limit=1) == newest_first[:1]
        assert listed(after=newest_first[0]) == newest_first[1:]
        assert reader.search_tasks(GLOBEX, lifecycle=run.lifecycle, after=None, limit=9) == []
        assert reader.search_tasks(ACME, lifecycle="other", after=None, limit=9) == []

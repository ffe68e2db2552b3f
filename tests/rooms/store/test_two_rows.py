"""A task is stored in two rows. Both are under the law, whether they are written as tables or by the view of both."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import count

import psycopg
import pytest
from tests.rooms.store.outsider import Outsider, Refused
from tests.rooms.store.store_fixture import ACME, GLOBEX, StoreFixture, find
from tests.rows import each_row

from pointsman.store.rows import Task

TABLES = ("task_spec", "task_state")
_numbers = count(1)


@pytest.fixture
def db(shared_db: StoreFixture) -> StoreFixture:
    return shared_db


@pytest.fixture
def sqlite(db: StoreFixture) -> StoreFixture:
    if db.prompt.dialect != "sqlite":
        pytest.skip("only SQLite replaces rows")
    return db


def number_of(db: StoreFixture, task: Task) -> int:
    ((number,),) = db.prompt.ask("SELECT number FROM task WHERE id = :id", id=task.id)
    assert isinstance(number, int)
    return number


def columns(prompt: Outsider, table: str) -> list[str]:
    if prompt.dialect == "sqlite":
        found = prompt.ask("SELECT name FROM pragma_table_info(:name)", name=table)
    else:
        asked = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = :name"
        found = prompt.ask(asked, name=table)
    return [str(name) for (name,) in found]


def copied(prompt: Outsider, table: str, known: int, insertion: str = "INSERT", **values: str) -> str:
    """The statement that inserts the same row once more, with other values."""
    chosen = {name: name for name in columns(prompt, table)} | values
    names, sources = ", ".join(chosen), ", ".join(chosen.values())
    return f"{insertion} INTO {table} ({names}) SELECT {sources} FROM {table} WHERE number = {known}"


def whole(prompt: Outsider) -> list[object]:
    return [prompt.ask(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in (*TABLES, "trail")]


NEXT = "(SELECT max(number) + 1 FROM task_spec)"
OTHER_SPEC = {"number": NEXT, "id": "'task_x'", "name": "'x'"}
FRESH = {"revision": "0", "epoch": "0", "attempt_worker_id": "NULL"}
FORGERIES: dict[str, tuple[str, dict[str, str]]] = {
    "a spec that takes the number of another": ("task_spec", {"id": "'task_x'", "name": "'x'"}),
    "a spec that takes the id of another": ("task_spec", {"number": NEXT, "name": "'x'"}),
    "a spec that takes the name of another": ("task_spec", {"number": NEXT, "id": "'task_x'"}),
    "a spec with an id of another kind": ("task_spec", {**OTHER_SPEC, "id": "'run_x'"}),
    "a spec of another run by its number": ("task_spec", {**OTHER_SPEC, "run_number": "run_number - 1"}),
    "a spec of another run by its id": ("task_spec", {**OTHER_SPEC, "run_id": "'run_unknown'"}),
    "a spec with a parent that has no number": ("task_spec", {**OTHER_SPEC, "depth": "1", "parent_task_id": "id"}),
    "a spec with the number of a parent alone": ("task_spec", {**OTHER_SPEC, "parent_number": "number"}),
    "a spec with a number that no parent has yet": ("task_spec", {**OTHER_SPEC, "parent_number": "99999999"}),
    "a state in place of another": ("task_state", FRESH),
    "a state without a spec": ("task_state", {**FRESH, "number": "99999999"}),
    "a state without a number": ("task_state", {**FRESH, "number": "NULL"}),
}


@each_row("what", FORGERIES)
def test_no_row_is_forged(db: StoreFixture, what: str) -> None:
    number = number_of(db, db.put_task(db.put(db.run())))
    before = whole(db.prompt)
    table, values = FORGERIES[what]
    with pytest.raises(Refused):
        db.prompt.ask(copied(db.prompt, table, number, **values))
    assert whole(db.prompt) == before


@each_row("insertion", ["INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL"])
def test_no_row_is_forged_in_place_of_another(sqlite: StoreFixture, insertion: str) -> None:
    number = number_of(sqlite, sqlite.put_task(sqlite.put(sqlite.run())))
    before = whole(sqlite.prompt)
    for table, values in FORGERIES.values():
        with suppress(Refused) if insertion == "INSERT OR IGNORE" else pytest.raises(Refused):
            sqlite.prompt.ask(copied(sqlite.prompt, table, number, insertion, **values))
        assert whole(sqlite.prompt) == before


def test_a_spec_alone_is_refused(db: StoreFixture) -> None:
    """SQLite refuses it with the commit, and only if foreign keys are on: otherwise the audit finds it."""
    number = number_of(db, db.put_task(db.put(db.run())))
    before = whole(db.prompt)
    alone = copied(db.prompt, "task_spec", number, **OTHER_SPEC)
    if db.prompt.dialect == "sqlite":
        db.prompt.ask("PRAGMA foreign_keys = ON")
    with pytest.raises(Refused, match=r"FOREIGN KEY|stored in two rows"):
        db.prompt.ask(alone)
    assert whole(db.prompt) == before
    if db.prompt.dialect == "sqlite":
        db.prompt.ask("PRAGMA foreign_keys = OFF")
        db.prompt.ask(alone)
        with db.store.read() as reader:
            found = ("task", "task_x", "it has no row in task_state, and so no audit trail")
            assert found in [tuple(each) for each in reader.list_broken_trails()]
        with db.prompt.lawless("task"):
            db.prompt.ask("DELETE FROM task_spec WHERE id = 'task_x'")


MISFITS = {
    "another run": {"run_number": "run_number - 1"},
    "another parent": {"parent_number": "1"},
    "the lane of another tenant": {"lane_id": f"(SELECT id FROM lane WHERE tenant = '{GLOBEX}')"},
    "an unknown lane": {"lane_id": "999"},
    "an epoch": {"epoch": "1"},
    "two moves": {"revision": "2"},
    "another phase": {"phase": "'queued'"},
    "an unknown machine": {"machine_id": "999"},
    "metadata that is no JSON": {"metadata": "'['"},
}


@each_row("what", MISFITS)
def test_the_two_rows_of_a_task_fit(db: StoreFixture, what: str) -> None:
    db.lane(tenant=db.tenant(GLOBEX))
    task = db.put_task(db.put(db.run()))
    number, mate = number_of(db, task), f"task_mate_{next(_numbers)}"
    before = whole(db.prompt)
    with pytest.raises(Refused):
        insert_both(db, number, {"number": NEXT, "id": f"'{mate}'", "name": f"'{mate}'"}, MISFITS[what])
    if db.prompt.dialect == "sqlite":
        db.prompt.ask("ROLLBACK")
    assert whole(db.prompt) == before
    if db.prompt.dialect == "postgres":
        ((following,),) = db.prompt.ask("SELECT nextval('task_number_seq')")
    else:
        following = NEXT
    insert_both(db, number, {"number": str(following), "id": f"'{mate}'", "name": f"'{mate}'"}, {})
    if db.prompt.dialect == "sqlite":
        db.prompt.ask("COMMIT")
    assert db.prompt.ask("SELECT state FROM task WHERE id = :id", id=mate) == [(task.state,)]


def insert_both(db: StoreFixture, known: int, spec: dict[str, str], state: dict[str, str]) -> None:
    """PostgreSQL wants both in one statement, SQLite in one transaction."""
    first = copied(db.prompt, "task_spec", known, **spec)
    if db.prompt.dialect == "postgres":
        second = copied(db.prompt, "task_state", known, number=spec["number"], **state)
        db.prompt.ask(f"WITH spec AS ({first}) {second}")
    else:
        db.prompt.ask("BEGIN")
        db.prompt.ask(first)
        number = f"(SELECT number FROM task_spec WHERE id = {spec['id']})"
        db.prompt.ask(copied(db.prompt, "task_state", known, number=number, **state))


CHANGES = {
    "task_spec": (
        "id = id",
        "name = 'x'",
        "payload = 'x'",
        "run_number = 1",
        "parent_number = 1",
        "policy = '{}'",
        "budget_usd = 1",
    ),
    "task_state": (
        *("number = number + 1000", "run_number = run_number - 1", "parent_number = 1", "priority = 9", "lane_id = 999"),
        *("machine_id = 999", "max_retries = 9", "state = 'SUCCEEDED'", "state = 'RUNNING'", "state = 'DANCING'"),
        *(
            "phase = 'queued'",
            "revision = revision + 1",
            "revision = revision + 1, actor = 'sql'",
            "actor = 'x'",
            "output = 'x'",
        ),
        *("epoch = 1", "worker_id = 'x'", "attempt_worker_id = 'x'", "current_attempt = 0", "started_at = created_at"),
        "revision = 1, state = 'SUCCEEDED', phase = 'done', outcome = 'success', completed_at = created_at",
    ),
}


@each_row("change", [f"{table} SET {change}" for table, changes in CHANGES.items() for change in changes])
def test_no_row_is_changed_past_the_law(db: StoreFixture, change: str) -> None:
    db.put_task()
    number = number_of(db, db.put_task(db.put(db.run())))
    before = whole(db.prompt)
    with pytest.raises(Refused):
        db.prompt.ask(f"UPDATE {change} WHERE number = {number}")
    if db.prompt.dialect == "sqlite":
        with pytest.raises(Refused):
            db.prompt.ask(f"UPDATE OR REPLACE {change} WHERE number = {number}")
        with suppress(Refused):
            db.prompt.ask(f"UPDATE OR IGNORE {change} WHERE number = {number}")
    assert whole(db.prompt) == before


def test_a_state_that_is_typed_into_the_table_is_a_move(db: StoreFixture) -> None:
    task = db.put_task(state="RUNNING")
    number = number_of(db, task)
    db.prompt.ask("UPDATE task_state SET state = 'CANCELED', reason = 'enough' WHERE number = :number", number=number)
    found = find(db.store, task)
    assert (found.state, found.phase, found.outcome, found.revision) == ("CANCELED", "done", "canceled", task.revision + 1)
    assert found.current_attempt is None
    with db.store.read() as reader:
        last = reader.list_history(ACME, task.id)[-1]
    assert (last.from_state, last.to_state, last.actor, last.reason) == ("RUNNING", "CANCELED", "sql", "enough")


LEFT_OUT = {
    *("number", "run_number", "parent_number", "revision", "trigger", "tokens_in", "tokens_out", "cost_is_estimated"),
    *("attempt_tokens_in", "attempt_tokens_out", "attempt_cost_is_estimated"),
}
"""What has a default."""


def test_a_task_that_is_typed_into_the_view_has_both_rows(db: StoreFixture) -> None:
    task = db.put_task(db.put(db.run()))
    names = [name for name in columns(db.prompt, "task") if name not in LEFT_OUT]
    values = [{"id": "'task_typed'", "name": "'typed'"}.get(name, name) for name in names]
    typed = f"INSERT INTO task ({', '.join(names)}) SELECT {', '.join(values)} FROM task WHERE id = :id"
    db.prompt.ask(typed, id=task.id)
    for table in TABLES:
        known = "SELECT number FROM task WHERE id = 'task_typed'"
        assert len(db.prompt.ask(f"SELECT number FROM {table} WHERE number = ({known})")) == 1
    with db.store.read() as reader:
        assert len(reader.list_history(ACME, "task_typed")) == 1


def test_a_hand_does_not_undo_what_another_transaction_has_changed_meanwhile(db: StoreFixture) -> None:
    """A view hands on the row that the statement has found, and not the one that is there by then."""
    if db.prompt.dialect != "postgres":
        pytest.skip("SQLite has one writer at a time")
    task = db.put_task()
    with psycopg.connect(db.url) as slow, psycopg.connect(db.url) as other:
        other.execute("UPDATE task SET comment = 'first' WHERE id = %s", [task.id])
        slow.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        slow.execute("SET lock_timeout = '5s'")
        waiting = slow.cursor()
        with psycopg.connect(db.url, autocommit=True) as observer:
            failures: list[BaseException] = []

            def change() -> None:
                try:
                    waiting.execute("UPDATE task SET comment = 'second' WHERE id = %s", [task.id])
                except psycopg.Error as error:
                    failures.append(error)

            thread = threading.Thread(target=change)
            thread.start()
            asked = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
            while observer.execute(asked, [slow.info.backend_pid]).fetchone() != (1,):
                thread.join(0.01)
                assert thread.is_alive()
            other.commit()
            thread.join()
    assert [type(failure) for failure in failures] == [psycopg.errors.SerializationFailure]
    assert find(db.store, task).comment == "first"

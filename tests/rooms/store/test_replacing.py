"""REPLACE in SQLite deletes conflicting rows without firing a trigger: the law refuses it for all of its tables."""

from __future__ import annotations

import pytest
from tests.rooms.store.outsider import Outsider, Refused
from tests.rooms.store.store_fixture import StoreFixture


@pytest.fixture
def sqlite_prompt(prompt: Outsider) -> Outsider:
    if prompt.dialect != "sqlite":
        pytest.skip("PostgreSQL has no such statement")
    return prompt


def columns_of(prompt: Outsider, table: str) -> list[str]:
    return [name for (name,) in prompt.ask(f"SELECT name FROM pragma_table_info('{table}')")]


def copy_with(prompt: Outsider, table: str, row_id: str, **values: str) -> None:
    """Try to replace a row by a new copy of it with these columns changed."""
    fresh = {"revision": "0", "epoch": "0", "current_attempt": "NULL", "worker_id": "NULL", "outcome": "NULL"}
    columns = columns_of(prompt, table)
    chosen = {column: column for column in columns} | {name: text for name, text in fresh.items() if name in columns} | values
    prompt.ask(
        f"INSERT OR REPLACE INTO {table} ({', '.join(chosen)}) SELECT {', '.join(chosen.values())} FROM {table} WHERE id = :id",
        id=row_id,
    )


def count(prompt: Outsider, table: str) -> list[tuple[object, ...]]:
    return prompt.ask(f"SELECT id, state, revision FROM {table} ORDER BY id")


def test_a_task_is_not_replaced_by_another_of_its_name(db: StoreFixture, sqlite_prompt: Outsider) -> None:
    task = db.put_task()
    before = count(sqlite_prompt, "task")
    with pytest.raises(Refused):
        copy_with(sqlite_prompt, "task", task.id, id="'task_another'")
    assert count(sqlite_prompt, "task") == before


def test_a_breaker_is_not_replaced_by_another_of_its_tool(db: StoreFixture, sqlite_prompt: Outsider) -> None:
    breaker = db.put(db.breaker())
    before = count(sqlite_prompt, "breaker")
    with pytest.raises(Refused):
        copy_with(sqlite_prompt, "breaker", breaker.id, id="'breaker_another'")
    assert count(sqlite_prompt, "breaker") == before


@pytest.mark.parametrize("kind", ["run", "task", "worker", "breaker"])
def test_nothing_is_replaced_by_its_rowid(db: StoreFixture, sqlite_prompt: Outsider, kind: str) -> None:
    row = db.put(db.entity(f"standard.{kind}"))
    before = count(sqlite_prompt, kind)
    with pytest.raises(Refused):
        copy_with(sqlite_prompt, kind, row.id, id="'another'", rowid="rowid")
    assert count(sqlite_prompt, kind) == before


def test_a_task_does_not_take_the_place_of_another(db: StoreFixture, sqlite_prompt: Outsider) -> None:
    run = db.put(db.run())
    first, second = db.put_task(run), db.put_task(run)
    before = count(sqlite_prompt, "task")
    with pytest.raises(Refused):
        sqlite_prompt.ask(
            "UPDATE OR REPLACE task SET name = (SELECT name FROM task WHERE id = :first) WHERE id = :second",
            first=first.id,
            second=second.id,
        )
    assert count(sqlite_prompt, "task") == before


def test_a_rule_is_not_replaced_by_one_of_another_machine(db: StoreFixture, sqlite_prompt: Outsider) -> None:
    """The audit trail refers to rules: it would tell of other moves than those that were made."""
    run = db.bring(db.put(db.run()), "RUNNING")
    before = sqlite_prompt.ask("SELECT * FROM rule"), sqlite_prompt.ask("SELECT * FROM transition")
    columns = ", ".join(columns_of(sqlite_prompt, "rule")).replace("machine_id", "(SELECT max(id) + 1 FROM machine)")
    with pytest.raises(Refused, match="cannot be replaced"):
        sqlite_prompt.ask(f"INSERT OR REPLACE INTO rule SELECT {columns} FROM rule WHERE machine_id = :id", id=run.machine_id)
    assert (sqlite_prompt.ask("SELECT * FROM rule"), sqlite_prompt.ask("SELECT * FROM transition")) == before


def test_no_rule_takes_the_number_that_all_new_rules_seem_to_have(sqlite_prompt: Outsider) -> None:
    """Otherwise no other machine could be loaded."""
    columns = ", ".join(columns_of(sqlite_prompt, "rule")[2:])
    with pytest.raises(Refused, match="a number from 1 on"):
        sqlite_prompt.ask(f"INSERT INTO rule (id, machine_id, {columns}) SELECT -1, 9999, {columns} FROM rule LIMIT 1")


@pytest.mark.parametrize("kind", ["run", "task", "worker", "breaker"])
def test_no_row_takes_the_number_that_all_new_rows_seem_to_have(db: StoreFixture, sqlite_prompt: Outsider, kind: str) -> None:
    """Before a row is inserted, SQLite says -1 for the number that it is still to get."""
    row = db.put(db.entity(f"standard.{kind}"))
    unlike = {"task": "name", "breaker": "tool"}
    with pytest.raises(Refused, match="is created once"):
        copy_with(
            sqlite_prompt, kind, row.id, id="'another'", number="-1", **({unlike[kind]: "'another'"} if kind in unlike else {})
        )
    db.put(db.entity(f"standard.{kind}"))

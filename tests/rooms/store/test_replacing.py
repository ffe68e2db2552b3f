"""REPLACE, as SQLite has it, deletes what is in its way without a word: nothing of ours lets itself be replaced."""

from __future__ import annotations

import pytest
from tests.rooms.store.outsider import Outsider, Refused
from tests.rooms.store.store_fixture import StoreFixture


@pytest.fixture
def prompt(somebody: Outsider) -> Outsider:
    if somebody.dialect != "sqlite":
        pytest.skip("PostgreSQL has no such statement")
    return somebody


def columns_of(somebody: Outsider, table: str) -> list[str]:
    return [name for (name,) in somebody.ask(f"SELECT name FROM pragma_table_info('{table}')")]


def copy_with(somebody: Outsider, table: str, row_id: str, **values: str) -> None:
    """Try to put a copy of a row in its place, as it was when it began, but for these columns."""
    fresh = {"revision": "0", "epoch": "0", "current_attempt": "NULL", "worker_id": "NULL", "outcome": "NULL"}
    columns = columns_of(somebody, table)
    chosen = {column: column for column in columns} | {name: text for name, text in fresh.items() if name in columns} | values
    somebody.ask(
        f"INSERT OR REPLACE INTO {table} ({', '.join(chosen)}) SELECT {', '.join(chosen.values())} FROM {table} WHERE id = :id",
        id=row_id,
    )


def count(somebody: Outsider, table: str) -> list[tuple[object, ...]]:
    return somebody.ask(f"SELECT id, state, revision FROM {table} ORDER BY id")


def test_a_task_is_not_replaced_by_another_of_its_name(db: StoreFixture, prompt: Outsider) -> None:
    task = db.put_task()
    before = count(prompt, "task")
    with pytest.raises(Refused):
        copy_with(prompt, "task", task.id, id="'task_another'")
    assert count(prompt, "task") == before


def test_a_breaker_is_not_replaced_by_another_of_its_tool(db: StoreFixture, prompt: Outsider) -> None:
    breaker = db.put(db.breaker())
    before = count(prompt, "breaker")
    with pytest.raises(Refused):
        copy_with(prompt, "breaker", breaker.id, id="'breaker_another'")
    assert count(prompt, "breaker") == before


@pytest.mark.parametrize("kind", ["run", "task", "worker", "breaker"])
def test_nothing_is_replaced_by_the_number_of_its_row(db: StoreFixture, prompt: Outsider, kind: str) -> None:
    row = db.put(db.entity(f"standard.{kind}"))
    before = count(prompt, kind)
    with pytest.raises(Refused):
        copy_with(prompt, kind, row.id, id="'another'", rowid="rowid")
    assert count(prompt, kind) == before


def test_a_task_does_not_take_the_place_of_another(db: StoreFixture, prompt: Outsider) -> None:
    run = db.put(db.run())
    first, second = db.put_task(run), db.put_task(run)
    before = count(prompt, "task")
    with pytest.raises(Refused):
        prompt.ask(
            "UPDATE OR REPLACE task SET name = (SELECT name FROM task WHERE id = :first) WHERE id = :second",
            first=first.id,
            second=second.id,
        )
    assert count(prompt, "task") == before

"""A store that the version before has written is converted when it is opened, and its rows are under the present law."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.databases import DATABASES, sqlite_url
from tests.rooms.store.outsider import Refused, outsider, type_columns, type_row
from tests.rooms.store.store_fixture import ACME, AT, StoreFixture, find, open_store_fixture

from pointsman.errors import LawBroken
from pointsman.store.rows import Dependency, Entity, Run, Task, Worker
from pointsman.store.scripts import Migration, read_migrations

BEFORE = 11
"""The last migration of the version before."""


@dataclass(frozen=True)
class Written:
    """What the version before has left: a task that runs, one that waits for it, their run and their worker."""

    db: StoreFixture
    run: Run
    task: Task
    waiting: Task
    worker: Worker

    def rows(self) -> tuple[Entity, ...]:
        return self.run, self.task, self.waiting, self.worker


def read_former_migrations(package: str) -> list[Migration]:
    return read_migrations(package)[:BEFORE]


@pytest.fixture(params=DATABASES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Written]:
    url = sqlite_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"pointsman.store.{request.param}.store.read_migrations", read_former_migrations)
        with open_store_fixture(url) as former:
            run = former.bring(former.put(former.run(budget_usd=Decimal(5))), "RUNNING")
            worker = former.bring(former.put(former.worker(max_concurrent_tasks=1)), "IDLE")
            task = former.bring(former.put_task(run), "RUNNING", worker_id=worker.id)
            waiting = former.put_task(run, open_dependencies=1)
            with former.transaction() as begun:
                begun.insert_dependencies([Dependency(waiting.id, task.id)])
            with outsider(url) as prompt:
                assert prompt.ask("SELECT max(number) FROM migration") == [(BEFORE,)]
    with open_store_fixture(url) as db:
        yield Written(db, run, task, waiting, worker)


def test_a_store_of_the_version_before_keeps_its_rows_and_its_trail(written: Written) -> None:
    assert [find(written.db.store, row) for row in written.rows()] == list(written.rows())
    with written.db.store.read() as reader:
        assert [line.to_state for line in reader.list_history(ACME, written.task.id)] == ["PENDING", "QUEUED", "RUNNING"]


def test_rows_of_the_version_before_are_under_the_law(written: Written) -> None:
    prompt, db = written.db.prompt, written.db
    for row, columns in (
        (written.run, {"reserved_usd": Decimal(6)}),
        (written.run, {"state": "SUCCEEDED"}),
        (written.run, {"actor": "mallory"}),
        (written.task, {"retry_count": 99}),
        (written.task, {"current_attempt": None, "worker_id": None}),
        (written.task, {"payload": "another"}),
        (written.waiting, {"open_dependencies": 0}),
        (written.waiting, {"open_dependencies": -1}),
        (written.worker, {"run_id": "unknown"}),
        (written.worker, {"state": "TERMINATED"}),
    ):
        if "run_id" in columns and prompt.dialect == "sqlite":
            continue  # a prompt of SQLite looks at no foreign key
        with pytest.raises(Refused):
            type_columns(prompt, row, **columns)
    assert [find(db.store, row) for row in written.rows()] == list(written.rows())
    with pytest.raises(LawBroken, match="more than it may hold"):
        db.bring(db.put_task(written.run), "RUNNING", worker_id=written.worker.id)


def test_new_rows_in_a_store_of_the_version_before_are_under_the_law(written: Written) -> None:
    db = written.db
    for row in (
        db.run(reserved_usd=Decimal(1), budget_usd=Decimal(0)),
        db.task(written.run, max_attempts=1, attempt_count=2),
        db.task(written.run, started_at=AT, entered_at=AT, state="RUNNING", phase="active"),
        db.worker(lease_seconds=0),
    ):
        with pytest.raises(Refused):
            type_row(db.prompt, row)


def test_work_of_the_version_before_goes_on(written: Written) -> None:
    db = written.db
    done = db.move(written.task, "SUCCEEDED")
    assert find(db.store, done) == done
    with db.transaction() as begun:
        assert begun.release_dependents([done.id]) == [written.waiting.id]
    held = db.bring(replace(written.waiting, open_dependencies=0), "RUNNING", worker_id=written.worker.id)
    last = db.move(held, "SUCCEEDED")
    assert db.move(written.run, "SUCCEEDED").outcome == "success"
    with db.store.read() as reader:
        for task in done, last:
            assert [attempt.ended_by for attempt in reader.list_attempts(ACME, task.id)] == ["complete"]
        assert reader.list_disagreements() == []

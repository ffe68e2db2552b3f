"""A store that an older version has written is converted when it is opened, and its rows are under the present law.

`former.py` has filled these stores; the files beside it are what was in them, and what a reader said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from tests.databases import DATABASES, open_store, sqlite_url
from tests.rooms.engine.harness import ManualClock, open_engine, pass_time
from tests.rooms.store import former
from tests.rooms.store.outsider import Refused, outsider

from pointsman.engine.operations.attempts import AttemptReport
from pointsman.errors import StoreUnusable
from pointsman.store.contract import Store
from pointsman.store.scripts import Migration, read_migrations

SCHEMAS = (10, 12)
"""The last migrations of older versions."""


@pytest.fixture(params=SCHEMAS)
def schema(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(params=DATABASES)
def former_url(request: pytest.FixtureRequest, tmp_path: Path, schema: int) -> str:
    """A database as an older version has left it."""
    if request.param == "sqlite":
        (tmp_path / "pointsman.db").write_bytes(former.read_file(schema, "sqlite"))
        return sqlite_url(tmp_path)
    url: str = request.getfixturevalue("empty_postgres_url")
    with of_schema(schema, request.param):
        open_store(url).close()
    stored = msgspec.json.decode(former.read_file(schema, "postgres"))
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")  # neither the law nor foreign keys
        for table, rows in stored["rows"].items():
            if table != "migration":
                populated = f"json_populate_recordset(NULL::{table}, %s)"
                connection.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {populated}".encode(), [rows])
        for sequence, last in stored["counters"].items():
            connection.execute("SELECT setval(%s, %s)", [sequence, last])
    return url


@contextmanager
def of_schema(schema: int, database: str) -> Iterator[None]:
    def read_former_migrations(package: str) -> list[Migration]:
        return read_migrations(package)[:schema]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"pointsman.store.{database}.store.read_migrations", read_former_migrations)
        yield


def told_before(schema: int, url: str) -> dict[str, Any]:
    """What a reader of the older version said."""
    found: dict[str, Any] = msgspec.json.decode(
        former.read_file(schema, "sqlite.json" if url.startswith("sqlite") else "postgres.json")
    )
    return found


def known_before(told: Any, before: Any) -> Any:
    """Without the columns that the version before did not have."""
    match told:
        case dict() if isinstance(before, dict):
            return {name: known_before(told[name], before[name]) for name in told if name in before}
        case list() if isinstance(before, list) and len(told) == len(before):
            return list(map(known_before, told, before))
        case _:
            return told


def tell(store: Store) -> dict[str, Any]:
    with store.read() as reader:
        return former.see(reader)


def test_a_reader_is_told_the_same_as_before(former_url: str, schema: int) -> None:
    before = told_before(schema, former_url)
    assert len(before["stream"]) > 200
    with closing(open_store(former_url)) as store:
        assert known_before(tell(store), before) == before
        with store.read() as reader:
            assert (reader.list_broken_trails(), reader.list_disagreements()) == ([], [])
    if former_url.startswith("sqlite"):
        with outsider(former_url) as prompt:
            assert prompt.ask("PRAGMA integrity_check") == [("ok",)]
            assert prompt.ask("PRAGMA foreign_key_check") == []


async def test_work_of_an_older_version_goes_on(former_url: str, schema: int) -> None:
    """Attempts that run are reported, what waits is claimed, timers fire, and every seal fits the trail that it seals."""
    clock = ManualClock()
    async with open_engine(former_url, clock) as engine:
        await pass_time(engine, clock, 10)
        ada = engine.for_tenant(actor="ada")
        for task in [each for run in await ada.list_runs() for each in await ada.list_tasks(run.id)]:
            if task.current_attempt and not task.lease_expired:
                await ada.complete_task(task.id, task.epoch, AttemptReport(output='"done"'))
        worker = await engine.register_worker("new", max_concurrent_tasks=100, lease_seconds=1_000)
        claimed = await ada.claim_tasks(worker.id, 100)
        assert {"waits", "job"} & {claim.name for claim in claimed}
        for claim in claimed:
            await ada.complete_task(claim.task_id, claim.epoch)
        await engine.seal()
        report = await engine.audit()
        assert report.findings == []
        assert not report.unsealed
    before = told_before(schema, former_url)["stream"]
    with closing(open_store(former_url, clock)) as store:
        assert known_before(tell(store)["stream"][: len(before)], before) == before


def test_rows_of_an_older_version_are_under_the_law(former_url: str) -> None:
    open_store(former_url).close()
    with outsider(former_url) as prompt:
        for table, column in (
            ("run", "actor"),
            ("task", "payload"),
            ("worker", "state"),
            ("trail", "actor"),
            ("rule", "to_state"),
        ):
            for change in (f"UPDATE {table} SET {column} = 'another'", f"DELETE FROM {table}"):
                with pytest.raises(Refused, match="pointsman"):
                    prompt.ask(change)


@pytest.mark.parametrize("database", DATABASES)
def test_a_process_of_an_older_version_is_told_why_it_cannot_go_on(
    database: str, schema: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = sqlite_url(tmp_path) if database == "sqlite" else request.getfixturevalue("empty_postgres_url")
    with of_schema(schema, database):
        open_store(url).close()
    with outsider(url) as older:
        clock = "clock" if schema == 10 else "clock_correction"
        ask_for_the_time = f"SELECT {clock}.* FROM (SELECT 0) AS now LEFT JOIN {clock} ON 1 = 1"
        for _ in range(6):  # as each process does, the driver prepares what it asks so often
            assert len(older.ask(ask_for_the_time)) == 1
        open_store(url).close()
        with pytest.raises(
            Exception, match=r"a newer version of Pointsman has converted this database. Install that version here"
        ):
            older.ask(ask_for_the_time)


BY_HAND = (
    '{"epoch": "soon"}',
    '{"epoch": 1.5}',
    '{"epoch": 99999999999999999999}',
    '{"epoch": 1e999}',
    r'{"a": "\ud800"}',
    '{"worker_id":"mallory","epoch":1}',
    '{"worker_id":"mallory","epoch":7}',
)
"""What a legal move may have in its metadata, even where PostgreSQL cannot take the JSON apart."""
CANCEL = """
    UPDATE task
       SET revision = revision + 1, state = rule.to_state, phase = rule.to_phase, outcome = rule.to_outcome,
           trigger = rule.trigger, actor = 'mallory', metadata = :metadata,
           completed_at = created_at, worker_id = NULL, current_attempt = NULL
      FROM rule
     WHERE task.id = :id AND rule.machine_id = task.machine_id AND rule.from_state = task.state
       AND rule.to_outcome = 'canceled'
       AND rule.trigger = (SELECT min(trigger) FROM rule AS other
                            WHERE other.machine_id = task.machine_id AND other.from_state = task.state
                              AND other.to_outcome = 'canceled')
"""


def test_metadata_that_somebody_has_typed_is_converted_as_it_is(former_url: str) -> None:
    with outsider(former_url) as prompt:
        for phase in ("queued", "active"):
            found = prompt.ask(
                "SELECT id FROM task WHERE phase = :phase AND EXISTS (SELECT 1 FROM rule "
                "WHERE rule.machine_id = task.machine_id AND rule.from_state = task.state "
                "AND rule.to_outcome = 'canceled') ORDER BY id",
                phase=phase,
            )
            texts = BY_HAND if phase == "queued" else BY_HAND[::-1]
            for (task_id,), metadata in zip(found, texts, strict=False):
                prompt.ask(CANCEL, id=task_id, metadata=metadata)
        told = "SELECT position, entity_id, revision, metadata FROM transition ORDER BY position"
        before = prompt.ask(told)
        assert sum(metadata in BY_HAND for *_, metadata in before) > 4
    open_store(former_url).close()
    with outsider(former_url) as prompt:
        assert prompt.ask(told) == before


def test_the_columns_of_a_view_have_the_types_of_those_of_the_table(request: pytest.FixtureRequest, schema: int) -> None:
    """PostgreSQL refuses a prepared statement whose columns change their types."""
    url = request.getfixturevalue("empty_postgres_url")
    with of_schema(schema, "postgres"):
        open_store(url).close()
    with psycopg.connect(url, autocommit=True) as older:
        for table, columns in former.COLUMNS.items():
            older.execute(f"PREPARE a_{table} AS SELECT {columns} FROM {table}".encode())
        open_store(url).close()
        for table in former.COLUMNS:
            assert older.execute(f"EXECUTE a_{table}".encode()).fetchall() == []


STRAYS = {
    "a run or a parent that does not exist": "UPDATE task SET run_id = 'run_unknown' WHERE name = 'waits'",
    "the lane of another tenant": (
        "UPDATE task SET lane_id = (SELECT max(id) FROM lane WHERE tenant = 'acme') WHERE name = 'waits'"
    ),
}


@pytest.mark.parametrize("schema", [12], indirect=True)
@pytest.mark.parametrize("what", STRAYS)
def test_a_task_that_refers_to_what_it_cannot_have_is_not_converted(former_url: str, schema: int, what: str) -> None:
    """The owner of the tables has switched the law off."""
    with outsider(former_url) as prompt:
        if prompt.dialect == "sqlite":
            for (name,) in prompt.ask("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'task'"):
                prompt.ask(f"DROP TRIGGER {name}")
        else:
            prompt.ask("ALTER TABLE task DISABLE TRIGGER USER")
        prompt.ask(STRAYS[what])
    with pytest.raises(StoreUnusable, match=f"cannot be converted.*a task has {what}"):
        open_store(former_url).close()
    with outsider(former_url) as prompt:
        assert prompt.ask("SELECT max(number) FROM migration") == [(schema,)]
        assert prompt.ask("SELECT count(*) FROM task WHERE name = 'waits'") == [(1,)]


@pytest.mark.parametrize("schema", [10], indirect=True)
def test_a_trail_that_the_law_did_not_write_is_not_converted(former_url: str, schema: int) -> None:
    with outsider(former_url) as prompt, prompt.lawless("attempt"):
        prompt.ask("UPDATE attempt SET ended_by = 'magic'")
    with pytest.raises(StoreUnusable, match=r"cannot be converted.*an attempt is stored whose end is not in the audit trail"):
        open_store(former_url).close()
    with outsider(former_url) as prompt:
        assert prompt.ask("SELECT max(number) FROM migration") == [(schema,)]
        assert len(prompt.ask("SELECT position FROM transition")) == len(told_before(schema, former_url)["stream"])
